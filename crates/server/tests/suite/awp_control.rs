//! The control plane of the Agent Workflow Protocol over REST: calls, refusals without effect, histories.

use serde_json::{Value, json};
use wopr_server::auth::Scopes;

use crate::{
    client::Reply,
    server::{ADAM, ALICE, BOB, READER, Server, key},
};

/// A document with these nodes, walked in order between `start` and `end`.
pub(crate) fn document(name: &str, nodes: &[Value]) -> Value {
    let ids: Vec<_> = std::iter::once("start")
        .chain(nodes.iter().map(|node| node["id"].as_str().unwrap()))
        .chain(["end"])
        .collect();
    let mut edges = vec![json!({ "source": "__start__", "target": "start" })];
    edges.extend(
        ids.windows(2)
            .map(|pair| json!({ "source": pair[0], "target": pair[1] })),
    );
    let mut all = vec![json!({ "id": "start", "type": "start" })];
    all.extend(nodes.iter().cloned());
    all.push(json!({ "id": "end", "type": "end" }));
    json!({
        "document": { "schema": "https://agent-workflow.dev/schemas/workflow-definition.json", "name": name, "version": "1.0.0" },
        "state_schema": { "type": "object" },
        "nodes": all,
        "edges": edges,
    })
}

fn work() -> Value {
    json!({ "id": "work", "type": "tool_call", "config": { "server": "s", "tool": "t" }, "timeout": "30s",
        "retry": { "max_attempts": 2, "non_retryable_errors": ["FATAL"] } })
}

fn review() -> Value {
    json!({ "id": "review", "type": "interrupt", "config": { "prompt": "Sure?",
        "resume_schema": { "type": "object", "properties": { "ok": { "type": "boolean" } }, "required": ["ok"] } } })
}

fn signal() -> Value {
    json!({ "id": "wait", "type": "wait", "config": { "kind": "signal", "signal": "approved" } })
}

pub(crate) async fn post(server: &Server, path: &str, body: Value) -> Reply {
    server.post(&format!("/awp/v1{path}"), &body).send().await
}

pub(crate) async fn get(server: &Server, path: &str) -> Reply {
    server.get(&format!("/awp/v1{path}")).send().await
}

/// Registers a document and starts an execution of it.
pub(crate) async fn start(server: &Server, document: &Value, body: Value) -> Reply {
    let registered = post(server, "/workflows", json!({ "definition": document })).await;
    let id = match registered.status {
        201 => registered.json()["wf_id"].clone(),
        409 => registered.json()["error"]["details"]["wf_id"].clone(),
        _ => panic!("{}", registered.json()),
    };
    post(
        server,
        &format!("/workflows/{}/executions", id.as_str().unwrap()),
        body,
    )
    .await
}

pub(crate) fn code(reply: &Reply, status: u16) -> String {
    let body = reply.ok(status);
    body["error"]["code"]
        .as_str()
        .unwrap_or_else(|| panic!("{body}"))
        .to_owned()
}

async fn events(server: &Server, id: &str) -> Vec<Value> {
    let page = get(server, &format!("/executions/{id}/events?limit=1000"))
        .await
        .ok(200);
    page["events"].as_array().unwrap().clone()
}

#[tokio::test]
async fn a_host_submits_the_outcome_of_an_activity() {
    let server = Server::start().await;
    let document = document("linear", &[work()]);
    let begin =
        json!({ "execution_id": "x-1", "input": { "a": 1 }, "activity_execution_mode": "host_mediated" });
    let started = start(&server, &document, begin.clone()).await.ok(200);
    assert_eq!(
        started,
        json!({ "execution_id": "x-1", "status": "awaiting_activity", "node_id": "work", "state": { "a": 1 },
            "attempt": 1, "timeout_ms": 30_000 })
    );
    let status = get(&server, "/executions/x-1").await.ok(200);
    assert_eq!(
        status,
        json!({ "execution_id": "x-1", "phase": "awaiting_activity", "current_node_id": "work", "attempt": 1,
            "timeout_ms": 30_000 })
    );
    assert_eq!(
        code(&start(&server, &document, begin.clone()).await, 409),
        "DUPLICATE_EXECUTION_ID"
    );

    let before = events(&server, "x-1").await;
    let submit = |change: Value| {
        let mut body = json!({ "definition": document, "input": { "a": 1 }, "node_id": "work",
            "outcome": { "ok": true, "result": { "out": "done" } } });
        body.as_object_mut()
            .unwrap()
            .extend(change.as_object().unwrap().clone());
        body
    };
    let path = "/executions/x-1:submit_activity";
    let mut other = document.clone();
    other["document"]["version"] = json!("2.0.0");
    let span = json!({ "parallel_node_id": "p", "join_target_id": "j", "branch_name": "b", "branch_entry_node_id": "e" });
    for (change, status, expected) in [
        (json!({ "definition": other }), 400, "SUBMIT_VALIDATION_ERROR"),
        (json!({ "node_id": "end" }), 409, "ACTIVITY_SUBMIT_NODE_MISMATCH"),
        (
            json!({ "parallel_span": span }),
            409,
            "ACTIVITY_SUBMIT_PARALLEL_MISMATCH",
        ),
        (json!({ "input": { "a": 2 } }), 400, "SUBMIT_VALIDATION_ERROR"),
        (
            json!({ "outcome": { "ok": false } }),
            400,
            "SUBMIT_VALIDATION_ERROR",
        ),
        (json!({ "color": "red" }), 400, "SUBMIT_VALIDATION_ERROR"),
        (
            json!({ "activity_execution_mode": "in_process" }),
            400,
            "SUBMIT_VALIDATION_ERROR",
        ),
    ] {
        let refused = post(&server, path, submit(change.clone())).await;
        assert_eq!(code(&refused, status), expected, "{change}");
    }
    let missing = post(&server, "/executions/y:submit_activity", submit(json!({}))).await;
    assert_eq!(code(&missing, 409), "ACTIVITY_SUBMIT_NOT_AWAITING");
    assert_eq!(
        events(&server, "x-1").await,
        before,
        "a refused submission leaves nothing"
    );

    let again = post(
        &server,
        path,
        submit(json!({ "outcome": { "ok": false, "error": "slow" } })),
    )
    .await
    .ok(200);
    assert_eq!(again["attempt"], 2, "{again}");
    let done = post(&server, path, submit(json!({}))).await.ok(200);
    assert_eq!(done["status"], "completed", "{done}");
    assert_eq!(done["result"], json!({ "a": 1, "out": "done" }));
    assert_eq!(done["final_state"], done["result"]);
    let late = post(&server, path, submit(json!({}))).await;
    assert_eq!(code(&late, 409), "ACTIVITY_SUBMIT_NOT_AWAITING");

    let mut existing = begin;
    existing["allow_existing_execution_id"] = json!(true);
    let same = start(&server, &document, existing.clone()).await.ok(200);
    assert_eq!(same, done);
    existing["input"] = json!({ "a": 2 });
    assert_eq!(
        code(&start(&server, &document, existing).await, 400),
        "VALIDATION_ERROR"
    );
}

