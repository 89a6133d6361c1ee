//! Decoding JSON documents with errors that name the field.
//!
//! [`Decode`] takes a parsed value apart by move. Its error carries the path from the root of the document
//! (`message.parts[0].text`) and the problem there, so that a protocol face can answer with a field
//! violation. For optional fields `null` counts as absent, as in ProtoJSON. Each type decides whether unknown
//! fields are ignored or rejected ([`Fields::refuse_unknown`]).
//!
//! The parser stops at 128 levels of nesting, so neither parsing nor dropping a hostile document can exhaust
//! the stack. The caller that reads a document from the network limits its size.

use std::{borrow::Cow, collections::BTreeMap, fmt};

use serde_json::{Map, Number, Value};

/// A JSON object, sorted by member name.
pub type Object = Map<String, Value>;

/// A type that can be decoded from a parsed JSON value.
pub trait Decode: Sized {
    /// Decodes the value.
    ///
    /// # Errors
    /// Returns the first field that is missing or invalid, with its path.
    fn decode(value: Value) -> Result<Self, DecodeError>;
}

/// A missing or invalid field.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DecodeError {
    path: String,
    problem: Problem,
}

#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Problem {
    #[error("is required")]
    Missing,
    #[error("must be {expected}")]
    WrongType {
        /// The expected type with its article, such as `an object`.
        expected: &'static str,
    },
    /// The field has the right type but a value that is not allowed.
    #[error("{0}")]
    Invalid(Cow<'static, str>),
    /// An unknown field in a type that rejects them.
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

    /// Reports an absent required field. [`DecodeError::in_field`] adds its path.
    #[must_use]
    pub fn missing() -> Self {
        Self::new(Problem::Missing)
    }

    /// Reports a value of the wrong JSON type; `expected` includes the article.
    #[must_use]
    pub fn wrong_type(expected: &'static str) -> Self {
        Self::new(Problem::WrongType { expected })
    }

    /// Reports a value that is not allowed; `rule` continues a sentence that starts with the field path.
    #[must_use]
    pub fn invalid(rule: impl Into<Cow<'static, str>>) -> Self {
        Self::new(Problem::Invalid(rule.into()))
    }

    /// Prefixes the path with a member of an object.
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

    /// Prefixes the path with an index of an array.
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

    #[must_use]
    pub fn problem(&self) -> &Problem {
        &self.problem
    }
}

/// The most levels of objects and arrays in a document: the limit of the parser.
pub const MAX_DEPTH: usize = 127;

/// Whether the parser gave up on a document only because of its depth.
#[must_use]
pub fn is_too_deep(error: &serde_json::Error) -> bool {
    // The parser does not say it in another way.
    error.is_syntax() && error.to_string().starts_with("recursion limit exceeded")
}

/// An error in a request or response body.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum BodyError {
    /// The body is not a single JSON document: invalid syntax, or invalid UTF-8.
    #[error("parse the body as JSON")]
    Syntax,
    /// The body may be JSON, but it nests more than [`MAX_DEPTH`] levels deep.
    #[error("it nests more than {MAX_DEPTH} levels deep")]
    TooDeep,
    /// The body is JSON, but does not decode to the expected type.
    #[error(transparent)]
    Shape(#[from] DecodeError),
}

/// Parses bytes as a single JSON document.
///
/// # Errors
/// Returns [`BodyError::TooDeep`] for more than [`MAX_DEPTH`] levels, and [`BodyError::Syntax`] for anything else.
pub fn parse(bytes: &[u8]) -> Result<Value, BodyError> {
    serde_json::from_slice(bytes).map_err(|error| match is_too_deep(&error) {
        true => BodyError::TooDeep,
        false => BodyError::Syntax,
    })
}

/// Parses and decodes a body.
///
/// # Errors
/// Returns [`BodyError::Syntax`] if the body is not JSON, and [`BodyError::Shape`] if it does not decode.
pub fn from_slice<T: Decode>(bytes: &[u8]) -> Result<T, BodyError> {
    Ok(T::decode(parse(bytes)?)?)
}

