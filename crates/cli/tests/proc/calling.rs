//! Workflows that call an agent, and what tests ask about their runs: over REST and as A2A tasks.

use std::{
    net::SocketAddr,
    time::{Duration, Instant},
};

use serde_json::{Value, json};
use tokio::time;

use crate::{
    host::KEY,
    http::{Connection, write_request},
    quarantine::ask,
};

/// More than anything takes that tests wait for here.
const LIMIT: Duration = Duration::from_secs(90);
/// Interval between two reads.
const PAUSE: Duration = Duration::from_millis(50);

/// A public definition whose only node calls an agent.
pub(crate) fn workflow(id: &str, config: &Value) -> Value {
    json!({
        "id": id, "name": id, "version": "1",
        "nodes": [{
            "id": "ask", "typeId": "core.a2a.invoke", "name": "Ask", "position": {"x": 0, "y": 0}, "config": config,
            "inputs": {},
        }],
        "edges": [], "triggers": [{"id": "manual", "type": "manual"}], "variables": [],
        "metadata": {"public": true}, "settings": {},
    })
}

pub(crate) async fn register(address: SocketAddr, definition: Value) {
    let (status, said) = ask(address, "POST", "/v1/workflows", Some(definition)).await;
    assert!(matches!(status, 200 | 201), "{said:#}");
}

pub(crate) async fn events(address: SocketAddr, run: &str) -> Vec<Value> {
    let path = format!("/v1/runs/{run}/events/poll?timeout=1");
    let (status, poll) = ask(address, "GET", &path, None).await;
    assert_eq!(status, 200, "{poll}");
    poll["events"].as_array().unwrap().clone()
}

/// The events of a type in a run.
pub(crate) async fn events_of(address: SocketAddr, run: &str, kind: &str) -> Vec<Value> {
    let mut events = events(address, run).await;
    events.retain(|event| event["type"] == kind);
    events
}

/// The outputs of the only node of a completed run.
pub(crate) async fn outputs(address: SocketAddr, run: &str) -> Value {
    let completed = events_of(address, run, "node.completed").await;
    completed[0]["payload"]["outputs"].clone()
}

pub(crate) async fn snapshot(address: SocketAddr, run: &str) -> Value {
    let (status, found) = ask(address, "GET", &format!("/v1/runs/{run}"), None).await;
    assert_eq!(status, 200, "{found}");
    found
}

/// Reads a run until something holds, and returns it.
pub(crate) async fn until(
    address: SocketAddr,
    run: &str,
    what: &str,
    holds: impl Fn(&Value) -> bool,
) -> Value {
    let since = Instant::now();
    loop {
        let found = snapshot(address, run).await;
        if holds(&found) {
            return found;
        }
        assert!(since.elapsed() < LIMIT, "{run}: not in time: {what}: {found:#}");
        // sleep: the pace of asking
        time::sleep(PAUSE).await;
    }
}

/// Waits until a run asks a question, and returns the interrupt.
pub(crate) async fn asked(address: SocketAddr, run: &str, question: &str) -> Value {
    let is_asked = |found: &Value| found["interrupt"]["data"]["message"] == question;
    let found = until(address, run, question, is_asked).await;
    assert_eq!(found["status"], "waiting-input", "{found:#}");
    found["interrupt"].clone()
}

/// Answers the question of the only node of a run.
pub(crate) async fn answer(address: SocketAddr, run: &str, text: &str) {
    let answer = json!({ "resumeValue": { "answers": { "answer": text } } });
    let path = format!("/v1/runs/{run}/interrupts/ask");
    let (status, said) = ask(address, "POST", &path, Some(answer)).await;
    assert_eq!(status, 200, "{said:#}");
}

pub(crate) async fn cancel(address: SocketAddr, run: &str) {
    let path = format!("/v1/runs/{run}/cancel");
    let (status, said) = ask(address, "POST", &path, Some(json!({}))).await;
    assert_eq!(status, 200, "{said}");
}

/// Calls a method of A2A 1.0 over JSON-RPC and returns its result.
pub(crate) async fn rpc(address: SocketAddr, method: &str, params: Value) -> Value {
    let body = json!({ "jsonrpc": "2.0", "id": 1, "method": method, "params": params }).to_string();
    let headers = format!("authorization: Bearer {KEY}\r\na2a-version: 1.0\r\n");
    let mut request = Vec::new();
    write_request(&mut request, "POST", "/a2a", &headers, Some(body.as_bytes()));
    let mut connection = Connection::open(address).await.unwrap();
    assert_eq!(connection.send(&request).await.unwrap(), 200);
    let mut answer = Vec::new();
    connection.body(&mut answer).await.unwrap();
    let answer: Value = serde_json::from_slice(&answer).unwrap();
    assert_eq!(answer.get("error"), None, "{method}: {answer:#}");
    answer["result"].clone()
}

/// The run as an A2A task.
pub(crate) async fn task(address: SocketAddr, run: &str) -> Value {
    rpc(address, "GetTask", json!({ "id": run })).await
}

/// Says something to the run as to an A2A task.
pub(crate) async fn say(address: SocketAddr, run: &str, text: &str) -> Value {
    let message = json!({
        "messageId": format!("{run}-{text}"), "taskId": run, "role": "ROLE_USER", "parts": [{ "text": text }],
    });
    let configuration = json!({ "returnImmediately": true });
    let params = json!({ "message": message, "configuration": configuration });
    rpc(address, "SendMessage", params).await["task"].clone()
}

/// The texts of the parts of an artifact or a message, as of one.
pub(crate) fn text_of(parts: &Value) -> String {
    let parts = parts["parts"].as_array().unwrap().iter();
    parts.filter_map(|part| part["text"].as_str()).collect()
}
