//! Arithmetic and comparisons. Numbers are doubles, as in jq.

use std::borrow::Cow;

use jaq_core::ops::{Cmp, Math};
use serde_json::{Map, Number, Value};
use wopr_kernel::cost::{self, Meter};

use super::{
    machine::{Flow, Stop},
    text::{self, shown},
};

/// Beyond this not every whole number is a double.
const MOST_EXACT: f64 = 9_007_199_254_740_992.0;

/// A number as JSON: whole ones without a fraction, none as null, and infinite ones as the largest.
pub(super) fn number(n: f64) -> Value {
    if n.is_nan() {
        return Value::Null;
    }
    if n.fract() == 0.0 && n.abs() <= MOST_EXACT {
        #[expect(clippy::cast_possible_truncation, reason = "checked to be whole and in range")]
        return Value::from(n as i64);
    }
    Number::from_f64(n.clamp(f64::MIN, f64::MAX)).map_or(Value::Null, Value::Number)
}

pub(super) fn compare(op: Cmp, left: &Value, right: &Value, meter: &Meter<'_>) -> Flow<bool> {
    Ok(match op {
        Cmp::Eq => wopr_schema::equal(left, right, meter)?,
        Cmp::Ne => !wopr_schema::equal(left, right, meter)?,
        Cmp::Lt => wopr_schema::order(left, right, meter)?.is_lt(),
        Cmp::Le => wopr_schema::order(left, right, meter)?.is_le(),
        Cmp::Gt => wopr_schema::order(left, right, meter)?.is_gt(),
        Cmp::Ge => wopr_schema::order(left, right, meter)?.is_ge(),
    })
}

pub(super) fn apply(op: Math, left: Cow<'_, Value>, right: Cow<'_, Value>, meter: &Meter<'_>) -> Flow<Value> {
    if let (Some(left), Some(right)) = (left.as_f64(), right.as_f64()) {
        return of_numbers(op, left, right);
    }
    match op {
        Math::Add => add(left, right, meter),
        Math::Sub => subtract(&left, &right, meter),
        Math::Mul => multiply(left, right, meter),
        Math::Div => divide(&left, &right, meter),
        Math::Rem => Err(cannot("divided", &left, &right)),
    }
}

fn cannot(what: &str, left: &Value, right: &Value) -> Stop {
    Stop::error(format!("{} and {} cannot be {what}", shown(left), shown(right)))
}

fn of_numbers(op: Math, left: f64, right: f64) -> Flow<Value> {
    let by_zero = || {
        Stop::error(format!(
            "{} and {} cannot be divided because the divisor is zero",
            shown(&number(left)),
            shown(&number(right))
        ))
    };
    Ok(number(match op {
        Math::Add => left + right,
        Math::Sub => left - right,
        Math::Mul => left * right,
        Math::Div if right == 0.0 => return Err(by_zero()),
        Math::Div => left / right,
        Math::Rem if right.abs() < 1.0 => return Err(by_zero()),
        Math::Rem => left.trunc() % right.trunc(),
    }))
}

fn add(left: Cow<'_, Value>, right: Cow<'_, Value>, meter: &Meter<'_>) -> Flow<Value> {
    match (&*left, &*right) {
        (Value::Null, _) => return own(right, meter),
        (_, Value::Null) => return own(left, meter),
        (Value::String(a), Value::String(b)) => text::fits(a.len() + b.len())?,
        (Value::Array(_), Value::Array(_)) | (Value::Object(_), Value::Object(_)) => {}
        (left, right) => return Err(cannot("added", left, right)),
    }
    let (left, right) = (own(left, meter)?, own(right, meter)?);
    Ok(match (left, right) {
        (Value::String(mut left), Value::String(right)) => {
            meter.bytes(right.len())?;
            left.push_str(&right);
            Value::String(left)
        }
        (Value::Array(mut left), Value::Array(right)) => {
            meter.values(right.len())?;
            left.extend(right);
            Value::Array(left)
        }
        (Value::Object(mut left), Value::Object(right)) => {
            meter.object(right.len())?;
            left.extend(right);
            Value::Object(left)
        }
        (left, _) => left,
    })
}

fn own(value: Cow<'_, Value>, meter: &Meter<'_>) -> Flow<Value> {
    if let Cow::Borrowed(value) = &value {
        meter.charge(cost::of_value(value))?;
    }
    Ok(value.into_owned())
}

fn subtract(left: &Value, right: &Value, meter: &Meter<'_>) -> Flow<Value> {
    let (Value::Array(left), Value::Array(right)) = (left, right) else {
        return Err(cannot("subtracted", left, right));
    };
    let mut kept = Vec::new();
    for item in left {
        let mut is_kept = true;
        for other in right {
            if wopr_schema::equal(item, other, meter)? {
                is_kept = false;
                break;
            }
        }
        if is_kept {
            meter.charge(cost::of_value(item))?;
            kept.push(item.clone());
        }
    }
    Ok(Value::Array(kept))
}

fn multiply(left: Cow<'_, Value>, right: Cow<'_, Value>, meter: &Meter<'_>) -> Flow<Value> {
    match (&*left, &*right) {
        (Value::String(text), Value::Number(n)) | (Value::Number(n), Value::String(text)) => {
            repeat(text, n.as_f64().unwrap_or_default(), meter)
        }
        (Value::Object(_), Value::Object(_)) => {
            let (mut left, right) = (own(left, meter)?, own(right, meter)?);
            if let (Value::Object(left), Value::Object(right)) = (&mut left, right) {
                merge(left, right);
            }
            Ok(left)
        }
        (left, right) => Err(cannot("multiplied", left, right)),
    }
}

/// A text as often as `n` says: null for none, once for a part of one.
fn repeat(text: &str, n: f64, meter: &Meter<'_>) -> Flow<Value> {
    if n <= 0.0 || n.is_nan() {
        return Ok(Value::Null);
    }
    #[expect(
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        reason = "positive, and a number that is too large is the largest one"
    )]
    let n = n.max(1.0) as usize;
    let n_bytes = text.len().saturating_mul(n);
    text::fits(n_bytes)?;
    meter.bytes(n_bytes)?;
    Ok(Value::String(text.repeat(n)))
}

/// Merges objects in objects; everything else is replaced. Both were paid for.
pub(crate) fn merge(into: &mut Map<String, Value>, from: Map<String, Value>) {
    for (name, value) in from {
        match (into.get_mut(&name), value) {
            (Some(Value::Object(into)), Value::Object(from)) => merge(into, from),
            (_, value) => {
                into.insert(name, value);
            }
        }
    }
}

fn divide(left: &Value, right: &Value, meter: &Meter<'_>) -> Flow<Value> {
    match (left, right) {
        (Value::String(text), Value::String(by)) => split(text, by, meter),
        (left, right) => Err(cannot("divided", left, right)),
    }
}

pub(super) fn split(text: &str, by: &str, meter: &Meter<'_>) -> Flow<Value> {
    if text.is_empty() {
        return Ok(Value::Array(Vec::new()));
    }
    meter.charge((text.len() as u64 + 1) * 4)?;
    if by.is_empty() {
        let letters = text.chars().map(|c| Value::String(c.to_string()));
        return Ok(Value::Array(letters.collect()));
    }
    let parts = text.split(by).map(|part| Value::String(part.to_owned()));
    Ok(Value::Array(parts.collect()))
}
