//! The stream that an agent answers a message with: followed for a moment, because most tasks are short.
//!
//! It is about the task of its first item. What it says of another one counts for nothing. The agent is asked for a task
//! whose end was streamed in pieces; the stream counts if the agent no longer has the task, or cannot be asked for tasks.

use std::time::Duration;

use futures_util::StreamExt as _;
use http::StatusCode;
use wopr_core::value_size;
use wopr_wire::{
    a2a::{
        error::Kind,
        model::{
            Artifact, PartContent, SendMessageRequest, SendMessageResponse, StreamResponse, Task,
            TaskArtifactUpdateEvent, TaskState, TaskStatus,
        },
    },
    json::Object,
};

use crate::a2a::{self, Agent, Items};

/// How long the first stream of a task is followed before the call is parked.
const FOLLOWED: Duration = Duration::from_millis(300);
/// How long the stream of a task may take to end after its last item: a stream that ends leaves its connection for
/// other calls.
const LAST_ITEM: Duration = Duration::from_millis(20);
/// The most bytes of artifacts that are kept of a stream. The task is asked for more than that.
const MAX_CARRIED: usize = 1 << 20;
/// The most places of a streamed task that are named because they cannot be read.
const MAX_NAMED: usize = 20;
/// What a part counts beside its content.
const PART: usize = 256;

/// Sends a message to an agent that streams: its task is known with the first event, however long it takes.
/// The stream is followed for a moment, because most tasks are short. It is returned if the task goes on.
pub(super) async fn stream(
    agent: &Agent,
    request: SendMessageRequest,
) -> Result<(SendMessageResponse, Option<Items>), a2a::Error> {
    let mut items = agent.send_streaming_message(request).await?;
    let mut carried = Carried::default();
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
            Some(Err(error)) if carried.task.is_none() => return Err(error),
            Some(Err(_)) => break,
        };
        if let StreamResponse::Message(message) = item {
            if carried.task.is_none() {
                return Ok((SendMessageResponse::Message(message), None));
            }
            // The task says how it goes on.
            carried.is_partial = true;
            break;
        }
        carried.take(item);
        if carried.rests() {
            // The stream is over, or what follows would be of no use.
            let _ = tokio::time::timeout(LAST_ITEM, items.next()).await;
            break;
        }
        until.get_or_insert_with(|| tokio::time::Instant::now() + FOLLOWED);
    }
    let items = goes_on.then_some(items);
    let (is_whole, has_ended) = (carried.is_whole(), carried.has_ended());
    let Some(task) = carried.task else {
        return Err(a2a::Error::NoStream);
    };
    if is_whole {
        return Ok((SendMessageResponse::Task(task), None));
    }
    // The whole task with its artifacts, which a stream need not have.
    match agent.get_task(&task.id, Some(0)).await {
        Ok(whole) => Ok((SendMessageResponse::Task(whole), items)),
        // Its stream was the only word of the agent, and the last one.
        Err(error) if has_ended && tells_no_task(&error) => Ok((SendMessageResponse::Task(task), None)),
        Err(_) => Ok((
            SendMessageResponse::Task(Task {
                status: TaskStatus {
                    state: TaskState::Working,
                    message: None,
                    timestamp: None,
                },
                artifacts: Vec::new(),
                ..task
            }),
            items,
        )),
    }
}

/// The part of a task that its stream has carried.
#[derive(Debug, Default)]
struct Carried {
    task: Option<Task>,
    /// Something of the task may not have been streamed, or only in pieces. The agent has the whole.
    is_partial: bool,
    /// Artifacts were dropped, because there were too many.
    is_cut: bool,
    n_bytes: usize,
}

