//! A repeated message takes effect once, whenever it is repeated.

use futures_util::future::join_all;
use serde_json::json;

use crate::{
    client::{shorts, state_of},
    support::Server,
};

#[tokio::test]
async fn a_repeated_message_is_one_task() {
    let server = Server::start().await;
    let client = server.v1();
    let params = client.text("m", "x", json!({"contextId": "c"}));
    let tasks = join_all((0..16).map(|_| client.send(params.clone()))).await;
    for task in &tasks {
        assert_eq!(task["id"], tasks[0]["id"]);
        assert_eq!(state_of(task), "completed");
        assert_eq!(task["history"].as_array().unwrap().len(), 1);
    }
    assert_eq!(client.ok("ListTasks", json!({})).await["totalSize"], 1);
    // The same message, waiting in another way.
    let mut again = params.clone();
    again["configuration"] = json!({"returnImmediately": true});
    assert_eq!(client.send(again).await["id"], tasks[0]["id"]);
    // With other content it is a different message.
    let (code, text) = client
        .send_err(client.text("m", "y", json!({"contextId": "c"})))
        .await;
    assert!(code == -32602 && text.contains("message.messageId"), "{text}");
    // Message ids are scoped to the principal.
    let other = client.clone().by("bob").send(params.clone()).await;
    assert_ne!(other["id"], tasks[0]["id"]);
    // The same message in the format of the other version.
    let old = server.v03();
    let same = old.send(old.text("m", "x", json!({"contextId": "c"}))).await;
    assert_eq!(same["id"], tasks[0]["id"]);
    // A repeated stream shows the current task and ends.
    let frames = client.stream(params).await.all().await;
    assert_eq!(shorts(&frames), ["task:completed", "status:completed"]);
}

#[tokio::test]
async fn repeated_send_waits_like_the_first() {
    let server = Server::start().await;
    let client = server.v1();
    let params = client.text("m", "x", json!({"metadata": {"skillId": "nap"}}));
    let tasks = join_all((0..4).map(|_| client.send(params.clone()))).await;
    for task in &tasks {
        assert_eq!(
            (state_of(task).as_str(), &task["id"]),
            ("completed", &tasks[0]["id"])
        );
    }
    let streamed = client.text("s", "x", json!({"metadata": {"skillId": "nap"}}));
    let (one, two) = (
        client.stream(streamed.clone()).await,
        client.stream(streamed).await,
    );
    let (one, two) = (one.all().await, two.all().await);
    assert_eq!(one[0].value["id"], two[0].value["id"]);
    assert_eq!(one.last().unwrap().value, two.last().unwrap().value);
}

#[tokio::test]
async fn answers_take_effect_once() {
    let server = Server::start().await;
    let client = server.v1();
    let task = client
        .send(client.text("m1", "x", json!({"metadata": {"skillId": "clarify"}})))
        .await;
    let id = task["id"].as_str().unwrap();
    let reply = client.text("m2", "red", json!({"taskId": id}));
    let tasks = join_all((0..8).map(|_| client.send(reply.clone()))).await;
    for task in &tasks {
        assert_eq!(state_of(task), "input-required");
        assert_eq!(
            task["metadata"]["openwop"]["interrupt"]["nodeId"], "two",
            "{task}"
        );
        assert_eq!(task["history"].as_array().unwrap().len(), 3, "{task}");
    }
    let (code, text) = client
        .send_err(client.text("m2", "blue", json!({"taskId": id})))
        .await;
    assert!(code == -32602 && text.contains("another message"), "{text}");
    let frames = client.stream(reply).await.all().await;
    assert_eq!(shorts(&frames), ["task:input-required", "status:input-required"]);
}

#[tokio::test]
async fn tasks_and_messages_survive_a_restart() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("wopr.db");
    let server = Server::sqlite(&path).await;
    let client = server.v1();
    let params = client.text("m1", "acme", json!({"metadata": {"skillId": "approve"}}));
    let task = client.send(params.clone()).await;
    let id = task["id"].as_str().unwrap().to_owned();
    let reply = json!([{"text": "fine"}, {"data": {"approve": true}}, {"raw": "aGk="}]);
    let reply = client.message("m2", reply, json!({"taskId": id}));
    let waiting = client.task(&id).await;
    server.stop().await;

    let server = Server::sqlite(&path).await;
    let client = server.v1();
    let mut same = client.task(&id).await;
    same["metadata"]["openwop"]["interruptToken"] = waiting["metadata"]["openwop"]["interruptToken"].clone();
    assert_eq!(same, waiting);
    assert_eq!(client.send(params.clone()).await["id"], id);
    let mut stream = client.subscribe(&id).await;
    stream.until("task:input-required").await;
    let done = client.send(reply.clone()).await;
    assert_eq!(state_of(&done), "completed");
    assert_eq!(done["history"][2]["parts"][2]["raw"], "aGk=");
    assert_eq!(shorts(&stream.all().await).last().unwrap(), "status:completed");
    server.stop().await;

    let server = Server::sqlite(&path).await;
    let client = server.v1();
    assert_eq!(client.send(reply).await, done);
    assert_eq!(client.send(params).await, done);
    let frames = client.with("last-event-id", "0").subscribe(&id).await.all().await;
    assert_eq!(
        shorts(&frames),
        [
            "status:input-required",
            "status:working",
            "artifact:brief-0",
            "status:completed"
        ]
    );
    server.stop().await;
}

#[tokio::test]
async fn accepted_messages_stay_accepted_when_skills_change() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("wopr.db");
    let server = Server::sqlite(&path).await;
    let client = server.v1();
    let params = client.text("m", "x", json!({}));
    let task = client.send(params.clone()).await;
    server.stop().await;
    let mut config = crate::support::config();
    config.store = format!("sqlite:{}", path.display()).parse().unwrap();
    config.default_workflow = None;
    let server = Server::open(config).await;
    let client = server.v1();
    assert_eq!(client.send(params).await["id"], task["id"]);
    assert_eq!(
        client.send_err(client.text("new", "x", json!({}))).await.0,
        -32602
    );
    server.stop().await;
}
