//! The outputs of a step whose agent has answered.

use serde_json::{Value, json};
use wopr_core::{AgentCall, UNTRUSTED};
use wopr_wire::a2a::model::{Artifact, Message, Part, PartContent, Task};

/// The outputs of a step whose agent completed its task.
pub(super) fn of_task(call: &AgentCall, task: &Task) -> Value {
    let parts: Vec<_> = task
        .artifacts
        .iter()
        .flat_map(|artifact| &artifact.parts)
        .collect();
    let said = task.status.message.as_ref();
    let said = said.map_or(&[][..], |message| &message.parts);
    let data = data_of(parts.iter().copied()).or_else(|| data_of(said));
    let outputs = json!({
        "text": text_of_task(task),
        "data": data,
        "artifacts": task.artifacts.iter().map(shown).collect::<Vec<_>>(),
        "state": "completed",
        "taskId": task.id,
        "contextId": task.context_id,
        // By the agent's clock; the event that holds the outputs has this host's time.
        "statusTimestamp": task.status.timestamp,
        "peer": call.peer,
        "contentTrust": UNTRUSTED,
    });
    with_unreadable(outputs, &task.unreadable)
}

/// Adds to outputs what the agent's answer had in it that cannot be read, if anything.
pub(super) fn with_unreadable(mut outputs: Value, unreadable: &[String]) -> Value {
    if !unreadable.is_empty() {
        outputs["unreadable"] = unreadable.into();
    }
    outputs
}

/// The texts of the artifacts of a task, or else of the agent's message.
pub(super) fn text_of_task(task: &Task) -> String {
    // The parts of an artifact are its chunks.
    let artifacts = task.artifacts.iter().map(|artifact| texts(&artifact.parts));
    let artifacts: Vec<_> = artifacts
        .filter(|texts| !texts.is_empty())
        .map(|texts| texts.concat())
        .collect();
    match &task.status.message {
        Some(message) if artifacts.is_empty() => text_of(&message.parts),
        Some(_) | None => artifacts.join("\n"),
    }
}

/// The outputs of a step whose agent answered without a task.
pub(super) fn of_message(peer: &str, message: &Message) -> Value {
    let outputs = json!({
        "text": text_of(&message.parts),
        "data": data_of(&message.parts),
        "artifacts": [],
        "state": "completed",
        "taskId": null,
        "contextId": message.context_id,
        "peer": peer,
        "contentTrust": UNTRUSTED,
    });
    with_unreadable(outputs, &message.unreadable)
}

pub(super) fn shown(artifact: &Artifact) -> Value {
    json!({ "id": artifact.artifact_id, "name": artifact.name, "parts": artifact.parts })
}

pub(super) fn text_of(parts: &[Part]) -> String {
    texts(parts).join("\n")
}

fn texts(parts: &[Part]) -> Vec<&str> {
    let texts = parts.iter().filter_map(|part| match &part.content {
        PartContent::Text(text) => Some(text.as_str()),
        PartContent::Raw(_) | PartContent::Url(_) | PartContent::Data(_) => None,
    });
    texts.collect()
}

pub(super) fn data_of<'p>(parts: impl IntoIterator<Item = &'p Part>) -> Option<Value> {
    parts.into_iter().find_map(|part| match &part.content {
        PartContent::Data(data) => Some(data.clone()),
        PartContent::Text(_) | PartContent::Raw(_) | PartContent::Url(_) => None,
    })
}
