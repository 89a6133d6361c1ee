//! Sends the message of a call.
//!
//! The message has an id that is made of the call's key, so it is the same in every attempt: an agent that recognizes
//! message ids makes one task of them. For one that does not, the first message to an agent of 1.0 also opens a
//! context of the call's own, unless the workflow names one. Before the message is sent again, because this host died
//! or a connection broke, the agent is asked for a task in that context, and once more after a while if it lists none: it
//! may have the message and no task yet. If it lists several in the end, all but one are cancelled. A second task stays
//! only with an agent that does neither: it knows no ids, and does not list tasks by context. A call that is recalled is
//! looked for in the same ways; see [`super::recall`].

use std::{collections::HashMap, time::Duration};

use parking_lot::Mutex;
use serde_json::{Value, json};
use tokio::time::Instant;
use wopr_core::{AgentCall, ContentHash, TraceContext};
use wopr_engine::{Outcome, Report, Throttles};
use wopr_wire::{
    a2a::{
        error::Kind,
        method::Version,
        model::{
            ListTasksRequest, Message, Part, Role, SendMessageConfiguration, SendMessageRequest,
            SendMessageResponse, Task, TaskState,
        },
    },
    json::Object,
};

use super::{
    Agents, Attempted, Handle,
    answer::cancelled,
    failure::{failed, not_sent},
    files::{Draft, Incomplete},
    now,
    outputs::of_message,
    stream::{GoesOn, stream},
};
use crate::{
    CallingHost,
    a2a::{self, Agent},
};

/// Lines a minute about messages of which an agent has made two tasks, for each agent.
static TWO_TASKS: Throttles = Throttles::new(10);
static NOT_CANCELLED: Throttles = Throttles::new(10);

/// Longest names of a task and its context, together.
const MAX_IDS: usize = 2 << 10;
/// The most tasks that are read of a call's own context, which holds one.
const MAX_TASKS: u32 = 20;
/// How long a message waits that is to be sent again, and how long after that the agent is asked again at the latest.
const ONCE_MORE: Duration = Duration::from_secs(5);
const STALE: Duration = Duration::from_secs(300);
/// Why a task is left.
pub(super) const NAME_TOO_LONG: &str = "the agent's name for its task is too long";
/// When files that could not be read are read again.
const FILES_AGAIN: Duration = Duration::from_secs(1);

/// What an agent says to a message for the first time.
pub(super) struct Sent {
    pub(super) agent: Agent,
    pub(super) answer: SendMessageResponse,
    /// The stream of the task, if it goes on.
    stream: Option<GoesOn>,
}

impl Agents {
    pub(super) async fn send(&self, attempted: Attempted<'_>) -> Report {
        match Box::pin(self.message(&attempted)).await {
            Ok(Sent {
                answer: SendMessageResponse::Message(message),
                ..
            }) => Outcome::Done(of_message(&attempted.call.peer, &message)).into(),
            Ok(Sent {
                agent,
                answer: SendMessageResponse::Task(task),
                stream,
            }) => self.taken(&agent, attempted, task, stream).await,
            Err(report) => report,
        }
    }

    /// Sends the message of a call, unless the agent has it.
    ///
    /// # Errors
    /// Returns the report of an attempt without an answer.
    pub(super) async fn message(&self, attempted: &Attempted<'_>) -> Result<Sent, Report> {
        let draft = draft(attempted, self.origin.as_deref()).map_err(|rule| failed("invalid_input", rule))?;
        let agent = self.agent(attempted).await.map_err(|error| not_sent(&error))?;
        let own = own_context(&agent, attempted);
        let mut lists = false;
        if attempted.is_repeat
            && let Some(context) = &own
        {
            match known_task(&agent, context).await {
                Ok(Some(task)) => {
                    return Ok(Sent {
                        agent,
                        answer: SendMessageResponse::Task(task),
                        stream: None,
                    });
                }
                Ok(None) => lists = true,
                Err(error) if error.is_transient() => return Err(not_sent(&error).into()),
                // It lists no tasks.
                Err(_) => {}
            }
            if lists && let Some(rest) = self.repeats.rest(attempted.key) {
                return Err(Report::Unchanged {
                    check_after: Some(rest),
                });
            }
        }
        let mut request = draft.complete(&attempted.blobs).await.map_err(unsent)?;
        if own.is_some() {
            request.message.context_id.clone_from(&own);
        }
        let streams = attempted.call.verb.is_followed();
        let mut sent = send(&agent, request.clone(), streams).await;
        if own.is_some() && sent.as_ref().is_err_and(is_refused) {
            // It takes only contexts that it made itself.
            request.message.context_id = None;
            sent = send(&agent, request, streams).await;
        }
        let (answer, stream) = sent.map_err(|error| not_sent(&error))?;
        // Only now may the agent list a task that it has made of an earlier message.
        if lists
            && let (Some(context), SendMessageResponse::Task(task)) = (&own, &answer)
            && leave_one(&agent, context, task).await.is_err()
        {
            return Err(Report::Unchanged {
                check_after: Some(ONCE_MORE),
            });
        }
        Ok(Sent {
            agent,
            answer,
            stream,
        })
    }