#[tokio::test]
async fn a_failure_names_the_code_of_its_activity() {
    let server = Server::start().await;
    let document = document("failing", &[work()]);
    let begin = json!({ "execution_id": "f-1", "activity_execution_mode": "host_mediated" });
    start(&server, &document, begin).await.ok(200);
    let submit = json!({ "definition": document, "node_id": "work",
        "outcome": { "ok": false, "error": "it broke", "code": "FATAL" } });
    let failed = post(&server, "/executions/f-1:submit_activity", submit).await;
    assert_eq!(code(&failed, 500), "ENGINE_FAILURE");
    let details = failed.json()["error"]["details"].clone();
    assert_eq!(
        details,
        json!({ "execution_id": "f-1", "node_id": "work", "cause": "it broke", "activityCode": "FATAL" })
    );
    let status = get(&server, "/executions/f-1").await.ok(200);
    assert_eq!(
        (&status["phase"], &status["last_error"]),
        (&json!("failed"), &json!("it broke"))
    );
}

#[tokio::test]
async fn a_bad_payload_does_not_end_an_interrupted_execution() {
    let server = Server::start().await;
    let document = document("review", &[review()]);
    let started = start(&server, &document, json!({ "execution_id": "r-1" }))
        .await
        .ok(200);
    assert_eq!(
        started,
        json!({ "execution_id": "r-1", "status": "interrupted", "node_id": "review", "interrupt_id": "review:0",
            "state": {} })
    );
    let before = events(&server, "r-1").await;
    let resume = |payload: Value| json!({ "definition": document, "resume_payload": payload });
    let path = "/executions/r-1:resume";
    let refused = post(&server, path, resume(json!({ "ok": "yes" }))).await;
    assert_eq!(code(&refused, 400), "INVALID_RESUME_PAYLOAD");
    let missing = post(&server, "/executions/none:resume", resume(json!({ "ok": true }))).await;
    assert_eq!(code(&missing, 404), "EXECUTION_NOT_FOUND");
    assert_eq!(events(&server, "r-1").await, before);

    let done = post(&server, path, resume(json!({ "ok": true }))).await.ok(200);
    assert_eq!(done["final_state"], json!({ "ok": true }));
    let late = post(&server, path, resume(json!({ "ok": true }))).await;
    assert_eq!(code(&late, 400), "INVALID_RESUME_PAYLOAD");
    let status = get(&server, "/executions/r-1").await.ok(200);
    assert_eq!(status["phase"], "completed", "a late answer changes nothing");
}

#[tokio::test]
async fn signals_are_delivered_by_name_and_cancels_are_idempotent() {
    let server = Server::start().await;
    let document = document("signals", &[signal(), work()]);
    let body = |id: &str| json!({ "execution_id": id, "activity_execution_mode": "host_mediated" });
    let started = start(&server, &document, body("s-1")).await.ok(200);
    assert_eq!(
        started,
        json!({ "execution_id": "s-1", "status": "awaiting_signal", "node_id": "wait", "state": {},
            "signal_name": "approved" })
    );
    let send =
        |name: &str| json!({ "definition": document, "signal_name": name, "payload": { "by": "ann" } });
    let refused = post(&server, "/executions/s-1:signal", send("denied")).await;
    assert_eq!(code(&refused, 409), "SIGNAL_NAME_MISMATCH");
    let next = post(&server, "/executions/s-1:signal", send("approved"))
        .await
        .ok(200);
    // The mode of the start is remembered.
    assert_eq!(
        (&next["status"], &next["node_id"]),
        (&json!("awaiting_activity"), &json!("work"))
    );
    let late = post(&server, "/executions/s-1:signal", send("approved")).await;
    assert_eq!(code(&late, 409), "SIGNAL_NOT_AWAITING");

    let cancelled = post(&server, "/executions/s-1:cancel", json!({ "reason": "enough" }))
        .await
        .ok(200);
    assert_eq!(
        cancelled,
        json!({ "execution_id": "s-1", "status": "cancelled", "final_state": { "by": "ann" }, "reason": "enough" })
    );
    let again = post(&server, "/executions/s-1:cancel", json!({ "reason": "other" }))
        .await
        .ok(200);
    assert_eq!(again, cancelled);
    let status = get(&server, "/executions/s-1").await.ok(200);
    assert_eq!(status["last_error"], "enough");
    let missing = post(&server, "/executions/none:cancel", json!({})).await;
    assert_eq!(code(&missing, 404), "EXECUTION_NOT_FOUND");
}

#[tokio::test]
async fn a_parent_shows_what_its_child_waits_for() {
    let server = Server::start().await;
    let child = document("awp-child", &[work()]);
    let registered = post(&server, "/workflows", json!({ "definition": child })).await;
    assert_eq!(registered.ok(201)["wf_id"], "awp-child");
    let step = json!({ "id": "verify", "type": "subworkflow", "config": { "workflow_ref": "awp-child", "input_mapping": {} } });
    let parent = document("awp-parent", &[step]);
    let begin = json!({ "execution_id": "p-1", "activity_execution_mode": "host_mediated" });
    let started = start(&server, &parent, begin).await.ok(200);
    assert_eq!(
        started,
        json!({ "execution_id": "p-1", "child_execution_id": "p-1:sub:verify", "status": "awaiting_activity",
            "node_id": "work", "state": {}, "attempt": 1, "timeout_ms": 30_000 })
    );
    let status = get(&server, "/executions/p-1").await.ok(200);
    assert_eq!(status["child"]["phase"], "awaiting_activity", "{status}");
    let status = get(&server, "/executions/p-1:sub:verify").await.ok(200);
    assert_eq!(status["parent_execution_id"], "p-1", "{status}");
    let submit = json!({ "definition": child, "node_id": "work", "outcome": { "ok": true, "result": { "passed": true } } });
    let done = post(&server, "/executions/p-1%3Asub%3Averify:submit_activity", submit)
        .await
        .ok(200);
    assert_eq!(
        (&done["execution_id"], &done["status"]),
        (&json!("p-1:sub:verify"), &json!("completed"))
    );
    let existing = json!({ "execution_id": "p-1", "activity_execution_mode": "host_mediated", "allow_existing_execution_id": true });
    let ended = start(&server, &parent, existing).await.ok(200);
    assert_eq!(
        (&ended["status"], &ended["final_state"]),
        (&json!("completed"), &json!({ "passed": true }))
    );
}

