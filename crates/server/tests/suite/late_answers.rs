//! An answer that comes too late is told what happened to its question.

use serde_json::{Value, json};

use crate::{
    client::Reply,
    server::Server,
    workflows::{chain, node},
};

/// Starts a run of `gate` with this configuration, and returns its id and the path of its token.
async fn ask(server: &Server, workflow: &str, config: Value) -> (String, String) {
    let document = chain(workflow, &[node("gate", "core.approvalGate", config)]);
    server.post("/v1/workflows", &document).send().await.ok(201);
    let run = server.run(workflow, json!({})).await;
    let shown = server.wait_for(&run, "waiting-approval").await;
    let token = shown["interrupt"]["interruptToken"].as_str().unwrap();
    (run, format!("/v1/interrupts/{token}"))
}

fn check(reply: &Reply, reason: &str, text: &str) {
    let details = reply.error(409, "interrupt_already_resolved");
    assert_eq!(details["reason"], reason, "{}", reply.json());
    let message = reply.json()["message"].as_str().unwrap().to_owned();
    assert!(message.contains(text), "{message}");
}

/// Answers by node and by id, and looks at what every refusal says.
async fn check_by_node(server: &Server, run: &str, reason: &str, text: &str) {
    let accept = json!({ "action": "accept" });
    let resume = json!({ "resumeValue": accept });
    let named = json!({ "resumeValue": accept, "interruptId": "gate:0" });
    let node = format!("/v1/runs/{run}/interrupts/gate");
    check(&server.post(&node, &resume).send().await, reason, text);
    check(&server.post(&node, &named).send().await, reason, text);
    let approval = format!("/v1/runs/{run}/approvals/gate");
    check(&server.post(&approval, &accept).send().await, reason, text);
}

async fn check_by_token(server: &Server, token: &str, reason: &str, text: &str) {
    let resume = json!({ "resumeValue": { "action": "accept" } });
    check(&server.call("GET", token).send().await, reason, text);
    let answer = server.call("POST", token).json(&resume);
    check(&answer.send().await, reason, text);
}

#[tokio::test]
async fn late_answer_to_an_answered_question_says_so() {
    let server = Server::start().await;
    let (run, token) = ask(&server, "w", json!({ "title": "Go?" })).await;
    let accept = json!({ "action": "accept" });
    let path = format!("/v1/runs/{run}/approvals/gate");
    server.post(&path, &accept).send().await.ok(200);
    let text = "has been answered already";
    check_by_node(&server, &run, "answered", text).await;
    check_by_token(&server, &token, "answered", text).await;
}

#[tokio::test]
async fn late_answer_to_a_question_that_timed_out_says_so() {
    let server = Server::start().await;
    let (run, token) = ask(&server, "w", json!({ "title": "Go?", "timeoutMs": 60_000 })).await;
    server.clock.advance(60_000);
    server.wait_for(&run, "failed").await;
    check_by_node(&server, &run, "timed-out", "was not answered in time").await;
    // The token ends with the question.
    let by_token = server.call("GET", &token).send().await;
    by_token.error(410, "interrupt_expired");
}

#[tokio::test]
async fn late_answer_to_a_run_that_ended_says_how_it_ended() {
    let server = Server::start().await;
    let (run, token) = ask(&server, "w", json!({ "title": "Go?" })).await;
    let cancel = server.post(&format!("/v1/runs/{run}/cancel"), &json!({}));
    cancel.send().await.ok(200);
    server.wait_for(&run, "cancelled").await;
    check_by_token(&server, &token, "run-ended", "cancelled").await;
    let approval = format!("/v1/runs/{run}/approvals/gate");
    let late = server.post(&approval, &json!({ "action": "accept" }));
    check(&late.send().await, "run-ended", "cancelled");
}
