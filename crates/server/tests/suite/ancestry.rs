//! Which run a run comes from, on its host and across hosts.

use serde_json::{Value, json};

use crate::{
    orchestration::{looped, register},
    server::Server,
    workflows::{chain, node},
};

async fn ancestry(server: &Server, run: &str) -> Value {
    server
        .get(&format!("/v1/runs/{run}/ancestry"))
        .send()
        .await
        .ok(200)
}

#[tokio::test]
async fn run_names_its_parent_and_how_that_created_it() {
    let server = Server::start().await;
    let next = json!({ "kind": "next-worker", "nextWorkerIds": ["identity"] });
    let plan = json!({ "mockDispatchPlan": [next] });
    register(&server, &looped("lead", plan, json!({}), json!([]))).await;
    let sub = node("call", "core.subWorkflow", json!({ "workflowId": "identity" }));
    register(&server, &chain("caller", &[sub])).await;

    let document = server.call("GET", "/.well-known/openwop").send().await.ok(200);
    let causation = &document["multiAgent"]["executionModel"]["crossHostCausation"];
    let host = causation["hostId"].as_str().unwrap();
    assert_eq!(causation["ancestryEndpointSupported"], true);
    for (workflow, cause) in [("lead", "core.dispatch"), ("caller", "core.subWorkflow")] {
        let run = server.run(workflow, json!({})).await;
        let snapshot = server.wait_for(&run, "completed").await;
        assert_eq!(
            ancestry(&server, &run).await,
            json!({ "runId": run, "hostId": host, "parent": null })
        );
        let child = snapshot["childRuns"][0]["runId"].as_str().unwrap();
        assert_eq!(
            ancestry(&server, child).await,
            json!({
                "runId": child, "hostId": host,
                "parent": { "runId": run, "hostId": host, "cause": cause },
            })
        );
        // Nobody but its caller started a fork of the child, as the fork's own document says.
        let path = format!("/v1/runs/{child}:fork");
        let forked = server.post(&path, &json!({ "mode": "replay" })).send().await;
        let fork = forked.ok(201)["runId"].as_str().unwrap().to_owned();
        let shown = server.wait_for(&fork, "completed").await;
        assert_eq!(shown["forkedFrom"]["sourceRunId"], child);
        assert_eq!(shown.get("parentRunId"), None);
        assert_eq!(ancestry(&server, &fork).await["parent"], Value::Null);
    }
    let unknown = server.get("/v1/runs/run_00000000000000000000000000000000/ancestry");
    assert_eq!(unknown.send().await.status, 404);
    server.stop().await;
}

#[tokio::test]
async fn host_keeps_its_name_over_restarts_and_no_two_have_the_same() {
    let id = async |server: &Server| {
        let run = server.run("identity", json!({})).await;
        ancestry(server, &run).await["hostId"].clone()
    };
    let server = Server::start_on_sqlite().await;
    let before = id(&server).await;
    let server = server.again_on_sqlite().await;
    assert_eq!(id(&server).await, before);
    let other = Server::start_on_sqlite().await;
    assert_ne!(id(&other).await, before);
    other.stop().await;
    server.stop().await;
}

/// Sends a message that starts a task. Returns the run.
async fn sent(server: &Server, openwop: Value) -> String {
    let mut metadata = json!({ "openwop": openwop });
    metadata["openwop"]["workflowId"] = json!("identity");
    let body = json!({
        "jsonrpc": "2.0", "id": 1, "method": "SendMessage",
        "params": { "message": {
            "messageId": "m", "role": "ROLE_USER", "parts": [{ "text": "hello" }], "metadata": metadata,
        } },
    });
    let answer = server
        .post("/a2a", &body)
        .header("a2a-version", "1.0")
        .send()
        .await
        .ok(200);
    answer["result"]["task"]["id"].as_str().unwrap().to_owned()
}

#[tokio::test]
async fn run_of_a_message_names_the_run_that_sent_it() {
    let server = Server::start().await;
    let caller = json!({
        "callerRunId": "run_elsewhere", "hostId": "other-host",
        "wellKnownUrl": "https://other.example/.well-known/openwop",
    });
    let run = sent(&server, caller).await;
    assert_eq!(
        ancestry(&server, &run).await["parent"],
        json!({
            "runId": "run_elsewhere", "hostId": "other-host",
            "wellKnownUrl": "https://other.example/.well-known/openwop", "cause": "a2a-message",
        })
    );
    server.stop().await;

    // A run that was started over REST may say what it likes of itself.
    let server = Server::start().await;
    let run = sent(&server, json!({ "callerRunId": "run_elsewhere" })).await;
    assert_eq!(ancestry(&server, &run).await["parent"], Value::Null);
    let body = json!({
        "workflowId": "identity",
        "metadata": { "a2a": { "caller": { "runId": "run_elsewhere", "hostId": "other-host" } } },
    });
    let created = server.post("/v1/runs", &body).send().await.ok(201);
    let run = created["runId"].as_str().unwrap();
    assert_eq!(ancestry(&server, run).await["parent"], Value::Null);
    server.stop().await;
}