#[tokio::test]
async fn cancel_of_a_parent_is_answered_when_it_is_cancelled() {
    let server = Server::start().await;
    let child = document("awp-child", &[work()]);
    post(&server, "/workflows", json!({ "definition": child }))
        .await
        .ok(201);
    let parent = document("awp-parent", &[sub("awp-child")]);
    for n in 0..3 {
        let id = format!("p-{n}");
        let begin = json!({ "execution_id": id, "activity_execution_mode": "host_mediated" });
        let started = start(&server, &parent, begin).await.ok(200);
        assert_eq!(started["status"], "awaiting_activity", "{started}");
        let path = format!("/executions/{id}:cancel");
        let cancelled = post(&server, &path, json!({ "reason": "enough" })).await.ok(200);
        assert_eq!(
            cancelled,
            json!({ "execution_id": id, "status": "cancelled", "final_state": {}, "reason": "enough" })
        );
    }
}

#[tokio::test]
async fn definition_that_no_call_could_bring_along_is_not_registered() {
    let server = Server::start().await;
    let mut large = document("awp-large", &[work()]);
    large["document"]["description"] = "x".repeat(2 << 20).into();
    let refused = post(&server, "/workflows", json!({ "definition": large })).await;
    assert_eq!(code(&refused, 400), "VALIDATION_ERROR");
    assert_eq!(refused.json()["error"]["details"]["maxBytes"], 2 << 20);
    get(&server, "/workflows/awp-large").await.ok(404);
}

fn sub(workflow: &str) -> Value {
    json!({ "id": "sub", "type": "subworkflow", "config": { "workflow_ref": workflow, "input_mapping": {} } })
}

#[tokio::test]
async fn a_parent_takes_the_signals_and_answers_that_its_children_wait_for() {
    let server = Server::start().await;
    for document in [
        document("awp-low", &[signal()]),
        document("awp-mid", &[sub("awp-low")]),
        document("awp-asks", &[review()]),
    ] {
        post(&server, "/workflows", json!({ "definition": document }))
            .await
            .ok(201);
    }
    let top = document("awp-top", &[sub("awp-mid")]);
    let started = start(&server, &top, json!({ "execution_id": "t-1" }))
        .await
        .ok(200);
    assert_eq!(
        (&started["status"], &started["signal_name"]),
        (&json!("awaiting_signal"), &json!("approved")),
        "{started}"
    );
    let status = get(&server, "/executions/t-1").await.ok(200);
    assert_eq!(
        (&status["phase"], &status["signal_name"]),
        (&json!("awaiting_signal"), &json!("approved")),
        "{status}"
    );
    let send = |name: &str| json!({ "definition": top, "signal_name": name, "payload": { "by": "ann" } });
    let refused = post(&server, "/executions/t-1:signal", send("denied")).await;
    assert_eq!(code(&refused, 409), "SIGNAL_NAME_MISMATCH");
    let done = post(&server, "/executions/t-1:signal", send("approved"))
        .await
        .ok(200);
    assert_eq!(
        (&done["status"], &done["final_state"]),
        (&json!("completed"), &json!({ "by": "ann" })),
        "{done}"
    );

    // What a start answers can be answered at once.
    let parent = document("awp-parent", &[sub("awp-asks")]);
    for n in 0..20 {
        let id = format!("p-{n}");
        let started = start(&server, &parent, json!({ "execution_id": id }))
            .await
            .ok(200);
        assert_eq!(started["status"], "interrupted", "{started}");
        assert_eq!(
            started["child_execution_id"],
            format!("{id}:sub:sub"),
            "{started}"
        );
        let status = get(&server, &format!("/executions/{id}")).await.ok(200);
        assert_eq!(status["phase"], "interrupted", "{status}");
        let answer = json!({ "definition": parent, "resume_payload": { "ok": true } });
        let done = post(&server, &format!("/executions/{id}:resume"), answer)
            .await
            .ok(200);
        assert_eq!(done["status"], "completed", "{done}");
    }
}

#[tokio::test]
async fn a_parent_shows_what_the_child_of_its_child_waits_for() {
    let server = Server::start().await;
    for document in [
        document("awp-low", &[work()]),
        document("awp-mid", &[sub("awp-low")]),
    ] {
        post(&server, "/workflows", json!({ "definition": document }))
            .await
            .ok(201);
    }
    let top = document("awp-top", &[sub("awp-mid")]);
    let begin = json!({ "execution_id": "t-1", "activity_execution_mode": "host_mediated" });
    let started = start(&server, &top, begin).await.ok(200);
    assert_eq!(
        (
            &started["status"],
            &started["node_id"],
            &started["child_execution_id"]
        ),
        (
            &json!("awaiting_activity"),
            &json!("work"),
            &json!("t-1:sub:sub:sub:sub")
        ),
        "{started}"
    );
}

/// A parallel node whose branches are these nodes.
pub(crate) fn branched(name: &str, join: &str, nodes: &[Value]) -> Value {
    let id = |node: &Value| node["id"].as_str().unwrap().to_owned();
    let branches: Vec<_> = nodes
        .iter()
        .map(|node| json!({ "name": id(node), "entry": id(node) }))
        .collect();
    let fork = json!({ "id": "fork", "type": "parallel", "config": { "join": join, "branches": branches } });
    let mut document = document(name, &[fork]);
    for node in nodes {
        document["nodes"].as_array_mut().unwrap().push(node.clone());
        let edge = json!({ "source": id(node), "target": "end" });
        document["edges"].as_array_mut().unwrap().push(edge);
    }
    document
}

