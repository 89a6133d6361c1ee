//! The bound on what a model that leads is told again, as clients see it: the scripted model of conformance mode leads.

use serde_json::{Value, json};

use crate::{
    orchestration::looped,
    server::Server,
    workflows::{chain, node},
};

fn says(content: &Value) -> Value {
    json!({ "content": content.to_string(), "stopReason": "end_turn" })
}

async fn events(server: &Server, run: &str) -> Vec<Value> {
    let path = format!("/v1/runs/{run}/events/poll?timeout=1");
    let log = server.get(&path).send().await.ok(200);
    log["events"].as_array().unwrap().clone()
}

fn of<'e>(events: &'e [Value], kind: &str) -> Vec<&'e Value> {
    events.iter().filter(|event| event["type"] == kind).collect()
}

/// What of a log two runs have in common.
fn payloads(events: &[Value]) -> Vec<String> {
    let events = events.iter().skip(1);
    let text = |event: &Value| format!("{} {} {}", event["type"], event["nodeId"], event["payload"]);
    events.map(text).collect()
}

#[tokio::test]
async fn summary_is_an_artifact_that_an_event_names_and_a_replay_takes_over() {
    let server = Server::start().await;
    let words = "x".repeat(5_000);
    let talker = chain(
        "talker",
        &[node("say", "core.template", json!({ "template": words }))],
    );
    server.post("/v1/workflows", &talker).send().await.ok(201);
    let supervisor = json!({
        "agentId": "planner",
        "model": { "provider": "mock", "prompt": "Find facts." },
        "workers": [{ "id": "talker" }],
        "contextBudget": {
            "transcriptTokenBudget": 16_500, "tokenCounter": "chars", "summarization": { "keepLastTurns": 1 },
        },
    });
    let loops = looped("crowded", supervisor, json!({}), json!([]));
    server.post("/v1/workflows", &loops).send().await.ok(201);
    let mut sensitive = loops.clone();
    sensitive["id"] = json!("sensitive");
    sensitive["variables"] = json!([{ "name": "patient", "type": "string", "sensitive": true }]);
    server.post("/v1/workflows", &sensitive).send().await.ok(201);
    let next = says(&json!({
        "kind": "next-worker", "nextWorkerIds": ["talker"], "confidence": 0.9, "reasoning": "",
    }));
    let done =
        says(&json!({ "kind": "terminate", "reason": "goal-reached", "confidence": 0.9, "reasoning": "" }));
    let summary = json!({ "content": "Facts were found.", "stopReason": "end_turn" });
    let program = json!({
        "nodeId": "supervisor", "program": [next, next, next, next, summary, done],
    });
    server
        .post("/v1/host/sample/test/mock-ai/program", &program)
        .send()
        .await
        .ok(200);
    let run = server.run("crowded", json!({})).await;
    server.wait_for(&run, "completed").await;
    let log = events(&server, &run).await;

    let summarized = of(&log, "context.summarized");
    assert_eq!(summarized.len(), 1, "{log:#?}");
    let payload = &summarized[0]["payload"];
    let members: Vec<_> = payload.as_object().unwrap().keys().cloned().collect();
    let closed = [
        "iteration",
        "replacedTurns",
        "summaryRef",
        "tokenCounter",
        "tokensAfter",
        "tokensBefore",
    ];
    assert_eq!(members, closed);
    assert_eq!(
        (&payload["iteration"], &payload["tokenCounter"]),
        (&json!(5), &json!("chars"))
    );
    assert!(payload["tokensBefore"].as_u64() > Some(16_500), "{payload}");
    assert!(payload["tokensAfter"].as_u64() <= Some(16_500), "{payload}");
    // The events that the summary stands for: three decisions, and the ends of the dispatches that followed.
    let replaced: Vec<_> = payload["replacedTurns"].as_array().unwrap().iter().collect();
    let known = |id: &Value| log.iter().find(|event| event["eventId"] == *id).unwrap()["type"].clone();
    let kinds: Vec<_> = replaced.iter().map(|id| known(id)).collect();
    let turn = [json!("runOrchestrator.decided"), json!("node.completed")];
    assert_eq!(kinds, [turn.clone(), turn.clone(), turn].concat());
    let path = format!(
        "/v1/runs/{run}/artifacts/{}",
        payload["summaryRef"].as_str().unwrap()
    );
    let artifact = server.get(&path).send().await.ok(200);
    assert_eq!(artifact["content"], "Facts were found.");
    assert_eq!(artifact["artifactType"], "context.summary");

    // Nobody programs the model again, so a replay that asked it would get nothing.
    for from in [0, summarized[0]["sequence"].as_u64().unwrap()] {
        let fork = json!({ "mode": "replay", "fromSeq": from });
        let fork = server
            .post(&format!("/v1/runs/{run}:fork"), &fork)
            .send()
            .await
            .ok(201);
        let fork = fork["runId"].as_str().unwrap().to_owned();
        server.wait_for(&fork, "completed").await;
        let children = |log: &[Value]| {
            let children = of(log, "node.dispatched").into_iter();
            let children = children.map(|event| event["payload"]["childRunId"].as_str().unwrap().to_owned());
            children.collect::<Vec<_>>()
        };
        let repeated = events(&server, &fork).await;
        assert_eq!(children(&log), children(&repeated));
        assert_eq!(payloads(&log), payloads(&repeated));
        let path = path.replace(&run, &fork);
        assert_eq!(
            server.get(&path).send().await.ok(200)["content"],
            artifact["content"]
        );
    }

    // A branch from within asks again: the model has nothing more to say, and its decisions stand for the turns.
    let composed = of(&log, "vendor.wopr.prompt.composed");
    let from = composed.last().unwrap()["sequence"].as_u64().unwrap() + 1;
    let fork = json!({ "mode": "branch", "fromSeq": from });
    server
        .post(
            "/v1/host/sample/test/mock-ai/program",
            &json!({ "nodeId": "supervisor", "program": [json!({ "content": "", "stopReason": "end_turn" }), done] }),
        )
        .send()
        .await
        .ok(200);
    let fork = server
        .post(&format!("/v1/runs/{run}:fork"), &fork)
        .send()
        .await
        .ok(201);
    let fork = fork["runId"].as_str().unwrap().to_owned();
    server.wait_for(&fork, "completed").await;
    let artifact = server.get(&path.replace(&run, &fork)).send().await.ok(200);
    let text = artifact["content"].as_str().unwrap();
    assert!(
        text.starts_with("The model gave no summary of these decisions"),
        "{text}"
    );

    // What may repeat a sensitive value is shown to nobody.
    server
        .post("/v1/host/sample/test/mock-ai/program", &program)
        .send()
        .await
        .ok(200);
    let run = server.run("sensitive", json!({})).await;
    server.wait_for(&run, "completed").await;
    let log = events(&server, &run).await;
    let summary = &of(&log, "context.summarized")[0]["payload"]["summaryRef"];
    let path = format!("/v1/runs/{run}/artifacts/{}", summary.as_str().unwrap());
    assert_eq!(server.get(&path).send().await.ok(200)["content"], "[REDACTED]");
    server.stop().await;
}

/// A host without a provider has no supervisor that reads a transcript.
#[tokio::test]
async fn budget_is_advertised_where_a_model_can_lead() {
    let budget = |document: &Value| document["multiAgent"]["executionModel"]["contextBudget"].clone();
    let server = Server::start().await;
    let document = server.call("GET", "/.well-known/openwop").send().await.ok(200);
    assert_eq!(budget(&document), Value::Null);
    server.stop().await;

    let server = Server::start_with(|config| {
        config.models = serde_json::from_value(json!([
            { "name": "default", "kind": "openai", "base_url": "http://127.0.0.1:9", "model": "m" },
        ]))
        .unwrap();
    })
    .await;
    let document = server.call("GET", "/.well-known/openwop").send().await.ok(200);
    let expected = json!({
        "transcriptTokenBudget": 181_500, "tokenCounter": "chars",
        "summarization": { "supported": true, "strategy": "recursive", "keepLastTurns": 1 },
    });
    assert_eq!(budget(&document), expected);
    assert_eq!(budget(&document["capabilities"]), expected);
    server.stop().await;
}
