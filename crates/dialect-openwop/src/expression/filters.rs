//! The filters of expressions, each with the base cost of one use.
//!
//! The table is complete: a definition that names any other filter is refused. A filter is charged for the
//! items and bytes that it reads, and for its result before creating it.

use std::{cmp::Ordering, fmt, rc::Rc, vec};

use super::{
    ExpressionError,
    out::Out,
    value::{Seq, Text, Val, fail},
};
use crate::cost::Meter;

mod lists;
mod numbers;
mod texts;

use lists::{chosen, dictsort, extreme, first, last, map, pairs, reverse, sort, sum, unique};
use numbers::{abs, number, round, to_float, to_int};
use texts::{capitalized, changed, indent, join, replace, split, titled, trim};

type Result<T> = std::result::Result<T, ExpressionError>;

/// Maximum number of items that a filter reads or creates.
pub(super) const MAX_ITEMS: usize = 10_000;
/// Filters that `map` may apply by name: they take one value and return one of about the same size.
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

pub(super) struct Filter {
    pub(super) name: &'static str,
    pub(super) cost: u64,
    pub(super) run: for<'a, 'm, 'b> fn(Call<'a, 'm, 'b>) -> Result<Val<'a>>,
}

impl fmt::Debug for Filter {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name)
    }
}

impl Filter {
    pub(super) fn named(name: &str) -> Option<&'static Self> {
        FILTERS.iter().find(|filter| filter.name == name)
    }
}

/// One use of a filter or a test.
pub(super) struct Call<'a, 'm, 'b> {
    pub(super) meter: &'m Meter<'b>,
    pub(super) value: Val<'a>,
    pub(super) by_place: vec::IntoIter<Val<'a>>,
    pub(super) by_name: Vec<(&'a str, Val<'a>)>,
}

impl<'a> Call<'a, '_, '_> {
    /// The next positional argument, or else the named one.
    fn optional(&mut self, name: &str) -> Option<Val<'a>> {
        self.by_place.next().or_else(|| self.named(name))
    }

    /// An argument that can only be given by name.
    fn named(&mut self, name: &str) -> Option<Val<'a>> {
        let at = self.by_name.iter().position(|(known, _)| *known == name)?;
        Some(self.by_name.swap_remove(at).1)
    }

    pub(super) fn needed(&mut self, name: &str) -> Result<Val<'a>> {
        self.optional(name)
            .ok_or_else(|| fail(format!("the argument '{name}' is missing")))
    }

    pub(super) fn needed_text(&mut self, name: &str) -> Result<Text<'a>> {
        let value = self.needed(name)?;
        self.taken(&value)
    }

    fn optional_text(&mut self, name: &str) -> Result<Option<Text<'a>>> {
        match self.optional(name) {
            None | Some(Val::None | Val::Undefined) => Ok(None),
            Some(value) => self.taken(&value).map(Some),
        }
    }

    /// An optional text argument that can only be given by name.
    fn named_text(&mut self, name: &str) -> Result<Option<Text<'a>>> {
        match self.named(name) {
            None | Some(Val::None | Val::Undefined) => Ok(None),
            Some(value) => self.taken(&value).map(Some),
        }
    }

    /// A text argument, charged for reading it once, however short the filtered value is.
    fn taken(&self, value: &Val<'a>) -> Result<Text<'a>> {
        let text = text_of(value, self.meter)?;
        self.meter.bytes(text.as_str().len())?;
        Ok(text)
    }

    fn flag(&mut self, name: &str) -> Result<bool> {
        match self.named(name) {
            None | Some(Val::None | Val::Undefined) => Ok(false),
            Some(Val::Bool(flag)) => Ok(flag),
            Some(other) => Err(fail(format!("'{name}' is {}, not true or false", other.kind()))),
        }
    }

    fn optional_flag(&mut self, name: &str) -> Result<bool> {
        match self.by_place.next() {
            Some(Val::Bool(flag)) => Ok(flag),
            Some(Val::None | Val::Undefined) => Ok(false),
            Some(other) => Err(fail(format!("'{name}' is {}, not true or false", other.kind()))),
            None => self.flag(name),
        }
    }

    pub(super) fn text(&self) -> Result<Text<'a>> {
        text_of(&self.value, self.meter)
    }

    /// Refuses arguments that the filter has not read.
    pub(super) fn done(mut self) -> Result<()> {
        if self.by_place.next().is_some() {
            return Err(fail("there are too many arguments"));
        }
        match self.by_name.first() {
            Some((name, _)) => Err(fail(format!("the argument '{name}' is not known"))),
            None => Ok(()),
        }
    }

    /// The items of the value; fails if there are more than a filter may read.
    fn items(&self) -> Result<Vec<Val<'a>>> {
        let items = self.bounded()?;
        self.meter.values(2 * items.len())?;
        Ok(items.iter().collect())
    }

    fn bounded(&self) -> Result<Seq<'a>> {
        let length = match &self.value {
            Val::Seq(items) => items.len(),
            Val::Text(text) => text.as_str().chars().take(MAX_ITEMS + 1).count(),
            Val::Map(fields) => fields.len(self.meter)?,
            Val::Undefined | Val::None | Val::Bool(_) | Val::Int(_) | Val::Float(_) => 0,
        };
        if length > MAX_ITEMS {
            return Err(many());
        }
        self.value.items(self.meter)
    }
}

