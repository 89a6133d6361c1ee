//! The fixtures that ask the scripted model of conformance mode, and the hooks that program it.

use serde_json::{Value, json};

use crate::server::Server;

/// A fixture of the conformance suite in its shape, with the settings that matter.
fn fixture(id: &str, config: Value) -> Value {
    json!({
        "id": id, "name": id, "version": "1", "edges": [], "variables": [], "metadata": {}, "settings": {},
        "triggers": [{ "id": "manual", "type": "manual" }],
        "nodes": [{ "id": "structured-call", "typeId": "core.ai.structuredOutput", "name": "call",
            "position": { "x": 0, "y": 0 }, "config": config,
            "inputs": { "messages": { "type": "static", "value": [{ "role": "user", "content": "Please." }] } } }],
    })
}

async fn run(server: &Server, id: &str, config: Value, program: Value, status: &str) -> (Value, Vec<Value>) {
    server
        .post("/v1/workflows", &fixture(id, config))
        .send()
        .await
        .ok(201);
    server
        .post(
            "/v1/host/sample/test/mock-ai/program",
            &json!({ "nodeId": "structured-call", "program": program }),
        )
        .send()
        .await
        .ok(200);
    let made = server
        .post("/v1/runs", &json!({ "workflowId": id }))
        .send()
        .await
        .ok(201);
    let run = made["runId"].as_str().unwrap().to_owned();
    let snapshot = server.wait_for(&run, status).await;
    let path = format!("/v1/runs/{run}/events/poll?timeout=1");
    let log = server.get(&path).send().await.ok(200);
    (snapshot, log["events"].as_array().unwrap().clone())
}

fn of<'e>(events: &'e [Value], kind: &str) -> Vec<&'e Value> {
    let of = events.iter().filter(|event| event["type"] == kind);
    of.map(|event| &event["payload"]).collect()
}

fn config(more: Value) -> Value {
    let mut config = json!({
        "provider": "mock", "model": "mock-mini", "retryOnInvalidJson": 0,
        "outputSchema": { "type": "object", "required": ["valid"], "properties": { "valid": { "type": "boolean" } } },
    });
    config
        .as_object_mut()
        .unwrap()
        .extend(more.as_object().unwrap().clone());
    config
}

