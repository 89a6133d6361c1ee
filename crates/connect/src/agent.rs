//! Calls to other agents: sends the message, looks at the task until it ends, answers what it asks, and cancels it.
//!
//! A call is parked between two looks, so it takes neither slot nor memory while the agent works. As far as this
//! host follows streams, one wakes the call when the task changes; else it is looked at again and again. Its
//! handle is the task's id. The first message carries an id made of the call's key: an agent that recognizes message ids does not make
//! a second task if the message is sent again. An agent that does not may, if this host dies between the agent's
//! acceptance and the append of the handle.
//!
//! Once an agent has a task, only its own word ends the call: while it cannot be asked, the call goes on until its
//! time is over. Everything an agent says is untrusted.

mod follow;
mod made;
mod tasks_http;

use std::{
    collections::HashSet,
    sync::Arc,
    time::{Duration, SystemTime},
};

use futures_util::StreamExt as _;
use serde_json::{Value, json};
use wopr_core::{AgentCall, ContentHash, InterruptKind, RemoteQuestion, UNTRUSTED};
use wopr_engine::{Answered, Answering, CancelError, Cancellation, Outcome, Report, Wake};
use wopr_wire::a2a::{
    error::Kind,
    method::Version,
    model::{
        Artifact, Message, Part, PartContent, Role, SendMessageConfiguration, SendMessageRequest,
        SendMessageResponse, StreamResponse, Task, TaskState, TaskStatus,
    },
};
use wopr_wire::json::{Decode as _, Object};

use self::{follow::Followers, made::Cursor};
use crate::a2a::{self, Agent, Binding, Call, Client, Items, Wanted};

/// How long the first stream of a task is followed before the call is parked.
const FOLLOWED: Duration = Duration::from_millis(300);
/// How long an agent may take to begin the stream of a task.
const SUBSCRIBED: Duration = Duration::from_secs(5);
/// Shortest and longest time between two looks at a task. In between, it is looked at after a quarter of its age.
const FIRST_LOOK: Duration = Duration::from_millis(100);
const LAST_LOOK: Duration = Duration::from_secs(30);
/// The time until the next look while an agent cannot be asked.
const UNASKED_LOOK: Duration = Duration::from_secs(15);
/// Longest time until the next look that an agent may ask for.
const MAX_RETRY_AFTER: Duration = Duration::from_secs(3_600);
/// The time until the next look at a task that asks: it may be answered elsewhere.
const ASKED_LOOK: Duration = Duration::from_secs(10);
/// Longest question of an agent, and the most parts of one, in bytes.
const MAX_QUESTION: usize = 8_000;
const MAX_PARTS: usize = 16 << 10;
/// Deepest parts of a question that a run keeps.
const MAX_DEPTH: usize = 24;
/// Longest names of a task and its context, together.
const MAX_IDS: usize = 2 << 10;
/// The id of the question in an interrupt's data.
const ANSWER: &str = "answer";
/// Longest text of an agent in a failure, in bytes.
const MAX_REASON: usize = 2_000;
/// The reason of a run whose agent cancelled its task.
const CANCELLED: &str = "cross_protocol_cancel";

/// By which a task is found again.
#[derive(Debug, Clone, PartialEq, serde::Serialize, serde::Deserialize)]
#[serde(rename_all = "camelCase")]
struct Handle {
    peer: String,
    task_id: String,
    #[serde(default)]
    context_id: String,
    /// When the agent accepted it, in milliseconds since 1970.
    since: u64,
    /// What the agent waits for, if it asks: what its question is named by.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    asks: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    version: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    binding: Option<String>,
}

/// One attempt at a call.
#[derive(Debug)]
pub(crate) struct Attempted<'a> {
    pub(crate) call: &'a AgentCall,
    pub(crate) run: &'a wopr_core::RunKey,
    /// The key of the call.
    pub(crate) key: &'a str,
    pub(crate) traceparent: Option<String>,
    pub(crate) handle: Option<Value>,
    pub(crate) cursor: Option<Value>,
    pub(crate) wake: Wake,
}