impl Carried {
    fn take(&mut self, item: StreamResponse) {
        let id = match &item {
            StreamResponse::Message(_) => return,
            StreamResponse::Task(task) => &task.id,
            StreamResponse::StatusUpdate(update) => &update.task_id,
            StreamResponse::ArtifactUpdate(update) => &update.task_id,
        };
        if self.task.as_ref().is_some_and(|task| task.id != *id) {
            return;
        }
        match item {
            StreamResponse::Message(_) => {}
            StreamResponse::Task(task) => {
                self.n_bytes = task.artifacts.iter().map(size_of).sum();
                self.is_partial = false;
                self.is_cut = false;
                self.task = Some(task);
            }
            StreamResponse::StatusUpdate(update) => {
                self.is_partial |= !update.unreadable.is_empty();
                let task = self.begun(update.task_id, update.context_id);
                task.status = update.status;
                note(task, update.unreadable);
            }
            StreamResponse::ArtifactUpdate(update) => {
                let TaskArtifactUpdateEvent {
                    artifact,
                    append,
                    unreadable,
                    ..
                } = update;
                self.n_bytes = self.n_bytes.saturating_add(size_of(&artifact));
                self.is_cut |= self.n_bytes > MAX_CARRIED;
                self.is_partial |= append || self.is_cut || !unreadable.is_empty();
                let is_cut = self.is_cut;
                let task = self.begun(update.task_id, update.context_id);
                note(task, unreadable);
                let artifacts = &mut task.artifacts;
                let known = artifacts
                    .iter_mut()
                    .find(|known| known.artifact_id == artifact.artifact_id);
                match known {
                    _ if is_cut => artifacts.clear(),
                    Some(known) if append => known.parts.extend(artifact.parts),
                    Some(known) => *known = artifact,
                    None => artifacts.push(artifact),
                }
            }
        }
    }

    fn begun(&mut self, id: String, context_id: String) -> &mut Task {
        // A stream that does not begin with the task need not carry all of it.
        self.is_partial |= self.task.is_none();
        self.task.get_or_insert_with(|| begun(id, context_id))
    }

    /// Whether the task has ended or asks something.
    fn rests(&self) -> bool {
        let state = self.task.as_ref().map(|task| task.status.state);
        state.is_some_and(|state| state.is_terminal() || state.is_interrupted())
    }

    /// Whether the task has ended, and nothing that was streamed of its result is missing.
    fn has_ended(&self) -> bool {
        let state = self.task.as_ref().map(|task| task.status.state);
        state.is_some_and(|state| state.is_terminal() && !(self.is_cut && state == TaskState::Completed))
    }

    /// Whether the task has ended, and all of it was streamed. An agent may stream no artifacts though it has some.
    fn is_whole(&self) -> bool {
        let is_ended = |task: &Task| task.status.state.is_terminal() && !task.artifacts.is_empty();
        !self.is_partial && self.task.as_ref().is_some_and(is_ended)
    }
}

/// Returns `true` if the error says that the agent does not have the task, or that it has no such method.
fn tells_no_task(error: &a2a::Error) -> bool {
    match error {
        a2a::Error::Remote(remote) => matches!(
            remote.kind,
            Some(Kind::TaskNotFound | Kind::MethodNotFound | Kind::UnsupportedOperation)
        ),
        a2a::Error::Status(said) => matches!(
            said.status,
            StatusCode::NOT_FOUND
                | StatusCode::METHOD_NOT_ALLOWED
                | StatusCode::GONE
                | StatusCode::NOT_IMPLEMENTED
        ),
        a2a::Error::NotOffered { .. } => true,
        a2a::Error::UnknownPeer(_)
        | a2a::Error::CredentialMissing { .. }
        | a2a::Error::Token(..)
        | a2a::Error::Policy(_)
        | a2a::Error::Unreachable { .. }
        | a2a::Error::Interrupted(_)
        | a2a::Error::TimedOut(_)
        | a2a::Error::TooLarge { .. }
        | a2a::Error::Undecodable(_)
        | a2a::Error::TooDeep
        | a2a::Error::NoStream
        | a2a::Error::OtherTask
        | a2a::Error::CardMissing { .. }
        | a2a::Error::CardNotFetched { .. }
        | a2a::Error::CardInvalid(_)
        | a2a::Error::CardUnsigned
        | a2a::Error::NoInterface { .. }
        | a2a::Error::VersionNotSupported { .. }
        | a2a::Error::Unwritable(_) => false,
    }
}

/// Bytes of an artifact, roughly.
fn size_of(artifact: &Artifact) -> usize {
    let sizes = artifact.parts.iter().map(|part| {
        PART + match &part.content {
            PartContent::Text(text) | PartContent::Url(text) => text.len(),
            PartContent::Raw(bytes) => bytes.len(),
            PartContent::Data(data) => value_size(data),
        }
    });
    sizes.sum()
}

/// Adds what an update had in it that cannot be read, as far as there is room.
fn note(task: &mut Task, unreadable: Vec<String>) {
    let room = MAX_NAMED.saturating_sub(task.unreadable.len());
    task.unreadable.extend(unreadable.into_iter().take(room));
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
        unreadable: Vec::new(),
    }
}
