//! Reads the answer to an open interrupt from a message.
//!
//! | in the message | approval | clarification | anything else |
//! | --- | --- | --- | --- |
//! | `metadata.openwop.action`, `metadata.openwop.interrupt` | unchanged | unchanged | unchanged |
//! | data | `action`, or `approve` | `answers`, or the answers themselves; unchanged if another agent asks | unchanged |
//! | text | accept, approve, yes, reject, no; else a question to the requester, if `ask` is offered | the answer to the only question | custom only: the text, or the object that it is as JSON if the question wants one |
//!
//! A message that fits no row is rejected with an error that names the accepted forms, and nothing changes. A
//! message whose parts and metadata contradict each other is rejected, too; repeating a value is allowed. The
//! kernel checks again that an action is offered, is consistent and matches its schema.

use serde_json::{Value, json};
use wopr_core::{ApprovalAction, InterruptKind, Object};
use wopr_wire::{
    a2a::{
        error::A2aError,
        model::{Message, Metadata, PartContent},
    },
    json,
};

use super::metadata::{find, interrupt};

/// An open interrupt of a task.
#[derive(Debug, Clone, Copy)]
pub(super) struct Asked<'a> {
    pub(super) kind: InterruptKind,
    /// The interrupt's data: its actions or questions.
    pub(super) data: &'a Value,
}

/// The interrupt that a message answers. If empty, the only open one.
#[derive(Debug, Default, Clone, PartialEq, Eq)]
pub(super) struct Selector {
    pub(super) interrupt: Option<String>,
    pub(super) node: Option<String>,
    pub(super) token: Option<String>,
}

/// Reads which interrupt a message selects.
pub(super) fn selector(message: &Message) -> Result<Selector, A2aError> {
    let fields = interrupt(&message.metadata);
    let text = |name: &str| match fields.get(name) {
        None => Ok(None),
        Some(Value::String(text)) => Ok(Some(text.clone())),
        Some(_) => Err(A2aError::invalid_param(
            format!("message.metadata.openwop.interrupt.{name}"),
            "must be a string",
        )),
    };
    let token = match find(&message.metadata, &["openwop", "interruptToken"]) {
        None => None,
        Some(Value::String(token)) => Some(token.clone()),
        Some(_) => {
            return Err(A2aError::invalid_param(
                "message.metadata.openwop.interruptToken",
                "must be a string",
            ));
        }
    };
    Ok(Selector {
        interrupt: text("interruptId")?,
        node: text("nodeId")?,
        token,
    })
}

pub(super) fn read(message: &Message, asked: Asked<'_>) -> Result<Value, A2aError> {
    let said = Said::of(message).map_err(|both| both.refused(asked))?;
    let mut fields = by_metadata(&message.metadata)?.map_err(|both| both.refused(asked))?;
    if !fields.is_empty() {
        merge(&mut fields, said.data.clone()).map_err(|both| both.refused(asked))?;
        return by_fields(fields, asked, &said);
    }
    if !said.data.is_empty() {
        return by_fields(said.data.clone(), asked, &said);
    }
    if let Some(value) = &said.other {
        return by_value(value, asked);
    }
    match &said.text {
        Some(text) => by_text(text, asked),
        None => Err(refused(asked, "holds neither text nor data")),
    }
}

/// The content of a message that can form an answer.
struct Said {
    text: Option<String>,
    data: Object,
    /// A data part that is not an object.
    other: Option<Value>,
}

/// A message has two different values where one is expected.
struct Contradiction(String);

impl Contradiction {
    fn refused(&self, asked: Asked<'_>) -> A2aError {
        refused(asked, &format!("has several values for {}", self.0))
    }
}

/// Merges members of another part. A member that occurs in both must have the same value.
fn merge(into: &mut Object, from: Object) -> Result<(), Contradiction> {
    for (name, value) in from {
        match into.get(&name) {
            Some(known) if *known != value => return Err(Contradiction(format!("'{name}'"))),
            Some(_) => {}
            None => {
                into.insert(name, value);
            }
        }
    }
    Ok(())
}

