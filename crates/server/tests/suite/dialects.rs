//! A second workflow language: its runs are runs and tasks like all others.
//!
//! The language is a list of templates. It is compiled in for tests alone, and only its own crate and
//! `core/src/program.rs` know of it.

use serde_json::{Value, json};

use crate::server::{BOB, Server};

fn definition() -> Value {
    json!({ "id": "greeting", "templates": [
        "Hello {name}.",
        { "ask": "Which colour, {name}?", "as": "colour" },
        "{text} You like {colour}.",
    ] })
}

async fn call(server: &Server, method: &str, params: Value) -> Value {
    let body = json!({"jsonrpc": "2.0", "id": 1, "method": method, "params": params});
    let sent = server.post("/a2a", &body).header("a2a-version", "1.0");
    sent.send().await.ok(200)["result"].clone()
}

#[tokio::test]
async fn run_of_another_language_is_a_run_and_a_task() {
    let server = Server::start_on_sqlite().await;
    let registered = server.post("/v1/workflows", &definition()).send().await.ok(201);
    assert_eq!(registered["workflowId"], "greeting", "{registered}");

    // Started over REST, it asks; the question is that of a task, too.
    let run = server.run("greeting", json!({ "name": "Ann" })).await;
    let waiting = server.wait_for(&run, "waiting-input").await;
    assert_eq!(waiting["interrupt"]["nodeId"], "step-1", "{waiting}");
    let task = call(&server, "GetTask", json!({ "id": run })).await;
    assert_eq!(task["status"]["state"], "TASK_STATE_INPUT_REQUIRED", "{task}");
    assert!(task.to_string().contains("Which colour, Ann?"), "{task}");

    // The plan of a running run is found again by the language stored beside its definition.
    let server = server.again_on_sqlite().await;
    let answer = json!({
        "message": {
            "messageId": "answer", "taskId": run, "role": "ROLE_USER", "parts": [{"text": "green"}],
        },
    });
    let task = call(&server, "SendMessage", answer).await["task"].clone();
    assert_eq!(task["status"]["state"], "TASK_STATE_COMPLETED", "{task}");
    let ended = server.snapshot(&run).await;
    assert_eq!(ended["status"], "completed");
    assert_eq!(ended["variables"]["text"], "Hello Ann. You like green.");
    assert_eq!(
        server.event_types(&run).await,
        [
            "run.started",
            "node.started",
            "node.completed",
            "node.started",
            "interrupt.requested",
            "clarification.requested",
            "node.suspended",
            "interrupt.resolved",
            "clarification.resolved",
            "node.resumed",
            "node.completed",
            "node.started",
            "node.completed",
            "run.completed",
        ]
    );
    server.stop().await;
}

#[tokio::test]
async fn task_of_another_language_is_cancelled_and_kept_from_other_tenants() {
    let server = Server::start().await;
    server.post("/v1/workflows", &definition()).send().await.ok(201);
    let message = json!({
        "message": {
            "messageId": "one", "role": "ROLE_USER", "parts": [{"data": {"name": "Bo"}}],
            "metadata": {"skillId": "greeting"},
        },
    });
    let task = call(&server, "SendMessage", message).await["task"].clone();
    assert_eq!(task["status"]["state"], "TASK_STATE_INPUT_REQUIRED", "{task}");
    let id = task["id"].as_str().unwrap().to_owned();
    let path = format!("/v1/runs/{id}");
    server
        .call("GET", &path)
        .key(BOB)
        .send()
        .await
        .error(404, "not_found");
    let cancelled = server.post(&format!("{path}/cancel"), &json!({})).send().await;
    assert_eq!(cancelled.ok(200)["status"], "cancelled");
    let task = call(&server, "GetTask", json!({ "id": id })).await;
    assert_eq!(task["status"]["state"], "TASK_STATE_CANCELED", "{task}");
}

#[tokio::test]
async fn child_may_be_of_another_language_than_its_parent() {
    let server = Server::start().await;
    server.post("/v1/workflows", &definition()).send().await.ok(201);
    let parent = json!({
        "id": "host", "name": "host", "version": "1.0.0", "nodes": [{
            "id": "child", "typeId": "core.subWorkflow", "name": "child",
            "config": { "workflowId": "greeting", "inputs": { "name": "Cy" }, "outputMapping": { "said": "text" } },
        }],
        "edges": [], "triggers": [], "metadata": {}, "settings": {},
        "variables": [{ "name": "said", "type": "string" }],
    });
    server.post("/v1/workflows", &parent).send().await.ok(201);
    let run = server.run("host", json!({})).await;
    server.wait_for(&run, "waiting-input").await;
    let answer = json!({ "resumeValue": { "answers": [{ "id": "colour", "answer": "blue" }] } });
    let path = format!("/v1/runs/{run}/interrupts/child");
    server.post(&path, &answer).send().await.ok(200);
    let ended = server.wait_for(&run, "completed").await;
    assert!(ended.to_string().contains("Hello Cy. You like blue."), "{ended}");
}

#[tokio::test]
async fn broken_list_is_refused_with_its_problem() {
    let server = Server::start().await;
    let broken = json!({ "id": "broken", "templates": [{ "ask": "What?" }] });
    let refused = server.post("/v1/workflows", &broken).send().await;
    let refused = refused.error(400, "validation_error");
    assert!(refused.to_string().contains("an entry is neither"), "{refused}");
}
