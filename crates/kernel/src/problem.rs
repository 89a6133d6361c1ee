//! Problems of a definition, and their positions.
//!
//! A problem names its place for people (`node 'pay'`) and, if known, for editors: a JSON pointer into the
//! document. Texts are single lines of bounded length, because they contain names from the document.

use std::fmt;

/// Maximum number of problems in one answer; a hostile document could otherwise produce an answer larger than
/// itself.
pub const MAX_PROBLEMS: usize = 100;

/// The part of a member that a problem is about.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Spot {
    #[default]
    Value,
    Name,
    /// Its string value, from this byte offset on.
    Text(usize),
}

/// A rule that a definition breaks, and where.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Problem {
    /// Human-readable: `node 'gate'`, `edge 'e1'`, `definition`.
    pub place: String,
    pub rule: String,
    /// JSON pointer (RFC 6901) of the value; empty for the whole document.
    pub pointer: String,
    /// The part of the member at `pointer`.
    pub spot: Spot,
    /// How to fix the problem.
    pub hint: Option<String>,
    /// The keyword of the schema that is broken, if a schema is.
    pub keyword: Option<&'static str>,
}

impl Problem {
    pub fn new(place: impl Into<String>, rule: impl Into<String>) -> Self {
        Self {
            place: tidy(&place.into(), 200),
            rule: tidy(&rule.into(), 500),
            pointer: String::new(),
            spot: Spot::Value,
            hint: None,
            keyword: None,
        }
    }

    /// Adds the position in the document.
    #[must_use]
    pub fn at(mut self, pointer: impl Into<String>, spot: Spot) -> Self {
        self.pointer = pointer.into();
        self.spot = spot;
        self
    }

    #[must_use]
    pub fn hint(mut self, hint: Option<String>) -> Self {
        self.hint = hint.map(|hint| tidy(&hint, 500));
        self
    }
}

/// Reduces a text to one line of bounded length; a name in a hostile document can be as long as the document.
fn tidy(text: &str, max: usize) -> String {
    let clipped = &text[..text.floor_char_boundary(max)];
    let mut line = clipped
        .split(char::is_whitespace)
        .filter(|word| !word.is_empty())
        .fold(String::with_capacity(clipped.len()), |mut line, word| {
            if !line.is_empty() {
                line.push(' ');
            }
            line.extend(word.chars().map(|c| if c.is_control() { '\u{fffd}' } else { c }));
            line
        });
    if clipped.len() < text.len() {
        line.push('…');
    }
    line
}

impl fmt::Display for Problem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.place, self.rule)?;
        match &self.hint {
            Some(hint) => write!(f, "; {hint}"),
            None => Ok(()),
        }
    }
}

/// Every rule that a definition breaks; never empty.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("accept the workflow definition: {}", join(.0))]
pub struct Problems(pub Vec<Problem>);

fn join(problems: &[Problem]) -> String {
    problems
        .iter()
        .map(ToString::to_string)
        .collect::<Vec<_>>()
        .join("; ")
}
