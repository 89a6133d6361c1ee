//! Converts a message to the inputs of a run.
//!
//! Texts, joined by line breaks, become `prompt`. Objects are merged into the inputs; later ones win. Other
//! data values become the list `data`; if an object has a `data` member too, the one that comes last in the
//! message wins. Files become entries of `files`. Bytes are stored beside the log and referred to; a URL is
//! passed on and never fetched.

use std::borrow::Cow;

use serde_json::{Value, json};
use wopr_app::BlobRow;
use wopr_core::Object;
use wopr_wire::a2a::model::{Message, Part, PartContent};

/// The URL scheme of a reference to stored bytes in a stored message.
const SCHEME: &str = "wopr-blob:";
/// The media type of bytes without one.
const OCTETS: &str = "application/octet-stream";

#[derive(Debug, Default, PartialEq)]
pub(super) struct Inputs {
    pub(super) inputs: Object,
    /// The bytes that the inputs refer to.
    pub(super) blobs: Vec<BlobRow>,
}

/// Converts a message. `name` is the prefix of the blob ids.
pub(super) fn read(message: &Message, name: &str) -> Inputs {
    let mut prompt: Option<String> = None;
    let mut data = Object::new();
    let mut values = Vec::new();
    let mut is_list = false;
    let mut files = Vec::new();
    let mut blobs = Vec::new();
    for (index, part) in message.parts.iter().enumerate() {
        match &part.content {
            PartContent::Text(text) => match &mut prompt {
                None => prompt = Some(text.clone()),
                Some(prompt) => {
                    prompt.push('\n');
                    prompt.push_str(text);
                }
            },
            PartContent::Data(Value::Object(members)) => {
                is_list &= !members.contains_key("data");
                for (name, value) in members {
                    data.insert(name.clone(), value.clone());
                }
            }
            PartContent::Data(value) => {
                values.push(value.clone());
                is_list = true;
            }
            PartContent::Raw(bytes) => {
                let blob = blob(name, index, part, bytes);
                let mut file = described(part);
                file.insert("blob".to_owned(), blob.id.as_str().into());
                file.insert("size".to_owned(), bytes.len().into());
                files.push(Value::Object(file));
                blobs.push(blob);
            }
            PartContent::Url(url) => {
                let mut file = described(part);
                file.insert("url".to_owned(), url.as_str().into());
                files.push(Value::Object(file));
            }
        }
    }
    if is_list {
        data.insert("data".to_owned(), values.into());
    }
    let mut inputs = Object::new();
    if let Some(prompt) = prompt {
        inputs.insert("prompt".to_owned(), prompt.into());
    }
    inputs.append(&mut data);
    if !files.is_empty() {
        inputs.insert("files".to_owned(), files.into());
    }
    Inputs { inputs, blobs }
}

pub(super) fn blobs(message: &Message, name: &str) -> Vec<BlobRow> {
    let raw = message
        .parts
        .iter()
        .enumerate()
        .filter_map(|(index, part)| match &part.content {
            PartContent::Raw(bytes) => Some(blob(name, index, part, bytes)),
            PartContent::Text(_) | PartContent::Url(_) | PartContent::Data(_) => None,
        });
    raw.collect()
}

/// Replaces bytes by references, which is the form a message is stored in.
pub(super) fn referring<'m>(message: &'m Message, name: &str) -> Cow<'m, Message> {
    if !message.parts.iter().any(has_bytes) {
        return Cow::Borrowed(message);
    }
    let Message {
        message_id,
        context_id,
        task_id,
        role,
        parts,
        metadata,
        extensions,
        reference_task_ids,
        unreadable: _,
    } = message;
    // Built anew, because a clone would copy the bytes.
    let refer = |(index, part): (usize, &Part)| match &part.content {
        PartContent::Raw(_) => Part {
            content: PartContent::Url(reference_to(name, index)),
            media_type: part.media_type.clone(),
            filename: part.filename.clone(),
            metadata: part.metadata.clone(),
        },
        PartContent::Text(_) | PartContent::Url(_) | PartContent::Data(_) => part.clone(),
    };
    Cow::Owned(Message {
        message_id: message_id.clone(),
        context_id: context_id.clone(),
        task_id: task_id.clone(),
        role: *role,
        parts: parts.iter().enumerate().map(refer).collect(),
        metadata: metadata.clone(),
        extensions: extensions.clone(),
        reference_task_ids: reference_task_ids.clone(),
        unreadable: Vec::new(),
    })
}

/// Like [`referring`], in place.
pub(super) fn refer(message: &mut Message, name: &str) {
    for (index, part) in message.parts.iter_mut().enumerate() {
        if has_bytes(part) {
            part.content = PartContent::Url(reference_to(name, index));
        }
    }
}

