//! A run that was active at three crashes is paused at the next start; the host serves all other runs.

use std::{
    net::SocketAddr,
    process::Command,
    time::{Duration, Instant},
};

use serde_json::{Value, json};
use tokio::{
    sync::{mpsc, watch},
    time,
};

use crate::{
    host::{Host, KEY},
    http::{Connection, write_request},
    server::{Server, respond},
};

/// More than a status change or a call takes on any machine.
const LIMIT: Duration = Duration::from_secs(60);
/// Interval between two reads of a run.
const PAUSE: Duration = Duration::from_millis(20);
/// Number of crashes after which a run is paused.
const DEATHS: usize = 3;
/// Runs that are active at every crash; each is released in another way.
const STUCK: usize = 2;

pub(crate) async fn ask(address: SocketAddr, method: &str, path: &str, body: Option<Value>) -> (u16, Value) {
    let mut connection = Connection::open(address).await.unwrap();
    let mut request = Vec::new();
    let body = body.map(|body| body.to_string());
    let key = format!("authorization: Bearer {KEY}\r\n");
    let bytes = body.as_deref().map(str::as_bytes);
    write_request(&mut request, method, path, &key, bytes);
    let status = connection.send(&request).await.unwrap();
    let mut answer = Vec::new();
    connection.body(&mut answer).await.unwrap();
    (status, serde_json::from_slice(&answer).unwrap_or(Value::Null))
}

pub(crate) async fn create(address: SocketAddr, workflow: &str, inputs: Value) -> String {
    let body = json!({ "workflowId": workflow, "inputs": inputs });
    let (status, run) = ask(address, "POST", "/v1/runs", Some(body)).await;
    assert_eq!(status, 201, "{run}");
    run["runId"].as_str().unwrap().to_owned()
}

pub(crate) async fn reaches(address: SocketAddr, run: &str, status: &str) {
    let since = Instant::now();
    loop {
        let (code, found) = ask(address, "GET", &format!("/v1/runs/{run}"), None).await;
        assert_eq!(code, 200, "{found}");
        if found["status"] == status {
            return;
        }
        assert!(since.elapsed() < LIMIT, "{run} does not reach {status}: {found}");
        // sleep: the pace of asking
        time::sleep(PAUSE).await;
    }
}

/// Returns the types of a run's events, and the reasons of its pauses.
async fn log(address: SocketAddr, run: &str) -> (Vec<String>, Vec<Value>) {
    let path = format!("/v1/runs/{run}/events/poll?timeout=1");
    let (status, log) = ask(address, "GET", &path, None).await;
    assert_eq!(status, 200, "{log}");
    let events = log["events"].as_array().unwrap();
    let types = events
        .iter()
        .map(|event| event["type"].as_str().unwrap().to_owned());
    let pauses = events.iter().filter(|event| event["type"] == "run.paused");
    let reasons = pauses.map(|event| event["payload"]["reason"].clone());
    (types.collect(), reasons.collect())
}

/// A workflow that calls a peer of any latency.
fn caller(url: &str) -> Value {
    let config = json!({ "method": "POST", "url": url, "body": {}, "timeoutMs": 300_000 });
    json!({
        "id": "caller", "name": "Caller", "version": "1",
        "nodes": [{
            "id": "call", "typeId": "core.http.request", "name": "Call", "position": { "x": 0, "y": 0 },
            "config": config, "inputs": {},
        }],
        "edges": [], "triggers": [{ "id": "manual", "type": "manual" }], "variables": [], "metadata": {},
        "settings": {},
    })
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn run_active_at_three_kills_is_paused_and_the_host_serves_the_rest() {
    let (called, mut calls) = mpsc::channel(64);
    let (answers, may_answer) = watch::channel(false);
    let peer = Server::start(move |_| {
        let (called, mut may_answer) = (called.clone(), may_answer.clone());
        async move {
            called.send(()).await.ok()?;
            may_answer.wait_for(|may| *may).await.ok()?;
            Some(respond(200, r#"{"ok":true}"#))
        }
    });
    let peer = peer.await;
    let mut host = Host::new().variable("WOPR_EGRESS_ALLOW", "127.0.0.0/8");
    let mut address = host.start().await;
    let (status, registered) = ask(address, "POST", "/v1/workflows", Some(caller(&peer.url()))).await;
    assert_eq!(status, 201, "{registered}");
    let gate = create(address, "approval", json!({ "prompt": "since before" })).await;
    let mut stuck = Vec::new();
    for _ in 0..STUCK {
        stuck.push(create(address, "caller", json!({})).await);
    }

    for death in 1..=DEATHS {
        for _ in 0..STUCK {
            let call = time::timeout(LIMIT, calls.recv()).await;
            call.unwrap_or_else(|_| panic!("no call before death {death}\n{}", host.said()));
        }
        host.kill().await;
        address = host.start().await;
    }

    for run in &stuck {
        reaches(address, run, "paused").await;
        assert_eq!(log(address, run).await.1, [json!("quarantined")]);
    }
    // Other runs continue: one that was waiting before, and a new one.
    let answer = json!({ "action": "accept" });
    let path = format!("/v1/runs/{gate}/interrupts/gate");
    let (status, answered) = ask(address, "POST", &path, Some(json!({ "resumeValue": answer }))).await;
    assert_eq!(status, 200, "{answered}");
    reaches(address, &gate, "completed").await;
    let new = create(address, "pure", json!({ "prompt": "new" })).await;
    reaches(address, &new, "completed").await;
    assert!(calls.try_recv().is_err(), "nobody calls for a paused run");

    // It stays paused in the next process.
    host.kill().await;
    address = host.start().await;
    for run in &stuck {
        assert_eq!(log(address, run).await.1, [json!("quarantined")]);
    }

    answers.send_replace(true);
    let [by_command, by_request] = &stuck[..] else {
        panic!("two runs are stuck: {stuck:?}");
    };
    let mut release = Command::new(env!("CARGO_BIN_EXE_wopr"));
    release.args(["runs", "release", by_command, "--reason", "mended"]);
    release
        .env("WOPR_SERVER", format!("http://{address}"))
        .env("WOPR_API_KEY", KEY);
    let released = tokio::task::spawn_blocking(move || release.output().unwrap());
    let released = released.await.unwrap();
    assert!(released.status.success(), "{released:?}");
    let path = format!("/v1/runs/{by_request}:resume");
    let (status, resumed) = ask(address, "POST", &path, Some(json!({}))).await;
    assert_eq!(status, 202, "{resumed}");
    for run in &stuck {
        reaches(address, run, "completed").await;
        let (types, _) = log(address, run).await;
        assert!(types.contains(&"run.resumed".to_owned()), "{types:?}");
    }
}
