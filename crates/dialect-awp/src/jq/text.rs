//! Texts: values as JSON, interpolation, and the formats.

use std::io;

use serde_json::Value;
use wopr_kernel::{cost::Meter, measure::size_of};

use super::{
    binding::Scope,
    formats,
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
        let texts = outputs
            .iter()
            .map(|value| formats::write(format, value, self.meter));
        texts.collect()
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
    const MAX_SHOWN: usize = 14;
    format!("{} ({})", type_of(value), begin(value, MAX_SHOWN))
}

/// A value as JSON text of at most so many bytes. A longer one ends with dots.
pub(super) fn begin(value: &Value, most: usize) -> String {
    const DOTS: &str = "...";
    let mut start = Start {
        bytes: Vec::new(),
        most: most + 1,
    };
    // It fails where the rest of the value is not wanted any more.
    let _ = serde_json::to_writer(&mut start, value);
    let is_whole = start.bytes.len() <= most;
    let text = String::from_utf8_lossy(&start.bytes);
    match is_whole {
        true => text.into_owned(),
        false => format!("{}{DOTS}", &text[..text.floor_char_boundary(most - DOTS.len())]),
    }
}

/// Takes the first bytes of what is written.
struct Start {
    bytes: Vec<u8>,
    most: usize,
}

impl io::Write for Start {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let left = self.most - self.bytes.len();
        self.bytes.extend_from_slice(&bytes[..bytes.len().min(left)]);
        match bytes.len() > left {
            true => Err(io::ErrorKind::WriteZero.into()),
            false => Ok(bytes.len()),
        }
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}
