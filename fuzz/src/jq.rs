//! Filters of Agent Workflow documents.

use std::{panic, thread};

use serde_json::{Value, json};
use wopr_core::{
    Timestamp,
    awp::{Filter, JqError},
    cost::{Budget, EVALUATION, MAX_DECISION_WORK},
    too_deep,
};

/// The stack on which a filter has to stay: half of what a thread of the host has.
const STACK: usize = 1024 * 1024;
/// Smaller work budgets for an evaluation.
const SMALL_BUDGETS: [u64; 3] = [100, 10_000, 300_000];

/// An accepted filter stays on a small stack and within the budget of an evaluation, and is deterministic. With a
/// smaller budget, it gives the same result or reports that the budget is too small. Its outputs nest no deeper than
/// values may. The bytes are the filter, optionally followed by a line of three dashes and a JSON value as its input.
///
/// # Panics
/// If a property does not hold. An overflow of the stack aborts the process.
pub fn jq(data: &[u8]) {
    let Ok(text) = std::str::from_utf8(data) else {
        return;
    };
    let (source, input) = text.split_once("\n---\n").unwrap_or((text, ""));
    let input = serde_json::from_str(input).unwrap_or_else(|_| usual());
    // The host refuses such a value before a filter sees it.
    if too_deep(&input) {
        return;
    }
    let source = source.to_owned();
    let evaluating = thread::Builder::new()
        .stack_size(STACK)
        .spawn(move || evaluate(&source, &input))
        .unwrap();
    if let Err(broken) = evaluating.join() {
        panic::resume_unwind(broken);
    }
}

fn evaluate(source: &str, input: &Value) {
    let Ok(filter) = Filter::compile(source) else {
        return;
    };
    let within = |units: u64| {
        let budget = Budget::new(units);
        let found = filter.evaluate(input, Timestamp::from_millis(1_000), &budget.meter());
        (found, budget.spent())
    };
    let (found, work) = within(MAX_DECISION_WORK);
    assert!(work <= EVALUATION, "an evaluation cost {work}");
    let (again, same_work) = within(MAX_DECISION_WORK);
    assert_eq!((&found, work), (&again, same_work), "evaluated twice it differs");
    for units in SMALL_BUDGETS {
        let (found_within, _) = within(units);
        let is_same = found_within == found || found_within == Err(JqError::TooMuchWork);
        assert!(is_same, "within {units} units it differs");
    }
    let nests_too_deep = match &found {
        // Several outputs are in an array.
        Ok(Value::Array(items)) => items.iter().any(too_deep),
        Ok(value) => too_deep(value),
        Err(_) => false,
    };
    assert!(!nests_too_deep, "an output nests too deep");
}

fn usual() -> Value {
    let items: Vec<_> = (0..50)
        .map(|n| json!({ "k": format!("key {}", n * 31 % 53), "n": n }))
        .collect();
    let numbers: Vec<_> = (0..500).collect();
    let deep = (0..60).fold(json!(1), |inner, _| json!([inner]));
    json!({
        "a": 1, "b": numbers, "c": { "d": { "e": true } }, "deep": deep, "list": items, "none": null,
        "text": "x y ".repeat(100),
    })
}
