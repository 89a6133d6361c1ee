//! What branches remember, wherever in the log of their source they begin.

use serde_json::{Value, json};

use crate::{
    forks::{events, fork, seq_of},
    server::Server,
    workflows::{chain, node},
};

/// Reads, replaces an entry, reads, writes it anew, and reads once more after a question.
fn notes(id: &str, scope: &Value) -> Value {
    let config = |mut config: Value| {
        let scope = scope.as_object().cloned().unwrap();
        config.as_object_mut().unwrap().extend(scope);
        config
    };
    let write = |id: &str, content: &str| {
        let entry = json!({ "id": "old", "content": content });
        node(id, "core.memory.write", config(entry))
    };
    let read = |id: &str| node(id, "core.memory.read", config(json!({})));
    let sum = config(json!({ "id": "sum", "content": "both" }));
    let mut compact = node("compact", "core.memory.compact", sum);
    compact["inputs"] = json!({ "sourceIds": { "type": "static", "value": ["old"] } });
    let gate = node("gate", "core.approvalGate", json!({ "actions": ["accept"] }));
    let nodes = [
        write("first", "one"),
        read("early"),
        compact,
        read("middle"),
        write("second", "new"),
        gate,
        read("late"),
    ];
    chain(id, &nodes)
}

async fn run(server: &Server, id: &str, scope: &Value) -> String {
    let document = notes(id, scope);
    let call = server.post("/v1/workflows", &document);
    call.send().await.ok_either(&[200, 201]);
    let run = server.run(id, json!({})).await;
    server.wait_for(&run, "waiting-approval").await;
    server.clock.advance(10);
    run
}

/// Starts a fork that stops at the question.
async fn fork_of(server: &Server, run: &str, mode: &str, from: u64) -> String {
    let forked = fork(server, run, json!({ "mode": mode, "fromSeq": from })).await;
    server.wait_for(&forked, "waiting-approval").await;
    server.clock.advance(10);
    forked
}

/// The entries that a node of a run has read.
async fn read_by(server: &Server, run: &str, node: &str) -> Vec<String> {
    let log = events(server, run).await;
    let done = |event: &&Value| event["type"] == "node.completed" && event["nodeId"] == node;
    let outputs = &log.iter().find(done).unwrap()["payload"]["outputs"];
    let entries = outputs["entries"].as_array().unwrap().iter();
    let text = |value: &Value| value.as_str().unwrap().to_owned();
    let mut read: Vec<_> = entries
        .map(|entry| format!("{}={}", text(&entry["id"]), text(&entry["content"])))
        .collect();
    read.sort();
    read
}

async fn read_at_the_end(server: &Server, run: &str) -> Vec<String> {
    let answer = json!({ "resumeValue": { "action": "accept" } });
    let path = format!("/v1/runs/{run}/interrupts/gate");
    server.post(&path, &answer).send().await.ok(200);
    server.wait_for(run, "completed").await;
    read_by(server, run, "late").await
}

#[tokio::test]
async fn a_branch_in_the_middle_of_a_compaction_removes_only_entries_of_its_own() {
    let server = Server::start().await;
    let source = run(&server, "own", &json!({})).await;
    let from = seq_of(&events(&server, &source).await, "memory.compacted", "compact");
    let branch = fork_of(&server, &source, "branch", from).await;
    assert_eq!(read_by(&server, &branch, "middle").await, ["sum=both"]);
    let again = fork_of(&server, &branch, "branch", from).await;
    assert_eq!(read_by(&server, &again, "middle").await, ["sum=both"]);
    let later = seq_of(&events(&server, &branch).await, "node.started", "middle");
    let later = fork_of(&server, &branch, "branch", later).await;
    assert_eq!(read_by(&server, &later, "middle").await, ["sum=both"]);
    for run in [&source, &branch, &again, &later] {
        assert_eq!(
            read_at_the_end(&server, run).await,
            ["old=new", "sum=both"],
            "{run}"
        );
    }
    let replay = fork(&server, &branch, json!({ "mode": "replay" })).await;
    let replay = server.wait_for(&replay, "completed").await;
    assert_eq!(replay["forkedFrom"].get("divergedAtSeq"), None, "{replay}");
    server.stop().await;
}

#[tokio::test]
async fn a_branch_in_the_middle_of_a_compaction_leaves_a_shared_scope_as_it_is() {
    let server = Server::start().await;
    let source = run(&server, "shared", &json!({ "memoryRef": "team" })).await;
    let from = seq_of(&events(&server, &source).await, "memory.compacted", "compact");
    let branch = fork_of(&server, &source, "branch", from).await;
    // It reads what is there now.
    let now = ["old=new", "sum=both"];
    assert_eq!(read_by(&server, &branch, "middle").await, now);
    assert_eq!(read_at_the_end(&server, &source).await, now);
    server.stop().await;
}

#[tokio::test]
async fn a_branch_of_a_fork_remembers_what_was_known_where_it_begins() {
    let server = Server::start().await;
    let source = run(&server, "own", &json!({})).await;
    let log = events(&server, &source).await;
    let (early, middle, second) = (
        seq_of(&log, "node.started", "early"),
        seq_of(&log, "node.started", "middle"),
        seq_of(&log, "node.started", "second"),
    );
    let replay = fork_of(&server, &source, "replay", 0).await;
    let branch = fork_of(&server, &source, "branch", second).await;
    for fork in [&replay, &branch] {
        let of_fork = fork_of(&server, fork, "branch", early).await;
        assert_eq!(read_by(&server, &of_fork, "early").await, ["old=one"], "{fork}");
        let of_fork = fork_of(&server, fork, "branch", middle).await;
        assert_eq!(read_by(&server, &of_fork, "middle").await, ["sum=both"], "{fork}");
    }
    server.stop().await;
}
