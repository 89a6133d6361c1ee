//! Decoding bytes to JSON.

use std::cell::Cell;

use serde_json::{Number, Value};

use super::schema::{Field, Kind, Message, Shape};
use crate::{
    a2a::model::encode_base64,
    json::{DecodeError, Object},
};

/// The nesting limit for messages, the same as in other implementations. A level of free-form data takes up
/// to three.
const MAX_DEPTH: u32 = 100;
/// Above 2^53, doubles no longer represent every integer.
const MAX_WHOLE: f64 = 9_007_199_254_740_992.0;

/// Approximate memory of an object without its members, in bytes.
const OBJECT: usize = 640;
/// Approximate memory of any other value, in bytes.
const VALUE: usize = 40;

/// Decodes a message to its JSON. Fields outside the table are skipped. Explicit default values are omitted,
/// as if the field were absent.
///
/// # Errors
/// Returns an error if the bytes are not a valid message, or contain a value that JSON cannot represent.
pub fn read(message: &Message, bytes: &[u8]) -> Result<Object, DecodeError> {
    read_within(message, bytes, usize::MAX).map(|(object, _)| object)
}

/// Like [`read`], but also returns the approximate memory of the JSON in bytes, without its strings: a few bytes
/// of a message can become an object of several hundred. Decoding stops as soon as the memory exceeds `most`.
///
/// # Errors
/// Returns the errors of [`read`], and an error if the memory exceeds `most`.
pub fn read_within(message: &Message, bytes: &[u8], most: usize) -> Result<(Object, usize), DecodeError> {
    let mut object = Object::new();
    let left = Cell::new(most);
    let level = Level {
        depth: MAX_DEPTH,
        left: &left,
    };
    merge(message, &mut object, bytes, level)?;
    Ok((object, most - left.get()))
}

/// The remaining nesting depth and the remaining memory, which all levels share.
#[derive(Debug, Clone, Copy)]
struct Level<'l> {
    depth: u32,
    left: &'l Cell<usize>,
}

impl Level<'_> {
    /// Enters a nested message whose JSON takes `n_bytes`.
    fn deeper(self, n_bytes: usize) -> Result<Self, DecodeError> {
        let depth = self.depth.checked_sub(1);
        let depth = depth.ok_or_else(|| DecodeError::invalid("is nested too deeply"))?;
        self.take(n_bytes)?;
        Ok(Self { depth, ..self })
    }

    /// Charges `n_bytes` for a value.
    fn take(self, n_bytes: usize) -> Result<(), DecodeError> {
        let left = self.left.get().checked_sub(n_bytes);
        let left = left.ok_or_else(|| DecodeError::invalid("holds too many values"))?;
        self.left.set(left);
        Ok(())
    }
}

/// The wire type of a field.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Wire {
    Varint,
    Fixed64,
    Bytes,
    Group,
    EndGroup,
    Fixed32,
}

fn malformed() -> DecodeError {
    DecodeError::invalid("is not a protocol buffer of this type")
}

/// The undecoded rest of a message.
struct Reader<'b>(&'b [u8]);