    /// Reports the task that an agent has made of the message.
    async fn taken(
        &self,
        agent: &Agent,
        attempted: Attempted<'_>,
        task: Task,
        stream: Option<GoesOn>,
    ) -> Report {
        if !has_short_ids(&task) {
            // What cannot be stored cannot be cancelled later.
            let is_cancelled = task.status.state.is_terminal() || cancelled(agent, &task.id).await.is_ok();
            return Outcome::Failed {
                code: "remote_failed".to_owned(),
                message: NAME_TOO_LONG.to_owned(),
                retryable: false,
                retry_after: None,
                may_go_on: !is_cancelled,
                is_timeout: false,
            }
            .into();
        }
        let handle = handle_of(attempted.call, &task);
        if let Some(stream) =
            stream.filter(|_| !task.status.state.is_interrupted() && !task.status.state.is_terminal())
        {
            let Attempted { run, key, wake, .. } = &attempted;
            if let Some(place) = self.followers.place(&run.tenant, key) {
                self.followers.follow(place, stream, wake.clone());
            }
        }
        self.judge(agent, &attempted, handle, task).await
    }
}

/// The calls whose repeated message waits, because the agent lists no task of it yet: it may store one only once it
/// works at it. They are in memory only: a process that died may have sent the message, and the wait begins anew.
#[derive(Debug, Default)]
pub(super) struct Repeats(Mutex<HashMap<String, Instant>>);

impl Repeats {
    /// How long a call waits before its message is sent again; `None` if it has just done so.
    fn rest(&self, key: &str) -> Option<Duration> {
        let now = Instant::now();
        let mut calls = self.0.lock();
        let waits = calls.remove(key).filter(|due| now < *due + STALE);
        if waits.is_some_and(|due| due <= now) {
            return None;
        }
        let due = waits.unwrap_or(now + ONCE_MORE);
        // What nobody has come back for goes before the map grows.
        if calls.len() == calls.capacity() {
            calls.retain(|_, due| now < *due + STALE);
        }
        calls.insert(key.to_owned(), due);
        Some(due - now)
    }
}

/// By which the task of a call is found again.
pub(super) fn handle_of(call: &AgentCall, task: &Task) -> Handle {
    Handle {
        peer: call.peer.clone(),
        task_id: task.id.clone(),
        context_id: task.context_id.clone(),
        since: now(),
        agent_time: task.status.timestamp.and_then(|at| serde_json::to_value(at).ok()),
        asks: None,
        says: None,
        interrupt: None,
        refused: None,
        pushes: None,
        is_unspecified: false,
        is_unreadable: false,
        unaskable: None,
        version: call.version.clone(),
        binding: call.binding.clone(),
    }
}

/// Whether the names of a task and its context can be stored.
pub(super) fn has_short_ids(task: &Task) -> bool {
    task.id.len() + task.context_id.len() <= MAX_IDS
}

/// Sends a message, as a stream if that is wanted and the agent offers it. Returns the stream if the task goes on.
async fn send(
    agent: &Agent,
    request: SendMessageRequest,
    streams: bool,
) -> Result<(SendMessageResponse, Option<GoesOn>), a2a::Error> {
    match streams && agent.card().model.capabilities.streaming == Some(true) {
        true => stream(agent, request).await,
        false => agent.send_message(request).await.map(|answer| (answer, None)),
    }
}

/// The context that the message opens, so that its task can be found by it. Clients of 0.3 name no contexts of their
/// own, and no tasks are listed there.
pub(super) fn own_context(agent: &Agent, attempted: &Attempted<'_>) -> Option<String> {
    let call = attempted.call;
    // A task has its context.
    let is_open = call.context.is_none() && call.verb.message_task().is_none();
    let is_free = is_open && agent.version() == Version::V1_0;
    is_free.then(|| uuid_of(attempted.key))
}

/// A UUID (version 8) made of a text: the form of an id that agents expect.
fn uuid_of(text: &str) -> String {
    let digest = ContentHash::of(text.as_bytes());
    let hex = digest.as_str();
    format!(
        "{}-{}-8{}-8{}-{}",
        &hex[..8],
        &hex[8..12],
        &hex[12..15],
        &hex[15..18],
        &hex[18..30]
    )
}

/// The task of a call's own context, if there is one. If there are several, the agent has made one of each message: one
/// counts, and the others are cancelled.
pub(super) async fn known_task(agent: &Agent, context: &str) -> Result<Option<Task>, a2a::Error> {
    let listed = list(agent, context).await?;
    // One that has answered, or else one that may.
    let rank = |state: TaskState| match state {
        TaskState::Completed => 0,
        TaskState::Unspecified
        | TaskState::Submitted
        | TaskState::Working
        | TaskState::InputRequired
        | TaskState::AuthRequired => 1,
        TaskState::Failed | TaskState::Canceled | TaskState::Rejected => 2,
    };
    let Some(task) = listed.iter().min_by_key(|task| rank(task.status.state)) else {
        return Ok(None);
    };
    cancel_others(agent, &listed, &task.id).await?;
    agent.get_task(&task.id, Some(0)).await.map(Some)
}

