//! Validates a value against a schema and charges for each step.

use std::{
    cell::RefCell,
    cmp::Ordering,
    collections::{BTreeSet, HashMap},
    fmt,
};

use serde_json::{Map, Value};

use super::{Bound, Kind, Rule, Schema, Size};
use crate::{
    compare_numbers,
    cost::{Exhausted, Meter, merge_sort},
    pattern::{Pattern, Search},
    values::{equal, order},
    whole,
};

/// Maximum nesting of subschemas during validation; a value nests at most 64 levels.
const MAX_DEPTH: usize = 200;
/// Cost of a subschema that the value breaks.
const BROKEN: u64 = 16;
/// Maximum length of the part of a value that a message shows, in bytes.
const MAX_SHOWN: usize = 80;

/// Why a value did not validate.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Invalid {
    Broken {
        /// JSON pointer of the value.
        at: String,
        keyword: &'static str,
        message: String,
    },
    /// The validation exceeds its work limit.
    TooMuchWork,
}

impl fmt::Display for Invalid {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Broken { message, .. } => f.write_str(message),
            Self::TooMuchWork => f.write_str("checking it against the schema is more work than allowed"),
        }
    }
}

impl From<Exhausted> for Invalid {
    fn from(Exhausted: Exhausted) -> Self {
        Self::TooMuchWork
    }
}

type Result<T> = std::result::Result<T, Invalid>;

pub(super) fn validate(schema: &Schema, value: &Value, meter: &Meter<'_>) -> Result<()> {
    let checker = Checker {
        schema,
        meter,
        searches: RefCell::default(),
    };
    checker.check(schema.root, value, 0, &mut Marks::default())
}

/// Subschemas of properties by name, by pattern, and for all others.
type Properties<'s> = (&'s [(String, usize)], &'s [(Pattern, usize)], Option<usize>);

/// The parts of a value that subschemas have evaluated.
#[derive(Debug, Default)]
struct Marks<'v> {
    fields: BTreeSet<&'v str>,
    /// All items before this index.
    items: usize,
    /// Further items.
    others: BTreeSet<usize>,
}

impl<'v> Marks<'v> {
    fn add(&mut self, other: Self, meter: &Meter<'_>) -> Result<()> {
        meter.values(2 * (other.fields.len() + other.others.len()))?;
        self.fields.extend(other.fields);
        self.items = self.items.max(other.items);
        self.others.extend(other.others);
        Ok(())
    }
}

struct Checker<'s, 'm, 'b> {
    schema: &'s Schema,
    meter: &'m Meter<'b>,
    /// The reusable search state of each pattern.
    searches: RefCell<HashMap<*const Pattern, Search>>,
}

