//! Tasks are removed after the retention period.

use std::time::Duration;

use serde_json::json;
use wopr_server::config::{Keep, Period};

use crate::support::{Server, config};

#[tokio::test]
async fn repeated_message_does_not_recreate_a_removed_task() {
    let mut config = config();
    config.retention.terminal_runs = Keep::For(Period::from_secs(1));
    let server = Server::open(config).await;
    let (client, old) = (server.v1(), server.v03());
    let params = client.text("m", "x", json!({}));
    let task = client.send(params.clone()).await;
    let id = task["id"].as_str().unwrap();
    let give_up = tokio::time::Instant::now() + Duration::from_secs(60);
    while client
        .call("GetTask", json!({ "id": id }))
        .await
        .get("error")
        .is_none()
    {
        assert!(tokio::time::Instant::now() < give_up, "{id} stays");
        tokio::time::sleep(Duration::from_millis(50)).await; // sleep: poll interval
    }
    assert_eq!(client.err("GetTask", json!({ "id": id })).await.0, -32001);
    assert_eq!(old.err("tasks/get", json!({ "id": id })).await.0, -32001);
    assert_eq!(client.err("CancelTask", json!({ "id": id })).await.0, -32001);
    assert_eq!(client.err("SubscribeToTask", json!({ "id": id })).await.0, -32001);
    let reply = client.text("m2", "and?", json!({ "taskId": id }));
    assert_eq!(client.send_err(reply).await.0, -32001);

    // The message is remembered but its task is gone, and no new task replaces it. The error names the task.
    let gone = client.call("SendMessage", params.clone()).await;
    assert_eq!(gone["error"]["code"], -32001, "{gone}");
    assert_eq!(gone["error"]["data"][0]["metadata"]["taskId"], id, "{gone}");
    let mut again = params;
    again["configuration"] = json!({ "returnImmediately": true });
    assert_eq!(client.send_err(again).await.0, -32001);
    assert_eq!(client.ok("ListTasks", json!({})).await["totalSize"], 0);
}
