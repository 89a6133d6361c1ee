//! The stream that an agent answers a message with: followed for a moment, because most tasks are short.

use std::time::Duration;

use futures_util::StreamExt as _;
use wopr_wire::{
    a2a::model::{SendMessageRequest, SendMessageResponse, StreamResponse, Task, TaskState, TaskStatus},
    json::Object,
};

use crate::a2a::{self, Agent, Items};

/// How long the first stream of a task is followed before the call is parked.
const FOLLOWED: Duration = Duration::from_millis(300);

/// Sends a message to an agent that streams: its task is known with the first event, however long it takes.
/// The stream is followed for a moment, because most tasks are short. It is returned if the task goes on.
pub(super) async fn stream(
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
