//! Agents over REST: who a run is at, what agents do, and decisions that wait for a verdict.

use serde_json::{Value, json};

use crate::{
    server::{READER, Server},
    workflows::{chain, node},
};

const MOCK: &str = "core.conformance.mock-agent";

/// A workflow of one node that is pinned to an agent.
fn agent(id: &str, type_id: &str, config: Value, agent: Value) -> Value {
    let mut pinned = node("think", type_id, config);
    pinned["agent"] = agent;
    chain(id, &[pinned])
}

async fn events(server: &Server, run: &str) -> Vec<Value> {
    let page = server.get(&format!("/v1/runs/{run}/events/poll")).send().await;
    page.ok(200)["events"].as_array().unwrap().clone()
}

fn of_agents(events: &[Value]) -> Vec<&Value> {
    let is_agents = |event: &&Value| event["type"].as_str().unwrap().starts_with("agent.");
    events.iter().filter(is_agents).collect()
}

#[tokio::test]
async fn events_of_an_agent_name_it_and_pair_its_calls() {
    let server = Server::start().await;
    let document = agent(
        "reasons",
        MOCK,
        json!({
            "mockReasoning": { "summary": "Decomposed.", "streamChunks": ["One. ", "Two."] },
            "mockToolCalls": [{ "toolId": "openwop.echo:echo", "arguments": { "x": 1 }, "result": { "x": 1 } }],
            "mockHandoff": { "toAgentId": "acme.writer", "reason": "it writes" },
            "mockDecision": { "decision": { "next": "done" }, "confidence": 1 },
        }),
        json!({ "agentId": "acme.reader", "name": "Reader", "modelClass": "reasoning", "version": "1.0" }),
    );
    server.post("/v1/workflows", &document).send().await.ok(201);
    let run = server.run("reasons", json!({})).await;
    let snapshot = server.wait_for(&run, "completed").await;
    assert_eq!(
        snapshot["agent"],
        json!({ "agentId": "acme.reader", "name": "Reader", "modelClass": "reasoning", "version": "1.0" })
    );
    let events = events(&server, &run).await;
    let acts = of_agents(&events);
    let types: Vec<_> = acts.iter().map(|event| event["type"].as_str().unwrap()).collect();
    assert_eq!(
        types,
        [
            "agent.reasoning.delta",
            "agent.reasoning.delta",
            "agent.reasoned",
            "agent.toolCalled",
            "agent.toolReturned",
            "agent.handoff",
            "agent.decided",
        ]
    );
    assert_eq!(
        (&acts[0]["payload"]["sequence"], &acts[1]["payload"]["sequence"]),
        (&json!(0), &json!(1))
    );
    assert_eq!(acts[2]["payload"]["reasoning"], "One. Two.");
    let (called, returned) = (acts[3], acts[4]);
    assert_eq!(called["payload"]["callId"], returned["payload"]["callId"]);
    assert_eq!(returned["causationId"], called["eventId"]);
    assert_eq!(returned["payload"]["status"], "ok");
    // The SHA-256 of {"x":1}.
    let hash = "5041bf1f713df204784353e82f6a4a535931cb64f1f4b4a5aeaffcb720918b22";
    assert_eq!(called["payload"]["argsHash"], hash);
    assert_eq!(
        called["payload"]["principal"],
        events[0]["payload"]["owner"]["principal"]
    );
    assert!(called["payload"]["principal"].is_string(), "{called}");
    assert!(returned["payload"]["durationMs"].is_u64(), "{returned}");
    assert_eq!(acts[5]["payload"]["fromAgentId"], "acme.reader");
    for event in acts {
        assert_eq!(event["nodeId"], "think");
        let is_named = event["payload"]
            .get("agentId")
            .is_some_and(|id| id == "acme.reader");
        assert!(is_named || event["type"] == "agent.handoff", "{event}");
    }
}

#[tokio::test]
async fn unsure_decision_waits_for_a_verdict() {
    let server = Server::start().await;
    let config = json!({ "mockDecision": { "decision": { "kind": "stub" }, "confidence": 0.5 } });
    let document = agent("unsure", MOCK, config, json!({ "agentId": "acme.unsure" }));
    server.post("/v1/workflows", &document).send().await.ok(201);
    let run = server.run("unsure", json!({})).await;
    let snapshot = server.wait_for(&run, "waiting-approval").await;
    assert_eq!(snapshot["interrupt"]["kind"], "low-confidence");
    assert_eq!(
        snapshot["interrupt"]["data"],
        json!({ "agentId": "acme.unsure", "threshold": 0.7, "observed": 0.5, "decision": { "kind": "stub" } })
    );
    let log = events(&server, &run).await;
    let of_type = |name: &str| log.iter().position(|event| event["type"] == name);
    assert!(of_type("agent.decided") < of_type("node.suspended"));
    let suspended = &log[of_type("node.suspended").unwrap()]["payload"];
    assert_eq!(suspended["reason"], "low-confidence");
    assert_eq!(suspended["agentId"], "acme.unsure");
    assert_eq!(
        (&suspended["threshold"], &suspended["observed"]),
        (&json!(0.7), &json!(0.5))
    );

    let path = format!("/v1/runs/{run}/interrupts/think");
    let answer = |value: Value| server.post(&path, &json!({ "resumeValue": value }));
    answer(json!({ "action": "accept" }))
        .send()
        .await
        .error(400, "validation_error");
    server
        .call("POST", &path)
        .json(&json!({ "resumeValue": { "ratified": true } }))
        .key(READER)
        .send()
        .await
        .error(403, "forbidden");
    answer(json!({ "decision": { "kind": "better" } }))
        .send()
        .await
        .ok(200);
    let ended = server.wait_for(&run, "completed").await;
    assert_eq!(
        ended["variables"]["think"]["decision"],
        json!({ "kind": "better" })
    );
}