#[derive(Debug, Clone)]
pub(crate) struct Agents {
    client: Client,
    /// The peers whose questions fail the call.
    silent: Arc<HashSet<String>>,
    followers: Arc<Followers>,
}

impl Agents {
    pub(crate) fn new(client: Client, silent: HashSet<String>) -> Self {
        Self {
            client,
            silent: Arc::new(silent),
            followers: Arc::default(),
        }
    }
}

impl Agents {
    /// Sends the message of a call, or looks at its task.
    pub(crate) async fn attempt(&self, attempted: Attempted<'_>) -> Report {
        match self.client.task_api(&attempted.call.peer, settings(&attempted)) {
            Ok(Some(api)) => return tasks_http::attempt(&api, &attempted).await,
            Ok(None) => {}
            Err(error) => return not_sent(&error).into(),
        }
        match attempted.handle.clone().map(serde_json::from_value::<Handle>) {
            None => self.send(attempted).await,
            Some(Ok(handle)) => self.look(&attempted, handle).await,
            Some(Err(error)) => failed("internal_error", format!("read the handle: {error}")).into(),
        }
    }

    async fn agent(&self, attempted: &Attempted<'_>) -> Result<Agent, a2a::Error> {
        let AgentCall {
            peer,
            version,
            binding,
            ..
        } = attempted.call;
        let wanted = wanted(version.as_deref(), binding.as_deref());
        self.client.agent(peer, wanted, settings(attempted)).await
    }

    async fn send(&self, attempted: Attempted<'_>) -> Report {
        let request = match request(&attempted) {
            Ok(request) => request,
            Err(rule) => return failed("invalid_input", rule).into(),
        };
        let agent = match self.agent(&attempted).await {
            Ok(agent) => agent,
            Err(error) => return not_sent(&error).into(),
        };
        let streams = agent.card().model.capabilities.streaming == Some(true);
        let sent = match streams {
            true => stream(&agent, request).await,
            false => agent.send_message(request).await.map(|answer| (answer, None)),
        };
        let (sent, items) = match sent {
            Ok((answer, items)) => (Ok(answer), items),
            Err(error) => (Err(error), None),
        };
        match sent {
            Ok(SendMessageResponse::Message(message)) => {
                Outcome::Done(of_message(&attempted.call.peer, &message)).into()
            }
            Ok(SendMessageResponse::Task(task)) if task.id.len() + task.context_id.len() > MAX_IDS => failed(
                "remote_failed",
                "the agent's name for its task is too long".to_owned(),
            )
            .into(),
            Ok(SendMessageResponse::Task(task)) => {
                let handle = Handle {
                    peer: attempted.call.peer.clone(),
                    task_id: task.id.clone(),
                    context_id: task.context_id.clone(),
                    since: now(),
                    asks: None,
                    version: attempted.call.version.clone(),
                    binding: attempted.call.binding.clone(),
                };
                let report = self.judge(&agent, &attempted, handle, task).await;
                if let Some(items) = items.filter(|_| goes_on(&report)) {
                    let Attempted { run, key, wake, .. } = attempted;
                    self.followers.follow(&run.tenant, key, items, wake);
                }
                report
            }
            Err(error) => not_sent(&error).into(),
        }
    }

    async fn look(&self, attempted: &Attempted<'_>, handle: Handle) -> Report {
        let asked = async {
            let agent = self.agent(attempted).await?;
            let task = agent.get_task(&handle.task_id, Some(0)).await?;
            Ok((agent, task))
        };
        let error: a2a::Error = match asked.await {
            Ok((agent, task)) => {
                let task_id = task.id.clone();
                let report = self.judge(&agent, attempted, handle, task).await;
                // A task that changes is worth a stream.
                if goes_on(&report) && !matches!(report, Report::Unchanged { .. }) {
                    self.follow_again(&agent, attempted, &task_id).await;
                }
                return report;
            }
            Err(error) => error,
        };
        if is_forgotten(&error) {
            return failed("remote_failed", "the agent no longer knows the task".to_owned()).into();
        }
        if let a2a::Error::TooLarge { .. } = &error {
            if let Ok(agent) = self.agent(attempted).await {
                abandon(&agent, &handle).await;
            }
            return not_sent(&error).into();
        }
        if let a2a::Error::UnknownPeer(_) = &error {
            return not_sent(&error).into();
        }
        let (run, peer, task) = (attempted.run, &handle.peer, &handle.task_id);
        tracing::info!(%run, peer, task, %error, "an agent could not be asked for its task; it will be asked again");
        let after = error.retry_after().unwrap_or_default();
        Report::Unchanged {
            check_after: Some(after.clamp(UNASKED_LOOK, MAX_RETRY_AFTER)),
        }
    }

