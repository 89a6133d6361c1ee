//! Several questions of one agent at once, answered one after the other where they are shown.

use std::sync::Arc;

use serde_json::{Value, json};

use crate::{
    agents::{Hosts, INTERFACES, asked, invoke, know, outputs},
    server::Server,
    workflows::{chain, node},
};

/// Asks for a colour, an approval and a size at the same time.
fn order() -> Value {
    let ask = |id: &str, question: &str| {
        let questions = json!([{ "id": id, "question": question }]);
        node(id, "core.clarificationGate", json!({ "questions": questions }))
    };
    let gate = json!({ "title": "Ship it?", "actions": ["accept", "reject"] });
    let template = json!({ "template": "{{ nodes.colour.answers }} {{ nodes.size.answers }}" });
    let mut said = node("said", "core.template", template);
    said["artifactType"] = json!("text");
    let nodes = [
        ask("colour", "Which colour?"),
        node("ship", "core.approvalGate", gate),
        ask("size", "Which size?"),
        said,
    ];
    let edge = |from: &str| json!({ "id": from, "sourceNodeId": from, "targetNodeId": "said" });
    let mut document = chain("order", &nodes);
    document["edges"] = json!([edge("colour"), edge("ship"), edge("size")]);
    document
}

/// Answers the three questions where a run shows them, and checks that they were taken the first time.
async fn answer_all(server: &Server, run: &str) {
    for id in ["ask:0", "ask:0:1", "ask:0:2"] {
        let interrupt = asked(server, run, id).await;
        assert!(interrupt["data"].get("refusal").is_none(), "{interrupt:#}");
        let answer = match interrupt["data"]["message"].as_str().unwrap() {
            "Which colour?" => "green",
            "Ship it?" => "accept",
            "Which size?" => "large",
            other => panic!("{other}"),
        };
        let answer = json!({ "interruptId": id, "resumeValue": { "answers": { "answer": answer } } });
        let path = format!("/v1/runs/{run}/interrupts/ask");
        server.post(&path, &answer).send().await.ok(200);
    }
    server.wait_for(run, "completed").await;
    let text = outputs(server, run).await["text"].to_string();
    assert!(text.contains("green") && text.contains("large"), "{text}");
}

#[tokio::test]
async fn questions_that_an_agent_asks_at_once_are_answered_one_by_one_over_every_binding_and_version() {
    let hosts = Hosts::start().await;
    hosts.callee.post("/v1/workflows", &order()).send().await.ok(201);
    for (binding, version) in INTERFACES {
        let config = json!({ "skill": "order", "binding": binding, "protocolVersion": version });
        let run = hosts.ask(config, json!({})).await;
        answer_all(&hosts.caller, &run).await;
    }
}

#[tokio::test]
async fn questions_that_a_third_host_asks_at_once_are_answered_one_by_one_at_the_first() {
    let Hosts {
        caller: middle,
        callee: last,
        folder,
    } = Hosts::start().await;
    last.post("/v1/workflows", &order()).send().await.ok(201);
    let mut relay = chain(
        "relay",
        &[node("relay", "core.a2a.invoke", json!({ "skill": "order" }))],
    );
    relay["metadata"] = json!({ "public": true });
    relay["nodes"][0]["artifactType"] = json!("text");
    middle.post("/v1/workflows", &relay).send().await.ok(201);
    let (address, known) = (middle.address.to_string(), Arc::clone(&folder));
    let first = Server::start_with(move |config| know(config, "default", &address, &known)).await;
    first
        .post("/v1/workflows", &invoke(json!({ "skill": "relay" })))
        .send()
        .await
        .ok(201);
    let run = first.run("ask", json!({})).await;
    answer_all(&first, &run).await;
}

#[tokio::test]
async fn turns_of_an_agents_conversation_are_shown_and_taken_one_after_the_other() {
    let hosts = Hosts::start().await;
    let gate = json!({ "prompt": "Talk to me.", "maxTurns": 10 });
    let talk = chain("talk", &[node("talk", "core.conversationGate", gate)]);
    hosts.callee.post("/v1/workflows", &talk).send().await.ok(201);
    let run = hosts.ask(json!({ "skill": "talk" }), json!({})).await;
    for (n, (id, turn)) in [
        ("ask:0", json!("first")),
        ("ask:0:1", json!({ "content": "second" })),
        ("ask:0:2", json!({ "operation": "close" })),
    ]
    .into_iter()
    .enumerate()
    {
        let interrupt = asked(&hosts.caller, &run, id).await;
        let shown = &interrupt["data"]["parts"][1]["data"];
        assert_eq!(shown["turnIndex"], n + 1, "{interrupt:#}");
        assert_eq!(
            shown.to_string().contains("first"),
            n > 0,
            "the turns so far are shown: {interrupt:#}"
        );
        let answer = json!({ "interruptId": id, "resumeValue": turn });
        let path = format!("/v1/runs/{run}/interrupts/ask");
        hosts.caller.post(&path, &answer).send().await.ok(200);
    }
    hosts.caller.wait_for(&run, "completed").await;
}

#[tokio::test]
async fn approval_that_stays_open_at_an_agent_is_asked_anew() {
    let hosts = Hosts::start().await;
    let gate = json!({ "title": "Ship it?", "actions": ["accept", "reject", "ask"] });
    let ship = chain("ship", &[node("ship", "core.approvalGate", gate)]);
    hosts.callee.post("/v1/workflows", &ship).send().await.ok(201);
    let run = hosts.ask(json!({ "skill": "ship" }), json!({})).await;
    for (id, answer) in [
        ("ask:0", json!({ "action": "ask", "question": "Why?" })),
        ("ask:0:1", json!({ "action": "accept" })),
    ] {
        let interrupt = asked(&hosts.caller, &run, id).await;
        assert_eq!(interrupt["data"]["message"], "Ship it?", "{interrupt:#}");
        let answer = json!({ "interruptId": id, "resumeValue": answer });
        let path = format!("/v1/runs/{run}/interrupts/ask");
        hosts.caller.post(&path, &answer).send().await.ok(200);
    }
    hosts.caller.wait_for(&run, "completed").await;
}
