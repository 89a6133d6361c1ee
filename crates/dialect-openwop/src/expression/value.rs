//! The values of expressions: JSON borrowed from the run, and values created during evaluation.
//!
//! Reading a run's state copies nothing. Creating, comparing and printing values is charged in advance.

use std::{borrow::Cow, cmp::Ordering, collections::BTreeMap, fmt, rc::Rc};

use serde_json::{Map as JsonMap, Number, Value};
use wopr_schema::compare_mixed;

use super::{ExpressionError, MAX_OUTPUT};
use crate::cost::{self, Exhausted, MAX_DEPTH, Meter};

type Result<T> = std::result::Result<T, ExpressionError>;

/// Resolves names during an evaluation.
pub(crate) trait Scope<'a> {
    fn get(&self, name: &str) -> Option<Val<'a>>;
}

/// An object whose fields are computed on demand.
pub(crate) trait Fields<'a>: fmt::Debug {
    fn get(&self, name: &str) -> Option<Val<'a>>;
    /// An upper bound for the number of fields, plus one for each 32 bytes of their names.
    fn most(&self) -> usize;
    fn all(&self) -> BTreeMap<Cow<'a, str>, Val<'a>>;
}

#[derive(Debug, Clone)]
pub(crate) enum Val<'a> {
    Undefined,
    None,
    Bool(bool),
    Int(i128),
    Float(f64),
    Text(Text<'a>),
    Seq(Seq<'a>),
    Map(Map<'a>),
}

#[derive(Debug, Clone)]
pub(crate) enum Text<'a> {
    Lent(&'a str),
    Made(Rc<String>),
}

#[derive(Debug, Clone)]
pub(crate) enum Seq<'a> {
    Lent(&'a [Value]),
    Made(Rc<Vec<Val<'a>>>),
}

#[derive(Debug, Clone)]
pub(crate) enum Map<'a> {
    Lent(&'a JsonMap<String, Value>),
    Made(Rc<BTreeMap<Cow<'a, str>, Val<'a>>>),
    View(Rc<dyn Fields<'a> + 'a>),
}

impl Text<'_> {
    pub(crate) fn as_str(&self) -> &str {
        match self {
            Self::Lent(text) => text,
            Self::Made(text) => text,
        }
    }
}

impl<'a> Seq<'a> {
    pub(crate) fn len(&self) -> usize {
        match self {
            Self::Lent(items) => items.len(),
            Self::Made(items) => items.len(),
        }
    }

    pub(crate) fn get(&self, at: usize) -> Option<Val<'a>> {
        match self {
            Self::Lent(items) => items.get(at).map(Val::of),
            Self::Made(items) => items.get(at).cloned(),
        }
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = Val<'a>> + '_ {
        (0..self.len()).filter_map(|at| self.get(at))
    }
}

impl<'a> Map<'a> {
    pub(crate) fn get(&self, name: &str) -> Option<Val<'a>> {
        match self {
            Self::Lent(fields) => fields.get(name).map(Val::of),
            Self::Made(fields) => fields.get(name).cloned(),
            Self::View(fields) => fields.get(name),
        }
    }

    /// The value of a field. Charges for the search, which follows pointers to tree nodes and names.
    pub(crate) fn find(
        &self,
        name: &str,
        meter: &Meter<'_>,
    ) -> std::result::Result<Option<Val<'a>>, Exhausted> {
        let n_fields = match self {
            Self::Lent(fields) => fields.len(),
            Self::Made(fields) => fields.len(),
            Self::View(_) => 0,
        };
        meter.charge(4 * u64::from((n_fields + 1).ilog2()))?;
        Ok(self.get(name))
    }

    /// The fields in the order of their names.
    pub(crate) fn entries(&self, meter: &Meter<'_>) -> Result<Vec<(Text<'a>, Val<'a>)>> {
        let own = |name: &Cow<'a, str>| match name {
            Cow::Borrowed(name) => Text::Lent(name),
            Cow::Owned(name) => Text::Made(Rc::new(name.clone())),
        };
        Ok(match self {
            Self::Lent(fields) => {
                // Names and values are separate allocations.
                meter.values(4 * fields.len())?;
                let each = |(name, field)| (Text::Lent(str_of(name)), Val::of(field));
                fields.iter().map(each).collect()
            }
            Self::Made(fields) => {
                meter.values(4 * fields.len())?;
                for name in fields.keys() {
                    // An owned name is copied.
                    if let Cow::Owned(name) = name {
                        meter.bytes(name.len())?;
                    }
                }
                fields
                    .iter()
                    .map(|(name, field)| (own(name), field.clone()))
                    .collect()
            }
            Self::View(fields) => {
                meter.values(8 * fields.most())?;
                let all = fields.all();
                all.iter()
                    .map(|(name, field)| (own(name), field.clone()))
                    .collect()
            }
        })
    }

    fn is_empty(&self, meter: &Meter<'_>) -> std::result::Result<bool, Exhausted> {
        Ok(match self {
            Self::Lent(fields) => fields.is_empty(),
            Self::Made(fields) => fields.is_empty(),
            Self::View(_) => self.len(meter)? == 0,
        })
    }

    pub(crate) fn len(&self, meter: &Meter<'_>) -> std::result::Result<usize, Exhausted> {
        Ok(match self {
            Self::Lent(fields) => fields.len(),
            Self::Made(fields) => fields.len(),
            Self::View(fields) => {
                meter.values(8 * fields.most())?;
                fields.all().len()
            }
        })
    }
}