#[tokio::test]
async fn all_activities_of_branches_are_awaited_at_once_by_option() {
    let server = Server::start().await;
    let child = document("awp-worker", &[work()]);
    post(&server, "/workflows", json!({ "definition": child }))
        .await
        .ok(201);
    let tool = |id: &str| json!({ "id": id, "type": "tool_call", "config": { "server": "s", "tool": id } });
    let step = json!({ "id": "verify", "type": "subworkflow", "config": { "workflow_ref": "awp-worker", "input_mapping": {} } });
    let branches = branched("awp-branches", "all", &[tool("a"), tool("b"), signal(), step]);
    let begin = json!({ "execution_id": "w-1", "activity_execution_mode": "host_mediated", "parallel_activities": true });
    for (change, word) in [
        (json!({ "parallel_activities": "yes" }), "parallel_activities"),
        (
            json!({ "configurable": { "parallelActivities": true } }),
            "configurable.parallelActivities",
        ),
    ] {
        let mut wrong = begin.clone();
        wrong
            .as_object_mut()
            .unwrap()
            .extend(change.as_object().unwrap().clone());
        let refused = start(&server, &branches, wrong).await.ok(400);
        assert_eq!(refused["error"]["code"], "VALIDATION_ERROR", "{refused}");
        assert!(
            refused["error"]["message"].as_str().unwrap().contains(word),
            "{refused}"
        );
    }
    let started = start(&server, &branches, begin.clone()).await.ok(200);
    let span = |name: &str| json!({ "parallel_node_id": "fork", "join_target_id": "end", "branch_name": name, "branch_entry_node_id": name });
    let of_run =
        |id: &str| json!({ "execution_id": "w-1", "node_id": id, "parallel_span": span(id), "attempt": 1 });
    let of_child =
        json!({ "execution_id": "w-1:sub:verify", "node_id": "work", "attempt": 1, "timeout_ms": 30_000 });
    assert_eq!(
        (&started["status"], &started["node_id"]),
        (&json!("awaiting_activity"), &json!("a"))
    );
    assert_eq!(
        (&started["parallel_span"], &started["signal_name"]),
        (&span("a"), &json!("approved"))
    );
    // The child begins by a message of its own.
    let mut status = get(&server, "/executions/w-1").await.ok(200);
    while status["awaiting_activities"].as_array().unwrap().len() < 3 {
        tokio::task::yield_now().await;
        status = get(&server, "/executions/w-1").await.ok(200);
    }
    assert_eq!(
        status["awaiting_activities"],
        json!([of_run("a"), of_run("b"), of_child])
    );

    let submit = |node: &str, span: Value| {
        json!({ "definition": branches, "node_id": node, "parallel_span": span,
            "outcome": { "ok": true, "result": { node: true } } })
    };
    let path = "/executions/w-1:submit_activity";
    let refused = post(&server, path, submit("b", span("a"))).await;
    assert_eq!(code(&refused, 409), "ACTIVITY_SUBMIT_PARALLEL_MISMATCH");
    let answer = post(&server, path, submit("b", span("b"))).await.ok(200);
    assert_eq!(answer["awaiting_activities"], json!([of_run("a"), of_child]));
    let signal = json!({ "definition": branches, "signal_name": "approved", "payload": { "yes": true } });
    let mut other = signal.clone();
    other["signal_name"] = json!("other");
    let refused = post(&server, "/executions/w-1:signal", other).await;
    assert_eq!(code(&refused, 409), "SIGNAL_NAME_MISMATCH");
    let answer = post(&server, "/executions/w-1:signal", signal).await.ok(200);
    assert_eq!(answer["status"], "awaiting_activity", "{answer}");
    let answer = post(&server, path, submit("a", span("a"))).await.ok(200);
    assert_eq!(
        (&answer["child_execution_id"], &answer["awaiting_activities"]),
        (&json!("w-1:sub:verify"), &json!([of_child]))
    );
    let of_child = json!({ "definition": child, "node_id": "work", "outcome": { "ok": true } });
    post(
        &server,
        "/executions/w-1%3Asub%3Averify:submit_activity",
        of_child,
    )
    .await
    .ok(200);
    let mut existing = begin;
    existing["allow_existing_execution_id"] = json!(true);
    let ended = start(&server, &branches, existing.clone()).await.ok(200);
    assert_eq!(ended["status"], "completed", "{ended}");
    assert_eq!(ended["final_state"], json!({ "a": true, "b": true, "yes": true }));
    assert!(ended.get("awaiting_activities").is_none(), "{ended}");
    existing["parallel_activities"] = json!(false);
    assert_eq!(
        code(&start(&server, &branches, existing).await, 400),
        "VALIDATION_ERROR"
    );
}

#[tokio::test]
async fn histories_are_dense_and_paged_and_hide_secrets() {
    let server = Server::start().await;
    let document = document("history", &[work(), review()]);
    let input = json!({ "token": "t0p", "deep": [{ "apiKey": "k" }] });
    start(
        &server,
        &document,
        json!({ "execution_id": "h-1", "input": input }),
    )
    .await
    .ok(200);
    let all = events(&server, "h-1").await;
    let seqs: Vec<_> = all.iter().map(|row| row["seq"].as_u64().unwrap()).collect();
    assert_eq!(seqs, (1..=all.len() as u64).collect::<Vec<_>>());
    let (mut paged, mut cursor) = (Vec::new(), 1);
    loop {
        let page = get(
            &server,
            &format!("/executions/h-1/events?limit=4&cursor={cursor}"),
        )
        .await
        .ok(200);
        paged.extend(page["events"].as_array().unwrap().clone());
        let Some(next) = page["next_cursor"].as_u64() else {
            break;
        };
        cursor = next;
    }
    assert_eq!(paged, all);
    let part = get(&server, "/executions/h-1/events?from_seq=2&to_seq=3")
        .await
        .ok(200);
    assert_eq!(part["events"], json!(all[1..3]));
    assert!(part.get("next_cursor").is_none(), "{part}");
    let text = json!(all).to_string();
    assert!(!text.contains("t0p") && text.contains("[REDACTED]"), "{text}");

    let checkpoint = get(&server, "/executions/h-1/checkpoint").await.ok(200);
    assert_eq!(checkpoint["checkpoint"]["nodeId"], "review", "{checkpoint}");
    let resume = json!({ "definition": document, "resume_payload": { "ok": true } });
    let done = post(&server, "/executions/h-1:resume", resume).await.ok(200);
    assert_eq!(done["final_state"]["ok"], true, "{done}");
    assert_eq!(done["final_state"]["token"], "[REDACTED]", "{done}");
}