impl Said {
    fn of(message: &Message) -> Result<Self, Contradiction> {
        let mut said = Self {
            text: None,
            data: Object::new(),
            other: None,
        };
        for part in &message.parts {
            match &part.content {
                PartContent::Text(text) => match &mut said.text {
                    None => said.text = Some(text.clone()),
                    Some(known) => {
                        known.push('\n');
                        known.push_str(text);
                    }
                },
                PartContent::Data(Value::Object(members)) => merge(&mut said.data, members.clone())?,
                PartContent::Data(value) => {
                    if said.other.as_ref().is_some_and(|known| known != value) {
                        return Err(Contradiction("one answer".to_owned()));
                    }
                    said.other = Some(value.clone());
                }
                PartContent::Raw(_) | PartContent::Url(_) => {}
            }
        }
        Ok(said)
    }

    fn words(&self) -> Option<&str> {
        self.text
            .as_deref()
            .map(str::trim)
            .filter(|text| !text.is_empty())
    }
}

/// Reads the answer from the metadata. Empty if the metadata only selects an interrupt or has no such keys.
fn by_metadata(metadata: &Metadata) -> Result<Result<Object, Contradiction>, A2aError> {
    let mut fields = interrupt(metadata);
    fields.remove("interruptId");
    fields.remove("nodeId");
    let payload = match find(metadata, &["openwop", "action"]) {
        None => Object::new(),
        Some(Value::String(action)) => Object::from_iter([("action".to_owned(), action.as_str().into())]),
        Some(Value::Object(payload)) => payload.clone(),
        Some(_) => {
            return Err(A2aError::invalid_param(
                "message.metadata.openwop.action",
                "must be an action, or an object with one",
            ));
        }
    };
    Ok(merge(&mut fields, payload).map(|()| fields))
}

fn by_fields(mut fields: Object, asked: Asked<'_>, said: &Said) -> Result<Value, A2aError> {
    if said.other.is_some() {
        return Err(refused(asked, "has data beside the answer that is no object"));
    }
    match asked.kind {
        InterruptKind::Approval => {
            let is_answer = ["action", "decision", "approve"]
                .iter()
                .any(|name| fields.contains_key(*name));
            if !is_answer {
                return Err(refused(asked, "has data without action or approve"));
            }
            let spoken = said.words().and_then(keyword);
            if spoken.is_some_and(|spoken| opposes(spoken, &fields)) {
                return Err(refused(
                    asked,
                    "says one thing in its text and another in its data",
                ));
            }
            let has_words = ["feedback", "comment", "reason", "question"]
                .iter()
                .any(|name| fields.contains_key(*name));
            if let (false, Some(words)) = (has_words, said.words()) {
                fields.insert("feedback".to_owned(), words.into());
            }
            Ok(fields.into())
        }
        InterruptKind::Clarification => {
            if fields.contains_key("answers") {
                return Ok(fields.into());
            }
            let known = questions(asked.data);
            if fields
                .keys()
                .all(|name| known.iter().any(|question| question.id == *name))
            {
                return Ok(json!({ "answers": fields }));
            }
            // Only the agent that asks knows what answers it.
            if asked.data.get("source").is_some_and(|source| source == "remote") {
                return Ok(match said.words() {
                    Some(words) => json!({ "text": words, "data": fields }),
                    None => fields.into(),
                });
            }
            Err(refused(asked, "has data that answers something else"))
        }
        InterruptKind::LowConfidence => verdict(fields, asked),
        // What is no operation is what the turn says.
        InterruptKind::Conversation => {
            let is_turn = ["operation", "content"]
                .iter()
                .any(|name| fields.contains_key(*name));
            if !is_turn {
                return Ok(json!({ "content": fields }));
            }
            if let (false, Some(words)) = (fields.contains_key("content"), said.words()) {
                fields.insert("content".to_owned(), words.into());
            }
            Ok(fields.into())
        }
        InterruptKind::ExternalEvent | InterruptKind::Custom => match fields.remove("value") {
            Some(value) if fields.is_empty() => Ok(value),
            Some(value) => {
                fields.insert("value".to_owned(), value);
                Ok(fields.into())
            }
            None => Ok(fields.into()),
        },
    }
}

