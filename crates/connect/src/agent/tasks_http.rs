//! Calls to a peer with the task API of the Agent Workflow Protocol (`tasks-http`).
//!
//! The task is submitted once and then read at the operator's interval, until it has ended or the operator's time is
//! over. Between two reads the call is parked. The codes and texts of failures are those of that protocol's mapping
//! guide. The API cannot cancel a task, and an answer to a question has no way in, so a question fails the call.

use std::time::Duration;

use serde_json::{Value, json};
use wopr_core::{AgentCall, UNTRUSTED};
use wopr_engine::{Outcome, Report};

use super::{
    Attempted, MAX_RETRY_AFTER,
    failure::{cut, failed, not_sent},
    now,
};
use crate::a2a::{Error, RemoteTask, TaskApi, TaskStatus};

const CONFIG_INVALID: &str = "A2A_CONFIG_INVALID";
const CREDENTIALS_MISSING: &str = "A2A_CREDENTIALS_MISSING";
const PROVIDER_ERROR: &str = "A2A_PROVIDER_ERROR";
const TASK_FAILED: &str = "A2A_TASK_FAILED";
const PROTOCOL_UNSUPPORTED: &str = "DELEGATE_PROTOCOL_UNSUPPORTED";

/// By which a task is found again. Its only member keeps it apart from the handle of an A2A task.
#[derive(Debug, Clone, PartialEq, serde::Serialize, serde::Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct Handle {
    tasks_http: Accepted,
}

#[derive(Debug, Clone, PartialEq, serde::Serialize, serde::Deserialize)]
#[serde(rename_all = "camelCase")]
struct Accepted {
    task_id: String,
    /// When the agent accepted it, in milliseconds since 1970.
    since: u64,
}

/// Returns `true` if a handle is of a task of this API.
pub(super) fn is_handle(handle: &Value) -> bool {
    handle.get("tasksHttp").is_some()
}

/// Submits the task of a call, or looks at it.
pub(super) async fn attempt(api: &TaskApi, attempted: &Attempted<'_>) -> Report {
    match attempted.handle.clone().map(serde_json::from_value::<Handle>) {
        None => submit(api, attempted).await,
        Some(Ok(handle)) => look(api, attempted.call, handle.tasks_http).await,
        Some(Err(_)) => failed(
            PROVIDER_ERROR,
            "the call began over another transport than the peer has now".to_owned(),
        )
        .into(),
    }
}

async fn submit(api: &TaskApi, attempted: &Attempted<'_>) -> Report {
    let Attempted { call, key, .. } = attempted;
    if let Some(outcome) = unsupported(call) {
        return outcome.into();
    }
    let agent_id = call.skill.as_deref().unwrap_or(&call.peer);
    if agent_id.trim().is_empty() {
        return failed(CONFIG_INVALID, "the node names no agent_id (skill)".to_owned()).into();
    }
    let input = match (&call.data, &call.text) {
        (Some(data), _) => data.clone(),
        (None, text) => json!({ "task": text.as_deref().unwrap_or_default() }),
    };
    match api
        .submit(agent_id, &correlation_id(attempted), key, &input)
        .await
    {
        Ok(task) => {
            let accepted = Accepted {
                task_id: task.id.clone(),
                since: now(),
            };
            match ended(call, &task) {
                Some(outcome) => outcome.into(),
                None => Report::Accepted {
                    check_after: Some(api.polling().interval),
                    handle: serde_json::to_value(Handle { tasks_http: accepted }).unwrap_or_default(),
                },
            }
        }
        Err(error) => provider_error(&error).into(),
    }
}

/// The name of an execution of a node, which is that of the mapping guide for the first one. Another one has its key
/// as well: an agent that recognizes the name would answer with the task that it has.
fn correlation_id(attempted: &Attempted<'_>) -> String {
    let Attempted { run, step, key, .. } = attempted;
    let first = format!("{}:delegate:{}", run.run.as_str(), step.node);
    match step.ordinal {
        0 => first,
        _ => format!("{first}:{key}"),
    }
}