    /// Follows a task that is not followed, if its agent streams.
    async fn follow_again(&self, agent: &Agent, attempted: &Attempted<'_>, task: &str) {
        let streams = agent.card().model.capabilities.streaming == Some(true);
        if !streams || self.followers.is_followed(attempted.key) {
            return;
        }
        // If there is no stream, it is looked at when it is due.
        if let Ok(Ok(items)) = tokio::time::timeout(SUBSCRIBED, agent.subscribe(task, None)).await {
            let Attempted { run, key, wake, .. } = attempted;
            self.followers.follow(&run.tenant, key, items, wake.clone());
        }
    }

    /// Cancels the task of a call that its run no longer waits for.
    pub(crate) async fn cancel(&self, call: Cancellation) -> Result<(), CancelError> {
        if tasks_http::is_handle(&call.handle) {
            // The API has no way to cancel a task.
            return Ok(());
        }
        let told = |error: &dyn std::fmt::Display| CancelError(error.to_string());
        let handle: Handle = serde_json::from_value(call.handle).map_err(|error| told(&error))?;
        let wanted = wanted(handle.version.as_deref(), handle.binding.as_deref());
        let settings = Call {
            tenant: Some(call.run.tenant.clone()),
            ..Call::default()
        };
        let agent = self.client.agent(&handle.peer, wanted, settings).await;
        let agent = agent.map_err(|error| told(&error))?;
        match agent.cancel_task(&handle.task_id).await {
            Ok(_) => Ok(()),
            Err(error) if is_forgotten(&error) || is_over(&error) => Ok(()),
            Err(error) => Err(told(&error)),
        }
    }
}

impl Agents {
    /// Answers what the agent of a call asks, into the same task.
    pub(crate) async fn answer(&self, answering: Answering) -> Result<Answered, CancelError> {
        let told = |error: &dyn std::fmt::Display| CancelError(error.to_string());
        let handle: Handle = serde_json::from_value(answering.handle).map_err(|error| told(&error))?;
        let wanted = wanted(handle.version.as_deref(), handle.binding.as_deref());
        let settings = Call {
            tenant: Some(answering.run.tenant.clone()),
            ..Call::default()
        };
        let agent = self.client.agent(&handle.peer, wanted, settings).await;
        let agent = agent.map_err(|error| told(&error))?;
        // The agent may have gone on, or ask something else by now.
        match agent.get_task(&handle.task_id, Some(0)).await {
            Ok(task) if asks(&task) != handle.asks => return Ok(Answered::Taken),
            Ok(_) => {}
            Err(error) if is_forgotten(&error) => return Ok(Answered::Taken),
            Err(error) => return Err(told(&error)),
        }
        let key = &answering.idempotency_key;
        let mut message = Message::new(format!("wopr-{key}"), Role::User, answer_parts(answering.value));
        message.task_id = Some(handle.task_id.clone());
        message.context_id = Some(handle.context_id.clone()).filter(|id| !id.is_empty());
        let origin = json!({ "runId": answering.run.run.as_str(), "interruptId": answering.interrupt });
        message.metadata.insert("openwop".to_owned(), origin);
        let request = SendMessageRequest {
            tenant: None,
            message,
            configuration: SendMessageConfiguration {
                return_immediately: true,
                ..SendMessageConfiguration::default()
            },
            metadata: Object::new(),
        };
        match agent.send_message(request).await {
            Ok(SendMessageResponse::Task(_)) => Ok(Answered::Taken),
            Ok(SendMessageResponse::Message(message)) => {
                Ok(Answered::Ended(Outcome::Done(of_message(&handle.peer, &message))))
            }
            // The task says what became of it.
            Err(error) if is_forgotten(&error) || is_over(&error) => Ok(Answered::Taken),
            Err(error) if error.is_transient() => Err(told(&error)),
            // The task may have gone on without the answer.
            Err(error) => match agent.get_task(&handle.task_id, Some(0)).await {
                Ok(task) if !task.status.state.is_interrupted() => Ok(Answered::Taken),
                Ok(_) => {
                    abandon(&agent, &handle).await;
                    Ok(Answered::Ended(not_sent(&error)))
                }
                Err(unasked) => Err(told(&unasked)),
            },
        }
    }

