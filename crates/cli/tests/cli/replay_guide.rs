//! Forks from the command line: the page about them, and a host that is killed in the middle of one.

use serde_json::{Value, json};

use crate::{
    binary::Place,
    snippets::{Session, snippets},
};

#[test]
fn the_replay_page_runs_verbatim() {
    let mut session = Session::new();
    let (mut script, mut checks) = (String::new(), Vec::new());
    for snippet in snippets("docs/replay.md", "## Try it\n") {
        match snippet.language.as_str() {
            "sh" if snippet.body.contains("wopr serve") => session.serve(&snippet),
            "json" => {
                session.place.write("letter.json", &snippet.body);
            }
            "sh" => script.push_str(&snippet.body),
            "text" => checks.push(snippet.body),
            other => panic!("nobody knows how to run {other}: {}", snippet.body),
        }
    }
    assert_eq!((session.hosts.len(), checks.len()), (1, 1));
    let said = session.run(&script);
    assert!(said.ends_with(&checks[0]), "{said}");
    assert!(said.contains("branch of run_"), "{said}");
    assert!(said.contains("replay of run_"), "{said}");
}

/// A workflow whose run has about 15,000 events.
fn long() -> Value {
    let node = |id: &str, type_id: &str, config: Value| {
        json!({
            "id": id, "typeId": type_id, "name": id, "position": { "x": 0, "y": 0 }, "config": config, "inputs": {},
        })
    };
    let edge = |id: &str, target: &str, condition: &str| {
        json!({
            "id": id, "sourceNodeId": "count", "targetNodeId": target, "condition": { "expression": condition },
        })
    };
    json!({
        "id": "long", "name": "Long", "version": "1", "triggers": [{ "id": "manual", "type": "manual" }],
        "metadata": {}, "settings": {},
        "nodes": [
            node("count", "core.setVariable", json!({ "name": "n", "expression": "n + 1" })),
            node("end", "core.noop", json!({})),
        ],
        "edges": [edge("again", "count", "n < 5000"), edge("on", "end", "n >= 5000")],
        "variables": [{ "name": "n", "type": "number", "defaultValue": 0 }],
    })
}

#[test]
fn a_fork_goes_on_after_a_kill() {
    let mut place = Place::new();
    place.set("WOPR_MAX_NODE_EXECUTIONS", "10000");
    let host = place.serve();
    place.write("long.json", &long().to_string());
    place.ends(0, &["workflows", "register", "long.json"]);
    let run = place.json(&["run", "long", "--json"])["runId"].clone();
    let run = run.as_str().unwrap();
    let forks: Vec<_> = [["--from", "0", "--replay"].as_slice(), &["--from", "9000"]]
        .into_iter()
        .map(|how| {
            let args = [["runs", "fork", run].as_slice(), how, &["--json"]].concat();
            place.json(&args)["runId"].as_str().unwrap().to_owned()
        })
        .collect();
    host.kill();
    let _host = place.serve();
    for fork in &forks {
        place.ends(0, &["runs", "events", fork, "--follow"]);
        let snapshot = place.json(&["runs", "show", fork, "--json"]);
        assert_eq!(snapshot["status"], "completed");
        assert_eq!(snapshot["variables"]["n"], 5000);
        assert_eq!(snapshot["forkedFrom"]["sourceRunId"], run);
    }
    let said = place.ends(0, &["runs", "diff", run, &forks[0]]);
    assert_eq!(said.out, "the runs have the same events\n");
}