#[tokio::test]
async fn what_histories_hide_no_other_face_shows() {
    const STATUS: &str = "/awp/v1/executions/hidden-1";
    let server =
        Server::start_with(|config| config.server.public_url = Some("http://test".parse().unwrap())).await;
    let ask = json!({ "id": "review", "type": "interrupt", "config": { "prompt": "Which password?",
        "resume_schema": { "type": "object", "properties": { "password": { "type": "string" } } } } });
    // The state keeps the values: an expression sees what no view shows.
    let length = json!({ "id": "length", "type": "set_state",
        "config": { "assignments": { "length": { "jq": ".token | length" } } } });
    let document = document("hiding", &[ask, length]);
    let input = json!({ "token": "t0p-given", "deep": [{ "apiKey": "t0p-deep", "kept": 1 }] });
    let begin = json!({ "execution_id": "hidden-1", "input": input });
    start(&server, &document, begin).await.ok(200);
    let run = server.get("/v1/runs?limit=1").send().await.ok(200)["runs"][0]["runId"].clone();
    let run = run.as_str().unwrap();
    let task = json!({ "jsonrpc": "2.0", "id": 1, "method": "GetTask", "params": { "id": run } });
    let tool = json!({ "jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": { "name": "wopr_get_run", "arguments": { "runId": run } } });

    let text_of = |reply: &Reply| String::from_utf8_lossy(&reply.body).into_owned();
    let shown = async |when: &str| {
        let mut all = Vec::new();
        for path in [
            format!("/v1/runs/{run}"),
            format!("/v1/runs/{run}/events/poll"),
            STATUS.to_owned(),
            "/awp/v1/executions/hidden-1/events".to_owned(),
        ] {
            all.push((path.clone(), text_of(&server.get(&path).send().await)));
        }
        let mode = format!("/v1/runs/{run}/events?streamMode=debug");
        let reading = server.get(&mode).header("accept", "application/json");
        all.push((mode, text_of(&reading.send().await)));
        for (path, body) in [("/a2a", &task), ("/mcp", &tool)] {
            let asked = server.post(path, body).header("a2a-version", "1.0");
            let asked = asked.header("accept", "application/json, text/event-stream");
            all.push((path.to_owned(), text_of(&asked.send().await)));
        }
        for (path, text) in &all {
            assert!(!text.contains("t0p-"), "{when}: {path}: {text}");
            let has_none = [STATUS, "/a2a"].contains(&path.as_str());
            assert!(has_none || text.contains("[REDACTED]"), "{when}: {path}: {text}");
        }
        all
    };
    let open = shown("while it waits").await;
    assert!(
        open.iter()
            .any(|(_, text)| text.contains("\"password\":{\"type\"")),
        "a question keeps its schema: {open:?}"
    );
    let resume = json!({ "definition": document, "resume_payload": { "password": "t0p-answer" } });
    let done = post(&server, "/executions/hidden-1:resume", resume).await.ok(200);
    let state = json!({ "token": "[REDACTED]", "password": "[REDACTED]", "length": 9,
        "deep": [{ "apiKey": "[REDACTED]", "kept": 1 }] });
    assert_eq!(done["final_state"], state, "{done}");
    shown("at its end").await;
    let snapshot = server.get(&format!("/v1/runs/{run}")).send().await.ok(200);
    assert_eq!(snapshot["variables"], state, "{snapshot}");

    // A task has the message that began it.
    let message = json!({ "messageId": "m-1", "role": "ROLE_USER", "parts": [{ "data": { "token": "t0p-sent", "kept": 1 } }] });
    let send =
        json!({ "jsonrpc": "2.0", "id": 1, "method": "SendMessage", "params": { "message": message } });
    let sent = server
        .post("/a2a/w/hiding", &send)
        .header("a2a-version", "1.0")
        .send()
        .await
        .ok(200);
    let id = &sent["result"]["task"]["id"];
    let get = json!({ "jsonrpc": "2.0", "id": 1, "method": "GetTask", "params": { "id": id, "historyLength": 10 } });
    let task = server
        .post("/a2a/w/hiding", &get)
        .header("a2a-version", "1.0")
        .send()
        .await
        .ok(200);
    let first = &task["result"]["history"][0]["parts"][0]["data"];
    assert_eq!(*first, json!({ "token": "[REDACTED]", "kept": 1 }), "{task}");
}

#[tokio::test]
async fn input_of_an_activity_is_whole_for_whoever_may_do_the_work() {
    let server = Server::start().await;
    let ask = json!({ "id": "ask", "type": "agent_delegate", "config": { "agent_id": "coder", "protocol": "a2a",
        "input_mapping": { "token": { "jq": ".given" }, "deep": { "SECRET": "t0p", "kept": 1 } } } });
    let begin = json!({ "execution_id": "d-1", "activity_execution_mode": "host_mediated", "input": { "given": "t0p" } });
    let whole = json!({ "token": "t0p", "deep": { "SECRET": "t0p", "kept": 1 } });
    let started = start(&server, &document("delegating", &[ask]), begin)
        .await
        .ok(200);
    assert_eq!(started["delegate_input"], whole, "{started}");
    let status = get(&server, "/executions/d-1").await.ok(200);
    assert_eq!(status["delegate_input"], whole, "{status}");
    let read = server
        .call("GET", "/awp/v1/executions/d-1")
        .key(READER)
        .send()
        .await
        .ok(200);
    let masked = json!({ "token": "[REDACTED]", "deep": { "SECRET": "[REDACTED]", "kept": 1 } });
    assert_eq!(read["delegate_input"], masked, "{read}");
}

#[tokio::test]
async fn pages_of_any_size_are_the_same_history() {
    let server = Server::start().await;
    let count = json!({ "id": "count", "type": "set_state", "config": { "assignments": { "n": { "jq": "(.n // 0) + 1" } } } });
    let mut document = document("counted", &[count, signal()]);
    let again = json!({ "id": "again", "type": "switch", "config": {
        "cases": [{ "when": ".n < 30", "target": "count" }], "default": "wait",
    } });
    document["nodes"].as_array_mut().unwrap().push(again);
    let edges = document["edges"].as_array_mut().unwrap();
    edges.retain(|edge| edge["source"] != "count");
    edges.push(json!({ "source": "count", "target": "again" }));
    start(&server, &document, json!({ "execution_id": "h-1" }))
        .await
        .ok(200);
    let whole = events(&server, "h-1").await;
    assert!(whole.len() > 250, "{}", whole.len());
    for limit in [1, 7, 100] {
        let (mut rows, mut cursor) = (Vec::new(), 1);
        loop {
            let path = format!("/executions/h-1/events?limit={limit}&cursor={cursor}");
            let page = get(&server, &path).await.ok(200);
            rows.extend(page["events"].as_array().unwrap().clone());
            let Some(next) = page["next_cursor"].as_u64() else {
                break;
            };
            assert_eq!(next, cursor + limit);
            cursor = next;
        }
        assert_eq!(rows, whole, "in pages of {limit}");
    }
    // A reader that goes back, or jumps, gets the rows that it asks for.
    for from in [200, 3, 120, 121, 250, 119] {
        let page = get(
            &server,
            &format!("/executions/h-1/events?from_seq={from}&limit=5"),
        )
        .await
        .ok(200);
        let index = usize::try_from(from).unwrap() - 1;
        assert_eq!(page["events"], json!(whole[index..index + 5]), "from {from}");
    }
    let checkpoint = get(&server, "/executions/h-1/checkpoint").await.ok(200);
    let last = whole
        .iter()
        .rfind(|row| row["name"] == "CheckpointWritten")
        .unwrap();
    assert_eq!(checkpoint["seq"], last["seq"]);
    assert_eq!(
        get(&server, "/executions/h-1/checkpoint").await.ok(200),
        checkpoint
    );
}

