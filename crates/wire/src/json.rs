//! Reading JSON documents with errors that name the field.
//!
//! [`Decode`] takes a parsed value apart by move. An error carries the path from the document's root
//! (`message.parts[0].text`) and what is wrong there, so that a face can answer with a field violation.
//! `null` counts as absent for every optional field, as ProtoJSON has it. Whether unknown fields are
//! ignored or refused is the choice of each type ([`Fields::refuse_unknown`]).
//!
//! Parsing stops at 128 levels of nesting, so neither reading nor dropping a hostile document can
//! exhaust the stack. The size of a document is bounded by whoever reads it from the network.

use std::{borrow::Cow, collections::BTreeMap, fmt};

use serde_json::{Map, Value};

/// A JSON object whose members are ordered by name.
pub type Object = Map<String, Value>;

/// Takes a value of this type out of a parsed JSON value.
pub trait Decode: Sized {
    /// Reads the value.
    ///
    /// # Errors
    /// Names the first field that does not fit and says why.
    fn decode(value: Value) -> Result<Self, DecodeError>;
}

/// A field that does not fit.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DecodeError {
    path: String,
    problem: Problem,
}

/// What is wrong with a field.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Problem {
    /// A required field is absent.
    #[error("is required")]
    Missing,
    /// The field has another JSON type than it must have.
    #[error("must be {expected}")]
    WrongType {
        /// The wanted type with its article.
        expected: &'static str,
    },
    /// The field has the right type and a value that is not allowed.
    #[error("{0}")]
    Invalid(Cow<'static, str>),
    /// The field is not part of a closed document.
    #[error("is not a known field")]
    Unknown,
}

impl fmt::Display for DecodeError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let place = if self.path.is_empty() {
            "document"
        } else {
            &self.path
        };
        write!(f, "{place} {}", self.problem)
    }
}

impl std::error::Error for DecodeError {}

impl DecodeError {
    fn new(problem: Problem) -> Self {
        Self {
            path: String::new(),
            problem,
        }
    }

    /// Reports an absent required field, at the place where it is raised.
    #[must_use]
    pub fn missing() -> Self {
        Self::new(Problem::Missing)
    }

    /// Reports a value of another JSON type; `expected` carries its article.
    #[must_use]
    pub fn wrong_type(expected: &'static str) -> Self {
        Self::new(Problem::WrongType { expected })
    }

    /// Reports a value that is not allowed; the text goes after the name of the field.
    #[must_use]
    pub fn invalid(rule: impl Into<Cow<'static, str>>) -> Self {
        Self::new(Problem::Invalid(rule.into()))
    }

    /// Puts the error inside a member of an object.
    #[must_use]
    pub fn in_field(mut self, name: &str) -> Self {
        let joint = if self.path.is_empty() || self.path.starts_with('[') {
            ""
        } else {
            "."
        };
        self.path.insert_str(0, joint);
        self.path.insert_str(0, name);
        self
    }

    /// Puts the error inside an element of an array.
    #[must_use]
    pub fn in_element(mut self, index: usize) -> Self {
        let joint = if self.path.is_empty() || self.path.starts_with('[') {
            ""
        } else {
            "."
        };
        self.path = format!("[{index}]{joint}{}", self.path);
        self
    }

    /// The path of the field from the root; empty for the document itself.
    #[must_use]
    pub fn path(&self) -> &str {
        &self.path
    }

    /// What is wrong there.
    #[must_use]
    pub fn problem(&self) -> &Problem {
        &self.problem
    }
}

/// Why a body is not the wanted document.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum BodyError {
    /// The bytes are not one JSON document: wrong syntax, invalid UTF-8, or nested too deeply.
    #[error("parse the body as JSON")]
    Syntax,
    /// The document does not have the wanted shape.
    #[error(transparent)]
    Shape(#[from] DecodeError),
}

/// Parses bytes as one JSON document.
///
/// # Errors
/// [`BodyError::Syntax`] for anything else, including more than 128 levels of nesting.
pub fn parse(bytes: &[u8]) -> Result<Value, BodyError> {
    serde_json::from_slice(bytes).map_err(|_| BodyError::Syntax)
}

