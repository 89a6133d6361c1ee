//! An answer over REST applies to the interrupt that its caller saw.

use serde_json::{Value, json};

use crate::{
    client::Reply,
    server::{ADAM, ALICE, Server},
    workflows::{chain, node},
};

async fn begin(server: &Server) -> String {
    let run = server.run("asks-again", json!({})).await;
    server.wait_for(&run, "waiting-approval").await;
    run
}

async fn answer(server: &Server, key: &str, run: &str, action: &str, interrupt: Option<&str>) -> Reply {
    let mut body = json!({ "resumeValue": { "action": action } });
    if let Some(interrupt) = interrupt {
        body["interruptId"] = json!(interrupt);
    }
    let path = format!("/v1/runs/{run}/interrupts/gate");
    server.call("POST", &path).key(key).json(&body).send().await
}

#[tokio::test]
async fn answer_by_node_applies_to_the_named_interrupt() {
    let server = Server::start().await;
    let run = begin(&server).await;
    let other = answer(&server, ALICE, &run, "accept", Some("gate:1")).await;
    other.error(404, "interrupt_not_found");
    let other = answer(&server, ALICE, &run, "accept", Some("other:0")).await;
    other.error(404, "interrupt_not_found");
    answer(&server, ADAM, &run, "reject", Some("gate:0"))
        .await
        .ok(200);
    let late = answer(&server, ALICE, &run, "accept", Some("gate:0")).await;
    late.error(409, "interrupt_already_resolved");
    assert_eq!(server.snapshot(&run).await["interrupt"]["interruptId"], "gate:1");
    let path = format!("/v1/runs/{run}/approvals/gate");
    let plain = |id: Value| json!({ "action": "accept", "interruptId": id });
    server
        .post(&path, &plain(json!("gate:0")))
        .send()
        .await
        .error(409, "interrupt_already_resolved");
    server
        .post(&path, &plain(json!(1)))
        .send()
        .await
        .error(400, "validation_error");
    let done = server.post(&path, &plain(json!("gate:1"))).send().await.ok(200);
    assert_eq!(done["status"], "completed");
}

#[tokio::test]
async fn answer_to_an_interrupt_resolved_by_another_caller_is_refused() {
    let server = Server::start().await;
    let run = begin(&server).await;
    // Alice has seen gate:0. Adam rejects it, and the gate opens a new interrupt.
    answer(&server, ADAM, &run, "reject", None).await.ok(200);
    let refused = answer(&server, ALICE, &run, "accept", None).await;
    assert_eq!(refused.error(409, "interrupt_changed")["interruptId"], "gate:1");
    assert_eq!(server.snapshot(&run).await["status"], "waiting-approval");
    // Now she has seen gate:1. Her own answers do not invalidate what she saw.
    answer(&server, ALICE, &run, "reject", None).await.ok(200);
    let done = answer(&server, ALICE, &run, "accept", None).await.ok(200);
    assert_eq!(done["status"], "completed");
    answer(&server, ADAM, &run, "accept", None)
        .await
        .error(409, "interrupt_already_resolved");
}

#[tokio::test]
async fn child_is_answered_through_its_parent_by_the_parents_id() {
    let server = Server::start().await;
    let run = server.run("two-children", json!({})).await;
    let mut snapshot = server.wait_for(&run, "waiting-approval").await;
    while snapshot["interrupts"].as_array().unwrap().len() < 3 {
        tokio::task::yield_now().await;
        snapshot = server.snapshot(&run).await;
    }
    let call = |node: &str, interrupt: &str| {
        let body = json!({ "resumeValue": { "action": "accept" }, "interruptId": interrupt });
        server.post(&format!("/v1/runs/{run}/interrupts/{node}"), &body)
    };
    for interrupt in [
        "right:0/gate:0",
        "gate:0",
        "left:1/gate:0",
        "left:0/gate:1",
        "left:0/",
    ] {
        let refused = call("left", interrupt).send().await;
        refused.error(404, "interrupt_not_found");
    }
    call("left", "left:0/gate:0").send().await.ok(200);
    let late = call("left", "left:0/gate:0").send().await;
    late.error(409, "interrupt_already_resolved");
    let token = |node: &str| {
        let open = snapshot["interrupts"].as_array().unwrap().iter();
        let mut open = open.filter(|open| open["nodeId"] == node);
        open.next().unwrap()["interruptToken"]
            .as_str()
            .unwrap()
            .to_owned()
    };
    let path = format!("/v1/interrupts/{}", token("right"));
    let by_token = |interrupt: &str| {
        let body = json!({ "resumeValue": { "action": "accept" }, "interruptId": interrupt });
        server.call("POST", &path).json(&body)
    };
    by_token("left:0/other:0")
        .send()
        .await
        .error(404, "interrupt_not_found");
    by_token("right:0/gate:0").send().await.ok(200);
}

/// Registers a workflow with parallel gates, and one that runs it as a child.
async fn register_gates(server: &Server) {
    let gate = |id: &str| node(id, "core.approvalGate", json!({ "title": id }));
    let mut parallel = chain("gates", &[node("start", "core.noop", json!({})), gate("a")]);
    parallel["nodes"].as_array_mut().unwrap().push(gate("b"));
    let edge = json!({ "id": "b", "sourceNodeId": "start", "targetNodeId": "b" });
    parallel["edges"].as_array_mut().unwrap().push(edge);
    let sub = |of: &str| node("sub", "core.subWorkflow", json!({ "workflowId": of }));
    for workflow in [
        parallel,
        chain("one-by-one", &[gate("a"), gate("b")]),
        chain("child-gates", &[sub("gates")]),
        chain("child-one-by-one", &[sub("one-by-one")]),
    ] {
        server.host.engine().register(None, workflow).await.unwrap();
    }
}

