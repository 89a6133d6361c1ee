//! Recalls a call: looks for the task that an agent may have made of a message, though nobody knows of it here.
//!
//! An agent that lists tasks by context has what it lists in the context that the message opened. Any other is sent the
//! message once more, with the same id: one that recognizes ids answers with the task that it has. One that does not
//! makes another task, which is cancelled at once; the first one then goes on, as nothing can find it. Each message may be
//! work that the agent does anew. So an answer that came settles the recall, whatever it says, and where none came the
//! message is repeated a few times only.

use http::StatusCode;
use wopr_core::{AgentCall, RunKey, StepId, TraceContext};
use wopr_engine::{Blobs, CancelError, Recalled, Wake};
use wopr_wire::a2a::model::{SendMessageResponse, Task};

use super::{
    Agents, Attempted,
    answer::{cancelled, told},
    files::Incomplete,
    room::Kind,
    send::{NAME_TOO_LONG, draft, handle_of, has_short_ids, is_refused, known_task, own_context},
};
use crate::a2a::{self, Agent};

impl Agents {
    /// Finds the task of a call that its run has dropped.
    pub(crate) async fn recall(
        &self,
        call: &AgentCall,
        (run, step, (attempt, number)): (&RunKey, &StepId, (u32, u32)),
        key: &str,
        trace: Option<TraceContext>,
        blobs: Blobs,
    ) -> Result<Recalled, CancelError> {
        let attempted = Attempted {
            call,
            run,
            step,
            attempt,
            number,
            is_repeat: true,
            key,
            trace,
            handle: None,
            cursor: None,
            wake: Wake::none(),
            blobs,
        };
        if self.transports.contains_key(&call.peer) || !call.reach.is_peer() {
            // Without the task's id nothing can be cancelled.
            return Ok(Recalled::Over);
        }
        match self.client.task_api(&call.peer, super::settings(&attempted)) {
            // The API has no way to cancel a task.
            Ok(Some(_)) => return Ok(Recalled::Over),
            Ok(None) => {}
            Err(error) => return Err(told(&error)),
        }
        let Ok(draft) = draft(&attempted, self.origin.as_deref()) else {
            // It was never sent.
            return Ok(Recalled::Over);
        };
        let _room = self.rooms.take(&call.peer, &run.tenant, Kind::Message).await?;
        let agent = self.agent(&attempted).await.map_err(|error| told(&error))?;
        let own = own_context(&agent, &attempted);
        if let Some(context) = &own {
            match known_task(&agent, context).await {
                Ok(Some(task)) => return found(&agent, call, &task).await,
                Ok(None) => return Ok(Recalled::Nothing),
                Err(error) if error.is_transient() => return Err(told(&error)),
                // It lists no tasks.
                Err(_) => {}
            }
        }
        let mut message = match draft.complete(&attempted.blobs).await {
            Ok(message) => message,
            // Nobody knows whether it was sent before.
            Err(Incomplete::Invalid(rule)) => return Ok(Recalled::Unusable(rule)),
            Err(Incomplete::Later) => {
                return Err(CancelError::new(
                    "the files of the message cannot be read now".to_owned(),
                ));
            }
        };
        if own.is_some() {
            message.message.context_id.clone_from(&own);
        }
        let mut sent = agent.send_message(message.clone()).await;
        if own.is_some() && sent.as_ref().is_err_and(is_refused) {
            message.message.context_id = None;
            sent = agent.send_message(message).await;
        }
        match sent {
            Ok(SendMessageResponse::Task(task)) => found(&agent, call, &task).await,
            // It has answered, or says that it takes no such message, and so did not take it before either.
            Ok(SendMessageResponse::Message(_)) | Err(a2a::Error::Remote(_)) => Ok(Recalled::Over),
            Err(error) => lost(&error),
        }
    }
}

/// What a message leaves that was sent again and got no answer that this host can use.
fn lost(error: &a2a::Error) -> Result<Recalled, CancelError> {
    match error {
        a2a::Error::Status(said) if is_pressed(said.status) => Err(told(error)),
        a2a::Error::Status(said) if said.status.is_server_error() => {
            Ok(Recalled::Unanswered(told(error).to_string()))
        }
        a2a::Error::Interrupted(_) | a2a::Error::TimedOut(_) if error.may_have_been_sent() => {
            Ok(Recalled::Unanswered(told(error).to_string()))
        }
        error if error.may_have_been_sent() => Ok(Recalled::Unusable(told(error).to_string())),
        error => Err(told(error)),
    }
}

/// Whether the agent says that it has not taken the message, and may take it later.
fn is_pressed(status: StatusCode) -> bool {
    matches!(
        status,
        StatusCode::TOO_MANY_REQUESTS | StatusCode::SERVICE_UNAVAILABLE
    )
}

async fn found(agent: &Agent, call: &AgentCall, task: &Task) -> Result<Recalled, CancelError> {
    if task.status.state.is_terminal() {
        return Ok(Recalled::Over);
    }
    if has_short_ids(task) {
        return Ok(Recalled::Found(handle_of(call, task).to_value()));
    }
    // What cannot be stored cannot be cancelled later.
    let cancelled = cancelled(agent, &task.id).await;
    match cancelled {
        Ok(()) => Ok(Recalled::Over),
        Err(error) if error.is_transient() => Err(told(&error)),
        Err(_) => Ok(Recalled::Unusable(NAME_TOO_LONG.to_owned())),
    }
}
