//! Renders what an interrupt asks, as events show it (section 13.2).
//!
//! The published schema of `interrupt.requested` is closed for most kinds. What this host shows people beside the
//! question, such as a title, is in the documents of runs and interrupts, and on the page.

use std::borrow::Cow;

use serde_json::{Value, json};
use wopr_core::InterruptKind;

/// The members of a kind's data, the first of which is required; `None` if its schema is open.
const fn members(kind: InterruptKind) -> Option<&'static [&'static str]> {
    match kind {
        InterruptKind::Approval => None,
        InterruptKind::Clarification => Some(&["questions", "contextType"]),
        InterruptKind::ExternalEvent => Some(&["eventType", "correlation"]),
        InterruptKind::Custom => Some(&["customKind", "payload"]),
        InterruptKind::LowConfidence => Some(&["agentId", "threshold", "observed", "decision"]),
        InterruptKind::Conversation => Some(&["conversationId", "prompt", "outcomeSchema", "turnIndex"]),
    }
}

/// The data of an interrupt, without what its schema does not know. What an agent asks (`is_remote`), and what a
/// document of another language asks, has a form of its own; a signal that one waits for is an event of that type.
pub(super) fn data_of(kind: InterruptKind, data: &Value, is_remote: bool) -> Cow<'_, Value> {
    let (Some(members), Value::Object(fields), false) = (members(kind), data, is_remote) else {
        return Cow::Borrowed(data);
    };
    if let (InterruptKind::ExternalEvent, Some(signal)) = (kind, fields.get("signal"))
        && !fields.contains_key("eventType")
    {
        return Cow::Owned(json!({ "eventType": signal, "correlation": {} }));
    }
    let is_known = |name: &String| members.contains(&name.as_str());
    if !fields.contains_key(members[0]) || fields.keys().all(is_known) {
        return Cow::Borrowed(data);
    }
    let known = fields.iter().filter(|(name, _)| is_known(name));
    Cow::Owned(known.map(|(name, value)| (name.clone(), value.clone())).collect())
}

/// The JSON Schema of a valid answer, if the definition has one.
pub(crate) fn resume_schema(data: &Value) -> Option<&Value> {
    data.get("resumeSchema").filter(|schema| schema.is_object())
}