impl Checker<'_, '_, '_> {
    fn finds(&self, pattern: &Pattern, text: &str) -> Result<bool> {
        let mut searches = self.searches.borrow_mut();
        let search = searches.entry(pattern).or_default();
        Ok(pattern.search(text, search, self.meter)?)
    }

    fn check<'v>(&self, at: usize, value: &'v Value, depth: usize, marks: &mut Marks<'v>) -> Result<()> {
        self.meter.charge(2)?;
        if depth > MAX_DEPTH {
            return Err(Invalid::TooMuchWork);
        }
        for rule in &self.schema.subschemas[at] {
            self.meter.charge(1)?;
            self.rule(rule, value, depth + 1, marks)?;
        }
        Ok(())
    }

    /// Whether a subschema holds; its marks count only in that case.
    fn holds<'v>(&self, at: usize, value: &'v Value, depth: usize, marks: &mut Marks<'v>) -> Result<bool> {
        let mut own = Marks::default();
        match self.check(at, value, depth, &mut own) {
            Ok(()) => {
                if self.schema.marks {
                    marks.add(own, self.meter)?;
                }
                Ok(true)
            }
            Err(Invalid::Broken { .. }) => {
                self.meter.charge(BROKEN)?;
                Ok(false)
            }
            Err(Invalid::TooMuchWork) => Err(Invalid::TooMuchWork),
        }
    }

    fn rule<'v>(&self, rule: &Rule, value: &'v Value, depth: usize, marks: &mut Marks<'v>) -> Result<()> {
        match rule {
            Rule::Never => Err(broken("false", "no value is valid here")),
            Rule::Type(kinds) => {
                if kinds.iter().any(|kind| kind.admits(value)) {
                    return Ok(());
                }
                let names: Vec<_> = kinds
                    .iter()
                    .map(|kind| format!("\"{}\"", kind.as_str()))
                    .collect();
                let types = if names.len() == 1 { "type" } else { "types" };
                let message = format!("{} is not of {types} {}", shown(value), names.join(", "));
                Err(broken("type", message))
            }
            Rule::Enum(values) => {
                for allowed in values {
                    if self.equal(value, allowed)? {
                        return Ok(());
                    }
                }
                let allowed: Vec<_> = values.iter().take(5).map(shown).collect();
                let message = format!("{} is not one of {}", shown(value), allowed.join(", "));
                Err(broken("enum", message))
            }
            Rule::Const(allowed) => match self.equal(value, allowed)? {
                true => Ok(()),
                false => Err(broken("const", format!("{} was expected", shown(allowed)))),
            },
            Rule::MultipleOf(of) => match !value.is_number() || is_multiple(value, of) {
                true => Ok(()),
                false => Err(broken("multipleOf", format!("{value} is not a multiple of {of}"))),
            },
            Rule::Bound(bound, than) => bounded(*bound, than, value),
            Rule::Length(size, n) => {
                let Value::String(text) = value else { return Ok(()) };
                self.meter.bytes(text.len())?;
                let length = text.chars().count();
                let (keyword, than) = size.words(["minLength", "maxLength"], ["shorter", "longer"]);
                size.check(length, *n)
                    .then_some(())
                    .ok_or_else(|| broken(keyword, format!("{} is {than} than {n} characters", shown(value))))
            }
            Rule::Pattern(pattern) => match value {
                Value::String(text) if !self.finds(pattern, text)? => Err(broken(
                    "pattern",
                    format!("{} does not match \"{}\"", shown(value), pattern.as_str()),
                )),
                _ => Ok(()),
            },
            Rule::Items(size, n) => {
                let Value::Array(items) = value else { return Ok(()) };
                let (keyword, than) = size.words(["minItems", "maxItems"], ["less", "more"]);
                let message = || broken(keyword, format!("it has {than} than {n} items"));
                size.check(items.len(), *n).then_some(()).ok_or_else(message)
            }
            Rule::Properties(size, n) => {
                let Value::Object(fields) = value else {
                    return Ok(());
                };
                let (keyword, than) = size.words(["minProperties", "maxProperties"], ["less", "more"]);
                let message = || broken(keyword, format!("it has {than} than {n} properties"));
                size.check(fields.len(), *n).then_some(()).ok_or_else(message)
            }
            Rule::UniqueItems => self.unique(value),
            Rule::Required(names) => {
                let Value::Object(fields) = value else {
                    return Ok(());
                };
                self.required(fields, names, "required")
            }
            Rule::DependentRequired(lists) => {
                let Value::Object(fields) = value else {
                    return Ok(());
                };
                for (name, names) in lists {
                    self.meter.charge(2)?;
                    if fields.contains_key(name) {
                        self.required(fields, names, "dependentRequired")?;
                    }
                }
                Ok(())
            }
            Rule::ItemsAre { first, rest } => self.items(first, *rest, value, depth, marks),
            Rule::Contains { schema, least, most } => {
                self.contains(*schema, (*least, *most), value, depth, marks)
            }
            Rule::PropertiesAre {
                named,
                patterns,
                rest,
            } => self.properties((named, patterns, *rest), value, depth, marks),
            Rule::PropertyNames(schema) => {
                let Value::Object(fields) = value else {
                    return Ok(());
                };
                for name in fields.keys() {
                    self.meter.bytes(2 * name.len())?;
                    let name = Value::String(name.clone());
                    self.check(*schema, &name, depth, &mut Marks::default())?;
                }
                Ok(())
            }
            Rule::DependentSchemas(schemas) => {
                let Value::Object(fields) = value else {
                    return Ok(());
                };
                for (name, schema) in schemas {
                    self.meter.charge(2)?;
                    if fields.contains_key(name) {
                        self.check(*schema, value, depth, marks)?;
                    }
                }
                Ok(())
            }
            Rule::Ref(schema) => self.check(*schema, value, depth, marks),
            Rule::AllOf(schemas) => {
                for schema in schemas {
                    self.check(*schema, value, depth, marks)?;
                }
                Ok(())
            }
            Rule::AnyOf(schemas) => {
                let mut any = false;
                for schema in schemas {
                    any |= self.holds(*schema, value, depth, marks)?;
                    // The remaining ones may still mark something.
                    if any && !self.schema.marks {
                        break;
                    }
                }
                let message = "is not valid under any of the schemas listed in the 'anyOf' keyword";
                any.then_some(())
                    .ok_or_else(|| broken("anyOf", format!("{} {message}", shown(value))))
            }
            Rule::OneOf(schemas) => {
                let mut n = 0;
                for schema in schemas {
                    n += usize::from(self.holds(*schema, value, depth, marks)?);
                    if n > 1 {
                        break;
                    }
                }
                let message = match n {
                    1 => return Ok(()),
                    0 => "is not valid under any of the schemas listed in the 'oneOf' keyword",
                    _ => "is valid under more than one of the schemas listed in the 'oneOf' keyword",
                };
                Err(broken("oneOf", format!("{} {message}", shown(value))))
            }
            Rule::Not(schema) => match self.holds(*schema, value, depth, &mut Marks::default())? {
                false => Ok(()),
                true => Err(broken("not", format!("{} is what 'not' refuses", shown(value)))),
            },
            Rule::If {
                test,
                then,
                otherwise,
            } => {
                let next = if self.holds(*test, value, depth, marks)? {
                    then
                } else {
                    otherwise
                };
                next.map_or(Ok(()), |schema| self.check(schema, value, depth, marks))
            }
            Rule::UnevaluatedItems(schema) => {
                let Value::Array(items) = value else { return Ok(()) };
                for (n, item) in items.iter().enumerate().skip(marks.items) {
                    self.meter.charge(1)?;
                    if !marks.others.contains(&n) {
                        self.child(*schema, item, depth)
                            .map_err(|error| error.below(&n.to_string()))?;
                    }
                }
                marks.items = items.len();
                Ok(())
            }
            Rule::UnevaluatedProperties(schema) => {
                let Value::Object(fields) = value else {
                    return Ok(());
                };
                for (name, field) in fields {
                    self.meter.charge(2)?;
                    if !marks.fields.contains(name.as_str()) {
                        self.child(*schema, field, depth)
                            .map_err(|error| error.below(name))?;
                        marks.fields.insert(name);
                    }
                }
                Ok(())
            }
        }
    }

    /// Validates a part of a value; the marks inside that part are separate.
    fn child(&self, schema: usize, value: &Value, depth: usize) -> Result<()> {
        self.check(schema, value, depth, &mut Marks::default())
    }

    fn equal(&self, value: &Value, other: &Value) -> Result<bool> {
        Ok(equal(value, other, self.meter)?)
    }

    fn required(&self, fields: &Map<String, Value>, names: &[String], keyword: &'static str) -> Result<()> {
        for name in names {
            self.meter.charge(2)?;
            if !fields.contains_key(name) {
                let name = shown(&Value::String(name.clone()));
                return Err(broken(keyword, format!("{name} is a required property")));
            }
        }
        Ok(())
    }

    fn unique(&self, value: &Value) -> Result<()> {
        let Value::Array(items) = value else { return Ok(()) };
        self.meter.values(items.len())?;
        let compare = |a: usize, b: usize| order(&items[a], &items[b], self.meter);
        let order = merge_sort(items.len(), compare)?;
        for pair in order.windows(2) {
            if let [a, b] = pair
                && compare(*a, *b)? == Ordering::Equal
            {
                return Err(broken("uniqueItems", "it has items that are equal"));
            }
        }
        Ok(())
    }

    fn items<'v>(
        &self,
        first: &[usize],
        rest: Option<usize>,
        value: &'v Value,
        depth: usize,
        marks: &mut Marks<'v>,
    ) -> Result<()> {
        let Value::Array(items) = value else { return Ok(()) };
        for (n, item) in items.iter().enumerate() {
            self.meter.charge(1)?;
            let Some(schema) = first.get(n).copied().or(rest) else {
                break;
            };
            self.child(schema, item, depth)
                .map_err(|error| error.below(&n.to_string()))?;
            marks.items = marks.items.max(n + 1);
        }
        Ok(())
    }

    fn contains<'v>(
        &self,
        schema: usize,
        (least, most): (usize, usize),
        value: &'v Value,
        depth: usize,
        marks: &mut Marks<'v>,
    ) -> Result<()> {
        let Value::Array(items) = value else { return Ok(()) };
        let mut n_found = 0;
        for (n, item) in items.iter().enumerate() {
            if self.holds(schema, item, depth, &mut Marks::default())? {
                n_found += 1;
                if self.schema.marks {
                    self.meter.values(2)?;
                    marks.others.insert(n);
                }
            }
        }
        if (least..=most).contains(&n_found) {
            return Ok(());
        }
        Err(broken(
            "contains",
            format!("it has {n_found} items that 'contains' asks for"),
        ))
    }

    fn properties<'v>(
        &self,
        (named, patterns, rest): Properties<'_>,
        value: &'v Value,
        depth: usize,
        marks: &mut Marks<'v>,
    ) -> Result<()> {
        let Value::Object(fields) = value else {
            return Ok(());
        };
        for (name, field) in fields {
            self.meter.charge(2 + name.len() as u64 / 16)?;
            // Sorted by name, as in the document.
            let own = named.binary_search_by(|(known, _)| known.as_str().cmp(name)).ok();
            let mut schemas: Vec<_> = own.map(|at| named[at].1).into_iter().collect();
            for (pattern, schema) in patterns {
                if self.finds(pattern, name)? {
                    schemas.push(*schema);
                }
            }
            if schemas.is_empty() {
                schemas.extend(rest);
            }
            for schema in &schemas {
                self.child(*schema, field, depth).map_err(|error| match error {
                    Invalid::Broken { keyword: "false", .. } if Some(*schema) == rest => {
                        let name = &name[..name.floor_char_boundary(MAX_SHOWN)];
                        let message =
                            format!("Additional properties are not allowed ('{name}' was unexpected)");
                        broken("additionalProperties", message)
                    }
                    error => error.below(name),
                })?;
            }
            if self.schema.marks && !schemas.is_empty() {
                self.meter.values(2)?;
                marks.fields.insert(name);
            }
        }
        Ok(())
    }
}

