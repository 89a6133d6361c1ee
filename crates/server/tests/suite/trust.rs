//! Untrusted content is marked over REST.

use serde_json::{Value, json};

use crate::server::Server;

async fn payloads(server: &Server, run: &str, name: &str) -> Vec<Value> {
    let path = format!("/v1/runs/{run}/events");
    let log = server.get(&path).header("accept", "application/json");
    let log = log.send().await.ok(200);
    let events = log["events"].as_array().unwrap().iter();
    let found = events.filter(|event| event["type"] == name);
    found.map(|event| event["payload"].clone()).collect()
}

async fn asked(server: &Server) -> (String, String) {
    let run = server.run("parent", json!({})).await;
    let snapshot = server.wait_for(&run, "waiting-approval").await;
    let child = snapshot["childRuns"][0]["runId"].as_str().unwrap().to_owned();
    (run, child)
}

#[tokio::test]
async fn an_answer_by_token_is_marked_in_the_child_and_its_parent() {
    let server = Server::start().await;
    let (run, child) = asked(&server).await;
    let snapshot = server.snapshot(&run).await;
    assert_eq!(snapshot.get("untrusted"), None);
    let path = format!(
        "/v1/interrupts/{}",
        snapshot["interrupt"]["interruptToken"].as_str().unwrap()
    );
    let question = json!({ "resumeValue": { "action": "ask", "question": "Why?" } });
    server.call("POST", &path).json(&question).send().await.ok(200);
    let accept = json!({ "resumeValue": { "action": "accept", "feedback": "fine" } });
    server.call("POST", &path).json(&accept).send().await.ok(200);
    server.wait_for(&run, "completed").await;
    for name in [
        "interrupt.resolved",
        "approval.received",
        "node.completed",
        "variable.changed",
    ] {
        let found = payloads(&server, &child, name).await;
        assert_eq!(found[0]["contentTrust"], "untrusted", "{name}");
    }
    let answered = server.snapshot(&child).await;
    assert_eq!(answered["untrusted"]["nodes"], json!(["gate"]));
    assert_eq!(
        answered["untrusted"]["variables"],
        json!(["_askExchanges:gate", "gate"])
    );
    assert_eq!(
        answered["variables"]["_askExchanges:gate"][0]["contentTrust"],
        "untrusted"
    );
    // What the child ended with is marked where the parent has it.
    let completed = payloads(&server, &run, "node.completed").await;
    assert_eq!(completed[0]["contentTrust"], "untrusted");
    assert_eq!(server.snapshot(&run).await["untrusted"]["nodes"], json!(["sub"]));
}

#[tokio::test]
async fn an_answer_by_a_credential_is_not_marked() {
    let server = Server::start().await;
    let (run, child) = asked(&server).await;
    let accept = json!({ "resumeValue": { "action": "accept" } });
    let path = format!("/v1/runs/{run}/interrupts/sub");
    server.post(&path, &accept).send().await.ok(200);
    server.wait_for(&run, "completed").await;
    for run in [&run, &child] {
        let snapshot = server.snapshot(run).await;
        assert_eq!(snapshot.get("untrusted"), None);
        let path = format!("/v1/runs/{run}/events");
        let log = server.get(&path).header("accept", "application/json");
        let log = log.send().await.ok(200);
        assert!(!log.to_string().contains("contentTrust"), "{log}");
    }
}