/// Like [`from_slice`], except that a blank body decodes as an empty object.
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
    /// Returns an error if the value is not an object.
    pub fn of(value: Value) -> Result<Self, DecodeError> {
        Object::decode(value).map(Self)
    }

    /// Takes a member as it is, `null` included.
    pub fn take(&mut self, name: &str) -> Option<Value> {
        self.0.remove(name)
    }

    /// Takes a member; `null` counts as absent.
    pub fn present(&mut self, name: &str) -> Option<Value> {
        self.0.remove(name).filter(|value| !value.is_null())
    }

    /// Returns `true` if the member is present and not `null`.
    #[must_use]
    pub fn has(&self, name: &str) -> bool {
        self.0.get(name).is_some_and(|value| !value.is_null())
    }

    /// Decodes a required member.
    ///
    /// # Errors
    /// Returns an error if the member is absent or invalid.
    pub fn required<T: Decode>(&mut self, name: &str) -> Result<T, DecodeError> {
        self.present(name)
            .map_or_else(|| Err(DecodeError::missing()), T::decode)
            .map_err(|error| error.in_field(name))
    }

    /// Decodes a required, non-empty string.
    ///
    /// # Errors
    /// Returns an error if the member is absent, empty or not a string.
    pub fn required_text(&mut self, name: &str) -> Result<String, DecodeError> {
        let text: String = self.required(name)?;
        if text.is_empty() {
            return Err(DecodeError::invalid("must not be empty").in_field(name));
        }
        Ok(text)
    }

    /// Decodes an optional member.
    ///
    /// # Errors
    /// Returns an error if the member is present but invalid.
    pub fn optional<T: Decode>(&mut self, name: &str) -> Result<Option<T>, DecodeError> {
        self.present(name)
            .map(T::decode)
            .transpose()
            .map_err(|error| error.in_field(name))
    }

    /// Decodes an optional member; an invalid value counts as absent. For a detail of a document that is worth
    /// more than the detail.
    pub fn if_valid<T: Decode>(&mut self, name: &str) -> Option<T> {
        self.present(name).and_then(|value| T::decode(value).ok())
    }

    /// Decodes the elements of an optional list that are valid, for a list that is worth more than each of its elements.
    pub fn valid_elements<T: Decode>(&mut self, name: &str) -> Vec<T> {
        let list: Vec<Value> = self.if_valid(name).unwrap_or_default();
        list.into_iter()
            .filter_map(|element| T::decode(element).ok())
            .collect()
    }

    /// Decodes the members of an optional object that are valid, by name.
    pub fn valid_members<T: Decode>(&mut self, name: &str) -> BTreeMap<String, T> {
        let object: Object = self.if_valid(name).unwrap_or_default();
        object
            .into_iter()
            .filter_map(|(name, member)| Some((name, T::decode(member).ok()?)))
            .collect()
    }

    /// Decodes an optional string. As in ProtoJSON, an empty string counts as absent.
    ///
    /// # Errors
    /// Returns an error if the member is present but not a string.
    pub fn optional_text(&mut self, name: &str) -> Result<Option<String>, DecodeError> {
        Ok(self.optional::<String>(name)?.filter(|text| !text.is_empty()))
    }

    /// Like [`Fields::optional_text`], except that an invalid value counts as absent.
    pub fn valid_text(&mut self, name: &str) -> Option<String> {
        self.if_valid::<String>(name).filter(|text| !text.is_empty())
    }

    /// Decodes an optional member; absent means the default value of its type.
    ///
    /// # Errors
    /// Returns an error if the member is present but invalid.
    pub fn or_default<T: Decode + Default>(&mut self, name: &str) -> Result<T, DecodeError> {
        self.optional(name).map(Option::unwrap_or_default)
    }

    /// Requires a member to equal `wanted`, such as a discriminator.
    ///
    /// # Errors
    /// Returns an error if the member is absent or has another value.
    pub fn literal(&mut self, name: &str, wanted: &'static str) -> Result<(), DecodeError> {
        let text: String = self.required(name)?;
        if text == wanted {
            return Ok(());
        }
        Err(DecodeError::invalid(format!("must be \"{wanted}\"")).in_field(name))
    }

    /// Requires a member, if present, to equal `wanted`: for a discriminator where only one value is possible.
    ///
    /// # Errors
    /// Returns an error if the member is present with another value.
    pub fn literal_if_any(&mut self, name: &str, wanted: &'static str) -> Result<(), DecodeError> {
        if self.has(name) {
            self.literal(name, wanted)
        } else {
            Ok(())
        }
    }

    /// Takes the only member of `names` that is present, and returns it with its name.
    ///
    /// # Errors
    /// Returns an error if none or more than one of them is present.
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

    /// Rejects members that were not taken.
    ///
    /// # Errors
    /// Returns an error for the first remaining member, by name.
    pub fn refuse_unknown(self) -> Result<(), DecodeError> {
        match self.0.keys().next() {
            None => Ok(()),
            Some(name) => Err(DecodeError::new(Problem::Unknown).in_field(name)),
        }
    }
}

