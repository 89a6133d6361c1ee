//! The text writer of expressions: printed values and JSON.

use std::{fmt::Display, io};

use serde_json::Number;

use super::{
    ExpressionError, MAX_OUTPUT,
    value::{Val, deep, fail},
};
use crate::cost::Meter;

/// Cost of writing an integer, besides its digits.
const WHOLE: u64 = 4;
/// Cost of writing a float, besides its digits: finding its shortest form takes longer.
const FRACTION: u64 = 10;

type Result<T> = std::result::Result<T, ExpressionError>;

/// A text that is being written; every byte is charged, and its length is bounded.
#[derive(Debug)]
pub(crate) struct Out<'m, 'b> {
    meter: &'m Meter<'b>,
    bytes: Vec<u8>,
    /// The error that stopped the output.
    error: Option<ExpressionError>,
}

impl<'m, 'b> Out<'m, 'b> {
    pub(crate) fn new(meter: &'m Meter<'b>) -> Self {
        Self {
            meter,
            bytes: Vec::new(),
            error: None,
        }
    }

    pub(crate) fn push(&mut self, text: &str) -> Result<()> {
        if self.bytes.len() + text.len() > MAX_OUTPUT {
            return Err(ExpressionError::TooLong(MAX_OUTPUT));
        }
        // A growing buffer allocates up to twice its content.
        self.meter.bytes(2 * text.len())?;
        self.bytes.extend_from_slice(text.as_bytes());
        Ok(())
    }

    pub(crate) fn finish(self) -> Result<String> {
        String::from_utf8(self.bytes).map_err(|error| fail(error.to_string()))
    }

    /// Writes a value as templates show it: a list or an object as JSON.
    pub(crate) fn print(&mut self, value: &Val<'_>) -> Result<()> {
        match value {
            Val::Undefined => Ok(()),
            Val::None => self.push("None"),
            Val::Bool(true) => self.push("True"),
            Val::Bool(false) => self.push("False"),
            Val::Int(n) => self.number(WHOLE, n),
            Val::Float(n) => self.number(FRACTION, decimal(*n)),
            Val::Text(text) => self.push(text.as_str()),
            Val::Seq(_) | Val::Map(_) => self.json(value),
        }
    }

    fn number(&mut self, cost: u64, number: impl Display) -> Result<()> {
        self.meter.charge(cost)?;
        self.push(&number.to_string())
    }

    /// Writes a text unquoted and everything else as JSON.
    pub(crate) fn say(&mut self, value: &Val<'_>) -> Result<()> {
        match value {
            Val::Text(text) => self.push(text.as_str()),
            other => self.json(other),
        }
    }

    pub(crate) fn json(&mut self, value: &Val<'_>) -> Result<()> {
        self.json_at(value, 0)
    }

    fn json_at(&mut self, value: &Val<'_>, depth: usize) -> Result<()> {
        deep(depth)?;
        match value {
            Val::Undefined | Val::None => self.push("null"),
            Val::Bool(flag) => self.push(if *flag { "true" } else { "false" }),
            Val::Int(n) => self.number(WHOLE, n),
            Val::Float(n) => match Number::from_f64(*n) {
                Some(number) => self.number(FRACTION, number),
                None => self.push("null"),
            },
            Val::Text(text) => {
                let written = serde_json::to_writer(&mut *self, text.as_str());
                written.map_err(|error| self.error.take().unwrap_or_else(|| fail(error.to_string())))
            }
            Val::Seq(items) => {
                self.push("[")?;
                for (n, item) in items.iter().enumerate() {
                    if n > 0 {
                        self.push(",")?;
                    }
                    self.json_at(&item, depth + 1)?;
                }
                self.push("]")
            }
            Val::Map(fields) => {
                self.push("{")?;
                for (n, (name, field)) in fields.entries(self.meter)?.into_iter().enumerate() {
                    if n > 0 {
                        self.push(",")?;
                    }
                    self.json_at(&Val::Text(name), depth + 1)?;
                    self.push(":")?;
                    self.json_at(&field, depth + 1)?;
                }
                self.push("}")
            }
        }
    }
}

impl io::Write for Out<'_, '_> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let pushed = match std::str::from_utf8(bytes) {
            Ok(text) => self.push(text),
            Err(error) => Err(fail(error.to_string())),
        };
        match pushed {
            Ok(()) => Ok(bytes.len()),
            Err(error) => {
                self.error = Some(error);
                Err(io::Error::other("no room"))
            }
        }
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// A float as text, always with a decimal point.
fn decimal(n: f64) -> String {
    if n.is_nan() {
        return "NaN".to_owned();
    }
    if n.is_infinite() {
        return if n < 0.0 { "-inf" } else { "inf" }.to_owned();
    }
    let mut text = n.to_string();
    if !text.contains('.') {
        text.push_str(".0");
    }
    text
}
