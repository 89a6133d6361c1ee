//! Tells an agent what its task waits for: the answer to a question, or that nobody waits for the task any more.

use serde_json::{Value, json};
use wopr_core::{ContentHash, TenantId};
use wopr_engine::{Answered, Answering, CancelError, Cancellation, Outcome};
use wopr_wire::{
    a2a::model::{Message, Part, Role, SendMessageConfiguration, SendMessageRequest, SendMessageResponse},
    json::Object,
};

use super::{
    Agents, Handle,
    failure::{self, is_forgotten, is_nonsense, is_over},
    outputs::of_message,
    question::{ANSWER, goes_on_asking, still_asks},
    refusals::Refusal,
    room::{self, Kind},
    send::add_trace,
    tasks_http,
};
use crate::a2a::{self, Agent};

/// Why an agent could not be told, and how long it asks to be left alone.
pub(super) fn told(error: &a2a::Error) -> CancelError {
    CancelError::new(failure::cut(&failure::with_words(error))).after(error.retry_after())
}

/// The task that a delivery is about.
fn handle_of(stored: Value) -> Result<Handle, CancelError> {
    serde_json::from_value(stored).map_err(|error| CancelError::new(error.to_string()))
}

/// Has an agent cancel a task that nobody waits for.
///
/// # Errors
/// The task goes on, or nobody knows.
pub(super) async fn cancelled(agent: &Agent, task: &str) -> Result<(), a2a::Error> {
    match agent.cancel_task(task).await {
        Ok(_) => Ok(()),
        Err(error) if is_forgotten(&error) => Ok(()),
        // It has ended, or cannot be cancelled now; or the task says more than the answer.
        Err(refusal) if is_over(&refusal) || is_nonsense(&refusal) => {
            match agent.get_task(task, Some(0)).await {
                Ok(task) if task.status.state.is_terminal() => Ok(()),
                Ok(_) => Err(refusal),
                Err(error) if is_forgotten(&error) => Ok(()),
                Err(error) => Err(error),
            }
        }
        Err(error) => Err(error),
    }
}

impl Agents {
    /// Cancels the task of a call that its run no longer waits for.
    pub(crate) async fn cancel(&self, call: Cancellation) -> Result<(), CancelError> {
        if tasks_http::is_handle(&call.handle) {
            return match self.transports.get(tasks_http::peer_of(&call.handle)) {
                Some(transport) => tasks_http::cancel(&**transport, &call).await,
                // The API has no way to cancel a task.
                None => Ok(()),
            };
        }
        let handle = handle_of(call.handle)?;
        let _room = self.room_of(&call.run.tenant, &handle, Kind::Look).await?;
        let agent = self.agent_of(&call.run.tenant, call.trace, &handle).await;
        let agent = agent.map_err(|error| told(&error))?;
        let cancelled = cancelled(&agent, &handle.task_id).await;
        cancelled.map_err(|error| told(&error))
    }

    /// Takes room for a request about a task; for none if this host does not have the agent, which the request will say.
    async fn room_of(
        &self,
        tenant: &TenantId,
        handle: &Handle,
        kind: Kind,
    ) -> Result<Option<room::Taken>, CancelError> {
        if !self.client.knows(&handle.peer) {
            return Ok(None);
        }
        Ok(Some(self.rooms.take(&handle.peer, tenant, kind).await?))
    }

