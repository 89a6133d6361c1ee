//! Sizes of JSON values, and the order of their numbers.
//!
//! Stored bodies are read with a nesting limit, and every decision walks the values that it folds. Values
//! that enter a run are therefore limited in depth, and values that a workflow creates are limited in depth
//! and size.

use std::{cmp::Ordering, io};

use serde::Serialize;
use serde_json::{Number, Value};

use crate::Object;

/// Maximum nesting of a value that enters a run or that a node creates. Stored bodies and snapshots wrap
/// values in a few more levels and are read with a limit of 128.
pub const MAX_NESTING: usize = 64;

/// Bytes of a non-empty object besides its members: one leaf of its tree has room for eleven members.
const OBJECT: usize = 640;
/// Bytes that any value takes in its array or object.
const VALUE: usize = 40;
/// Bytes of a string besides its text.
const STRING: usize = 32;

/// A parsed text may take `TIMES_PARSED` times the limit of the text itself, or `LEAST_PARSED` bytes if that
/// is more.
const TIMES_PARSED: usize = 2;
const LEAST_PARSED: usize = 24 << 20;

/// The approximate memory in bytes that a JSON text takes once it is parsed: its own length for one long
/// string, and up to a hundred times as much for small objects. Accepts any text and does not parse it.
#[must_use]
pub fn parsed_size(text: &[u8]) -> usize {
    let (mut n_objects, mut n_values, mut n_strings) = (0, 0, 0);
    let mut bytes = text.iter();
    while let Some(byte) = bytes.next() {
        match byte {
            b'{' => n_objects += 1,
            b'[' | b',' | b':' => n_values += 1,
            b'"' => {
                n_strings += 1;
                while let Some(byte) = bytes.next() {
                    match byte {
                        b'"' => break,
                        b'\\' => drop(bytes.next()),
                        _ => {}
                    }
                }
            }
            _ => {}
        }
    }
    text.len() + n_objects * OBJECT + n_values * VALUE + n_strings * STRING
}

/// The memory limit in bytes of a parsed JSON text, if the text itself may have `limit` bytes.
#[must_use]
pub fn parsed_limit(limit: usize) -> usize {
    limit.saturating_mul(TIMES_PARSED).max(LEAST_PARSED)
}

/// Whether a text that others wrote may be parsed: it takes no more memory than one of its size may.
#[must_use]
pub fn may_be_parsed(text: &str) -> bool {
    parsed_size(text.as_bytes()) <= parsed_limit(text.len())
}

/// The approximate memory in bytes that a value takes, by the measure of [`parsed_size`].
#[must_use]
pub fn value_size(value: &Value) -> usize {
    match value {
        Value::Null | Value::Bool(_) | Value::Number(_) => VALUE,
        Value::String(text) => VALUE + STRING + text.len(),
        Value::Array(items) => VALUE + items.iter().map(value_size).sum::<usize>(),
        Value::Object(fields) => VALUE + object_size(fields),
    }
}

/// The approximate memory in bytes that an object takes, by the measure of [`parsed_size`].
#[must_use]
pub fn object_size(fields: &Object) -> usize {
    let members = fields.iter();
    let n_bytes = members.map(|(name, value)| STRING + name.len() + value_size(value));
    OBJECT + n_bytes.sum::<usize>()
}

/// A writer that fails beyond a maximum length.
struct Within {
    text: Vec<u8>,
    most: usize,
}

impl io::Write for Within {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        if bytes.len() > self.most - self.text.len() {
            return Err(io::ErrorKind::FileTooLarge.into());
        }
        self.text.extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// A value as JSON text, if that has at most `most` bytes. Stops writing beyond that.
pub fn json_within(value: &Value, most: usize) -> Option<String> {
    let mut within = Within {
        text: Vec::new(),
        most,
    };
    serde_json::to_writer(&mut within, value).ok()?;
    String::from_utf8(within.text).ok()
}

/// The length of a document as JSON text, in bytes; 0 if it has none.
pub fn json_size(document: &impl Serialize) -> usize {
    struct Counter(usize);
    impl io::Write for Counter {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            self.0 += bytes.len();
            Ok(bytes.len())
        }
        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }
    let mut counter = Counter(0);
    match serde_json::to_writer(&mut counter, document) {
        Ok(()) => counter.0,
        // Whoever writes the document reports the error.
        Err(_) => 0,
    }
}

