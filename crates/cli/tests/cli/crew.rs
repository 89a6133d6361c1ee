//! The example `examples/research-crew`: a supervisor, workers that ask a scripted model, and an approval.

use std::{fs, net::TcpListener};

use serde_json::{Value, json};

use crate::{
    binary::{Place, examples},
    models::Model,
    snippets::{Session, snippets},
};

/// A folder with a scripted model that plays the crew, and the arguments that run it.
fn crew() -> (Place, Model, Vec<String>) {
    let mut place = Place::new();
    let folder = examples().join("research-crew");
    let script = fs::read_to_string(folder.join("script.json")).unwrap();
    let model = Model::start(&place, &serde_json::from_str(&script).unwrap());
    place.set("WOPR_MODEL_URL", &format!("{}/v1", model.origin));
    place.set("WOPR_MODEL_NAME", "mock");
    place.set("WOPR_EGRESS_ALLOW", "127.0.0.1/32");
    let path = |name: &str| folder.join(name).display().to_string();
    let args = [
        "run",
        &path("crew/research-crew.json"),
        "--workflows",
        &path("crew"),
        "--input",
        "subject=mechanical watches",
        "--json",
    ];
    (place, model, args.map(str::to_owned).to_vec())
}

fn run(place: &Place, args: &[String], answer: &Value) -> Value {
    let answer = ["--answer".to_owned(), answer.to_string()];
    let args: Vec<_> = args.iter().chain(&answer).map(String::as_str).collect();
    place.json(&args)
}

#[test]
fn research_crew_publishes_what_a_person_accepts() {
    let (place, _model, args) = crew();
    let shown = run(&place, &args, &json!({ "action": "accept" }));
    assert_eq!(shown["status"], "completed", "{shown:#}");
    assert_eq!(shown["outputs"]["reason"], "goal-reached", "{shown:#}");
    let report = &shown["artifacts"][0];
    assert_eq!(report["artifactType"], "report", "{shown:#}");
    assert!(
        report["content"].as_str().unwrap().contains("700 years"),
        "{report:#}"
    );
    let asked = fs::read_to_string(place.path().join("asked.ndjson")).unwrap();
    assert_eq!(asked.lines().count(), 4, "each worker asked once");
    // What one worker found is data for the next.
    let verifier = asked.lines().last().unwrap();
    assert!(
        verifier.contains("the 13th century") && verifier.contains("<UNTRUSTED source="),
        "{verifier}"
    );
}

#[test]
fn research_crew_ends_without_publishing_what_a_person_rejects() {
    let (place, _model, args) = crew();
    let shown = run(
        &place,
        &args,
        &json!({ "action": "reject", "feedback": "too short" }),
    );
    assert_eq!(shown["status"], "completed", "{shown:#}");
    assert_eq!(shown["outputs"]["reason"], "rejected", "{shown:#}");
    assert_eq!(
        shown["outputs"]["successCriteria"],
        json!([{ "key": "published", "met": false }])
    );
    assert_eq!(shown["artifacts"], json!([]), "{shown:#}");
}

/// The recipe of its page, but for the addresses.
#[test]
fn the_crew_goes_on_after_a_kill_as_its_page_says() {
    let (_place, model, _) = crew();
    let found = snippets("examples/research-crew/README.md", "## Kill it in the middle\n");
    assert_eq!(found.len(), 2);
    // The page has a fixed port. Somebody else may take a free one before the host does, or while it is dead.
    let once = || {
        let session = Session::new();
        let free = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
        let mut script = "trap 'kill $HOST || true' EXIT\n".to_owned();
        for snippet in &found {
            let body = snippet.body.replace("http://127.0.0.1:4010", &model.origin);
            script.push_str(&body.replace("127.0.0.1:7001", &free.to_string()));
        }
        let output = session.bash(&script).output().unwrap();
        let said = String::from_utf8_lossy(&output.stdout).into_owned();
        match output.status.success() {
            true => Ok(said),
            false => Err(format!("{said}\n{}", String::from_utf8_lossy(&output.stderr))),
        }
    };
    let said = once().or_else(|_| once()).unwrap_or_else(|said| panic!("{said}"));
    for worker in ["planner", "historian", "engineer", "verifier"] {
        assert_eq!(
            said.matches(&format!("{worker} gave back")).count(),
            1,
            "{worker}: {said}"
        );
    }
    assert!(said.contains("publish-0 (report)"), "{said}");
}