/// Parses and decodes a body.
///
/// # Errors
/// Tells a body that is no JSON from one of the wrong shape.
pub fn from_slice<T: Decode>(bytes: &[u8]) -> Result<T, BodyError> {
    Ok(T::decode(parse(bytes)?)?)
}

/// Like [`from_slice`], where a blank body means an empty object.
///
/// # Errors
/// As [`from_slice`].
pub fn from_slice_or_empty<T: Decode>(bytes: &[u8]) -> Result<T, BodyError> {
    if bytes.iter().all(u8::is_ascii_whitespace) {
        return Ok(T::decode(Value::Object(Object::new()))?);
    }
    from_slice(bytes)
}

/// The members of an object, taken out one by one.
#[derive(Debug)]
pub struct Fields(Object);

impl Fields {
    /// Opens an object.
    ///
    /// # Errors
    /// When the value is not an object.
    pub fn of(value: Value) -> Result<Self, DecodeError> {
        Object::decode(value).map(Self)
    }

    /// Takes a member as it stands, `null` included.
    pub fn take(&mut self, name: &str) -> Option<Value> {
        self.0.remove(name)
    }

    /// Takes a member; `null` counts as absent.
    pub fn present(&mut self, name: &str) -> Option<Value> {
        self.0.remove(name).filter(|value| !value.is_null())
    }

    /// Claims that a member is there and not `null`.
    #[must_use]
    pub fn has(&self, name: &str) -> bool {
        self.0.get(name).is_some_and(|value| !value.is_null())
    }

    /// Decodes a member that must be there.
    ///
    /// # Errors
    /// When it is absent or does not fit.
    pub fn required<T: Decode>(&mut self, name: &str) -> Result<T, DecodeError> {
        self.present(name)
            .map_or_else(|| Err(DecodeError::missing()), T::decode)
            .map_err(|error| error.in_field(name))
    }

    /// Decodes a text that must be there and not be empty.
    ///
    /// # Errors
    /// When it is absent, empty or not a string.
    pub fn required_text(&mut self, name: &str) -> Result<String, DecodeError> {
        let text: String = self.required(name)?;
        if text.is_empty() {
            return Err(DecodeError::invalid("must not be empty").in_field(name));
        }
        Ok(text)
    }

    /// Decodes a member that may be absent.
    ///
    /// # Errors
    /// When it is there and does not fit.
    pub fn optional<T: Decode>(&mut self, name: &str) -> Result<Option<T>, DecodeError> {
        self.present(name)
            .map(T::decode)
            .transpose()
            .map_err(|error| error.in_field(name))
    }

    /// Decodes a text where an empty one means the same as none, as in ProtoJSON.
    ///
    /// # Errors
    /// When it is there and not a string.
    pub fn optional_text(&mut self, name: &str) -> Result<Option<String>, DecodeError> {
        Ok(self.optional::<String>(name)?.filter(|text| !text.is_empty()))
    }

    /// Decodes a member whose absence means its default: no elements, no members, `false`, no text.
    ///
    /// # Errors
    /// When it is there and does not fit.
    pub fn or_default<T: Decode + Default>(&mut self, name: &str) -> Result<T, DecodeError> {
        self.optional(name).map(Option::unwrap_or_default)
    }

    /// Requires a member to be a certain text, such as a discriminator.
    ///
    /// # Errors
    /// When it is absent or anything else.
    pub fn literal(&mut self, name: &str, wanted: &'static str) -> Result<(), DecodeError> {
        let text: String = self.required(name)?;
        if text == wanted {
            return Ok(());
        }
        Err(DecodeError::invalid(format!("must be \"{wanted}\"")).in_field(name))
    }

    /// Requires a member to be a certain text if it is there, such as a discriminator where only one thing can be.
    ///
    /// # Errors
    /// When it is there and anything else.
    pub fn literal_if_any(&mut self, name: &str, wanted: &'static str) -> Result<(), DecodeError> {
        if self.has(name) {
            self.literal(name, wanted)
        } else {
            Ok(())
        }
    }

