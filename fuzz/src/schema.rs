//! JSON Schemas in definitions, and the validation of values.

use serde_json::{Value, json};
use wopr_core::{NodeTypes, Plan, Refusal};
use wopr_testkit::Script;

/// Keywords whose meaning changes when a schema is nested in another one.
const BOUND_TO_THE_ROOT: [&str; 5] = ["$ref", "$id", "$anchor", "$dynamicRef", "$schema"];

/// A schema is accepted or rejected with its definition. Validation of a value is deterministic, and
/// consistent with `not` and with combinations of the schema with itself, `true` and `false`. The bytes are
/// the schema, a line of three dashes, and a value.
///
/// # Panics
/// If a property does not hold.
pub fn schema(data: &[u8]) {
    let Ok(text) = std::str::from_utf8(data) else {
        return;
    };
    let (schema, value) = text.split_once("\n---\n").unwrap_or((text, "null"));
    let (Ok(schema), Ok(value)) = (
        serde_json::from_str::<Value>(schema),
        serde_json::from_str::<Value>(value),
    ) else {
        return;
    };
    let Some(matches) = check(&schema, &value) else {
        return;
    };
    if BOUND_TO_THE_ROOT.iter().any(|word| text.contains(word)) {
        return;
    }
    for (same, combined) in [
        (false, json!({ "not": schema })),
        (true, json!({ "not": { "not": schema } })),
        (true, json!({ "allOf": [schema, schema] })),
        (true, json!({ "allOf": [true, schema] })),
        (true, json!({ "anyOf": [false, schema] })),
        (true, json!({ "oneOf": [schema, false] })),
        (true, json!({ "if": schema, "then": true, "else": false })),
    ] {
        // The combination may exceed the limits on size or work.
        if let Some(combined_matches) = check(&combined, &value) {
            assert_eq!(combined_matches == matches, same, "{combined} on {value}");
        }
    }
}

/// Validates a value as the answer to a question with this schema. Returns `None` if a limit is exceeded.
fn check(schema: &Value, value: &Value) -> Option<bool> {
    let document = json!({
        "id": "w", "name": "w", "version": "1", "triggers": [], "variables": [], "metadata": {}, "settings": {},
        "nodes": [{
            "id": "ask", "name": "ask", "typeId": "core.clarificationGate",
            "config": { "questions": [{ "id": "q", "question": "?", "schema": schema }] },
        }],
        "edges": [],
    });
    let plan = Plan::admit(document, NodeTypes::default()).ok()?;
    // A script makes every decision twice.
    let mut script = Script::of_plans([plan.into()]).start(json!({}));
    match script.answer("ask", json!({ "answers": { "q": value } })) {
        Ok(()) => Some(true),
        Err(Refusal::InvalidAnswer(why)) if why.contains("does not match its schema") => {
            (!why.contains("more work than allowed")).then_some(false)
        }
        Err(_) => None,
    }
}