/// Cancels all tasks of a call's own context but this one.
async fn leave_one(agent: &Agent, context: &str, task: &Task) -> Result<(), a2a::Error> {
    match list(agent, context).await {
        Ok(listed) => cancel_others(agent, &listed, &task.id).await,
        Err(error) if error.is_transient() => Err(error),
        Err(_) => Ok(()),
    }
}

/// Cancels all of these tasks but one.
async fn cancel_others(agent: &Agent, tasks: &[Task], one: &str) -> Result<(), a2a::Error> {
    let name = &agent.card().model.name;
    let others = tasks.iter().filter(|task| task.id != one);
    for other in others.filter(|task| !task.status.state.is_terminal()) {
        if let Some(left_out) = TWO_TASKS.admit(name, Instant::now().into_std()) {
            tracing::info!(
                task = one,
                other = other.id,
                left_out,
                "an agent has made two tasks of one message; one is cancelled"
            );
        }
        match cancelled(agent, &other.id).await {
            Err(error) if error.is_transient() => return Err(error),
            Err(error) => {
                if let Some(left_out) = NOT_CANCELLED.admit(name, Instant::now().into_std()) {
                    tracing::warn!(other = other.id, %error, left_out, "an agent does not cancel the other task of a message");
                }
            }
            Ok(()) => {}
        }
    }
    Ok(())
}

/// The tasks of a context.
async fn list(agent: &Agent, context: &str) -> Result<Vec<Task>, a2a::Error> {
    let request = ListTasksRequest {
        tenant: None,
        context_id: Some(context.to_owned()),
        status: None,
        page_size: Some(MAX_TASKS),
        page_token: None,
        history_length: Some(0),
        status_timestamp_after: None,
        include_artifacts: false,
    };
    let mut tasks = agent.list_tasks(request).await?.tasks;
    // An agent may list others, too.
    tasks.retain(|task| task.context_id == context);
    Ok(tasks)
}

/// Whether the agent did not take the message because of its form.
pub(super) fn is_refused(error: &a2a::Error) -> bool {
    matches!(error, a2a::Error::Remote(remote) if remote.kind == Some(Kind::InvalidParams))
}

/// The report of an attempt that has sent nothing, because its files were not read.
pub(super) fn unsent(incomplete: Incomplete) -> Report {
    match incomplete {
        Incomplete::Invalid(rule) => failed("invalid_input", rule).into(),
        Incomplete::Later => Report::Unchanged {
            check_after: Some(FILES_AGAIN),
        },
    }
}

/// Adds the trace context to what a message says about where it comes from.
pub(super) fn add_trace(origin: &mut Value, trace: Option<&TraceContext>) {
    let Some(trace) = trace else {
        return;
    };
    origin["traceparent"] = trace.parent().into();
    if let Some(state) = trace.state() {
        origin["tracestate"] = state.into();
    }
}

/// The request of a call. Its files of messages are to be read.
pub(super) fn draft(attempted: &Attempted<'_>, host: Option<&CallingHost>) -> Result<Draft, String> {
    let Attempted {
        call,
        run,
        key,
        trace,
        ..
    } = attempted;
    let mut parts = Vec::new();
    parts.extend(call.text.as_ref().map(Part::text));
    parts.extend(call.data.clone().map(Part::data));
    let mut message = Message::new(format!("wopr-{key}"), Role::User, parts);
    message.context_id.clone_from(&call.context);
    message.task_id = call.verb.message_task().cloned();
    if let Some(skill) = &call.skill {
        message
            .metadata
            .insert("skillId".to_owned(), skill.clone().into());
    }
    let mut origin = json!({
        "runId": run.run.as_str(),
        "callerRunId": run.run.as_str(),
        "callerAgentId": call.caller.as_str(),
    });
    if let Some(correlation) = &call.correlation {
        origin["correlationId"] = correlation.clone().into();
    }
    if let Some(skill) = &call.skill {
        origin["workflowId"] = skill.clone().into();
    }
    if let Some(host) = host {
        origin["hostId"] = host.id.as_str().into();
        if let Some(url) = &host.well_known_url {
            origin["wellKnownUrl"] = url.as_str().into();
        }
    }
    add_trace(&mut origin, trace.as_ref());
    message.metadata.insert("openwop".to_owned(), origin);
    let mut draft = Draft::new(SendMessageRequest {
        tenant: None,
        message,
        configuration: SendMessageConfiguration {
            accepted_output_modes: call.output_modes.clone(),
            return_immediately: true,
            ..SendMessageConfiguration::default()
        },
        metadata: Object::new(),
    });
    draft.add(&call.files)?;
    Ok(draft)
}
