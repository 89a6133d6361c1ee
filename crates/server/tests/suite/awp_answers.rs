//! Answers and signals over the Agent Workflow Protocol reach what their senders mean, over REST and MCP.

use std::sync::Arc;

use futures_util::future::join_all;
use serde_json::{Value, json};
use tokio::sync::watch;
use wopr_core::{PrincipalId, TenantId};
use wopr_server::{
    Config,
    auth::{Caller, Scopes},
    awp,
    config::StoreUrl,
};

use crate::{
    awp_control::{branched, code, document, get, post, start},
    client::Reply,
    server::{ADAM, ALICE, READER, Server},
    workflows::{chain, node},
};

/// The host has the name by which the client of these tests calls it, which MCP asks for.
fn named(config: &mut Config) {
    config.server.public_url = Some("http://test".parse().unwrap());
}

fn asks(id: &str) -> Value {
    json!({ "id": id, "type": "interrupt", "config": { "prompt": id,
        "resume_schema": { "type": "object", "properties": { "ok": { "type": "boolean" } }, "required": ["ok"] } } })
}

fn waits(id: &str) -> Value {
    json!({ "id": id, "type": "wait", "config": { "kind": "signal", "signal": "go" } })
}

fn sub(id: &str, workflow: &str) -> Value {
    json!({ "id": id, "type": "subworkflow", "config": { "workflow_ref": workflow, "input_mapping": {} } })
}

fn yes(document: &Value) -> Value {
    json!({ "definition": document, "resume_payload": { "ok": true } })
}

async fn call(server: &Server, key: &str, method: &str, path: &str, body: &Value) -> Reply {
    let call = server
        .call(method, &format!("/awp/v1/executions/{path}"))
        .key(key);
    match method {
        "GET" => call.send().await,
        _ => call.json(body).send().await,
    }
}

async fn look(server: &Server, key: &str, id: &str) -> Value {
    call(server, key, "GET", id, &Value::Null).await.ok(200)
}

async fn resume(server: &Server, key: &str, id: &str, body: &Value) -> Reply {
    call(server, key, "POST", &format!("{id}:resume"), body).await
}

/// What an MCP tool answers, or the code of its error.
async fn tool(
    server: &Server,
    key: &str,
    name: &str,
    id: &str,
    mut arguments: Value,
) -> Result<Value, Value> {
    arguments["execution_id"] = json!(id);
    let params = json!({ "name": name, "arguments": arguments });
    let body = json!({ "jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": params });
    let sent = server.call("POST", "/mcp").key(key).json(&body);
    let sent = sent.header("accept", "application/json, text/event-stream");
    let result = sent.send().await.ok(200)["result"].clone();
    let content = result["structuredContent"].clone();
    match result["isError"] == true {
        true => Err(content["error"].clone()),
        false => Ok(content),
    }
}

/// Checks a refusal that names the question that is open.
fn check_changed(error: &Value, node: &str) {
    assert_eq!(error["code"], "ACTIVITY_SUBMIT_NOT_AWAITING", "{error}");
    let details = &error["details"];
    assert_eq!(
        (&details["reason"], &details["node_id"]),
        (&json!("interrupt_changed"), &json!(node)),
        "{error}"
    );
}