#[tokio::test]
async fn executions_are_listed_by_phase() {
    let server = Server::start().await;
    let (waiting, working) = (document("waiting", &[signal()]), document("working", &[work()]));
    for id in ["l-1", "l-2", "l-3"] {
        start(&server, &waiting, json!({ "execution_id": id }))
            .await
            .ok(200);
    }
    let host = json!({ "execution_id": "l-4", "activity_execution_mode": "host_mediated" });
    start(&server, &working, host).await.ok(200);
    start(&server, &working, json!({ "execution_id": "l-5" }))
        .await
        .ok(200);
    // A run in another language is none.
    server.run("conformance-noop", json!({})).await;
    let ids = |list: &Value| -> Vec<String> {
        let list = list["executions"].as_array().unwrap().iter();
        let mut ids: Vec<_> = list
            .map(|item| item["execution_id"].as_str().unwrap().to_owned())
            .collect();
        ids.sort();
        ids
    };
    let list = get(&server, "/executions?phase=awaiting_signal").await.ok(200);
    assert_eq!(ids(&list), ["l-1", "l-2", "l-3"]);
    let list = get(&server, "/executions?phase=awaiting_activity").await.ok(200);
    assert_eq!(ids(&list), ["l-4"]);
    assert_eq!(list["executions"][0]["definition_name"], "working");
    let list = get(&server, "/executions?definition_name=working").await.ok(200);
    assert_eq!(ids(&list), ["l-4", "l-5"]);
    let first = get(&server, "/executions?limit=2").await.ok(200);
    let cursor = first["next_cursor"].as_str().unwrap();
    let second = get(&server, &format!("/executions?limit=100&cursor={cursor}"))
        .await
        .ok(200);
    let mut both = [ids(&first), ids(&second)].concat();
    both.sort();
    assert_eq!(both, ["l-1", "l-2", "l-3", "l-4", "l-5"]);
    for query in [
        "phase=asleep",
        "limit=101",
        "cursor=x",
        "color=red",
        "updated_after=yesterday",
    ] {
        let refused = get(&server, &format!("/executions?{query}")).await;
        assert_eq!(code(&refused, 400), "VALIDATION_ERROR", "{query}");
    }
}

/// The run of an execution without a name.
async fn unnamed_run(server: &Server, document: &Value) -> String {
    let started = start(server, document, json!({})).await.ok(200);
    started["execution_id"].as_str().unwrap().to_owned()
}

#[tokio::test]
async fn names_belong_to_one_execution_of_a_tenant_on_every_face() {
    let server = Server::start().await;
    let document = document("names", &[signal()]);
    start(&server, &document, json!({ "execution_id": "n-1" }))
        .await
        .ok(200);
    let run = json!({ "workflowId": "names", "configurable": { "executionId": "n-1" } });
    server
        .post("/v1/runs", &run)
        .send()
        .await
        .error(409, "run_conflict");
    let run = json!({ "workflowId": "names", "configurable": { "executionId": "n-1:sub:wait" } });
    server
        .post("/v1/runs", &run)
        .send()
        .await
        .error(400, "validation_error");
    let run = json!({ "workflowId": "names", "configurable": { "executionId": "n-2" } });
    let named = server.post("/v1/runs", &run).send().await.ok(201)["runId"].clone();
    let other = get(&server, "/executions/n-2").await.ok(200);
    assert_eq!(other["phase"], "awaiting_signal");

    // A branch is another run, and does not take the name of one.
    let fork = json!({
        "mode": "branch", "fromSeq": 1, "runOptionsOverlay": { "configurable": { "executionId": "n-2" } },
    });
    let source = unnamed_run(&server, &document).await;
    server
        .post(&format!("/v1/runs/{source}:fork"), &fork)
        .send()
        .await
        .error(400, "validation_error");

    let path = format!("/v1/runs/{}:fork", named.as_str().unwrap());
    let forked = server
        .post(&path, &json!({ "mode": "branch", "fromSeq": 1 }))
        .send()
        .await
        .ok(201);
    let fork = forked["runId"].as_str().unwrap();
    server.wait_for(fork, "waiting-external").await;
    assert_eq!(
        get(&server, &format!("/executions/{fork}")).await.ok(200)["execution_id"],
        fork
    );
    for row in events(&server, fork).await {
        assert_eq!(row["payload"]["executionId"], fork, "{row}");
    }

    // Another tenant has names of its own, and sees none of these.
    let theirs = server.call("GET", "/awp/v1/executions/n-1").key(BOB).send().await;
    assert_eq!(code(&theirs, 404), "EXECUTION_NOT_FOUND");
    // Without a name, the id of the run is that of the execution.
    let unnamed = start(&server, &document, json!({})).await.ok(200);
    let id = unnamed["execution_id"].as_str().unwrap();
    assert_eq!(server.snapshot(id).await["workflowId"], "names");
    get(&server, &format!("/executions/{id}")).await.ok(200);
    let like_a_run = json!({ "execution_id": "run_0123456789abcdef0123456789abcdef" });
    assert_eq!(
        code(&start(&server, &document, like_a_run).await, 400),
        "VALIDATION_ERROR"
    );
}

#[tokio::test]
async fn a_key_makes_a_start_take_effect_once() {
    let server = Server::start().await;
    let document = document("once", &[signal()]);
    start(&server, &document, json!({ "execution_id": "o-0" }))
        .await
        .ok(200);
    let body = json!({ "input": { "a": 1 } });
    let path = "/awp/v1/workflows/once/executions";
    let first = server
        .post(path, &body)
        .header("idempotency-key", "k")
        .send()
        .await
        .ok(200);
    let again = server
        .post(path, &body)
        .header("idempotency-key", "k")
        .send()
        .await
        .ok(200);
    assert_eq!(first, again);
    let other = json!({ "input": { "a": 2 } });
    let reused = server
        .post(path, &other)
        .header("idempotency-key", "k")
        .send()
        .await;
    assert_eq!(code(&reused, 409), "IDEMPOTENCY_KEY_REUSED");
}

#[tokio::test]
async fn callers_need_credentials_and_scopes() {
    let server = Server::start().await;
    let document = document("scopes", &[signal()]);
    start(&server, &document, json!({ "execution_id": "c-1" }))
        .await
        .ok(200);
    let anonymous = server.call("GET", "/awp/v1/executions/c-1").send().await;
    assert_eq!(code(&anonymous, 401), "AUTH_ERROR");
    assert_eq!(
        anonymous.json()["error"]["details"],
        json!({ "reason": "missing_or_invalid" })
    );
    let read = server
        .call("GET", "/awp/v1/executions/c-1")
        .key(READER)
        .send()
        .await
        .ok(200);
    assert_eq!(read["phase"], "awaiting_signal");
    let cancel = server
        .call("POST", "/awp/v1/executions/c-1:cancel")
        .key(READER)
        .json(&json!({}));
    let refused = cancel.send().await;
    assert_eq!(code(&refused, 403), "AUTH_FORBIDDEN");
    let error = &refused.json()["error"];
    assert_eq!(
        error["details"],
        json!({ "reason": "insufficient_scope", "required_scope": "start", "granted_scopes": [] })
    );
    assert_eq!(error["message"], "The credential lacks the scope runs:cancel.");
    let unknown = server.call("GET", "/awp/v1/nothing").send().await;
    assert_eq!(code(&unknown, 404), "NOT_FOUND");
}

