//! Equality and order of JSON values, by worth: 1 and 1.0 are equal.

use std::cmp::Ordering;

use serde_json::{Number, Value};

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
