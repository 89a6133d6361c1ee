//! Agent Workflow documents: their runs are OpenWOP runs and A2A tasks like all others.

use serde_json::{Value, json};

use crate::server::{BOB, READER, Server};

/// A document whose worker makes a patch, which somebody approves.
fn definition() -> Value {
    json!({
        "document": { "schema": "https://agent-workflow.dev/schemas/workflow-definition.json", "name": "Patch Review", "version": "1.0.0" },
        "state_schema": { "type": "object", "properties": { "log": { "type": "array", "reducer": "append" } } },
        "nodes": [
            { "id": "start", "type": "start" },
            { "id": "work", "type": "tool_call", "config": { "server": "coder", "tool": "patch" }, "retry": { "max_attempts": 2 } },
            { "id": "review", "type": "interrupt", "config": {
                "prompt": "Merge the patch?",
                "resume_schema": { "type": "object", "properties": { "ok": { "type": "boolean" } }, "required": ["ok"] },
            } },
            { "id": "end", "type": "end", "config": { "output_mapping": "{patch, ok, n: (.log | length)}" } },
        ],
        "edges": [
            { "source": "__start__", "target": "start" }, { "source": "start", "target": "work" },
            { "source": "work", "target": "review" }, { "source": "review", "target": "end" },
        ],
    })
}

async fn call(server: &Server, method: &str, params: Value) -> Value {
    let body = json!({"jsonrpc": "2.0", "id": 1, "method": method, "params": params});
    let sent = server.post("/a2a", &body).header("a2a-version", "1.0");
    sent.send().await.ok(200)["result"].clone()
}

/// Waits until a run has asked its workers so often.
async fn scheduled(server: &Server, run: &str, times: usize) {
    let mut after = String::new();
    loop {
        let types = server.event_types(run).await;
        let is_scheduled = |kind: &&String| *kind == "vendor.wopr.effect.scheduled";
        if types.iter().filter(is_scheduled).count() >= times {
            return;
        }
        let path = format!("/v1/runs/{run}/events/poll?timeout=10{after}");
        let poll = server.get(&path).send().await.ok(200);
        assert_eq!(poll["isTerminal"], false, "{poll}");
        after = format!("&lastSequence={}", poll["lastEventSeq"]);
    }
}

/// Submits an outcome for the only activity of a run.
async fn submit(server: &Server, run: &str, outcome: Value) {
    let snapshot = server.snapshot(run).await;
    let activity = &snapshot["activities"][0];
    assert_eq!(activity["queue"], "awp.tool_call", "{snapshot}");
    assert_eq!(activity["input"]["config"]["tool"], "patch", "{snapshot}");
    let path = format!("/v1/activities/{}", activity["token"].as_str().unwrap());
    server
        .post(&path, &json!({ "outcome": outcome }))
        .send()
        .await
        .ok(200);
}

