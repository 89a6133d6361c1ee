//! A fast path for the most frequent request: `SendMessage` of 1.0 over JSON-RPC, with text parts only.
//!
//! The general decoder builds a JSON tree and takes it apart; building the tree costs more than everything done
//! with it afterwards. This module deserializes the bytes directly into the request. It returns `None` for
//! anything it does not support and for anything invalid; the caller then uses the general decoder, which also
//! produces the errors. Any request that this module accepts, the general decoder decodes to the same value.

use std::{fmt, marker::PhantomData};

use serde::{
    Deserialize, Deserializer,
    de::{self, value::MapAccessDeserializer},
};
use serde_json::Value;

use super::{
    method::{Operation, Version},
    model::{Message, Part, PartContent, Role, SendMessageConfiguration, SendMessageRequest},
    rpc::Id,
};
use crate::json::Object;

/// Decodes a request; `None` means that the general decoder must decide.
#[must_use]
pub fn send_message(body: &[u8]) -> Option<(Id, SendMessageRequest)> {
    let Members(Envelope {
        jsonrpc,
        id: PlainId(id),
        method,
        params: Members(params),
    }) = serde_json::from_slice(body).ok()?;
    let is_plain = jsonrpc == "2.0"
        && Operation::from_rpc_method(method) == Some((Operation::SendMessage, Version::V1_0));
    if !is_plain {
        return None;
    }
    Some((id, params.request()?))
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Envelope<'b> {
    jsonrpc: &'b str,
    id: PlainId,
    method: &'b str,
    #[serde(borrow)]
    params: Members<Params<'b>>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Params<'b> {
    tenant: Option<String>,
    #[serde(borrow)]
    message: Members<PlainMessage<'b>>,
    configuration: Option<Members<Configuration>>,
    metadata: Option<Value>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct PlainMessage<'b> {
    message_id: String,
    context_id: Option<String>,
    task_id: Option<String>,
    role: &'b str,
    parts: Vec<Members<TextPart>>,
    metadata: Option<Value>,
    extensions: Option<Vec<String>>,
    reference_task_ids: Option<Vec<String>>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct TextPart {
    text: String,
    media_type: Option<String>,
    filename: Option<String>,
    metadata: Option<Value>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct Configuration {
    accepted_output_modes: Option<Vec<String>>,
    history_length: Option<u32>,
    return_immediately: Option<bool>,
}

impl Params<'_> {
    fn request(self) -> Option<SendMessageRequest> {
        let Self {
            tenant,
            message: Members(message),
            configuration,
            metadata,
        } = self;
        Some(SendMessageRequest {
            tenant: text(tenant),
            message: message.message()?,
            configuration: configuration
                .map(|Members(configuration)| configuration.configuration())
                .unwrap_or_default(),
            metadata: object(metadata)?,
        })
    }
}

impl PlainMessage<'_> {
    fn message(self) -> Option<Message> {
        if self.message_id.is_empty() || self.parts.is_empty() {
            return None;
        }
        Some(Message {
            message_id: self.message_id,
            context_id: text(self.context_id),
            task_id: text(self.task_id),
            role: Role::from_name(self.role)?,
            parts: self
                .parts
                .into_iter()
                .map(|Members(part)| part.part())
                .collect::<Option<_>>()?,
            metadata: object(self.metadata)?,
            extensions: self.extensions.unwrap_or_default(),
            reference_task_ids: self.reference_task_ids.unwrap_or_default(),
            unreadable: Vec::new(),
        })
    }
}

impl TextPart {
    fn part(self) -> Option<Part> {
        Some(Part {
            content: PartContent::Text(self.text),
            media_type: text(self.media_type),
            filename: text(self.filename),
            metadata: object(self.metadata)?,
        })
    }
}

impl Configuration {
    fn configuration(self) -> SendMessageConfiguration {
        SendMessageConfiguration {
            accepted_output_modes: self.accepted_output_modes.unwrap_or_default(),
            task_push_notification_config: None,
            history_length: self.history_length,
            return_immediately: self.return_immediately.unwrap_or_default(),
        }
    }
}

/// As in ProtoJSON, an empty string counts as absent.
fn text(text: Option<String>) -> Option<String> {
    text.filter(|text| !text.is_empty())
}

/// Takes a [`Value`], because deserializing an [`Object`] directly would keep its members as they are written.
fn object(value: Option<Value>) -> Option<Object> {
    match value {
        None => Some(Object::new()),
        Some(Value::Object(members)) => Some(members),
        Some(Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) | Value::Array(_)) => None,
    }
}

