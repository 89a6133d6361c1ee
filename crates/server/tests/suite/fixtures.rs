//! Fixtures of the OpenWOP conformance suite, each run by its name over REST and held against its description, where
//! the suite is at hand. Those of supervisors and dispatches are in `orchestration.rs`.

use std::{fs, path::Path};

use serde_json::{Value, json};
use wopr_server::config::ToolServer;

use crate::{
    orchestration::{events, register},
    server::Server,
};

/// A fixture of the suite; `None` if the suite is not here.
pub(crate) fn fixture(id: &str) -> Option<Value> {
    let path = Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("../../../shared/fixtures/openwop/workflows")
        .join(format!("{id}.json"));
    let Ok(text) = fs::read(path) else {
        println!("note: the conformance fixtures are not here; {id} was not checked");
        return None;
    };
    Some(serde_json::from_slice(&text).unwrap())
}

/// Runs a fixture until it has a status.
async fn run(server: &Server, id: &str, status: &str) -> Option<Ran> {
    run_configured(server, id, json!({}), status).await
}

async fn run_configured(server: &Server, id: &str, configurable: Value, status: &str) -> Option<Ran> {
    register(server, &fixture(id)?).await;
    let body = json!({ "workflowId": id, "inputs": {}, "configurable": configurable });
    let made = server.post("/v1/runs", &body).send().await.ok(201);
    let run = made["runId"].as_str().unwrap().to_owned();
    Ran::reaching(server, run, status).await.into()
}

/// A run, and what clients see of it.
struct Ran {
    id: String,
    snapshot: Value,
    events: Vec<Value>,
}

impl Ran {
    async fn reaching(server: &Server, id: String, status: &str) -> Self {
        let snapshot = server.wait_for(&id, status).await;
        let events = events(server, &id).await;
        Self { id, snapshot, events }
    }

    fn types(&self, family: &str) -> Vec<&str> {
        let types = self.events.iter().map(|event| event["type"].as_str().unwrap());
        types.filter(|kind| kind.starts_with(family)).collect()
    }

    fn of(&self, kind: &str) -> Vec<&Value> {
        let of = self.events.iter().filter(|event| event["type"] == kind);
        of.map(|event| &event["payload"]).collect()
    }

    fn position(&self, kind: &str) -> usize {
        let at = self.events.iter().position(|event| event["type"] == kind);
        at.unwrap_or_else(|| panic!("there is {kind} in {:#?}", self.types("")))
    }

    async fn answer(&self, server: &Server, node: &str, value: Value) {
        let path = format!("/v1/runs/{}/interrupts/{node}", self.id);
        let body = json!({ "resumeValue": value });
        server.post(&path, &body).send().await.ok(200);
    }

    async fn replay(&self, server: &Server, status: &str) -> Self {
        let path = format!("/v1/runs/{}:fork", self.id);
        let body = json!({ "mode": "replay", "fromSeq": 0 });
        let forked = server.post(&path, &body).send().await.ok(201);
        let fork = forked["runId"].as_str().unwrap().to_owned();
        Self::reaching(server, fork, status).await
    }

    /// What of the events is the same in every replay.
    fn deterministic(&self) -> Vec<[Value; 3]> {
        let part = |event: &Value| {
            [
                event["type"].clone(),
                event["nodeId"].clone(),
                event["payload"].to_string().into(),
            ]
        };
        // A replay names its source where it starts.
        self.events.iter().skip(1).map(part).collect()
    }
}

/// Programs the scripted model for the node that all fixtures have.
async fn program(server: &Server, replies: Value) {
    let body = json!({ "nodeId": "structured-call", "program": replies });
    let path = "/v1/host/sample/test/mock-ai/program";
    server.post(path, &body).send().await.ok(200);
}

fn said(content: &str) -> Value {
    json!({ "content": content, "stopReason": "end_turn" })
}

fn cut(content: &str) -> Value {
    json!({ "content": content, "stopReason": "max_tokens", "outputTokens": 50 })
}

