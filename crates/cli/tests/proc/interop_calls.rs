//! Workflows that call third-party agents: servers built with the official SDKs, on loopback.

use std::net::SocketAddr;

use serde_json::{Value, json};

use crate::{
    host::Host,
    interop::{A2A_1, A2A_03, Client},
    interop_agents::Agent,
    quarantine::{ask, create, reaches},
};

/// A definition whose only node calls the agent.
fn workflow(id: &str, config: &Value) -> Value {
    json!({
        "id": id, "name": id, "version": "1",
        "nodes": [{
            "id": "ask", "typeId": "core.a2a.invoke", "name": "Ask", "position": {"x": 0, "y": 0}, "config": config,
            "inputs": {},
        }],
        "edges": [], "triggers": [{"id": "manual", "type": "manual"}], "variables": [], "metadata": {}, "settings": {},
    })
}

/// Calls an agent in a version over every binding: it answers, asks, and works until it is cancelled. The host is
/// killed while the agent asks.
async fn calls(client: Client, script: &str, version: &str) {
    let agent = Agent::start(client, script).await;
    let mut host = Host::new()
        .variable("WOPR_A2A_PEER", agent.address.clone())
        .variable("WOPR_EGRESS_ALLOW", "127.0.0.0/8");
    let mut address = host.start().await;
    for binding in ["jsonrpc", "rest", "grpc"] {
        let config = json!({ "binding": binding, "protocolVersion": version });
        let (status, said) = ask(address, "POST", "/v1/workflows", Some(workflow(binding, &config))).await;
        assert!(matches!(status, 200 | 201), "{binding}: {said}");

        let run = create(address, binding, json!({ "prompt": "hello" })).await;
        reaches(address, &run, "completed").await;
        let outputs = outputs(address, &run).await;
        assert_eq!(outputs["text"], "hello", "{binding} {version}: {outputs:#}");

        let run = create(address, binding, json!({ "prompt": "ask" })).await;
        reaches(address, &run, "waiting-input").await;
        host.kill().await;
        address = host.start().await;
        let (_, waiting) = ask(address, "GET", &format!("/v1/runs/{run}"), None).await;
        assert_eq!(
            waiting["interrupt"]["data"]["message"], "What shall it be?",
            "{binding} {version}: {waiting:#}"
        );
        let answer = json!({ "resumeValue": { "answers": { "answer": "tea" } } });
        let path = format!("/v1/runs/{run}/interrupts/ask");
        let (status, said) = ask(address, "POST", &path, Some(answer)).await;
        assert_eq!(status, 200, "{binding} {version}: {said:#}");
        reaches(address, &run, "completed").await;

        let run = create(address, binding, json!({ "prompt": "wait" })).await;
        accepted(address, &run).await;
        let (status, said) = ask(
            address,
            "POST",
            &format!("/v1/runs/{run}/cancel"),
            Some(json!({})),
        )
        .await;
        assert_eq!(status, 200, "{said}");
        reaches(address, &run, "cancelled").await;
        cancelled(&agent, version).await;
    }
    host.terminate().await;
}

async fn events(address: SocketAddr, run: &str) -> Value {
    let (status, poll) = ask(
        address,
        "GET",
        &format!("/v1/runs/{run}/events/poll?timeout=1"),
        None,
    )
    .await;
    assert_eq!(status, 200, "{poll}");
    poll["events"].clone()
}

async fn outputs(address: SocketAddr, run: &str) -> Value {
    let events = events(address, run).await;
    let mut events = events.as_array().unwrap().iter();
    let completed = events.find(|event| event["type"] == "node.completed");
    completed.unwrap()["payload"]["outputs"].clone()
}

/// Waits until the agent has accepted the message of a run.
async fn accepted(address: SocketAddr, run: &str) {
    loop {
        let events = events(address, run).await;
        let mut kinds = events.as_array().unwrap().iter().map(|event| &event["type"]);
        if kinds.any(|kind| kind == "vendor.wopr.effect.accepted") {
            return;
        }
    }
}

/// Waits until no task of the agent works any more.
async fn cancelled(agent: &Agent, version: &str) {
    if version != "1.0" {
        // Tasks cannot be listed.
        return;
    }
    loop {
        let listed = agent
            .ends(["1.0", "jsonrpc"], 0, &["list", "--all", "--json"])
            .await
            .json();
        let tasks = listed["tasks"].as_array().unwrap();
        let is_over = |task: &Value| {
            ["TASK_STATE_COMPLETED", "TASK_STATE_CANCELED"]
                .contains(&task["status"]["state"].as_str().unwrap())
        };
        if tasks.iter().all(is_over) {
            assert!(
                tasks
                    .iter()
                    .any(|task| task["status"]["state"] == "TASK_STATE_CANCELED")
            );
            return;
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn agent_of_sdk_1_0_is_called_in_both_versions() {
    calls(A2A_1, "a2a_1_agent.py", "1.0").await;
    calls(A2A_1, "a2a_1_agent.py", "0.3").await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn agent_of_sdk_0_3_is_called() {
    calls(A2A_03, "a2a_03_agent.py", "0.3").await;
}
