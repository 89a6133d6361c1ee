//! A message as the answer to what a task waits for.
//!
//! | in the message | approval | clarification | anything else |
//! | --- | --- | --- | --- |
//! | `metadata.openwop.action`, `metadata.openwop.interrupt` | as it is | as it is | as it is |
//! | data | `action`, or `approve` | `answers`, or the answers themselves | as it is |
//! | text | accept, approve, yes, reject, no; else a question to the asker, where offered | the answer to the one question | custom only |
//!
//! Nothing is guessed: what fits no row is refused, naming what would fit, and nothing changes. Whether an action is
//! offered and an answer matches its schema is checked by the kernel again.

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

/// Which of several interrupts a message answers; empty means the first.
#[derive(Debug, Default, Clone, PartialEq, Eq)]
pub(super) struct Selector {
    /// By its id.
    pub(super) interrupt: Option<String>,
    /// By its node.
    pub(super) node: Option<String>,
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
    Ok(Selector {
        interrupt: text("interruptId")?,
        node: text("nodeId")?,
    })
}

/// Reads the answer a message gives.
pub(super) fn read(message: &Message, asked: Asked<'_>) -> Result<Value, A2aError> {
    let said = Said::of(message);
    if let Some(fields) = by_metadata(&message.metadata, &said)? {
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
    /// Objects, merged; later ones win.
    data: Object,
    /// The last datum that is no object.
    other: Option<Value>,
}

impl Said {
    fn of(message: &Message) -> Self {
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
                PartContent::Data(Value::Object(members)) => said.data.extend(members.clone()),
                PartContent::Data(value) => said.other = Some(value.clone()),
                PartContent::Raw(_) | PartContent::Url(_) => {}
            }
        }
        said
    }

    fn words(&self) -> Option<&str> {
        self.text
            .as_deref()
            .map(str::trim)
            .filter(|text| !text.is_empty())
    }
}

/// The answer in the metadata, completed by the data; none if the metadata only selects, or says nothing.
fn by_metadata(metadata: &Metadata, said: &Said) -> Result<Option<Object>, A2aError> {
    let mut fields = interrupt(metadata);
    fields.remove("interruptId");
    fields.remove("nodeId");
    match find(metadata, &["openwop", "action"]) {
        None => {}
        Some(Value::String(action)) => {
            fields.insert("action".to_owned(), action.as_str().into());
        }
        Some(Value::Object(payload)) => fields.extend(payload.clone()),
        Some(_) => {
            return Err(A2aError::invalid_param(
                "message.metadata.openwop.action",
                "must be an action, or an object with one",
            ));
        }
    }
    if fields.is_empty() {
        return Ok(None);
    }
    let mut merged = said.data.clone();
    merged.extend(fields);
    Ok(Some(merged))
}