impl<'b> Reader<'b> {
    fn take(&mut self, n: usize) -> Result<&'b [u8], DecodeError> {
        let (taken, rest) = self.0.split_at_checked(n).ok_or_else(malformed)?;
        self.0 = rest;
        Ok(taken)
    }

    fn varint(&mut self) -> Result<u64, DecodeError> {
        let mut number = 0;
        for shift in (0..64).step_by(7) {
            let [byte] = self.take(1)? else {
                return Err(malformed());
            };
            let bits = u64::from(byte & 0x7f);
            // Only one bit of the tenth byte fits into 64 bits.
            if shift == 63 && bits > 1 {
                return Err(malformed());
            }
            number |= bits << shift;
            if byte & 0x80 == 0 {
                return Ok(number);
            }
        }
        Err(malformed())
    }

    /// The number and wire type of the next field; `None` at the end.
    fn key(&mut self) -> Result<Option<(u32, Wire)>, DecodeError> {
        if self.0.is_empty() {
            return Ok(None);
        }
        let key = u32::try_from(self.varint()?).map_err(|_| malformed())?;
        let wire = match key & 7 {
            0 => Wire::Varint,
            1 => Wire::Fixed64,
            2 => Wire::Bytes,
            3 => Wire::Group,
            4 => Wire::EndGroup,
            5 => Wire::Fixed32,
            _ => return Err(malformed()),
        };
        match key >> 3 {
            0 => Err(malformed()),
            number => Ok(Some((number, wire))),
        }
    }

    fn bytes(&mut self) -> Result<&'b [u8], DecodeError> {
        let n = usize::try_from(self.varint()?).map_err(|_| malformed())?;
        self.take(n)
    }

    fn skip(&mut self, number: u32, wire: Wire, level: Level<'_>) -> Result<(), DecodeError> {
        match wire {
            Wire::Varint => self.varint().map(drop),
            Wire::Fixed64 => self.take(8).map(drop),
            Wire::Bytes => self.bytes().map(drop),
            Wire::Fixed32 => self.take(4).map(drop),
            Wire::Group => {
                let level = level.deeper(0)?;
                loop {
                    match self.key()?.ok_or_else(malformed)? {
                        (end, Wire::EndGroup) if end == number => return Ok(()),
                        (inner, wire) => self.skip(inner, wire, level)?,
                    }
                }
            }
            Wire::EndGroup => Err(malformed()),
        }
    }
}

/// Decodes the fields of a message into an object that may already have members: a repeated message is merged.
fn merge(message: &Message, object: &mut Object, bytes: &[u8], level: Level<'_>) -> Result<(), DecodeError> {
    let level = level.deeper(OBJECT)?;
    let mut reader = Reader(bytes);
    while let Some((number, wire)) = reader.key()? {
        let Some(field) = message.field(number) else {
            reader.skip(number, wire, level)?;
            continue;
        };
        value(message, field, object, &mut reader, wire, level)
            .map_err(|error| error.in_field(field.json))?;
    }
    Ok(())
}

/// Decodes one value of a field and adds it to `object`.
fn value(
    message: &Message,
    field: &Field,
    object: &mut Object,
    reader: &mut Reader<'_>,
    wire: Wire,
    level: Level<'_>,
) -> Result<(), DecodeError> {
    if wire != wire_of(field.kind) {
        return Err(malformed());
    }
    match field.shape {
        Shape::Many => {
            let list = object
                .entry(field.json)
                .or_insert_with(|| Value::Array(Vec::new()));
            let Value::Array(list) = list else {
                return Err(malformed());
            };
            level.take(VALUE)?;
            let mut element = Value::Null;
            single(field.kind, &mut element, reader, level).map_err(|error| error.in_element(list.len()))?;
            list.push(element);
        }
        Shape::Map => {
            let members = object
                .entry(field.json)
                .or_insert_with(|| Value::Object(Object::new()));
            let Value::Object(members) = members else {
                return Err(malformed());
            };
            let (key, member) = entry(field.kind, reader.bytes()?, level)?;
            members.insert(key, member);
        }
        Shape::OneOf(group) => {
            // The last member of a oneof wins and replaces the others.
            for other in message.fields {
                if other.shape == Shape::OneOf(group) && other.number != field.number {
                    object.remove(other.json);
                }
            }
            let mut current = object.remove(field.json).unwrap_or_default();
            single(field.kind, &mut current, reader, level)?;
            object.insert(field.json.to_owned(), current);
        }
        Shape::Optional | Shape::One => {
            let mut current = object.remove(field.json).unwrap_or_default();
            single(field.kind, &mut current, reader, level)?;
            if field.shape == Shape::Optional || !is_default(field.kind, &current) {
                object.insert(field.json.to_owned(), current);
            }
        }
    }
    Ok(())
}

const fn wire_of(kind: Kind) -> Wire {
    match kind {
        Kind::Bool | Kind::Int32 | Kind::Enum(_) => Wire::Varint,
        Kind::Text | Kind::Bytes | Kind::Message(_) | Kind::Struct | Kind::Value | Kind::Timestamp => {
            Wire::Bytes
        }
    }
}

