//! Paths: a filter follows their parts, and everything that a value contains.
#![expect(
    clippy::needless_pass_by_value,
    reason = "a filter is given its input: some take it over, and all are called alike"
)]

use std::borrow::Cow;

use serde_json::Value;
use wopr_kernel::cost;

use super::{
    binding::Scope,
    machine::{Flow, Item, Machine, Next, STEP, Stop},
    paths,
    term::{Hop, Part, Term},
    text,
};

impl<'t> Machine<'t, '_> {
    /// Follows the parts of a path. What they name is read from the path's own input.
    pub(super) fn walk(
        &self,
        hops: &'t [Hop],
        scope: &Scope<'t>,
        input: &Item<'_>,
        item: Item<'_>,
        next: Next<'_>,
    ) -> Flow {
        let Some((hop, rest)) = hops.split_first() else {
            return next(item);
        };
        match &hop.part {
            Part::Each => self.deeper(|| {
                self.each(hop.is_optional, item, &mut |item| {
                    self.walk(rest, scope, input, item, next)
                })
            }),
            Part::Index(index) => self.run(index, scope, input.plain(), &mut |index| {
                self.meter.charge(STEP + paths::of_name(&index.value))?;
                let trail = paths::hop(item.trail.as_ref(), &index.value, self.meter)?;
                match paths::index(Cow::Borrowed(&*item.value), &index.value) {
                    Ok(value) => self.walk(rest, scope, input, Item { value, trail }, next),
                    Err(Stop::Error(_)) if hop.is_optional => Ok(()),
                    Err(stop) => Err(stop),
                }
            }),
            Part::Slice(bounds) => self.deeper(|| {
                let (from, to) = &**bounds;
                let bound = |term: &'t Option<Term>| match term {
                    None => Ok(vec![Value::Null]),
                    Some(term) => self.collect(term, scope, input.plain()),
                };
                for to in bound(to)? {
                    for from in bound(from)? {
                        self.cut((&from, &to), hop.is_optional, &item, &mut |item| {
                            self.walk(rest, scope, input, item, next)
                        })?;
                    }
                }
                Ok(())
            }),
        }
    }

    /// The part of a value between two bounds.
    fn cut(&self, (from, to): (&Value, &Value), is_optional: bool, item: &Item<'_>, next: Next<'_>) -> Flow {
        self.meter.charge(cost::of_value(from) + cost::of_value(to))?;
        let range = serde_json::json!({ "start": from, "end": to });
        let trail = paths::hop(item.trail.as_ref(), &range, self.meter)?;
        match paths::slice(&item.value, from, to, self.meter) {
            Ok(value) => next(Item {
                value: Cow::Owned(value),
                trail,
            }),
            Err(Stop::Error(_)) if is_optional => Ok(()),
            Err(stop) => Err(stop),
        }
    }

    /// The items of a list, or the values of an object.
    pub(super) fn each(&self, is_optional: bool, item: Item<'_>, next: Next<'_>) -> Flow {
        match &*item.value {
            Value::Array(items) => {
                for (n, value) in items.iter().enumerate() {
                    self.meter.charge(1)?;
                    let trail = paths::hop(item.trail.as_ref(), &Value::from(n), self.meter)?;
                    next(Item {
                        value: Cow::Borrowed(value),
                        trail,
                    })?;
                }
                Ok(())
            }
            Value::Object(fields) => {
                for (name, value) in fields {
                    self.meter.charge(1)?;
                    let name = item
                        .trail
                        .as_ref()
                        .map_or(Value::Null, |_| Value::String(name.clone()));
                    let trail = paths::hop(item.trail.as_ref(), &name, self.meter)?;
                    next(Item {
                        value: Cow::Borrowed(value),
                        trail,
                    })?;
                }
                Ok(())
            }
            Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) if is_optional => Ok(()),
            other => Err(Stop::error(format!("Cannot iterate over {}", text::shown(other)))),
        }
    }

    /// The value, and everything in it.
    pub(super) fn descend(&self, item: Item<'_>, next: Next<'_>) -> Flow {
        self.meter.charge(STEP)?;
        self.deeper(|| {
            next(item.again())?;
            self.each(true, item, &mut |item| self.descend(item, next))
        })
    }
}
