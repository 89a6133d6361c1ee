//! The stream that an agent answers a message with: followed for a moment, because most tasks are short.
//!
//! It is about the task of its first item. What it says of another one counts for nothing. The agent is asked for a task
//! whose end was streamed in pieces; the stream counts if the agent no longer has the task, or cannot be asked for tasks.

use std::time::Duration;

use futures_util::StreamExt as _;
use wopr_wire::a2a::model::{
    SendMessageRequest, SendMessageResponse, StreamResponse, Task, TaskState, TaskStatus,
};

use super::{carried::Carried, failure::tells_no_task};
use crate::a2a::{self, Agent, Items};

/// How long the first stream of a task is followed before the call is parked.
const FOLLOWED: Duration = Duration::from_millis(300);
/// How long the stream of a task may take to end after its last item: a stream that ends leaves its connection for
/// other calls.
const LAST_ITEM: Duration = Duration::from_millis(20);

/// A stream that goes on, and what it has brought so far.
pub(super) struct GoesOn {
    pub(super) items: Items,
    pub(super) carried: Carried,
}

/// Sends a message to an agent that streams: its task is known with the first event, however long it takes.
/// The stream is followed for a moment, because most tasks are short. It is returned if the task goes on.
pub(super) async fn stream(
    agent: &Agent,
    request: SendMessageRequest,
) -> Result<(SendMessageResponse, Option<GoesOn>), a2a::Error> {
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
    let (is_whole, has_ended) = (carried.is_whole(), carried.has_ended());
    let Some(task) = carried.task.clone() else {
        return Err(a2a::Error::NoStream);
    };
    let goes_on = goes_on.then_some(GoesOn { items, carried });
    if is_whole {
        return Ok((SendMessageResponse::Task(task), None));
    }
    // The whole task with its artifacts, which a stream need not have.
    match agent.get_task(&task.id, Some(0)).await {
        Ok(whole) => Ok((SendMessageResponse::Task(whole), goes_on)),
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
            goes_on,
        )),
    }
}
