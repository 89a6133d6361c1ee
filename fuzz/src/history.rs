//! Histories of Agent Workflow executions.

use std::sync::{Arc, LazyLock};

use serde::Deserialize;
use serde_json::{Value, json};
use wopr_core::{
    InProcess, NodeTypes, Object, Plan, RunId, Timestamp,
    awp::{ActivityMode, GivenRows, Import},
    import_awp,
};
use wopr_testkit::Script;

/// A loop with an activity that may be repeated and a question, branches with a tool, a timer and a signal, and a delegate.
static PLAN: LazyLock<Arc<Plan>> = LazyLock::new(|| {
    let branch = |name: &str| json!({ "name": name, "entry": name });
    let edges = [
        ("__start__", "start"),
        ("start", "ask"),
        ("ask", "review"),
        ("review", "again"),
        ("fork", "code"),
        ("tool", "code"),
        ("nap", "code"),
        ("go", "code"),
        ("code", "end"),
    ];
    let edges = edges.map(|(source, target)| json!({ "source": source, "target": target }));
    let document = json!({
        "document": { "schema": "https://agent-workflow.dev/schemas/workflow-definition.json", "name": "fuzzed", "version": "1" },
        "state_schema": { "type": "object", "properties": { "log": { "reducer": "append" } } },
        "nodes": [
            { "id": "start", "type": "start" },
            { "id": "ask", "type": "llm_call", "retry": { "max_attempts": 2, "initial_interval": "1s" },
                "config": { "user_prompt": "?" } },
            { "id": "review", "type": "interrupt", "config": { "prompt": "Good?", "resume_schema": { "type": "object" } } },
            { "id": "again", "type": "switch", "config": {
                "cases": [{ "when": ".ok == false", "target": "ask" }], "default": "fork",
            } },
            { "id": "fork", "type": "parallel", "config": {
                "join": "n_of_m", "n": 2, "branches": [branch("tool"), branch("nap"), branch("go")],
            } },
            { "id": "tool", "type": "tool_call", "config": { "server": "s", "tool": "t" } },
            { "id": "nap", "type": "wait", "config": { "kind": "duration", "duration_ms": 500 } },
            { "id": "go", "type": "wait", "config": { "kind": "signal", "signal": "go" } },
            { "id": "code", "type": "agent_delegate", "config": {
                "agent_id": "coder", "protocol": "a2a", "input_mapping": { "task": "${ .log }" },
            } },
            { "id": "end", "type": "end" },
        ],
        "edges": edges,
    });
    Arc::new(Plan::admit(document, NodeTypes::default()).unwrap())
});

#[derive(Deserialize)]
struct Given {
    rows: Vec<Value>,
    mode: Option<String>,
    #[serde(default)]
    configurable: Object,
}

/// A history is refused, or it becomes a run that is sound, on a host with tools and without. The bytes are a JSON object
/// with `rows`, and with `mode` and `configurable` if needed.
///
/// # Panics
/// If a property does not hold.
pub fn history(data: &[u8]) {
    let Ok(given) = serde_json::from_slice::<Given>(data) else {
        return;
    };
    let Ok(rows) = GivenRows::read(given.rows) else {
        return;
    };
    let mode = given.mode.as_deref().and_then(ActivityMode::parse);
    let tools = InProcess {
        tools: true,
        ..InProcess::default()
    };
    for in_process in [None, Some(Arc::new(tools))] {
        let id = RunId::from_parts(Timestamp::from_millis(7), [7; 10]);
        let mut copy = Script::of_plans([PLAN.clone()]);
        let import = Import {
            configurable: given.configurable.clone(),
            mode,
            in_process,
            ..Script::import_terms(id.clone(), copy.now())
        };
        let imported = import_awp(&PLAN, &rows, &[], &import).expect("of this language");
        match imported {
            Ok(imported) => copy.adopt_all(id, &imported),
            Err(error) => assert!(!error.to_string().is_empty()),
        }
    }
}
