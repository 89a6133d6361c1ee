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
    let prose = json!({ "content": "It is valid.", "stopReason": "end_turn" });
    let program = json!([prose, prose, prose, valid]);
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

/// Registers the workflow `stream`, whose node asks the mock for a text.
async fn register_stream(server: &Server) {
    let mut workflow = fixture(
        "stream",
        json!({ "promptId": "conformance.stream-text-noop", "expectsStreaming": true }),
    );
    workflow["nodes"][0]["typeId"] = json!("core.ai.callPrompt");
    workflow["nodes"][0]["inputs"] = json!({});
    server.post("/v1/workflows", &workflow).send().await.ok(201);
}

#[tokio::test]
async fn stream_text_is_streamed_token_by_token() {
    let server = Server::start().await;
    register_stream(&server).await;
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
    assert_eq!(texts, ["Hel", "lo"]);
    assert_eq!(
        (&chunks[0]["isLast"], &chunks[1]["isLast"]),
        (&json!(false), &json!(true))
    );
    assert_eq!((&chunks[0]["index"], &chunks[1]["index"]), (&json!(0), &json!(1)));
}

/// The defaults and ranges of section 7.9.
#[tokio::test]
async fn stream_text_has_the_defaults_of_the_specification_and_refuses_the_rest() {
    let server = Server::start().await;
    register_stream(&server).await;
    let body = |config: Value| {
        let mock = json!({ "id": "stream-text", "config": config });
        json!({ "workflowId": "stream", "configurable": { "mockProvider": mock } })
    };
    for (config, texts, model, usage) in [
        (
            json!({}),
            vec!["mock", " response"],
            "mock-stream-text-v1",
            [1, 2],
        ),
        (
            json!({ "tokens": ["one"], "model": "mine", "usage": { "promptTokens": 7 } }),
            vec!["one"],
            "mine",
            [7, 1],
        ),
        (json!({ "tokens": [] }), vec![""], "mock-stream-text-v1", [1, 0]),
    ] {
        let made = server.post("/v1/runs", &body(config)).send().await.ok(201);
        let run = made["runId"].as_str().unwrap();
        let snapshot = server.wait_for(run, "completed").await;
        // The published schema has no other members.
        assert_eq!(
            snapshot["metrics"]["openwopCost"]["tokens"],
            json!({ "input": usage[0], "output": usage[1] })
        );
        let path = format!("/v1/runs/{run}/events/poll?timeout=1");
        let log = server.get(&path).send().await.ok(200);
        let chunks = of(log["events"].as_array().unwrap(), "output.chunk");
        let said: Vec<_> = chunks
            .iter()
            .map(|chunk| chunk["chunk"].as_str().unwrap())
            .collect();
        assert_eq!(said, texts);
        let is_last: Vec<_> = chunks.iter().map(|chunk| chunk["isLast"] == true).collect();
        assert_eq!(is_last.iter().filter(|is_last| **is_last).count(), 1);
        let last = chunks.last().unwrap();
        assert_eq!(
            (&last["isLast"], &last["meta"]["model"]),
            (&json!(true), &json!(model))
        );
        assert_eq!(last["meta"]["usage"]["promptTokens"], usage[0]);
        assert_eq!(last["meta"]["usage"]["completionTokens"], usage[1]);
    }
    for (config, field) in [
        (json!("x"), "config"),
        (json!({ "tokens": "x" }), "config.tokens"),
        (json!({ "tokens": [1] }), "config.tokens"),
        (json!({ "delayMsPerToken": 5001 }), "config.delayMsPerToken"),
        (json!({ "delayMsPerToken": -1 }), "config.delayMsPerToken"),
        (json!({ "delayMsPerToken": 1.5 }), "config.delayMsPerToken"),
        (json!({ "finishReason": "bored" }), "config.finishReason"),
        (json!({ "usage": { "promptTokens": "1" } }), "config.usage"),
        (json!({ "model": 1 }), "config.model"),
    ] {
        let refused = server.post("/v1/runs", &body(config)).send().await;
        let field = format!("configurable.mockProvider.{field}");
        assert_eq!(refused.error(400, "validation_error")["field"], field);
    }
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

async fn program(server: &Server, replies: Value) {
    let body = json!({ "nodeId": "structured-call", "program": replies });
    let path = "/v1/host/sample/test/mock-ai/program";
    server.post(path, &body).send().await.ok(200);
}

/// Replays a run, and returns the replay's snapshot and its events.
async fn replay(server: &Server, run: &str, status: &str) -> (Value, Vec<Value>) {
    let path = format!("/v1/runs/{run}:fork");
    let forked = server
        .post(&path, &json!({ "mode": "replay" }))
        .send()
        .await
        .ok(201);
    let fork = forked["runId"].as_str().unwrap().to_owned();
    let snapshot = server.wait_for(&fork, status).await;
    (snapshot, crate::forks::events(server, &fork).await)
}

fn end(events: &[Value]) -> Vec<&str> {
    let kinds = events.iter().map(|event| event["type"].as_str().unwrap());
    kinds.collect::<Vec<_>>().split_off(events.len() - 3)
}

/// Replays ask the scripted model again, and only whether it refuses counts (RFC 0041, section B).
#[tokio::test]
async fn a_replay_ends_where_the_scripted_model_refuses_or_answers_instead() {
    let server = Server::start().await;
    let answer = json!({ "content": "{\"valid\": true}", "stopReason": "end_turn" });
    let other = json!({ "content": "{\"valid\": false}", "stopReason": "end_turn" });
    let refusal = json!({ "refusalText": "I will not", "stopReason": "safety" });
    for (first, then, status, kinds) in [
        (&answer, &refusal, "completed", ["valid", "refusal"]),
        (&refusal, &answer, "failed", ["refusal", "valid"]),
    ] {
        let id = format!("refusing-{status}");
        let (source, log) = run(&server, &id, config(json!({})), json!([first]), status).await;
        let source = source["runId"].as_str().unwrap();
        // An empty program says nothing, so the record stands.
        let (_, again) = replay(&server, source, status).await;
        assert_eq!(again.len(), log.len());
        assert!(of(&again, "replay.divergedAtRefusal").is_empty());
        // So does it if the model answers otherwise, but answers.
        let same = if *first == refusal { &refusal } else { &other };
        program(&server, json!([same])).await;
        let (_, again) = replay(&server, source, status).await;
        let payloads = |events: &[Value]| -> Vec<Value> {
            events
                .iter()
                .skip(1)
                .map(|event| event["payload"].clone())
                .collect()
        };
        assert_eq!(payloads(&again), payloads(&log));

        program(&server, json!([then])).await;
        let (snapshot, events) = replay(&server, source, "failed").await;
        assert_eq!(
            snapshot["error"]["code"], "replay_diverged_at_refusal",
            "{snapshot:#}"
        );
        let ended = log
            .iter()
            .find(|event| event["type"] == "vendor.wopr.effect.ended")
            .unwrap();
        assert_eq!(
            of(&events, "replay.divergedAtRefusal"),
            [&json!({
                "sourceRunId": source,
                "atSequence": ended["sequence"],
                "nodeId": "structured-call",
                "originalEventId": ended["eventId"],
                "originalEnvelopeKind": kinds[0],
                "replayEnvelopeKind": kinds[1],
                "refusalReason": "I will not",
            })]
        );
        assert_eq!(
            end(&events),
            ["replay.divergedAtRefusal", "node.failed", "run.failed"]
        );
        assert_eq!(snapshot["forkedFrom"]["divergedAtSeq"], ended["sequence"]);
        // A branch asks for itself, and has no source to differ from.
        program(&server, json!([then])).await;
        let path = format!("/v1/runs/{source}:fork");
        let body = json!({ "mode": "branch", "fromSeq": 0 });
        let branch = server.post(&path, &body).send().await.ok(201);
        let branch = branch["runId"].as_str().unwrap().to_owned();
        let expected = if kinds[1] == "valid" {
            "completed"
        } else {
            "failed"
        };
        server.wait_for(&branch, expected).await;
    }
    server.stop().await;
}

/// A repetition of a request is no second fork, so it asks the scripted model nothing.
#[tokio::test]
async fn a_replay_that_is_asked_for_twice_asks_the_scripted_model_once() {
    let server = Server::start().await;
    let answer = json!({ "content": "{\"valid\": true}", "stopReason": "end_turn" });
    let refusal = json!({ "refusalText": "I will not", "stopReason": "safety" });
    let (source, _) = run(
        &server,
        "repeated",
        config(json!({})),
        json!([answer]),
        "completed",
    )
    .await;
    let source = source["runId"].as_str().unwrap();
    program(&server, json!([answer, refusal])).await;
    let fork = server.post(&format!("/v1/runs/{source}:fork"), &json!({ "mode": "replay" }));
    let fork = fork.header("idempotency-key", "k1");
    let first = fork.send().await.ok(201);
    assert_eq!(fork.send().await.ok(201), first);
    server
        .wait_for(first["runId"].as_str().unwrap(), "completed")
        .await;
    // The next fork gets the next reply.
    let (snapshot, _) = replay(&server, source, "failed").await;
    assert_eq!(snapshot["error"]["code"], "replay_diverged_at_refusal");
    server.stop().await;
}

#[tokio::test]
async fn calls_of_models_have_keys_that_any_client_can_compute() {
    let server = Server::start().await;
    let answer = json!({ "content": "{\"valid\": true}", "stopReason": "end_turn" });
    let (_, first) = run(&server, "keyed", config(json!({})), json!([answer]), "completed").await;
    let (_, second) = run(
        &server,
        "keyed-too",
        config(json!({})),
        json!([answer]),
        "completed",
    )
    .await;
    let (_, hotter) = run(
        &server,
        "hot",
        config(json!({ "temperature": 0.9 })),
        json!([answer]),
        "completed",
    )
    .await;
    let key = |events: &[Value]| of(events, "vendor.wopr.effect.ended")[0]["cacheKey"].clone();
    assert_eq!(key(&first), key(&second));
    assert_ne!(key(&first), key(&hotter));
    // The seam computes the same key of what the model was asked.
    let schema = &config(json!({}))["outputSchema"];
    let form =
        format!("Answer with one JSON document that matches this JSON Schema, and nothing else:\n{schema}");
    let asked = json!([{ "role": "system", "content": form }, { "role": "user", "content": "Please." }]);
    let call = json!({
        "provider": "mock", "model": "mock-mini", "messages": asked, "maxOutputTokens": 4096,
        "responseFormat": { "type": "json_schema", "schema": schema },
    });
    let path = "/v1/host/sample/test/llm-cache-key";
    let computed = server.post(path, &call).send().await.ok(200);
    assert_eq!(computed["cacheKey"], key(&first));
    server.stop().await;
}

/// The steps of the conformance scenario, with its own definition, if that is there.
#[tokio::test]
async fn the_fixture_of_refusals_in_replays_ends_as_documented() {
    const ID: &str = "conformance-phase4-replay-divergence";
    let path = std::path::Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("../../../shared/fixtures/openwop/workflows")
        .join(format!("{ID}.json"));
    let Ok(text) = std::fs::read_to_string(path) else {
        println!("note: the conformance fixtures are not here; nothing was checked");
        return;
    };
    let server = Server::start().await;
    let document: Value = serde_json::from_str(&text).unwrap();
    server.post("/v1/workflows", &document).send().await.ok(201);
    let answer = json!({ "content": "{\"valid\":true}", "stopReason": "end_turn" });
    program(&server, json!([answer])).await;
    let source = server.run(ID, json!({})).await;
    server.wait_for(&source, "completed").await;
    program(&server, json!([{ "refusalText": "no", "stopReason": "safety" }])).await;
    let (snapshot, events) = replay(&server, &source, "failed").await;
    assert_eq!(snapshot["error"]["code"], "replay_diverged_at_refusal");
    let diverged = of(&events, "replay.divergedAtRefusal");
    assert_eq!(diverged.len(), 1);
    assert_eq!(diverged[0]["nodeId"], "structured-call");
    server.stop().await;
}
