//! Leaves out of an agent's answer what cannot be read, so that the rest counts.
//!
//! One part without content must not hide that a task has ended. Parts, artifacts and messages that cannot be read are
//! removed before the document is decoded, and named with the reason. The id and the status of a task have to be there:
//! without them the document is no task. Requests of clients are not treated so: a client can mend what it sends.

use serde_json::{Value, json};

use super::{
    super::{
        model::{Artifact, Message, Part},
        v03::{self, proto::Proto},
    },
    Form,
};
use crate::json::{Decode, DecodeError, Object};

/// The most places that are named.
const MAX_NAMED: usize = 20;
/// The id of a message that has none.
const NO_ID: &str = "unnamed";

/// What was left out of a document, by path and reason.
#[derive(Debug, Default)]
pub(super) struct LeftOut {
    places: Vec<String>,
    n_more: usize,
}

impl LeftOut {
    fn note(&mut self, error: &DecodeError) {
        match self.places.len() < MAX_NAMED {
            true => self.places.push(error.to_string()),
            false => self.n_more += 1,
        }
    }

    pub(super) fn into_texts(mut self) -> Vec<String> {
        if self.n_more > 0 {
            self.places.push(format!("{} more", self.n_more));
        }
        self.places
    }
}

/// Removes what cannot be read from a task.
pub(super) fn task(form: Form, document: &mut Value, left_out: &mut LeftOut) {
    let Some(task) = document.as_object_mut() else {
        return;
    };
    free_form(task, left_out);
    context(form, task, left_out);
    if let Some(Value::Object(status)) = task.get_mut("status") {
        status_message(form, status, left_out);
    }
    elements(task, "artifacts", left_out, |index, artifact, left_out| {
        artifact_of(form, Some(index), artifact, left_out, &|error| {
            error.in_element(index).in_field("artifacts")
        })
    });
    elements(task, "history", left_out, |index, message, left_out| {
        message_of(form, message, left_out, &|error| {
            error.in_element(index).in_field("history")
        })
    });
}

/// Removes what cannot be read from a message that is the whole answer.
pub(super) fn message(form: Form, document: &mut Value, left_out: &mut LeftOut) {
    // Without any message there is no answer, which the decoder says.
    if document.is_object() {
        message_of(form, document, left_out, &|error| error);
    }
}

/// Removes what cannot be read from an update of a task.
pub(super) fn update(form: Form, document: &mut Value, left_out: &mut LeftOut) {
    let Some(update) = document.as_object_mut() else {
        return;
    };
    free_form(update, left_out);
    context(form, update, left_out);
    if let Some(Value::Object(status)) = update.get_mut("status") {
        status_message(form, status, left_out);
    }
    if let Some(artifact) = update.get_mut("artifact") {
        artifact_of(form, None, artifact, left_out, &|error| {
            error.in_field("artifact")
        });
    }
}

/// Removes metadata that is no object.
fn free_form(object: &mut Object, left_out: &mut LeftOut) {
    if (object.get("metadata")).is_some_and(|metadata| !metadata.is_object() && !metadata.is_null()) {
        object.remove("metadata");
        left_out.note(&DecodeError::wrong_type("an object").in_field("metadata"));
    }
}

/// Removes a context id that is no text. In the JSON of 0.3 the member itself must be there.
fn context(form: Form, object: &mut Object, left_out: &mut LeftOut) {
    if !object
        .get("contextId")
        .is_none_or(|id| id.is_string() || id.is_null())
    {
        object.remove("contextId");
        left_out.note(&DecodeError::wrong_type("a string").in_field("contextId"));
    }
    if form == Form::V0_3Rpc && object.get("contextId").is_none_or(Value::is_null) {
        object.insert("contextId".to_owned(), "".into());
    }
}

fn status_message(form: Form, status: &mut Object, left_out: &mut LeftOut) {
    let Some(message) = status.get_mut("message").filter(|message| !message.is_null()) else {
        return;
    };
    let path = |error: DecodeError| error.in_field("message").in_field("status");
    if !message_of(form, message, left_out, &path) {
        status.remove("message");
    }
}

/// Keeps the elements of an array that `keep` finds readable, and removes what is no array.
fn elements(
    object: &mut Object,
    name: &'static str,
    left_out: &mut LeftOut,
    mut keep: impl FnMut(usize, &mut Value, &mut LeftOut) -> bool,
) {
    match object.get_mut(name) {
        None | Some(Value::Null) => {}
        Some(Value::Array(list)) => {
            let mut index = 0;
            list.retain_mut(|element| {
                index += 1;
                keep(index - 1, element, left_out)
            });
        }
        Some(Value::Bool(_) | Value::Number(_) | Value::String(_) | Value::Object(_)) => {
            object.remove(name);
            left_out.note(&DecodeError::wrong_type("an array").in_field(name));
        }
    }
}

