//! Calls to models over each wire: requests, whole and streamed answers, failures, and what must not come back.

use std::sync::{Arc, Mutex};

use serde_json::{Value, json};
use wopr_connect::{
    Executors, Mock, MockReply, ModelKind, NamedSecret, NamedSecrets, Options, Price, Provider, ProviderKey,
    SecretSource,
};
use wopr_core::{ModelCall, ModelMessage, ModelReply, ModelStop, ModelTool, Produced, TenantId, ToolCall};
use wopr_engine::{Attempt, Executor as _, HttpCall, Outcome, Progress, Report, Request};
use wopr_wire::a2a::model::Secret;

use crate::{
    executors::attempt,
    peer::{Answers, Peer, Script, answer, gate, gate_with, limits},
};

const LOOPBACK: &str = "127.0.0.0/8";
const KEY: &str = "sk-test-SECRET-0123456789";

fn provider(kind: ModelKind, peer: &Peer) -> Provider {
    Provider {
        name: "default".to_owned(),
        kind,
        base_url: peer.url("").parse().unwrap(),
        key: ProviderKey::Secret(Secret::new(KEY.to_owned()).unwrap()),
        model: Some("m-1".to_owned()),
        tenants: Vec::new(),
        price: Some(Price {
            input: 2.0,
            output: 10.0,
        }),
    }
}

fn executors(provider: Provider) -> Executors {
    let options = Options {
        models: vec![provider],
        ..Options::default()
    };
    Executors::new(gate(LOOPBACK), options)
}

fn call(streams: bool) -> ModelCall {
    ModelCall {
        provider: "default".to_owned(),
        model: None,
        messages: vec![
            ModelMessage::System {
                content: "Be brief.".to_owned(),
            },
            ModelMessage::User {
                content: "Find it.".to_owned(),
            },
            ModelMessage::Assistant {
                content: String::new(),
                tool_calls: vec![ToolCall {
                    id: "c1".to_owned(),
                    name: "search".to_owned(),
                    arguments: json!({ "q": "it" }),
                    signature: None,
                }],
            },
            ModelMessage::Tool {
                call_id: "c1".to_owned(),
                name: "search".to_owned(),
                content: "found".to_owned(),
                is_error: false,
            },
        ],
        tools: vec![ModelTool {
            name: "search".to_owned(),
            description: "Searches.".to_owned(),
            schema: json!({ "type": "object" }),
        }],
        temperature: Some(0.0),
        max_tokens: Some(100),
        schema: None,
        streams,
        script: None,
        timeout_ms: 20_000,
        granted: Vec::new(),
        has_run_budget: false,
    }
}

/// The pieces that an attempt records, and its report.
async fn ask(executors: &Executors, call: ModelCall) -> (Vec<String>, Outcome) {
    let said = Arc::new(Mutex::new(Vec::new()));
    let heard = Arc::clone(&said);
    let progress = Progress::new(move |produced| {
        let heard = Arc::clone(&heard);
        Box::pin(async move {
            heard.lock().unwrap().extend(produced.iter().map(text));
            Ok(())
        })
    });
    let attempt = Attempt {
        progress,
        ..attempt(Request::Model(Box::new(call)))
    };
    let outcome = match executors.run(attempt).await {
        Report::Ended(outcome) => outcome,
        Report::Produced { produced, then, .. } => {
            said.lock().unwrap().extend(produced.iter().map(text));
            match *then {
                Report::Ended(outcome) => outcome,
                other => panic!("{other:?}"),
            }
        }
        other => panic!("{other:?}"),
    };
    let said = said.lock().unwrap().clone();
    (said, outcome)
}

fn text(produced: &Produced) -> String {
    match produced {
        Produced::Chunk { text, .. } => text.clone(),
        Produced::Artifact { .. } => panic!("no artifact is made"),
    }
}

fn reply(outcome: Outcome) -> ModelReply {
    match outcome {
        Outcome::Done(reply) => serde_json::from_value(reply).unwrap(),
        other => panic!("{other:?}"),
    }
}

/// The body of the request that a peer got.
async fn body(peer: &mut Peer) -> (String, Value) {
    let request = peer.next_request().await;
    let (head, body) = request.split_once("\r\n\r\n").unwrap();
    (head.to_ascii_lowercase(), serde_json::from_str(body).unwrap())
}

