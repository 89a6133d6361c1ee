//! Workflows that together produce every stored form.

use serde_json::{Value, json};

fn node(id: &str, type_id: &str, config: &Value) -> Value {
    json!({
        "id": id, "typeId": type_id, "name": id, "position": { "x": 0, "y": 0 }, "config": config, "inputs": {},
    })
}

/// A sequence of nodes.
fn chain(id: &str, nodes: &[Value]) -> Value {
    let edges: Vec<_> = nodes
        .windows(2)
        .enumerate()
        .map(|(n, pair)| json!({ "id": format!("e{n}"), "sourceNodeId": pair[0]["id"], "targetNodeId": pair[1]["id"] }))
        .collect();
    json!({
        "id": id, "name": id, "version": "1", "nodes": nodes, "edges": edges,
        "triggers": [{ "id": "manual", "type": "manual" }], "variables": [], "metadata": {}, "settings": {},
    })
}

/// A call that fails, since nothing listens on the reserved port 1, and is retried after an hour.
fn call() -> Value {
    let config = json!({ "method": "POST", "url": "http://127.0.0.1:1/", "timeoutMs": 5_000 });
    let mut call = chain("call", &[node("call", "core.http.request", &config)]);
    call["settings"] = json!({ "maxRetries": 1, "retryDelayMs": 3_600_000 });
    call
}

/// Variables, a streamed artifact, a vote, a channel, and a skipped node.
fn brief() -> Value {
    let quorum = json!({ "actions": ["accept", "reject"], "requiredApprovals": 2 });
    let mut draft = node(
        "draft",
        "core.stream",
        &json!({ "chunks": ["About ", "{{ inputs.prompt }}"] }),
    );
    draft["artifactType"] = "letter".into();
    let mut brief = chain(
        "brief",
        &[
            node(
                "set",
                "core.setVariable",
                &json!({ "name": "n", "expression": "n + 1" }),
            ),
            draft,
            node("gate", "core.approvalGate", &quorum),
            node(
                "tell",
                "core.channelWrite",
                &json!({ "channelName": "c", "value": 1, "ttlMs": 5_000 }),
            ),
            node("never", "core.noop", &json!({})),
        ],
    );
    brief["variables"] = json!([{ "name": "n", "type": "number", "defaultValue": 0 }]);
    let edges = brief["edges"].as_array_mut().unwrap();
    edges[3] = json!({
        "id": "e3", "sourceNodeId": "gate", "targetNodeId": "never", "triggerRule": "any_failed"
    });
    brief
}

/// What agents do, say and remember.
fn agents() -> Value {
    let mock = json!({
        "mockReasoning": { "summary": "s", "streamChunks": ["First, ", "look."] },
        "mockToolCalls": [{ "toolId": "a:b", "arguments": 1, "result": 2 }],
        "mockHandoff": { "toAgentId": "acme.writer" },
        "mockDecision": { "decision": "go on", "confidence": 1 },
    });
    let mut sum = node(
        "sum",
        "core.memory.compact",
        &json!({ "memoryRef": "m", "content": "all" }),
    );
    sum["inputs"] = json!({ "sourceIds": { "type": "static", "value": ["first"] } });
    chain(
        "agents",
        &[
            node("think", "core.conformance.mock-agent", &mock),
            node(
                "talk",
                "core.conversationGate",
                &json!({ "mockAutoResume": true }),
            ),
            node(
                "note",
                "core.memory.write",
                &json!({ "memoryRef": "m", "content": "one", "id": "first" }),
            ),
            sum,
        ],
    )
}

/// A supervisor that hands work to two workers at once, one of which does not exist, and is then not sure that it is
/// done.
fn crew() -> Value {
    let next = json!({ "kind": "next-worker", "nextWorkerIds": ["noop", "nobody"] });
    let rules = json!([{ "when": "lead is not defined", "decision": next }]);
    let done = json!({ "kind": "terminate", "reason": "goal-reached", "confidence": 0.25 });
    let dispatch = json!({ "fanOutPolicy": "parallel", "outputMapping": { "found": "found" } });
    let mut crew = chain(
        "crew",
        &[
            node(
                "lead",
                "core.orchestrator.supervisor",
                &json!({ "rules": rules, "decision": done }),
            ),
            node("dispatch", "core.dispatch", &dispatch),
        ],
    );
    let back = json!({ "id": "back", "sourceNodeId": "dispatch", "targetNodeId": "lead" });
    crew["edges"].as_array_mut().unwrap().push(back);
    crew
}

/// All workflows, in registration order.
pub(crate) fn all() -> Vec<Value> {
    let gate = || node("gate", "core.approvalGate", &json!({ "timeoutMs": 864_000_000 }));
    let question = json!({ "questions": [{ "id": "q", "question": "Which color?" }] });
    let paid = json!({
        "kind": "external-event",
        "data": { "eventType": "paid", "correlation": { "orderId": "o-1" } },
    });
    let noops = |n: u32| -> Vec<Value> {
        (0..n)
            .map(|n| node(&format!("n{n}"), "core.noop", &json!({})))
            .collect()
    };
    let mut long = noops(300);
    long.push(gate());
    vec![
        brief(),
        call(),
        agents(),
        crew(),
        chain("noop", &noops(1)),
        chain("three", &noops(3)),
        chain("gate", &[gate()]),
        chain("ask", &[node("ask", "core.clarificationGate", &question)]),
        chain("order", &[node("order", "core.interrupt", &paid)]),
        chain(
            "delay",
            &[node("wait", "core.delay", &json!({ "delayMs": 3_600_000 }))],
        ),
        chain(
            "parent",
            &[node("sub", "core.subWorkflow", &json!({ "workflowId": "gate" }))],
        ),
        chain(
            "work",
            &[node(
                "work",
                "core.activity",
                &json!({ "queue": "letters", "input": { "n": 1 }, "timeoutMs": 864_000_000, "heartbeatMs": 432_000_000 }),
            )],
        ),
        chain(
            "think",
            &[node(
                "think",
                "core.ai.structuredOutput",
                &json!({ "provider": "mock", "prompt": "Is it?", "outputSchema": { "type": "object" } }),
            )],
        ),
        chain("fails", &[node("boom", "core.fail", &json!({}))]),
        chain("changes", &[gate(), node("then", "core.noop", &json!({}))]),
        chain("long", &long),
    ]
}

/// A later version of `changes`, registered while a run of the first version waits.
pub(crate) fn changed() -> Value {
    let mut changed = chain("changes", &[node("other", "core.noop", &json!({}))]);
    changed["version"] = "2".into();
    changed
}
