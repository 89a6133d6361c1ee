//! The tests of expressions (`is …`), each with the base cost of one use.

use std::fmt;

use super::{
    ExpressionError,
    eval::{contains, divides},
    filters::Call,
    value::{Seq, Text, Val},
};

type Result<T> = std::result::Result<T, ExpressionError>;

pub(super) struct Test {
    pub(super) name: &'static str,
    pub(super) cost: u64,
    pub(super) run: for<'a, 'm, 'b> fn(Call<'a, 'm, 'b>) -> Result<bool>,
}

impl fmt::Debug for Test {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name)
    }
}

impl Test {
    pub(super) fn named(name: &str) -> Option<&'static Self> {
        TESTS.iter().find(|test| test.name == name)
    }
}

macro_rules! tests {
    ($($name:literal, $cost:literal, $run:expr;)*) => {
        pub(super) const TESTS: &[Test] = &[$(Test { name: $name, cost: $cost, run: $run }),*];
    };
}

tests! {
    "boolean", 1, |call| alone(call, |value| matches!(value, Val::Bool(_)));
    "defined", 1, |call| alone(call, |value| !value.is_undefined());
    "divisibleby", 2, |call| pair(call, |value, by| Ok(divides(value, by)));
    "endingwith", 1, |call| texts(call, |text, end| text.ends_with(end));
    "eq", 1, equals;
    "equalto", 1, equals;
    "even", 1, |call| alone(call, |value| value.as_int().is_some_and(|n| n % 2 == 0));
    "false", 1, |call| alone(call, |value| matches!(value, Val::Bool(false)));
    "float", 1, |call| alone(call, |value| matches!(value, Val::Float(_)));
    "ge", 1, |call| ordered(call, std::cmp::Ordering::is_ge);
    "gt", 1, |call| ordered(call, std::cmp::Ordering::is_gt);
    "in", 1, |call| {
        let meter = call.meter;
        pair(call, |value, container| match container {
            Val::None | Val::Bool(_) | Val::Int(_) | Val::Float(_) => Ok(false),
            Val::Undefined | Val::Text(_) | Val::Seq(_) | Val::Map(_) => contains(container, value, meter),
        })
    };
    "int", 1, |call| alone(call, |value| matches!(value, Val::Int(_)));
    "integer", 1, |call| alone(call, |value| matches!(value, Val::Int(_)));
    "iterable", 1, |call| alone(call, |value| !matches!(value, Val::Bool(_) | Val::Int(_) | Val::Float(_)));
    "le", 1, |call| ordered(call, std::cmp::Ordering::is_le);
    "lower", 1, |call| cased(call, char::is_lowercase, char::is_uppercase);
    "lt", 1, |call| ordered(call, std::cmp::Ordering::is_lt);
    "mapping", 1, |call| alone(call, |value| matches!(value, Val::Map(_)));
    "ne", 1, |call| equals(call).map(|equal| !equal);
    "none", 1, |call| alone(call, |value| matches!(value, Val::None));
    "number", 1, |call| alone(call, |value| matches!(value, Val::Int(_) | Val::Float(_)));
    "odd", 1, |call| alone(call, |value| value.as_int().is_some_and(|n| n % 2 != 0));
    "sameas", 1, same;
    "sequence", 1, |call| alone(call, |value| matches!(value, Val::Seq(_) | Val::Undefined));
    "startingwith", 1, |call| texts(call, |text, start| text.starts_with(start));
    "string", 1, |call| alone(call, |value| matches!(value, Val::Text(_)));
    "true", 1, |call| alone(call, |value| matches!(value, Val::Bool(true)));
    "undefined", 1, |call| alone(call, |value| matches!(value, Val::Undefined));
    "upper", 1, |call| cased(call, char::is_uppercase, char::is_lowercase);
}

fn alone(call: Call<'_, '_, '_>, holds: impl FnOnce(&Val<'_>) -> bool) -> Result<bool> {
    let value = call.value.clone();
    call.done()?;
    Ok(holds(&value))
}

fn pair<'a>(
    mut call: Call<'a, '_, '_>,
    holds: impl FnOnce(&Val<'a>, &Val<'a>) -> Result<bool>,
) -> Result<bool> {
    let value = call.value.clone();
    let other = call.needed("other")?;
    call.done()?;
    holds(&value, &other)
}

fn equals(call: Call<'_, '_, '_>) -> Result<bool> {
    let meter = call.meter;
    pair(call, |value, other| value.equals(other, meter))
}

fn ordered(call: Call<'_, '_, '_>, holds: impl FnOnce(std::cmp::Ordering) -> bool) -> Result<bool> {
    let meter = call.meter;
    pair(call, |value, other| Ok(holds(value.order(other, meter)?)))
}

fn texts(mut call: Call<'_, '_, '_>, holds: impl FnOnce(&str, &str) -> bool) -> Result<bool> {
    let text = call.text()?;
    let other = call.needed_text("other")?;
    call.meter.bytes(other.as_str().len().min(text.as_str().len()))?;
    call.done()?;
    Ok(holds(text.as_str(), other.as_str()))
}

fn cased(call: Call<'_, '_, '_>, is: fn(char) -> bool, is_not: fn(char) -> bool) -> Result<bool> {
    let (value, meter) = (call.value.clone(), call.meter);
    call.done()?;
    let Val::Text(text) = value else { return Ok(false) };
    meter.charge(text.as_str().len() as u64)?;
    let mut any = false;
    for c in text.as_str().chars() {
        // A cased character that is not in this case; title case is an example.
        let other = || !is(c) && (c.to_lowercase().any(|to| to != c) || c.to_uppercase().any(|to| to != c));
        if is_not(c) || other() {
            return Ok(false);
        }
        any |= is(c);
    }
    Ok(any)
}

/// Whether two values are identical: of the same kind and equal; lists and objects must be the same instance.
fn same(call: Call<'_, '_, '_>) -> Result<bool> {
    let meter = call.meter;
    pair(call, |value, other| {
        Ok(match (value, other) {
            (Val::Seq(Seq::Lent(a)), Val::Seq(Seq::Lent(b))) => std::ptr::eq(*a, *b),
            (Val::Seq(Seq::Made(a)), Val::Seq(Seq::Made(b))) => std::rc::Rc::ptr_eq(a, b),
            (Val::Map(super::value::Map::Lent(a)), Val::Map(super::value::Map::Lent(b))) => {
                std::ptr::eq(*a, *b)
            }
            (Val::Seq(_) | Val::Map(_), _) | (_, Val::Seq(_) | Val::Map(_)) => false,
            (Val::Int(_), Val::Float(_)) | (Val::Float(_), Val::Int(_)) => false,
            (Val::Text(Text::Lent(a)), Val::Text(Text::Lent(b))) if std::ptr::eq(*a, *b) => true,
            _ => value.kind() == other.kind() && value.equals(other, meter)?,
        })
    })
}
