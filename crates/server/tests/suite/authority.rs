//! Interrupt tokens: who may resolve, who is shown tokens, whose vote a token casts, and where tokens never
//! appear.

use std::{
    collections::BTreeSet,
    io::{self, Write},
    sync::{Arc, Mutex},
};

use serde_json::{Value, json};
use tracing_subscriber::fmt::MakeWriter;

use crate::{
    client::Reply,
    server::{ADAM, READER, Server},
};

/// Creates a key and returns its secret.
async fn key(server: &Server, id: &str, more: Value) -> String {
    let mut body = json!({ "id": id, "scopes": ["runs:read", "approvals:respond"] });
    body.as_object_mut()
        .unwrap()
        .extend(more.as_object().unwrap().clone());
    let made = server.post("/v1/host/wopr/keys", &body).send().await.ok(201);
    made["secret"].as_str().unwrap().to_owned()
}

async fn run(server: &Server, workflow: &str) -> String {
    let run = server.run(workflow, json!({})).await;
    server.wait_for(&run, "waiting-approval").await;
    run
}

async fn seen_by(server: &Server, key: &str, run: &str) -> Value {
    let path = format!("/v1/runs/{run}");
    server.call("GET", &path).key(key).send().await.ok(200)
}

async fn by_token(server: &Server, token: &str, value: Value) -> Reply {
    let body = json!({ "resumeValue": value });
    let path = format!("/v1/interrupts/{token}");
    server.call("POST", &path).json(&body).send().await
}

fn token(interrupt: &Value) -> String {
    interrupt["interruptToken"].as_str().unwrap().to_owned()
}

async fn mint(server: &Server, key: &str, run: &str, more: Value) -> Reply {
    let mut body = json!({ "runId": run, "nodeId": "gate" });
    body.as_object_mut()
        .unwrap()
        .extend(more.as_object().unwrap().clone());
    let call = server.call("POST", "/v1/host/wopr/interrupt-tokens");
    call.key(key).json(&body).send().await
}

fn accept() -> Value {
    json!({ "action": "accept" })
}

async fn events(server: &Server, run: &str) -> Value {
    let path = format!("/v1/runs/{run}/events");
    let read = server.get(&path).header("accept", "application/json");
    read.send().await.ok(200)
}

#[tokio::test]
async fn every_open_interrupt_has_its_own_id_and_token() {
    let server = Server::start().await;
    let run = server.run("two-children", json!({})).await;
    let mut snapshot = server.wait_for(&run, "waiting-approval").await;
    // Both children must have reported.
    while snapshot["interrupts"].as_array().unwrap().len() < 3 {
        tokio::task::yield_now().await;
        snapshot = server.snapshot(&run).await;
    }
    let interrupts = snapshot["interrupts"].as_array().unwrap();
    assert_eq!(snapshot["interrupt"], interrupts[0]);
    let ids: BTreeSet<_> = interrupts
        .iter()
        .map(|open| open["interruptId"].as_str().unwrap())
        .collect();
    assert_eq!(ids, BTreeSet::from(["gate:0", "left:0/gate:0", "right:0/gate:0"]));
    let reader = seen_by(&server, READER, &run).await;
    assert_eq!(reader["interrupts"].as_array().unwrap().len(), 3);
    assert!(!reader.to_string().contains("interruptToken"), "{reader}");

    let right = interrupts.iter().find(|open| open["nodeId"] == "right").unwrap();
    by_token(&server, &token(right), accept()).await.ok(200);
    let mut left: Vec<_> = Vec::new();
    while left.len() != 2 {
        tokio::task::yield_now().await;
        let snapshot = server.snapshot(&run).await;
        let open = snapshot["interrupts"].as_array().unwrap();
        left = open
            .iter()
            .map(|open| open["nodeId"].as_str().unwrap().to_owned())
            .collect();
    }
    left.sort_unstable();
    assert_eq!(left, ["gate", "left"]);
}

