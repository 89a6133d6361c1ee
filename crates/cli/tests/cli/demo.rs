//! The demo, end to end: its output and its cleanup.

use std::process::Stdio;

use crate::binary::{Place, first_line, signal, wait};

/// Extracts the numbers after "process ".
fn processes(text: &str) -> Vec<u32> {
    text.split("process ")
        .skip(1)
        .filter_map(|rest| {
            let digits: String = rest.chars().take_while(char::is_ascii_digit).collect();
            digits.parse().ok()
        })
        .collect()
}

#[test]
fn demo_shows_a_task_that_survives_and_leaves_nothing() {
    let mut place = Place::new();
    let temp = place.path().display().to_string();
    place.set("TMPDIR", &temp);
    // The environment must not affect the demo's host.
    place.set("WOPR_STORE", "redis:nonsense");
    for _ in 0..2 {
        let said = place.ends(0, &["demo"]);
        assert_eq!(said.err, "");
        let mut rest = said.out.as_str();
        for wanted in [
            "1. Start a host",
            "campaign-brief",
            "submitted",
            "working",
            "artifact Draft",
            "input-required",
            "is dead (signal 9)",
            "Connection refused",
            "has the task again",
            "input-required",
            r#"{"approve":true}"#,
            "working",
            "artifact Campaign brief",
            "Approved by reviewer.",
            "completed",
            "run.started",
            "approval.received",
            "run.completed",
            "Done.",
            "Try next",
        ] {
            let Some(at) = rest.find(wanted) else {
                panic!("{wanted} is missing after what came before: {said:#?}");
            };
            rest = &rest[at + wanted.len()..];
        }
        let pids = processes(&said.out);
        assert!(pids.len() >= 3 && pids[0] != pids[2], "{pids:?}");
        for pid in pids {
            assert!(!signal(pid, "0"), "process {pid} is still there");
        }
        assert_eq!(place.path().read_dir().unwrap().count(), 0, "the folder is gone");
    }
}

#[test]
fn interrupted_demo_leaves_nothing() {
    let mut place = Place::new();
    let temp = place.path().display().to_string();
    place.set("TMPDIR", &temp);
    let mut demo = place
        .command(&["demo", "--pace", "5m"])
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let Some(line) = first_line(&mut demo, |line| line.contains("(process ")) else {
        demo.kill().unwrap();
        panic!("the demo did not start a host");
    };
    let host = processes(&line)[0];
    assert!(signal(host, "0"));
    assert!(signal(demo.id(), "INT"));
    assert_eq!(wait(&mut demo).code(), Some(130));
    assert!(!signal(host, "0"), "process {host} is still there");
    assert_eq!(place.path().read_dir().unwrap().count(), 0, "the folder is gone");
}

#[test]
fn kept_demo_can_be_served_again() {
    let mut place = Place::new();
    let temp = place.path().display().to_string();
    place.set("TMPDIR", &temp);
    let said = place.ends(0, &["demo", "--keep"]);
    let kept = place.path().read_dir().unwrap().next().unwrap().unwrap().path();
    assert!(
        said.out.contains(&kept.join("wopr.toml").display().to_string()),
        "{said:#?}"
    );
    let config = kept.join("wopr.toml");
    place.ends(0, &["config", "check", "--config", config.to_str().unwrap()]);
}

#[test]
fn second_opinion_asks_two_agents_and_a_person_and_leaves_nothing() {
    let mut place = Place::new();
    let temp = place.path().display().to_string();
    place.set("TMPDIR", &temp);
    let demo = ["demo", "second-opinion", "Rename the product"];
    let answers = [
        "--answer",
        r#"{"answers":{"answer":"the old name stays"}}"#,
        "--answer",
        r#"{"action":"accept"}"#,
    ];
    let said = place.ends(0, &[&demo[..], &answers].concat());
    for part in [
        "# Rename the product",
        "an hour to remove the old way.",
        "said to be this: the old name stays",
        "Go ahead, says",
    ] {
        assert!(said.out.contains(part), "{part} is missing: {said:#?}");
    }
    // The call of each agent, and the question of one.
    for part in [
        "by builder, task run_",
        "by sceptic, task run_",
        "sceptic asks: How is it undone",
        "Go ahead?",
    ] {
        assert!(said.err.contains(part), "{part} is missing: {said:#?}");
    }
    let pids = processes(&said.err);
    assert_eq!(pids.len(), 3, "{said:#?}");
    for pid in pids {
        assert!(!signal(pid, "0"), "process {pid} is still there");
    }
    // The other demo's flags are refused, not ignored.
    place.ends(2, &["demo", "--keep", "second-opinion"]);
    // What is not answered is told, with an answer of the right form.
    let said = place.ends(6, &demo);
    assert!(said.err.contains("--answer '"), "{said:#?}");
    let said = place.ends(
        0,
        &[&demo[..], &answers[..2], &["--answer", r#"{"action":"reject"}"#]].concat(),
    );
    assert!(said.out.contains("Not now."), "{said:#?}");
    assert_eq!(place.path().read_dir().unwrap().count(), 0, "the folder is gone");
}

#[test]
fn coding_crew_codes_in_two_rounds_and_leaves_nothing() {
    let mut place = Place::new();
    let temp = place.path().display().to_string();
    place.set("TMPDIR", &temp);
    let demo = ["demo", "coding-crew", "Rename the cart"];
    let answers = ["--answer", r#""plain""#, "--answer", r#"{"approved":true}"#];
    let said = place.ends(0, &[&demo[..], &answers].concat());
    for part in [
        "// Rename the cart (plain)",
        "// with a test, because it had no test",
        "\"rounds\": 2",
        "\"approved\": true",
    ] {
        assert!(said.out.contains(part), "{part} is missing: {said:#?}");
    }
    for part in ["coder asks: Which style", "Merge the patch?"] {
        assert!(said.err.contains(part), "{part} is missing: {said:#?}");
    }
    let pids = processes(&said.err);
    assert_eq!(pids.len(), 2, "{said:#?}");
    for pid in pids {
        assert!(!signal(pid, "0"), "process {pid} is still there");
    }
    let said = place.ends(6, &demo);
    assert!(said.err.contains("--answer '"), "{said:#?}");
    assert_eq!(place.path().read_dir().unwrap().count(), 0, "the folder is gone");
}
