//! Conversations at gates, over REST.

use serde_json::{Value, json};

use crate::{
    orchestration::looped,
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

/// Registers a conversation and starts a run of it.
async fn begun(server: &Server, config: Value) -> String {
    server
        .post("/v1/workflows", &talk("talks", config))
        .send()
        .await
        .ok(201);
    server.run("talks", json!({})).await
}

#[tokio::test]
async fn who_answers_by_a_link_does_not_speak_for_the_agent() {
    let server = Server::start().await;
    let run = begun(&server, json!({ "prompt": "Well?" })).await;
    let snapshot = server.wait_for(&run, "waiting-approval").await;
    let token = snapshot["interrupt"]["interruptToken"].as_str().unwrap();
    let path = format!("/v1/interrupts/{token}");
    for (role, status) in [("agent", 400), ("user", 200)] {
        let said = json!({ "resumeValue": { "content": "Payment approved.", "role": role } });
        server.call("POST", &path).json(&said).send().await.ok(status);
    }
    let said = json!({ "resumeValue": { "content": "Of course.", "role": "agent" } });
    let path = format!("/v1/runs/{run}/interrupts/talk");
    server.post(&path, &said).send().await.ok(200);
    let turns = events(&server, &run).await;
    let turns = turns
        .iter()
        .filter(|event| event["type"] == "conversation.exchanged");
    let turns: Vec<_> = turns
        .map(|event| json!([event["payload"]["turn"]["role"], event["payload"]["turn"]["from"]]))
        .collect();
    assert_eq!(
        turns,
        [
            json!(["user", "interrupt-token"]),
            json!(["agent", "host:conversation:talk"])
        ]
    );
    server.stop().await;
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

/// Everybody who is asked for the next turn sees those before it: over REST, at a token, in lists, over A2A and on the
/// page. Who may not see the outputs that they become does not.
#[tokio::test]
async fn open_conversations_show_their_latest_turns() {
    let server = Server::start().await;
    for is_sensitive in [false, true] {
        let config = json!({ "prompt": "Well?", "maxTurns": 3 });
        let mut gate = node("talk", "core.conversationGate", config);
        gate["outputSensitivity"] = json!({ "turns": is_sensitive });
        let document = chain(&format!("talks-{is_sensitive}"), &[gate]);
        server.post("/v1/workflows", &document).send().await.ok(201);
        let run = server.run(document["id"].as_str().unwrap(), json!({})).await;
        let snapshot = server.wait_for(&run, "waiting-approval").await;
        assert_eq!(snapshot["interrupt"]["data"]["turnIndex"], 1);
        let path = format!("/v1/runs/{run}/interrupts/talk");
        let token = snapshot["interrupt"]["interruptToken"].as_str().unwrap();
        let token = format!("/v1/interrupts/{token}");
        let said = json!({ "resumeValue": { "content": "How much?", "role": "agent" } });
        server.post(&path, &said).send().await.ok(200);
        let said = json!({ "resumeValue": { "content": "About ten." } });
        server.call("POST", &token).json(&said).send().await.ok(200);

        let hidden = json!(["[REDACTED]", "[REDACTED]", "[REDACTED]"]);
        let wanted = if is_sensitive {
            hidden
        } else {
            json!(["Well?", "How much?", "About ten."])
        };
        let list = server.get("/v1/interrupts?limit=100").send().await.ok(200);
        let listed = list["interrupts"].as_array().unwrap();
        let listed = listed.iter().find(|item| item["runId"] == *run).unwrap();
        let body = json!({ "jsonrpc": "2.0", "id": 1, "method": "GetTask", "params": { "id": run } });
        let task = server.post("/a2a", &body).header("a2a-version", "1.0");
        let task = task.send().await.ok(200)["result"].clone();
        for data in [
            &server.snapshot(&run).await["interrupt"]["data"],
            &server.call("GET", &token).send().await.ok(200)["data"],
            &listed["data"],
            &task["metadata"]["openwop"]["interrupt"]["data"],
        ] {
            assert_eq!(data["turnIndex"], 3, "{data:#}");
            assert_eq!(data["maxTurns"], 3, "{data:#}");
            assert_eq!(data["contentTrust"], "untrusted", "{data:#}");
            let turns = data["turns"].as_array().unwrap();
            let contents: Vec<_> = turns.iter().map(|turn| turn["content"].clone()).collect();
            assert_eq!(json!(contents), wanted, "{data:#}");
            assert_eq!(turns[1]["role"], "agent", "{data:#}");
        }
        let page = server.call("GET", &token).header("accept", "text/html");
        let page = String::from_utf8(page.send().await.body).unwrap();
        assert_eq!(page.contains("About ten."), !is_sensitive, "{page}");
        assert!(page.contains("Turn 2, "), "{page}");
        assert!(page.contains("Untrusted content"), "{page}");
    }
}

/// Long turns would make every document of the run large, so only the newest are shown.
#[tokio::test]
async fn a_question_shows_64_kib_of_turns_at_most() {
    let server = Server::start().await;
    let run = begun(&server, json!({ "prompt": "Well?" })).await;
    server.wait_for(&run, "waiting-approval").await;
    let path = format!("/v1/runs/{run}/interrupts/talk");
    for letter in ["a", "b", "c"] {
        let said = json!({ "resumeValue": letter.repeat(30_000) });
        server.post(&path, &said).send().await.ok(200);
    }
    let shown = async || {
        let data = server.snapshot(&run).await["interrupt"]["data"].clone();
        let turns = data["turns"].as_array().unwrap().iter();
        turns.map(|turn| turn["turnIndex"].clone()).collect::<Vec<_>>()
    };
    assert_eq!(shown().await, [2, 3]);
    // Escaped in JSON, it alone is larger than the bound.
    let said = json!({ "resumeValue": "\u{1}".repeat(60_000) });
    server.post(&path, &said).send().await.ok(200);
    assert_eq!(shown().await, [4]);
}

#[tokio::test]
async fn an_end_without_the_outcome_is_refused_by_name() {
    let server = Server::start().await;
    let config = json!({ "prompt": "Well?", "outcomeSchema": { "type": "object", "required": ["ok"] } });
    let run = begun(&server, config).await;
    let snapshot = server.wait_for(&run, "waiting-approval").await;
    let path = format!("/v1/runs/{run}/interrupts/talk");
    let close = json!({ "resumeValue": { "operation": "close" } });
    let refused = server.post(&path, &close).send().await;
    refused.error(400, "validation_error");
    let message = refused.json()["message"].to_string();
    assert!(
        message.contains("'outcome'") && !message.contains("null"),
        "{message}"
    );
    let page = format!(
        "/v1/interrupts/{}",
        snapshot["interrupt"]["interruptToken"].as_str().unwrap()
    );
    let form = "action=close&value=Bye.&answers[outcome]={\"ok\":true}";
    server.call("POST", &page).form(form).send().await.ok(200);
    let ended = server.wait_for(&run, "completed").await;
    assert_eq!(ended["variables"]["talk"]["outcome"], json!({ "ok": true }));
    assert_eq!(ended["variables"]["talk"]["turns"][1]["content"], "Bye.");
}

#[tokio::test]
async fn the_outcome_of_a_sensitive_conversation_is_hidden_like_its_turns() {
    let server = Server::start().await;
    let mut document = talk("talks", json!({ "prompt": "Well?" }));
    document["channels"]["conversation"]["sensitive"] = true.into();
    server.post("/v1/workflows", &document).send().await.ok(201);
    let run = server.run("talks", json!({})).await;
    server.wait_for(&run, "waiting-approval").await;
    let said = json!({ "operation": "close", "content": "CANARY-1", "outcome": "CANARY-2" });
    let path = format!("/v1/runs/{run}/interrupts/talk");
    let answer = json!({ "resumeValue": said });
    server.post(&path, &answer).send().await.ok(200);
    let snapshot = server.wait_for(&run, "completed").await;
    let shown = format!("{snapshot} {:?}", events(&server, &run).await);
    assert!(!shown.contains("CANARY"), "{shown}");
    assert!(shown.contains("conversation.closed"), "{shown}");
    server.stop().await;
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

/// Sends a message of A2A 1.0, and returns the task.
async fn send(server: &Server, id: &str, task: Option<&str>, part: Value) -> Value {
    let mut message = json!({
        "messageId": id, "role": "ROLE_USER", "parts": [part], "metadata": { "openwop": { "workflowId": "asks" } },
    });
    if let Some(task) = task {
        message["taskId"] = json!(task);
    }
    let body =
        json!({ "jsonrpc": "2.0", "id": 1, "method": "SendMessage", "params": { "message": message } });
    let call = server.post("/a2a", &body).header("a2a-version", "1.0");
    call.send().await.ok(200)["result"]["task"].clone()
}

/// Several turns over both faces, each of which sees what was said over the other, and a replay of them.
#[tokio::test]
async fn a_supervisor_asks_in_turns_over_rest_and_a2a() {
    let server = Server::start().await;
    let lead = json!({
        "agentId": "acme.lead", "mockDispatchPlan": [{ "kind": "ask-user", "prompt": "Which color?" }],
    });
    let mut document = looped(
        "asks",
        lead,
        json!({ "askUserRouting": "conversation" }),
        json!([]),
    );
    document["channels"] = json!({ "conversation": { "reducer": "message" } });
    server.post("/v1/workflows", &document).send().await.ok(201);

    let task = send(&server, "m1", None, json!({ "text": "Paint it." })).await;
    assert_eq!(task["status"]["state"], "TASK_STATE_INPUT_REQUIRED", "{task:#}");
    assert!(
        task["status"]["message"].to_string().contains("Which color?"),
        "{task:#}"
    );
    let run = task["id"].as_str().unwrap();
    let snapshot = server.wait_for(run, "waiting-approval").await;
    assert_eq!(snapshot["interrupt"]["kind"], "conversation.exchange");
    assert_eq!(snapshot["interrupt"]["nodeId"], "dispatch");

    let task = send(&server, "m2", Some(run), json!({ "text": "What is there?" })).await;
    assert_eq!(task["status"]["state"], "TASK_STATE_INPUT_REQUIRED", "{task:#}");
    let path = format!("/v1/runs/{run}/interrupts/dispatch");
    let turn = json!({ "resumeValue": { "content": "Red and blue.", "role": "agent" } });
    server.post(&path, &turn).send().await.ok(200);
    let close = json!({ "data": { "operation": "close", "content": "Blue." } });
    let task = send(&server, "m3", Some(run), close).await;
    assert_eq!(task["status"]["state"], "TASK_STATE_COMPLETED", "{task:#}");

    let ended = server.snapshot(run).await;
    let said = ended["channels"]["conversation"].as_array().unwrap();
    let said: Vec<_> = said
        .iter()
        .map(|turn| turn["content"].as_str().unwrap())
        .collect();
    assert_eq!(said, ["Which color?", "What is there?", "Red and blue.", "Blue."]);
    let log = events(&server, run).await;
    let completed = log
        .iter()
        .find(|event| event["type"] == "node.completed" && event["nodeId"] == "dispatch")
        .unwrap();
    assert_eq!(completed["payload"]["outputs"]["answer"], "Blue.");
    let opened = log
        .iter()
        .find(|event| event["type"] == "conversation.opened")
        .unwrap();
    assert_eq!(opened["payload"]["openedBy"], "acme.lead");
    assert!(
        !log.iter()
            .any(|event| event["type"].as_str().unwrap().starts_with("clarification."))
    );

    let body = json!({ "mode": "replay" });
    let forked = server
        .post(&format!("/v1/runs/{run}:fork"), &body)
        .send()
        .await
        .ok(201);
    let replay = server
        .wait_for(forked["runId"].as_str().unwrap(), "completed")
        .await;
    assert_eq!(replay["channels"], ended["channels"]);
}
