//! Calls to agents that have tasks and no card: over the task API of the Agent Workflow Protocol (`tasks-http`), or over
//! an embedder's [transport](AgentTransport).
//!
//! The task is submitted once and then read at the operator's interval, until it has ended or the operator's time is
//! over. Between two reads the call is parked. The codes and texts of failures are those of that protocol's mapping
//! guide. A question fails the call, or the run asks it. An answer goes to the agent if the transport takes answers;
//! else it is the result of the call, because whoever gives it has seen to the agent.

use std::time::Duration;

use serde::Deserialize as _;
use serde_json::{Value, json};
use wopr_core::{AgentCall, ContentHash, InterruptKind, RemoteQuestion, UNTRUSTED};
use wopr_engine::{Answered, Answering, CancelError, Cancellation, Outcome, Report};

use super::{
    Attempted, MAX_RETRY_AFTER,
    answer::given,
    failure::{cut, cut_to, failed},
    now,
    question::{ANSWER, MAX_QUESTION},
    transport::{AgentTransport, NewTask, TaskOf, TransportError},
};
use crate::a2a::{OnQuestion, RemoteTask, TaskStatus};

const CONFIG_INVALID: &str = "A2A_CONFIG_INVALID";
pub(super) const CREDENTIALS_MISSING: &str = "A2A_CREDENTIALS_MISSING";
pub(super) const PROVIDER_ERROR: &str = "A2A_PROVIDER_ERROR";
const TASK_FAILED: &str = "A2A_TASK_FAILED";
const PROTOCOL_UNSUPPORTED: &str = "DELEGATE_PROTOCOL_UNSUPPORTED";
/// How long the look may take that comes when the time of a task is over.
const LAST_LOOK: Duration = Duration::from_secs(1);

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
    /// When the agent accepted it or went on with it, in milliseconds since 1970.
    since: u64,
    /// The peer; known here only to name it in a result that the agent did not give.
    #[serde(default)]
    peer: String,
    /// What the agent waits for, if it asks: what its question is named by.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    asks: Option<String>,
}

impl Accepted {
    fn to_handle(&self) -> Value {
        serde_json::to_value(Handle {
            tasks_http: self.clone(),
        })
        .unwrap_or_default()
    }
}

/// Returns `true` if a handle is of such a task.
pub(super) fn is_handle(handle: &Value) -> bool {
    handle.get("tasksHttp").is_some()
}

/// The peer that has the task of a handle.
pub(super) fn peer_of(handle: &Value) -> &str {
    handle["tasksHttp"]["peer"].as_str().unwrap_or_default()
}

/// Submits the task of a call, or looks at it.
pub(super) async fn attempt(api: &dyn AgentTransport, attempted: &Attempted<'_>) -> Report {
    match attempted.handle.clone().map(serde_json::from_value::<Handle>) {
        None => submit(api, attempted).await,
        Some(Ok(handle)) => look(api, attempted, handle.tasks_http).await,
        Some(Err(_)) => failed(
            PROVIDER_ERROR,
            "the call began over another transport than the peer has now".to_owned(),
        )
        .into(),
    }
}

async fn submit(api: &dyn AgentTransport, attempted: &Attempted<'_>) -> Report {
    let Attempted { call, run, key, .. } = attempted;
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
    let correlation = correlation_id(attempted);
    let submitted = api.submit(NewTask {
        tenant: &run.tenant,
        agent_id,
        correlation_id: &correlation,
        idempotency_key: key,
        input: &input,
        trace: attempted.trace.as_ref(),
    });
    match within(api.polling().timeout, submitted).await {
        Ok(task) => {
            let accepted = Accepted {
                task_id: task.id.clone(),
                since: now(),
                peer: call.peer.clone(),
                asks: None,
            };
            match ended(call, &task, api.polling().on_question) {
                Some(outcome) => outcome.into(),
                None if task.status == TaskStatus::InputRequired => asked(api, accepted, &task),
                None => Report::Accepted {
                    check_after: Some(api.polling().interval),
                    handle: accepted.to_handle(),
                },
            }
        }
        Err(error) => refused(error).into(),
    }
}