#[tokio::test]
async fn an_answer_is_refused_if_its_sender_has_not_seen_the_open_question() {
    let server = Server::start_with(named).await;
    let document = document("two-gates", &[asks("mail"), asks("drop")]);
    for id in ["g-1", "g-2", "g-3"] {
        let started = start(&server, &document, json!({ "execution_id": id })).await;
        let first = started.ok(200)["interrupt_id"].clone();
        assert_eq!(look(&server, ADAM, id).await["interrupt_id"], first);
        let next = resume(&server, ALICE, id, &yes(&document)).await.ok(200);
        assert_eq!(next["node_id"], "drop", "{next}");

        let refused = resume(&server, ADAM, id, &yes(&document)).await.ok(409);
        check_changed(&refused["error"], "drop");
        let error = tool(&server, ADAM, "workflow_resume", id, yes(&document)).await;
        check_changed(&error.unwrap_err(), "drop");
        let mut named = yes(&document);
        named["interrupt_id"] = first;
        let late = resume(&server, ADAM, id, &named).await.ok(409);
        check_changed(&late["error"], "drop");
        let status = look(&server, READER, id).await;
        assert_eq!(
            (&status["phase"], &status["current_node_id"]),
            (&json!("interrupted"), &json!("drop")),
            "a refused answer changes nothing"
        );
    }
    // Whoever looks at the question, or names it, answers it.
    look(&server, ADAM, "g-1").await;
    let done = resume(&server, ADAM, "g-1", &yes(&document)).await.ok(200);
    assert_eq!(done["status"], "completed", "{done}");
    call(&server, ADAM, "GET", "g-2/events", &Value::Null)
        .await
        .ok(200);
    let done = tool(&server, ADAM, "workflow_resume", "g-2", yes(&document)).await;
    assert_eq!(done.unwrap()["status"], "completed");
    let mut named = yes(&document);
    named["interrupt_id"] = look(&server, READER, "g-3").await["interrupt_id"].clone();
    let done = resume(&server, ADAM, "g-3", &named).await.ok(200);
    assert_eq!(done["status"], "completed", "{done}");
}

#[tokio::test]
async fn a_client_goes_on_answering_after_restarts() {
    let mut server = Server::start_on_sqlite().await;
    let document = document("three-gates", &[asks("a"), asks("b"), asks("c")]);
    start(&server, &document, json!({ "execution_id": "r-1" }))
        .await
        .ok(200);
    for next in ["b", "c"] {
        server = server.again_on_sqlite().await;
        let answer = resume(&server, ALICE, "r-1", &yes(&document)).await.ok(200);
        assert_eq!(answer["node_id"], next, "{answer}");
    }
    server = server.again_on_sqlite().await;
    let done = resume(&server, ALICE, "r-1", &yes(&document)).await.ok(200);
    assert_eq!(done["status"], "completed", "{done}");
}

#[tokio::test]
async fn an_answer_that_is_repeated_without_its_outcome_does_not_answer_the_next_question() {
    let server = Server::start_with(named).await;
    let nap = json!({ "id": "nap", "type": "wait", "config": { "kind": "duration", "duration": "1s" } });
    let document = document("slow-gates", &[asks("mail"), nap, asks("drop")]);
    let started = start(&server, &document, json!({})).await.ok(200);
    let id = started["execution_id"].as_str().unwrap();
    let caller = Caller {
        key_id: Arc::from("alice"),
        tenant: TenantId::parse("acme").unwrap(),
        principal: PrincipalId::parse("alice").unwrap(),
        scopes: Scopes::ALL,
        membership: Arc::default(),
    };
    let mut arguments = yes(&document);
    arguments["execution_id"] = json!(id);
    let (waiting, mut waits) = watch::channel(None);
    let request = awp::Request {
        waiting: Some(waiting),
        ..awp::Request::new(awp::Tool::Resume, arguments.as_object().unwrap().clone(), "test")
    };
    // The client goes away while its call waits for what follows.
    tokio::select! {
        called = awp::call(&server.host, &caller, request) => panic!("{called:?}"),
        waited = waits.wait_for(Option::is_some) => assert!(waited.is_ok()),
    }
    while look(&server, READER, id).await["phase"] != "interrupted" {
        tokio::task::yield_now().await;
    }
    let refused = resume(&server, ALICE, id, &yes(&document)).await.ok(409);
    check_changed(&refused["error"], "drop");
    look(&server, ALICE, id).await;
    let done = resume(&server, ALICE, id, &yes(&document)).await.ok(200);
    assert_eq!(done["status"], "completed", "{done}");
}

/// Checks that an execution names the node and the child of the same branch. Returns the node.
fn check_branch(id: &str, shown: &Value, node: &str) -> String {
    let node = shown[node]
        .as_str()
        .unwrap_or_else(|| panic!("{shown}"))
        .to_owned();
    assert_eq!(shown["child_execution_id"], format!("{id}:sub:{node}"), "{shown}");
    node
}