    /// Takes the only one of several members that is present, and says which it is.
    ///
    /// # Errors
    /// When none or more than one is there.
    pub fn exactly_one(&mut self, names: &[&'static str]) -> Result<(&'static str, Value), DecodeError> {
        let mut found = None;
        for name in names {
            let Some(value) = self.present(name) else {
                continue;
            };
            if found.replace((*name, value)).is_some() {
                return Err(DecodeError::invalid(format!(
                    "must have only one of {}",
                    names.join(", ")
                )));
            }
        }
        found.ok_or_else(|| DecodeError::invalid(format!("must have one of {}", names.join(", "))))
    }

    /// Ends a closed document.
    ///
    /// # Errors
    /// When a member was not taken; the first by name is reported.
    pub fn refuse_unknown(self) -> Result<(), DecodeError> {
        match self.0.keys().next() {
            None => Ok(()),
            Some(name) => Err(DecodeError::new(Problem::Unknown).in_field(name)),
        }
    }
}

/// A name in camel case that may be spelt in snake case, as in protocol buffers.
#[must_use]
pub fn camel_name(name: &str) -> Cow<'_, str> {
    let is_snake = name.contains('_')
        && !name.starts_with('_')
        && name
            .bytes()
            .all(|b| b.is_ascii_lowercase() || b.is_ascii_digit() || b == b'_');
    if !is_snake {
        return Cow::Borrowed(name);
    }
    let mut words = name.split('_');
    let mut camel = words.next().unwrap_or_default().to_owned();
    for word in words {
        let mut letters = word.chars();
        camel.extend(letters.next().map(|first| first.to_ascii_uppercase()));
        camel.push_str(letters.as_str());
    }
    Cow::Owned(camel)
}

/// Respells members in camel case, and those of what is in them but for free-form data: members called `metadata`,
/// `data` and `params`. Where both spellings are there, the camel one counts.
pub fn camel_names(members: &mut Object) {
    let respelt: Vec<_> = members
        .keys()
        .filter_map(|name| match camel_name(name) {
            Cow::Borrowed(_) => None,
            Cow::Owned(camel) => Some((name.clone(), camel)),
        })
        .collect();
    for (name, camel) in respelt {
        if !members.contains_key(&camel)
            && let Some(value) = members.remove(&name)
        {
            members.insert(camel, value);
        }
    }
    for (name, value) in members.iter_mut() {
        if ["metadata", "data", "params"].contains(&name.as_str()) {
            continue;
        }
        match value {
            Value::Object(inner) => camel_names(inner),
            Value::Array(list) => {
                list.iter_mut()
                    .filter_map(Value::as_object_mut)
                    .for_each(camel_names);
            }
            Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => {}
        }
    }
}

impl Decode for Value {
    fn decode(value: Value) -> Result<Self, DecodeError> {
        Ok(value)
    }
}

impl Decode for Object {
    fn decode(value: Value) -> Result<Self, DecodeError> {
        match value {
            Value::Object(members) => Ok(members),
            Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) | Value::Array(_) => {
                Err(DecodeError::wrong_type("an object"))
            }
        }
    }
}

impl Decode for String {
    fn decode(value: Value) -> Result<Self, DecodeError> {
        match value {
            Value::String(text) => Ok(text),
            Value::Null | Value::Bool(_) | Value::Number(_) | Value::Array(_) | Value::Object(_) => {
                Err(DecodeError::wrong_type("a string"))
            }
        }
    }
}

impl Decode for bool {
    fn decode(value: Value) -> Result<Self, DecodeError> {
        value
            .as_bool()
            .ok_or_else(|| DecodeError::wrong_type("a boolean"))
    }
}

impl Decode for u64 {
    fn decode(value: Value) -> Result<Self, DecodeError> {
        if let Some(number) = value.as_u64() {
            return Ok(number);
        }
        if value.as_i64().is_some() {
            return Err(DecodeError::invalid("must not be negative"));
        }
        Err(DecodeError::wrong_type("an integer"))
    }
}

impl Decode for u32 {
    fn decode(value: Value) -> Result<Self, DecodeError> {
        let number = u64::decode(value)?;
        Self::try_from(number).map_err(|_| DecodeError::invalid("is too large"))
    }
}