/// Adds where something is to an error about it.
type At<'a> = &'a dyn Fn(DecodeError) -> DecodeError;

/// Removes the parts of an artifact that cannot be read. One without an id is named by its place. Returns `false` if there
/// is nothing to keep.
fn artifact_of(
    form: Form,
    index: Option<usize>,
    document: &mut Value,
    left_out: &mut LeftOut,
    at: At<'_>,
) -> bool {
    let Some(artifact) = document.as_object_mut() else {
        left_out.note(&at(DecodeError::wrong_type("an object")));
        return false;
    };
    parts(form, artifact, "parts", left_out, at);
    let error = match reads(form, Kind::Artifact, without(artifact, "parts")) {
        Ok(()) => return true,
        Err(error) => error,
    };
    left_out.note(&at(error));
    let id = text(artifact, "artifactId").unwrap_or_else(|| match index {
        Some(index) => format!("{NO_ID}-{index}"),
        None => NO_ID.to_owned(),
    });
    let mut kept = json!({ "artifactId": id, "parts": artifact.remove("parts").unwrap_or_default() });
    for name in ["name", "description"] {
        if let Some(text) = text(artifact, name) {
            kept[name] = text.into();
        }
    }
    *document = kept;
    true
}

/// Removes the parts of a message that cannot be read. One without an id or a role is the agent's. Returns `false` if there
/// is nothing to keep.
fn message_of(form: Form, document: &mut Value, left_out: &mut LeftOut, at: At<'_>) -> bool {
    let Some(message) = document.as_object_mut() else {
        left_out.note(&at(DecodeError::wrong_type("an object")));
        return false;
    };
    let content = match form {
        Form::V1_0 | Form::V0_3Rpc => "parts",
        Form::V0_3Proto => "content",
    };
    parts(form, message, content, left_out, at);
    let error = match reads(form, Kind::Message, without(message, content)) {
        Ok(()) => return true,
        Err(error) => error,
    };
    left_out.note(&at(error));
    let (agent, user) = match form {
        Form::V1_0 | Form::V0_3Proto => ("ROLE_AGENT", "ROLE_USER"),
        Form::V0_3Rpc => ("agent", "user"),
    };
    let role = text(message, "role").filter(|role| role == user);
    let mut kept = json!({
        "messageId": text(message, "messageId").unwrap_or_else(|| NO_ID.to_owned()),
        "role": role.as_deref().unwrap_or(agent),
        "kind": "message",
    });
    for name in ["taskId", "contextId"] {
        if let Some(text) = text(message, name) {
            kept[name] = text.into();
        }
    }
    kept[content] = message.remove(content).unwrap_or_default();
    *document = kept;
    true
}

/// Keeps the parts that can be read. Without a list of parts there are none.
fn parts(form: Form, object: &mut Object, name: &'static str, left_out: &mut LeftOut, at: At<'_>) {
    elements(object, name, left_out, |index, part, left_out| {
        match reads(form, Kind::Part, outline(part)) {
            Ok(()) => true,
            Err(error) => {
                left_out.note(&at(error.in_element(index).in_field(name)));
                false
            }
        }
    });
    if object.get(name).is_none_or(Value::is_null) {
        object.insert(name.to_owned(), json!([]));
    }
}

#[derive(Debug, Clone, Copy)]
enum Kind {
    Part,
    Message,
    Artifact,
}

/// Whether something of an answer can be decoded.
fn reads(form: Form, kind: Kind, document: Value) -> Result<(), DecodeError> {
    match (kind, form) {
        (Kind::Part, Form::V1_0) => Part::decode(document).map(drop),
        (Kind::Part, Form::V0_3Rpc) => v03::Part::decode(document).map(drop),
        (Kind::Part, Form::V0_3Proto) => Proto::<Part>::decode(document).map(drop),
        (Kind::Message, Form::V1_0) => Message::decode(document).map(drop),
        (Kind::Message, Form::V0_3Rpc) => v03::Message::decode(document).map(drop),
        (Kind::Message, Form::V0_3Proto) => Proto::<Message>::decode(document).map(drop),
        (Kind::Artifact, Form::V1_0) => Artifact::decode(document).map(drop),
        (Kind::Artifact, Form::V0_3Rpc) => v03::Artifact::decode(document).map(drop),
        (Kind::Artifact, Form::V0_3Proto) => Proto::<Artifact>::decode(document).map(drop),
    }
}

/// A non-empty text of an object.
fn text(object: &Object, name: &str) -> Option<String> {
    let text = object.get(name)?.as_str()?;
    (!text.is_empty()).then(|| text.to_owned())
}

/// An object without the elements of one of its members.
fn without(object: &Object, name: &str) -> Value {
    let members = object.iter().map(|(member, value)| match member == name {
        true => (member.clone(), json!([])),
        false => (member.clone(), hollow(value)),
    });
    Value::Object(members.collect())
}