impl Invalid {
    /// The same error, seen from the enclosing value.
    fn below(self, name: &str) -> Self {
        match self {
            Self::Broken { at, keyword, message } => {
                let name = &name[..name.floor_char_boundary(MAX_SHOWN)];
                let name = name.replace('~', "~0").replace('/', "~1");
                Self::Broken {
                    at: format!("/{name}{at}"),
                    keyword,
                    message,
                }
            }
            Self::TooMuchWork => Self::TooMuchWork,
        }
    }
}

impl Kind {
    const fn as_str(self) -> &'static str {
        match self {
            Self::Null => "null",
            Self::Boolean => "boolean",
            Self::Object => "object",
            Self::Array => "array",
            Self::Number => "number",
            Self::String => "string",
            Self::Integer => "integer",
        }
    }

    fn admits(self, value: &Value) -> bool {
        match self {
            Self::Null => value.is_null(),
            Self::Boolean => value.is_boolean(),
            Self::Object => value.is_object(),
            Self::Array => value.is_array(),
            Self::Number => value.is_number(),
            Self::String => value.is_string(),
            Self::Integer => {
                value.is_i64() || value.is_u64() || value.as_f64().is_some_and(|n| n.fract() == 0.0)
            }
        }
    }
}

impl Size {
    const fn check(self, n: usize, bound: usize) -> bool {
        match self {
            Self::AtLeast => n >= bound,
            Self::AtMost => n <= bound,
        }
    }