fn json_answer(document: &Value) -> Script {
    Script::Answer(answer(
        200,
        &["content-type: application/json"],
        &document.to_string(),
    ))
}

fn events(data: &[Value]) -> Script {
    let events: String = data.iter().map(|event| format!("data: {event}\n\n")).collect();
    Script::Answer(answer(200, &["content-type: text/event-stream"], &events))
}

#[tokio::test]
async fn openai_wire_is_spoken() {
    let mut peer = Peer::start(json_answer(&json!({
        "model": "m-1-2026",
        "choices": [{ "finish_reason": "tool_calls", "message": {
            "content": null,
            "tool_calls": [{ "id": "c2", "function": { "name": "search", "arguments": "{\"q\":1}" } }],
        } }],
        "usage": { "prompt_tokens": 1_000_000, "completion_tokens": 100_000 },
    })))
    .await;
    let executors = executors(provider(ModelKind::OpenAi, &peer));
    let (said, outcome) = ask(&executors, call(false)).await;
    let reply = reply(outcome);
    assert!(said.is_empty());
    assert_eq!(
        (reply.provider.as_str(), reply.model.as_str()),
        ("default", "m-1-2026")
    );
    assert_eq!(
        (reply.stop, reply.tool_calls[0].name.as_str()),
        (ModelStop::Tools, "search")
    );
    assert_eq!(reply.tool_calls[0].arguments, json!({ "q": 1 }));
    assert_eq!(reply.usage.cost_usd, Some(3.0));
    let (head, body) = body(&mut peer).await;
    assert!(head.starts_with("post /chat/completions http/1.1"), "{head}");
    assert!(
        head.contains(&format!("authorization: bearer {}", KEY.to_ascii_lowercase())),
        "{head}"
    );
    assert!(head.contains("idempotency-key: key-1"), "{head}");
    assert_eq!(body["model"], "m-1");
    assert_eq!(
        body["messages"][2]["tool_calls"][0]["function"]["arguments"],
        "{\"q\":\"it\"}"
    );
    assert_eq!(
        body["messages"][3],
        json!({ "role": "tool", "tool_call_id": "c1", "content": "found" })
    );
    assert_eq!(body["tools"][0]["function"]["name"], "search");
    assert_eq!(body["max_tokens"], 100);
}

#[tokio::test]
async fn anthropic_wire_is_spoken() {
    let mut peer = Peer::start(json_answer(&json!({
        "type": "message", "model": "m-1", "stop_reason": "end_turn",
        "content": [{ "type": "thinking", "thinking": "hm" }, { "type": "text", "text": "It is here." }],
        "usage": { "input_tokens": 5, "cache_read_input_tokens": 7, "output_tokens": 3 },
    })))
    .await;
    let executors = executors(provider(ModelKind::Anthropic, &peer));
    let (_, outcome) = ask(&executors, call(false)).await;
    let reply = reply(outcome);
    assert_eq!((reply.text.as_str(), reply.stop), ("It is here.", ModelStop::End));
    assert_eq!(reply.reasoning.as_deref(), Some("hm"));
    assert_eq!(
        (reply.usage.input_tokens, reply.usage.cache_read_tokens),
        (12, Some(7))
    );
    let (head, body) = body(&mut peer).await;
    assert!(head.starts_with("post /v1/messages http/1.1"), "{head}");
    assert!(
        head.contains("x-api-key: ") && head.contains("anthropic-version: 2023-06-01"),
        "{head}"
    );
    assert_eq!(body["system"], "Be brief.");
    assert_eq!(body["messages"].as_array().unwrap().len(), 3);
    assert_eq!(body["messages"][1]["content"][0]["input"], json!({ "q": "it" }));
    assert_eq!(body["messages"][2]["content"][0]["tool_use_id"], "c1");
    assert_eq!(body["tools"][0]["input_schema"], json!({ "type": "object" }));
}

