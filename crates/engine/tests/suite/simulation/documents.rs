//! Agent Workflow documents of a world's runs: tokens that loop, fork, wait, ask, delegate and start children.
//!
//! Half of their runs have workers do the activities; the others call the executor's peers. In half of them, the branches
//! of a parallel node are under way at once.

use serde_json::{Value, json};

/// The documents by the ids of their workflows, each with its weight in a client's choice.
pub(crate) const KINDS: [(&str, u64); 3] = [("rounds", 12), ("errand", 8), ("sprint", 8)];

/// Whether runs of a workflow take the options of documents.
pub(crate) fn is_document(workflow: &str) -> bool {
    KINDS.iter().any(|(kind, _)| *kind == workflow)
}

pub(crate) fn all() -> [Value; 3] {
    [rounds(), errand(), sprint()]
}

fn document(name: &str, nodes: &[Value], edges: &[(&str, &str)]) -> Value {
    let edges: Vec<_> = [("__start__", "start")]
        .iter()
        .chain(edges)
        .map(|(source, target)| json!({ "source": source, "target": target }))
        .collect();
    json!({
        "document": { "schema": "https://agent-workflow.dev/schemas/workflow-definition.json", "name": name, "version": "1" },
        "state_schema": { "type": "object", "properties": { "n": { "type": "integer" }, "log": { "reducer": "append" } } },
        "nodes": nodes, "edges": edges,
    })
}

fn tool(id: &str) -> Value {
    let retry = json!({ "max_attempts": 3, "initial_interval": "100ms", "non_retryable_errors": ["BROKEN"] });
    json!({ "id": id, "type": "tool_call", "config": { "server": "s", "tool": id }, "retry": retry })
}

fn delegate(id: &str) -> Value {
    let retry = json!({ "max_attempts": 4, "initial_interval": "100ms" });
    json!({ "id": id, "type": "agent_delegate", "retry": retry, "config": {
        "agent_id": "peer", "protocol": "a2a", "input_mapping": { "round": "${ .n }" },
    } })
}

/// Twice around: activities in branches of which one may fail, a child, a signal, a question and a wait.
fn rounds() -> Value {
    let count = json!({ "n": { "jq": "(.n // 0) + 1" }, "log": { "jq": ".n" } });
    let again = json!({ "cases": [{ "when": ".n < 2", "target": "fork" }], "default": "child" });
    let branches = json!([
        { "name": "a", "entry": "a" }, { "name": "b", "entry": "b" }, { "name": "c", "entry": "c" },
    ]);
    let nodes = [
        json!({ "id": "start", "type": "start" }),
        json!({ "id": "fork", "type": "parallel", "config": { "join": "n_of_m", "n": 2, "branches": branches } }),
        tool("a"),
        tool("b"),
        delegate("c"),
        json!({ "id": "count", "type": "set_state", "config": { "assignments": count } }),
        json!({ "id": "pause", "type": "wait", "config": { "kind": "duration", "duration_ms": 300 } }),
        json!({ "id": "again", "type": "switch", "config": again }),
        json!({ "id": "child", "type": "subworkflow", "config": { "workflow_ref": "errand", "input_mapping": { "n": "${ .n }" } } }),
        json!({ "id": "go", "type": "wait", "config": { "kind": "signal", "signal": "go" } }),
        json!({ "id": "ask", "type": "interrupt", "config": { "prompt": "So?", "resume_schema": { "type": "object", "minProperties": 1 } } }),
        json!({ "id": "end", "type": "end", "config": { "output_mapping": "{n, log}" } }),
    ];
    let edges = [
        ("start", "fork"),
        ("fork", "count"),
        ("a", "count"),
        ("b", "count"),
        ("c", "count"),
        ("count", "pause"),
        ("pause", "again"),
        ("child", "go"),
        ("go", "ask"),
        ("ask", "end"),
    ];
    document("rounds", &nodes, &edges)
}

/// A delegate, and an activity after it.
fn errand() -> Value {
    let nodes = [
        json!({ "id": "start", "type": "start" }),
        delegate("send"),
        tool("check"),
        json!({ "id": "end", "type": "end" }),
    ];
    document(
        "errand",
        &nodes,
        &[("start", "send"), ("send", "check"), ("check", "end")],
    )
}

/// Branches of every kind, of which the first two to complete cancel the others, and two of which share a node.
fn sprint() -> Value {
    let entries = ["a", "send", "child", "go", "pause", "tries"];
    let branches = entries.map(|entry| json!({ "name": entry, "entry": entry }));
    let tries = json!([{ "name": "x", "entry": "x" }, { "name": "y", "entry": "y" }]);
    let nodes = [
        json!({ "id": "start", "type": "start" }),
        json!({ "id": "fork", "type": "parallel", "config": { "join": "n_of_m", "n": 2, "branches": branches } }),
        tool("a"),
        delegate("send"),
        json!({ "id": "child", "type": "subworkflow", "config": { "workflow_ref": "errand", "input_mapping": {} } }),
        json!({ "id": "go", "type": "wait", "config": { "kind": "signal", "signal": "go" } }),
        json!({ "id": "pause", "type": "wait", "config": { "kind": "duration", "duration_ms": 700 } }),
        json!({ "id": "tries", "type": "parallel", "config": { "join": "any", "branches": tries } }),
        tool("x"),
        delegate("y"),
        tool("shared"),
        json!({ "id": "end", "type": "end" }),
    ];
    let edges = [
        ("start", "fork"),
        ("fork", "end"),
        ("a", "shared"),
        ("shared", "end"),
        ("send", "end"),
        ("child", "end"),
        ("go", "end"),
        ("pause", "shared"),
        ("tries", "end"),
        ("x", "end"),
        ("y", "end"),
    ];
    document("sprint", &nodes, &edges)
}
