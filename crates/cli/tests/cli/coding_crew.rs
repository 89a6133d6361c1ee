//! The example `examples/coding-crew`: a document whose delegate is another host, as its page says.

use std::{fs, net::TcpListener};

use crate::{
    binary::examples,
    snippets::{Session, snippets},
};

const PAGE: &str = "examples/coding-crew/README.md";
const CONFIG: &str = "--config examples/coding-crew/wopr.toml";

/// A session with the agent, and the configuration of the crew's host at the agent's port.
fn session() -> Session {
    let mut session = Session::new();
    let found = snippets(PAGE, "## By hand\n");
    session.serve(&found[0]);
    let config = fs::read_to_string(examples().join("coding-crew/wopr.toml")).unwrap();
    let ours = session.at_our_ports(&config);
    assert_ne!(config, ours, "the configuration names the port of the page");
    session.place.write("wopr.toml", &ours);
    session
}

#[test]
fn the_crew_runs_by_hand_with_answers_to_the_agent_and_to_the_host() {
    let session = session();
    let found = snippets(PAGE, "## By hand\n");
    let [_, run] = found.as_slice() else {
        panic!("one snippet serves, one runs: {found:?}");
    };
    assert!(run.body.contains(CONFIG), "{run:?}");
    // Without a terminal, the answers are on the command line.
    let answers = r#"--answer '"plain"' --answer '{"approved":true}'"#;
    let script = run.body.replace(CONFIG, &format!("--config wopr.toml {answers}"));
    let said = session.run(&script);
    for part in [
        "// Refuse an empty cart (plain)",
        "// with a test, because it had no test",
        "\"rounds\": 2",
        "\"approved\": true",
    ] {
        assert!(said.contains(part), "{part} is missing: {said}");
    }
}

/// The recipe of its page, but for the addresses.
#[test]
fn the_crew_goes_on_after_a_kill_of_either_side() {
    let found = snippets(PAGE, "## Kill it in the middle\n");
    assert_eq!(found.len(), 2);
    // The page has a fixed port. Somebody else may take a free one before the host does, or while it is dead.
    let once = || {
        let session = session();
        let free = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
        let mut script = "trap 'kill $HOST || true' EXIT\n".to_owned();
        for snippet in &found {
            let body = snippet.body.replace(CONFIG, "--config wopr.toml");
            script.push_str(&body.replace("127.0.0.1:7001", &free.to_string()));
        }
        let output = session.bash(&script).output().unwrap();
        let said = String::from_utf8_lossy(&output.stdout).into_owned();
        if !output.status.success() {
            return Err(format!("{said}\n{}", String::from_utf8_lossy(&output.stderr)));
        }
        let tasks = session.run(&format!(
            "WOPR_SERVER={} WOPR_API_KEY=key-of-the-coder-0123456789 wopr runs list",
            session.hosts[0].origin
        ));
        Ok((said, tasks))
    };
    let (said, tasks) = once().or_else(|_| once()).unwrap_or_else(|said| panic!("{said}"));
    assert!(said.contains("completed"), "{said}");
    // One task for each patch, though the host died while the first one was under way.
    assert_eq!(tasks.matches("run_").count(), 2, "{tasks}");
}
