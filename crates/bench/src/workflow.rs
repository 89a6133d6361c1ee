//! The measured workflows: small and without external calls, so that only wopr is measured.

use serde_json::{Value, json};

/// A single no-op node.
pub(crate) const ONE: &str = "wopr-bench-one-node";
/// Ten no-op nodes in a row.
pub(crate) const CHAIN: &str = "wopr-bench-chain";
/// An approval, then a no-op node.
pub(crate) const APPROVAL: &str = "wopr-bench-approval";
/// Ten concurrent child runs of one node each.
pub(crate) const FAN: &str = "wopr-bench-fan";
/// A supervisor with one turn of work: a child run of one node.
pub(crate) const TURN: &str = "wopr-bench-turn";
/// So many no-op nodes in a row that a run has 1,000 events.
pub(crate) const LONG: &str = "wopr-bench-long";
/// Three nodes in a row, as a document of the Agent Workflow Protocol.
pub(crate) const DOCUMENT: &str = "wopr-bench-document";
/// A node that fails.
pub(crate) const FAILURE: &str = "wopr-bench-failure";
/// Many child runs, in rounds.
pub(crate) const CROWD: &str = "wopr-bench-crowd";
/// The same number of child runs, which all wait for an approval.
pub(crate) const WAITING_CROWD: &str = "wopr-bench-waiting-crowd";

/// Says what it is told.
pub(crate) const ECHO: &str = "wopr-bench-echo";
/// Works for longer than any benchmark, without doing anything.
pub(crate) const SLOW: &str = "wopr-bench-slow";
/// A single node that calls [`ECHO`] on another host.
pub(crate) const CALL: &str = "wopr-bench-call";
/// A single node that calls [`SLOW`] on another host.
pub(crate) const SLOW_CALL: &str = "wopr-bench-slow-call";

/// A single activity, in [`QUEUE`].
pub(crate) const ACTIVITY: &str = "wopr-bench-activity";
pub(crate) const QUEUE: &str = "wopr-bench";

/// The approval node of [`APPROVAL`].
pub(crate) const GATE: &str = "gate";
/// How long [`SLOW`] works, in milliseconds.
const SLOW_MS: u64 = 24 * 3_600 * 1_000;
/// Number of children of a [`FAN`] run.
pub(crate) const FAN_WIDTH: usize = 10;
/// Nodes of [`LONG`]: each has two events, and the run a first and a last one.
const LONG_NODES: usize = 499;
/// Maximum number of concurrent children of [`CROWD`]: a definition has at most 2,000 nodes.
const CROWD_WIDTH: usize = 1_000;

/// The workflows that are registered on every server.
pub(crate) fn all() -> Vec<Value> {
    vec![
        one(),
        row(CHAIN, 10),
        approval(),
        fan(),
        turn(),
        row(LONG, LONG_NODES),
        three_nodes(),
        failure(),
        activity(),
    ]
}

/// The workflows of the host that is called.
pub(crate) fn called() -> Vec<Value> {
    let mut echo = node("say", "core.template", &json!({"template": "{{ prompt }}"}));
    echo["artifactType"] = "text".into();
    let mut echo = document(ECHO, &[echo], &[]);
    echo["variables"] = json!([{"name": "prompt", "type": "string"}]);
    let slow = node("wait", "core.delay", &json!({"delayMs": SLOW_MS}));
    vec![echo, document(SLOW, &[slow], &[])]
}

/// The workflows that call them.
pub(crate) fn calls() -> Vec<Value> {
    let call = |id, skill| {
        let config = json!({"skill": skill, "message": "Please say this."});
        document(id, &[node("call", "core.a2a.invoke", &config)], &[])
    };
    vec![call(CALL, ECHO), call(SLOW_CALL, SLOW)]
}

/// The document [`DOCUMENT`]: a start, an assignment by a filter, and an end.
pub(crate) fn three_nodes() -> Value {
    json!({
        "document": {
            "schema": "https://agent-workflow.dev/schemas/workflow-definition.json", "name": DOCUMENT, "version": "1.0.0",
        },
        "state_schema": { "type": "object", "properties": { "name": { "type": "string" }, "text": { "type": "string" } } },
        "nodes": [
            { "id": "start", "type": "start" },
            { "id": "greet", "type": "set_state", "config": { "assignments": { "text": { "jq": "\"Hello \\(.name).\"" } } } },
            { "id": "end", "type": "end", "config": { "output_mapping": ".text" } },
        ],
        "edges": [
            { "source": "__start__", "target": "start" }, { "source": "start", "target": "greet" },
            { "source": "greet", "target": "end" },
        ],
    })
}

fn one() -> Value {
    document(ONE, &[node("only", "core.noop", &json!({}))], &[])
}