/// Refuses what the API cannot carry, because the agent would not see it.
fn unsupported(call: &AgentCall) -> Option<Outcome> {
    if call.version.is_some() || call.binding.is_some() {
        let text = "the peer has the transport tasks-http: no A2A version or binding can be chosen";
        return Some(failed(PROTOCOL_UNSUPPORTED, text.to_owned()));
    }
    let what = if !call.files.is_empty() {
        "files"
    } else if call.context.is_some() {
        "contextId"
    } else if !call.output_modes.is_empty() {
        "acceptedOutputModes"
    } else {
        return None;
    };
    Some(failed(
        "invalid_input",
        format!("{what} cannot be sent over tasks-http"),
    ))
}

async fn look(api: &TaskApi, call: &AgentCall, accepted: Accepted) -> Report {
    let polling = api.polling();
    let looked = api.get(&accepted.task_id).await;
    let age = Duration::from_millis(now().saturating_sub(accepted.since));
    let left = polling.timeout.saturating_sub(age);
    let id = cut(&accepted.task_id);
    let ms = polling.timeout.as_millis();
    let (last, after) = match looked {
        Ok(task) => match ended(call, &task) {
            Some(outcome) => return outcome.into(),
            None => (format!("last status: {}", task.status), polling.interval),
        },
        Err(error) if error.is_transient() => {
            let after = error.retry_after().unwrap_or_default();
            let after = after.clamp(polling.interval, MAX_RETRY_AFTER.max(polling.interval));
            (format!("last failure: failed to {error}"), after)
        }
        Err(error) => return provider_error(&error).into(),
    };
    if left.is_zero() {
        let text = format!("A2A task \"{id}\" did not reach a terminal status within {ms}ms ({last})");
        return failed(PROVIDER_ERROR, cut(&text)).into();
    }
    Report::Unchanged {
        check_after: Some(after.min(left)),
    }
}

/// The outcome of a task that goes no further.
fn ended(call: &AgentCall, task: &RemoteTask) -> Option<Outcome> {
    let id = cut(&task.id);
    let because = |what: &str| {
        cut(task
            .error
            .as_deref()
            .unwrap_or(&format!("A2A task \"{id}\" {what}")))
    };
    match task.status {
        TaskStatus::Submitted | TaskStatus::Working => None,
        TaskStatus::Completed => Some(Outcome::Done(outputs(call, task))),
        TaskStatus::Failed => Some(failed(TASK_FAILED, because("failed"))),
        TaskStatus::Canceled => Some(failed(TASK_FAILED, because("was canceled"))),
        TaskStatus::Rejected => Some(failed(TASK_FAILED, because("was rejected"))),
        TaskStatus::InputRequired => Some(failed(
            PROVIDER_ERROR,
            format!(
                "A2A task \"{id}\" requires host input (input-required); \
                 use host_mediated activity mode for interactive delegates"
            ),
        )),
    }
}

/// The outputs of a step whose task is completed, named as for A2A.
fn outputs(call: &AgentCall, task: &RemoteTask) -> Value {
    let output = task.output.clone();
    let output = output.unwrap_or_else(|| json!({ "delegate_status": "completed" }));
    let text = output.as_str().or_else(|| output["text"].as_str());
    json!({
        "text": text.unwrap_or_default(),
        "data": output,
        "artifacts": [],
        "state": "completed",
        "taskId": task.id,
        "contextId": "",
        "peer": call.peer,
        "contentTrust": UNTRUSTED,
    })
}

/// The failure of a request.
fn provider_error(error: &Error) -> Outcome {
    if let Error::UnknownPeer(_) = error {
        return not_sent(error);
    }
    let is_without_token = matches!(error, Error::CredentialMissing { .. });
    let code = if is_without_token {
        CREDENTIALS_MISSING
    } else {
        PROVIDER_ERROR
    };
    let said = if let Error::Status(status) = error {
        status.message.as_str()
    } else if let Error::Remote(remote) = error {
        remote.message.as_str()
    } else {
        ""
    };
    let said = if said.is_empty() {
        String::new()
    } else {
        format!(": {said}")
    };
    Outcome::Failed {
        code: code.to_owned(),
        message: cut(&format!("failed to {error}{said}")),
        retryable: error.is_transient(),
        retry_after: error.retry_after().map(|after| after.min(MAX_RETRY_AFTER)),
        // Nothing could be recalled: the API has no way to cancel a task.
        may_go_on: false,
    }
}