#[tokio::test]
async fn gemini_wire_is_spoken() {
    let mut peer = Peer::start(json_answer(&json!({
        "modelVersion": "m-1-001",
        "candidates": [{ "finishReason": "MAX_TOKENS", "content": { "parts": [
            { "text": "hm", "thought": true }, { "text": "It is" },
        ] } }],
        "usageMetadata": { "promptTokenCount": 5, "candidatesTokenCount": 2, "thoughtsTokenCount": 1 },
    })))
    .await;
    let executors = executors(provider(ModelKind::Gemini, &peer));
    let asked = ModelCall {
        schema: Some(json!({ "type": "object" })),
        model: Some("odd/name".to_owned()),
        tools: Vec::new(),
        ..call(false)
    };
    let (_, outcome) = ask(&executors, asked).await;
    let reply = reply(outcome);
    assert_eq!((reply.text.as_str(), reply.stop), ("It is", ModelStop::Length));
    assert_eq!(reply.reasoning.as_deref(), Some("hm"));
    assert_eq!(reply.usage.output_tokens, 3);
    let (head, body) = body(&mut peer).await;
    assert!(
        head.starts_with("post /v1beta/models/odd%2fname:generatecontent http/1.1"),
        "{head}"
    );
    assert!(head.contains("x-goog-api-key: "), "{head}");
    assert_eq!(body["systemInstruction"]["parts"][0]["text"], "Be brief.");
    assert_eq!(body["contents"][1]["role"], "model");
    assert_eq!(
        body["contents"][2]["parts"][0]["functionResponse"]["response"],
        json!({ "result": "found" })
    );
    assert_eq!(
        body["generationConfig"]["responseJsonSchema"],
        json!({ "type": "object" })
    );
}

#[tokio::test]
async fn streamed_answers_become_pieces_and_a_whole() {
    let delta = |text: &str| json!({ "choices": [{ "delta": { "content": text } }] });
    let long = "x".repeat(5_000);
    let openai = events(&[
        delta("Hel"),
        delta(&long),
        json!({ "choices": [{ "delta": { "tool_calls": [
            { "index": 0, "id": "c", "function": { "name": "search", "arguments": "{\"q\":" } },
        ] } }] }),
        json!({ "choices": [{ "delta": { "tool_calls": [{ "index": 0, "function": { "arguments": "1}" } }] } }] }),
        json!({ "choices": [{ "delta": {}, "finish_reason": "stop" }], "model": "m" }),
        json!({ "choices": [], "usage": { "prompt_tokens": 4, "completion_tokens": 2 } }),
    ]);
    let anthropic = events(&[
        json!({ "type": "message_start", "message": { "model": "m", "usage": { "input_tokens": 4 } } }),
        json!({ "type": "content_block_start", "index": 0, "content_block": { "type": "text", "text": "" } }),
        json!({ "type": "content_block_delta", "delta": { "type": "text_delta", "text": "Hel" } }),
        json!({ "type": "content_block_delta", "delta": { "type": "text_delta", "text": long } }),
        json!({ "type": "content_block_start", "content_block": { "type": "tool_use", "id": "c", "name": "search" } }),
        json!({ "type": "content_block_delta", "delta": { "type": "input_json_delta", "partial_json": "{\"q\":1}" } }),
        json!({ "type": "message_delta", "delta": { "stop_reason": "end_turn" }, "usage": { "output_tokens": 2 } }),
        json!({ "type": "message_stop" }),
    ]);
    let parts = |text: &str| json!({ "candidates": [{ "content": { "parts": [{ "text": text }] } }] });
    let gemini = events(&[
        parts("Hel"),
        parts(&long),
        json!({
            "candidates": [{ "finishReason": "STOP", "content": { "parts": [
                { "functionCall": { "name": "search", "args": { "q": 1 } } },
            ] } }],
            "usageMetadata": { "promptTokenCount": 4, "candidatesTokenCount": 2 },
        }),
    ]);
    for (kind, script) in [
        (ModelKind::OpenAi, openai),
        (ModelKind::Anthropic, anthropic),
        (ModelKind::Gemini, gemini),
    ] {
        let peer = Peer::start(script).await;
        let executors = executors(provider(kind, &peer));
        let (said, outcome) = ask(&executors, call(true)).await;
        let reply = reply(outcome);
        assert_eq!(reply.text, format!("Hel{long}"), "{kind:?}");
        assert_eq!(said.concat(), reply.text, "{kind:?}");
        assert!(said.len() > 1, "{kind:?}: {}", said.len());
        assert_eq!(reply.tool_calls[0].arguments, json!({ "q": 1 }), "{kind:?}");
        assert_eq!(
            (reply.usage.input_tokens, reply.usage.output_tokens),
            (4, 2),
            "{kind:?}"
        );
    }
}

