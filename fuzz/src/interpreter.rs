//! Expressions and templates in a run: the work that their evaluation costs a decision.

use std::sync::Arc;

use serde_json::{Value, json};
use wopr_core::{
    Catalog, Command, Decision, Entropy, Input, MAX_DECISION_WORK, NodeTypes, Object, Plan, Refusal, Run,
    RunId, Startable, Timer, Timestamp, WorkflowId, decide_counted, decide_within,
};
use wopr_testkit::Script;

/// Smaller work budgets for a decision.
const SMALL_BUDGETS: [u64; 3] = [1_000, 10_000, 100_000];
/// Number of decisions of a run: enough for a loop to repeat.
const ROUNDS: usize = 4;

#[derive(Debug)]
struct Nothing;

impl Catalog for Nothing {
    fn current(&self, _: &WorkflowId) -> Option<Arc<dyn Startable>> {
        None
    }
}

/// A source accepted in a definition never exceeds the budget of a decision and evaluates deterministically.
/// With a smaller budget, a decision gives the same result or reports that the budget is too small. The bytes
/// are the source, optionally followed by a line of three dashes and a JSON object as the run's input.
///
/// # Panics
/// If a property does not hold.
pub fn interpreter(data: &[u8]) {
    let Ok(text) = std::str::from_utf8(data) else {
        return;
    };
    let (source, inputs) = text.split_once("\n---\n").unwrap_or((text, ""));
    let inputs: Object = serde_json::from_str(inputs).unwrap_or_else(|_| usual());
    let set = json!({ "name": "z", "expression": source });
    for (type_id, config) in [
        ("core.setVariable", set),
        ("core.template", json!({ "template": source })),
    ] {
        if let Ok(plan) = Plan::admit(around(type_id, &config, source), NodeTypes::default()) {
            live(&plan, &inputs);
        }
    }
}

/// A workflow with a node that evaluates the source, and an edge with the source as its condition.
fn around(type_id: &str, config: &Value, source: &str) -> Value {
    json!({
        "id": "w", "name": "w", "version": "1", "triggers": [], "variables": [], "metadata": {}, "settings": {},
        "nodes": [
            { "id": "a", "name": "a", "typeId": type_id, "config": config },
            { "id": "b", "name": "b", "typeId": "core.noop", "config": {} },
        ],
        "edges": [{
            "id": "e", "sourceNodeId": "a", "targetNodeId": "b", "triggerRule": "all_complete",
            "condition": if type_id == "core.template" { Value::Null } else {
                json!({ "type": "expression", "expression": source })
            },
        }],
    })
}

fn live(plan: &Plan, inputs: &Object) {
    let mut start = Script::start_run(json!({}));
    start.inputs = inputs.clone();
    let mut command = Command::Start(Box::new(start));
    let mut run = Run::default();
    for _ in 0..ROUNDS {
        let Ok(decision) = step(plan, &run, &command) else {
            return;
        };
        let mut timers = decision.work.timers_set.iter();
        if !timers.any(|(timer, _)| *timer == Timer::Continue) {
            return;
        }
        (run, command) = (decision.run, Command::Timer(Timer::Continue));
    }
}

fn step(plan: &Plan, run: &Run, command: &Command) -> Result<Decision, Refusal> {
    let id = RunId::from_parts(Timestamp::from_millis(0), [7; 10]);
    let input = Input {
        now: Timestamp::from_millis(1_000),
        entropy: Entropy([7; 16]),
        run: &id,
        catalog: &Nothing,
    };
    let decided = decide_counted(run.clone(), plan, command.clone(), &input);
    let again = decide_counted(run.clone(), plan, command.clone(), &input);
    assert_eq!(decided, again, "decided twice it differs");
    for units in SMALL_BUDGETS {
        if let Ok(within) = decide_within(units, run.clone(), plan, command.clone(), &input) {
            let whole = decided.as_ref().map(|(decision, _)| decision);
            assert_eq!(within.as_ref(), whole, "within {units} units it differs");
        }
    }
    let (decision, work) = decided?;
    assert!(work <= MAX_DECISION_WORK, "a decision cost {work}");
    Ok(decision)
}

fn usual() -> Object {
    let items: Vec<_> = (0..200)
        .map(|n| json!({ "k": format!("key {}", n * 7919 % 211), "n": n }))
        .collect();
    let list: Vec<_> = (0..3_000).collect();
    let usual =
        json!({ "x": items, "y": list, "a": 1, "text": "x y ".repeat(500), "d": { "e": { "f": true } } });
    usual.as_object().unwrap().clone()
}