    /// Answers what the agent of a call asks, into the same task.
    pub(crate) async fn answer(&self, answering: Answering) -> Result<Answered, CancelError> {
        if tasks_http::is_handle(&answering.handle) {
            let transport = self
                .transports
                .get(tasks_http::peer_of(&answering.handle))
                .cloned();
            return tasks_http::answer(transport.as_deref(), answering).await;
        }
        let handle = handle_of(answering.handle)?;
        let _room = self.room_of(&answering.run.tenant, &handle, Kind::Answer).await?;
        let trace = answering.trace;
        let agent = self.agent_of(&answering.run.tenant, trace.clone(), &handle).await;
        let agent = agent.map_err(|error| told(&error))?;
        // The agent may have gone on, or ask something else by now.
        let task = match agent.get_task(&handle.task_id, Some(0)).await {
            Ok(task) => match still_asks(&agent, &handle, &task).await {
                Ok(true) => task,
                Ok(false) => return Ok(Answered::Taken),
                Err(error) => return Err(told(&error)),
            },
            Err(error) if is_forgotten(&error) => return Ok(Answered::Taken),
            Err(error) => return Err(told(&error)),
        };
        let key = &answering.idempotency_key;
        let mut message = Message::new(format!("wopr-{key}"), Role::User, answer_parts(answering.value));
        message.task_id = Some(handle.task_id.clone());
        // The agent may have moved its task to another context since.
        let contexts = [task.context_id, handle.context_id.clone()];
        message.context_id = contexts.into_iter().find(|id| !id.is_empty());
        let mut origin = json!({ "runId": answering.run.run.as_str(), "interruptId": answering.interrupt });
        if let Some(interrupt) = &handle.interrupt {
            origin["interrupt"] = json!({ "interruptId": interrupt });
        }
        add_trace(&mut origin, trace.as_ref());
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
            Ok(SendMessageResponse::Task(task)) => {
                if goes_on_asking(&handle, &task) {
                    self.ask_anew(&handle, key, None);
                }
                Ok(Answered::Taken)
            }
            Ok(SendMessageResponse::Message(message)) => {
                Ok(Answered::Ended(Outcome::Done(of_message(&handle.peer, &message))))
            }
            // The task says what became of it.
            Err(error) if is_forgotten(&error) || is_over(&error) => Ok(Answered::Taken),
            Err(error) if error.is_transient() => Err(told(&error)),
            Err(error) => self.not_taken(&agent, &handle, key, &error).await,
        }
    }

    /// Has the next look ask the question anew, though it is the same.
    fn ask_anew(&self, handle: &Handle, key: &str, text: Option<String>) {
        let asks = handle.asks.clone().unwrap_or_default();
        let question = (handle.peer.clone(), handle.task_id.clone(), asks);
        let digest = ContentHash::of(key.as_bytes());
        let refusal = Refusal {
            answer: digest.as_str().chars().take(16).collect(),
            text,
        };
        self.refusals.note(question, refusal);
    }

    /// Finds out what became of an answer that the agent refused, or whose response cannot be read: the agent may have taken
    /// it all the same. If the agent still asks, the next look asks the question anew, with the agent's reason.
    async fn not_taken(
        &self,
        agent: &Agent,
        handle: &Handle,
        key: &str,
        error: &a2a::Error,
    ) -> Result<Answered, CancelError> {
        let asked = async {
            let task = agent.get_task(&handle.task_id, Some(0)).await?;
            still_asks(agent, handle, &task).await
        };
        match asked.await {
            Ok(true) => {
                self.ask_anew(handle, key, Some(failure::told(error)));
                Ok(Answered::Taken)
            }
            // The task says what became of it.
            Ok(false) => Ok(Answered::Taken),
            Err(unasked) if is_forgotten(&unasked) => Ok(Answered::Taken),
            Err(unasked) => Err(told(&unasked)),
        }
    }
}

/// The parts of an answer: a text, data, or both if it is `{text, data}`.
fn answer_parts(value: Value) -> Vec<Part> {
    match given(value) {
        Value::String(text) => vec![Part::text(text)],
        Value::Object(mut both) if both.len() == 2 && both.contains_key("data") => {
            match both.remove("text") {
                Some(Value::String(text)) => {
                    let data = both.remove("data").unwrap_or_default();
                    vec![Part::text(text), Part::data(data)]
                }
                Some(other) => {
                    both.insert("text".to_owned(), other);
                    vec![Part::data(both.into())]
                }
                None => vec![Part::data(both.into())],
            }
        }
        data => vec![Part::data(data)],
    }
}

/// What an answer says: its text, the answers to the questions, or all of it.
pub(super) fn given(value: Value) -> Value {
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
    given.unwrap_or(value)
}