fn str_of(text: &String) -> &str {
    text
}

impl<'a> Val<'a> {
    /// Borrows a value of a run.
    pub(crate) fn of(value: &'a Value) -> Self {
        match value {
            Value::Null => Self::None,
            Value::Bool(flag) => Self::Bool(*flag),
            Value::Number(number) => Self::of_number(number),
            Value::String(text) => Self::Text(Text::Lent(text)),
            Value::Array(items) => Self::Seq(Seq::Lent(items)),
            Value::Object(fields) => Self::Map(Map::Lent(fields)),
        }
    }

    fn of_number(number: &Number) -> Self {
        let int = number
            .as_i64()
            .map(i128::from)
            .or(number.as_u64().map(i128::from));
        int.map_or_else(|| Self::Float(number.as_f64().unwrap_or(f64::NAN)), Self::Int)
    }

    pub(crate) fn text(text: String) -> Self {
        Self::Text(Text::Made(Rc::new(text)))
    }

    pub(crate) fn list(items: Vec<Self>) -> Self {
        Self::Seq(Seq::Made(Rc::new(items)))
    }

    pub(crate) fn count(n: usize) -> Self {
        Self::Int(n as i128)
    }

    pub(crate) fn as_str(&self) -> Option<&str> {
        match self {
            Self::Text(text) => Some(text.as_str()),
            Self::Undefined | Self::None | Self::Bool(_) | Self::Int(_) | Self::Float(_) => None,
            Self::Seq(_) | Self::Map(_) => None,
        }
    }

    pub(crate) const fn is_undefined(&self) -> bool {
        matches!(self, Self::Undefined)
    }

    pub(crate) const fn is_number(&self) -> bool {
        matches!(self, Self::Int(_) | Self::Float(_))
    }

    /// An integer, also when it is written as a float.
    pub(crate) fn as_int(&self) -> Option<i128> {
        match self {
            Self::Int(n) => Some(*n),
            Self::Bool(flag) => Some(i128::from(*flag)),
            Self::Float(n) => whole(*n),
            Self::Undefined | Self::None | Self::Text(_) | Self::Seq(_) | Self::Map(_) => None,
        }
    }

    pub(crate) fn as_float(&self) -> Option<f64> {
        match self {
            Self::Int(n) => Some(float(*n)),
            Self::Bool(flag) => Some(f64::from(u8::from(*flag))),
            Self::Float(n) => Some(*n),
            Self::Undefined | Self::None | Self::Text(_) | Self::Seq(_) | Self::Map(_) => None,
        }
    }

