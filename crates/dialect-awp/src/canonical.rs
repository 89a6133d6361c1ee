//! The canonical text of a document, and the hash by which checkpoints and pins name a definition.
//!
//! The text is what ECMAScript's `JSON.stringify` writes for an object whose names were sorted: names in the order of
//! their UTF-16 code units, but those that are array indices first, by their number; numbers as doubles. RFC 8785 differs
//! in the array indices alone.

use std::cmp::Ordering;

use serde_json::{Map, Value};
use wopr_kernel::ContentHash;

/// The canonical text of a document.
#[must_use]
pub fn canonical(document: &Value) -> String {
    let mut text = String::new();
    write(document, &mut text);
    text
}

/// The hash of a definition.
#[must_use]
pub fn definition_hash(document: &Value) -> ContentHash {
    ContentHash::of(canonical(document).as_bytes())
}

fn write(value: &Value, text: &mut String) {
    match value {
        Value::Null | Value::Bool(_) | Value::String(_) => text.push_str(&value.to_string()),
        Value::Number(n) => {
            let n = n.as_f64().unwrap_or(f64::NAN);
            // ECMAScript writes neither infinity nor a negative zero.
            let n = if n == 0.0 { 0.0 } else { n };
            match n.is_finite() {
                true => text.push_str(ryu_js::Buffer::new().format_finite(n)),
                false => text.push_str("null"),
            }
        }
        Value::Array(items) => {
            text.push('[');
            for (n, item) in items.iter().enumerate() {
                if n > 0 {
                    text.push(',');
                }
                write(item, text);
            }
            text.push(']');
        }
        Value::Object(fields) => {
            text.push('{');
            for (n, (name, field)) in in_order(fields).into_iter().enumerate() {
                if n > 0 {
                    text.push(',');
                }
                text.push_str(&Value::String(name.clone()).to_string());
                text.push(':');
                write(field, text);
            }
            text.push('}');
        }
    }
}

fn in_order(fields: &Map<String, Value>) -> Vec<(&String, &Value)> {
    let mut fields: Vec<_> = fields.iter().collect();
    fields.sort_by(|(a, _), (b, _)| match (array_index(a), array_index(b)) {
        (Some(a), Some(b)) => a.cmp(&b),
        (Some(_), None) => Ordering::Less,
        (None, Some(_)) => Ordering::Greater,
        (None, None) => a.encode_utf16().cmp(b.encode_utf16()),
    });
    fields
}

/// The number that a name is, if ECMAScript takes it for the index of an array.
fn array_index(name: &str) -> Option<u32> {
    let index: u32 = name.parse().ok().filter(|&index| index < u32::MAX)?;
    (index.to_string() == name).then_some(index)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn text_is_that_of_ecmascript() {
        let document: Value = serde_json::from_str(
            r#"{"10":1,"2":2.0,"a":-0,"01":1e21,"4294967295":1e-7,"😀":123456789012345678901,"\ue000":0.1,"é":"\u0001\"/"}"#,
        )
        .expect("JSON");
        assert_eq!(
            canonical(&document),
            "{\"2\":2,\"10\":1,\"01\":1e+21,\"4294967295\":1e-7,\"a\":0,\"é\":\"\\u0001\\\"/\",\"😀\":123456789012345680000,\"\u{e000}\":0.1}"
        );
        assert_eq!(canonical(&json!([null, true, {}])), "[null,true,{}]");
    }
}
