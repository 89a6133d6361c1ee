//! The OpenAPI description of the control plane.

use serde_json::{Map, Value, json};
use wopr_core::awp::{ExecutionPhase, MAX_ROWS};

use crate::awp::{call::MAX_CHILD_DEFINITIONS, error::Code};

/// An operation: method, path, id, summary, body, answer with its status, errors.
struct Operation {
    method: &'static str,
    path: &'static str,
    id: &'static str,
    summary: &'static str,
    body: Option<&'static str>,
    answer: (u16, &'static str),
    errors: &'static [u16],
}

const OPERATIONS: [Operation; 12] = [
    Operation {
        method: "post",
        path: "/v1/workflows",
        id: "registerWorkflowDefinition",
        summary: "Register a workflow definition",
        body: Some("RegisterWorkflowRequest"),
        answer: (201, "RegisterWorkflowResponse"),
        errors: &[400, 409],
    },
    Operation {
        method: "get",
        path: "/v1/workflows/{wf_id}",
        id: "getWorkflowDefinition",
        summary: "Read a registered workflow definition",
        body: None,
        answer: (200, "RegisterWorkflowResponse"),
        errors: &[404],
    },
    Operation {
        method: "post",
        path: "/v1/workflows/{wf_id}/executions",
        id: "startWorkflowExecution",
        summary: "Start an execution of a registered workflow",
        body: Some("StartExecutionRequest"),
        answer: (200, "ExecutionResult"),
        errors: &[400, 404, 409, 500],
    },
    Operation {
        method: "get",
        path: "/v1/executions",
        id: "listExecutions",
        summary: "List executions, the latest change of status first",
        body: None,
        answer: (200, "ExecutionList"),
        errors: &[400],
    },
    Operation {
        method: "post",
        path: "/v1/executions:import",
        id: "importExecution",
        summary: "Create an execution from its history",
        body: Some("ImportExecutionRequest"),
        answer: (201, "WorkflowStatusResult"),
        errors: &[400, 409],
    },
    Operation {
        method: "get",
        path: "/v1/executions/{exec_id}",
        id: "getExecutionStatus",
        summary: "Read the phase of an execution",
        body: None,
        answer: (200, "WorkflowStatusResult"),
        errors: &[404],
    },
    Operation {
        method: "get",
        path: "/v1/executions/{exec_id}/events",
        id: "listExecutionEvents",
        summary: "Read a page of an execution's history",
        body: None,
        answer: (200, "ExecutionEventsPage"),
        errors: &[400, 404],
    },
    Operation {
        method: "get",
        path: "/v1/executions/{exec_id}/checkpoint",
        id: "getExecutionCheckpoint",
        summary: "Read the last checkpoint of an execution",
        body: None,
        answer: (200, "CheckpointResponse"),
        errors: &[404],
    },
    Operation {
        method: "post",
        path: "/v1/executions/{exec_id}:resume",
        id: "resumeExecution",
        summary: "Resume an interrupted execution",
        body: Some("ResumeExecutionRequest"),
        answer: (200, "ExecutionResult"),
        errors: &[400, 404, 409, 500],
    },
    Operation {
        method: "post",
        path: "/v1/executions/{exec_id}:submit_activity",
        id: "submitHostMediatedActivity",
        summary: "Submit the outcome of the activity that an execution waits for",
        body: Some("SubmitActivityRequest"),
        answer: (200, "ExecutionResult"),
        errors: &[400, 409, 500],
    },
    Operation {
        method: "post",
        path: "/v1/executions/{exec_id}:signal",
        id: "signalExecution",
        summary: "Deliver the signal that an execution waits for",
        body: Some("SignalExecutionRequest"),
        answer: (200, "ExecutionResult"),
        errors: &[400, 404, 409, 500],
    },
    Operation {
        method: "post",
        path: "/v1/executions/{exec_id}:cancel",
        id: "cancelExecution",
        summary: "Cancel an execution and its children",
        body: Some("CancelExecutionRequest"),
        answer: (200, "ExecutionResult"),
        errors: &[400, 404, 409],
    },
];

pub(super) fn document(origin: &str, prefix: &str) -> Value {
    let mut paths: Map<String, Value> = Map::new();
    for operation in &OPERATIONS {
        let item = paths
            .entry(operation.path.to_owned())
            .or_insert_with(|| json!({}));
        item[operation.method] = described(operation);
    }
    json!({
        "openapi": "3.1.0",
        "info": {
            "title": "wopr",
            "summary": "The control plane of the Agent Workflow Protocol.",
            "version": env!("CARGO_PKG_VERSION"),
            "license": { "name": "Apache-2.0", "identifier": "Apache-2.0" },
        },
        "jsonSchemaDialect": "https://json-schema.org/draft/2020-12/schema",
        "servers": [{ "url": format!("{origin}{prefix}") }],
        "security": [{ "bearer": [] }],
        "paths": paths,
        "components": {
            "schemas": schemas(),
            "securitySchemes": {
                "bearer": { "type": "http", "scheme": "bearer", "description": "An API key." },
            },
        },
    })
}

fn described(operation: &Operation) -> Value {
    let content = |schema: &str| json!({ "application/json": { "schema": { "$ref": format!("#/components/schemas/{schema}") } } });
    let (status, schema) = operation.answer;
    let mut responses =
        json!({ status.to_string(): { "description": "Success", "content": content(schema) } });
    for status in [401, 403, 503].iter().chain(operation.errors) {
        responses[status.to_string()] = json!({ "description": "Error", "content": content("ErrorBody") });
    }
    let mut described = json!({
        "operationId": operation.id,
        "summary": operation.summary,
        "parameters": parameters(operation),
        "responses": responses,
    });
    if let Some(schema) = operation.body {
        described["requestBody"] = json!({ "required": true, "content": content(schema) });
    }
    described
}

fn parameters(operation: &Operation) -> Vec<Value> {
    let parameter = |place: &str, name: &str, schema: Value| json!({ "in": place, "name": name, "required": place == "path", "schema": schema });
    let number = || json!({ "type": "integer", "minimum": 1 });
    let text = || json!({ "type": "string" });
    let mut parameters = Vec::new();
    for name in ["wf_id", "exec_id"] {
        if operation.path.contains(&format!("{{{name}}}")) {
            parameters.push(parameter("path", name, text()));
        }
    }
    match operation.id {
        "listExecutionEvents" => {
            let names = ["from_seq", "to_seq", "limit", "cursor"];
            parameters.extend(names.map(|name| parameter("query", name, number())));
        }
        "listExecutions" => {
            parameters.push(parameter("query", "phase", phases()));
            let names = ["definition_name", "updated_after", "updated_before", "cursor"];
            parameters.extend(names.map(|name| parameter("query", name, text())));
            let limit = json!({ "type": "integer", "minimum": 1, "maximum": 100, "default": 50 });
            parameters.push(parameter("query", "limit", limit));
        }
        _ if operation.method == "post" => {
            parameters.push(parameter("header", "Idempotency-Key", text()));
        }
        _ => {}
    }
    parameters
}

fn phases() -> Value {
    let phases = [
        ExecutionPhase::Running,
        ExecutionPhase::AwaitingActivity,
        ExecutionPhase::AwaitingSignal,
        ExecutionPhase::Interrupted,
        ExecutionPhase::Completed,
        ExecutionPhase::Failed,
        ExecutionPhase::Cancelled,
    ];
    json!({ "type": "string", "enum": phases.map(ExecutionPhase::as_str) })
}

/// A closed object; the members that are required end with `!`.
fn object(members: &[(&str, Value)]) -> Value {
    let mut properties = Map::new();
    let mut required = Vec::new();
    for (name, schema) in members {
        let bare = name.trim_end_matches('!');
        if bare.len() < name.len() {
            required.push(bare);
        }
        properties.insert(bare.to_owned(), schema.clone());
    }
    json!({ "type": "object", "properties": properties, "required": required, "additionalProperties": false })
}

fn schemas() -> Value {
    let text = || json!({ "type": "string" });
    let number = || json!({ "type": "integer", "minimum": 0 });
    let time = || json!({ "type": "string", "format": "date-time" });
    let any_object = || json!({ "type": "object" });
    let reference = |name: &str| json!({ "$ref": format!("#/components/schemas/{name}") });
    let mode = || json!({ "type": "string", "enum": ["in_process", "host_mediated"] });
    let codes: Vec<_> = Code::ALL.iter().map(|code| code.as_str()).collect();
    let error = object(&[
        ("code!", json!({ "type": "string", "enum": codes })),
        ("message!", text()),
        ("details", any_object()),
    ]);
    let waits = [
        ("signal_name", text()),
        ("interrupt_id", text()),
        ("child_execution_id", text()),
    ];
    let activity_of = [("execution_id!", text()), ("node_id!", text())];
    let activity = [
        ("parallel_span", reference("ParallelSpan")),
        ("attempt", number()),
        ("timeout_ms", number()),
        ("agent_id", text()),
        ("protocol", text()),
        ("delegate_input", any_object()),
        ("delegate_correlation_id", text()),
    ];
    let all_awaited = [(
        "awaiting_activities",
        json!({ "type": "array", "items": reference("AwaitedActivity") }),
    )];
    let result = [
        ("execution_id!", text()),
        ("status!", phases()),
        ("node_id", text()),
        ("state", any_object()),
        ("final_state", any_object()),
        ("result", json!({})),
        ("reason", text()),
    ];
    let status = [
        ("execution_id!", text()),
        ("phase!", phases()),
        ("current_node_id", text()),
        ("last_error", text()),
        ("parent_execution_id", text()),
        ("child", reference("WorkflowStatusResult")),
    ];
    let done = object(&[
        ("ok!", json!({ "const": true })),
        ("result", any_object()),
        ("delegate_correlation_id", text()),
        ("external_task_id", text()),
    ]);
    let failed = object(&[
        ("ok!", json!({ "const": false })),
        ("error!", text()),
        ("code", text()),
    ]);
    json!({
        "ErrorBody": object(&[("error!", error)]),
        "ParallelSpan": object(&[
            ("parallel_node_id!", text()), ("join_target_id!", text()), ("branch_name!", text()),
            ("branch_entry_node_id!", text()),
        ]),
        "RegisterWorkflowRequest": object(&[("definition!", any_object())]),
        "RegisterWorkflowResponse": object(&[("wf_id!", text()), ("definition!", any_object())]),
        "StartExecutionRequest": object(&[
            ("execution_id", text()), ("input", any_object()), ("activity_execution_mode", mode()),
            ("parallel_activities", json!({ "type": "boolean" })),
            ("allow_existing_execution_id", json!({ "type": "boolean" })), ("configurable", any_object()),
        ]),
        "ImportExecutionRequest": object(&[
            ("definition!", any_object()),
            ("rows!", json!({ "type": "array", "minItems": 1, "maxItems": MAX_ROWS, "items": reference("GivenHistoryRow") })),
            ("execution_id", text()), ("input", any_object()), ("activity_execution_mode", mode()),
            ("parallel_activities", json!({ "type": "boolean" })), ("configurable", any_object()),
            ("child_definitions", json!({ "type": "array", "maxItems": MAX_CHILD_DEFINITIONS, "items": any_object() })),
            ("child_rows", json!({ "type": "array", "maxItems": MAX_ROWS, "items": {
                "type": "array", "minItems": 1, "maxItems": MAX_ROWS, "items": reference("GivenHistoryRow"),
            } })),
        ]),
        "GivenHistoryRow": object(&[
            ("seq!", number()), ("kind!", json!({ "type": "string", "enum": ["command", "event"] })),
            ("name!", text()), ("payload!", any_object()), ("created_at!", time()),
            ("record_schema_version", json!({ "const": 1 })), ("execution_id", text()),
        ]),
        "ResumeExecutionRequest": object(&[
            ("definition!", any_object()), ("resume_payload!", any_object()), ("interrupt_id", text()),
            ("activity_execution_mode", mode()),
        ]),
        "SubmitActivityRequest": object(&[
            ("definition!", any_object()), ("input", any_object()), ("node_id!", text()),
            ("outcome!", json!({ "oneOf": [done, failed] })), ("parallel_span", reference("ParallelSpan")),
            ("activity_execution_mode", mode()),
        ]),
        "SignalExecutionRequest": object(&[
            ("definition!", any_object()), ("input", any_object()), ("signal_name!", text()),
            ("payload", any_object()), ("activity_execution_mode", mode()),
        ]),
        "CancelExecutionRequest": object(&[("reason", text())]),
        "AwaitedActivity": object(&[&activity_of[..], &activity[..]].concat()),
        "ExecutionResult": object(&[&result[..], &waits[..], &activity[..], &all_awaited[..]].concat()),
        "WorkflowStatusResult": object(&[&status[..], &waits[..], &activity[..], &all_awaited[..]].concat()),
        "ExecutionList": object(&[
            ("executions!", json!({ "type": "array", "items": reference("ListedExecution") })),
            ("next_cursor", text()),
        ]),
        "ListedExecution": object(&[
            ("execution_id!", text()), ("phase!", phases()), ("definition_name!", text()), ("updated_at!", time()),
        ]),
        "HistoryEvent": object(&[
            ("seq!", number()), ("kind!", json!({ "type": "string", "enum": ["command", "event"] })),
            ("name!", text()), ("payload!", any_object()), ("created_at!", time()),
            ("record_schema_version!", number()),
        ]),
        "ExecutionEventsPage": object(&[
            ("execution_id!", text()),
            ("events!", json!({ "type": "array", "items": reference("HistoryEvent") })),
            ("next_cursor", number()),
        ]),
        "CheckpointResponse": object(&[
            ("execution_id!", text()), ("checkpoint!", any_object()), ("seq!", number()), ("created_at!", time()),
        ]),
    })
}
