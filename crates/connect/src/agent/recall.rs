//! Recalls a call: looks for the task that an agent may have made of a message, though nobody knows of it here.
//!
//! An agent that lists tasks by context has what it lists in the context that the message opened. Any other is sent the
//! message once more, with the same id: one that recognizes ids answers with the task that it has. One that does not
//! makes another task, which is cancelled at once; the first one then goes on, as nothing can find it.

use wopr_core::{AgentCall, RunKey, StepId};
use wopr_engine::{CancelError, Recalled, Wake};
use wopr_wire::a2a::model::{SendMessageResponse, Task};

use super::{
    Agents, Attempted,
    answer::told,
    send::{handle_of, has_short_ids, is_refused, known_task, own_context, request},
};
use crate::a2a;

impl Agents {
    /// Finds the task of a call that its run has dropped.
    pub(crate) async fn recall(
        &self,
        call: &AgentCall,
        (run, step, attempt): (&RunKey, &StepId, u32),
        key: &str,
        traceparent: Option<String>,
    ) -> Result<Recalled, CancelError> {
        let attempted = Attempted {
            call,
            run,
            step,
            attempt,
            is_repeat: true,
            key,
            traceparent,
            handle: None,
            cursor: None,
            wake: Wake::none(),
        };
        if self.transports.contains_key(&call.peer) || !call.reach.is_peer() {
            // Without the task's id nothing can be cancelled.
            return Ok(Recalled::Nothing);
        }
        match self.client.task_api(&call.peer, super::settings(&attempted)) {
            // The API has no way to cancel a task.
            Ok(Some(_)) => return Ok(Recalled::Nothing),
            Ok(None) => {}
            Err(error) => return Err(told(&error)),
        }
        let Ok(mut message) = request(&attempted, self.origin.as_deref()) else {
            // It was never sent.
            return Ok(Recalled::Nothing);
        };
        let agent = self.agent(&attempted).await.map_err(|error| told(&error))?;
        let own = own_context(&agent, &attempted);
        if let Some(context) = &own {
            match known_task(&agent, context).await {
                Ok(Some(task)) => return found(call, &task),
                Ok(None) => return Ok(Recalled::Nothing),
                Err(error) if error.is_transient() => return Err(told(&error)),
                // It lists no tasks.
                Err(_) => {}
            }
            message.message.context_id = Some(context.clone());
        }
        let mut sent = agent.send_message(message.clone()).await;
        if own.is_some() && sent.as_ref().is_err_and(is_refused) {
            message.message.context_id = None;
            sent = agent.send_message(message).await;
        }
        match sent {
            Ok(SendMessageResponse::Task(task)) => found(call, &task),
            // It has answered, or says that it takes no such message, and so did not take it before either.
            Ok(SendMessageResponse::Message(_)) | Err(a2a::Error::Remote(_)) => Ok(Recalled::Nothing),
            Err(error) => Err(told(&error)),
        }
    }
}

fn found(call: &AgentCall, task: &Task) -> Result<Recalled, CancelError> {
    if task.status.state.is_terminal() {
        return Ok(Recalled::Nothing);
    }
    match has_short_ids(task) {
        true => Ok(Recalled::Found(handle_of(call, task).to_value())),
        false => Err(CancelError(
            "the agent's name for its task is too long".to_owned(),
        )),
    }
}
