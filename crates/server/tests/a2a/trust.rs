//! Content from agents is marked as untrusted, also on runs that they did not start.

use serde_json::json;

use crate::{client::state_of, support::Server};

#[tokio::test]
async fn an_agents_answer_is_marked_on_a_run_started_over_rest() {
    let server = Server::start().await;
    for version in ["1.0", ""] {
        let client = server.client(version);
        let body = json!({ "workflowId": "child-asks" });
        let created = client
            .clone()
            .at("/v1/runs")
            .raw("POST", body.to_string().as_bytes())
            .await;
        assert_eq!(created.status, 201);
        let id = created.json()["runId"].as_str().unwrap().to_owned();
        client.until(&id, "input-required").await;
        let answer = client.text(&format!("m{version}"), "approve", json!({ "taskId": id }));
        assert_eq!(state_of(&client.send(answer).await), "completed");
        let run = client.get(&format!("/v1/runs/{id}")).await.json();
        assert_eq!(run["untrusted"]["nodes"], json!(["sub"]), "{run}");
        let child = run["childRuns"][0]["runId"].as_str().unwrap();
        let child = client.get(&format!("/v1/runs/{child}")).await.json();
        assert!(
            child["untrusted"]["nodes"].to_string().contains("gate"),
            "{child}"
        );
    }
}

#[tokio::test]
async fn a_child_of_an_agents_run_is_untrusted_too() {
    let server = Server::start().await;
    let client = server.v1();
    let asks = json!({"metadata": {"skillId": "child-asks"}});
    let task = client.send(client.text("m1", "acme", asks)).await;
    let run = client
        .get(&format!("/v1/runs/{}", task["id"].as_str().unwrap()))
        .await
        .json();
    assert_eq!(run["metadata"]["contentTrust"], "untrusted");
    let child = run["childRuns"][0]["runId"].as_str().unwrap();
    let child = client.get(&format!("/v1/runs/{child}")).await.json();
    assert_eq!(child["metadata"]["contentTrust"], "untrusted");
}