#[tokio::test]
async fn key_that_comes_back_is_redacted_even_between_two_pieces() {
    let (first, second) = KEY.split_at(10);
    let delta = |text: &str| json!({ "choices": [{ "delta": { "content": text } }] });
    let long = "x".repeat(5_000);
    let peer = Peer::start(events(&[
        delta(&format!("{long}{first}")),
        delta(&format!("{second}{long}")),
        json!({ "choices": [{ "delta": { "refusal": KEY }, "finish_reason": "stop" }] }),
    ]))
    .await;
    let executors = executors(provider(ModelKind::OpenAi, &peer));
    let (said, outcome) = ask(&executors, call(true)).await;
    let reply = reply(outcome);
    assert_eq!(reply.text, format!("{long}[redacted]{long}"));
    assert_eq!(said.concat(), reply.text);
    assert_eq!(
        (reply.stop, reply.refusal.as_deref()),
        (ModelStop::Refusal, Some("[redacted]"))
    );
}

/// The text of a model is read as JSON later, where an escape becomes the character.
#[tokio::test]
async fn key_that_comes_back_in_json_escapes_is_redacted_even_between_two_pieces() {
    let escaped: String = KEY
        .chars()
        .map(|letter| format!("\\u{:04X}", u32::from(letter)))
        .collect();
    let mixed = format!("{}{}", &KEY[..7], &escaped[7 * 6..]);
    let twice = escaped.replace('\\', "\\\\");
    let delta = |text: &str| json!({ "choices": [{ "delta": { "content": text } }] });
    let long = "x".repeat(5_000);
    for spelled in [&escaped, &mixed, &twice] {
        for cut in [1, 3, 20, 63, spelled.len() - 1] {
            let (first, second) = spelled.split_at(cut);
            let peer = Peer::start(events(&[
                delta(&format!("{long}{{\"k\":\"{first}")),
                delta(&format!("{second}\"}}{long}")),
                json!({ "choices": [{ "delta": { "tool_calls": [{ "index": 0, "id": "c",
                    "function": { "name": "t", "arguments": format!("{{\"a\":\"{spelled}\"}}") } }] },
                    "finish_reason": "tool_calls" }] }),
            ]))
            .await;
            let executors = executors(provider(ModelKind::OpenAi, &peer));
            let (said, outcome) = ask(&executors, call(true)).await;
            let reply = reply(outcome);
            let expected = format!("{long}{{\"k\":\"[redacted]\"}}{long}");
            assert_eq!(reply.text, expected, "{spelled} at {cut}");
            assert_eq!(said.concat(), reply.text, "{spelled} at {cut}");
            assert_eq!(reply.tool_calls[0].arguments, json!({ "a": "[redacted]" }));
        }
    }
}

#[tokio::test]
async fn failures_have_codes_and_hide_what_was_said() {
    let kinds = |code: &str, retryable: bool| (code.to_owned(), retryable);
    let ok = &["content-type: application/json"][..];
    for (script, expected) in [
        (
            answer(401, ok, "{\"error\":\"SECRET\"}"),
            kinds("model_call_rejected", false),
        ),
        (
            answer(429, &["retry-after: 7"], "SECRET"),
            kinds("model_call_failed", true),
        ),
        (answer(529, ok, "SECRET"), kinds("model_call_failed", true)),
        (answer(200, ok, "SECRET"), kinds("model_call_failed", true)),
        (
            answer(200, ok, "{\"choices\":[]}"),
            kinds("model_call_failed", true),
        ),
        (
            answer(307, &["location: http://x/"], ""),
            kinds("model_call_rejected", false),
        ),
    ] {
        for streams in [false, true] {
            // An empty stream is no answer.
            let peer = Peer::start(Script::AnswerAndClose(script.clone())).await;
            let (_, outcome) = ask(&executors(provider(ModelKind::OpenAi, &peer)), call(streams)).await;
            let Outcome::Failed {
                code,
                message,
                retryable,
                retry_after,
                ..
            } = outcome
            else {
                panic!("{script}: {outcome:?}");
            };
            assert_eq!((code, retryable), expected, "{script}");
            assert!(!message.contains("SECRET"), "{message}");
            assert_eq!(retry_after.is_some(), script.contains("retry-after"));
        }
    }
}