#[tokio::test]
async fn agent_reasoning() {
    let server = Server::start().await;
    let Some(ran) = run(&server, "conformance-agent-reasoning", "completed").await else {
        return;
    };
    let acts = ran.types("agent.");
    assert_eq!(
        acts,
        [
            "agent.reasoned",
            "agent.toolCalled",
            "agent.toolReturned",
            "agent.handoff",
            "agent.decided"
        ]
    );
    for kind in [
        "agent.reasoned",
        "agent.toolCalled",
        "agent.toolReturned",
        "agent.decided",
    ] {
        assert_eq!(
            ran.of(kind)[0]["agentId"],
            "core.conformance.reasoning-agent",
            "{kind}"
        );
    }
    assert_eq!(
        ran.of("agent.toolCalled")[0]["callId"],
        ran.of("agent.toolReturned")[0]["callId"]
    );
    let handoff = ran.of("agent.handoff")[0];
    assert_eq!(handoff["fromAgentId"], "core.conformance.reasoning-agent");
    assert_eq!(handoff["toAgentId"], "core.conformance.handoff-target");
    let again = ran.replay(&server, "completed").await;
    assert_eq!(again.deterministic(), ran.deterministic());
}

#[tokio::test]
async fn agent_reasoning_streaming() {
    let server = Server::start().await;
    let Some(ran) = run(&server, "conformance-agent-reasoning-streaming", "completed").await else {
        return;
    };
    let deltas = ran.of("agent.reasoning.delta");
    let sequences: Vec<_> = deltas.iter().map(|delta| &delta["sequence"]).collect();
    assert_eq!(sequences, [0, 1, 2]);
    let whole: String = deltas
        .iter()
        .map(|delta| delta["delta"].as_str().unwrap())
        .collect();
    let reasoned = ran.of("agent.reasoned");
    assert_eq!(reasoned.len(), 1);
    assert_eq!(reasoned[0]["reasoning"], whole);
    assert!(ran.position("agent.reasoned") > ran.position("agent.reasoning.delta") + 2);
}

#[tokio::test]
async fn agent_low_confidence() {
    let server = Server::start().await;
    let Some(ran) = run(&server, "conformance-agent-low-confidence", "waiting-approval").await else {
        return;
    };
    let decided = ran.position("agent.decided");
    let suspended = ran.position("node.suspended");
    assert!(decided < suspended);
    let why = &ran.events[suspended]["payload"];
    assert_eq!(
        [&why["reason"], &why["agentId"], &why["kind"]],
        [
            "low-confidence",
            "core.conformance.low-conf-decider",
            "low-confidence"
        ]
    );
    assert_eq!([&why["threshold"], &why["observed"]], [&json!(0.7), &json!(0.5)]);
    ran.answer(&server, "low-conf-decider", json!({ "ratified": true }))
        .await;
    server.wait_for(&ran.id, "completed").await;
}

#[tokio::test]
async fn agent_memory() {
    let server = Server::start().await;
    let Some(ran) = run(&server, "conformance-agent-memory-roundtrip", "completed").await else {
        return;
    };
    let entry = ran.snapshot["variables"]["memoryReadback"].as_object().unwrap();
    let known = ["id", "content", "tags", "createdAt", "expiresAt"];
    assert!(
        entry.keys().all(|name| known.contains(&name.as_str())),
        "{entry:?}"
    );
    for name in ["id", "content", "createdAt"] {
        assert!(
            entry[name].as_str().is_some_and(|text| !text.is_empty()),
            "{entry:?}"
        );
    }
    assert!(entry["tags"].is_array(), "{entry:?}");

    let ran = run(&server, "conformance-agent-memory-ttl", "completed")
        .await
        .unwrap();
    let listed = ran.snapshot["variables"]["memoryList"].as_array().unwrap();
    assert_eq!(listed.len(), 1, "{listed:#?}");
    assert!(listed[0]["expiresAt"].is_string(), "{listed:#?}");

    let ran = run(&server, "conformance-agent-memory-redaction", "completed")
        .await
        .unwrap();
    let content = &ran.snapshot["variables"]["memoryReadback"]["content"];
    assert!(
        content
            .as_str()
            .unwrap()
            .contains("[REDACTED:conformance-test-secret]"),
        "{content}"
    );

    let ran = run(&server, "conformance-agent-memory-cross-tenant", "completed")
        .await
        .unwrap();
    assert_eq!(ran.snapshot["variables"]["crossTenantProbe"], json!([]));
}

