//! A message as the answer to what a task waits for.
//!
//! | in the message | approval | clarification | anything else |
//! | --- | --- | --- | --- |
//! | `metadata.openwop.action`, `metadata.openwop.interrupt` | as it is | as it is | as it is |
//! | data | `action`, or `approve` | `answers`, or the answers themselves | as it is |
//! | text | accept, approve, yes, reject, no; else a question to the asker, where offered | the answer to the one question | custom only |
//!
//! Nothing is guessed: what fits no row is refused, naming what would fit, and nothing changes; so is a message whose
//! parts and metadata say different things, while they may repeat each other. Whether an action is offered, contradicts
//! itself, or matches its schema is checked by the kernel again.

use serde_json::{Value, json};
use wopr_core::{ApprovalAction, InterruptKind, Object};
use wopr_wire::a2a::{
    error::A2aError,
    model::{Message, Metadata, PartContent},
};

use super::metadata::{find, interrupt};

/// What a task waits for.
#[derive(Debug, Clone, Copy)]
pub(super) struct Asked<'a> {
    /// The kind.
    pub(super) kind: InterruptKind,
    /// The question.
    pub(super) data: &'a Value,
}

/// Which interrupt a message answers; empty means the only one that is open.
#[derive(Debug, Default, Clone, PartialEq, Eq)]
pub(super) struct Selector {
    /// By its id.
    pub(super) interrupt: Option<String>,
    /// By its node.
    pub(super) node: Option<String>,
    /// By a token for it.
    pub(super) token: Option<String>,
}

/// Reads which interrupt a message answers.
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

/// Reads the answer a message gives.
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

/// The content of a message that can be an answer.
struct Said {
    text: Option<String>,
    /// Objects, merged.
    data: Object,
    /// The datum that is no object.
    other: Option<Value>,
}

/// A message says two things where one can be meant.
struct Contradiction(String);

impl Contradiction {
    fn refused(&self, asked: Asked<'_>) -> A2aError {
        refused(asked, &format!("has several values for {}", self.0))
    }
}

/// Adds members to those of other parts; what is said twice must be the same.
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

/// The answer in the metadata; empty if the metadata only selects, or says nothing.
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
            Err(refused(asked, "has data that answers something else"))
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

/// A datum that is no object.
fn by_value(value: &Value, asked: Asked<'_>) -> Result<Value, A2aError> {
    match asked.kind {
        InterruptKind::Approval | InterruptKind::ExternalEvent => {
            Err(refused(asked, "has data that is no object"))
        }
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
            None => Err(refused(asked, "is none of accept, approve, yes, reject, no")),
        },
        InterruptKind::Clarification => match questions(asked.data).as_slice() {
            [only] => Ok(json!({ "answers": { only.id: only.typed(words) } })),
            _ => Err(refused(asked, "does not say which question it answers")),
        },
        InterruptKind::ExternalEvent => Err(refused(asked, "has no data part")),
        InterruptKind::Custom => Ok(text.into()),
    }
}

/// What a word alone decides.
fn keyword(words: &str) -> Option<ApprovalAction> {
    match words.to_lowercase().as_str() {
        "accept" | "approve" | "yes" => Some(ApprovalAction::Accept),
        "reject" | "no" => Some(ApprovalAction::Reject),
        _ => None,
    }
}

/// Claims that the fields decide the opposite of a word. Words are no more than a comment where nothing is decided.
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

/// A question of a clarification.
pub(super) struct Question<'a> {
    /// Its id.
    pub(super) id: &'a str,
    /// Its text.
    pub(super) text: &'a str,
    wants: Option<&'a str>,
}

impl Question<'_> {
    /// A text as the answer: a number or a truth value where the question's schema wants one.
    fn typed(&self, text: &str) -> Value {
        let parsed = match self.wants {
            Some("integer" | "number") => serde_json::from_str(text).ok().filter(Value::is_number),
            Some("boolean") => serde_json::from_str(text).ok().filter(Value::is_boolean),
            _ => None,
        };
        parsed.unwrap_or_else(|| text.into())
    }
}

/// The questions of a clarification.
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

/// The names of the actions an approval offers.
fn offered(data: &Value) -> Vec<&str> {
    let list = data.get("actions").and_then(Value::as_array);
    list.into_iter().flatten().filter_map(Value::as_str).collect()
}

fn offers(data: &Value, action: ApprovalAction) -> bool {
    offered(data).contains(&action.as_str())
}

/// The error that says what an answer would have been.
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
    };
    A2aError::invalid_param("message.parts", format!("{why}; {hint}"))
}

#[cfg(test)]
mod tests;
