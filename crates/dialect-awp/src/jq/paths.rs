//! Paths: reading, setting and deleting what they lead to.

use std::{borrow::Cow, rc::Rc};

use serde_json::{Map, Value};
use wopr_kernel::{
    cost::{self, Meter},
    measure::MAX_NESTING,
};

use super::{
    machine::{Flow, Stop},
    text::shown,
};

/// How a value was reached: the last part of its path, and the rest.
pub(super) type Trail = Option<Rc<Link>>;

#[derive(Debug)]
pub(super) struct Link {
    part: Value,
    before: Trail,
    /// How many parts the path has.
    n_parts: usize,
}

impl Drop for Link {
    /// Drops the rest of the path in a loop: a long one would overflow the stack.
    fn drop(&mut self) {
        let mut rest = self.before.take();
        while let Some(mut link) = rest.and_then(Rc::into_inner) {
            rest = link.before.take();
        }
    }
}

/// One part further, if the trail is wanted.
pub(super) fn hop(trail: Option<&Trail>, part: &Value, meter: &Meter<'_>) -> Flow<Option<Trail>> {
    let Some(trail) = trail else { return Ok(None) };
    let n_parts = trail.as_ref().map_or(0, |link| link.n_parts) + 1;
    if n_parts > MAX_NESTING {
        return Err(Stop::TooDeep);
    }
    meter.charge(4 + cost::of_value(part))?;
    Ok(Some(Some(Rc::new(Link {
        part: part.clone(),
        before: trail.clone(),
        n_parts,
    }))))
}

/// The cost of comparing a name with those of an object, if it is long.
pub(super) fn of_name(part: &Value) -> u64 {
    match part {
        Value::String(name) => name.len() as u64 / 16,
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::Array(_) | Value::Object(_) => 0,
    }
}

/// The parts of a path, in order.
pub(super) fn parts(trail: &Trail, meter: &Meter<'_>) -> Flow<Vec<Value>> {
    let mut parts = Vec::new();
    let mut at = trail;
    while let Some(link) = at {
        meter.charge(cost::of_value(&link.part))?;
        parts.push(link.part.clone());
        at = &link.before;
    }
    parts.reverse();
    Ok(parts)
}

fn cannot_index(value: &Value, by: &Value) -> Stop {
    let by = match by {
        Value::String(name) => format!("\"{}\"", &name[..name.floor_char_boundary(40)]),
        other => super::text::type_of(other).to_owned(),
    };
    Stop::error(format!("Cannot index {} with {by}", super::text::type_of(value)))
}

/// A part of a value; null where there is none.
pub(super) fn index<'v>(value: Cow<'v, Value>, by: &Value) -> Flow<Cow<'v, Value>> {
    let nothing = Cow::Owned(Value::Null);
    match (&*value, by) {
        (Value::Null, Value::String(_) | Value::Number(_) | Value::Null) => Ok(nothing),
        (Value::Object(_), Value::String(name)) => Ok(match value {
            Cow::Borrowed(value) => value.get(name).map_or(nothing, Cow::Borrowed),
            Cow::Owned(mut value) => {
                let field = value.get_mut(name).map(Value::take);
                Cow::Owned(field.unwrap_or_default())
            }
        }),
        (Value::Array(items), Value::Number(n)) => {
            let Some(at) = position(n.as_f64().unwrap_or(f64::NAN), items.len()) else {
                return Ok(nothing);
            };
            Ok(match value {
                Cow::Borrowed(value) => value.get(at).map_or(nothing, Cow::Borrowed),
                Cow::Owned(mut value) => {
                    let item = value.get_mut(at).map(Value::take);
                    Cow::Owned(item.unwrap_or_default())
                }
            })
        }
        (value, by) => Err(cannot_index(value, by)),
    }
}