/// Converts a snake_case name, as in protocol buffers, to camelCase. Other names are returned unchanged.
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

/// Renames members to camelCase, recursively, except inside the free-form members `metadata`, `data` and
/// `params`. If both spellings are present, the camelCase one wins.
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
        match integer(&value).map(Self::try_from) {
            Some(Ok(number)) => Ok(number),
            Some(Err(_)) if integer(&value).is_some_and(i128::is_negative) => {
                Err(DecodeError::invalid("must not be negative"))
            }
            Some(Err(_)) => Err(DecodeError::invalid("is too large")),
            None => Err(DecodeError::wrong_type("an integer")),
        }
    }
}

/// The integer that a number is, however it is written: `10`, `10.0` or `1e1`. Clients that have only doubles write the
/// others, and they are integers to ProtoJSON and to JSON Schema.
#[must_use]
pub fn integer(value: &Value) -> Option<i128> {
    let Value::Number(number) = value else { return None };
    let whole = number.as_i64().map(i128::from);
    whole.or_else(|| number.as_u64().map(i128::from)).or_else(|| {
        let double = number.as_f64().filter(|double| double.fract() == 0.0)?;
        #[expect(
            clippy::cast_possible_truncation,
            reason = "it saturates, far beyond what any field takes"
        )]
        Some(double as i128)
    })
}

/// The integer that a text is as a JSON number. In ProtoJSON, a number may be a text.
#[must_use]
pub fn integer_in(text: &str) -> Option<i128> {
    let number: Number = text.parse().ok()?;
    integer(&Value::Number(number))
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

/// Implements `Deserialize` for [`Decode`] types, for libraries that require it.
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

/// Defines an enum of names, with its text form and its parser.
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
            /// All values, in declaration order.
            pub const ALL: &'static [Self] = &[$(Self::$variant,)+];

            /// The name on the wire.
            #[must_use]
            pub const fn as_str(self) -> &'static str {
                match self {
                    $(Self::$variant => $text,)+
                }
            }

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
    fn error_path_starts_at_the_root() {
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
    fn syntax_errors_differ_from_shape_errors() {
        for body in ["", "{", "1 2", "\u{feff}1"] {
            assert_eq!(from_slice::<u32>(body.as_bytes()), Err(BodyError::Syntax));
        }
        // The parser does not read on to where it might be wrong.
        let deep = "[".repeat(10_000);
        assert_eq!(from_slice::<u32>(deep.as_bytes()), Err(BodyError::TooDeep));
        assert_eq!(
            from_slice::<u32>(b"-1").unwrap_err().to_string(),
            "document must not be negative"
        );
        assert_eq!(from_slice::<u32>(b" 7 "), Ok(7));
    }

    #[test]
    fn nesting_depth_is_limited() {
        let nested = |depth: usize| format!("{}1{}", "[".repeat(depth), "]".repeat(depth));
        assert!(parse(nested(120).as_bytes()).is_ok());
        assert_eq!(parse(nested(MAX_DEPTH + 1).as_bytes()), Err(BodyError::TooDeep));
    }
}