    /// What a task means for its call: what it has made, and its state.
    async fn judge(&self, agent: &Agent, attempted: &Attempted<'_>, handle: Handle, task: Task) -> Report {
        let mut cursor = Cursor::read(attempted.cursor.as_ref());
        let produced = cursor.advance(&task);
        let report = self.judge_state(agent, attempted, handle, task).await;
        if produced.is_empty() {
            return report;
        }
        Report::Produced {
            produced,
            cursor: serde_json::to_value(cursor).unwrap_or_default(),
            then: Box::new(report),
        }
    }

    async fn judge_state(
        &self,
        agent: &Agent,
        attempted: &Attempted<'_>,
        handle: Handle,
        task: Task,
    ) -> Report {
        let state = task.status.state;
        if !state.is_interrupted() || self.silent.contains(&handle.peer) {
            let report = judge(agent, attempted.call, handle, task).await;
            // The log need not say again what it says.
            return match report {
                Report::Accepted { handle, check_after } if attempted.handle.as_ref() == Some(&handle) => {
                    Report::Unchanged { check_after }
                }
                report => report,
            };
        }
        let handle = Handle {
            asks: asks(&task),
            ..handle
        };
        Report::Interrupted {
            question: question(&handle, &task),
            check_after: Some(ASKED_LOOK),
            handle: serde_json::to_value(&handle).unwrap_or_default(),
        }
    }
}

/// What a question is named by, if a task asks one: another message, time or text is another question.
fn asks(task: &Task) -> Option<String> {
    if !task.status.state.is_interrupted() {
        return None;
    }
    let said = serde_json::to_vec(&task.status).unwrap_or_default();
    Some(ContentHash::of(&said).as_str().to_owned())
}

/// Tries once to cancel a task whose run no longer waits for it.
async fn abandon(agent: &Agent, handle: &Handle) {
    if let Err(error) = agent.cancel_task(&handle.task_id).await {
        let (peer, task) = (&handle.peer, &handle.task_id);
        tracing::info!(peer, task, %error, "a task that nobody waits for could not be cancelled");
    }
}

/// Returns `true` if a value has more than `left` levels of nesting.
fn is_deep(value: &Value, left: usize) -> bool {
    match value {
        Value::Array(items) => left == 0 || items.iter().any(|item| is_deep(item, left - 1)),
        Value::Object(fields) => left == 0 || fields.values().any(|field| is_deep(field, left - 1)),
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => false,
    }
}

/// The question of a task as an interrupt of its run.
fn question(handle: &Handle, task: &Task) -> RemoteQuestion {
    let parts = task
        .status
        .message
        .as_ref()
        .map_or(&[][..], |message| &message.parts);
    let text = cut_to(&text_of(parts), MAX_QUESTION);
    let is_auth = task.status.state == TaskState::AuthRequired;
    let text = match (text.is_empty(), is_auth) {
        (false, _) => text,
        (true, false) => "The agent asks for input.".to_owned(),
        (true, true) => "The agent asks for credentials.".to_owned(),
    };
    let mut data = json!({
        "source": "remote",
        "peer": handle.peer,
        "taskId": handle.task_id,
        "message": text,
        "questions": [{ "id": ANSWER, "question": text }],
        "contentTrust": UNTRUSTED,
    });
    let shown = serde_json::to_value(parts).unwrap_or_default();
    if !is_deep(&shown, MAX_DEPTH) && shown.to_string().len() <= MAX_PARTS {
        data["parts"] = shown;
    }
    if is_auth {
        data["subkind"] = "auth".into();
        data["metadata"] = json!({ "subkind": "auth" });
    }
    RemoteQuestion {
        key: handle.asks.clone().unwrap_or_default(),
        kind: InterruptKind::Clarification,
        data,
    }
}

