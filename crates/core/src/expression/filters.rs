//! The filters, tests and functions of expressions.
//!
//! Most are minijinja's. Those that could make much of little are ours and refuse a text over 1 MiB or a sequence of
//! more than 10,000 items.

#![expect(
    clippy::needless_pass_by_value,
    reason = "minijinja hands the arguments of filters over by value"
)]

use std::{borrow::Cow, io};

use minijinja::{
    Environment, Error, ErrorKind, Output, State, Value, filters, tests,
    value::{Kwargs, Rest, ValueKind},
};

use super::MAX_OUTPUT;

/// Most items of a sequence that a filter takes or makes.
const MAX_ITEMS: usize = 10_000;
/// Most items of a range.
const MAX_RANGE: usize = 1_000;
/// What `map` may apply by name: filters whose results are no larger than what they are given.
const MAPPABLE: [&str; 11] = [
    "abs",
    "capitalize",
    "float",
    "int",
    "length",
    "lower",
    "round",
    "string",
    "title",
    "trim",
    "upper",
];

pub(super) fn add(environment: &mut Environment<'static>) {
    environment.add_filter("abs", filters::abs);
    environment.add_filter("attr", filters::attr);
    environment.add_filter("bool", filters::bool);
    environment.add_filter("capitalize", filters::capitalize);
    environment.add_filter("count", filters::length);
    environment.add_filter("d", filters::default);
    environment.add_filter("default", filters::default);
    environment.add_filter("dictsort", filters::dictsort);
    environment.add_filter("first", filters::first);
    environment.add_filter("float", filters::float);
    environment.add_filter("indent", indent);
    environment.add_filter("int", filters::int);
    environment.add_filter("items", filters::items);
    environment.add_filter("join", join);
    environment.add_filter("last", filters::last);
    environment.add_filter("length", filters::length);
    environment.add_filter("list", list);
    environment.add_filter("lower", filters::lower);
    environment.add_filter("map", map);
    environment.add_filter("max", filters::max);
    environment.add_filter("min", filters::min);
    environment.add_filter("number", number);
    environment.add_filter("reject", filters::reject);
    environment.add_filter("rejectattr", filters::rejectattr);
    environment.add_filter("replace", replace);
    environment.add_filter("reverse", reverse);
    environment.add_filter("round", filters::round);
    environment.add_filter("select", filters::select);
    environment.add_filter("selectattr", filters::selectattr);
    environment.add_filter("sort", sort);
    environment.add_filter("split", split);
    environment.add_filter("string", filters::string);
    environment.add_filter("sum", sum);
    environment.add_filter("title", filters::title);
    environment.add_filter("tojson", |value: &Value| json(value));
    environment.add_filter("trim", filters::trim);
    environment.add_filter("unique", unique);
    environment.add_filter("upper", filters::upper);

    environment.add_test("boolean", tests::is_boolean);
    environment.add_test("defined", tests::is_defined);
    environment.add_test("divisibleby", tests::is_divisibleby);
    environment.add_test("endingwith", tests::is_endingwith);
    for name in ["eq", "equalto", "=="] {
        environment.add_test(name, tests::is_eq);
    }
    environment.add_test("even", tests::is_even);
    environment.add_test("false", tests::is_false);
    environment.add_test("float", tests::is_float);
    for name in ["ge", ">="] {
        environment.add_test(name, tests::is_ge);
    }
    for name in ["gt", ">"] {
        environment.add_test(name, tests::is_gt);
    }
    environment.add_test("in", tests::is_in);
    environment.add_test("int", tests::is_integer);
    environment.add_test("integer", tests::is_integer);
    environment.add_test("iterable", tests::is_iterable);
    for name in ["le", "<="] {
        environment.add_test(name, tests::is_le);
    }
    environment.add_test("lower", tests::is_lower);
    for name in ["lt", "<"] {
        environment.add_test(name, tests::is_lt);
    }
    environment.add_test("mapping", tests::is_mapping);
    for name in ["ne", "!="] {
        environment.add_test(name, tests::is_ne);
    }
    environment.add_test("none", tests::is_none);
    environment.add_test("number", tests::is_number);
    environment.add_test("odd", tests::is_odd);
    environment.add_test("sameas", tests::is_sameas);
    environment.add_test("sequence", tests::is_sequence);
    environment.add_test("startingwith", tests::is_startingwith);
    environment.add_test("string", tests::is_string);
    environment.add_test("true", tests::is_true);
    environment.add_test("undefined", tests::is_undefined);
    environment.add_test("upper", tests::is_upper);

    environment.add_function("range", range);
}

/// Writes what a template prints: objects and arrays as JSON, the rest as text.
pub(super) fn print(out: &mut Output<'_>, _: &mut State<'_, '_>, value: &Value) -> Result<(), Error> {
    match value.kind() {
        ValueKind::Undefined => Ok(()),
        ValueKind::Seq | ValueKind::Map | ValueKind::Iterable => Ok(out.write_str(&json(value)?)?),
        _ => match value.as_str() {
            Some(text) => Ok(out.write_str(text)?),
            None => Ok(write!(out, "{value}")?),
        },
    }
}

/// About the bytes a value takes as text.
pub(super) fn size_of(value: &Value) -> usize {
    struct Counter(usize);
    impl io::Write for Counter {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            self.0 = self.0.saturating_add(bytes.len());
            Ok(bytes.len())
        }
        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }
    let mut counter = Counter(0);
    match serde_json::to_writer(&mut counter, value) {
        Ok(()) => counter.0,
        Err(_) => usize::MAX,
    }
}

fn json(value: &Value) -> Result<String, Error> {
    if size_of(value) > MAX_OUTPUT {
        return Err(long());
    }
    serde_json::to_string(value).map_err(|e| refuse(e.to_string()))
}