/// Whether a value nests deeper than [`MAX_NESTING`].
pub fn too_deep(value: &Value) -> bool {
    deeper(value, MAX_NESTING)
}

/// Returns `true` if an object nests deeper than [`MAX_NESTING`].
pub fn object_too_deep(fields: &Object) -> bool {
    fields.values().any(|field| deeper(field, MAX_NESTING - 1))
}

fn deeper(value: &Value, left: usize) -> bool {
    match value {
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => false,
        Value::Array(items) => left == 0 || items.iter().any(|item| deeper(item, left - 1)),
        Value::Object(fields) => left == 0 || fields.values().any(|field| deeper(field, left - 1)),
    }
}

/// The approximate length in bytes of a value as JSON text.
pub fn size_of(value: &Value) -> usize {
    match value {
        Value::Null | Value::Bool(_) | Value::Number(_) => 8,
        Value::String(text) => text.len() + 2,
        Value::Array(items) => items.iter().map(|item| size_of(item) + 1).sum::<usize>() + 2,
        Value::Object(fields) => size_of_object(fields),
    }
}

/// The approximate length in bytes of an object as JSON text.
pub fn size_of_object(fields: &Object) -> usize {
    fields
        .iter()
        .map(|(name, field)| name.len() + 4 + size_of(field))
        .sum::<usize>()
        + 2
}

/// The exact order of two numbers, whole ones and others.
#[must_use]
pub fn compare_numbers(a: &Number, b: &Number) -> Ordering {
    let int = |n: &Number| n.as_i64().map(i128::from).or_else(|| n.as_u64().map(i128::from));
    let float = |n: &Number| n.as_f64().unwrap_or(f64::NAN);
    match (int(a), int(b)) {
        (Some(a), Some(b)) => a.cmp(&b),
        (None, None) => by_worth(float(a), float(b)),
        (Some(a), None) => compare_mixed(a, float(b)).unwrap_or(Ordering::Equal),
        (None, Some(b)) => compare_mixed(b, float(a)).map_or(Ordering::Equal, Ordering::reverse),
    }
}

/// JSON has no NaN, so the order is total.
fn by_worth(a: f64, b: f64) -> Ordering {
    a.partial_cmp(&b).unwrap_or(Ordering::Equal)
}

/// The exact order of a whole number and a float; `None` if the float is NaN.
#[must_use]
pub fn compare_mixed(a: i128, b: f64) -> Option<Ordering> {
    #[expect(
        clippy::cast_precision_loss,
        reason = "the nearest float decides unless it is equal"
    )]
    let order = (a as f64).partial_cmp(&b)?;
    if order.is_ne() || b.fract() != 0.0 || b.abs() >= 1.0e38 {
        return Some(order);
    }
    // If the floats are equal, the conversion may have rounded.
    #[expect(clippy::cast_possible_truncation, reason = "checked to be whole and in range")]
    let b = b as i128;
    Some(a.cmp(&b))
}

#[cfg(test)]
mod tests {
    use std::mem;

    use super::*;

    #[test]
    fn json_size_is_the_length_of_the_text() {
        assert_eq!(json_size(&serde_json::json!({"a": [1, "b\n"]})), 15);
    }

    #[test]
    fn json_within_stops_at_its_limit() {
        let value = serde_json::json!({ "a": ["b", "\u{1}"] });
        let text = value.to_string();
        assert_eq!(json_within(&value, text.len()), Some(text.clone()));
        assert_eq!(json_within(&value, text.len() - 1), None);
        assert!(value_size(&value) > parsed_size(text.as_bytes()) - text.len());
    }

    #[test]
    fn parsed_size_estimates_memory_without_parsing() {
        let text = format!("\"{}\"", "x[{,:\\\"".repeat(1_000));
        assert_eq!(parsed_size(text.as_bytes()), text.len() + STRING);
        let small = b"[{\"\":0},{\"\":0}]";
        let parsed = small.len() + 2 * (OBJECT + VALUE + STRING) + 2 * VALUE;
        assert_eq!(parsed_size(small), parsed);
        assert_eq!(parsed_size(b"\"cut off\\"), 9 + STRING);
        // A leaf holds the names and values of eleven members, and a link to its parent.
        let leaf = 11 * (mem::size_of::<String>() + mem::size_of::<Value>()) + mem::size_of::<usize>() + 4;
        assert!((leaf..leaf + 32).contains(&OBJECT), "{leaf}");
    }
}