impl<T: Decode> Decode for Vec<T> {
    fn decode(value: Value) -> Result<Self, DecodeError> {
        let Value::Array(elements) = value else {
            return Err(DecodeError::wrong_type("an array"));
        };
        let mut list = Self::with_capacity(elements.len());
        for (index, element) in elements.into_iter().enumerate() {
            list.push(T::decode(element).map_err(|error| error.in_element(index))?);
        }
        Ok(list)
    }
}

impl<T: Decode> Decode for BTreeMap<String, T> {
    fn decode(value: Value) -> Result<Self, DecodeError> {
        let mut map = Self::new();
        for (name, member) in Object::decode(value)? {
            let member = T::decode(member).map_err(|error| error.in_field(&name))?;
            map.insert(name, member);
        }
        Ok(map)
    }
}

/// Gives types that are read by [`Decode`] the `Deserialize` that other libraries ask for.
macro_rules! deserialize_by_decode {
    ($($name:ty),+ $(,)?) => {$(
        impl<'de> serde::Deserialize<'de> for $name {
            fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
                let value = <serde_json::Value as serde::Deserialize>::deserialize(deserializer)?;
                <Self as $crate::json::Decode>::decode(value).map_err(serde::de::Error::custom)
            }
        }
    )+};
}

/// Gives an enum of names its text form, and reads it from that text.
macro_rules! named {
    ($(#[$doc:meta])* $vis:vis enum $name:ident: $what:literal {
        $($(#[$variant_doc:meta])* $variant:ident = $text:literal,)+
    }) => {
        $(#[$doc])*
        #[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
        $vis enum $name {
            $($(#[$variant_doc])* $variant,)+
        }

        impl $name {
            /// Every value, in the order of its declaration.
            pub const ALL: &'static [Self] = &[$(Self::$variant,)+];

            /// The name on the wire.
            #[must_use]
            pub const fn as_str(self) -> &'static str {
                match self {
                    $(Self::$variant => $text,)+
                }
            }

            /// Reads a name as it is on the wire.
            #[must_use]
            pub fn from_name(name: &str) -> Option<Self> {
                match name {
                    $($text => Some(Self::$variant),)+
                    _ => None,
                }
            }
        }

        impl std::fmt::Display for $name {
            fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                f.write_str(self.as_str())
            }
        }

        impl serde::Serialize for $name {
            fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
                serializer.serialize_str(self.as_str())
            }
        }

        impl $crate::json::Decode for $name {
            fn decode(value: serde_json::Value) -> Result<Self, $crate::json::DecodeError> {
                let name = <String as $crate::json::Decode>::decode(value)?;
                Self::from_name(&name)
                    .ok_or_else(|| $crate::json::DecodeError::invalid(concat!("must be ", $what)))
            }
        }

        $crate::json::deserialize_by_decode!($name);
    };
}

pub(crate) use {deserialize_by_decode, named};

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_path_leads_from_the_root() {
        let error = DecodeError::missing()
            .in_field("text")
            .in_element(2)
            .in_element(0)
            .in_field("parts");
        assert_eq!(error.path(), "parts[0][2].text");
        assert_eq!(
            error.in_field("message").to_string(),
            "message.parts[0][2].text is required"
        );
        assert_eq!(
            DecodeError::wrong_type("an object").to_string(),
            "document must be an object"
        );
    }

    #[test]
    fn a_body_that_is_no_json_is_told_from_one_that_does_not_fit() {
        let deep = "[".repeat(10_000);
        for body in ["", "{", "1 2", &deep, "\u{feff}1"] {
            assert_eq!(from_slice::<u32>(body.as_bytes()), Err(BodyError::Syntax));
        }
        assert_eq!(
            from_slice::<u32>(b"-1").unwrap_err().to_string(),
            "document must not be negative"
        );
        assert_eq!(from_slice::<u32>(b" 7 "), Ok(7));
    }

    #[test]
    fn the_limit_of_nesting_leaves_room_for_real_documents() {
        let nested = |depth: usize| format!("{}1{}", "[".repeat(depth), "]".repeat(depth));
        assert!(parse(nested(120).as_bytes()).is_ok());
        assert_eq!(parse(nested(128).as_bytes()), Err(BodyError::Syntax));
    }
}