/// The parts of an answer: a text, the answers to the questions, or data.
fn answer_parts(value: Value) -> Vec<Part> {
    let only = |value: &Value, name: &str| {
        let fields = value.as_object().filter(|fields| fields.len() == 1)?;
        fields.get(name).cloned()
    };
    let given = match only(&value, "answers") {
        // `[{id, answer}]`, or `{id: answer}`.
        Some(Value::Array(answers)) => match answers.as_slice() {
            [answer] if answer["id"] == ANSWER => Some(answer["answer"].clone()),
            _ => Some(Value::Array(answers)),
        },
        Some(answers) => Some(only(&answers, ANSWER).unwrap_or(answers)),
        None => only(&value, "text").filter(Value::is_string),
    };
    let value = given.unwrap_or(value);
    match value {
        Value::String(text) => vec![Part::text(text)],
        data => vec![Part::data(data)],
    }
}

/// Sends a message to an agent that streams: its task is known with the first event, however long it takes.
/// The stream is followed for a moment, because most tasks are short. It is returned if the task goes on.
async fn stream(
    agent: &Agent,
    request: SendMessageRequest,
) -> Result<(SendMessageResponse, Option<Items>), a2a::Error> {
    let mut items = agent.send_streaming_message(request).await?;
    let mut task: Option<Task> = None;
    let mut until = None;
    let mut goes_on = false;
    loop {
        let next = match until {
            None => items.next().await,
            Some(until) => match tokio::time::timeout_at(until, items.next()).await {
                Ok(next) => next,
                Err(_) => {
                    goes_on = true;
                    break;
                }
            },
        };
        let item = match next {
            None => break,
            Some(Ok((_, item))) => item,
            // What was streamed so far is known; the rest is asked for.
            Some(Err(error)) if task.is_none() => return Err(error),
            Some(Err(_)) => break,
        };
        match item {
            StreamResponse::Message(message) => return Ok((SendMessageResponse::Message(message), None)),
            StreamResponse::Task(whole) => task = Some(whole),
            StreamResponse::StatusUpdate(update) => {
                let task = task.get_or_insert_with(|| begun(update.task_id, update.context_id));
                task.status = update.status;
            }
            // Chunks are not put together here: the agent has the whole.
            StreamResponse::ArtifactUpdate(update) => {
                task.get_or_insert_with(|| begun(update.task_id, update.context_id));
            }
        }
        let state = task.as_ref().map(|task| task.status.state);
        if state.is_some_and(|state| state.is_terminal() || state.is_interrupted()) {
            break;
        }
        until.get_or_insert_with(|| tokio::time::Instant::now() + FOLLOWED);
    }
    let items = goes_on.then_some(items);
    let Some(task) = task else {
        return Err(a2a::Error::NoStream);
    };
    // The whole task with its artifacts, which a stream need not have.
    match agent.get_task(&task.id, Some(0)).await {
        Ok(whole) => Ok((SendMessageResponse::Task(whole), items)),
        Err(_) => Ok((
            SendMessageResponse::Task(Task {
                status: TaskStatus {
                    state: TaskState::Working,
                    message: None,
                    timestamp: None,
                },
                ..task
            }),
            items,
        )),
    }
}

/// Whether a call is still with its agent.
fn goes_on(report: &Report) -> bool {
    match report {
        Report::Accepted { .. } | Report::Unchanged { .. } => true,
        Report::Interrupted { .. } | Report::Ended(_) => false,
        Report::Produced { then, .. } => goes_on(then),
    }
}

fn begun(id: String, context_id: String) -> Task {
    Task {
        id,
        context_id,
        status: TaskStatus {
            state: TaskState::Submitted,
            message: None,
            timestamp: None,
        },
        artifacts: Vec::new(),
        history: Vec::new(),
        metadata: Object::new(),
    }
}

