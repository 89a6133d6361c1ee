//! The test seams of conformance mode: tasks in a given state, their records, and validation of push addresses.

use serde_json::{Value, json};
use wopr_server::config::StoreUrl;

use crate::{
    client::{Answer, Client, state_of},
    support::{Server, config},
};

const START: &str = "/v1/host/sample/a2a/tasks/start";
const PUSH: &str = "/v1/host/sample/a2a/tasks/push-config";

async fn post(client: &Client, path: &str, body: Value) -> Answer {
    client
        .clone()
        .at(path)
        .raw("POST", body.to_string().as_bytes())
        .await
}

#[tokio::test]
async fn seam_puts_a_task_into_a_lasting_state() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("wopr.db");
    let conformance = || {
        let mut config = config();
        config.conformance = true;
        config.store = StoreUrl::Sqlite(path.clone());
        config
    };
    let server = Server::open(conformance()).await;
    let mut tasks = Vec::new();
    for (scenario, state, kind) in [
        ("paused-at-approval", "input-required", Some("approval")),
        ("paused-at-clarification", "input-required", Some("clarification")),
        ("completed", "completed", None),
        ("rejected", "rejected", None),
    ] {
        let answer = post(&server.v1(), START, json!({ "scenario": scenario })).await;
        assert_eq!(answer.status, 201, "{scenario}");
        let task = answer.json()["taskId"].as_str().unwrap().to_owned();
        tasks.push((task, state, kind));
    }
    server.stop().await;

    let server = Server::open(conformance()).await;
    let client = server.v1();
    for (task, state, kind) in &tasks {
        let seam = client
            .get(&format!("/v1/host/sample/a2a/tasks/{task}"))
            .await
            .json();
        assert_eq!(seam, client.get(&format!("/v1/a2a/tasks/{task}")).await.json());
        assert_eq!((&seam["state"], &seam["taskId"]), (&json!(state), &seam["runId"]));
        assert_eq!(seam.get("interruptKind").and_then(Value::as_str), *kind);
        let read = client.task(task).await;
        assert_eq!(state_of(&read), *state);
        let interrupt = &read["metadata"]["openwop"]["interrupt"]["kind"];
        assert_eq!(interrupt.as_str(), *kind);
    }
    let (paused, ..) = &tasks[0];
    let yes = client.text("yes", "approve", json!({ "taskId": paused }));
    assert_eq!(state_of(&client.send(yes).await), "completed");
    let seam = client
        .get(&format!("/v1/host/sample/a2a/tasks/{paused}"))
        .await
        .json();
    assert_eq!(seam["state"], "completed");

    for (body, status) in [
        (json!({ "scenario": "nothing" }), 400),
        (json!({ "scenario": 7 }), 400),
        (json!({}), 400),
        (json!([]), 400),
    ] {
        assert_eq!(post(&client, START, body.clone()).await.status, status, "{body}");
    }
    assert_eq!(
        post(&client.clone().by("reader"), START, json!({})).await.status,
        403
    );
    let mut nobody = client.clone();
    nobody.key = None;
    assert_eq!(
        post(&nobody, START, json!({ "scenario": "completed" }))
            .await
            .status,
        401
    );
}

#[tokio::test]
async fn push_address_is_validated_before_the_task_lookup() {
    let mut config = config();
    config.conformance = true;
    let server = Server::open(config).await;
    let client = server.v1();
    for url in [
        "https://10.0.0.5/push",
        "http://push.example.com/push",
        "https://127.0.0.1/push",
        "https://[::1]/push",
        "https://[::ffff:10.0.0.5]/push",
        "https://169.254.169.254/latest/meta-data",
        "https://2130706433/push",
        "https://0x7f.1/push",
        "https://localhost./push",
        "https://user:pass@push.example.com/",
        "ftp://push.example.com/",
        "push.example.com",
        "",
    ] {
        let answer = post(&client, PUSH, json!({ "taskId": "run_x", "url": url })).await;
        assert_eq!(answer.status, 400, "{url}");
        let code = if url.is_empty() {
            "validation_error"
        } else {
            "webhook_url_rejected"
        };
        assert_eq!(answer.json()["error"], code, "{url}");
    }
    let good = "https://push.example.com/push";
    let answer = post(&client, PUSH, json!({ "taskId": "run_x", "url": good })).await;
    assert_eq!(answer.status, 404);
    let task = client.send(client.text("m", "x", json!({}))).await;
    let registered = post(&client, PUSH, json!({ "taskId": task["id"], "url": good })).await;
    assert_eq!(registered.status, 201);
    crate::records::check(&registered.json());
    let record = format!("/v1/a2a/tasks/{}", task["id"].as_str().unwrap());
    let record = client.get(&record).await.json();
    assert_eq!(record["pushConfig"], json!({ "url": good }));
    assert_eq!(record, registered.json());
    assert_eq!(post(&client, PUSH, json!({ "url": good })).await.status, 400);
    assert_eq!(
        post(&client, PUSH, json!({ "taskId": "run_x" })).await.status,
        400
    );
}

#[tokio::test]
async fn seams_exist_only_in_conformance_mode() {
    let server = Server::start().await;
    let client = server.v1();
    let task = client.send(client.text("m", "x", json!({}))).await;
    let task = task["id"].as_str().unwrap();
    for (path, body) in [
        (START, json!({ "scenario": "completed" })),
        (
            PUSH,
            json!({ "taskId": task, "url": "https://push.example.com/push" }),
        ),
        (PUSH, json!({ "taskId": task, "url": "https://10.0.0.5/push" })),
    ] {
        assert_eq!(post(&client, path, body).await.status, 404, "{path}");
    }
    assert_eq!(
        client
            .get(&format!("/v1/host/sample/a2a/tasks/{task}"))
            .await
            .status,
        404
    );
    assert_eq!(client.get(&format!("/v1/a2a/tasks/{task}")).await.status, 200);
}