/// A value of the same type that has no members of its own, except for short texts in a list.
fn hollow(value: &Value) -> Value {
    match value {
        Value::Object(_) => json!({}),
        Value::Array(list) => list
            .iter()
            .filter(|element| !element.is_string())
            .take(1)
            .map(hollow)
            .collect(),
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => value.clone(),
    }
}

/// The members of a part that decide whether it can be read, in any form. What is large in it besides texts is not copied.
fn outline(part: &Value) -> Value {
    match part {
        Value::Object(members) => {
            let members = members.iter().map(|(name, value)| {
                let value = match (name.as_str(), value) {
                    ("file" | "data", Value::Object(inner)) => {
                        let inner = inner
                            .iter()
                            .filter(|(name, _)| INNER.contains(&name.as_str()))
                            .map(|(name, value)| (name.clone(), hollow(value)));
                        Value::Object(inner.collect())
                    }
                    (_, value) => hollow(value),
                };
                (name.clone(), value)
            });
            Value::Object(members.collect())
        }
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) | Value::Array(_) => hollow(part),
    }
}

/// The members that matter inside `file` and `data`.
const INNER: [&str; 8] = [
    "bytes",
    "uri",
    "name",
    "mimeType",
    "fileWithUri",
    "fileWithBytes",
    "data",
    "mediaType",
];

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::a2a::{
        arbitrary,
        exchange::{Reply, read_item},
        method::Operation,
        model::{self, TaskState},
    };

    const FORMS: [Form; 3] = [Form::V1_0, Form::V0_3Rpc, Form::V0_3Proto];

    fn read(form: Form, task: Value) -> model::Task {
        match Reply::decode(Operation::GetTask, form, task) {
            Ok(Reply::Task(task)) => task,
            other => panic!("{form:?}: {other:?}"),
        }
    }

    /// A task in which everything but its id and its state is wrong.
    fn wrong(form: Form, wrong: &Value) -> Value {
        let state = match form {
            Form::V1_0 | Form::V0_3Proto => "TASK_STATE_COMPLETED",
            Form::V0_3Rpc => "completed",
        };
        json!({
            "kind": "task", "id": "t", "contextId": wrong,
            "status": { "state": state, "message": wrong, "timestamp": wrong },
            "artifacts": [wrong, { "artifactId": wrong, "name": wrong, "parts": wrong }, { "parts": [wrong] }],
            "history": [wrong, { "messageId": wrong, "role": wrong, "parts": wrong, "content": [wrong] }],
            "metadata": wrong,
        })
    }

    #[test]
    fn state_of_a_task_counts_whatever_else_is_wrong() {
        for form in FORMS {
            for value in [
                json!(7),
                json!([]),
                json!([7]),
                json!("x"),
                json!({}),
                json!(true),
                json!(null),
            ] {
                let task = read(form, wrong(form, &value));
                assert_eq!(task.status.state, TaskState::Completed);
                assert!(!task.unreadable.is_empty(), "{form:?} {value}");
                assert!(
                    task.artifacts
                        .iter()
                        .all(|artifact| !artifact.artifact_id.is_empty())
                );
            }
        }
    }

    #[test]
    fn places_that_are_named_are_bounded() {
        let mut task = wrong(Form::V1_0, &json!({}));
        task["artifacts"] = json!([{ "artifactId": "a", "parts": vec![json!({}); 1_000] }]);
        let unreadable = read(Form::V1_0, task).unreadable;
        assert_eq!(unreadable.len(), MAX_NAMED + 1);
        assert!(unreadable[MAX_NAMED].ends_with(" more"), "{unreadable:?}");
    }

    #[test]
    fn document_without_id_or_status_is_no_task() {
        for name in ["id", "status"] {
            for form in FORMS {
                let mut task = wrong(form, &json!({}));
                task[name] = Value::Null;
                assert!(
                    Reply::decode(Operation::GetTask, form, task).is_err(),
                    "{form:?} {name}"
                );
            }
        }
    }

    proptest! {
        #[test]
        fn readable_items_are_left_as_they_are(item in arbitrary::stream_response()) {
            for form in FORMS {
                let document = serde_json::to_value(super::super::Document::item(item.clone(), false, form)).unwrap();
                let unreadable = match read_item(form, document).unwrap() {
                    model::StreamResponse::Task(task) => task.unreadable,
                    model::StreamResponse::Message(message) => message.unreadable,
                    model::StreamResponse::StatusUpdate(update) => update.unreadable,
                    model::StreamResponse::ArtifactUpdate(update) => update.unreadable,
                };
                prop_assert_eq!(unreadable, Vec::<String>::new());
            }
        }

        #[test]
        fn any_junk_inside_a_task_leaves_its_state(junk in arbitrary::hostile_value()) {
            for form in FORMS {
                prop_assert_eq!(read(form, wrong(form, &junk)).status.state, TaskState::Completed);
            }
        }
    }
}