fn text_of<'a>(value: &Val<'a>, meter: &Meter<'_>) -> Result<Text<'a>> {
    match value {
        Val::Text(text) => Ok(text.clone()),
        other => {
            let mut out = Out::new(meter);
            out.print(other)?;
            Ok(Text::Made(Rc::new(out.finish()?)))
        }
    }
}

fn many() -> ExpressionError {
    fail(format!("a filter takes at most {MAX_ITEMS} items"))
}

macro_rules! filters {
    ($($name:literal, $cost:literal, $run:expr;)*) => {
        pub(super) const FILTERS: &[Filter] = &[$(Filter { name: $name, cost: $cost, run: $run }),*];
    };
}

filters! {
    "abs", 1, abs;
    "attr", 2, attr;
    "bool", 1, |call| { let is = call.value.is_true(call.meter)?; call.done()?; Ok(Val::Bool(is)) };
    "capitalize", 2, |call| changed(call, capitalized);
    "count", 2, length;
    "d", 1, default;
    "default", 1, default;
    "dictsort", 8, dictsort;
    "first", 2, first;
    "float", 4, to_float;
    "indent", 4, indent;
    "int", 4, to_int;
    "items", 4, pairs;
    "join", 4, join;
    "last", 2, last;
    "length", 2, length;
    "list", 2, |call| { let items = call.items()?; call.done()?; Ok(Val::list(items)) };
    "lower", 2, |call| changed(call, str::to_lowercase);
    "map", 4, map;
    "max", 2, |call| extreme(call, Ordering::is_ge);
    "min", 2, |call| extreme(call, Ordering::is_lt);
    "number", 1, number;
    "reject", 4, |call| chosen(call, false, false);
    "rejectattr", 4, |call| chosen(call, true, false);
    "replace", 4, replace;
    "reverse", 2, reverse;
    "round", 16, round;
    "select", 4, |call| chosen(call, false, true);
    "selectattr", 4, |call| chosen(call, true, true);
    "sort", 8, sort;
    "split", 4, split;
    "string", 2, |call| { let text = call.text()?; call.done()?; Ok(Val::Text(text)) };
    "sum", 2, sum;
    "title", 2, |call| changed(call, titled);
    "tojson", 4, |call| {
        let mut out = Out::new(call.meter);
        out.json(&call.value)?;
        call.done()?;
        out.finish().map(Val::text)
    };
    "trim", 2, trim;
    "unique", 8, unique;
    "upper", 2, |call| changed(call, str::to_uppercase);
}

fn attr<'a>(mut call: Call<'a, '_, '_>) -> Result<Val<'a>> {
    let key = call.needed("name")?;
    let found = call.value.item(&key, call.meter)?;
    call.done()?;
    Ok(found)
}

fn length<'a>(call: Call<'a, '_, '_>) -> Result<Val<'a>> {
    let length = match &call.value {
        Val::Text(text) => {
            call.meter.bytes(text.as_str().len())?;
            text.as_str().chars().count()
        }
        Val::Seq(items) => items.len(),
        Val::Map(fields) => fields.len(call.meter)?,
        other => {
            let kind = other.kind();
            return Err(fail(format!("cannot calculate length of value of type {kind}")));
        }
    };
    call.done()?;
    Ok(Val::count(length))
}

fn default<'a>(mut call: Call<'a, '_, '_>) -> Result<Val<'a>> {
    let other = call
        .optional("default_value")
        .unwrap_or(Val::Text(Text::Lent("")));
    let meter = call.meter;
    let is_lax = match call.optional("boolean") {
        Some(lax) => lax.is_true(meter)?,
        None => false,
    };
    let value = call.value.clone();
    call.done()?;
    Ok(if value.is_undefined() || (is_lax && !value.is_true(meter)?) {
        other
    } else {
        value
    })
}
