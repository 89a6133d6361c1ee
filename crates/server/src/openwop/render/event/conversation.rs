//! Conversations at gates, as `conversation.*` events (RFC 0005). Two published schemas name different members; the
//! payloads have those of both.

use serde_json::{Value, json};
use wopr_core::openwop::{Change, ConversationEvent, Role, Turn};

use super::{Mask, Payload};

pub(super) const fn name(event: &ConversationEvent) -> &'static str {
    match &event.change {
        Change::Opened => "conversation.opened",
        Change::Exchanged => "conversation.exchanged",
        Change::Closed { .. } => "conversation.closed",
    }
}

pub(super) fn payload<'a>(event: &'a ConversationEvent, mask: &Mask) -> Payload<'a> {
    let node = &event.step.node;
    let shown = turn(&event.turn, &mask.said(node, "turns", &event.turn.content));
    let index = event.turn.index;
    let payload = Payload::new().with("conversationId", event.step.key());
    match &event.change {
        Change::Opened => payload
            .with("openedBy", event.turn.from.as_str())
            .with("agentId", event.turn.from.as_str())
            .with("initialTurn", shown)
            .with("capabilities", json!(["multi-turn"])),
        Change::Exchanged => payload.with("turnIndex", index).with("turn", shown),
        Change::Closed { outcome, reason } => payload
            .with("turnIndex", index)
            .with("finalTurn", shown)
            .with("turnCount", index + 1)
            .maybe(
                "outcome",
                outcome
                    .as_ref()
                    .map(|outcome| mask.said(node, "outcome", outcome)),
            )
            .maybe("reason", reason.as_deref()),
    }
}

fn turn(turn: &Turn, content: &Value) -> Value {
    let mut shown = json!({
        "messageId": turn.message,
        "from": turn.from,
        "role": turn.role.as_str(),
        "content": content,
        "ts": turn.at.millis(),
        "turnIndex": turn.index,
    });
    match turn.role {
        Role::Agent => {
            shown["speakerId"] = turn.from.as_str().into();
            shown["agent"] = json!({ "agentId": turn.from });
        }
        Role::User | Role::System => {}
    }
    shown
}