#[tokio::test]
async fn programmed_answers_become_envelope_events() {
    let server = Server::start().await;
    let valid = json!({ "content": "{\"valid\": true}", "stopReason": "end_turn" });
    let broken = json!({ "content": "{\"valid\": tru", "stopReason": "end_turn" });
    let cut = json!({ "content": "{\"val", "stopReason": "max_tokens", "outputTokens": 50 });

    let program = json!([broken, valid]);
    let (_, events) = run(&server, "retry", config(json!({})), program, "completed").await;
    let retried = of(&events, "envelope.retry.attempted");
    assert_eq!(retried.len(), 1);
    assert_eq!(
        (&retried[0]["attempt"], &retried[0]["reason"]),
        (&json!(2), &json!("parse-error"))
    );
    assert_eq!(of(&events, "provider.usage").len(), 2);

    let program = json!([broken, broken, broken]);
    let (snapshot, events) = run(&server, "exhausted", config(json!({})), program, "failed").await;
    assert_eq!(snapshot["error"]["code"], "envelope_payload_invalid");
    assert_eq!(of(&events, "envelope.retry.exhausted").len(), 1);

    let program = json!([{ "refusalText": "I will not say 4711", "stopReason": "safety" }]);
    let (snapshot, events) = run(&server, "refusal", config(json!({})), program, "failed").await;
    assert_eq!(snapshot["error"]["code"], "envelope_refused_by_provider");
    assert!(!snapshot["error"].to_string().contains("4711"));
    assert_eq!(
        of(&events, "envelope.refusal")[0]["refusalText"],
        "I will not say 4711"
    );
    assert!(of(&events, "envelope.retry.attempted").is_empty());

    let program = json!([cut, valid]);
    let (_, events) = run(
        &server,
        "cut",
        config(json!({ "maxTokens": 50 })),
        program,
        "completed",
    )
    .await;
    assert_eq!(of(&events, "envelope.truncated").len(), 1);
    let path = "/v1/host/sample/test/mock-ai/last-dispatch-budget?nodeId=structured-call";
    assert_eq!(server.get(path).send().await.ok(200)["maxTokens"], 100);

    let program = json!([cut, cut, cut, cut]);
    let (snapshot, events) = run(
        &server,
        "always-cut",
        config(json!({ "maxTokens": 50 })),
        program,
        "failed",
    )
    .await;
    assert_eq!(snapshot["error"]["code"], "envelope_truncation_unrecoverable");
    assert_eq!(of(&events, "cap.breached")[0]["kind"], "schema");

    let program = json!([{ "content": "```json\n{\"valid\": true}\n```", "stopReason": "end_turn" }]);
    let (_, events) = run(&server, "fenced", config(json!({})), program, "completed").await;
    assert_eq!(
        of(&events, "envelope.recovery.applied")[0]["path"],
        "markdown-fence"
    );

    let schema = json!({ "title": "TestEnvelope", "type": "object", "required": ["valid"] });
    let program = json!([{ "content": "It is valid.", "stopReason": "end_turn" }, valid]);
    let (_, events) = run(
        &server,
        "prose",
        config(json!({ "outputSchema": schema })),
        program,
        "completed",
    )
    .await;
    assert_eq!(
        of(&events, "envelope.nlToFormat.engaged")[0]["originalEnvelopeType"],
        "TestEnvelope"
    );
}

#[tokio::test]
async fn stream_text_is_streamed_token_by_token() {
    let server = Server::start().await;
    let mut workflow = fixture(
        "stream",
        json!({ "promptId": "conformance.stream-text-noop", "expectsStreaming": true }),
    );
    workflow["nodes"][0]["typeId"] = json!("core.ai.callPrompt");
    workflow["nodes"][0]["inputs"] = json!({});
    server.post("/v1/workflows", &workflow).send().await.ok(201);
    let mock =
        json!({ "id": "stream-text", "config": { "tokens": ["Hel", "lo"], "usage": { "outputTokens": 2 } } });
    let body = json!({ "workflowId": "stream", "configurable": { "mockProvider": mock } });
    let made = server.post("/v1/runs", &body).send().await.ok(201);
    let run = made["runId"].as_str().unwrap();
    server.wait_for(run, "completed").await;
    let path = format!("/v1/runs/{run}/events/poll?timeout=1");
    let log = server.get(&path).send().await.ok(200);
    let events = log["events"].as_array().unwrap();
    let chunks = of(events, "output.chunk");
    let texts: Vec<_> = chunks
        .iter()
        .map(|chunk| chunk["chunk"].as_str().unwrap())
        .collect();
    assert_eq!(texts, ["Hel", "lo", ""]);
    assert_eq!(chunks[2]["isLast"], true);
}

#[tokio::test]
async fn cache_key_does_not_depend_on_transport() {
    let server = Server::start().await;
    let plain = json!({ "provider": "p", "model": "m", "messages": [{ "role": "user", "content": "?" }] });
    let mut noisy = plain.clone();
    noisy["stream"] = json!(true);
    let key = async |body: &Value| {
        let made = server
            .post("/v1/host/sample/test/llm-cache-key", body)
            .send()
            .await
            .ok(200);
        made["cacheKey"].as_str().unwrap().to_owned()
    };
    assert_eq!(key(&plain).await, key(&noisy).await);
    server
        .post(
            "/v1/host/sample/test/llm-cache-key",
            &json!({ "provider": "p", "model": "m" }),
        )
        .send()
        .await
        .error(400, "invalid_argument");
}