#[tokio::test]
async fn event_stream_under_the_name_of_json_is_read() {
    let delta = json!({ "choices": [{ "delta": { "content": "Hi" }, "finish_reason": "stop" }] });
    let body = format!("data: {delta}\n\ndata: [DONE]\n\n");
    let script = answer(200, &["content-type: application/json"], &body);
    let peer = Peer::start(Script::AnswerAndClose(script)).await;
    let (_, outcome) = ask(&executors(provider(ModelKind::OpenAi, &peer)), call(true)).await;
    assert_eq!(reply(outcome).text, "Hi");
}

#[tokio::test]
async fn failures_name_the_code_of_the_provider_and_not_its_words() {
    let too_long = json!({ "error": { "message": "PROMPT is too long", "code": "context_length_exceeded" } });
    let rejected = answer(400, &["content-type: application/json"], &too_long.to_string());
    let overloaded = json!({ "type": "error", "error": { "type": "overloaded_error", "message": "PROMPT" } });
    let broken = format!("data: {overloaded}\n\n");
    let broken = answer(200, &["content-type: text/event-stream"], &broken);
    let whole = answer(200, &["content-type: application/json"], &overloaded.to_string());
    for (kind, script, streams, expected) in [
        (
            ModelKind::OpenAi,
            &rejected,
            true,
            "answered 400 (context_length_exceeded)",
        ),
        (
            ModelKind::OpenAi,
            &rejected,
            false,
            "answered 400 (context_length_exceeded)",
        ),
        (
            ModelKind::OpenAi,
            &broken,
            true,
            "ended its answer with an error (overloaded_error)",
        ),
        (
            ModelKind::Anthropic,
            &broken,
            true,
            "ended its answer with an error (overloaded_error)",
        ),
        (
            ModelKind::Gemini,
            &whole,
            false,
            "ended its answer with an error (overloaded_error)",
        ),
    ] {
        let peer = Peer::start(Script::AnswerAndClose(script.clone())).await;
        let (_, outcome) = ask(&executors(provider(kind, &peer)), call(streams)).await;
        let Outcome::Failed { message, .. } = outcome else {
            panic!("{script}: {outcome:?}");
        };
        assert_eq!(message, format!("the model provider {expected}"));
    }
}

#[tokio::test]
async fn provider_that_does_not_stream_is_understood() {
    let document = json!({
        "model": "m-1", "choices": [{ "message": { "content": "Found." }, "finish_reason": "stop" }],
        "usage": { "prompt_tokens": 7, "completion_tokens": 2 },
    });
    let peer = Peer::start(json_answer(&document)).await;
    let (said, outcome) = ask(&executors(provider(ModelKind::OpenAi, &peer)), call(true)).await;
    assert_eq!(said, ["Found."]);
    let reply = reply(outcome);
    assert_eq!((&*reply.text, reply.usage.input_tokens), ("Found.", 7));
}

#[tokio::test]
async fn answers_are_bounded() {
    let huge = "x".repeat((1 << 20) + 10);
    let whole = json!({ "choices": [{ "message": { "content": huge }, "finish_reason": "stop" }] });
    let peer = Peer::start(json_answer(&whole)).await;
    let (_, outcome) = ask(&executors(provider(ModelKind::OpenAi, &peer)), call(false)).await;
    assert!(
        matches!(&outcome, Outcome::Failed { code, .. } if code == "response_too_large"),
        "{outcome:?}"
    );

    let chunk = json!({ "choices": [{ "delta": { "content": "x".repeat(100_000) } }] });
    let peer = Peer::start(events(&vec![chunk; 12])).await;
    let (said, outcome) = ask(&executors(provider(ModelKind::OpenAi, &peer)), call(true)).await;
    assert!(
        matches!(&outcome, Outcome::Failed { code, .. } if code == "response_too_large"),
        "{outcome:?}"
    );
    assert!(said.concat().len() <= 1 << 20);

    let endless = Script::Flood("HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n".to_owned());
    let peer = Peer::start(endless).await;
    for streams in [false, true] {
        let (_, outcome) = ask(&executors(provider(ModelKind::OpenAi, &peer)), call(streams)).await;
        assert!(
            matches!(&outcome, Outcome::Failed { retryable: false, .. }),
            "{outcome:?}"
        );
    }
}