/// Reads a verdict on a held decision, also in the words of an approval.
fn verdict(mut fields: Object, asked: Asked<'_>) -> Result<Value, A2aError> {
    if ["ratified", "decision", "rejected"]
        .iter()
        .any(|name| fields.contains_key(*name))
    {
        return Ok(fields.into());
    }
    let action = fields
        .get("action")
        .and_then(Value::as_str)
        .map(ToOwned::to_owned);
    let mut verdict = match (action.as_deref(), fields.get("approve")) {
        (Some("accept"), None) | (None, Some(Value::Bool(true))) => json!({ "ratified": true }),
        (Some("reject"), None) | (None, Some(Value::Bool(false))) => json!({ "rejected": true }),
        (Some("edit-accept"), None) => match fields.remove("editedArtifactData") {
            Some(decision) => json!({ "decision": decision }),
            None => return Err(refused(asked, "has no editedArtifactData")),
        },
        (Some(_) | None, _) => return Err(refused(asked, "has data that is no verdict")),
    };
    // Only approvals have voters: here it is data, which is kept.
    if let Some(voter) = fields.remove("voter") {
        verdict["voter"] = voter;
    }
    Ok(verdict)
}

/// Reads the answer from a data part that is not an object.
fn by_value(value: &Value, asked: Asked<'_>) -> Result<Value, A2aError> {
    match asked.kind {
        InterruptKind::Approval | InterruptKind::ExternalEvent | InterruptKind::LowConfidence => {
            Err(refused(asked, "has data that is no object"))
        }
        InterruptKind::Conversation => Ok(json!({ "content": value })),
        InterruptKind::Clarification => match questions(asked.data).as_slice() {
            [only] => Ok(json!({ "answers": { only.id: value } })),
            _ => Err(refused(asked, "does not say which question it answers")),
        },
        InterruptKind::Custom => Ok(value.clone()),
    }
}

fn by_text(text: &str, asked: Asked<'_>) -> Result<Value, A2aError> {
    let words = text.trim();
    match asked.kind {
        InterruptKind::Approval => match keyword(words) {
            Some(action) => Ok(json!({ "action": action.as_str() })),
            None if words.is_empty() => Err(refused(asked, "is empty")),
            None if offers(asked.data, ApprovalAction::Ask) => {
                Ok(json!({ "action": "ask", "question": words }))
            }
            None => Err(refused(
                asked,
                "is none of the words accept, approve, yes, reject and no (other actions are data, as in {\"action\":\"refine\"})",
            )),
        },
        InterruptKind::Clarification => match questions(asked.data).as_slice() {
            [only] => Ok(json!({ "answers": { only.id: only.typed(words) } })),
            _ => Err(refused(asked, "does not say which question it answers")),
        },
        InterruptKind::ExternalEvent => Err(refused(asked, "has no data part")),
        InterruptKind::Custom => Ok(object_in(text, asked.data).unwrap_or_else(|| text.into())),
        InterruptKind::LowConfidence => match keyword(words) {
            Some(ApprovalAction::Accept) => Ok(json!({ "ratified": true })),
            Some(ApprovalAction::Reject) => Ok(json!({ "rejected": true })),
            Some(_) | None => Err(refused(
                asked,
                "is none of the words accept, approve, yes, reject and no",
            )),
        },
        InterruptKind::Conversation if words.is_empty() => Err(refused(asked, "is empty")),
        InterruptKind::Conversation => Ok(json!({ "content": text })),
    }
}

