//! The test workflows.

use std::{fs, path::Path};

use serde_json::{Value, json};

/// A definition with the nodes in sequence.
pub(crate) fn chain(id: &str, nodes: &[Value]) -> Value {
    let ids: Vec<_> = nodes.iter().map(|node| node["id"].as_str().unwrap()).collect();
    let edges: Vec<_> = ids
        .windows(2)
        .enumerate()
        .map(|(n, pair)| json!({ "id": format!("e{n}"), "sourceNodeId": pair[0], "targetNodeId": pair[1] }))
        .collect();
    json!({
        "id": id, "name": id, "version": "1", "nodes": nodes, "edges": edges,
        "triggers": [{ "id": "manual", "type": "manual" }], "variables": [],
        "metadata": {}, "settings": {},
    })
}

pub(crate) fn node(id: &str, type_id: &str, config: Value) -> Value {
    json!({
        "id": id, "typeId": type_id, "name": id, "position": { "x": 0, "y": 0 },
        "config": config, "inputs": {},
    })
}

fn with(mut document: Value, name: &str, value: Value) -> Value {
    document[name] = value;
    document
}

fn gate(config: Value) -> Value {
    let mut gate =
        json!({ "title": "Go on?", "actions": ["accept", "reject", "refine", "edit-accept", "ask"] });
    gate.as_object_mut()
        .unwrap()
        .extend(config.as_object().unwrap().clone());
    node("gate", "core.approvalGate", gate)
}

pub(crate) fn all() -> Vec<Value> {
    let identity = with(
        node("echo", "core.identity", json!({})),
        "inputs",
        json!({ "payload": { "type": "variable", "variableName": "payload", "optional": true } }),
    );
    let artifact = with(
        node(
            "write",
            "core.template",
            json!({ "template": "Hello {{ name }}" }),
        ),
        "artifactType",
        json!("letter"),
    );
    vec![
        chain("conformance-noop", &[node("noop", "core.noop", json!({}))]),
        chain(
            "three",
            &["a", "b", "c"].map(|id| node(id, "core.noop", json!({}))),
        ),
        chain("identity", &[identity]),
        chain("fails", &[node("boom", "core.fail", json!({}))]),
        chain(
            "delay",
            &[node("wait", "core.delay", json!({ "delayMs": 600_000 }))],
        ),
        chain(
            "short-delay",
            &[
                node("wait", "core.delay", json!({ "delayMs": 400 })),
                node("end", "core.noop", json!({})),
            ],
        ),
        chain(
            "activity",
            &[node(
                "work",
                "core.activity",
                json!({ "queue": "letters", "input": { "to": "{{ who }}" } }),
            )],
        ),
        with(
            chain(
                "activity-brief",
                &[node(
                    "work",
                    "core.activity",
                    json!({ "queue": "q", "timeoutMs": 1_000 }),
                )],
            ),
            "settings",
            json!({ "maxRetries": 1, "retryDelayMs": 1 }),
        ),
        with(
            chain(
                "activity-patient",
                &[node("work", "core.activity", json!({ "queue": "patient" }))],
            ),
            "settings",
            json!({ "maxRetries": 1, "retryDelayMs": 1 }),
        ),
        chain("approval", &[gate(json!({}))]),
        chain(
            "approval-brief",
            &[gate(json!({ "timeoutMs": 20, "onTimeout": "approve" }))],
        ),
        chain("approval-soon", &[gate(json!({ "timeoutMs": 60_000 }))]),
        chain(
            "quorum",
            &[gate(
                json!({ "actions": ["accept", "reject"], "requiredApprovals": 2 }),
            )],
        ),
        chain(
            "signed",
            &[gate(json!({ "profile": "openwop-interrupt-auth-required" }))],
        ),
        chain(
            "ask",
            &[node(
                "ask",
                "core.clarificationGate",
                json!({
                    "questions": [{ "id": "q1", "question": "Which color?" }],
                }),
            )],
        ),
        chain(
            "order",
            &[node(
                "order",
                "core.interrupt",
                json!({
                    "kind": "external-event",
                    "data": { "eventType": "paid", "correlation": { "orderId": "o-1" } },
                }),
            )],
        ),
        chain(
            "parent",
            &[node(
                "sub",
                "core.subWorkflow",
                json!({ "workflowId": "approval" }),
            )],
        ),
        two_children(),
        asks_again(),
        chain(
            "legal",
            &[gate(
                json!({ "approverRoleRefs": ["legal"], "approverGroupRefs": ["board"] }),
            )],
        ),
        chain("letter", &[artifact]),
        with(
            chain("secret", &[node("noop", "core.noop", json!({}))]),
            "variables",
            json!([{ "name": "pin", "type": "string", "sensitive": true }]),
        ),
    ]
}

/// Asks again after each rejection.
fn asks_again() -> Value {
    let mut document = chain(
        "asks-again",
        &[gate(json!({})), node("again", "core.noop", json!({}))],
    );
    document["edges"] = json!([
        { "id": "no", "sourceNodeId": "gate", "targetNodeId": "again", "triggerRule": "any_failed" },
        { "id": "back", "sourceNodeId": "again", "targetNodeId": "gate" },
    ]);
    document
}

/// Asks in two parallel children and in itself.
fn two_children() -> Value {
    let sub = |id: &str| node(id, "core.subWorkflow", json!({ "workflowId": "approval" }));
    let mut document = chain("two-children", &[node("start", "core.noop", json!({}))]);
    let nodes = [sub("left"), sub("right"), gate(json!({}))];
    for node in &nodes {
        let id = node["id"].as_str().unwrap();
        let edge = json!({ "id": id, "sourceNodeId": "start", "targetNodeId": id });
        document["edges"].as_array_mut().unwrap().push(edge);
    }
    document["nodes"].as_array_mut().unwrap().extend(nodes);
    document
}

/// Writes the definitions as files, and an invalid one.
pub(crate) fn write_all(folder: &Path) {
    fs::create_dir(folder).unwrap();
    for document in all() {
        let name = format!("{}.json", document["id"].as_str().unwrap());
        fs::write(folder.join(name), document.to_string()).unwrap();
    }
    let broken = chain("broken", &[node("x", "core.flyToTheMoon", json!({}))]);
    fs::write(folder.join("broken.json"), broken.to_string()).unwrap();
    fs::write(folder.join("notes.txt"), "not a workflow").unwrap();
}