/// Returns `true` if a field without presence has its default value, so it can be omitted.
fn is_default(kind: Kind, value: &Value) -> bool {
    match kind {
        Kind::Text | Kind::Bytes => value == "",
        Kind::Bool => value == false,
        Kind::Int32 => value == 0,
        Kind::Enum(names) => value.as_str() == names.name_of(0),
        Kind::Message(_) | Kind::Struct | Kind::Value | Kind::Timestamp => false,
    }
}

/// Decodes a value into `place`, which holds the previous value of the field, if any.
fn single(
    kind: Kind,
    place: &mut Value,
    reader: &mut Reader<'_>,
    level: Level<'_>,
) -> Result<(), DecodeError> {
    *place = match kind {
        Kind::Text => Value::String(text(reader.bytes()?)?),
        Kind::Bytes => Value::String(encode_base64(reader.bytes()?)),
        Kind::Bool => Value::Bool(reader.varint()? != 0),
        Kind::Int32 => int32(reader.varint()?).into(),
        Kind::Enum(names) => {
            let number = int32(reader.varint()?);
            names.name_of(number).map_or_else(|| number.into(), Value::from)
        }
        Kind::Message(message) => {
            let mut object = match place.take() {
                Value::Object(object) => object,
                Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) | Value::Array(_) => {
                    Object::new()
                }
            };
            merge(message, &mut object, reader.bytes()?, level)?;
            Value::Object(object)
        }
        Kind::Struct => {
            let mut object = match place.take() {
                Value::Object(object) => object,
                Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) | Value::Array(_) => {
                    Object::new()
                }
            };
            members(&mut object, reader.bytes()?, level)?;
            Value::Object(object)
        }
        Kind::Value => any(reader.bytes()?, level)?,
        Kind::Timestamp => timestamp(reader.bytes()?, level)?,
    };
    Ok(())
}

fn text(bytes: &[u8]) -> Result<String, DecodeError> {
    let text = std::str::from_utf8(bytes).map_err(|_| DecodeError::invalid("must be UTF-8"))?;
    Ok(text.to_owned())
}

/// Takes the low 32 bits: negative numbers are encoded with 64 bits.
#[expect(
    clippy::cast_possible_truncation,
    reason = "the high bits of an int32 repeat its sign"
)]
const fn int32(number: u64) -> i32 {
    number as i32
}

/// Decodes a map entry, whose key and value may both be absent.
fn entry(kind: Kind, bytes: &[u8], level: Level<'_>) -> Result<(String, Value), DecodeError> {
    let level = level.deeper(VALUE)?;
    let mut reader = Reader(bytes);
    let mut key = String::new();
    let mut value = match kind {
        Kind::Text | Kind::Bytes => "".into(),
        Kind::Bool => false.into(),
        Kind::Int32 => 0.into(),
        Kind::Enum(names) => names.name_of(0).into(),
        Kind::Message(_) | Kind::Struct => Object::new().into(),
        Kind::Value | Kind::Timestamp => Value::Null,
    };
    while let Some((number, wire)) = reader.key()? {
        match number {
            1 if wire == Wire::Bytes => key = text(reader.bytes()?)?,
            2 if wire == wire_of(kind) => {
                single(kind, &mut value, &mut reader, level).map_err(|error| error.in_field(&key))?;
            }
            1 | 2 => return Err(malformed()),
            _ => reader.skip(number, wire, level)?,
        }
    }
    Ok((key, value))
}

/// Decodes a `google.protobuf.Struct`, whose only field is a map of values.
fn members(object: &mut Object, bytes: &[u8], level: Level<'_>) -> Result<(), DecodeError> {
    let level = level.deeper(OBJECT)?;
    let mut reader = Reader(bytes);
    while let Some((number, wire)) = reader.key()? {
        match (number, wire) {
            (1, Wire::Bytes) => {
                let (key, value) = entry(Kind::Value, reader.bytes()?, level)?;
                object.insert(key, value);
            }
            (1, _) => return Err(malformed()),
            (number, wire) => reader.skip(number, wire, level)?,
        }
    }
    Ok(())
}

