//! Pieces of the schemas of tools.

use serde_json::{Value, json};

/// The schema of arguments: these, of which some are required.
#[expect(clippy::needless_pass_by_value, reason = "its callers have literals")]
pub(super) fn arguments(properties: Value, required: &[&str]) -> Value {
    let mut schema = json!({ "type": "object", "properties": properties, "additionalProperties": false });
    if !required.is_empty() {
        schema["required"] = json!(required);
    }
    schema
}

/// The schema of a result: these members, or an error. Clients hold failures against it, too.
pub(super) fn result(mut properties: Value, required: &[&str]) -> Value {
    properties["error"] = json!({
        "type": "object",
        "properties": {
            "code": { "type": "string" },
            "message": { "type": "string" },
            "details": { "type": "object" },
        },
        "required": ["code", "message"],
    });
    json!({
        "type": "object",
        "properties": properties,
        "anyOf": [{ "required": required }, { "required": ["error"] }],
    })
}

pub(super) fn run_id() -> Value {
    json!({ "type": "string", "minLength": 1, "description": "The id of the run, such as run_01…" })
}

pub(super) fn wait_ms() -> Value {
    json!({
        "type": "integer",
        "minimum": 0,
        "description": "How long to wait for the run to end or to need an answer, in milliseconds. By default, and at most, \
                        as long as the host lets a call wait (25 seconds unless configured); 0 answers at once. \
                        A run that is not done by then is answered as it is, and goes on.",
    })
}

/// The result of a tool that gives a run.
pub(super) fn run() -> Value {
    result(
        json!({
            "runId": { "type": "string" },
            "workflowId": { "type": "string" },
            "status": {
                "type": "string",
                "enum": ["pending", "running", "paused", "waiting-approval", "waiting-input", "waiting-external",
                         "completed", "failed", "cancelling", "cancelled"],
            },
            "eventCount": { "type": "integer", "description": "The number of events in the run's log" },
            "next": { "type": "string", "description": "What can be done now" },
            "run": {
                "type": "object",
                "description": "The run as GET /v1/runs/{runId} shows it: inputs, variables, node states, open questions \
                                (interrupts), and the error if it failed",
            },
            "omitted": {
                "type": "array",
                "items": { "type": "string" },
                "description": "Members of the run that are left out because the result would be too large; of interrupts, \
                                all but where an answer goes",
            },
        }),
        &["runId", "workflowId", "status", "eventCount", "next", "run"],
    )
}
