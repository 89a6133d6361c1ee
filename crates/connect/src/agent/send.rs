//! Sends the message of a call.
//!
//! The message has an id that is made of the call's key, so it is the same in every attempt: an agent that recognizes
//! message ids makes one task of them. For one that does not, the first message to an agent of 1.0 also opens a
//! context of the call's own, unless the workflow names one. Before the message is sent again, because this host died
//! or a connection broke, the agent is asked for a task in that context. A second task is possible only with an agent
//! that does neither: it knows no ids, and does not list tasks by context. A call that is recalled is looked for in the
//! same ways; see [`super::recall`].

use std::time::Duration;

use serde_json::{Value, json};
use wopr_core::{AgentCall, ContentHash, TraceContext};
use wopr_engine::{Outcome, Report};
use wopr_wire::{
    a2a::{
        error::Kind,
        method::Version,
        model::{
            ListTasksRequest, Message, Part, Role, SendMessageConfiguration, SendMessageRequest,
            SendMessageResponse, Task,
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
    stream::stream,
};
use crate::{
    CallingHost,
    a2a::{self, Agent, Items},
};

/// Longest names of a task and its context, together.
const MAX_IDS: usize = 2 << 10;
/// The most tasks that are read of a call's own context, which holds one.
const MAX_TASKS: u32 = 20;
/// Why a task is left.
pub(super) const NAME_TOO_LONG: &str = "the agent's name for its task is too long";
/// When files that could not be read are read again.
const FILES_AGAIN: Duration = Duration::from_secs(1);

impl Agents {
    pub(super) async fn send(&self, attempted: Attempted<'_>) -> Report {
        let draft = match draft(&attempted, self.origin.as_deref()) {
            Ok(draft) => draft,
            Err(rule) => return failed("invalid_input", rule).into(),
        };
        let agent = match self.agent(&attempted).await {
            Ok(agent) => agent,
            Err(error) => return not_sent(&error).into(),
        };
        let own = own_context(&agent, &attempted);
        if attempted.is_repeat
            && let Some(context) = &own
        {
            match known_task(&agent, context).await {
                Ok(Some(task)) => return self.taken(&agent, attempted, task, None).await,
                Ok(None) => {}
                Err(error) if error.is_transient() => return not_sent(&error).into(),
                // It lists no tasks.
                Err(_) => {}
            }
        }
        let mut request = match draft.complete(&attempted.blobs).await {
            Ok(request) => request,
            Err(incomplete) => return unsent(incomplete),
        };
        if own.is_some() {
            request.message.context_id.clone_from(&own);
        }
        let mut sent = send(&agent, request.clone()).await;
        if own.is_some() && sent.as_ref().is_err_and(is_refused) {
            // It takes only contexts that it made itself.
            request.message.context_id = None;
            sent = send(&agent, request).await;
        }
        match sent {
            Ok((SendMessageResponse::Message(message), _)) => {
                Outcome::Done(of_message(&attempted.call.peer, &message)).into()
            }
            Ok((SendMessageResponse::Task(task), items)) => self.taken(&agent, attempted, task, items).await,
            Err(error) => not_sent(&error).into(),
        }
    }

    /// Reports the task that an agent has made of the message.
    async fn taken(
        &self,
        agent: &Agent,
        attempted: Attempted<'_>,
        task: Task,
        items: Option<Items>,
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
        if let Some(items) =
            items.filter(|_| !task.status.state.is_interrupted() && !task.status.state.is_terminal())
        {
            let Attempted { run, key, wake, .. } = &attempted;
            self.followers.follow(&run.tenant, key, items, wake.clone());
        }
        self.judge(agent, &attempted, handle, task).await
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
        version: call.version.clone(),
        binding: call.binding.clone(),
    }
}

/// Whether the names of a task and its context can be stored.
pub(super) fn has_short_ids(task: &Task) -> bool {
    task.id.len() + task.context_id.len() <= MAX_IDS
}

/// Sends a message, as a stream if the agent offers it. Returns the stream if the task goes on.
async fn send(
    agent: &Agent,
    request: SendMessageRequest,
) -> Result<(SendMessageResponse, Option<Items>), a2a::Error> {
    match agent.card().model.capabilities.streaming == Some(true) {
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

/// The task of a context, if there is one.
pub(super) async fn known_task(agent: &Agent, context: &str) -> Result<Option<Task>, a2a::Error> {
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
    let listed = agent.list_tasks(request).await?;
    // An agent may list others, too.
    let mut tasks = listed.tasks.into_iter();
    let Some(task) = tasks.find(|task| task.context_id == context) else {
        return Ok(None);
    };
    agent.get_task(&task.id, Some(0)).await.map(Some)
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