#[tokio::test]
async fn an_execution_names_the_child_that_an_answer_reaches() {
    let server = Server::start_with(named).await;
    for (name, node) in [("asking-child", asks("ask")), ("waiting-child", waits("wait"))] {
        let child = document(name, &[node]);
        post(&server, "/workflows", json!({ "definition": child }))
            .await
            .ok(201);
    }
    for (child, operation) in [("asking-child", "resume"), ("waiting-child", "signal")] {
        let name = format!("three-{child}s");
        let branches = ["c1", "c2", "c3"].map(|id| sub(id, child));
        let parent = branched(&name, "all", &branches);
        let body = match operation {
            "resume" => yes(&parent),
            _ => json!({ "definition": parent, "signal_name": "go", "payload": {} }),
        };
        let started = start(
            &server,
            &parent,
            json!({ "execution_id": name, "parallel_activities": true }),
        )
        .await
        .ok(200);
        check_branch(&name, &started, "node_id");
        for id in ["c1", "c2", "c3"] {
            // The children begin and ask by messages of their own.
            let mut status = look(&server, ALICE, &name).await;
            while status["phase"] == "running" || status["current_node_id"] != id {
                tokio::task::yield_now().await;
                status = look(&server, ALICE, &name).await;
            }
            check_branch(&name, &status, "current_node_id");
            let status = tool(&server, ALICE, "workflow_status", &name, json!({})).await;
            assert_eq!(check_branch(&name, &status.unwrap(), "current_node_id"), id);
            let path = format!("{name}:{operation}");
            let answer = call(&server, ALICE, "POST", &path, &body).await.ok(200);
            let child = look(&server, READER, &format!("{name}:sub:{id}")).await;
            assert_eq!(child["phase"], "completed", "{child}");
            if id == "c3" {
                assert_eq!(answer["status"], "completed", "{answer}");
            } else {
                check_branch(&name, &answer, "node_id");
            }
        }
    }
}

#[tokio::test]
async fn concurrent_signals_are_taken_one_after_the_other() {
    let server = Server::start_with(|config| {
        config.store = StoreUrl::Sqlite("wopr.db".into());
        named(config);
    })
    .await;
    let branches: Vec<_> = (0..8).map(|n| waits(&format!("w{n}"))).collect();
    let (together, in_turn) = (
        branched("together", "all", &branches),
        document("in-turn", &branches),
    );
    for (document, id, is_mcp) in [
        (&together, "t-1", false),
        (&together, "t-2", true),
        (&in_turn, "t-3", false),
        (&in_turn, "t-4", true),
    ] {
        let begin = json!({ "execution_id": id, "parallel_activities": true });
        start(&server, document, begin).await.ok(200);
        let signals = (0..8).map(|n| {
            let payload = json!({ format!("s{n}"): n });
            let body =
                json!({ "definition": document, "input": {}, "signal_name": "go", "payload": payload });
            let server = &server;
            async move {
                if is_mcp {
                    let sent = tool(server, ALICE, "workflow_signal", id, body).await;
                    sent.unwrap_or_else(|error| panic!("{error}"));
                } else {
                    let path = format!("/executions/{id}:signal");
                    post(server, &path, body).await.ok(200);
                }
            }
        });
        join_all(signals).await;
        let status = get(&server, &format!("/executions/{id}")).await.ok(200);
        assert_eq!(status["phase"], "completed", "{status}");
        let late = json!({ "definition": document, "input": {}, "signal_name": "go", "payload": {} });
        let late = post(&server, &format!("/executions/{id}:signal"), late).await;
        assert_eq!(code(&late, 409), "SIGNAL_NOT_AWAITING");
    }
}

#[tokio::test]
async fn an_approver_who_is_not_listed_is_forbidden_to_answer() {
    let server = Server::start_with(named).await;
    let gate = json!({
        "id": "gate-of-carol", "name": "gate", "version": "1", "edges": [], "variables": [], "metadata": {}, "settings": {},
        "triggers": [{ "id": "m", "type": "manual" }],
        "nodes": [{ "id": "gate", "typeId": "core.approvalGate", "name": "G", "position": { "x": 0, "y": 0 }, "inputs": {},
            "config": { "title": "t", "actions": ["accept", "reject"], "approversList": ["carol"] } }],
    });
    server.post("/v1/workflows", &gate).send().await.ok(201);
    let document = document("carols", &[sub("sub", "gate-of-carol")]);
    start(&server, &document, json!({ "execution_id": "c-1" }))
        .await
        .ok(200);
    let accept = json!({ "definition": document, "resume_payload": { "action": "accept" } });
    let refused = resume(&server, ALICE, "c-1", &accept).await;
    assert_eq!(code(&refused, 403), "AUTH_FORBIDDEN");
    let error = tool(&server, ALICE, "workflow_resume", "c-1", accept).await;
    assert_eq!(error.unwrap_err()["code"], "AUTH_FORBIDDEN");
    assert_eq!(look(&server, READER, "c-1").await["phase"], "interrupted");
}

