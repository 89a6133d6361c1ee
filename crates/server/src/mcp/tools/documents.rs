//! The seven tools of the Agent Workflow Protocol, with the names and shapes that its reference server gives them.
//!
//! They start, follow and steer executions of documents, which come with each call. What they do is the control plane's
//! ([`crate::awp`]). The protocol declares no schemas of results, and its clients take these lists literally, so there are
//! none here either, and no annotations.

use serde_json::{Value, json};
use tokio::sync::watch;
use wopr_core::Object;

use super::{Ask, Failure, Outcome, Output};
use crate::awp::{self, Request, Tool};

const DRAFT: &str = "http://json-schema.org/draft-07/schema#";

/// The tools, as the list has them.
pub(super) fn documents() -> impl Iterator<Item = Value> {
    Tool::ALL.into_iter().map(document)
}

/// Calls one of the tools.
pub(super) async fn call(ask: &Ask, tool: Tool, arguments: Object) -> Outcome {
    let (waiting, mut waits) = watch::channel(None);
    let request = Request {
        waiting: Some(waiting),
        trace: ask.trace.clone(),
        ..Request::new(tool, arguments, "mcp")
    };
    let following = async {
        match waits.wait_for(Option::is_some).await.map(|run| run.clone()) {
            Ok(Some(run)) => ask.progress.follow(ask.app(), &run).await,
            // The call has ended, or does not wait.
            Ok(None) | Err(_) => std::future::pending().await,
        }
    };
    let called = tokio::select! {
        called = awp::call(&ask.host, &ask.caller, request) => called,
        never = following => match never {},
        // What was begun goes on, and the status of the execution says how far it is.
        () = ask.given_up() => Err(awp::Error::new(awp::Code::Unavailable, "The host is closing; ask again.")),
    };
    match called {
        Ok(document) => Ok(Output {
            headline: headline(tool, &document),
            document,
        }),
        Err(awp::Error {
            code,
            message,
            details,
        }) => Err(Failure {
            code: code.as_str().to_owned(),
            message,
            details,
        }),
    }
}

/// The first line of the text, as the reference words it.
fn headline(tool: Tool, document: &Value) -> String {
    let text = |name: &str| document[name].as_str().unwrap_or_default();
    let (id, status) = (text("execution_id"), text("status"));
    match tool {
        Tool::Start | Tool::Cancel => format!("Execution {id} {status}."),
        Tool::Status => format!("Execution {id} is {}.", text("phase")),
        Tool::Resume => format!("Execution {id} {status} after resume."),
        Tool::SubmitActivity => format!("Execution {id} {status} after activity submit."),
        Tool::Signal => format!("Execution {id} {status} after signal delivery."),
        Tool::List => {
            let n_listed = document["executions"].as_array().map_or(0, Vec::len);
            format!("Listed {n_listed} execution(s).")
        }
    }
}

fn document(tool: Tool) -> Value {
    let (title, description, properties, required) = described(tool);
    let mut input = json!({ "$schema": DRAFT, "type": "object", "properties": properties });
    if !required.is_empty() {
        input["required"] = json!(required);
    }
    json!({
        "name": tool.name(),
        "title": title,
        "description": description,
        "inputSchema": input,
        "execution": { "taskSupport": "forbidden" },
    })
}