#[tokio::test]
async fn token_votes_as_the_principal_it_was_shown_to() {
    let server = Server::start_with(|config| config.conformance = false).await;
    let run = run(&server, "quorum").await;
    let own = token(&server.snapshot(&run).await["interrupt"]);
    let path = format!("/v1/runs/{run}/interrupts/gate");
    let vote = json!({ "resumeValue": accept() });
    server.post(&path, &vote).send().await.ok(200);
    for _ in 0..2 {
        let again = by_token(&server, &own, accept()).await.ok(200);
        assert_eq!(again["status"], "waiting-approval");
    }
    let adams = token(&seen_by(&server, ADAM, &run).await["interrupt"]);
    let done = by_token(&server, &adams, accept()).await.ok(200);
    assert_eq!(done["status"], "completed");
}

#[tokio::test]
async fn a_token_is_minted_for_a_named_approver() {
    let server = Server::start_with(|config| config.conformance = false).await;
    let run = run(&server, "quorum").await;
    let carol = json!({ "principal": "carol" });
    let minted = mint(&server, crate::server::ALICE, &run, carol).await.ok(201);
    assert_eq!(minted["principal"], "carol");
    assert_eq!(minted["interruptId"], "gate:0");
    assert!(minted["callbackUrl"].as_str().unwrap().ends_with(&token(&minted)));
    let voted = by_token(&server, &token(&minted), accept()).await.ok(200);
    assert_eq!(voted["status"], "waiting-approval");
    let log = events(&server, &run).await.to_string();
    assert!(log.contains("\"voter\":\"carol\""), "{log}");
    // Carol's own key is not a second voter.
    let carols = key(&server, "carol", json!({})).await;
    let path = format!("/v1/runs/{run}/interrupts/gate");
    let vote = json!({ "resumeValue": accept() });
    let again = server.call("POST", &path).key(&carols).json(&vote).send().await;
    assert_eq!(again.ok(200)["status"], "waiting-approval");

    // The log names the caller who votes for others, too.
    let other = server.run("quorum", json!({})).await;
    server.wait_for(&other, "waiting-approval").await;
    let path = format!("/v1/runs/{other}/interrupts/gate");
    for voter in ["bob", "dave"] {
        let vote = json!({ "resumeValue": { "action": "accept", "voter": voter } });
        server.post(&path, &vote).send().await.ok(200);
    }
    let log = events(&server, &other).await;
    let acting = |event: &&Value| event["payload"]["actingPrincipal"].is_string();
    let acted: Vec<_> = log["events"].as_array().unwrap().iter().filter(acting).collect();
    assert_eq!(acted.len(), 2, "{log}");
    for (event, voter) in acted.iter().zip(["bob", "dave"]) {
        assert_eq!(event["payload"]["voter"], voter);
        assert_eq!(event["payload"]["actingPrincipal"], "alice");
    }

    // The log records a named approver as the one who decided.
    let other = run_of(&server).await;
    let minted = mint(&server, &carols, &other, json!({})).await.ok(201);
    by_token(&server, &token(&minted), accept()).await.ok(200);
    let log = events(&server, &other).await.to_string();
    assert!(log.contains("\"decidedBy\":\"carol\""), "{log}");
}

async fn run_of(server: &Server) -> String {
    run(server, "approval").await
}

#[tokio::test]
async fn minting_for_others_requires_the_scope_to_manage_keys() {
    let server = Server::start_with(|config| config.conformance = false).await;
    let run = run(&server, "approval").await;
    let carols = key(&server, "carol", json!({})).await;
    let for_dan = || json!({ "principal": "dan" });
    let refused = mint(&server, &carols, &run, for_dan()).await;
    assert_eq!(refused.error(403, "forbidden")["scopeRequired"], "keys:manage");
    mint(&server, READER, &run, json!({}))
        .await
        .error(403, "forbidden");
    let bob = mint(&server, crate::server::BOB, &run, json!({})).await;
    bob.error(404, "not_found");
    let missing = mint(&server, &carols, &run, json!({ "nodeId": "nowhere" })).await;
    missing.error(404, "interrupt_not_found");
    let past = mint(&server, &carols, &run, json!({ "interruptId": "gate:7" })).await;
    past.error(404, "interrupt_not_found");
    let inspect = mint(&server, &carols, &run, json!({ "intent": "inspect" }))
        .await
        .ok(201);
    let answer = by_token(&server, &token(&inspect), accept()).await;
    answer.error(403, "forbidden");
    let path = format!("/v1/interrupts/{}", token(&inspect));
    server.call("GET", &path).send().await.ok(200);
}