/// What an OpenWOP child waits for is a signal of the name of its type, for the execution and the parents of that.
#[tokio::test]
async fn an_event_of_an_openwop_child_is_a_signal_of_the_execution() {
    let server = Server::start_with(named).await;
    let event = |order: &str| {
        let data = json!({ "eventType": "paid", "correlation": { "order": order } });
        node(
            "ev",
            "core.interrupt",
            json!({ "kind": "external-event", "data": data }),
        )
    };
    for order in ["1", "2"] {
        let child = chain(&format!("order-{order}"), &[event(order)]);
        server.post("/v1/workflows", &child).send().await.ok(201);
    }
    let middle = document("middle", &[sub("order", "order-1")]);
    let registered = post(&server, "/workflows", json!({ "definition": middle })).await;
    registered.ok(201);
    let direct = document("direct", &[sub("order", "order-1")]);
    let nested = document("nested", &[sub("middle", "middle")]);
    for (document, node) in [(direct, "order"), (nested, "middle")] {
        for is_rest in [true, false] {
            let id = format!("{node}-{is_rest}");
            let started = start(&server, &document, json!({ "execution_id": id })).await;
            let started = started.ok(200);
            assert_eq!(
                (&started["status"], &started["signal_name"], &started["node_id"]),
                (&json!("awaiting_signal"), &json!("paid"), &json!(node)),
                "{started}"
            );
            let status = look(&server, ALICE, &id).await;
            assert_eq!(
                (&status["phase"], &status["signal_name"]),
                (&json!("awaiting_signal"), &json!("paid")),
                "{status}"
            );
            let signal = async |name: &str, payload: Value| {
                let body =
                    json!({ "definition": document, "input": {}, "signal_name": name, "payload": payload });
                if !is_rest {
                    return tool(&server, ALICE, "workflow_signal", &id, body).await;
                }
                let sent = call(&server, ALICE, "POST", &format!("{id}:signal"), &body).await;
                match sent.status {
                    200 => Ok(sent.json()),
                    _ => Err(sent.json()["error"].clone()),
                }
            };
            let other = signal("ev", json!({ "order": "1" })).await.unwrap_err();
            assert_eq!(other["code"], "SIGNAL_NAME_MISMATCH", "{other}");
            let wrong = signal("paid", json!({ "order": "9" })).await.unwrap_err();
            assert_eq!(wrong["code"], "SIGNAL_VALIDATION_ERROR", "{wrong}");
            assert!(wrong.to_string().contains("correlation"), "{wrong}");
            let done = signal("paid", json!({ "order": "1", "voter": "zed" }))
                .await
                .unwrap();
            assert_eq!(done["status"], "completed", "{done}");
        }
    }
    // Of several, the one that it matches.
    let both = branched("both", "all", &[sub("a", "order-1"), sub("b", "order-2")]);
    let begun = json!({ "execution_id": "both", "parallel_activities": true });
    start(&server, &both, begun).await.ok(200);
    let mut status = look(&server, ALICE, "both").await;
    while status["phase"] != "awaiting_signal" {
        tokio::task::yield_now().await;
        status = look(&server, ALICE, "both").await;
    }
    for (order, wanted) in [("2", "awaiting_signal"), ("1", "completed")] {
        let body = json!({ "definition": both, "signal_name": "paid", "payload": { "order": order } });
        let mut sent = call(&server, ALICE, "POST", "both:signal", &body).await;
        // The other child begins by a message of its own.
        while sent.status != 200 {
            assert_eq!(code(&sent, 400), "SIGNAL_VALIDATION_ERROR");
            tokio::task::yield_now().await;
            sent = call(&server, ALICE, "POST", "both:signal", &body).await;
        }
        assert_eq!(sent.ok(200)["status"], wanted);
    }
}