fn row(id: &str, n_nodes: usize) -> Value {
    let names: Vec<_> = (0..n_nodes).map(|n| format!("n{n}")).collect();
    let nodes = names
        .iter()
        .map(|name| node(name, "core.noop", &json!({})))
        .collect::<Vec<_>>();
    let edges: Vec<_> = names.windows(2).map(|pair| edge(&pair[0], &pair[1])).collect();
    document(id, &nodes, &edges)
}

fn approval() -> Value {
    let nodes = [
        node(GATE, "core.approvalGate", &json!({"title": "Go on?"})),
        node("after", "core.noop", &json!({})),
    ];
    document(APPROVAL, &nodes, &[edge(GATE, "after")])
}

fn fan() -> Value {
    let nodes: Vec<_> = (0..FAN_WIDTH).map(|n| child(&format!("call{n}"), ONE)).collect();
    document(FAN, &nodes, &[])
}

fn turn() -> Value {
    let work = json!({"kind": "next-worker", "nextWorkerIds": [ONE]});
    let lead = json!({
        "rules": [{"when": "dispatch is not defined", "decision": work}],
        "decision": {"kind": "terminate", "reason": "goal-reached"},
    });
    let nodes = [
        node("lead", "core.orchestrator.supervisor", &lead),
        node("dispatch", "core.dispatch", &json!({})),
    ];
    document(
        TURN,
        &nodes,
        &[edge("lead", "dispatch"), edge("dispatch", "lead")],
    )
}

fn activity() -> Value {
    let work = node("work", "core.activity", &json!({"queue": QUEUE, "input": {}}));
    document(ACTIVITY, &[work], &[])
}

fn failure() -> Value {
    let fail = node(
        "fail",
        "core.fail",
        &json!({"code": "bench", "message": "as asked"}),
    );
    document(FAILURE, &[fail], &[])
}

#[derive(Debug)]
pub(crate) struct Crowd {
    pub(crate) document: Value,
    /// Total number of children.
    pub(crate) children: usize,
    /// Number of executed nodes.
    pub(crate) executions: usize,
}

/// Creates a run with at least `size` one-node children, with as many at once as a definition may have.
pub(crate) fn crowd(size: usize) -> Crowd {
    let rounds = size.div_ceil(CROWD_WIDTH);
    let width = size.div_ceil(rounds);
    let count = node(
        "count",
        "core.setVariable",
        &json!({"name": "round", "expression": "round + 1"}),
    );
    let mut nodes = vec![count];
    let mut edges = Vec::new();
    for n in 0..width {
        let name = format!("call{n}");
        nodes.push(child(&name, ONE));
        edges.push(edge("count", &name));
        edges.push(edge(&name, "all"));
    }
    nodes.push(node("all", "core.merge", &json!({})));
    let mut again = edge("all", "count");
    again["condition"] = json!({"type": "expression", "expression": format!("round < {rounds}")});
    edges.push(again);
    let mut document = document(CROWD, &nodes, &edges);
    document["variables"] = json!([{"name": "round", "type": "number", "defaultValue": 0}]);
    Crowd {
        document,
        children: width * rounds,
        executions: (width + 2) * rounds,
    }
}

/// Creates a run whose children all wait concurrently, limited by what a definition may have.
pub(crate) fn waiting_crowd(size: usize) -> Crowd {
    let width = size.min(CROWD_WIDTH);
    let nodes: Vec<_> = (0..width).map(|n| child(&format!("call{n}"), APPROVAL)).collect();
    Crowd {
        document: document(WAITING_CROWD, &nodes, &[]),
        children: width,
        executions: width,
    }
}

fn child(id: &str, workflow: &str) -> Value {
    node(id, "core.subWorkflow", &json!({"workflowId": workflow}))
}

fn node(id: &str, kind: &str, config: &Value) -> Value {
    json!({
        "id": id, "typeId": kind, "name": id, "position": {"x": 0, "y": 0}, "config": config, "inputs": {},
    })
}

fn edge(from: &str, to: &str) -> Value {
    json!({"id": format!("{from}-{to}"), "sourceNodeId": from, "targetNodeId": to})
}

fn document(id: &str, nodes: &[Value], edges: &[Value]) -> Value {
    json!({
        "id": id,
        "name": id,
        "version": "1",
        "nodes": nodes,
        "edges": edges,
        "triggers": [{"id": "manual", "type": "manual"}],
        "variables": [],
        "metadata": {},
        "settings": {},
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn crowd_has_at_least_the_requested_children() {
        for (size, children) in [(1, 1), (12, 12), (1_000, 1_000), (1_001, 1_002), (10_000, 10_000)] {
            let crowd = crowd(size);
            assert_eq!(crowd.children, children, "{size}");
            assert!(crowd.document["nodes"].as_array().unwrap().len() <= 2_000);
        }
        assert_eq!(waiting_crowd(5).children, 5);
        assert_eq!(waiting_crowd(10_000).children, CROWD_WIDTH);
    }
}