/// The index that a number means; negative ones count from the end.
fn position(n: f64, n_items: usize) -> Option<usize> {
    let n = n.floor();
    #[expect(clippy::cast_precision_loss, reason = "no list is that long")]
    let n = if n < 0.0 { n + n_items as f64 } else { n };
    #[expect(
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        reason = "checked to be in range"
    )]
    (0.0..1.0e15).contains(&n).then_some(n as usize)
}

/// The part of a list or of a text between two bounds.
pub(super) fn slice(value: &Value, from: &Value, to: &Value, meter: &Meter<'_>) -> Flow<Value> {
    match value {
        Value::Null => Ok(Value::Null),
        Value::Array(items) => {
            let (from, to) = bounds(from, to, items.len())?;
            let part = &items[from..to];
            meter.charge(part.iter().map(cost::of_value).sum())?;
            Ok(Value::Array(part.to_vec()))
        }
        Value::String(text) => {
            meter.bytes(2 * text.len())?;
            let (from, to) = bounds(from, to, text.chars().count())?;
            Ok(Value::String(text.chars().skip(from).take(to - from).collect()))
        }
        other => Err(cannot_index(other, &Value::Object(Map::new()))),
    }
}

fn bounds(from: &Value, to: &Value, n_items: usize) -> Flow<(usize, usize)> {
    let bound = |value: &Value, default: usize, round: fn(f64) -> f64| match value {
        Value::Null => Ok(default),
        Value::Number(n) => {
            let n = round(n.as_f64().unwrap_or_default());
            #[expect(clippy::cast_precision_loss, reason = "no list is that long")]
            let most = n_items as f64;
            let n = if n < 0.0 { n + most } else { n };
            #[expect(
                clippy::cast_possible_truncation,
                clippy::cast_sign_loss,
                reason = "clamped to the range"
            )]
            Ok(n.clamp(0.0, most) as usize)
        }
        _ => Err(Stop::error(
            "Start and end indices of an array slice must be numbers",
        )),
    };
    let from = bound(from, 0, f64::floor)?;
    let to = bound(to, n_items, f64::ceil)?;
    Ok((from, to.max(from)))
}

/// What a path leads to.
pub(super) fn get<'v>(value: &'v Value, path: &[Value], meter: &Meter<'_>) -> Flow<Cow<'v, Value>> {
    let mut found = Cow::Borrowed(value);
    for part in path {
        meter.charge(2 + of_name(part))?;
        if found.is_null() {
            return Ok(found);
        }
        found = match part {
            Value::Object(range) => Cow::Owned(slice(&found, of(range, "start"), of(range, "end"), meter)?),
            part => index(found, part)?,
        };
    }
    Ok(found)
}

fn of<'v>(range: &'v Map<String, Value>, name: &str) -> &'v Value {
    range.get(name).unwrap_or(&Value::Null)
}

/// Sets what a path leads to. What is not there is made.
pub(super) fn set(value: &mut Value, path: &[Value], to: Value, meter: &Meter<'_>) -> Flow {
    meter.charge(cost::of_value(&to) / 4)?;
    if path.len() > MAX_NESTING || nests(&to, MAX_NESTING - path.len()) {
        return Err(Stop::TooDeep);
    }
    let mut to = Some(to);
    change(value, path, meter, &mut |place| {
        *place = to.take().unwrap_or_default();
        Ok(())
    })
}

/// Whether a value nests deeper than this.
fn nests(value: &Value, levels: usize) -> bool {
    match value {
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => false,
        Value::Array(items) => levels == 0 || items.iter().any(|item| nests(item, levels - 1)),
        Value::Object(fields) => levels == 0 || fields.values().any(|field| nests(field, levels - 1)),
    }
}

