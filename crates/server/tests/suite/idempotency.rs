//! Idempotent requests.

use std::collections::HashSet;

use futures_util::future::join_all;
use serde_json::json;

use crate::{
    client::Reply,
    server::{ADAM, Server},
};

const REPLAY: &str = "openwop-idempotent-replay";

fn run_id(reply: &Reply) -> String {
    reply.ok(201)["runId"].as_str().unwrap().to_owned()
}

async fn a_repeat_gets_the_first_answer(server: &Server) {
    let body = json!({ "workflowId": "conformance-noop", "inputs": { "a": 1, "b": 2 } });
    let create = server.post("/v1/runs", &body).header("idempotency-key", "k1");
    let first = create.send().await;
    assert_eq!(first.header(REPLAY), None);
    for _ in 0..5 {
        let again = create.send().await;
        assert_eq!(again.header(REPLAY), Some("true"));
        assert_eq!((again.status, &again.body), (201, &first.body));
    }
    // JSON documents are compared by value, not by text.
    let spaced = r#" { "inputs": { "b": 2, "a": 1 }, "workflowId": "conformance\u002dnoop" } "#;
    let spaced = server
        .call("POST", "/v1/runs")
        .key(crate::server::ALICE)
        .bytes(spaced);
    let again = spaced.header("idempotency-key", "k1").send().await;
    assert_eq!(run_id(&again), run_id(&first));

    // Numbers are compared by worth, exactly.
    let spelled = r#"{ "inputs": { "b": 20e-1, "a": 1.0 }, "workflowId": "conformance-noop" }"#;
    let spelled = server
        .call("POST", "/v1/runs")
        .key(crate::server::ALICE)
        .bytes(spelled);
    let again = spelled.header("idempotency-key", "k1").send().await;
    assert_eq!(run_id(&again), run_id(&first));
    for (key, one, another) in [
        ("large", "9007199254740993", "9007199254740992.0"),
        ("text", "1", "\"1\""),
        ("part", "1.5", "1"),
    ] {
        let with = |n: &str| {
            let body = format!(r#"{{ "workflowId": "conformance-noop", "inputs": {{ "n": {n} }} }}"#);
            let call = server
                .call("POST", "/v1/runs")
                .key(crate::server::ALICE)
                .bytes(body);
            call.header("idempotency-key", key)
        };
        with(one).send().await.ok(201);
        with(another).send().await.error(409, "idempotency_key_mismatch");
    }

    let other = json!({ "workflowId": "conformance-noop", "inputs": { "a": 2 } });
    let other = server
        .post("/v1/runs", &other)
        .header("idempotency-key", "k1")
        .send()
        .await;
    other.error(409, "idempotency_key_mismatch");
    assert!(other.json().get("runId").is_none());

    let another = server
        .post("/v1/runs", &body)
        .header("idempotency-key", "k2")
        .send()
        .await;
    assert_ne!(run_id(&another), run_id(&first));
    let principal = server.call("POST", "/v1/runs").key(ADAM).json(&body);
    let principal = principal.header("idempotency-key", "k1").send().await;
    assert_eq!(principal.header(REPLAY), None);
    assert_ne!(run_id(&principal), run_id(&first));
}

#[tokio::test]
async fn repeated_request_gets_the_first_response_in_memory() {
    a_repeat_gets_the_first_answer(&Server::start().await).await;
}

#[tokio::test]
async fn repeated_request_gets_the_first_response_on_sqlite() {
    let server = Server::start_on_sqlite().await;
    a_repeat_gets_the_first_answer(&server).await;
    server.stop().await;
}

#[tokio::test]
async fn concurrent_duplicates_take_effect_once() {
    let server = Server::start_on_sqlite().await;
    let body = json!({ "workflowId": "approval" });
    let create = server.post("/v1/runs", &body).header("idempotency-key", "race");
    let replies = join_all((0..16).map(|_| create.send())).await;
    let runs: HashSet<_> = replies.iter().map(run_id).collect();
    assert_eq!(runs.len(), 1);
    let fresh = replies.iter().filter(|reply| reply.header(REPLAY).is_none());
    assert_eq!(fresh.count(), 1);
    let list = server.get("/v1/runs?workflowId=approval").send().await.ok(200);
    assert_eq!(list["runs"].as_array().unwrap().len(), 1);
    server.stop().await;
}

#[tokio::test]
async fn commands_take_effect_once() {
    let server = Server::start().await;
    let run = server.run("short-delay", json!({})).await;
    let pause = server.post(&format!("/v1/runs/{run}:pause"), &json!({}));
    let pause = pause.header("idempotency-key", "p");
    let first = pause.send().await;
    first.ok(202);
    let again = pause.send().await;
    assert_eq!(again.header(REPLAY), Some("true"));
    assert_eq!((again.status, &again.body), (202, &first.body));

    let other = server.run("short-delay", json!({})).await;
    // Path parameters are part of the request.
    let elsewhere = server.post(&format!("/v1/runs/{other}:pause"), &json!({}));
    let elsewhere = elsewhere.header("idempotency-key", "p").send().await;
    elsewhere.error(409, "idempotency_key_mismatch");

    let gate = server.run("approval", json!({})).await;
    let answer = json!({ "resumeValue": { "action": "accept" } });
    let resolve = server.post(&format!("/v1/runs/{gate}/interrupts/gate"), &answer);
    let resolve = resolve.header("idempotency-key", "r");
    let first = resolve.send().await;
    assert_eq!(first.ok(200)["status"], "completed");
    let again = resolve.send().await;
    assert_eq!((again.status, &again.body), (200, &first.body));
    assert_eq!(again.header(REPLAY), Some("true"));

    let bulk = server.post("/v1/runs:bulk-cancel", &json!({ "runIds": [run, gate] }));
    let bulk = bulk.header("idempotency-key", "b");
    let first = bulk.send().await;
    assert_eq!(first.ok(200)["results"][1]["error"]["error"], "run_terminal");
    let again = bulk.send().await;
    assert_eq!((again.header(REPLAY), &again.body), (Some("true"), &first.body));
}

/// Such a cancel appends nothing that could record the request.
#[tokio::test]
async fn cancel_of_an_ended_run_is_replayed() {
    let server = Server::start().await;
    let run = server.run("conformance-noop", json!({})).await;
    server.wait_for(&run, "completed").await;
    for path in [format!("/v1/runs/{run}/cancel"), format!("/v1/runs/{run}:cancel")] {
        let cancel = |reason: &str| {
            let call = server.post(&path, &json!({ "reason": reason }));
            call.header("idempotency-key", "c")
        };
        let first = cancel("a").send().await;
        assert_eq!(first.ok(200)["status"], "completed");
        assert_eq!(first.header(REPLAY), None);
        let again = cancel("a").send().await;
        assert_eq!((again.header(REPLAY), &again.body), (Some("true"), &first.body));
        cancel("b").send().await.error(409, "idempotency_key_mismatch");
        let without = server.post(&path, &json!({ "reason": "b" })).send().await;
        assert_eq!(without.ok(200)["status"], "completed");
    }
}

#[tokio::test]
async fn answers_by_token_take_effect_once() {
    let server = Server::start().await;
    let body = json!({ "resumeValue": { "action": "accept" } });
    let mut firsts = Vec::new();
    // Tokens of different interrupts have separate idempotency keys.
    for _ in 0..2 {
        let run = server.run("approval", json!({})).await;
        let waiting = server.wait_for(&run, "waiting-approval").await;
        let token = waiting["interrupt"]["interruptToken"]
            .as_str()
            .unwrap()
            .to_owned();
        let path = format!("/v1/interrupts/{token}");
        let answer = server
            .call("POST", &path)
            .json(&body)
            .header("idempotency-key", "t");
        let first = answer.send().await;
        assert_eq!(
            (&first.ok(200)["status"], first.header(REPLAY)),
            (&json!("completed"), None)
        );
        let again = answer.send().await;
        assert_eq!((again.status, &again.body), (200, &first.body));
        assert_eq!(again.header(REPLAY), Some("true"));

        let other = json!({ "resumeValue": { "action": "reject" } });
        let other = server
            .call("POST", &path)
            .json(&other)
            .header("idempotency-key", "t");
        other.send().await.error(409, "idempotency_key_mismatch");
        let without = server.call("POST", &path).json(&body).send().await;
        without.error(409, "interrupt_already_resolved");
        firsts.push(first.body);
    }
    assert_ne!(firsts[0], firsts[1]);
}

#[tokio::test]
async fn registrations_take_effect_once() {
    let server = Server::start().await;
    let node = |id| crate::workflows::node(id, "core.noop", json!({}));
    let definition = crate::workflows::chain("once", &[node("a")]);
    let register = server
        .post("/v1/workflows", &definition)
        .header("idempotency-key", "w");
    let first = register.send().await;
    assert_eq!((first.status, first.header(REPLAY)), (201, None));
    // A later version stays current.
    let newer = crate::workflows::chain("once", &[node("b")]);
    let newer = server.post("/v1/workflows", &newer).send().await;
    newer.ok(201);
    let again = register.send().await;
    assert_eq!((again.status, again.header(REPLAY)), (201, Some("true")));
    assert_eq!(again.body, first.body);
    for name in ["etag", "location"] {
        assert!(first.header(name).is_some());
        assert_eq!(again.header(name), first.header(name));
    }
    let now = server.get("/v1/workflows/once").send().await;
    assert_eq!(now.header("etag"), newer.header("etag"));
}

#[tokio::test]
async fn refusals_are_not_replayed() {
    let server = Server::start().await;
    let late = json!({ "workflowId": "late" });
    let create = server.post("/v1/runs", &late).header("idempotency-key", "l");
    create.send().await.error(404, "not_found");
    let definition = crate::workflows::chain("late", &[crate::workflows::node("a", "core.noop", json!({}))]);
    server.post("/v1/workflows", &definition).send().await.ok(201);
    let created = create.send().await;
    assert_eq!((created.status, created.header(REPLAY)), (201, None));
}

#[tokio::test]
async fn response_is_replayed_after_the_workflow_was_deactivated() {
    let server = Server::start().await;
    let mut definition = crate::workflows::chain(
        "short-lived",
        &[crate::workflows::node("a", "core.noop", json!({}))],
    );
    server.post("/v1/workflows", &definition).send().await.ok(201);
    let body = json!({ "workflowId": "short-lived" });
    let create = server.post("/v1/runs", &body).header("idempotency-key", "s");
    let first = create.send().await;
    definition["isActive"] = json!(false);
    server.post("/v1/workflows", &definition).send().await.ok(201);
    let again = create.send().await;
    assert_eq!(
        (again.header(REPLAY), run_id(&again)),
        (Some("true"), run_id(&first))
    );
    server
        .post("/v1/runs", &body)
        .send()
        .await
        .error(404, "not_found");
}

#[tokio::test]
async fn malformed_idempotency_keys_are_refused() {
    let server = Server::start().await;
    let body = json!({ "workflowId": "conformance-noop" });
    for key in ["", &"x".repeat(256)] {
        let reply = server
            .post("/v1/runs", &body)
            .header("idempotency-key", key)
            .send()
            .await;
        let details = reply.error(400, "validation_error");
        assert_eq!(details["field"], "Idempotency-Key");
    }
    let key = "x".repeat(255);
    let create = server
        .post("/v1/runs", &body)
        .header("idempotency-key", &key)
        .send()
        .await;
    create.ok(201);
    // The header has no meaning on reads.
    let read = server
        .get("/v1/runs")
        .header("idempotency-key", &key)
        .send()
        .await;
    read.ok(200);
}
