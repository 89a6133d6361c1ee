//! Encoding JSON to bytes.

use serde_json::Value;

use super::schema::{Kind, Message, Shape};
use crate::{
    a2a::model::decode_base64,
    json::{DecodeError, Object},
    time::Timestamp,
};

/// Wire types.
const VARINT: u32 = 0;
const FIXED64: u32 = 1;
const BYTES: u32 = 2;

/// Encodes a message from its JSON. A member outside the table is an error, so that no data is lost silently.
///
/// # Errors
/// Returns an error if a member is not in the table or does not fit its field.
pub fn write(message: &Message, object: &Object) -> Result<Vec<u8>, DecodeError> {
    let mut out = Vec::new();
    fields(message, object, &mut out)?;
    Ok(out)
}

fn fields(message: &Message, object: &Object, out: &mut Vec<u8>) -> Result<(), DecodeError> {
    let mut n_known = 0;
    for field in message.fields {
        let Some(value) = object.get(field.json) else {
            continue;
        };
        n_known += 1;
        let is_null = value.is_null() && !matches!(field.kind, Kind::Value);
        if !is_null {
            field_value(field.number, field.kind, field.shape, value, out)
                .map_err(|error| error.in_field(field.json))?;
        }
    }
    if n_known == object.len() {
        return Ok(());
    }
    let is_unknown = |name: &&String| !message.fields.iter().any(|field| field.json == name.as_str());
    let name = object.keys().find(is_unknown).map_or("", String::as_str);
    Err(DecodeError::invalid("is not in the table").in_field(name))
}

fn field_value(
    number: u32,
    kind: Kind,
    shape: Shape,
    value: &Value,
    out: &mut Vec<u8>,
) -> Result<(), DecodeError> {
    match (shape, value) {
        (Shape::Many, Value::Array(list)) => {
            for (index, element) in list.iter().enumerate() {
                single(number, kind, element, out).map_err(|error| error.in_element(index))?;
            }
            Ok(())
        }
        (Shape::Map, Value::Object(members)) => {
            for (name, member) in members {
                nested(number, out, |out| {
                    bytes(1, name.as_bytes(), out);
                    single(2, kind, member, out)
                })
                .map_err(|error| error.in_field(name))?;
            }
            Ok(())
        }
        (Shape::Many, _) => Err(DecodeError::wrong_type("an array")),
        (Shape::Map, _) => Err(DecodeError::wrong_type("an object")),
        (Shape::One, value) if is_default(kind, value) => Ok(()),
        (Shape::One | Shape::Optional | Shape::OneOf(_), value) => single(number, kind, value, out),
    }
}

/// Returns `true` if a value equals the default that an absent field has, so it can be omitted.
fn is_default(kind: Kind, value: &Value) -> bool {
    match kind {
        Kind::Text | Kind::Bytes => value == "",
        Kind::Bool => value == false,
        Kind::Int32 => value == 0,
        Kind::Enum(names) => value
            .as_str()
            .is_some_and(|name| names.number_of(name) == Some(0)),
        Kind::Message(_) | Kind::Struct | Kind::Value | Kind::Timestamp => false,
    }
}

fn single(number: u32, kind: Kind, value: &Value, out: &mut Vec<u8>) -> Result<(), DecodeError> {
    match kind {
        Kind::Text => bytes(number, string(value)?.as_bytes(), out),
        Kind::Bytes => bytes(number, &decode_base64(string(value)?)?, out),
        Kind::Bool => {
            let flag = value
                .as_bool()
                .ok_or_else(|| DecodeError::wrong_type("a boolean"))?;
            tag(number, VARINT, out);
            varint(flag.into(), out);
        }
        Kind::Int32 => {
            let number_of = value
                .as_i64()
                .ok_or_else(|| DecodeError::wrong_type("an integer"))?;
            tag(number, VARINT, out);
            // A number of tasks may exceed int32; send the nearest value that fits.
            varint(
                number_of.clamp(i32::MIN.into(), i32::MAX.into()).cast_unsigned(),
                out,
            );
        }
        Kind::Enum(names) => {
            let known = names.number_of(string(value)?);
            let known = known.ok_or_else(|| DecodeError::invalid("is not in the table"))?;
            tag(number, VARINT, out);
            varint(i64::from(known).cast_unsigned(), out);
        }
        Kind::Message(message) => nested(number, out, |out| fields(message, object(value)?, out))?,
        Kind::Struct => nested(number, out, |out| members(object(value)?, out))?,
        Kind::Value => nested(number, out, |out| any(value, out))?,
        Kind::Timestamp => {
            let (seconds, nanos) = instant(string(value)?)?;
            nested(number, out, |out| {
                tag(1, VARINT, out);
                varint(seconds.cast_unsigned(), out);
                tag(2, VARINT, out);
                varint(nanos.into(), out);
                Ok(())
            })?;
        }
    }
    Ok(())
}

