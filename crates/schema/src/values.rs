//! Equality and order of JSON values, by worth: 1 and 1.0 are equal.

use std::cmp::Ordering;

use serde_json::Value;
use wopr_kernel::measure::compare_numbers;

use crate::cost::{Exhausted, MAX_DEPTH, Meter};

/// Whether two values are equal. Values that nest deeper than any that is accepted are not.
///
/// # Errors
/// The comparison exceeds its work limit.
pub fn equal(a: &Value, b: &Value, meter: &Meter<'_>) -> Result<bool, Exhausted> {
    Ok(order_at(a, b, meter, 0, true)? == Ordering::Equal)
}

/// The order of two values: null, false, true, numbers, strings, arrays, objects. Arrays are ordered item by item,
/// objects first by their names and then by their values.
///
/// # Errors
/// The comparison exceeds its work limit.
pub fn order(a: &Value, b: &Value, meter: &Meter<'_>) -> Result<Ordering, Exhausted> {
    order_at(a, b, meter, 0, false)
}

fn order_at(
    a: &Value,
    b: &Value,
    meter: &Meter<'_>,
    depth: usize,
    only_equality: bool,
) -> Result<Ordering, Exhausted> {
    meter.charge(1)?;
    if depth > MAX_DEPTH {
        return Err(Exhausted);
    }
    match (a, b) {
        (Value::Number(a), Value::Number(b)) => Ok(compare_numbers(a, b)),
        (Value::String(a), Value::String(b)) => {
            if only_equality && a.len() != b.len() {
                return Ok(a.len().cmp(&b.len()));
            }
            meter.bytes(a.len().min(b.len()))?;
            Ok(a.cmp(b))
        }
        (Value::Array(a), Value::Array(b)) => {
            if only_equality && a.len() != b.len() {
                return Ok(a.len().cmp(&b.len()));
            }
            for (a, b) in a.iter().zip(b) {
                let order = order_at(a, b, meter, depth + 1, only_equality)?;
                if order.is_ne() {
                    return Ok(order);
                }
            }
            Ok(a.len().cmp(&b.len()))
        }
        (Value::Object(a), Value::Object(b)) => {
            if only_equality && a.len() != b.len() {
                return Ok(a.len().cmp(&b.len()));
            }
            for name in a.keys().chain(b.keys()) {
                meter.charge(1)?;
                meter.bytes(name.len())?;
            }
            let mut names = a.keys().cmp(b.keys());
            if names.is_eq() {
                for ((_, a), (_, b)) in a.iter().zip(b) {
                    names = order_at(a, b, meter, depth + 1, only_equality)?;
                    if names.is_ne() {
                        break;
                    }
                }
            }
            Ok(names)
        }
        (a, b) => Ok(rank(a).cmp(&rank(b))),
    }
}

const fn rank(value: &Value) -> u8 {
    match value {
        Value::Null => 0,
        Value::Bool(false) => 1,
        Value::Bool(true) => 2,
        Value::Number(_) => 3,
        Value::String(_) => 4,
        Value::Array(_) => 5,
        Value::Object(_) => 6,
    }
}
