//! Conversations at gates, over REST.

use serde_json::{Value, json};

use crate::{
    server::Server,
    workflows::{chain, node},
};

async fn events(server: &Server, run: &str) -> Vec<Value> {
    let page = server.get(&format!("/v1/runs/{run}/events/poll")).send().await;
    page.ok(200)["events"].as_array().unwrap().clone()
}

fn talk(id: &str, config: Value) -> Value {
    let mut document = chain(id, &[node("talk", "core.conversationGate", config)]);
    document["channels"] = json!({ "conversation": { "schema": { "type": "array" }, "reducer": "message" } });
    document
}

#[tokio::test]
async fn turns_keep_the_gate_open_until_it_is_closed() {
    let server = Server::start().await;
    let document = talk(
        "talks",
        json!({ "title": "Plan", "prompt": "What about {{ topic }}?" }),
    );
    server.post("/v1/workflows", &document).send().await.ok(201);
    let run = server.run("talks", json!({ "topic": "tea" })).await;
    let snapshot = server.wait_for(&run, "waiting-approval").await;
    assert_eq!(snapshot["interrupt"]["kind"], "conversation.exchange");
    assert_eq!(snapshot["interrupt"]["data"]["prompt"], "What about tea?");
    let path = format!("/v1/runs/{run}/interrupts/talk");
    let answer = |value: Value| server.post(&path, &json!({ "resumeValue": value }));
    answer(json!({ "operation": "exchange", "content": "Green.", "messageId": "m1" }))
        .send()
        .await
        .ok(200);
    answer(json!({ "content": "Green.", "messageId": "m1" }))
        .send()
        .await
        .ok(200);
    answer(json!({ "operation": "sing" }))
        .send()
        .await
        .error(400, "validation_error");
    assert_eq!(server.snapshot(&run).await["status"], "waiting-approval");
    answer(json!({ "operation": "close", "outcome": { "tea": "green" } }))
        .send()
        .await
        .ok(200);
    let ended = server.wait_for(&run, "completed").await;
    assert_eq!(ended["variables"]["talk"]["outcome"], json!({ "tea": "green" }));
    assert_eq!(ended["channels"]["conversation"].as_array().unwrap().len(), 3);
    answer(json!("too late"))
        .send()
        .await
        .error(409, "interrupt_already_resolved");

    let log = events(&server, &run).await;
    let said: Vec<_> = log
        .iter()
        .filter(|event| event["type"].as_str().unwrap().starts_with("conversation."))
        .collect();
    let types: Vec<_> = said.iter().map(|event| event["type"].as_str().unwrap()).collect();
    assert_eq!(
        types,
        [
            "conversation.opened",
            "conversation.exchanged",
            "conversation.closed"
        ]
    );
    for event in said {
        assert_eq!(event["payload"]["conversationId"], "talk:0");
    }
    let suspended = log
        .iter()
        .find(|event| event["type"] == "node.suspended")
        .unwrap();
    assert_eq!(suspended["payload"]["reason"], "conversation-input");
    assert!(
        !log.iter()
            .any(|event| event["type"].as_str().unwrap().starts_with("clarification."))
    );
}

#[tokio::test]
async fn a_scripted_conversation_runs_to_its_end() {
    let server = Server::start().await;
    let config = json!({ "lifecycle": "open-exchange-close", "mockAutoResume": true, "turnCount": 3 });
    server
        .post("/v1/workflows", &talk("scripted", config))
        .send()
        .await
        .ok(201);
    let mut channels = Vec::new();
    for _ in 0..2 {
        let run = server.run("scripted", json!({})).await;
        let snapshot = server.wait_for(&run, "completed").await;
        channels.push(snapshot["channels"]["conversation"].clone());
    }
    assert_eq!(channels[0].as_array().unwrap().len(), 8);
    assert_eq!(channels[0], channels[1]);
}

#[tokio::test]
async fn discovery_tells_of_conversations_and_memory() {
    let server = Server::start().await;
    let document = server.get("/.well-known/openwop").send().await.ok(200);
    for root in [&document, &document["capabilities"]] {
        assert_eq!(root["conversationPrimitive"], true);
        assert_eq!(root["memory"]["supported"], true);
        assert_eq!(root["agents"]["memoryBackends"], json!(["long-term"]));
        assert_eq!(root["agents"]["reasoning"]["streaming"], true);
        assert_eq!(root["conformance"]["mockAgent"], true);
    }
}