/// The object that a text is as JSON, if the question can only be answered with an object. Chat clients send texts alone.
fn object_in(text: &str, data: &Value) -> Option<Value> {
    let wanted = data.get("resumeSchema")?.get("type")?;
    let object = || json::parse(text.as_bytes()).ok().filter(Value::is_object);
    (wanted == "object").then(object)?
}

/// Maps a one-word text to its action.
fn keyword(words: &str) -> Option<ApprovalAction> {
    match words.to_lowercase().as_str() {
        "accept" | "approve" | "yes" => Some(ApprovalAction::Accept),
        "reject" | "no" => Some(ApprovalAction::Reject),
        _ => None,
    }
}

/// Returns `true` if the fields decide the opposite of the keyword. If they decide nothing, text is only a
/// comment.
fn opposes(spoken: ApprovalAction, fields: &Object) -> bool {
    let text = |name: &str| fields.get(name).and_then(Value::as_str);
    let decided = match (text("action"), text("decision"), fields.get("approve")) {
        (Some("accept" | "edit-accept"), ..) | (None, Some("approved"), _) => true,
        (Some("reject" | "refine"), ..) | (None, Some("rejected"), _) => false,
        (None, None, Some(Value::Bool(approve))) => *approve,
        _ => return false,
    };
    decided != (spoken == ApprovalAction::Accept)
}

pub(super) struct Question<'a> {
    pub(super) id: &'a str,
    pub(super) text: &'a str,
    wants: Option<&'a str>,
}

impl Question<'_> {
    /// Converts a text answer to a number or a boolean if the question's schema asks for one.
    fn typed(&self, text: &str) -> Value {
        let parsed = match self.wants {
            Some("integer" | "number") => serde_json::from_str(text).ok().filter(Value::is_number),
            Some("boolean") => serde_json::from_str(text).ok().filter(Value::is_boolean),
            _ => None,
        };
        parsed.unwrap_or_else(|| text.into())
    }
}

pub(super) fn questions(data: &Value) -> Vec<Question<'_>> {
    let list = data.get("questions").and_then(Value::as_array);
    list.into_iter()
        .flatten()
        .filter_map(|question| {
            Some(Question {
                id: question.get("id")?.as_str()?,
                text: question.get("question")?.as_str()?,
                wants: question.pointer("/schema/type").and_then(Value::as_str),
            })
        })
        .collect()
}

fn offered(data: &Value) -> Vec<&str> {
    let list = data.get("actions").and_then(Value::as_array);
    list.into_iter().flatten().filter_map(Value::as_str).collect()
}

fn offers(data: &Value, action: ApprovalAction) -> bool {
    offered(data).contains(&action.as_str())
}

/// Builds the error, with a hint at the accepted answers.
fn refused(asked: Asked<'_>, why: &str) -> A2aError {
    let hint = match asked.kind {
        InterruptKind::Approval => format!("the actions offered are {}", offered(asked.data).join(", ")),
        InterruptKind::Clarification => {
            let ids: Vec<_> = questions(asked.data).iter().map(|question| question.id).collect();
            format!(
                "the questions are {}; send data with answers by id",
                ids.join(", ")
            )
        }
        InterruptKind::ExternalEvent => "send the event as a data part".to_owned(),
        InterruptKind::Custom => "send text or data".to_owned(),
        InterruptKind::LowConfidence => {
            "yes and no are understood, and so is another decision as data, as in {\"decision\":{…}}"
                .to_owned()
        }
        InterruptKind::Conversation => {
            let outcome = asked.data.get("outcomeSchema").map_or("", |_| ", \"outcome\": …");
            format!("send text or data, or {{\"operation\": \"close\"{outcome}}} to end the conversation")
        }
    };
    A2aError::invalid_param("message.parts", format!("{why}; {hint}"))
}

#[cfg(test)]
mod tests;