#[tokio::test]
async fn agents_of_nodes() {
    let server = Server::start().await;
    let Some(ran) = run(&server, "conformance-agent-identity", "completed").await else {
        return;
    };
    assert_eq!(
        ran.snapshot["agent"],
        json!({ "agentId": "core.conformance.identity-agent", "modelClass": "chat" })
    );
    // Nodes that pass inputs on do not act as agents.
    assert!(ran.types("agent.").is_empty());

    let ran = run(&server, "conformance-agent-pack-provenance", "completed")
        .await
        .unwrap();
    assert_eq!(
        ran.snapshot["agent"]["sourceManifestId"],
        "core.conformance.agent-pack.installed-agent"
    );
    for id in [
        "conformance-agent-pack-export",
        "conformance-agent-pack-install",
        "conformance-agent-pack-handoff-schema-validation",
    ] {
        run(&server, id, "completed").await.unwrap();
    }
    // `agents.deployment` is not offered, so a release channel cannot be resolved.
    let channel = fixture("conformance-agent-channel-dispatch").unwrap();
    server
        .post("/v1/workflows", &channel)
        .send()
        .await
        .error(400, "validation_error");
}

#[tokio::test]
async fn conversations() {
    let server = Server::start().await;
    for (id, n_turns) in [
        ("conformance-conversation-lifecycle", 4),
        ("conformance-conversation-replay", 8),
        ("conformance-conversation-vs-clarification", 4),
    ] {
        let Some(ran) = run(&server, id, "completed").await else {
            return;
        };
        let said = ran.types("conversation.");
        assert_eq!(said.len(), n_turns, "{id}");
        assert_eq!(
            (said[0], said[1], said[n_turns - 1]),
            (
                "conversation.opened",
                "conversation.exchanged",
                "conversation.closed"
            ),
            "{id}"
        );
        let all = ran
            .events
            .iter()
            .filter(|event| said.contains(&event["type"].as_str().unwrap()));
        let mut ids: Vec<_> = all.map(|event| &event["payload"]["conversationId"]).collect();
        ids.dedup();
        assert_eq!(ids.len(), 1, "{id}");
        assert!(ran.types("clarification.").is_empty(), "{id}");
        let again = ran.replay(&server, "completed").await;
        assert_eq!(
            again.snapshot["channels"].to_string(),
            ran.snapshot["channels"].to_string(),
            "{id}"
        );
        assert_eq!(again.deterministic(), ran.deterministic(), "{id}");
    }
    // `conversationPrimitive` is offered, so the gate is accepted and waits.
    let id = "conformance-conversation-capability-negotiation";
    let ran = run(&server, id, "waiting-approval").await.unwrap();
    ran.answer(&server, "convo", json!({ "operation": "close" }))
        .await;
    server.wait_for(&ran.id, "completed").await;
}

#[tokio::test]
async fn message_reducer() {
    let server = Server::start().await;
    let Some(ran) = run(&server, "conformance-message-reducer", "completed").await else {
        return;
    };
    let messages = ran.snapshot["channels"]["messages"].as_array().unwrap();
    let mut ids: Vec<_> = messages
        .iter()
        .map(|message| message["messageId"].as_str().unwrap())
        .collect();
    let n = ids.len();
    ids.sort_unstable();
    ids.dedup();
    assert_eq!((ids.len(), n), (n, ids.len()));
    // One of the writes was a repetition.
    assert_eq!(ran.types("channel.written").len(), n + 1);
}