const fn has_bytes(part: &Part) -> bool {
    matches!(part.content, PartContent::Raw(_))
}

fn reference_to(name: &str, index: usize) -> String {
    format!("{SCHEME}{}", blob_id(name, index))
}

/// The id of the blob that a part of a stored message refers to. Only a part that had bytes when the message came refers
/// to one: a client may send any URL, and so may one that looks like a reference.
pub(super) fn reference<'p>(part: &'p Part, name: &str, index: usize) -> Option<&'p str> {
    match &part.content {
        PartContent::Url(url) => url.strip_prefix(SCHEME).filter(|id| *id == blob_id(name, index)),
        PartContent::Text(_) | PartContent::Raw(_) | PartContent::Data(_) => None,
    }
}

fn blob_id(name: &str, index: usize) -> String {
    format!("{name}-{index}")
}

fn blob(name: &str, index: usize, part: &Part, bytes: &[u8]) -> BlobRow {
    BlobRow {
        id: blob_id(name, index),
        media_type: part.media_type.clone().unwrap_or_else(|| OCTETS.to_owned()),
        bytes: bytes.to_vec(),
    }
}

fn described(part: &Part) -> Object {
    let mut file = Object::new();
    if let Some(name) = &part.filename {
        file.insert("name".to_owned(), json!(name));
    }
    if let Some(media_type) = &part.media_type {
        file.insert("mediaType".to_owned(), json!(media_type));
    }
    file
}

#[cfg(test)]
mod tests {
    use wopr_wire::{a2a::model::Role, json::Decode as _};

    use super::*;

    fn message(parts: &Value) -> Message {
        let parts = parts.as_array().unwrap().iter().cloned();
        let parts = parts.map(|part| Part::decode(part).unwrap()).collect();
        Message::new("m", Role::User, parts)
    }

    #[test]
    fn converts_parts_to_inputs() {
        for (parts, wanted) in [
            (json!([{"text": "a"}]), json!({"prompt": "a"})),
            (json!([{"text": "a"}, {"text": "b"}]), json!({"prompt": "a\nb"})),
            (json!([{"text": ""}]), json!({"prompt": ""})),
            (
                json!([{"data": {"x": 1, "y": 1}}, {"text": "a"}, {"data": {"y": 2}}]),
                json!({"prompt": "a", "x": 1, "y": 2}),
            ),
            (
                json!([{"text": "a"}, {"data": {"prompt": "b"}}]),
                json!({"prompt": "b"}),
            ),
            (
                json!([{"data": [1]}, {"data": {"x": 1}}, {"data": "s"}, {"data": null}]),
                json!({"data": [[1], "s", null], "x": 1}),
            ),
            (json!([{"data": 1}, {"data": {"data": 2}}]), json!({"data": 2})),
            (
                json!([{"data": 1}, {"data": {"data": 2}}, {"data": 3}]),
                json!({"data": [1, 3]}),
            ),
            (
                json!([
                    {"raw": "aGk=", "filename": "a.txt", "mediaType": "text/plain"},
                    {"url": "http://127.0.0.1/secret", "filename": "b"},
                    {"raw": ""},
                ]),
                json!({"files": [
                    {"blob": "n-0", "size": 2, "name": "a.txt", "mediaType": "text/plain"},
                    {"url": "http://127.0.0.1/secret", "name": "b"},
                    {"blob": "n-2", "size": 0},
                ]}),
            ),
        ] {
            let read = read(&message(&parts), "n");
            assert_eq!(Value::Object(read.inputs), wanted, "{parts}");
        }
    }

    #[test]
    fn bytes_are_stored_apart_from_the_message() {
        let sent = message(&json!([{"text": "a"}, {"raw": "aGk=", "mediaType": "text/plain"}]));
        let rows = blobs(&sent, "n");
        assert_eq!(rows, read(&sent, "n").blobs);
        assert_eq!(
            (rows[0].id.as_str(), rows[0].bytes.as_slice()),
            ("n-1", &b"hi"[..])
        );
        let mut in_place = sent.clone();
        refer(&mut in_place, "n");
        let sent = referring(&sent, "n");
        assert_eq!(*sent, in_place);
        assert_eq!(reference(&sent.parts[0], "n", 0), None);
        assert_eq!(reference(&sent.parts[1], "n", 1), Some("n-1"));
        // Not at another place, nor of another message.
        assert_eq!(reference(&sent.parts[1], "n", 0), None);
        assert_eq!(reference(&sent.parts[1], "m", 1), None);
        assert_eq!(sent.parts[1].media_type.as_deref(), Some("text/plain"));
    }
}
