//! What an agent asks: how a question is recognized, and how it is asked in the run.

use serde_json::{Value, json};
use wopr_core::{ContentHash, InterruptKind, RemoteQuestion, UNTRUSTED};
use wopr_wire::a2a::model::{Task, TaskState};

use super::{
    Handle,
    failure::{cut, cut_to},
    outputs::text_of,
    refusals::Refusal,
};
use crate::a2a::{self, Agent};

/// Longest question of an agent, and the most parts of one, in bytes.
pub(super) const MAX_QUESTION: usize = 8_000;
const MAX_PARTS: usize = 16 << 10;
/// Deepest parts of a question that a run keeps.
const MAX_DEPTH: usize = 24;
/// The id of the question in an interrupt's data.
pub(super) const ANSWER: &str = "answer";

/// Longest id of an interrupt that is kept, in bytes.
const MAX_INTERRUPT: usize = 8 << 10;

/// Identifies the question that a task asks, if it asks one: another state, message, text or interrupt is another question.
/// The time does not count, because some agents write a new one whenever they are asked.
pub(super) fn asks(task: &Task) -> Option<String> {
    let status = &task.status;
    if !status.state.is_interrupted() {
        return None;
    }
    let message = status.message.as_ref();
    let said = (
        status.state,
        message.map(|message| message.message_id.as_str()),
        message.map(|message| &message.parts),
        interrupt(task),
    );
    let said = serde_json::to_vec(&said).unwrap_or_default();
    Some(ContentHash::of(&said).as_str().to_owned())
}

/// Identifies the question that a task asks by its state and text alone.
pub(super) fn says(task: &Task) -> Option<String> {
    let status = &task.status;
    if !status.state.is_interrupted() {
        return None;
    }
    let message = status.message.as_ref();
    let said = (status.state, message.map(|message| &message.parts));
    let said = serde_json::to_vec(&said).unwrap_or_default();
    Some(ContentHash::of(&said).as_str().to_owned())
}

/// The id of the interrupt whose question a task shows, if the agent is an OpenWOP host.
pub(super) fn interrupt(task: &Task) -> Option<String> {
    let shown = task.metadata.get("openwop")?.get("interrupt")?;
    let id = shown.get("interruptId")?.as_str()?;
    (!id.is_empty() && id.len() <= MAX_INTERRUPT).then(|| id.to_owned())
}

/// Whether a task still waits for the answer to the question of the handle. An agent that asks several questions may show
/// another one first by now.
pub(super) async fn still_asks(agent: &Agent, handle: &Handle, task: &Task) -> Result<bool, a2a::Error> {
    match task.status.state.is_interrupted() && lists(task, handle.interrupt.as_deref()) {
        true => Ok(true),
        false => asks_the_same(agent, handle, task).await,
    }
}

/// Returns `true` if an agent has taken an answer and still asks the same question, as a gate does that wants several votes.
/// An OpenWOP host shows the task as the answer has left it; a question without data is a child's, which has its answer.
pub(super) fn goes_on_asking(handle: &Handle, task: &Task) -> bool {
    let openwop = task.metadata.get("openwop");
    let data = openwop.and_then(|openwop| openwop.pointer("/interrupt/data"));
    handle.interrupt.is_some() && data.is_some() && asks(task).is_some_and(|asks| Some(asks) == handle.asks)
}

/// Returns `true` if a task that shows several open interrupts lists this one.
fn lists(task: &Task, interrupt: Option<&str>) -> bool {
    let openwop = task.metadata.get("openwop");
    let open = openwop.and_then(|openwop| openwop.get("interrupts")?.as_array());
    let mut ids = open
        .into_iter()
        .flatten()
        .map(|open| open["interruptId"].as_str());
    interrupt.is_some() && ids.any(|id| id == interrupt)
}