fn ids(snapshot: &Value) -> Vec<&str> {
    let open = snapshot["interrupts"].as_array().unwrap().iter();
    open.map(|open| open["interruptId"].as_str().unwrap()).collect()
}

fn token<'s>(snapshot: &'s Value, id: &str) -> &'s str {
    let mut open = snapshot["interrupts"].as_array().unwrap().iter();
    let open = open.find(|open| open["interruptId"] == id).unwrap();
    open["interruptToken"].as_str().unwrap()
}

async fn at_sub(server: &Server, key: &str, run: &str, interrupt: Option<&str>) -> Reply {
    let mut body = json!({ "resumeValue": { "action": "accept" } });
    if let Some(interrupt) = interrupt {
        body["interruptId"] = json!(interrupt);
    }
    let path = format!("/v1/runs/{run}/interrupts/sub");
    server.call("POST", &path).key(key).json(&body).send().await
}

#[tokio::test]
async fn unnamed_answer_is_refused_if_a_child_has_several_interrupts() {
    let server = Server::start().await;
    register_gates(&server).await;
    let run = server.run("child-gates", json!({})).await;
    server.wait_for(&run, "waiting-approval").await;
    assert_eq!(ids(&server.snapshot(&run).await), ["sub:0/a:0", "sub:0/b:0"]);
    let refused = at_sub(&server, ALICE, &run, None).await;
    let details = refused.error(409, "interrupt_ambiguous");
    assert_eq!(details["interruptIds"], json!(["sub:0/a:0", "sub:0/b:0"]));

    // The parent's log does not show this answer, since it mirrors the other interrupt.
    at_sub(&server, ADAM, &run, Some("sub:0/b:0")).await.ok(200);
    let refused = at_sub(&server, ALICE, &run, None).await;
    assert_eq!(
        refused.error(409, "interrupt_changed")["interruptId"],
        "sub:0/a:0"
    );
    assert_eq!(ids(&server.snapshot(&run).await), ["sub:0/a:0"]);
    at_sub(&server, ALICE, &run, None).await.ok(200);
    server.wait_for(&run, "completed").await;
}

#[tokio::test]
async fn answer_through_a_parent_does_not_reach_newer_interrupts() {
    let server = Server::start().await;
    register_gates(&server).await;
    let run = server.run("child-one-by-one", json!({})).await;
    let seen = server.wait_for(&run, "waiting-approval").await;
    assert_eq!(ids(&seen), ["sub:0/a:0"]);
    // Only the child takes the answer; its parent is notified some time later.
    let path = format!("/v1/interrupts/{}", token(&seen, "sub:0/a:0"));
    let accept = json!({ "resumeValue": { "action": "accept" } });
    server.call("POST", &path).json(&accept).send().await.ok(200);
    let refused = at_sub(&server, ALICE, &run, None).await;
    assert_eq!(
        refused.error(409, "interrupt_changed")["interruptId"],
        "sub:0/b:0"
    );
    let late = at_sub(&server, ALICE, &run, Some("sub:0/a:0")).await;
    late.error(409, "interrupt_already_resolved");
    while ids(&server.snapshot(&run).await) != ["sub:0/b:0"] {
        tokio::task::yield_now().await;
    }
    at_sub(&server, ALICE, &run, None).await.ok(200);
    server.wait_for(&run, "completed").await;
}

#[tokio::test]
async fn ambiguous_answers_must_name_their_interrupt_after_a_restart() {
    let server = Server::start_on_sqlite().await;
    let (changed, unchanged, own) = (begin(&server).await, begin(&server).await, begin(&server).await);
    answer(&server, ADAM, &changed, "reject", None).await.ok(200);
    answer(&server, ALICE, &own, "reject", None).await.ok(200);
    let server = server.again_on_sqlite().await;

    let refused = answer(&server, ALICE, &changed, "accept", None).await;
    assert_eq!(refused.error(409, "interrupt_changed")["interruptId"], "gate:1");
    // Only the caller resolved an interrupt here.
    answer(&server, ALICE, &unchanged, "accept", None).await.ok(200);
    answer(&server, ALICE, &own, "accept", None).await.ok(200);
    // After an answer of its own the host knows as much as the log.
    let named = answer(&server, ALICE, &changed, "reject", Some("gate:1")).await;
    named.ok(200);
    let server = server.again_on_sqlite().await;
    answer(&server, ALICE, &changed, "accept", None).await.ok(200);
}

#[tokio::test]
async fn listing_interrupts_counts_as_seeing_them() {
    let server = Server::start().await;
    let run = begin(&server).await;
    answer(&server, ADAM, &run, "reject", None).await.ok(200);
    answer(&server, ALICE, &run, "accept", None)
        .await
        .error(409, "interrupt_changed");
    let list = server.get("/v1/interrupts").send().await.ok(200);
    assert_eq!(list["interrupts"][0]["interruptId"], "gate:1");
    answer(&server, ALICE, &run, "accept", None).await.ok(200);
}