#[tokio::test]
async fn envelopes_that_are_mended() {
    let server = Server::start().await;
    program(
        &server,
        json!([said("{\"valid\": tru"), said("{\"valid\": true}")]),
    )
    .await;
    let Some(ran) = run(&server, "conformance-envelope-retry-attempted", "completed").await else {
        return;
    };
    let retried = ran.of("envelope.retry.attempted");
    assert_eq!(retried.len(), 1);
    assert_eq!(retried[0]["attempt"], 2);
    assert_eq!(ran.of("provider.usage").len(), 2);

    program(&server, json!([cut("{\"val"), said("{\"valid\": true}")])).await;
    let ran = run(&server, "conformance-envelope-truncated", "completed")
        .await
        .unwrap();
    let truncated = ran.of("envelope.truncated");
    assert_eq!(truncated.len(), 1);
    assert_eq!(truncated[0]["stopReason"], "max_tokens");
    let path = "/v1/host/sample/test/mock-ai/last-dispatch-budget?nodeId=structured-call";
    assert_eq!(server.get(path).send().await.ok(200)["maxTokens"], 100);

    program(&server, json!([said("```json\n{\"result\":\"ok\"}\n```")])).await;
    let ran = run(&server, "conformance-envelope-recovery-applied", "completed")
        .await
        .unwrap();
    let recovered = ran.of("envelope.recovery.applied");
    assert_eq!(recovered.len(), 1);
    assert_eq!(recovered[0]["path"], "markdown-fence");
    assert!(ran.types("envelope.retry.").is_empty());
    assert_eq!(ran.of("provider.usage").len(), 1);

    // Prose until the retries are used up; then one more call, which is told the form.
    let prose = said("Here is what you asked for.");
    program(&server, json!([prose, prose, prose, said("{\"result\":\"ok\"}")])).await;
    let ran = run(&server, "conformance-envelope-nl-to-format-engaged", "completed")
        .await
        .unwrap();
    let engaged = ran.of("envelope.nlToFormat.engaged");
    assert_eq!(engaged.len(), 1, "{:#?}", ran.types(""));
    assert_eq!(engaged[0]["fallbackCalls"], 1);
    let original = engaged[0]["originalEnvelopeType"].as_str().unwrap();
    assert!(!original.is_empty());
}

#[tokio::test]
async fn envelopes_that_fail() {
    let server = Server::start().await;
    let broken = said("{\"valid\": tru");
    program(&server, json!([broken, broken, broken, broken])).await;
    let Some(ran) = run(&server, "conformance-envelope-retry-exhausted", "failed").await else {
        return;
    };
    assert_eq!(ran.snapshot["error"]["code"], "envelope_payload_invalid");
    let exhausted = ran.of("envelope.retry.exhausted");
    assert_eq!(exhausted.len(), 1);
    assert_eq!(exhausted[0]["finalReason"], "parse-error");

    let refusal = json!({ "refusalText": "I will not say 4711", "stopReason": "safety" });
    program(&server, json!([refusal])).await;
    let ran = run(&server, "conformance-envelope-refusal", "failed")
        .await
        .unwrap();
    assert_eq!(ran.snapshot["error"]["code"], "envelope_refused_by_provider");
    assert!(!ran.snapshot["error"].to_string().contains("4711"));
    assert_eq!(ran.of("envelope.refusal").len(), 1);
    assert!(ran.types("envelope.retry.").is_empty());

    let always = cut("{\"val");
    program(&server, json!([always, always, always, always, always])).await;
    let id = "conformance-envelope-truncation-cap-exhaustion";
    let ran = run(&server, id, "failed").await.unwrap();
    assert_eq!(ran.snapshot["error"]["code"], "envelope_truncation_unrecoverable");
    assert_eq!(ran.of("provider.usage").len(), 3);
    let exhausted = ran.of("envelope.retry.exhausted");
    assert_eq!(exhausted.len(), 1);
    assert_eq!(exhausted[0]["finalReason"], "truncation");
    assert_eq!(ran.of("cap.breached")[0]["kind"], "schema");
}