/// A node whose output is sensitive keeps what its agent says from every reader.
#[tokio::test]
async fn acts_at_a_node_with_a_sensitive_output_are_hidden() {
    let server = Server::start().await;
    let config = json!({
        "mockReasoning": { "summary": "the canary is 4711" },
        "mockToolCalls": [{ "toolId": "a:b", "arguments": "canary 4711", "result": "canary 4711" }],
        "mockHandoff": { "toAgentId": "acme.writer", "reason": "canary 4711", "context": "canary 4711" },
        "mockDecision": { "decision": "canary 4711", "reasoning": "canary 4711" },
    });
    let mut document = agent("discreet", MOCK, config, json!({ "agentId": "acme.discreet" }));
    document["nodes"][0]["outputSensitivity"] = json!({ "answer": true });
    server.post("/v1/workflows", &document).send().await.ok(201);
    let run = server.run("discreet", json!({})).await;
    server.wait_for(&run, "completed").await;
    let log = events(&server, &run).await;
    assert_eq!(of_agents(&log).len(), 5);
    assert!(!json!(log).to_string().contains("4711"), "{log:?}");
    assert!(
        !json!(log).to_string().contains("argsHash"),
        "it could be guessed: {log:?}"
    );
}

/// What a tool is called with and gives back has the names of variables.
#[tokio::test]
async fn members_of_a_tool_call_with_the_name_of_a_sensitive_variable_are_hidden() {
    let server = Server::start().await;
    let config = json!({
        "mockToolCalls": [
            { "toolId": "a:b", "arguments": { "pin": "4711", "city": "Rome" }, "result": { "pin": "4711", "ok": true } },
            { "toolId": "a:b", "arguments": { "city": "Rome" }, "result": "fine" },
        ],
        "mockDecision": { "decision": "done" },
    });
    let mut document = agent(
        "discreet-calls",
        MOCK,
        config,
        json!({ "agentId": "acme.discreet" }),
    );
    document["variables"] = json!([{ "name": "pin", "type": "string", "sensitive": true }]);
    server.post("/v1/workflows", &document).send().await.ok(201);
    let run = server.run("discreet-calls", json!({})).await;
    server.wait_for(&run, "completed").await;
    let log = events(&server, &run).await;
    let told = |name: &str| {
        let events = log.iter().filter(|event| event["type"] == name);
        events.map(|event| event["payload"].clone()).collect::<Vec<_>>()
    };
    let calls = told("agent.toolCalled");
    assert_eq!(calls[0]["inputs"], json!({ "pin": "[REDACTED]", "city": "Rome" }));
    assert_eq!(calls[0].get("argsHash"), None, "it could be guessed");
    assert!(calls[1]["argsHash"].is_string(), "{:?}", calls[1]);
    let returned = told("agent.toolReturned");
    assert_eq!(returned[0]["outcome"], json!({ "pin": "[REDACTED]", "ok": true }));
    assert!(!json!(log).to_string().contains("4711"), "{log:?}");
}

#[tokio::test]
async fn agent_references_are_checked_at_registration() {
    let server = Server::start().await;
    for reference in [
        json!({ "agentId": "ab" }),
        json!({}),
        json!("acme.reader"),
        json!({ "agentId": "acme.reader", "modelClass": "huge" }),
        json!({ "agentId": "acme.reader", "stray": 1 }),
        json!({ "agentId": "acme.reader", "memoryRef": "" }),
        json!({ "agentId": "a".repeat(257) }),
    ] {
        let document = agent("refused", "core.identity", json!({}), reference);
        server
            .post("/v1/workflows", &document)
            .send()
            .await
            .error(400, "validation_error");
    }
    let channel = json!({ "agentId": "acme.reader", "channel": "stable" });
    let document = agent("refused", "core.identity", json!({}), channel);
    let refused = server.post("/v1/workflows", &document).send().await;
    let refused = refused.error(400, "validation_error");
    assert!(refused.to_string().contains("agents.deployment"), "{refused}");
}