    pub(crate) const fn kind(&self) -> &'static str {
        match self {
            Self::Undefined => "undefined",
            Self::None => "none",
            Self::Bool(_) => "bool",
            Self::Int(_) | Self::Float(_) => "number",
            Self::Text(_) => "string",
            Self::Seq(_) => "sequence",
            Self::Map(_) => "map",
        }
    }

    pub(crate) fn is_true(&self, meter: &Meter<'_>) -> std::result::Result<bool, Exhausted> {
        Ok(match self {
            Self::Undefined | Self::None => false,
            Self::Bool(flag) => *flag,
            Self::Int(n) => *n != 0,
            Self::Float(n) => *n != 0.0,
            Self::Text(text) => !text.as_str().is_empty(),
            Self::Seq(items) => items.len() > 0,
            Self::Map(fields) => !fields.is_empty(meter)?,
        })
    }

    /// The value of a field; undefined if it does not exist or if the value has no fields.
    pub(crate) fn field(&self, name: &str, meter: &Meter<'_>) -> Result<Self> {
        meter.charge(1)?;
        meter.bytes(name.len())?;
        Ok(match self {
            Self::Map(fields) => fields.find(name, meter)?.unwrap_or(Self::Undefined),
            Self::Undefined | Self::None | Self::Bool(_) | Self::Int(_) | Self::Float(_) => Self::Undefined,
            Self::Text(_) | Self::Seq(_) => Self::Undefined,
        })
    }

    /// The value that a subscript selects: a field, an item or a character; a negative index counts from the
    /// end.
    pub(crate) fn item(&self, key: &Self, meter: &Meter<'_>) -> Result<Self> {
        meter.charge(2)?;
        if let Self::Text(name) = key {
            meter.bytes(name.as_str().len())?;
        }
        let index = |len: usize| {
            let at = key.as_int().filter(|_| key.is_number())?;
            let at = if at < 0 { at + len as i128 } else { at };
            usize::try_from(at).ok()
        };
        let found = match self {
            Self::Map(fields) => match key {
                Self::Text(name) => fields.find(name.as_str(), meter)?,
                Self::Int(n) => fields.find(&n.to_string(), meter)?,
                Self::Undefined
                | Self::None
                | Self::Bool(_)
                | Self::Float(_)
                | Self::Seq(_)
                | Self::Map(_) => None,
            },
            Self::Seq(items) => index(items.len()).and_then(|at| items.get(at)),
            Self::Text(text) => {
                let text = text.as_str();
                meter.bytes(text.len())?;
                let at = index(text.chars().count());
                at.and_then(|at| text.chars().nth(at))
                    .map(|c| Self::text(c.to_string()))
            }
            Self::Undefined | Self::None | Self::Bool(_) | Self::Int(_) | Self::Float(_) => None,
        };
        Ok(found.unwrap_or(Self::Undefined))
    }

    /// The value at a dotted path.
    pub(crate) fn path(&self, path: &str, meter: &Meter<'_>) -> Result<Self> {
        let mut at = self.clone();
        for key in path.split('.') {
            // Each key is first parsed as a number.
            meter.charge(key.len() as u64 / 8)?;
            at = match (key.parse::<usize>(), &at) {
                (Ok(index), Self::Seq(_) | Self::Text(_)) => at.item(&Self::count(index), meter)?,
                _ => at.field(key, meter)?,
            };
        }
        Ok(at)
    }

    /// The items to iterate over: the items of a list, the field names of an object, or the characters of a
    /// text.
    pub(crate) fn items(&self, meter: &Meter<'_>) -> Result<Seq<'a>> {
        match self {
            Self::Seq(items) => Ok(items.clone()),
            Self::Undefined | Self::None => Ok(Seq::Lent(&[])),
            Self::Map(fields) => {
                let names = fields
                    .entries(meter)?
                    .into_iter()
                    .map(|(name, _)| Self::Text(name));
                Ok(Seq::Made(Rc::new(names.collect())))
            }
            Self::Text(text) => {
                let text = text.as_str();
                // Each character becomes a value with a text of its own.
                meter.values(4 * text.chars().count())?;
                let items = text.chars().map(|c| Self::text(c.to_string()));
                Ok(Seq::Made(Rc::new(items.collect())))
            }
            Self::Bool(_) | Self::Int(_) | Self::Float(_) => {
                Err(fail(format!("{} is not iterable", self.kind())))
            }
        }
    }

    /// The value as JSON; undefined becomes null.
    pub(crate) fn to_json(&self, meter: &Meter<'_>) -> Result<Value> {
        let json = self.json_at(meter, 0)?;
        if crate::measure::size_of(&json) > MAX_OUTPUT {
            return Err(ExpressionError::TooLong(MAX_OUTPUT));
        }
        Ok(json)
    }

    fn json_at(&self, meter: &Meter<'_>, depth: usize) -> Result<Value> {
        deep(depth)?;
        meter.values(1)?;
        Ok(match self {
            Self::Undefined | Self::None => Value::Null,
            Self::Bool(flag) => Value::Bool(*flag),
            Self::Int(n) => {
                let number = i64::try_from(*n).map(Number::from);
                let number = number.or_else(|_| u64::try_from(*n).map(Number::from));
                Value::Number(number.map_err(|_| fail("the number is out of range"))?)
            }
            Self::Float(n) => Number::from_f64(*n).map_or(Value::Null, Value::Number),
            Self::Text(text) => {
                meter.bytes(text.as_str().len())?;
                Value::String(text.as_str().to_owned())
            }
            Self::Seq(Seq::Lent(items)) => {
                for item in *items {
                    meter.charge(cost::of_value(item))?;
                }
                Value::Array(items.to_vec())
            }
            Self::Map(Map::Lent(fields)) => {
                meter.charge(cost::of_object(fields))?;
                Value::Object((*fields).clone())
            }
            Self::Seq(Seq::Made(items)) => {
                let items = items.iter().map(|item| item.json_at(meter, depth + 1));
                Value::Array(items.collect::<Result<_>>()?)
            }
            Self::Map(fields) => {
                let entries = fields.entries(meter)?;
                meter.object(entries.len())?;
                let mut made = JsonMap::new();
                for (name, field) in entries {
                    meter.bytes(name.as_str().len())?;
                    made.insert(name.as_str().to_owned(), field.json_at(meter, depth + 1)?);
                }
                Value::Object(made)
            }
        })
    }

    /// Whether two values are equal; numbers are compared numerically.
    pub(crate) fn equals(&self, other: &Self, meter: &Meter<'_>) -> Result<bool> {
        self.equals_at(other, meter, 0)
    }

    fn equals_at(&self, other: &Self, meter: &Meter<'_>, depth: usize) -> Result<bool> {
        deep(depth)?;
        meter.charge(1)?;
        Ok(match (self, other) {
            (Self::Undefined, Self::Undefined) | (Self::None, Self::None) => true,
            (Self::Text(a), Self::Text(b)) => {
                let (a, b) = (a.as_str(), b.as_str());
                if a.len() != b.len() {
                    return Ok(false);
                }
                meter.bytes(a.len())?;
                a == b
            }
            (Self::Seq(a), Self::Seq(b)) => {
                if a.len() != b.len() {
                    return Ok(false);
                }
                for (a, b) in a.iter().zip(b.iter()) {
                    // Both items are looked up in their lists.
                    meter.charge(1)?;
                    if !a.equals_at(&b, meter, depth + 1)? {
                        return Ok(false);
                    }
                }
                true
            }
            (Self::Map(a), Self::Map(b)) => {
                if a.len(meter)? != b.len(meter)? {
                    return Ok(false);
                }
                let (a, b) = (a.entries(meter)?, b.entries(meter)?);
                for ((a_name, a), (b_name, b)) in a.iter().zip(&b) {
                    meter.charge(2)?;
                    meter.bytes(a_name.as_str().len())?;
                    if a_name.as_str() != b_name.as_str() || !a.equals_at(b, meter, depth + 1)? {
                        return Ok(false);
                    }
                }
                true
            }
            (
                Self::Bool(_) | Self::Int(_) | Self::Float(_),
                Self::Bool(_) | Self::Int(_) | Self::Float(_),
            ) => compare_numbers(self, other) == Some(Ordering::Equal),
            (_, _) => false,
        })
    }

    /// Whether the value equals a JSON value of the definition. 1 and 1.0 are equal at the top level, but not
    /// inside lists and objects. Undefined equals null.
    pub(crate) fn is_json(&self, other: &Value, meter: &Meter<'_>) -> std::result::Result<bool, Exhausted> {
        let by_worth = matches!(self, Self::Int(_) | Self::Float(_));
        self.matches(other, meter, by_worth)
    }

    /// Whether the value equals a JSON value. If `by_worth`, numbers are compared numerically everywhere;
    /// otherwise 1 and 1.0 differ.
    pub(crate) fn matches(
        &self,
        other: &Value,
        meter: &Meter<'_>,
        by_worth: bool,
    ) -> std::result::Result<bool, Exhausted> {
        meter.charge(1)?;
        Ok(match (self, other) {
            (Self::Undefined | Self::None, Value::Null) => true,
            (Self::Bool(a), Value::Bool(b)) => a == b,
            (Self::Int(_) | Self::Float(_), Value::Number(_)) => {
                let other = Val::of(other);
                let alike = matches!(self, Self::Int(_)) == matches!(other, Val::Int(_));
                (by_worth || alike) && compare_numbers(self, &other) == Some(Ordering::Equal)
            }
            (Self::Text(a), Value::String(b)) => {
                if a.as_str().len() != b.len() {
                    return Ok(false);
                }
                meter.bytes(b.len())?;
                a.as_str() == b
            }
            (Self::Seq(a), Value::Array(b)) => {
                if a.len() != b.len() {
                    return Ok(false);
                }
                for (a, b) in a.iter().zip(b) {
                    if !a.matches(b, meter, by_worth)? {
                        return Ok(false);
                    }
                }
                true
            }
            (Self::Map(a), Value::Object(b)) => {
                if a.len(meter)? != b.len() {
                    return Ok(false);
                }
                for (name, b) in b {
                    meter.charge(1 + name.len() as u64 / 8)?;
                    match a.get(name) {
                        Some(a) if a.matches(b, meter, by_worth)? => {}
                        Some(_) | None => return Ok(false),
                    }
                }
                true
            }
            (_, _) => false,
        })
    }

    /// Orders two values by kind, then by content.
    pub(crate) fn order(&self, other: &Self, meter: &Meter<'_>) -> Result<Ordering> {
        self.order_at(other, meter, 0)
    }

    fn order_at(&self, other: &Self, meter: &Meter<'_>, depth: usize) -> Result<Ordering> {
        deep(depth)?;
        meter.charge(1)?;
        Ok(match (self, other) {
            (Self::Text(a), Self::Text(b)) => {
                meter.bytes(a.as_str().len().min(b.as_str().len()))?;
                a.as_str().cmp(b.as_str())
            }
            (Self::Bool(a), Self::Bool(b)) => a.cmp(b),
            (Self::Int(_) | Self::Float(_), Self::Int(_) | Self::Float(_)) => {
                compare_numbers(self, other).unwrap_or(Ordering::Equal)
            }
            (Self::Seq(a), Self::Seq(b)) => {
                for (a, b) in a.iter().zip(b.iter()) {
                    meter.charge(1)?;
                    let order = a.order_at(&b, meter, depth + 1)?;
                    if order.is_ne() {
                        return Ok(order);
                    }
                }
                a.len().cmp(&b.len())
            }
            (Self::Map(a), Self::Map(b)) => {
                let (a, b) = (a.entries(meter)?, b.entries(meter)?);
                for ((a_name, a), (b_name, b)) in a.iter().zip(&b) {
                    meter.bytes(a_name.as_str().len().min(b_name.as_str().len()))?;
                    let mut order = a_name.as_str().cmp(b_name.as_str());
                    if order.is_eq() {
                        order = a.order_at(b, meter, depth + 1)?;
                    }
                    if order.is_ne() {
                        return Ok(order);
                    }
                }
                a.len().cmp(&b.len())
            }
            (_, _) => self.rank().cmp(&other.rank()),
        })
    }

    const fn rank(&self) -> u8 {
        match self {
            Self::Undefined => 0,
            Self::None => 1,
            Self::Bool(_) => 2,
            Self::Int(_) | Self::Float(_) => 3,
            Self::Text(_) => 4,
            Self::Seq(_) => 5,
            Self::Map(_) => 6,
        }
    }
}