#[tokio::test]
async fn stream_text() {
    let server = Server::start().await;
    let mock = json!({ "mockProvider": {
        "id": "stream-text",
        "config": { "tokens": ["Hel", "lo", "!"], "finishReason": "stop",
            "usage": { "promptTokens": 2, "completionTokens": 3 } },
    } });
    let Some(ran) = run_configured(&server, "conformance-stream-text", mock, "completed").await else {
        return;
    };
    let path = format!("/v1/runs/{}/events?streamMode=messages", ran.id);
    let chunks = server.get(&path).events().await.all().await;
    let data: Vec<Value> = chunks
        .iter()
        .map(|chunk| serde_json::from_str(&chunk.data).unwrap())
        .collect();
    let payload = |chunk: &Value| chunk.get("payload").unwrap_or(chunk).clone();
    let texts: Vec<_> = data.iter().map(|chunk| payload(chunk)["chunk"].clone()).collect();
    assert_eq!(texts, ["Hel", "lo", "!"]);
    let last = payload(data.last().unwrap());
    assert_eq!(last["isLast"], true);
    assert_eq!(
        last["meta"],
        json!({
            "finishReason": "stop", "model": "mock-stream-text-v1",
            "usage": { "promptTokens": 2, "completionTokens": 3, "totalTokens": 5 },
        })
    );
    let unknown =
        json!({ "workflowId": "conformance-stream-text", "configurable": { "mockProvider": { "id": "x" } } });
    server
        .post("/v1/runs", &unknown)
        .send()
        .await
        .error(400, "unsupported_mock_provider");
}

/// A server of one tool, `echo`, in the language of `sh`.
const ECHO: &str = r#"
hear() {
    read -r line || exit 0
    id=$(printf '%s' "$line" | sed 's/^.*"id":\([0-9]*\).*$/\1/')
}
reply() {
    printf '{"jsonrpc":"2.0","id":%s,"result":%s}\n' "$id" "$1"
}
hear
reply '{"protocolVersion":"2025-11-25","capabilities":{"tools":{}},"serverInfo":{"name":"s","version":"1"}}'
read -r line
hear
reply '{"tools":[{"name":"echo","inputSchema":{"type":"object","properties":{"text":{"type":"string"}}}}]}'
hear
text=$(printf '%s' "$line" | sed 's/^.*"text":"\([^"]*\)".*$/\1/')
reply "{\"content\":[{\"type\":\"text\",\"text\":\"$text\"}]}"
hear
"#;

#[tokio::test]
async fn mcp_tool_roundtrip() {
    let server = Server::start_with(|config| {
        let mut echo = ToolServer::at("default", "http://unused.invalid/".parse().unwrap());
        echo.url = None;
        echo.command = Some("sh".to_owned());
        echo.args = vec!["-c".to_owned(), ECHO.to_owned()];
        config.mcp.servers.push(echo);
    })
    .await;
    let Some(ran) = run(&server, "conformance-mcp-tool-roundtrip", "completed").await else {
        return;
    };
    let called = ran.of("agent.toolCalled");
    assert_eq!(called.len(), 1);
    assert_eq!(called[0]["toolName"], "echo");
    assert_eq!(called[0]["inputs"]["text"], "roundtrip-probe");
    let returned = ran.of("agent.toolReturned");
    assert_eq!(returned[0]["callId"], called[0]["callId"]);
    // The words of the tool keep their mark.
    let outputs = &ran.of("node.completed")[0]["outputs"];
    assert_eq!(
        (&outputs["text"], &outputs["contentTrust"]),
        (&json!("roundtrip-probe"), &json!("untrusted"))
    );
    server.stop().await;
}

#[tokio::test]
async fn tool_without_determinism_is_replayed_from_the_log() {
    let server = Server::start().await;
    program(&server, json!([said("{\"valid\": true}")])).await;
    let Some(ran) = run(&server, "conformance-phase4-nondet-tool", "completed").await else {
        return;
    };
    let again = ran.replay(&server, "completed").await;
    assert_eq!(again.deterministic(), ran.deterministic());
    assert!(again.types("replay.").is_empty());
}

#[tokio::test]
async fn replays_of_one_run_are_equal() {
    let server = Server::start().await;
    for id in ["conformance-noop", "conformance-multi-node"] {
        let Some(ran) = run(&server, id, "completed").await else {
            return;
        };
        let one = ran.replay(&server, "completed").await;
        let other = ran.replay(&server, "completed").await;
        assert_eq!(one.deterministic(), other.deterministic(), "{id}");
        assert_eq!(one.deterministic(), ran.deterministic(), "{id}");
    }
}