/// Decodes a `google.protobuf.Value`; an empty one is `null`.
fn any(bytes: &[u8], level: Level<'_>) -> Result<Value, DecodeError> {
    let level = level.deeper(VALUE)?;
    let mut reader = Reader(bytes);
    let mut value = Value::Null;
    while let Some((number, wire)) = reader.key()? {
        value = match (number, wire) {
            (1, Wire::Varint) => {
                reader.varint()?;
                Value::Null
            }
            (2, Wire::Fixed64) => {
                let bytes = reader.take(8)?.try_into().map_err(|_| malformed())?;
                Value::Number(number_of(f64::from_le_bytes(bytes))?)
            }
            (3, Wire::Bytes) => Value::String(text(reader.bytes()?)?),
            (4, Wire::Varint) => Value::Bool(reader.varint()? != 0),
            (5, Wire::Bytes) => {
                let mut object = match value {
                    Value::Object(object) => object,
                    Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) | Value::Array(_) => {
                        Object::new()
                    }
                };
                members(&mut object, reader.bytes()?, level)?;
                Value::Object(object)
            }
            (6, Wire::Bytes) => {
                let mut list = match value {
                    Value::Array(list) => list,
                    Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) | Value::Object(_) => {
                        Vec::new()
                    }
                };
                elements(&mut list, reader.bytes()?, level)?;
                Value::Array(list)
            }
            (1..=6, _) => return Err(malformed()),
            (number, wire) => {
                reader.skip(number, wire, level)?;
                value
            }
        };
    }
    Ok(value)
}

/// Decodes a `google.protobuf.ListValue`.
fn elements(list: &mut Vec<Value>, bytes: &[u8], level: Level<'_>) -> Result<(), DecodeError> {
    let level = level.deeper(VALUE)?;
    let mut reader = Reader(bytes);
    while let Some((number, wire)) = reader.key()? {
        match (number, wire) {
            (1, Wire::Bytes) => {
                let index = list.len();
                list.push(any(reader.bytes()?, level).map_err(|error| error.in_element(index))?);
            }
            (1, _) => return Err(malformed()),
            (number, wire) => reader.skip(number, wire, level)?,
        }
    }
    Ok(())
}

/// Returns a whole number as an integer: the sending client had to convert it to a double.
fn number_of(number: f64) -> Result<Number, DecodeError> {
    if number.fract() == 0.0 && number.abs() < MAX_WHOLE {
        #[expect(clippy::cast_possible_truncation, reason = "the bound was just checked")]
        return Ok(Number::from(number as i64));
    }
    Number::from_f64(number).ok_or_else(|| DecodeError::invalid("must be a finite number"))
}

/// Decodes a `google.protobuf.Timestamp`. An instant outside the years 1 to 9999 becomes a text that is no timestamp.
fn timestamp(bytes: &[u8], level: Level<'_>) -> Result<Value, DecodeError> {
    let (mut seconds, mut nanos) = (0_i64, 0_i32);
    let mut reader = Reader(bytes);
    while let Some((number, wire)) = reader.key()? {
        match (number, wire) {
            (1, Wire::Varint) => seconds = reader.varint()?.cast_signed(),
            (2, Wire::Varint) => nanos = int32(reader.varint()?),
            (1 | 2, _) => return Err(malformed()),
            (number, wire) => reader.skip(number, wire, level)?,
        }
    }
    let is_valid = (0..1_000_000_000).contains(&nanos) && seconds >= -62_135_596_800;
    let instant = jiff::Timestamp::new(seconds, nanos).ok().filter(|_| is_valid);
    Ok(match instant {
        Some(instant) => instant.to_string().into(),
        // No RFC 3339 timestamp: whoever reads the field decides whether the document is lost with it.
        None => format!("{seconds} s, {nanos} ns").into(),
    })
}