#[tokio::test]
async fn a_caller_without_a_scope_learns_the_protocols_names_of_scopes() {
    const READS: &str = "reads-secret-0123456789";
    const RESUMES: &str = "resumes-secret-0123456789";
    let server = Server::start_with(|config| {
        let scopes = |names: &[&str]| Scopes::parse(names).unwrap();
        config.auth.keys.extend([
            key("reads", READS, "acme", scopes(&["runs:read", "manifest:read"])),
            key("resumes", RESUMES, "acme", scopes(&["approvals:respond"])),
        ]);
    })
    .await;
    let document = document("words", &[signal()]);
    let definition = json!({ "definition": document });
    let named = json!({ "execution_id": "w-1" });
    let resume = json!({ "definition": document, "resume_payload": {} });
    let submit = json!({ "definition": document, "node_id": "wait", "outcome": { "ok": true } });
    let signal = json!({ "definition": document, "signal_name": "approved" });
    for (path, body, needed) in [
        ("/workflows", &definition, "start"),
        ("/workflows/words/executions", &named, "start"),
        ("/executions/w-1:cancel", &json!({}), "start"),
        ("/executions/w-1:resume", &resume, "resume"),
        ("/executions/w-1:signal", &signal, "resume"),
        ("/executions/w-1:submit_activity", &submit, "submit_activity"),
    ] {
        let call = server.call("POST", &format!("/awp/v1{path}")).json(body);
        let refused = call.key(READS).send().await;
        assert_eq!(code(&refused, 403), "AUTH_FORBIDDEN", "{path}");
        let wanted = json!({
            "reason": "insufficient_scope", "required_scope": needed, "granted_scopes": ["read_history"],
        });
        assert_eq!(refused.json()["error"]["details"], wanted, "{path}");
    }
    for path in [
        "/executions",
        "/executions/w-1/events",
        "/executions/w-1/checkpoint",
        "/executions/w-1",
    ] {
        let call = server.call("GET", &format!("/awp/v1{path}"));
        let refused = call.key(RESUMES).send().await;
        assert_eq!(code(&refused, 403), "AUTH_FORBIDDEN", "{path}");
        let details = &refused.json()["error"]["details"];
        assert_eq!(details["required_scope"], "read_history", "{path}");
        assert_eq!(details["granted_scopes"], json!(["resume"]), "{path}");
    }
}

#[tokio::test]
async fn a_key_makes_a_registration_take_effect_once() {
    let server = Server::start().await;
    let body = json!({ "definition": document("kept", &[signal()]) });
    let register = |body: &Value| {
        let call = server
            .post("/awp/v1/workflows", body)
            .header("idempotency-key", "k");
        async move { call.send().await }
    };
    let first = register(&body).await.ok(201);
    assert_eq!(register(&body).await.ok(201), first);
    let other = json!({ "definition": document("other", &[signal()]) });
    assert_eq!(code(&register(&other).await, 409), "IDEMPOTENCY_KEY_REUSED");
    assert_eq!(
        code(&post(&server, "/workflows", body).await, 409),
        "DUPLICATE_WORKFLOW_ID"
    );
}

#[tokio::test]
async fn one_of_several_registrations_at_once_gets_the_name() {
    let server = Server::start_on_sqlite().await;
    let bodies: Vec<_> = (0..6)
        .map(|n| {
            let mut document = document("raced", &[signal()]);
            document["document"]["version"] = json!(n.to_string());
            json!({ "definition": document })
        })
        .collect();
    let registering = bodies
        .iter()
        .map(|body| post(&server, "/workflows", body.clone()));
    let replies = futures_util::future::join_all(registering).await;
    let is_winner = |reply: &&Reply| reply.status == 201;
    let winner = replies.iter().find(is_winner).expect("one gets the name").json();
    assert_eq!(replies.iter().filter(is_winner).count(), 1);
    for reply in replies.iter().filter(|reply| reply.status != 201) {
        assert_eq!(code(reply, 409), "DUPLICATE_WORKFLOW_ID");
    }
    let kept = get(&server, "/workflows/raced").await.ok(200);
    assert_eq!(kept, winner, "what was refused has changed nothing");
}

#[tokio::test]
async fn one_of_several_starts_at_once_gets_the_execution_id() {
    let server = Server::start_on_sqlite().await;
    let document = document("started", &[signal()]);
    start(&server, &document, json!({})).await.ok(200);
    let path = "/workflows/started/executions";
    for round in 0..4 {
        let body = json!({ "execution_id": format!("strict-{round}") });
        let starting = (0..4).map(|_| post(&server, path, body.clone()));
        let replies = futures_util::future::join_all(starting).await;
        assert_eq!(replies.iter().filter(|reply| reply.status == 200).count(), 1);
        for reply in replies.iter().filter(|reply| reply.status != 200) {
            assert_eq!(code(reply, 409), "DUPLICATE_EXECUTION_ID");
        }
        let body = json!({ "execution_id": format!("lenient-{round}"), "allow_existing_execution_id": true });
        let starting = (0..4).map(|_| post(&server, path, body.clone()));
        let replies = futures_util::future::join_all(starting).await;
        let first = replies[0].ok(200);
        assert!(replies.iter().all(|reply| reply.ok(200) == first));
    }
    let listed = get(&server, "/executions").await.ok(200);
    assert_eq!(listed["executions"].as_array().unwrap().len(), 1 + 8);
}

#[tokio::test]
async fn the_task_of_an_agent_is_recorded_with_the_outcome() {
    let server = Server::start().await;
    let ask = json!({ "id": "ask", "type": "agent_delegate", "config": {
        "agent_id": "coder", "protocol": "a2a", "input_mapping": {},
    } });
    let document = document("tasks", &[ask]);
    let begin = json!({ "execution_id": "t-1", "activity_execution_mode": "host_mediated" });
    start(&server, &document, begin).await.ok(200);
    let run = server.get("/v1/runs").send().await.ok(200)["runs"][0]["runId"].clone();
    let path = format!("/v1/runs/{}/events/poll?timeout=1", run.as_str().unwrap());
    let before = server.get(&path).send().await.ok(200)["events"]
        .as_array()
        .unwrap()
        .len();
    let submit = json!({ "definition": document, "node_id": "ask", "outcome": {
        "ok": true, "result": { "patch": "p" }, "delegate_correlation_id": "t-1:delegate:ask", "external_task_id": "task-9",
    } });
    let done = post(&server, "/executions/t-1:submit_activity", submit)
        .await
        .ok(200);
    assert_eq!(done["status"], "completed", "{done}");
    let rows = events(&server, "t-1").await;
    let completed = rows
        .iter()
        .find(|row| row["name"] == "ActivityCompleted")
        .unwrap();
    assert_eq!(completed["payload"]["externalTaskId"], "task-9");
    let log = server.get(&path).send().await.ok(200)["events"]
        .as_array()
        .unwrap()
        .clone();
    let times: std::collections::BTreeSet<_> = log[before..]
        .iter()
        .map(|event| event["timestamp"].to_string())
        .collect();
    assert_eq!(times.len(), 1, "one decision at one time: {log:?}");
}

