//! Calls that end with the agent's first answer: a message that is sent and not followed, a look at a task, a cancel,
//! and the agent's card.
//!
//! Each may be repeated. A message has the same id in every attempt and is repeated as that of a call that is followed; a task that was cancelled before is looked at.
//! Everything in the outcome is the agent's word, and marked as untrusted. Of what an agent says, metadata and
//! references to other tasks are left out: nothing here follows them.

use serde_json::{Value, json};
use url::Url;
use wopr_core::{AgentCall, AgentVerb, UNTRUSTED};
use wopr_engine::{Outcome, Report};
use wopr_wire::a2a::model::{Message, SendMessageResponse, Task, TaskState};

use super::{
    Agents, Attempted,
    failure::{failed, is_nonsense, is_over, not_sent},
    outputs::{data_of, shown, text_of, text_of_task, with_unreadable},
    send::Sent,
};
use crate::a2a::{self, Agent};

impl Agents {
    /// Puts the name of a peer in the place of its address.
    ///
    /// # Errors
    /// No peer has that address. Where agents are is the operator's to say, never a workflow's.
    pub(crate) fn name_peer(&self, call: &mut AgentCall) -> Result<(), Outcome> {
        if self.client.knows(&call.peer) {
            return Ok(());
        }
        // What is no address is the name of a peer that is missing, which the call will say.
        let Ok(address) = Url::parse(&call.peer) else {
            return Ok(());
        };
        match self.client.peer_at(&address) {
            Some(peer) => {
                call.peer = peer.name;
                Ok(())
            }
            None => {
                let message = format!("no A2A peer of this host has the address {}", call.peer);
                Err(failed("peer_unknown", message))
            }
        }
    }

    /// Makes a call that is over with the agent's answer.
    pub(super) async fn perform(&self, attempted: &Attempted<'_>) -> Report {
        let performed = match &attempted.call.verb {
            AgentVerb::Discover => self.discover(attempted).await,
            AgentVerb::GetTask { task } => self.get_task(attempted, task).await,
            AgentVerb::CancelTask { task } => self.cancel_task(attempted, task).await,
            AgentVerb::Invoke { .. } | AgentVerb::Send { .. } => {
                match Box::pin(self.message(attempted)).await {
                    Ok(Sent { answer, .. }) => Ok(of_answer(&attempted.call.peer, &answer)),
                    Err(report) => return report,
                }
            }
        };
        match performed {
            Ok(outputs) => Outcome::Done(outputs).into(),
            Err(error) => not_sent(&error).into(),
        }
    }

    async fn discover(&self, attempted: &Attempted<'_>) -> Result<Value, a2a::Error> {
        let peer = &attempted.call.peer;
        let card = self.client.card(peer).await?;
        let card =
            serde_json::to_value(&card.model).map_err(|error| a2a::Error::CardInvalid(error.to_string()))?;
        Ok(json!({ "card": card, "peer": peer, "contentTrust": UNTRUSTED }))
    }

    async fn get_task(&self, attempted: &Attempted<'_>, id: &str) -> Result<Value, a2a::Error> {
        let agent = self.agent(attempted).await?;
        let task = agent.get_task(id, Some(0)).await?;
        Ok(of_any_task(&attempted.call.peer, &task))
    }

    async fn cancel_task(&self, attempted: &Attempted<'_>, id: &str) -> Result<Value, a2a::Error> {
        let agent = self.agent(attempted).await?;
        let task = match agent.cancel_task(id).await {
            Ok(task) => task,
            // It has ended, perhaps by an earlier attempt at this call; or the task says more than the answer.
            Err(error) if is_over(&error) || is_nonsense(&error) => ended(&agent, id, error).await?,
            Err(error) => return Err(error),
        };
        Ok(of_any_task(&attempted.call.peer, &task))
    }
}

/// The task that an agent says is over, or its refusal if it is not.
async fn ended(agent: &Agent, id: &str, refusal: a2a::Error) -> Result<Task, a2a::Error> {
    let task = agent.get_task(id, Some(0)).await?;
    match task.status.state.is_terminal() {
        true => Ok(task),
        false => Err(refusal),
    }
}

fn of_answer(peer: &str, answer: &SendMessageResponse) -> Value {
    match answer {
        SendMessageResponse::Task(task) => of_any_task(peer, task),
        SendMessageResponse::Message(message) => {
            let outputs = json!({
                "text": text_of(&message.parts),
                "data": data_of(&message.parts),
                "artifacts": [],
                "message": said(message),
                "state": null,
                "taskId": message.task_id,
                "contextId": message.context_id,
                "peer": peer,
                "contentTrust": UNTRUSTED,
            });
            with_unreadable(outputs, &message.unreadable)
        }
    }
}

/// The outputs for a task in any state.
fn of_any_task(peer: &str, task: &Task) -> Value {
    let parts = task.artifacts.iter().flat_map(|artifact| &artifact.parts);
    let message = task.status.message.as_ref();
    let data = data_of(parts).or_else(|| data_of(message.map_or(&[][..], |message| &message.parts)));
    let outputs = json!({
        "text": text_of_task(task),
        "data": data,
        "artifacts": task.artifacts.iter().map(shown).collect::<Vec<_>>(),
        "message": message.map(said),
        "state": word(task.status.state),
        "taskId": task.id,
        "contextId": task.context_id,
        "peer": peer,
        "contentTrust": UNTRUSTED,
    });
    with_unreadable(outputs, &task.unreadable)
}

fn said(message: &Message) -> Value {
    json!({ "role": message.role, "parts": message.parts })
}

/// The word for a state, as in the record of a task.
const fn word(state: TaskState) -> &'static str {
    match state {
        TaskState::Unspecified => "unknown",
        TaskState::Submitted => "submitted",
        TaskState::Working => "working",
        TaskState::InputRequired => "input-required",
        TaskState::AuthRequired => "auth-required",
        TaskState::Completed => "completed",
        TaskState::Failed => "failed",
        TaskState::Canceled => "canceled",
        TaskState::Rejected => "rejected",
    }
}