/// The name of an execution of a node, which is that of the mapping guide for the first one, unless the caller has named
/// the task. Another one has its key as well: an agent that recognizes the name would answer with the task that it has.
fn correlation_id(attempted: &Attempted<'_>) -> String {
    let Attempted {
        call, run, step, key, ..
    } = attempted;
    if let Some(correlation) = &call.correlation {
        return correlation.clone();
    }
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

async fn look(api: &dyn AgentTransport, attempted: &Attempted<'_>, accepted: Accepted) -> Report {
    let (call, polling) = (attempted.call, api.polling());
    let was_asking = accepted.asks.is_some();
    let left = || {
        let age = Duration::from_millis(now().saturating_sub(accepted.since));
        polling.timeout.saturating_sub(age)
    };
    let looking = api.get(TaskOf {
        tenant: &attempted.run.tenant,
        id: &accepted.task_id,
    });
    let looked = match was_asking {
        true => looking.await,
        false => within(left().max(LAST_LOOK), looking).await,
    };
    let left = left();
    let id = cut(&accepted.task_id);
    let ms = polling.timeout.as_millis();
    let (last, after) = match looked {
        Ok(task) => match ended(call, &task, polling.on_question) {
            Some(outcome) => return outcome.into(),
            None if task.status == TaskStatus::InputRequired => return asked(api, accepted, &task),
            // The question took its time; the work has its own.
            None if was_asking => {
                let accepted = Accepted {
                    asks: None,
                    since: now(),
                    ..accepted
                };
                return Report::Accepted {
                    check_after: Some(polling.interval),
                    handle: accepted.to_handle(),
                };
            }
            None => (format!("last status: {}", task.status), polling.interval),
        },
        Err(error) if error.retryable => {
            let after = error.retry_after.unwrap_or_default();
            let after = after.clamp(polling.interval, MAX_RETRY_AFTER.max(polling.interval));
            (format!("last failure: {}", error.message), after)
        }
        Err(error) => return refused(error).into(),
    };
    if left.is_zero() && !was_asking {
        let text = format!("A2A task \"{id}\" did not reach a terminal status within {ms}ms ({last})");
        return failed(PROVIDER_ERROR, cut(&text)).into();
    }
    Report::Unchanged {
        check_after: Some(if was_asking { after } else { after.min(left) }),
    }
}

/// Waits for an answer of the transport for so long.
async fn within<T>(
    time: Duration,
    asking: impl Future<Output = Result<T, TransportError>>,
) -> Result<T, TransportError> {
    let answer = tokio::time::timeout(time, asking).await;
    answer.unwrap_or_else(|_| Err(TransportError::transient("the agent did not answer in time")))
}

/// Parks a call whose agent asks. The question is another one when the agent shows something else with it.
fn asked(api: &dyn AgentTransport, accepted: Accepted, task: &RemoteTask) -> Report {
    let shown = task.output.clone().unwrap_or_default();
    let prompt = shown["prompt"].as_str().or_else(|| shown.as_str());
    let prompt = cut_to(prompt.unwrap_or("The agent asks for input."), MAX_QUESTION);
    let text = match api.takes_answers() {
        true => prompt,
        false => format!(
            "{prompt}\n(Answer the agent by its own interface: its transport takes no answers. What is answered here is \
             the result of the step, and ends it.)"
        ),
    };
    let key = ContentHash::of(shown.to_string().as_bytes()).as_str().to_owned();
    let accepted = Accepted {
        asks: Some(key.clone()),
        ..accepted
    };
    Report::Interrupted {
        question: RemoteQuestion {
            key,
            kind: InterruptKind::Clarification,
            data: json!({
                "source": "remote",
                "peer": accepted.peer,
                "taskId": accepted.task_id,
                "message": text,
                "questions": [{ "id": ANSWER, "question": text }],
                "contentTrust": UNTRUSTED,
            }),
        },
        check_after: Some(api.polling().interval),
        handle: accepted.to_handle(),
    }
}

/// Sends an answer, or ends the call with it.
pub(super) async fn answer(
    api: Option<&dyn AgentTransport>,
    answering: Answering,
) -> Result<Answered, CancelError> {
    let handle: Handle =
        serde_json::from_value(answering.handle).map_err(|error| CancelError::new(error.to_string()))?;
    let accepted = handle.tasks_http;
    let answer = given(answering.value);
    let Some(api) = api.filter(|api| api.takes_answers()) else {
        let data = match answer {
            Value::String(text) => json!({ "text": text }),
            data => data,
        };
        let outputs = outputs(&accepted.peer, &accepted.task_id, Some(data));
        return Ok(Answered::Ended(Outcome::Done(outputs)));
    };
    let task = TaskOf {
        tenant: &answering.run.tenant,
        id: &accepted.task_id,
    };
    match api.answer(task, &answer, &answering.idempotency_key).await {
        Ok(()) => Ok(Answered::Taken),
        Err(error) if error.retryable => Err(CancelError::new(error.message)),
        Err(error) => Ok(Answered::Ended(refused(error))),
    }
}

/// Cancels a task, as far as its transport can.
pub(super) async fn cancel(api: &dyn AgentTransport, call: &Cancellation) -> Result<(), CancelError> {
    let handle = Handle::deserialize(&call.handle).map_err(|error| CancelError::new(error.to_string()))?;
    let task = TaskOf {
        tenant: &call.run.tenant,
        id: &handle.tasks_http.task_id,
    };
    match api.cancel(task).await {
        Err(error) if error.retryable => Err(CancelError::new(error.message)),
        // It can be cancelled no more.
        Err(_) | Ok(()) => Ok(()),
    }
}

/// The outcome of a task that goes no further.
fn ended(call: &AgentCall, task: &RemoteTask, on_question: OnQuestion) -> Option<Outcome> {
    let id = cut(&task.id);
    let because = |what: &str| {
        cut(task
            .error
            .as_deref()
            .unwrap_or(&format!("A2A task \"{id}\" {what}")))
    };
    match task.status {
        TaskStatus::Submitted | TaskStatus::Working => None,
        TaskStatus::Completed => Some(Outcome::Done(outputs(&call.peer, &task.id, task.output.clone()))),
        TaskStatus::Failed => Some(failed(TASK_FAILED, because("failed"))),
        TaskStatus::Canceled => Some(failed(TASK_FAILED, because("was canceled"))),
        TaskStatus::Rejected => Some(failed(TASK_FAILED, because("was rejected"))),
        TaskStatus::InputRequired if on_question == OnQuestion::Park => None,
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
fn outputs(peer: &str, task: &str, output: Option<Value>) -> Value {
    let output = output.unwrap_or_else(|| json!({ "delegate_status": "completed" }));
    let text = output.as_str().or_else(|| output["text"].as_str());
    json!({
        "text": text.unwrap_or_default(),
        "data": output,
        "artifacts": [],
        "state": "completed",
        "taskId": task,
        "contextId": "",
        "peer": peer,
        "contentTrust": UNTRUSTED,
    })
}

/// The failure of a request.
fn refused(error: TransportError) -> Outcome {
    Outcome::Failed {
        code: error.code,
        message: cut(&error.message),
        retryable: error.retryable,
        retry_after: error.retry_after.map(|after| after.min(MAX_RETRY_AFTER)),
        // Nothing could be recalled: a task whose id is not known cannot be cancelled.
        may_go_on: false,
        is_timeout: false,
    }
}