#[tokio::test]
async fn a_call_waits_no_longer_than_its_budget() {
    let server = Server::start_with(|config| config.awp.wait_budget = "20ms".parse().unwrap()).await;
    let nap = json!({ "id": "nap", "type": "wait", "config": { "kind": "duration", "duration": "10h" } });
    let started = start(
        &server,
        &document("naps", &[nap]),
        json!({ "execution_id": "w-1" }),
    )
    .await
    .ok(200);
    assert_eq!(
        (&started["status"], &started["node_id"]),
        (&json!("running"), &json!("nap"))
    );
}

#[tokio::test]
async fn an_execution_goes_on_after_a_restart() {
    let server = Server::start_on_sqlite().await;
    let document = document("restart", &[work()]);
    let begin = json!({ "execution_id": "b-1", "activity_execution_mode": "host_mediated" });
    start(&server, &document, begin).await.ok(200);
    let server = server.again_on_sqlite().await;
    let submit = json!({ "definition": document, "node_id": "work", "outcome": { "ok": true } });
    let done = post(&server, "/executions/b-1:submit_activity", submit)
        .await
        .ok(200);
    assert_eq!(done["status"], "completed", "{done}");
}

#[tokio::test]
async fn signed_documents_start_and_unsigned_ones_are_refused_where_signatures_are_required() {
    let server = Server::start_with(|config| {
        config.awp.signing = wopr_server::config::SigningMode::Require;
        config.workflows.clear();
    })
    .await;
    let document = document("signed", &[signal()]);
    let refused = post(&server, "/workflows", json!({ "definition": document })).await;
    assert_eq!(code(&refused, 400), "VALIDATION_ERROR");
    assert!(
        refused.json()["error"]["details"]["signing"].is_string(),
        "{}",
        refused.json()
    );
    // The rule is the same on every face.
    let registered = server.post("/v1/workflows", &document).send().await;
    assert_eq!(registered.status, 400, "{}", registered.json());
}

#[tokio::test]
async fn a_listener_of_its_own_has_the_paths_of_the_reference() {
    let server = Server::start_with(|config| config.awp.listen = Some("127.0.0.1:0".parse().unwrap())).await;
    let document = document("rooted", &[signal()]);
    start(&server, &document, json!({ "execution_id": "q-1" }))
        .await
        .ok(200);
    let address = server.host.config().awp.listen.expect("it listens").0;
    let call = |method: &str, path: &str| crate::client::Call::new(address, method, path).key(ALICE);
    let status = call("GET", "/v1/executions/q-1").send().await.ok(200);
    assert_eq!(status["phase"], "awaiting_signal");
    let cancelled = call("POST", "/v1/executions/q-1:cancel")
        .json(&json!({}))
        .send()
        .await
        .ok(200);
    assert_eq!(cancelled["status"], "cancelled");
    // Nothing else is served there.
    assert_eq!(call("GET", "/v1/runs").send().await.status, 404);
    assert_eq!(
        call("GET", "/.well-known/agent-card.json").send().await.status,
        404
    );
}

#[tokio::test]
async fn hidden_members_of_an_input_cannot_be_guessed_by_another_principal() {
    let server = Server::start().await;
    let document = document("secretive", &[signal()]);
    let input = |token: &str, city: &str| json!({ "token": token, "city": city });
    let begin = json!({
        "execution_id": "g-1", "activity_execution_mode": "host_mediated", "allow_existing_execution_id": true,
        "input": input("s3cret", "Rome"),
    });
    start(&server, &document, begin.clone()).await.ok(200);
    let path = "/awp/v1/workflows/secretive/executions";
    let signalled = "/awp/v1/executions/g-1:signal";
    let ask = async |key: &str, token: &str, city: &str| {
        let mut again = begin.clone();
        again["input"] = input(token, city);
        server.call("POST", path).key(key).json(&again).send().await
    };
    for token in ["s3cret", "wrong"] {
        ask(ADAM, token, "Rome").await.ok(200);
        let refused = ask(ADAM, token, "Oslo").await;
        assert!(refused.ok(400).to_string().contains("city"), "{}", refused.json());
        let body =
            json!({ "definition": document, "input": input(token, "Oslo"), "signal_name": "approved" });
        let refused = server.call("POST", signalled).key(ADAM).json(&body).send().await;
        assert!(refused.ok(400).to_string().contains("city"), "{}", refused.json());
    }
    // Who gave the value has to repeat it.
    assert_eq!(ask(ALICE, "wrong", "Rome").await.status, 400);
    let body = json!({ "definition": document, "input": input("wrong", "Rome"), "signal_name": "approved" });
    server
        .call("POST", signalled)
        .key(ADAM)
        .json(&body)
        .send()
        .await
        .ok(200);
}

#[tokio::test]
async fn existing_id_is_taken_for_who_may_not_read_the_execution() {
    let server = Server::start().await;
    let document = document("taken", &[work()]);
    let begin = |salary: u32| {
        json!({
            "execution_id": "k-1", "activity_execution_mode": "host_mediated", "allow_existing_execution_id": true,
            "input": { "salary": salary },
        })
    };
    start(&server, &document, begin(4711)).await.ok(200);
    let scopes = json!({ "id": "starter", "principal": "starter", "scopes": ["runs:create"] });
    let key = server.post("/v1/host/wopr/keys", &scopes).send().await.ok(201);
    let key = key["secret"].as_str().unwrap();
    for salary in [1, 4711] {
        let body = begin(salary);
        let path = "/awp/v1/workflows/taken/executions";
        let refused = server.call("POST", path).key(key).json(&body).send().await;
        assert_eq!(code(&refused, 409), "DUPLICATE_EXECUTION_ID");
    }
}

#[tokio::test]
async fn signal_that_is_waited_for_is_an_event_of_its_name_in_the_log() {
    let server = Server::start().await;
    let document = document("signals", &[signal()]);
    let started = start(&server, &document, json!({ "execution_id": "s-1" })).await;
    started.ok(200);
    let runs = server.get("/v1/runs?workflowId=signals").send().await.ok(200);
    let run = runs["runs"][0]["runId"].as_str().unwrap();
    let page = server
        .get(&format!("/v1/runs/{run}/events/poll"))
        .send()
        .await
        .ok(200);
    let payload = |name: &str| {
        let mut events = page["events"].as_array().unwrap().iter();
        events.find(|event| event["type"] == name).unwrap()["payload"].clone()
    };
    assert_eq!(payload("run.started")["transport"], "rest");
    assert_eq!(
        payload("interrupt.requested")["data"],
        json!({ "eventType": "approved", "correlation": {} })
    );
}
