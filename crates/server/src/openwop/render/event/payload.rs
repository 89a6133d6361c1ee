//! Payloads of events as they are written out: members that borrow from the event, without a tree of values.

use std::borrow::Cow;

use serde::{Serialize, Serializer};
use serde_json::Value;
use wopr_app::Mask;
use wopr_core::{Object, StepId};

/// Members that have the time of an event.
const CLOCKS: [&str; 3] = ["decidedAt", "writtenAt", "deadline"];
/// Members that have a turn of a conversation, with its time.
const TURNS: [&str; 3] = ["initialTurn", "turn", "finalTurn"];

/// An object of the members that are present, in the order in which they were given.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Payload<'a>(Vec<(Cow<'a, str>, Part<'a>)>);

/// The value of a member.
#[derive(Debug, Clone, PartialEq)]
pub(super) enum Part<'a> {
    Text(Cow<'a, str>),
    Texts(Vec<Cow<'a, str>>),
    Count(u64),
    Flag(bool),
    Value(Cow<'a, Value>),
    Object(Cow<'a, Object>),
    Nested(Payload<'a>),
}

impl<'a> Payload<'a> {
    /// Members of the largest payloads that are frequent.
    const USUAL: usize = 4;

    pub(super) fn new() -> Self {
        Self(Vec::with_capacity(Self::USUAL))
    }

    /// A payload that begins with the node id.
    pub(super) fn node(step: &'a StepId) -> Self {
        Self::new().with("nodeId", step.node.as_str())
    }

    /// These members.
    pub(super) fn of(object: &'a Object) -> Self {
        let member = |(name, value): (&'a String, &'a Value)| {
            (Cow::Borrowed(name.as_str()), Part::Value(Cow::Borrowed(value)))
        };
        Self(object.iter().map(member).collect())
    }

    /// Sets a member.
    pub(super) fn with(mut self, name: &'a str, value: impl Into<Part<'a>>) -> Self {
        self.set(name, value.into());
        self
    }

    pub(super) fn maybe(self, name: &'a str, value: Option<impl Into<Part<'a>>>) -> Self {
        match value {
            Some(value) => self.with(name, value),
            None => self,
        }
    }

    fn set(&mut self, name: &'a str, value: Part<'a>) {
        match self.0.iter_mut().find(|(known, _)| known == name) {
            Some((_, known)) => *known = value,
            None => self.0.push((Cow::Borrowed(name), value)),
        }
    }

    /// The payload without the values that are hidden by the names of their members.
    pub(super) fn without_secrets(self, mask: &Mask) -> Self {
        if !mask.hides_members() {
            return self;
        }
        let mut value = self.into_value();
        mask.hide_members(&mut value);
        match value {
            Value::Object(members) => members.into(),
            Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) | Value::Array(_) => {
                Self::default()
            }
        }
    }

    /// The payload without the times in it, which differ whenever a run is repeated.
    pub(super) fn without_clocks(mut self) -> Self {
        self.0.retain(|(name, _)| !CLOCKS.contains(&name.as_ref()));
        for (name, part) in &mut self.0 {
            if let Part::Value(value) = part
                && TURNS.contains(&name.as_ref())
                && let Some(turn) = value.to_mut().as_object_mut()
            {
                turn.remove("ts");
            }
        }
        self
    }

    /// The payload as a value.
    #[must_use]
    pub fn into_value(self) -> Value {
        let member = |(name, part): (Cow<'a, str>, Part<'a>)| (name.into_owned(), part.into_value());
        Value::Object(self.0.into_iter().map(member).collect())
    }
}

impl From<Object> for Payload<'_> {
    fn from(object: Object) -> Self {
        let members = object.into_iter();
        Self(
            members
                .map(|(name, value)| (Cow::Owned(name), Part::Value(Cow::Owned(value))))
                .collect(),
        )
    }
}

impl Part<'_> {
    fn into_value(self) -> Value {
        match self {
            Self::Text(text) => text.into_owned().into(),
            Self::Texts(texts) => texts.into_iter().map(Cow::into_owned).collect(),
            Self::Count(count) => count.into(),
            Self::Flag(flag) => flag.into(),
            Self::Value(value) => value.into_owned(),
            Self::Object(object) => object.into_owned().into(),
            Self::Nested(payload) => payload.into_value(),
        }
    }
}

impl Serialize for Payload<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_map(self.0.iter().map(|(name, part)| (name, part)))
    }
}

impl Serialize for Part<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match self {
            Self::Text(text) => serializer.serialize_str(text),
            Self::Texts(texts) => texts.serialize(serializer),
            Self::Count(count) => serializer.serialize_u64(*count),
            Self::Flag(flag) => serializer.serialize_bool(*flag),
            Self::Value(value) => value.serialize(serializer),
            Self::Object(object) => object.serialize(serializer),
            Self::Nested(payload) => payload.serialize(serializer),
        }
    }
}

impl<'a> From<&'a str> for Part<'a> {
    fn from(text: &'a str) -> Self {
        Self::Text(Cow::Borrowed(text))
    }
}

impl From<String> for Part<'_> {
    fn from(text: String) -> Self {
        Self::Text(Cow::Owned(text))
    }
}

impl From<Vec<String>> for Part<'_> {
    fn from(texts: Vec<String>) -> Self {
        Self::Texts(texts.into_iter().map(Cow::Owned).collect())
    }
}

impl<'a> From<&'a [String]> for Part<'a> {
    fn from(texts: &'a [String]) -> Self {
        Self::Texts(texts.iter().map(|text| Cow::Borrowed(text.as_str())).collect())
    }
}

impl<'a> From<Vec<&'a str>> for Part<'a> {
    fn from(texts: Vec<&'a str>) -> Self {
        Self::Texts(texts.into_iter().map(Cow::Borrowed).collect())
    }
}

impl From<u64> for Part<'_> {
    fn from(count: u64) -> Self {
        Self::Count(count)
    }
}

impl From<u32> for Part<'_> {
    fn from(count: u32) -> Self {
        Self::Count(count.into())
    }
}

impl From<usize> for Part<'_> {
    fn from(count: usize) -> Self {
        Self::Count(count as u64)
    }
}

impl From<f64> for Part<'_> {
    fn from(number: f64) -> Self {
        Self::Value(Cow::Owned(number.into()))
    }
}

impl From<bool> for Part<'_> {
    fn from(flag: bool) -> Self {
        Self::Flag(flag)
    }
}

impl From<Value> for Part<'_> {
    fn from(value: Value) -> Self {
        Self::Value(Cow::Owned(value))
    }
}

impl<'a> From<&'a Value> for Part<'a> {
    fn from(value: &'a Value) -> Self {
        Self::Value(Cow::Borrowed(value))
    }
}

impl<'a> From<Cow<'a, Value>> for Part<'a> {
    fn from(value: Cow<'a, Value>) -> Self {
        Self::Value(value)
    }
}

impl<'a> From<Cow<'a, Object>> for Part<'a> {
    fn from(object: Cow<'a, Object>) -> Self {
        Self::Object(object)
    }
}

impl From<Object> for Part<'_> {
    fn from(object: Object) -> Self {
        Self::Object(Cow::Owned(object))
    }
}

impl<'a> From<Payload<'a>> for Part<'a> {
    fn from(payload: Payload<'a>) -> Self {
        Self::Nested(payload)
    }
}