/// Splits an RFC 3339 timestamp into seconds since the Unix epoch and nanoseconds. Keeps the precision of the
/// text, although the model has milliseconds.
fn instant(text: &str) -> Result<(i64, u32), DecodeError> {
    let invalid = || DecodeError::invalid("must be an instant");
    Timestamp::parse(text).map_err(|_| invalid())?;
    let instant: jiff::Timestamp = text.parse().map_err(|_| invalid())?;
    let nanos = instant.as_nanosecond();
    let seconds = i64::try_from(nanos.div_euclid(1_000_000_000)).map_err(|_| invalid())?;
    let nanos = u32::try_from(nanos.rem_euclid(1_000_000_000)).map_err(|_| invalid())?;
    Ok((seconds, nanos))
}

fn string(value: &Value) -> Result<&str, DecodeError> {
    value.as_str().ok_or_else(|| DecodeError::wrong_type("a string"))
}

fn object(value: &Value) -> Result<&Object, DecodeError> {
    value
        .as_object()
        .ok_or_else(|| DecodeError::wrong_type("an object"))
}

/// Encodes a `google.protobuf.Struct`.
fn members(members: &Object, out: &mut Vec<u8>) -> Result<(), DecodeError> {
    for (name, member) in members {
        nested(1, out, |out| {
            bytes(1, name.as_bytes(), out);
            nested(2, out, |out| any(member, out))
        })?;
    }
    Ok(())
}

/// Encodes a `google.protobuf.Value`.
fn any(value: &Value, out: &mut Vec<u8>) -> Result<(), DecodeError> {
    match value {
        Value::Null => {
            tag(1, VARINT, out);
            varint(0, out);
        }
        Value::Number(number) => {
            let number = number
                .as_f64()
                .ok_or_else(|| DecodeError::invalid("must be a finite number"))?;
            tag(2, FIXED64, out);
            out.extend_from_slice(&number.to_le_bytes());
        }
        Value::String(text) => bytes(3, text.as_bytes(), out),
        Value::Bool(flag) => {
            tag(4, VARINT, out);
            varint((*flag).into(), out);
        }
        Value::Object(inner) => nested(5, out, |out| members(inner, out))?,
        Value::Array(list) => nested(6, out, |out| {
            for element in list {
                nested(1, out, |out| any(element, out))?;
            }
            Ok(())
        })?,
    }
    Ok(())
}

fn tag(number: u32, wire: u32, out: &mut Vec<u8>) {
    varint((number << 3 | wire).into(), out);
}

fn varint(number: u64, out: &mut Vec<u8>) {
    let mut rest = number;
    while rest >= 0x80 {
        out.push(0x80 | low_bits(rest));
        rest >>= 7;
    }
    out.push(low_bits(rest));
}

fn low_bits(number: u64) -> u8 {
    u8::try_from(number & 0x7f).expect("seven bits fit a byte")
}

fn bytes(number: u32, bytes: &[u8], out: &mut Vec<u8>) {
    tag(number, BYTES, out);
    varint(bytes.len() as u64, out);
    out.extend_from_slice(bytes);
}

/// Encodes a nested message. Its length prefix is inserted afterwards, when the length is known.
fn nested(
    number: u32,
    out: &mut Vec<u8>,
    write: impl FnOnce(&mut Vec<u8>) -> Result<(), DecodeError>,
) -> Result<(), DecodeError> {
    tag(number, BYTES, out);
    let start = out.len();
    write(out)?;
    let mut length = Vec::with_capacity(5);
    varint((out.len() - start) as u64, &mut length);
    out.splice(start..start, length);
    Ok(())
}