/// The exact order of two numbers; `None` if one of them is not a number.
pub(crate) fn compare_numbers(a: &Val<'_>, b: &Val<'_>) -> Option<Ordering> {
    let int = |value: &Val<'_>| match value {
        Val::Float(_) => None,
        other => other.as_int(),
    };
    match (int(a), int(b)) {
        (Some(a), Some(b)) => Some(a.cmp(&b)),
        (None, None) => a.as_float()?.partial_cmp(&b.as_float()?),
        (Some(a), None) => compare_mixed(a, b.as_float()?),
        (None, Some(b)) => compare_mixed(b, a.as_float()?).map(Ordering::reverse),
    }
}

#[expect(
    clippy::cast_precision_loss,
    reason = "the nearest float is what is asked for"
)]
pub(crate) fn float(n: i128) -> f64 {
    n as f64
}

#[expect(clippy::cast_possible_truncation, reason = "checked to be whole and in range")]
fn whole(n: f64) -> Option<i128> {
    (n.fract() == 0.0 && n.abs() < 1.0e38).then_some(n as i128)
}

pub(super) fn deep(depth: usize) -> Result<()> {
    if depth > MAX_DEPTH {
        return Err(fail(format!("a value nests more than {MAX_DEPTH} levels deep")));
    }
    Ok(())
}

pub(crate) fn fail(text: impl Into<String>) -> ExpressionError {
    ExpressionError::Evaluation(text.into())
}