/// Accepts an object only: a derived `Deserialize` would also accept an array of the member values.
struct Members<T>(T);

impl<'de, T: Deserialize<'de>> Deserialize<'de> for Members<T> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Visitor<T>(PhantomData<T>);

        impl<'de, T: Deserialize<'de>> de::Visitor<'de> for Visitor<T> {
            type Value = Members<T>;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("an object")
            }

            fn visit_map<A: de::MapAccess<'de>>(self, members: A) -> Result<Members<T>, A::Error> {
                T::deserialize(MapAccessDeserializer::new(members)).map(Members)
            }
        }

        deserializer.deserialize_map(Visitor(PhantomData))
    }
}

/// An id that is a string or an integer.
struct PlainId(Id);

impl<'de> Deserialize<'de> for PlainId {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Visitor;

        impl de::Visitor<'_> for Visitor {
            type Value = PlainId;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a string or an integer")
            }

            fn visit_str<E>(self, text: &str) -> Result<PlainId, E> {
                Ok(PlainId(Id::Text(text.to_owned())))
            }

            fn visit_u64<E>(self, number: u64) -> Result<PlainId, E> {
                Ok(PlainId(Id::Int(number.into())))
            }

            fn visit_i64<E>(self, number: i64) -> Result<PlainId, E> {
                Ok(PlainId(Id::Int(number.into())))
            }
        }

        deserializer.deserialize_any(Visitor)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use serde_json::json;

    use super::*;
    use crate::{
        a2a::{arbitrary, rpc::Request},
        json::Decode as _,
    };

    /// Decodes with the general decoder.
    fn read(body: &[u8]) -> Option<(Id, SendMessageRequest)> {
        let Request { id, method, params } = Request::parse(body).ok()?;
        assert_eq!(method, "SendMessage");
        Some((id, SendMessageRequest::decode(params?).ok()?))
    }

    fn call(params: &Value) -> Value {
        json!({"jsonrpc": "2.0", "id": "1", "method": "SendMessage", "params": params})
    }

    /// The objects of a request, inner ones first, and their members in declaration order.
    const OBJECTS: [(&str, &[&str]); 5] = [
        (
            "/params/message/parts/0",
            &["text", "mediaType", "filename", "metadata"],
        ),
        (
            "/params/message",
            &[
                "messageId",
                "contextId",
                "taskId",
                "role",
                "parts",
                "metadata",
                "extensions",
                "referenceTaskIds",
            ],
        ),
        (
            "/params/configuration",
            &["acceptedOutputModes", "historyLength", "returnImmediately"],
        ),
        ("/params", &["tenant", "message", "configuration", "metadata"]),
        ("", &["jsonrpc", "id", "method", "params"]),
    ];

    /// Replaces the objects selected by the bits of `which` with arrays of their member values.
    fn as_arrays(mut document: Value, which: u8) -> Value {
        for (bit, (pointer, names)) in OBJECTS.iter().enumerate() {
            if which & (1 << bit) != 0
                && let Some(place) = document.pointer_mut(pointer)
                && place.is_object()
            {
                *place = names.iter().map(|name| place[*name].take()).collect();
            }
        }
        document
    }

    #[test]
    fn text_messages_take_the_fast_path() {
        let bare =
            json!({"message": {"messageId": "m", "role": "ROLE_USER", "parts": [{"text": "hi \"\u{e4}\n"}]}});
        let full = json!({
            "tenant": "t",
            "message": {
                "messageId": "m", "contextId": "c", "taskId": "", "role": "ROLE_USER",
                "parts": [{"text": "", "mediaType": "text/markdown", "filename": "", "metadata": {"a": [1.5]}}],
                "metadata": {"skillId": "greet"}, "extensions": ["urn:x"], "referenceTaskIds": null,
            },
            "configuration": {"acceptedOutputModes": ["text/plain"], "historyLength": 0, "returnImmediately": true},
            "metadata": {"x": {"y": null}},
        });
        for params in [bare, full] {
            for id in [json!("1"), json!("\u{e4}\n"), json!(-7), json!(u64::MAX)] {
                let mut document = call(&params);
                document["id"] = id;
                let body = document.to_string().into_bytes();
                let plain = send_message(&body);
                assert!(plain.is_some(), "{document}");
                assert_eq!(plain, read(&body), "{document}");
            }
        }
    }

    #[test]
    fn other_requests_are_left_to_the_general_decoder() {
        let sound =
            call(&json!({"message": {"messageId": "m", "role": "ROLE_USER", "parts": [{"text": "x"}]}}));
        for (pointer, value) in [
            ("", json!([])),
            ("/jsonrpc", json!("1.0")),
            ("/id", json!(null)),
            ("/id", json!(1.0)),
            ("/id", json!([1])),
            ("/method", json!("GetTask")),
            ("/method", json!("message/send")),
            ("/params", json!([])),
            ("/params/message/messageId", json!("")),
            ("/params/message/role", json!("ROLE_UNSPECIFIED")),
            ("/params/message/parts", json!([])),
            ("/params/message/parts/0", json!({"data": 1})),
            ("/params/message/parts/0", json!({"text": "x", "raw": "aGk="})),
            ("/params/message/parts/0/text", json!(5)),
        ] {
            let mut document = sound.clone();
            *document.pointer_mut(pointer).unwrap() = value;
            assert_eq!(send_message(document.to_string().as_bytes()), None, "{document}");
        }
        let text = sound.to_string();
        for body in [
            text.replacen("\"id\"", "\"id\":2,\"id\"", 1),
            text.replacen("\"id\"", "\"other\":2,\"id\"", 1),
            format!("{text}1"),
            text.replacen('m', "\\ud800", 1),
        ] {
            assert_eq!(send_message(body.as_bytes()), None, "{body}");
        }
    }

    #[test]
    fn arrays_are_not_accepted_as_objects() {
        let sound = call(&json!({
            "message": {"messageId": "m", "role": "ROLE_USER", "parts": [{"text": "hi"}]},
            "configuration": {"returnImmediately": true},
        }));
        assert!(send_message(sound.to_string().as_bytes()).is_some());
        for which in 1..1 << OBJECTS.len() {
            let body = as_arrays(sound.clone(), which).to_string().into_bytes();
            assert_eq!(read(&body), None);
            assert_eq!(send_message(&body), None, "{}", String::from_utf8_lossy(&body));
        }
        let bare = r#"["2.0",1,"SendMessage",[null,["m",null,null,"ROLE_USER",[["hi",null,null,null]],null,null,null],null,null]]"#;
        assert_eq!(send_message(bare.as_bytes()), None);
    }

    proptest! {
        #[test]
        fn fast_path_agrees_with_the_general_decoder(
            message in arbitrary::message(),
            configuration in arbitrary::hostile_value(),
            metadata in arbitrary::json_value(),
            which in 0_u8..1 << OBJECTS.len(),
        ) {
            for configuration in [json!({"historyLength": 3}), configuration] {
                let params = json!({"message": message, "configuration": configuration, "metadata": metadata});
                let document = call(&params);
                for document in [as_arrays(document.clone(), which), document] {
                    let body = document.to_string().into_bytes();
                    if let Some(plain) = send_message(&body) {
                        prop_assert_eq!(Some(plain), read(&body));
                    }
                }
            }
        }

        #[test]
        fn fast_path_agrees_on_arbitrary_input(params in arbitrary::hostile_value()) {
            let body = call(&params).to_string().into_bytes();
            if let Some(plain) = send_message(&body) {
                prop_assert_eq!(Some(plain), read(&body));
            }
        }
    }
}