#[tokio::test]
async fn run_of_a_document_is_a_run_and_a_task() {
    let server = Server::start_on_sqlite().await;
    let registered = server.post("/v1/workflows", &definition()).send().await.ok(201);
    assert_eq!(registered["workflowId"], "patch-review", "{registered}");

    let run = server.run("patch-review", json!({ "log": ["asked"] })).await;
    // The plan is found again by the language that is stored beside the definition.
    let server = server.again_on_sqlite().await;
    let failed = json!({ "ok": false, "error": { "code": "BUSY", "message": "later", "retryable": false } });
    submit(&server, &run, failed).await;
    scheduled(&server, &run, 2).await;
    submit(
        &server,
        &run,
        json!({ "ok": true, "result": { "patch": "diff", "log": "made" } }),
    )
    .await;

    let waiting = server.wait_for(&run, "waiting-input").await;
    assert_eq!(waiting["interrupt"]["nodeId"], "review", "{waiting}");
    let task = call(&server, "GetTask", json!({ "id": run })).await;
    assert_eq!(task["status"]["state"], "TASK_STATE_INPUT_REQUIRED", "{task}");
    assert!(task.to_string().contains("Merge the patch?"), "{task}");

    let bad = json!({ "resumeValue": { "ok": "yes" } });
    let path = format!("/v1/runs/{run}/interrupts/review");
    server
        .post(&path, &bad)
        .send()
        .await
        .error(400, "validation_error");
    let answer = json!({ "message": {
        "messageId": "answer", "taskId": run, "role": "ROLE_USER", "parts": [{ "data": { "ok": true } }],
    } });
    let task = call(&server, "SendMessage", answer).await["task"].clone();
    assert_eq!(task["status"]["state"], "TASK_STATE_COMPLETED", "{task}");
    let ended = server.snapshot(&run).await;
    assert_eq!(ended["status"], "completed");
    assert_eq!(
        ended["variables"],
        json!({ "log": ["asked", "made"], "patch": "diff", "ok": true })
    );
    let path = format!("/v1/runs/{run}/events/poll?timeout=10");
    let log = server.get(&path).send().await.ok(200);
    assert!(log.to_string().contains("\"n\":2"), "{log}");
    let result = json!({ "patch": "diff", "ok": true, "n": 2 });
    let artifact = &task["artifacts"][0];
    assert_eq!(
        (&artifact["artifactId"], &artifact["parts"]),
        (&json!("end-0"), &json!([{ "data": result }])),
        "{task}"
    );
    let path = format!("/v1/runs/{run}/artifacts/end");
    let artifact = server.get(&path).send().await.ok(200);
    assert_eq!(artifact["content"], result, "{artifact}");
    // Who may not read artifacts learns where it is.
    let read = json!({ "jsonrpc": "2.0", "id": 1, "method": "GetTask", "params": { "id": run } });
    let read = server
        .call("POST", "/a2a")
        .key(READER)
        .header("a2a-version", "1.0")
        .json(&read);
    let task = read.send().await.ok(200)["result"].clone();
    let parts = task["artifacts"][0]["parts"].as_array().unwrap();
    assert!(
        parts[0]["url"].as_str().unwrap().ends_with("/artifacts/end-0"),
        "{task}"
    );
    assert_eq!(parts.len(), 1, "{task}");
    server
        .call("GET", &path)
        .key(READER)
        .send()
        .await
        .error(403, "forbidden");
    server.stop().await;
}

#[tokio::test]
async fn outcome_of_a_worker_that_is_no_object_is_the_value() {
    let server = Server::start_on_sqlite().await;
    server.post("/v1/workflows", &definition()).send().await.ok(201);
    for (outcome, added) in [
        (json!([1]), json!({ "value": [1] })),
        (json!("s"), json!({ "value": "s" })),
        (json!({ "result": [1] }), json!({ "result": [1] })),
        (Value::Null, json!({})),
    ] {
        let run = server.run("patch-review", json!({})).await;
        submit(&server, &run, json!({ "ok": true, "result": outcome })).await;
        let waiting = server.wait_for(&run, "waiting-input").await;
        assert_eq!(waiting["variables"], added, "{outcome}");
    }
    server.stop().await;
}

#[tokio::test]
async fn task_of_a_document_is_cancelled_and_kept_from_other_tenants() {
    let server = Server::start().await;
    server.post("/v1/workflows", &definition()).send().await.ok(201);
    let message = json!({ "message": {
        "messageId": "one", "role": "ROLE_USER", "parts": [{ "data": { "log": [] } }], "metadata": { "skillId": "patch-review" },
    } , "configuration": { "returnImmediately": true } });
    let task = call(&server, "SendMessage", message).await["task"].clone();
    let id = task["id"].as_str().unwrap().to_owned();
    let path = format!("/v1/runs/{id}");
    let foreign = server.call("GET", &path).key(BOB).send().await;
    foreign.error(404, "not_found");
    let task = call(&server, "CancelTask", json!({ "id": id })).await;
    assert_eq!(task["status"]["state"], "TASK_STATE_CANCELED", "{task}");
    assert_eq!(server.snapshot(&id).await["status"], "cancelled");
}

#[tokio::test]
async fn document_and_inputs_are_refused_with_their_problems() {
    let server = Server::start().await;
    let mut broken = definition();
    broken["nodes"][2]["type"] = json!("question");
    let refused = server.post("/v1/workflows", &broken).send().await;
    let refused = refused.error(400, "validation_error");
    assert!(
        refused.to_string().contains("there is no node type 'question'"),
        "{refused}"
    );
    server.post("/v1/workflows", &definition()).send().await.ok(201);
    let body = json!({ "workflowId": "patch-review", "inputs": { "log": 1 } });
    let refused = server.post("/v1/runs", &body).send().await;
    let refused = refused.error(400, "validation_error");
    assert_eq!(refused["field"], "inputs", "{refused}");
}