fn by_fields(mut fields: Object, asked: Asked<'_>, said: &Said) -> Result<Value, A2aError> {
    match asked.kind {
        InterruptKind::Approval => {
            let is_answer = ["action", "decision", "approve"]
                .iter()
                .any(|name| fields.contains_key(*name));
            if !is_answer {
                return Err(refused(asked, "has data without action or approve"));
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
        InterruptKind::Approval => {
            let action = match words.to_lowercase().as_str() {
                "accept" | "approve" | "yes" => ApprovalAction::Accept,
                "reject" | "no" => ApprovalAction::Reject,
                "" => return Err(refused(asked, "is empty")),
                _ if offers(asked.data, ApprovalAction::Ask) => {
                    return Ok(json!({ "action": "ask", "question": words }));
                }
                _ => return Err(refused(asked, "is none of accept, approve, yes, reject, no")),
            };
            Ok(json!({ "action": action.as_str() }))
        }
        InterruptKind::Clarification => match questions(asked.data).as_slice() {
            [only] => Ok(json!({ "answers": { only.id: only.typed(words) } })),
            _ => Err(refused(asked, "does not say which question it answers")),
        },
        InterruptKind::ExternalEvent => Err(refused(asked, "has no data part")),
        InterruptKind::Custom => Ok(text.into()),
    }
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
mod tests {
    use wopr_wire::json::Decode as _;

    use super::*;

    fn message(parts: &Value, metadata: &Value) -> Message {
        let document = json!({
            "messageId": "m", "role": "ROLE_USER", "parts": parts, "metadata": metadata,
        });
        Message::decode(document).unwrap()
    }

    fn check(kind: InterruptKind, data: &Value, table: Vec<(Value, Value, Result<Value, &str>)>) {
        for (parts, metadata, wanted) in table {
            let message = message(&parts, &metadata);
            let read = read(&message, Asked { kind, data });
            match (read, wanted) {
                (Ok(value), Ok(wanted)) => assert_eq!(value, wanted, "{parts} {metadata}"),
                (Err(error), Err(wanted)) => {
                    let text = error.to_string();
                    assert!(text.contains(wanted), "{parts} {metadata}: {text}");
                }
                (read, wanted) => panic!("{parts} {metadata}: {read:?}, wanted {wanted:?}"),
            }
        }
    }

    #[test]
    fn an_approval_is_answered() {
        let data = json!({"actions": ["accept", "reject", "refine"]});
        let text = |text: &str| json!([{ "text": text }]);
        let none = json!({});
        check(
            InterruptKind::Approval,
            &data,
            vec![
                (text("Accept"), none.clone(), Ok(json!({"action": "accept"}))),
                (text(" approve\n"), none.clone(), Ok(json!({"action": "accept"}))),
                (text("YES"), none.clone(), Ok(json!({"action": "accept"}))),
                (text("no"), none.clone(), Ok(json!({"action": "reject"}))),
                (text("reject"), none.clone(), Ok(json!({"action": "reject"}))),
                (
                    text("yes, but shorter"),
                    none.clone(),
                    Err("the actions offered are accept, reject, refine"),
                ),
                (text(""), none.clone(), Err("the actions offered are")),
                (
                    json!([{"data": {"approve": true, "feedback": "looks good"}}]),
                    none.clone(),
                    Ok(json!({"approve": true, "feedback": "looks good"})),
                ),
                (
                    json!([{"text": "too long"}, {"data": {"action": "reject"}}]),
                    none.clone(),
                    Ok(json!({"action": "reject", "feedback": "too long"})),
                ),
                (
                    json!([{"data": {"unrelated": 1}}]),
                    none.clone(),
                    Err("has data without action or approve"),
                ),
                (
                    json!([{"data": true}]),
                    none.clone(),
                    Err("has data that is no object"),
                ),
                (
                    json!([{"url": "https://x.example/"}]),
                    none.clone(),
                    Err("neither text nor data"),
                ),
                (
                    text("fine"),
                    json!({"openwop": {"action": "accept"}}),
                    Ok(json!({"action": "accept", "feedback": "fine"})),
                ),
                (
                    text(""),
                    json!({"openwop.action": {"action": "refine", "refineFeedback": {"scope": "whole"}}}),
                    Ok(json!({"action": "refine", "refineFeedback": {"scope": "whole"}})),
                ),
                (
                    json!([{"data": {"refineFeedback": {"scope": "whole"}}}]),
                    json!({"openwop": {"interrupt": {"action": "refine", "interruptId": "gate:0"}}}),
                    Ok(json!({"action": "refine", "refineFeedback": {"scope": "whole"}})),
                ),
                (
                    text("yes"),
                    json!({"openwop": {"interrupt": {"interruptId": "gate:0"}}}),
                    Ok(json!({"action": "accept"})),
                ),
                (
                    text("yes"),
                    json!({"openwop": {"action": 7}}),
                    Err("must be an action"),
                ),
            ],
        );
    }

    #[test]
    fn words_are_a_question_where_one_may_ask() {
        let data = json!({"actions": ["accept", "ask"]});
        check(
            InterruptKind::Approval,
            &data,
            vec![(
                json!([{"text": "why is it blue?"}]),
                json!({}),
                Ok(json!({"action": "ask", "question": "why is it blue?"})),
            )],
        );
    }

    #[test]
    fn questions_are_answered() {
        let one = json!({"questions": [{"id": "n", "question": "how many?", "schema": {"type": "integer"}}]});
        let two = json!({"questions": [
            {"id": "a", "question": "a?"}, {"id": "b", "question": "b?"},
        ]});
        let none = json!({});
        check(
            InterruptKind::Clarification,
            &one,
            vec![
                (
                    json!([{"text": "3"}]),
                    none.clone(),
                    Ok(json!({"answers": {"n": 3}})),
                ),
                (
                    json!([{"text": "a few"}]),
                    none.clone(),
                    Ok(json!({"answers": {"n": "a few"}})),
                ),
                (
                    json!([{"data": 3}]),
                    none.clone(),
                    Ok(json!({"answers": {"n": 3}})),
                ),
                (
                    json!([{"data": {"n": 3}}]),
                    none.clone(),
                    Ok(json!({"answers": {"n": 3}})),
                ),
            ],
        );
        check(
            InterruptKind::Clarification,
            &two,
            vec![
                (
                    json!([{"data": {"answers": {"a": 1, "b": 2}}}]),
                    none.clone(),
                    Ok(json!({"answers": {"a": 1, "b": 2}})),
                ),
                (
                    json!([{"text": "3"}]),
                    none.clone(),
                    Err("the questions are a, b; send data with answers by id"),
                ),
                (
                    json!([{"data": {"c": 1}}]),
                    none.clone(),
                    Err("answers something else"),
                ),
                (
                    json!([{"text": "x"}]),
                    json!({"openwop": {"interrupt": {"answers": {"a": 1, "b": 2}}}}),
                    Ok(json!({"answers": {"a": 1, "b": 2}})),
                ),
            ],
        );
    }

    #[test]
    fn events_and_custom_values_go_through() {
        let none = json!({});
        check(
            InterruptKind::ExternalEvent,
            &json!({"eventType": "paid", "correlation": {"order": 7}}),
            vec![
                (
                    json!([{"data": {"order": 7, "amount": 3}}]),
                    none.clone(),
                    Ok(json!({"order": 7, "amount": 3})),
                ),
                (
                    json!([{"text": "paid"}]),
                    none.clone(),
                    Err("send the event as a data part"),
                ),
            ],
        );
        check(
            InterruptKind::Custom,
            &json!({"customKind": "x"}),
            vec![
                (json!([{"text": " words "}]), none.clone(), Ok(json!(" words "))),
                (json!([{"data": [1]}]), none.clone(), Ok(json!([1]))),
                (json!([{"data": {"a": 1}}]), none, Ok(json!({"a": 1}))),
            ],
        );
    }

    #[test]
    fn the_metadata_selects_an_interrupt() {
        let text = json!([{"text": "yes"}]);
        let read = |metadata: Value| selector(&message(&text, &metadata));
        assert_eq!(read(json!({})).unwrap(), Selector::default());
        assert_eq!(
            read(json!({"openwop": {"interrupt": {"interruptId": "a:0"}}}))
                .unwrap()
                .interrupt
                .as_deref(),
            Some("a:0")
        );
        assert_eq!(
            read(json!({"openwop.interrupt.nodeId": "a"}))
                .unwrap()
                .node
                .as_deref(),
            Some("a")
        );
        assert!(read(json!({"openwop.interrupt.nodeId": 1})).is_err());
    }
}
