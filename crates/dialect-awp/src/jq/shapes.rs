//! Filters that take values apart and build them anew: `walk`, streams, `combinations`, `transpose`, `bsearch`.
#![expect(
    clippy::needless_pass_by_value,
    reason = "a filter is given its input: some take it over, and all are called alike"
)]

use std::cmp::Ordering;

use serde_json::{Map, Value};
use wopr_kernel::cost;

use super::{
    binding::Scope,
    machine::{Flow, Item, Machine, Next, Stop},
    paths,
    term::Term,
    text::shown,
};

impl<'t> Machine<'t, '_> {
    /// Applies a filter to everything in a value, the innermost first, and then to the value.
    pub(super) fn transform(
        &self,
        filter: &'t Term,
        scope: &Scope<'t>,
        input: Item<'_>,
        next: Next<'_>,
    ) -> Flow {
        for output in self.transformed(filter, scope, &input.value)? {
            self.make(input.again(), output, next)?;
        }
        Ok(())
    }

    fn transformed(&self, filter: &'t Term, scope: &Scope<'t>, value: &Value) -> Flow<Vec<Value>> {
        let mut outputs = Vec::new();
        self.deeper(|| {
            self.meter.charge(4)?;
            let inner = match value {
                Value::Array(items) => {
                    let mut made = Vec::new();
                    for item in items {
                        let more = self.transformed(filter, scope, item)?;
                        self.meter.values(more.len())?;
                        made.extend(more);
                    }
                    self.built(Value::Array(made))?
                }
                Value::Object(fields) => {
                    let mut made = Map::new();
                    for (name, field) in fields {
                        // As in an update: the first output, or no field.
                        let mut more = self.transformed(filter, scope, field)?.into_iter();
                        if let Some(field) = more.next() {
                            self.meter.object(1)?;
                            self.meter.bytes(name.len())?;
                            made.insert(name.clone(), field);
                        }
                    }
                    self.built(Value::Object(made))?
                }
                Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => {
                    self.meter.charge(cost::of_value(value))?;
                    value.clone()
                }
            };
            outputs = self.collect(filter, scope, Item::owned(inner))?;
            Ok(())
        })?;
        Ok(outputs)
    }

    /// The events of a value: each leaf with its path, and the path of the last part of what ends.
    pub(super) fn to_stream(&self, input: Item<'_>, next: Next<'_>) -> Flow {
        let mut give = |event: Value| {
            let event = self.built(event)?;
            self.make(input.again(), event, next)
        };
        self.stream(&input.value, &mut Vec::new(), &mut give)
    }

    fn stream(&self, value: &Value, path: &mut Vec<Value>, give: &mut dyn FnMut(Value) -> Flow) -> Flow {
        self.meter.charge(4)?;
        let parts: Vec<(Value, &Value)> = match value {
            Value::Array(items) => items
                .iter()
                .enumerate()
                .map(|(n, item)| (n.into(), item))
                .collect(),
            Value::Object(fields) => {
                let names = fields.keys().map(|name| 32 + name.len());
                self.meter.bytes(names.sum())?;
                fields
                    .iter()
                    .map(|(name, field)| (Value::String(name.clone()), field))
                    .collect()
            }
            Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => Vec::new(),
        };
        self.meter.values(2 * parts.len())?;
        let event = |path: &[Value], leaf: Option<&Value>| {
            let each = path.iter().chain(leaf).map(cost::of_value);
            // Two lists, and a path that is copied value by value.
            self.meter.charge(24 + 2 * each.sum::<u64>())?;
            let mut event = vec![Value::Array(path.to_vec())];
            event.extend(leaf.cloned());
            Flow::Ok(Value::Array(event))
        };
        if parts.is_empty() {
            return give(event(path, Some(value))?);
        }
        let n_parts = parts.len();
        for (n, (part, value)) in parts.into_iter().enumerate() {
            path.push(part);
            self.deeper(|| self.stream(value, path, give))?;
            if n + 1 == n_parts {
                give(event(path, None)?)?;
            }
            path.pop();
        }
        Ok(())
    }

    /// The values that the events of a filter make.
    pub(super) fn of_stream(
        &self,
        filter: &'t Term,
        scope: &Scope<'t>,
        input: Item<'_>,
        next: Next<'_>,
    ) -> Flow {
        let mut made = Value::Null;
        self.run(filter, scope, input.plain(), &mut |event| {
            let cannot = |value: &Value| Stop::error(format!("Cannot use {} as an event", shown(value)));
            let Value::Array(parts) = &*event.value else {
                return Err(cannot(&event.value));
            };
            let path = match parts.first() {
                Some(Value::Array(path)) => path.as_slice(),
                Some(Value::Null) | None => &[],
                Some(other) => return Err(cannot(other)),
            };
            let is_done = match parts.get(1) {
                Some(leaf) if parts.len() == 2 => {
                    let leaf = self.own(std::borrow::Cow::Borrowed(leaf))?;
                    paths::set(&mut made, path, leaf, self.meter)?;
                    path.is_empty()
                }
                Some(_) | None => path.len() == 1,
            };
            match is_done {
                true => {
                    let done = self.built(std::mem::take(&mut made))?;
                    self.make(input.again(), done, next)
                }
                false => Ok(()),
            }
        })
    }

    /// One item of each list, in all combinations; the last list varies first.
    pub(super) fn combinations(&self, lists: &Value, input: Item<'_>, next: Next<'_>) -> Flow {
        let lists: &[Value] = match lists {
            Value::Array(lists) => lists,
            Value::Null => &[],
            other => return Err(Stop::error(format!("Cannot iterate over {}", shown(other)))),
        };
        let mut choices: Vec<Vec<&Value>> = Vec::new();
        for list in lists {
            let items: Vec<&Value> = match list {
                Value::Array(items) => items.iter().collect(),
                Value::Object(fields) => fields.values().collect(),
                other => return Err(Stop::error(format!("Cannot iterate over {}", shown(other)))),
            };
            self.meter.values(items.len() + 1)?;
            if items.is_empty() {
                return Ok(());
            }
            choices.push(items);
        }
        let mut chosen = vec![0; choices.len()];
        loop {
            let items = chosen.iter().zip(&choices).map(|(n, items)| items[*n]);
            self.meter
                .charge(4 + items.clone().map(cost::of_value).sum::<u64>())?;
            let combination = self.built(Value::Array(items.cloned().collect()))?;
            self.make(input.again(), combination, next)?;
            // The next one, as a number with a digit for each list.
            let mut n = choices.len();
            loop {
                let Some(before) = n.checked_sub(1) else {
                    return Ok(());
                };
                n = before;
                chosen[n] += 1;
                if chosen[n] < choices[n].len() {
                    break;
                }
                chosen[n] = 0;
            }
        }
    }

    /// Rows as columns; what is missing is null.
    pub(super) fn transpose(&self, value: &Value) -> Flow<Value> {
        let rows: Vec<&Value> = match value {
            Value::Array(rows) => rows.iter().collect(),
            Value::Object(rows) => rows.values().collect(),
            other => return Err(Stop::error(format!("Cannot iterate over {}", shown(other)))),
        };
        self.meter.values(2 * rows.len())?;
        let mut items: Vec<&[Value]> = Vec::new();
        for row in rows {
            items.push(match row {
                Value::Array(row) => row,
                Value::Null => &[],
                other => {
                    let kind = super::text::type_of(other);
                    return Err(Stop::error(format!("Cannot index {kind} with number")));
                }
            });
        }
        let n_columns = items.iter().map(|row| row.len()).max().unwrap_or_default();
        self.meter.values(n_columns.saturating_mul(items.len() + 1))?;
        self.meter.charge(cost::of_value(value))?;
        let column = |n: usize| {
            let cells = items.iter().map(|row| row.get(n).cloned().unwrap_or_default());
            cells.collect::<Value>()
        };
        self.built((0..n_columns).map(column).collect())
    }

    /// Where a value is in a sorted list; else how far it would be moved in, counted below zero.
    pub(super) fn search_sorted(&self, value: &Value, wanted: &Value) -> Flow<Value> {
        let Value::Array(items) = value else {
            return Err(Stop::error(format!("{} cannot be searched from", shown(value))));
        };
        let (mut from, mut to) = (0, items.len());
        while from < to {
            let middle = from.midpoint(to - 1);
            match wopr_schema::order(wanted, &items[middle], self.meter)? {
                Ordering::Equal => return Ok(middle.into()),
                Ordering::Less => to = middle,
                Ordering::Greater => from = middle + 1,
            }
        }
        let from = i64::try_from(from).unwrap_or(i64::MAX);
        Ok(Value::from(-1 - from))
    }
}