#[tokio::test]
async fn the_address_of_one_provider_is_not_open_to_the_name_of_another() {
    let mut peer = Peer::start(json_answer(&json!({}))).await;
    let local = Provider {
        name: "local".to_owned(),
        ..provider(ModelKind::OpenAi, &peer)
    };
    let mut named = provider(ModelKind::OpenAi, &peer);
    named.base_url.set_host(Some("models.test")).unwrap();
    let options = Options {
        models: vec![local, named],
        ..Options::default()
    };
    let resolver = Answers::new(&[&["127.0.0.1"]]);
    let executors = Executors::new(gate_with("", limits(), resolver), options);
    let (_, outcome) = ask(&executors, call(false)).await;
    assert!(
        matches!(&outcome, Outcome::Failed { code, .. } if code == "egress_refused"),
        "{outcome:?}"
    );
    assert!(peer.rest().is_empty());
    let of_local = ModelCall {
        provider: "local".to_owned(),
        ..call(false)
    };
    let _ = ask(&executors, of_local).await;
    assert!(!peer.rest().is_empty(), "its own address is open");
}

#[tokio::test]
async fn providers_without_key_model_or_permission_are_not_called() {
    let mut peer = Peer::start(json_answer(&json!({}))).await;
    let with = |change: fn(&mut Provider)| {
        let mut provider = provider(ModelKind::OpenAi, &peer);
        change(&mut provider);
        executors(provider)
    };
    for (executors, expected) in [
        (with(|p| p.name = "other".to_owned()), "model_provider_unknown"),
        (
            with(|p| p.tenants = vec![TenantId::parse("acme").unwrap()]),
            "model_provider_unknown",
        ),
        (with(|p| p.model = None), "model_unknown"),
        (
            with(|p| {
                p.key = ProviderKey::Missing {
                    source: "MY_KEY".to_owned(),
                }
            }),
            "credential_missing",
        ),
    ] {
        let (_, outcome) = ask(&executors, call(false)).await;
        assert!(
            matches!(&outcome, Outcome::Failed { code, .. } if code == expected),
            "{outcome:?}"
        );
    }
    let sealed = Executors::new(
        gate(LOOPBACK).sealed(),
        Options {
            models: vec![provider(ModelKind::OpenAi, &peer)],
            ..Options::default()
        },
    );
    let (_, outcome) = ask(&sealed, call(true)).await;
    assert!(
        matches!(&outcome, Outcome::Failed { code, .. } if code == "egress_refused"),
        "{outcome:?}"
    );
    assert!(peer.rest().is_empty());
}

#[tokio::test]
async fn mock_answers_by_program_and_exists_only_if_it_is_there() {
    let mock = Mock::default();
    let options = Options {
        mock: Some(mock.clone()),
        ..Options::default()
    };
    let executors = Executors::new(gate(LOOPBACK), options);
    let asked = || ModelCall {
        provider: "mock".to_owned(),
        ..call(false)
    };
    let programmed = MockReply {
        text: "one".to_owned(),
        stop: ModelStop::Length,
        refusal: None,
        input_tokens: 1,
        output_tokens: 2,
    };
    mock.program("call", vec![programmed]).unwrap();
    let first = reply(ask(&executors, asked()).await.1);
    assert_eq!((first.text.as_str(), first.stop), ("one", ModelStop::Length));
    assert_eq!(mock.last_budget("call"), Some(100));
    // After its program it says nothing.
    assert_eq!(reply(ask(&executors, asked()).await.1).text, "");

    let script = json!({ "id": "stream-text", "config": { "tokens": ["a", "b"], "finishReason": "stop" } });
    let (said, outcome) = ask(
        &executors,
        ModelCall {
            script: Some(script),
            ..asked()
        },
    )
    .await;
    assert_eq!(
        (said, reply(outcome).text),
        (vec!["a".to_owned(), "b".to_owned()], "ab".to_owned())
    );

    let without = Executors::new(gate(LOOPBACK), Options::default());
    let (_, outcome) = ask(&without, asked()).await;
    assert!(
        matches!(&outcome, Outcome::Failed { code, .. } if code == "model_provider_unknown"),
        "{outcome:?}"
    );
}

