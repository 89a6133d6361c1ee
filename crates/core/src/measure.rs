//! Sizes of JSON values.
//!
//! A stored body is read back with a nesting limit, and every decision walks what it folds; so what enters
//! a run is bounded in depth, and what a workflow makes is bounded in both.

use serde_json::Value;

use crate::Object;

/// Deepest nesting of a value that enters a run or that a node makes. Stored bodies and snapshots wrap values in a
/// few levels more and are read with a limit of 128.
pub const MAX_NESTING: usize = 64;

/// Whether a value nests deeper than allowed.
pub(crate) fn too_deep(value: &Value) -> bool {
    deeper(value, MAX_NESTING)
}

/// Whether an object nests deeper than allowed.
pub(crate) fn object_too_deep(fields: &Object) -> bool {
    fields.values().any(|field| deeper(field, MAX_NESTING - 1))
}

fn deeper(value: &Value, left: usize) -> bool {
    match value {
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => false,
        Value::Array(items) => left == 0 || items.iter().any(|item| deeper(item, left - 1)),
        Value::Object(fields) => left == 0 || fields.values().any(|field| deeper(field, left - 1)),
    }
}

/// Roughly the bytes a value takes as text.
pub(crate) fn size_of(value: &Value) -> usize {
    match value {
        Value::Null | Value::Bool(_) | Value::Number(_) => 8,
        Value::String(text) => text.len() + 2,
        Value::Array(items) => items.iter().map(|item| size_of(item) + 1).sum::<usize>() + 2,
        Value::Object(fields) => size_of_object(fields),
    }
}

/// Roughly the bytes an object takes as text.
pub(crate) fn size_of_object(fields: &Object) -> usize {
    fields
        .iter()
        .map(|(name, field)| name.len() + 4 + size_of(field))
        .sum::<usize>()
        + 2
}