/// Whether a task shows the question that it showed when the handle was made. If only the id of its message is another
/// one, the agent is asked once more: one that repeats a question keeps the new id, and one that makes up an id for each
/// answer does not.
pub(super) async fn asks_the_same(agent: &Agent, handle: &Handle, task: &Task) -> Result<bool, a2a::Error> {
    let asked = asks(task);
    if asked == handle.asks {
        return Ok(true);
    }
    if asked.is_none() || handle.says.is_none() || says(task) != handle.says {
        return Ok(false);
    }
    let again = agent.get_task(&handle.task_id, Some(0)).await?;
    let has_new_id = asks(&again) != asked;
    Ok(has_new_id && says(&again) == handle.says)
}

/// Returns `true` if a value has more than `left` levels of nesting.
fn is_deep(value: &Value, left: usize) -> bool {
    match value {
        Value::Array(items) => left == 0 || items.iter().any(|item| is_deep(item, left - 1)),
        Value::Object(fields) => left == 0 || fields.values().any(|field| is_deep(field, left - 1)),
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => false,
    }
}

/// Whether an agent that is an OpenWOP host says that its question is for credentials: its tasks have no state for that,
/// and it may pass on the question of another agent.
fn says_auth(task: &Task) -> bool {
    let openwop = task.metadata.get("openwop");
    let subkind = openwop.and_then(|openwop| openwop.pointer("/interrupt/subkind"));
    subkind.and_then(Value::as_str) == Some("auth")
}

/// The question of a task as an interrupt of its run, with why the agent did not take the last answer to it,
/// if it refused it.
pub(super) fn question(handle: &Handle, task: &Task, refusal: Option<&Refusal>) -> RemoteQuestion {
    let parts = task
        .status
        .message
        .as_ref()
        .map_or(&[][..], |message| &message.parts);
    let text = cut_to(&text_of(parts), MAX_QUESTION);
    let is_auth = task.status.state == TaskState::AuthRequired || says_auth(task);
    let text = match (text.is_empty(), is_auth) {
        (false, _) => text,
        (true, false) => "The agent asks for input.".to_owned(),
        (true, true) => "The agent asks for credentials.".to_owned(),
    };
    let refused = refusal.and_then(|refusal| refusal.text.as_deref()).map(cut);
    let text = match &refused {
        Some(refused) => cut_to(
            &format!("The agent did not take the answer: {refused}\n{text}"),
            MAX_QUESTION,
        ),
        None => text,
    };
    let mut data = json!({
        "source": "remote",
        "peer": handle.peer,
        "taskId": handle.task_id,
        "message": text,
        "questions": [{ "id": ANSWER, "question": text }],
        "contentTrust": UNTRUSTED,
    });
    if let Some(refused) = refused {
        data["refusal"] = refused.into();
    }
    let shown = serde_json::to_value(parts).unwrap_or_default();
    if !is_deep(&shown, MAX_DEPTH) && shown.to_string().len() <= MAX_PARTS {
        data["parts"] = shown;
    }
    if is_auth {
        data["subkind"] = "auth".into();
        data["metadata"] = json!({ "subkind": "auth" });
    }
    RemoteQuestion {
        key: match (&handle.asks, &handle.refused) {
            (Some(asks), Some(refused)) => format!("{asks}.{refused}"),
            (Some(asks), None) => asks.clone(),
            (None, _) => String::new(),
        },
        kind: InterruptKind::Clarification,
        data,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn question_for_credentials_is_one_at_every_host_that_it_passes() {
        let asks = |state: &str, subkind: &str| {
            let task = json!({
                "id": "t", "contextId": "c", "status": { "state": state },
                "metadata": { "openwop": { "interrupt": { "subkind": subkind } } },
            });
            let task: Task = serde_json::from_value(task).unwrap();
            let handle: Handle =
                serde_json::from_value(json!({ "peer": "p", "taskId": "t", "since": 0 })).unwrap();
            question(&handle, &task, None).data["metadata"]["subkind"].clone()
        };
        assert_eq!(asks("TASK_STATE_AUTH_REQUIRED", ""), "auth");
        assert_eq!(asks("TASK_STATE_INPUT_REQUIRED", "auth"), "auth");
        assert_eq!(asks("TASK_STATE_INPUT_REQUIRED", "other"), Value::Null);
    }
}