/// What the state of a task means for its call.
async fn judge(agent: &Agent, call: &AgentCall, handle: Handle, task: Task) -> Report {
    let said = || {
        task.status
            .message
            .as_ref()
            .map(|message| text_of(&message.parts))
    };
    let because = |what: &str| match said().filter(|said| !said.is_empty()) {
        Some(said) => format!("{what}: {}", cut(&said)),
        None => what.to_owned(),
    };
    match task.status.state {
        TaskState::Completed => Outcome::Done(of_task(call, &task)).into(),
        TaskState::Failed => failed("remote_failed", because("the agent failed")).into(),
        TaskState::Rejected => failed("rejected_by_remote", because("the agent rejected the message")).into(),
        TaskState::Canceled => Outcome::Cancelled {
            reason: CANCELLED.to_owned(),
        }
        .into(),
        state @ (TaskState::InputRequired | TaskState::AuthRequired) => {
            let (code, what) = match state {
                TaskState::AuthRequired => ("auth_required_by_remote", "the agent asks for credentials"),
                _ => ("input_required_by_remote", "the agent asks for input"),
            };
            // Nobody answers it, so the task must not wait.
            abandon(agent, &handle).await;
            failed(code, because(what)).into()
        }
        TaskState::Submitted | TaskState::Working | TaskState::Unspecified => {
            let age = Duration::from_millis(now().saturating_sub(handle.since));
            let handle = Handle { asks: None, ..handle };
            Report::Accepted {
                handle: serde_json::to_value(&handle).unwrap_or_default(),
                check_after: Some((age / 4).clamp(FIRST_LOOK, LAST_LOOK)),
            }
        }
    }
}

fn request(attempted: &Attempted<'_>) -> Result<SendMessageRequest, String> {
    let Attempted {
        call,
        run,
        key,
        traceparent,
        handle: _,
        cursor: _,
        wake: _,
    } = attempted;
    let mut parts = Vec::new();
    parts.extend(call.text.as_ref().map(Part::text));
    parts.extend(call.data.clone().map(Part::data));
    for (index, file) in call.files.iter().enumerate() {
        let part = file_part(file).map_err(|rule| format!("files[{index}] {rule}"))?;
        parts.push(part);
    }
    let mut message = Message::new(format!("wopr-{key}"), Role::User, parts);
    message.context_id.clone_from(&call.context);
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
    if let Some(skill) = &call.skill {
        origin["workflowId"] = skill.clone().into();
    }
    if let Some(traceparent) = traceparent {
        origin["traceparent"] = traceparent.clone().into();
    }
    message.metadata.insert("openwop".to_owned(), origin);
    Ok(SendMessageRequest {
        tenant: None,
        message,
        configuration: SendMessageConfiguration {
            accepted_output_modes: call.output_modes.clone(),
            return_immediately: true,
            ..SendMessageConfiguration::default()
        },
        metadata: Object::new(),
    })
}

/// Reads a file as a workflow gives it: `{url | bytes, mediaType?, filename?}`, or a part of an earlier answer.
fn file_part(file: &Value) -> Result<Part, String> {
    let Value::Object(mut file) = file.clone() else {
        return Err("is not an object".to_owned());
    };
    if let Some(bytes) = file.remove("bytes") {
        file.insert("raw".to_owned(), bytes);
    }
    let part = Part::decode(Value::Object(file)).map_err(|error| error.to_string())?;
    match &part.content {
        PartContent::Raw(_) | PartContent::Url(_) => Ok(part),
        PartContent::Text(_) | PartContent::Data(_) => Err("has neither url nor bytes".to_owned()),
    }
}

/// What the requests of an attempt have in common.
fn settings(attempted: &Attempted<'_>) -> Call {
    Call {
        traceparent: attempted.traceparent.clone(),
        tenant: Some(attempted.run.tenant.clone()),
        ..Call::default()
    }
}