#[tokio::test]
async fn two_token_holders_may_use_the_same_idempotency_key() {
    let server = Server::start_with(|config| config.conformance = false).await;
    let run = run(&server, "quorum").await;
    let mut last = Value::Null;
    for principal in ["carol", "dan"] {
        let minted = mint(
            &server,
            crate::server::ALICE,
            &run,
            json!({ "principal": principal }),
        )
        .await;
        let path = format!("/v1/interrupts/{}", token(&minted.ok(201)));
        let call = server
            .call("POST", &path)
            .json(&json!({ "resumeValue": accept() }));
        last = call.header("idempotency-key", "1").send().await.ok(200);
    }
    assert_eq!(last["status"], "completed");
}

#[derive(Clone, Default)]
struct Logs(Arc<Mutex<Vec<u8>>>);

impl Write for Logs {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.lock().unwrap().extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl MakeWriter<'_> for Logs {
    type Writer = Self;

    fn make_writer(&self) -> Self {
        self.clone()
    }
}

#[tokio::test]
async fn tokens_appear_in_no_log_or_metric() {
    let logs = Logs::default();
    let subscriber = tracing_subscriber::fmt()
        .with_max_level(tracing::Level::TRACE)
        .with_span_events(tracing_subscriber::fmt::format::FmtSpan::FULL)
        .with_writer(logs.clone())
        .finish();
    let _guard = tracing::subscriber::set_default(subscriber);
    let server = Server::start().await;
    let run = run(&server, "approval").await;
    let shown = token(&server.snapshot(&run).await["interrupt"]);
    let minted = mint(
        &server,
        crate::server::ALICE,
        &run,
        json!({ "principal": "carol" }),
    )
    .await;
    let minted = token(&minted.ok(201));
    for token in [&shown, &minted] {
        for path in [
            format!("/v1/interrupts/{token}"),
            format!("/v1/interrupts/{token}/more"),
            format!("//v1/interrupts/{token}"),
            format!("/v1/interrupt%73/{token}"),
            format!("/v1%2Finterrupts%2F{token}"),
            format!("/v1/runs/{token}"),
            format!("/a2a/{token}"),
            format!("/{token}?token={token}"),
        ] {
            for method in ["GET", "POST", "PUT"] {
                let refused = json!({ "resumeValue": { "action": "maybe" } });
                server.call(method, &path).json(&refused).send().await;
            }
        }
        let path = format!("/v1/interrupts/{token}");
        server
            .call("POST", &path)
            .bytes("{")
            .send()
            .await
            .error(400, "validation_error");
    }
    by_token(&server, &shown, accept()).await.ok(200);
    by_token(&server, &minted, accept())
        .await
        .error(409, "interrupt_already_resolved");
    let metrics = server.get("/metrics").send().await;
    let metrics = String::from_utf8(metrics.body).unwrap();
    let text = String::from_utf8(logs.0.lock().unwrap().clone()).unwrap();
    assert!(text.contains("request answered") && text.contains("/v1/interrupts/{token}"));
    for token in [&shown, &minted] {
        let (payload, mac) = token.split_once('.').unwrap();
        for part in [payload, mac] {
            assert!(!metrics.contains(part), "{metrics}");
            let line = text.lines().find(|line| line.contains(part));
            assert_eq!(line, None);
        }
    }
}