    const fn words(
        self,
        keywords: [&'static str; 2],
        words: [&'static str; 2],
    ) -> (&'static str, &'static str) {
        match self {
            Self::AtLeast => (keywords[0], words[0]),
            Self::AtMost => (keywords[1], words[1]),
        }
    }
}

fn bounded(bound: Bound, than: &Value, value: &Value) -> Result<()> {
    let (Value::Number(number), Value::Number(limit)) = (value, than) else {
        return Ok(());
    };
    let (keyword, holds, words): (_, fn(Ordering) -> bool, _) = match bound {
        Bound::Minimum => ("minimum", Ordering::is_ge, "less than the minimum of"),
        Bound::Maximum => ("maximum", Ordering::is_le, "greater than the maximum of"),
        Bound::ExclusiveMinimum => (
            "exclusiveMinimum",
            Ordering::is_gt,
            "less than or equal to the minimum of",
        ),
        Bound::ExclusiveMaximum => (
            "exclusiveMaximum",
            Ordering::is_lt,
            "greater than or equal to the maximum of",
        ),
    };
    if holds(compare_numbers(number, limit)) {
        return Ok(());
    }
    Err(broken(keyword, format!("{value} is {words} {than}")))
}

fn is_multiple(value: &Value, of: &Value) -> bool {
    if let (Some(value), Some(of)) = (whole_or_negative(value), whole_or_negative(of)) {
        return of != 0 && value % of == 0;
    }
    let (Some(value), Some(of)) = (value.as_f64(), of.as_f64()) else {
        return false;
    };
    let quotient = value / of;
    // Compares as decimals: 0.3 is a multiple of 0.1.
    quotient.is_finite() && (quotient - quotient.round()).abs() <= 1.0e-12 * quotient.abs().max(1.0)
}

fn whole_or_negative(value: &Value) -> Option<i128> {
    value
        .as_i64()
        .map(i128::from)
        .or_else(|| whole(value).map(i128::from))
}

fn broken(keyword: &'static str, message: impl Into<String>) -> Invalid {
    Invalid::Broken {
        at: String::new(),
        keyword,
        message: message.into(),
    }
}

/// The beginning of a value, for messages.
fn shown(value: &Value) -> String {
    match value {
        Value::Null | Value::Bool(_) | Value::Number(_) => value.to_string(),
        Value::String(text) => {
            let clipped = &text[..text.floor_char_boundary(MAX_SHOWN)];
            let more = if clipped.len() < text.len() { "…" } else { "" };
            format!("{}{more}", Value::String(clipped.to_owned()))
        }
        Value::Array(items) => format!("a list of {} items", items.len()),
        Value::Object(fields) => format!("an object of {} fields", fields.len()),
    }
}