fn wanted(version: Option<&str>, binding: Option<&str>) -> Wanted {
    Wanted {
        version: match version {
            Some("1.0") => Some(Version::V1_0),
            Some("0.3") => Some(Version::V0_3),
            Some(_) | None => None,
        },
        binding: binding.and_then(Binding::from_name),
    }
}

/// The outputs of a step whose agent completed its task.
fn of_task(call: &AgentCall, task: &Task) -> Value {
    let parts: Vec<_> = task
        .artifacts
        .iter()
        .flat_map(|artifact| &artifact.parts)
        .collect();
    let said = task.status.message.as_ref();
    let said = said.map_or(&[][..], |message| &message.parts);
    // The parts of an artifact are its chunks.
    let artifacts = task.artifacts.iter().map(|artifact| texts(&artifact.parts));
    let artifacts: Vec<_> = artifacts
        .filter(|texts| !texts.is_empty())
        .map(|texts| texts.concat())
        .collect();
    let text = match artifacts.is_empty() {
        true => text_of(said),
        false => artifacts.join("\n"),
    };
    let data = data_of(parts.iter().copied()).or_else(|| data_of(said));
    json!({
        "text": text,
        "data": data,
        "artifacts": task.artifacts.iter().map(shown).collect::<Vec<_>>(),
        "state": "completed",
        "taskId": task.id,
        "contextId": task.context_id,
        "peer": call.peer,
        "contentTrust": UNTRUSTED,
    })
}

/// The outputs of a step whose agent answered without a task.
fn of_message(peer: &str, message: &Message) -> Value {
    json!({
        "text": text_of(&message.parts),
        "data": data_of(&message.parts),
        "artifacts": [],
        "state": "completed",
        "taskId": null,
        "contextId": message.context_id,
        "peer": peer,
        "contentTrust": UNTRUSTED,
    })
}

fn shown(artifact: &Artifact) -> Value {
    json!({ "id": artifact.artifact_id, "name": artifact.name, "parts": artifact.parts })
}

fn text_of(parts: &[Part]) -> String {
    texts(parts).join("\n")
}

fn texts(parts: &[Part]) -> Vec<&str> {
    let texts = parts.iter().filter_map(|part| match &part.content {
        PartContent::Text(text) => Some(text.as_str()),
        PartContent::Raw(_) | PartContent::Url(_) | PartContent::Data(_) => None,
    });
    texts.collect()
}

fn data_of<'p>(parts: impl IntoIterator<Item = &'p Part>) -> Option<Value> {
    parts.into_iter().find_map(|part| match &part.content {
        PartContent::Data(data) => Some(data.clone()),
        PartContent::Text(_) | PartContent::Raw(_) | PartContent::Url(_) => None,
    })
}

fn is_forgotten(error: &a2a::Error) -> bool {
    matches!(error, a2a::Error::Remote(remote) if remote.kind == Some(Kind::TaskNotFound))
}

fn is_over(error: &a2a::Error) -> bool {
    matches!(error, a2a::Error::Remote(remote) if remote.kind == Some(Kind::TaskNotCancelable))
}

/// The failure of a message that got no answer.
fn not_sent(error: &a2a::Error) -> Outcome {
    let mut message = format!("failed to {error}");
    if let a2a::Error::Remote(remote) = error
        && !remote.message.is_empty()
    {
        message = format!("{message}: {}", remote.message);
    }
    Outcome::Failed {
        code: error.code().to_owned(),
        message: cut(&message),
        retryable: error.is_transient(),
        retry_after: error.retry_after().map(|after| after.min(MAX_RETRY_AFTER)),
    }
}

fn failed(code: &str, message: String) -> Outcome {
    Outcome::Failed {
        code: code.to_owned(),
        message,
        retryable: false,
        retry_after: None,
    }
}

fn cut(text: &str) -> String {
    cut_to(text, MAX_REASON)
}

fn cut_to(text: &str, most: usize) -> String {
    if text.len() <= most {
        return text.to_owned();
    }
    format!("{}…", &text[..text.floor_char_boundary(most)])
}

fn now() -> u64 {
    let since = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH);
    since.map_or(0, |since| u64::try_from(since.as_millis()).unwrap_or(u64::MAX))
}