fn number(value: Value) -> Result<Value, Error> {
    if value.is_number() {
        Ok(value)
    } else {
        Err(refuse(format!("{} is not a number", value.kind())))
    }
}

fn replace(text: Cow<'_, str>, from: Cow<'_, str>, to: Cow<'_, str>) -> Result<String, Error> {
    let grown = text.matches(&*from).count().saturating_mul(to.len());
    if text.len().saturating_add(grown) > MAX_OUTPUT {
        return Err(long());
    }
    Ok(text.replace(&*from, &to))
}

fn join(value: &Value, between: Option<Cow<'_, str>>) -> Result<String, Error> {
    let mut out = String::new();
    for (i, item) in items(value)?.into_iter().enumerate() {
        if let (Some(between), true) = (&between, i > 0) {
            out.push_str(between);
        }
        match item.as_str() {
            Some(text) => out.push_str(text),
            None => out.push_str(&item.to_string()),
        }
        if out.len() > MAX_OUTPUT {
            return Err(long());
        }
    }
    Ok(out)
}

fn indent(
    text: Cow<'_, str>,
    width: Option<usize>,
    first: Option<bool>,
    blank: Option<bool>,
) -> Result<String, Error> {
    let width = width.unwrap_or(4);
    let lines = text.lines().count();
    if lines.saturating_mul(width).saturating_add(text.len()) > MAX_OUTPUT {
        return Err(long());
    }
    let margin = " ".repeat(width);
    let mut out = String::new();
    for (i, line) in text.lines().enumerate() {
        if i > 0 {
            out.push('\n');
        }
        let wanted = i > 0 || first.unwrap_or(false);
        if wanted && (!line.is_empty() || blank.unwrap_or(false)) {
            out.push_str(&margin);
        }
        out.push_str(line);
    }
    Ok(out)
}

fn list(value: &Value) -> Result<Vec<Value>, Error> {
    items(value)
}

fn reverse(value: &Value) -> Result<Value, Error> {
    if value.as_str().is_some() {
        return filters::reverse(value);
    }
    let mut items = items(value)?;
    items.reverse();
    Ok(Value::from(items))
}

fn sort(state: &State<'_, '_>, value: &Value, kwargs: Kwargs) -> Result<Value, Error> {
    filters::sort(state, Value::from(items(value)?), kwargs)
}

fn unique(state: &State<'_, '_>, value: &Value, kwargs: Kwargs) -> Result<Value, Error> {
    filters::unique(state, Value::from(items(value)?), kwargs)
}

fn sum(state: &State<'_, '_>, value: &Value, kwargs: Kwargs) -> Result<Value, Error> {
    if kwargs.has("start") {
        return Err(refuse("'start' is not offered".to_owned()));
    }
    filters::sum(state, Value::from(items(value)?), None, None, kwargs)
}

fn split(text: Cow<'_, str>, at: Option<Cow<'_, str>>) -> Result<Vec<Value>, Error> {
    let parts: Vec<_> = match &at {
        Some(at) => text.split(&**at).take(MAX_ITEMS + 1).map(Value::from).collect(),
        None => text
            .split_whitespace()
            .take(MAX_ITEMS + 1)
            .map(Value::from)
            .collect(),
    };
    if parts.len() > MAX_ITEMS {
        return Err(many());
    }
    Ok(parts)
}

fn map(
    state: &mut State<'_, '_>,
    value: &Value,
    names: Rest<String>,
    kwargs: Kwargs,
) -> Result<Vec<Value>, Error> {
    let attribute = kwargs.get::<Option<String>>("attribute")?;
    let default = kwargs.get::<Option<Value>>("default")?;
    kwargs.assert_all_used()?;
    let mut out = items(value)?;
    match (attribute, names.as_slice()) {
        (Some(path), []) => {
            for item in &mut out {
                for key in path.split('.') {
                    *item = item.get_attr(key)?;
                }
                if let (true, Some(default)) = (item.is_undefined(), &default) {
                    *item = default.clone();
                }
            }
        }
        (None, [name]) if MAPPABLE.contains(&name.as_str()) => {
            for item in &mut out {
                *item = state.apply_filter(name, std::slice::from_ref(item))?;
            }
        }
        _ => {
            let names = MAPPABLE.join(", ");
            return Err(refuse(format!("map takes attribute=… or one of {names}")));
        }
    }
    Ok(out)
}

fn range(from: i64, to: Option<i64>, step: Option<i64>) -> Result<Vec<i64>, Error> {
    let (from, to) = to.map_or((0, from), |to| (from, to));
    let step = step.unwrap_or(1);
    if step == 0 {
        return Err(refuse("the step of a range is not 0".to_owned()));
    }
    let mut out = Vec::new();
    let mut at = from;
    while (step > 0 && at < to) || (step < 0 && at > to) {
        if out.len() == MAX_RANGE {
            return Err(refuse(format!("a range has at most {MAX_RANGE} items")));
        }
        out.push(at);
        let Some(next) = at.checked_add(step) else { break };
        at = next;
    }
    Ok(out)
}

fn items(value: &Value) -> Result<Vec<Value>, Error> {
    let items: Vec<_> = value.try_iter()?.take(MAX_ITEMS + 1).collect();
    if items.len() > MAX_ITEMS {
        return Err(many());
    }
    Ok(items)
}

fn long() -> Error {
    refuse(format!("a text has at most {MAX_OUTPUT} bytes"))
}

fn many() -> Error {
    refuse(format!("a filter takes at most {MAX_ITEMS} items"))
}

fn refuse(text: String) -> Error {
    Error::new(ErrorKind::InvalidOperation, text)
}