fn change(
    value: &mut Value,
    path: &[Value],
    meter: &Meter<'_>,
    make: &mut dyn FnMut(&mut Value) -> Flow,
) -> Flow {
    let Some((part, rest)) = path.split_first() else {
        return make(value);
    };
    meter.charge(4)?;
    match part {
        Value::String(name) => {
            if value.is_null() {
                meter.object(1)?;
                *value = Value::Object(Map::new());
            }
            let Value::Object(fields) = value else {
                return Err(cannot_index(value, part));
            };
            meter.bytes(name.len())?;
            if !fields.contains_key(name) {
                meter.object(1)?;
            }
            change(
                fields.entry(name.clone()).or_insert(Value::Null),
                rest,
                meter,
                make,
            )
        }
        Value::Number(n) => {
            if value.is_null() {
                *value = Value::Array(Vec::new());
            }
            let Value::Array(items) = value else {
                return Err(cannot_index(value, part));
            };
            let at = position(n.as_f64().unwrap_or(f64::NAN), items.len())
                .ok_or_else(|| Stop::error("Out of bounds negative array index"))?;
            if at >= items.len() {
                meter.values(at + 1 - items.len())?;
                items.resize(at + 1, Value::Null);
            }
            change(&mut items[at], rest, meter, make)
        }
        Value::Object(range) => {
            let mut part = slice(value, of(range, "start"), of(range, "end"), meter)?;
            change(&mut part, rest, meter, make)?;
            let Value::Array(part) = part else {
                return Err(Stop::error(
                    "A slice of an array can only be assigned another array",
                ));
            };
            if value.is_null() {
                *value = Value::Array(Vec::new());
            }
            let Value::Array(items) = value else {
                return Err(cannot_index(value, &Value::Null));
            };
            let (from, to) = bounds(of(range, "start"), of(range, "end"), items.len())?;
            meter.values(items.len() + part.len())?;
            items.splice(from..to, part);
            Ok(())
        }
        part => Err(Stop::error(format!("Invalid path part {}", shown(part)))),
    }
}

/// The same path, with the indexes of lists counted from the front.
pub(super) fn from_front(value: &Value, mut path: Vec<Value>, meter: &Meter<'_>) -> Flow<Vec<Value>> {
    let mut at = value;
    for part in &mut path {
        meter.charge(2 + of_name(part))?;
        let found = match (at, &mut *part) {
            (Value::Object(fields), Value::String(name)) => fields.get(name.as_str()),
            (Value::Array(items), part @ Value::Number(_)) => {
                let n = position(part.as_f64().unwrap_or(f64::NAN), items.len());
                if let Some(n) = n {
                    *part = Value::from(n);
                }
                n.and_then(|n| items.get(n))
            }
            _ => None,
        };
        let Some(found) = found else { break };
        at = found;
    }
    Ok(path)
}

/// Deletes what a path leads to, if there is anything.
pub(super) fn delete(value: &mut Value, path: &[Value], meter: &Meter<'_>) -> Flow {
    meter.charge(4)?;
    let Some((part, rest)) = path.split_first() else {
        *value = Value::Null;
        return Ok(());
    };
    meter.charge(of_name(part))?;
    match (value, part) {
        (Value::Null, _) => Ok(()),
        (Value::Object(fields), Value::String(name)) => {
            if rest.is_empty() {
                fields.remove(name);
                return Ok(());
            }
            fields
                .get_mut(name)
                .map_or(Ok(()), |field| delete(field, rest, meter))
        }
        (Value::Array(items), Value::Number(n)) => {
            let at = position(n.as_f64().unwrap_or(f64::NAN), items.len());
            let Some(at) = at.filter(|at| *at < items.len()) else {
                return Ok(());
            };
            if rest.is_empty() {
                meter.values(items.len() - at)?;
                items.remove(at);
                return Ok(());
            }
            delete(&mut items[at], rest, meter)
        }
        (Value::Array(items), Value::Object(range)) if rest.is_empty() => {
            let (from, to) = bounds(of(range, "start"), of(range, "end"), items.len())?;
            meter.values(items.len())?;
            items.drain(from..to);
            Ok(())
        }
        (value, part) => Err(Stop::error(format!(
            "Cannot delete field at {} of {}",
            shown(part),
            super::text::type_of(value)
        ))),
    }
}
