//! Renders the questions of a run: as a message of the agent, and as metadata of its task.

use serde_json::{Value, json};
use wopr_app::{Conversation, Question, Waiting, reads_artifacts};
use wopr_core::InterruptKind;
use wopr_wire::a2a::model::{Message, Part, Role};

use super::answer::{Asked, questions};
use crate::auth::Caller;

/// The part of the interrupt that is needed to read an answer.
pub(super) fn for_answer(question: &Question) -> Asked<'_> {
    Asked {
        kind: question.waiting.kind,
        data: question.asked.as_ref().map_or(&Value::Null, |asked| &asked.data),
    }
}

/// Builds `metadata.openwop.interrupt`. Its kind is OpenWOP's; the durable record has only two kinds (RFC
/// 0100).
pub(super) fn metadata(question: &Question, caller: &Caller) -> Value {
    let mut interrupt = json!({
        "kind": question.waiting.kind.as_str(),
        "interruptId": question.waiting.id(),
        "nodeId": question.waiting.step.node.as_str(),
    });
    if let Some(asked) = &question.asked {
        if let Some(subkind) = asked.subkind() {
            interrupt["subkind"] = subkind.into();
        }
        interrupt["data"] = asked.current_data(reads_artifacts(caller));
    }
    interrupt
}

/// The id of the message that asks a question for the first time.
pub(super) fn message_id(waiting: &Waiting, run: &str) -> String {
    format!("{run}.{}", waiting.id())
}

/// Builds the agent's message. The same question always has the same message id, and each turn of a conversation is
/// another question: its message has the turns so far, as this reader sees them.
pub(super) fn message(question: &Question, run: &str, context: &str, reads_artifacts: bool) -> Message {
    let mut parts = vec![Part::text(text(question))];
    let mut id = message_id(&question.waiting, run);
    if let Some(asked) = &question.asked {
        let turn = asked.conversation.as_ref().map(Conversation::n_turns);
        match turn.filter(|turn| asked.data["turnIndex"] != *turn) {
            Some(turn) => {
                id = format!("{id}.{turn}");
                parts.push(Part::data(asked.current_data(reads_artifacts)));
            }
            None => parts.push(Part::data(asked.data.clone())),
        }
    }
    let mut message = Message::new(id, Role::Agent, parts);
    message.task_id = Some(run.to_owned());
    message.context_id = Some(context.to_owned());
    message
}

fn text(question: &Question) -> String {
    let data = question.asked.as_ref().map_or(&Value::Null, |asked| &asked.data);
    let text = |name: &str| data.get(name).and_then(Value::as_str);
    match question.waiting.kind {
        InterruptKind::Approval => {
            let lines = ["title", "prompt", "description"].into_iter().filter_map(text);
            join(lines).unwrap_or_else(|| "An approval is needed.".to_owned())
        }
        InterruptKind::Clarification => join(questions(data).iter().map(|question| question.text))
            .unwrap_or_else(|| "A clarification is needed.".to_owned()),
        InterruptKind::ExternalEvent => match text("eventType") {
            Some(event) => format!("Waiting for the event '{event}'."),
            None => "Waiting for an event.".to_owned(),
        },
        InterruptKind::Custom => join(["title", "prompt", "description"].into_iter().filter_map(text))
            .unwrap_or_else(|| "An answer is needed.".to_owned()),
        InterruptKind::LowConfidence => {
            let number = |name: &str| data.get(name).and_then(Value::as_f64).unwrap_or_default();
            let (agent, observed) = (text("agentId").unwrap_or("An agent"), number("observed"));
            format!("{agent} has a confidence of {observed} in its decision. Does it count?")
        }
        InterruptKind::Conversation => join(["title", "prompt"].into_iter().filter_map(text))
            .unwrap_or_else(|| "It is your turn.".to_owned()),
    }
}

fn join<'t>(lines: impl Iterator<Item = &'t str>) -> Option<String> {
    let lines: Vec<_> = lines.filter(|line| !line.trim().is_empty()).collect();
    (!lines.is_empty()).then(|| lines.join("\n"))
}
