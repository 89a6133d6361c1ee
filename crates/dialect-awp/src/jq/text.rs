//! Texts: values as JSON, interpolation, and the formats.

use base64::{Engine, prelude::BASE64_STANDARD};
use serde_json::Value;
use wopr_kernel::{cost::Meter, measure::size_of};

use super::{
    binding::Scope,
    machine::{Flow, Item, Machine, Next, Stop},
    term::{Format, Piece, Term},
};

/// Maximum length of a text that a filter makes, in bytes.
pub(super) const MAX_TEXT: usize = 1024 * 1024;

impl<'t> Machine<'t, '_> {
    /// Writes a text with the outputs of its terms, in each combination of them.
    pub(super) fn write(
        &self,
        format: Format,
        pieces: &'t [Piece],
        scope: &Scope<'t>,
        input: &Item<'_>,
        next: Next<'_>,
    ) -> Flow {
        let mut texts = vec![String::new()];
        for piece in pieces {
            let parts = match piece {
                Piece::Text(text) => vec![text.clone()],
                Piece::Term(term) => self.formatted(format, term, scope, input)?,
            };
            let mut more = Vec::new();
            for text in &texts {
                for part in &parts {
                    more.push(self.joined(text, part)?);
                }
            }
            texts = more;
        }
        for text in texts {
            self.make(input.again(), Value::String(text), next)?;
        }
        Ok(())
    }

    fn formatted(
        &self,
        format: Format,
        term: &'t Term,
        scope: &Scope<'t>,
        input: &Item<'_>,
    ) -> Flow<Vec<String>> {
        let outputs = self.collect(term, scope, input.plain())?;
        let texts = outputs.iter().map(|value| match format {
            Format::Json => json(value, self.meter),
            Format::Text => plain(value, self.meter),
            Format::Uri => plain(value, self.meter).and_then(|text| self.uri(&text)),
            Format::Base64 => plain(value, self.meter).and_then(|text| {
                self.meter.bytes(2 * text.len())?;
                Ok(BASE64_STANDARD.encode(text))
            }),
        });
        texts.collect()
    }

    fn uri(&self, text: &str) -> Flow<String> {
        self.meter.bytes(4 * text.len())?;
        let mut escaped = String::new();
        for byte in text.bytes() {
            if byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_' | b'.' | b'~') {
                escaped.push(char::from(byte));
            } else {
                escaped.push_str(&format!("%{byte:02X}"));
            }
        }
        Ok(escaped)
    }

    /// Two texts, one after the other.
    pub(super) fn joined(&self, left: &str, right: &str) -> Flow<String> {
        let n_bytes = left.len() + right.len();
        fits(n_bytes)?;
        self.meter.bytes(n_bytes)?;
        let mut text = String::with_capacity(n_bytes);
        text.push_str(left);
        text.push_str(right);
        Ok(text)
    }
}

/// Refuses a text that is too long.
pub(super) fn fits(n_bytes: usize) -> Flow {
    match n_bytes > MAX_TEXT {
        true => Err(Stop::Spent),
        false => Ok(()),
    }
}

/// A value as JSON text.
pub(super) fn json(value: &Value, meter: &Meter<'_>) -> Flow<String> {
    let n_bytes = size_of(value);
    fits(n_bytes)?;
    meter.bytes(4 * n_bytes)?;
    let text = value.to_string();
    fits(text.len())?;
    Ok(text)
}

/// A text as it is, and any other value as JSON.
pub(super) fn plain(value: &Value, meter: &Meter<'_>) -> Flow<String> {
    match value {
        Value::String(text) => {
            meter.bytes(text.len())?;
            Ok(text.clone())
        }
        other => json(other, meter),
    }
}

pub(super) const fn type_of(value: &Value) -> &'static str {
    match value {
        Value::Null => "null",
        Value::Bool(_) => "boolean",
        Value::Number(_) => "number",
        Value::String(_) => "string",
        Value::Array(_) => "array",
        Value::Object(_) => "object",
    }
}

/// A value in a message: its type, and its beginning.
pub(super) fn shown(value: &Value) -> String {
    /// As many bytes of a value as jq shows.
    const MAX_SHOWN: usize = 11;
    let text = match value {
        Value::Null | Value::Bool(_) | Value::Number(_) => value.to_string(),
        Value::String(text) => {
            let clipped = &text[..text.floor_char_boundary(MAX_SHOWN)];
            Value::from(clipped).to_string()
        }
        Value::Array(items) => format!("{} items", items.len()),
        Value::Object(fields) => format!("{} fields", fields.len()),
    };
    format!("{} ({text})", type_of(value))
}