/// The title of a tool, its description, its arguments, and which of them are required.
fn described(tool: Tool) -> (&'static str, &'static str, Value, &'static [&'static str]) {
    match tool {
        Tool::Start => (
            "Start workflow execution",
            "Start a workflow execution and return canonical execution identity and current terminal/interrupted status.",
            json!({
                "execution_id": text(),
                "definition": object(),
                "input": object(),
                "activity_execution_mode": mode(),
                "allow_existing_execution_id": { "type": "boolean" },
            }),
            &["definition", "input"],
        ),
        Tool::Status => (
            "Read workflow status",
            "Read workflow phase, active node, and last known failure for an execution identity.",
            json!({ "execution_id": text() }),
            &["execution_id"],
        ),
        Tool::Resume => (
            "Resume interrupted workflow",
            "Resume an interrupted workflow with a resume payload bound to an execution identity.",
            json!({
                "execution_id": text(),
                "definition": object(),
                "resume_payload": object(),
                "activity_execution_mode": mode(),
            }),
            &["execution_id", "definition", "resume_payload"],
        ),
        Tool::SubmitActivity => (
            "Submit host-mediated activity outcome",
            "After workflow_start with activity_execution_mode host_mediated, submit success or failure for the pending \
             ActivityRequested node. Requires the same definition and input as the initial start.",
            json!({
                "execution_id": text(),
                "definition": object(),
                "input": object(),
                "node_id": text(),
                "outcome": outcome(),
                "parallel_span": span(),
                "activity_execution_mode": mode(),
            }),
            &["execution_id", "definition", "input", "node_id", "outcome"],
        ),
        Tool::Signal => (
            "Deliver workflow signal",
            "Deliver an external signal to unblock a wait node with config.kind signal. Signal payload keys merge into \
             workflow state via state_schema reducers. Returns EXECUTION_NOT_FOUND when the execution id is unknown. \
             Requires the same definition and input as the initial start.",
            json!({
                "execution_id": text(),
                "definition": object(),
                "input": object(),
                "signal_name": text(),
                "payload": object(),
                "activity_execution_mode": mode(),
            }),
            &["execution_id", "definition", "input", "signal_name"],
        ),
        Tool::Cancel => (
            "Cancel workflow execution",
            "Request cooperative cancellation for a non-terminal execution identity. Cancellation takes effect at host pause \
             points (awaiting signal, awaiting activity, interrupted); it does not interrupt an in-process node mid-flight. \
             Returns EXECUTION_NOT_FOUND when the execution id is unknown.",
            json!({ "execution_id": text(), "reason": text() }),
            &["execution_id"],
        ),
        Tool::List => (
            "List workflow executions",
            "List persisted workflow executions with optional phase, definition name, and date-range filters. Results are \
             paginated (newest first).",
            json!({
                "phase": {
                    "type": "string",
                    "enum": [
                        "running", "completed", "failed", "interrupted", "awaiting_activity", "awaiting_signal", "cancelled",
                    ],
                },
                "definition_name": text(),
                "updated_after": text(),
                "updated_before": text(),
                "limit": { "type": "integer", "exclusiveMinimum": 0, "maximum": 100 },
                "cursor": text(),
            }),
            &[],
        ),
    }
}

fn text() -> Value {
    json!({ "type": "string", "minLength": 1 })
}

fn object() -> Value {
    json!({ "type": "object", "properties": {}, "additionalProperties": {} })
}

fn mode() -> Value {
    json!({ "type": "string", "enum": ["in_process", "host_mediated"] })
}

fn outcome() -> Value {
    json!({ "oneOf": [
        {
            "type": "object",
            "properties": {
                "ok": { "type": "boolean", "const": true },
                "result": object(),
                "delegate_correlation_id": { "type": "string" },
                "external_task_id": { "type": "string" },
            },
            "required": ["ok"],
        },
        {
            "type": "object",
            "properties": {
                "ok": { "type": "boolean", "const": false },
                "error": text(),
                "code": { "type": "string" },
            },
            "required": ["ok", "error"],
        },
    ] })
}

fn span() -> Value {
    let members = [
        "parallel_node_id",
        "join_target_id",
        "branch_name",
        "branch_entry_node_id",
    ];
    let properties: Object = members
        .iter()
        .map(|member| ((*member).to_owned(), json!({ "type": "string" })))
        .collect();
    json!({ "type": "object", "properties": properties, "required": members })
}

#[cfg(test)]
mod tests {
    use std::{fs, path::Path};

    use super::*;

    #[test]
    fn the_list_is_that_of_the_reference() {
        let path = "../../../shared/fixtures/agent-workflow/mcp-tools-list.json";
        let Ok(text) = fs::read(Path::new(env!("CARGO_MANIFEST_DIR")).join(path)) else {
            println!(
                "note: the fixtures of the Agent Workflow Protocol are not here; the list was not compared"
            );
            return;
        };
        let reference: Value = serde_json::from_slice(&text).unwrap();
        let ours: Vec<_> = documents().collect();
        assert_eq!(reference["tools"], Value::Array(ours));
    }
}