#[tokio::test]
async fn secret_header_is_sent_to_its_hosts_and_redacted_where_it_comes_back() {
    let mut peer = Peer::start(Script::Answer(answer(
        200,
        &["content-type: application/json"],
        &format!("{{\"you sent\": \"Bearer {KEY}\"}}"),
    )))
    .await;
    let secret = |hosts: &[&str]| {
        NamedSecrets::new(vec![NamedSecret {
            name: "api".to_owned(),
            source: SecretSource::Value(Secret::new(KEY.to_owned()).unwrap()),
            hosts: hosts.iter().map(|host| (*host).to_owned()).collect(),
            tenants: Vec::new(),
        }])
    };
    let run = async |secrets: NamedSecrets, name: &str| {
        let executors = Executors::new(
            gate(LOOPBACK),
            Options {
                secrets,
                ..Options::default()
            },
        );
        let call = HttpCall {
            method: "GET".to_owned(),
            url: peer.url("/"),
            headers: Vec::new(),
            secret_headers: vec![wopr_core::SecretHeader {
                name: "authorization".to_owned(),
                secret: name.to_owned(),
                prefix: "Bearer ".to_owned(),
            }],
            body: None,
            timeout_ms: 20_000,
        };
        match executors.run(attempt(Request::Http(call))).await {
            Report::Ended(outcome) => outcome,
            other => panic!("{other:?}"),
        }
    };
    let Outcome::Done(outputs) = run(secret(&["127.0.0.1"]), "api").await else {
        panic!("not done");
    };
    assert_eq!(outputs["body"], json!({ "you sent": "Bearer [redacted]" }));
    for (hosts, name) in [
        (&["example.com"][..], "api"),
        (&["127.0.0.1"], "other"),
        (&[], "api"),
    ] {
        let outcome = run(secret(hosts), name).await;
        assert!(
            matches!(&outcome, Outcome::Failed { code, retryable: false, .. } if code == "credential_refused"),
            "{outcome:?}"
        );
    }
    let request = peer.next_request().await;
    assert!(request.contains(&format!("Bearer {KEY}")), "{request}");
    assert!(
        peer.rest()
            .iter()
            .all(|seen| !format!("{seen:?}").contains("Request"))
    );
}

/// What a model asks for: two tools at the same time, the second one with arguments that are no JSON.
fn both(reply: &ModelReply) -> Vec<(&str, &Value)> {
    let calls = reply.tool_calls.iter();
    calls.map(|call| (call.name.as_str(), &call.arguments)).collect()
}

#[tokio::test]
async fn an_answer_that_its_provider_broke_off_is_asked_for_again() {
    let gemini = json!({ "candidates": [{ "content": { "parts": [{ "text": "par" }] },
        "finishReason": "MALFORMED_FUNCTION_CALL", "finishMessage": KEY }] });
    let openai = json!({ "choices": [{ "message": { "content": "par" }, "delta": { "content": "par" },
        "finish_reason": "error" }] });
    for (kind, document, code) in [
        (ModelKind::Gemini, &gemini, "MALFORMED_FUNCTION_CALL"),
        (ModelKind::OpenAi, &openai, "error"),
    ] {
        let whole = json_answer(document);
        let streamed = events(std::slice::from_ref(document));
        for (streams, script) in [(false, whole), (true, streamed)] {
            let peer = Peer::start(script).await;
            let executors = executors(provider(kind, &peer));
            let (_, outcome) = ask(&executors, call(streams)).await;
            let words = format!("the model provider ended its answer with an error ({code})");
            let is_told = matches!(&outcome, Outcome::Failed { code, message, retryable: true, .. }
                if code == "model_call_failed" && *message == words);
            assert!(is_told, "{kind:?} {streams}: {outcome:?}");
        }
    }
}

