//! Normalizes the alternative JSON spellings that a ProtoJSON reader must accept.
//!
//! A field may use its `.proto` name (`message_id`), an enum its number, and an integer a string; an integer may have a
//! fraction of 0 or an exponent (`10.0`, `1e1`). SDKs that
//! speak 0.3 over HTTP use the first of these. Free-form data is left unchanged.

use serde_json::Value;

use super::schema::{Kind, Message, Shape};
use crate::json::{self, Object};

/// Normalizes a document. Values that do not match the table stay unchanged, for the decoder to reject.
pub fn canonical(message: &Message, object: &mut Object) {
    for field in message.fields {
        if field.name != field.json
            && !object.contains_key(field.json)
            && let Some(value) = object.remove(field.name)
        {
            object.insert(field.json.to_owned(), value);
        }
        let Some(value) = object.get_mut(field.json) else {
            continue;
        };
        match (field.shape, value) {
            (Shape::Many, Value::Array(list)) => list.iter_mut().for_each(|value| single(field.kind, value)),
            (Shape::Map, Value::Object(members)) => {
                members.values_mut().for_each(|value| single(field.kind, value));
            }
            (Shape::Many | Shape::Map, _) => {}
            (Shape::One | Shape::Optional | Shape::OneOf(_), value) => single(field.kind, value),
        }
    }
}

fn single(kind: Kind, value: &mut Value) {
    match kind {
        Kind::Message(message) => {
            if let Value::Object(object) = value {
                canonical(message, object);
            }
        }
        Kind::Enum(names) => {
            let number = json::integer(value).and_then(|number| i32::try_from(number).ok());
            if let Some(name) = number.and_then(|number| names.name_of(number)) {
                *value = name.into();
            }
        }
        Kind::Int32 => {
            let number = value.as_str().and_then(json::integer_in);
            if let Some(number) = number.and_then(|number| i32::try_from(number).ok()) {
                *value = number.into();
            }
        }
        Kind::Text | Kind::Bytes | Kind::Bool | Kind::Struct | Kind::Value | Kind::Timestamp => {}
    }
}