#[tokio::test]
async fn parallel_tools_arrive_in_pieces_over_every_wire() {
    let openai = [
        json!({ "model": "m-1", "choices": [{ "delta": { "tool_calls": [
            { "index": 0, "id": "a", "function": { "name": "search", "arguments": "" } },
            { "index": 1, "id": "b", "function": { "name": "find", "arguments": "{\"q\"" } },
        ] } }] }),
        json!({ "choices": [{ "delta": { "tool_calls": [{ "index": 0, "function": { "arguments": "{\"q\":" } }] } }] }),
        json!({ "choices": [{ "delta": { "tool_calls": [{ "index": 0, "function": { "arguments": "1}" } }] } }] }),
        json!({ "choices": [{ "delta": {}, "finish_reason": "tool_calls" }] }),
    ];
    let block = |index: u32, id: &str, name: &str| {
        json!({ "type": "content_block_start", "index": index,
            "content_block": { "type": "tool_use", "id": id, "name": name, "input": {} } })
    };
    let more = |index: u32, json: &str| {
        json!({ "type": "content_block_delta", "index": index,
            "delta": { "type": "input_json_delta", "partial_json": json } })
    };
    let anthropic = [
        json!({ "type": "message_start", "message": { "model": "m-1", "usage": { "input_tokens": 1 } } }),
        block(0, "a", "search"),
        more(0, "{\"q\":"),
        more(0, "1}"),
        block(1, "b", "find"),
        more(1, "{\"q\""),
        json!({ "type": "message_delta", "delta": { "stop_reason": "tool_use" }, "usage": { "output_tokens": 2 } }),
    ];
    for (kind, data) in [
        (ModelKind::OpenAi, &openai[..]),
        (ModelKind::Anthropic, &anthropic[..]),
    ] {
        let peer = Peer::start(events(data)).await;
        let executors = executors(provider(kind, &peer));
        let (_, outcome) = ask(&executors, call(true)).await;
        let reply = reply(outcome);
        assert_eq!(reply.stop, ModelStop::Tools, "{kind:?}");
        let (known, broken) = (json!({ "q": 1 }), json!("{\"q\""));
        assert_eq!(both(&reply), [("search", &known), ("find", &broken)], "{kind:?}");
    }
}

#[tokio::test]
async fn gemini_gets_the_signature_of_its_calls_again() {
    let function = |name: &str| json!({ "functionCall": { "name": name, "args": { "q": 1 } } });
    let mut signed = function("search");
    signed["thoughtSignature"] = "sig".into();
    let data = [
        json!({ "candidates": [{ "finishReason": "STOP", "content": { "parts": [signed, function("find")] } }] }),
    ];
    let mut peer = Peer::start(events(&data)).await;
    let executors = executors(provider(ModelKind::Gemini, &peer));
    let (_, outcome) = ask(&executors, call(true)).await;
    let reply = reply(outcome);
    assert_eq!((reply.stop, reply.tool_calls.len()), (ModelStop::Tools, 2));
    assert_eq!(reply.tool_calls[0].signature.as_deref(), Some("sig"));
    drop(body(&mut peer).await);

    let result = |id: &str, is_error: bool| ModelMessage::Tool {
        call_id: id.to_owned(),
        name: "search".to_owned(),
        content: "found".to_owned(),
        is_error,
    };
    let mut again = call(true);
    again.messages = vec![
        ModelMessage::Assistant {
            content: String::new(),
            tool_calls: reply.tool_calls,
        },
        result("a", false),
        result("b", true),
    ];
    drop(ask(&executors, again).await);
    let (_, body) = body(&mut peer).await;
    let parts = &body["contents"][0]["parts"];
    assert_eq!(parts[0]["thoughtSignature"], "sig");
    assert!(parts[1].get("thoughtSignature").is_none(), "{parts}");
    let results = &body["contents"][1]["parts"];
    assert_eq!(
        results[1]["functionResponse"]["response"],
        json!({ "error": "found" })
    );
}
