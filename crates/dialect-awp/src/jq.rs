//! jq filters in documents.
//!
//! The grammar is that of the crate `jaq-core`, whose parser reads a filter. Its interpreter is not used: nothing stops
//! it in the middle of `def f: f; f`, `try` would catch a spent budget, and its recursion is the machine's stack. So a
//! machine of our own evaluates what is parsed, over the values of the run. Every step and everything that is created
//! is charged to the meter of the evaluation, no filter can catch that the meter is empty, and nesting is bounded.
//!
//! A filter reads the state document and nothing else: there is no `input`, `env`, `debug` or file. `now` is the time of
//! the command. Definitions may not be recursive; `recurse`, `until`, `while` and `repeat` are there. Objects are in the
//! order of their names.

mod alternatives;
mod automaton;
mod binding;
mod builtins;
mod compile;
mod dates;
mod formats;
mod machine;
mod math;
mod numbers;
mod paths;
mod pattern;
mod prelude;
mod search;
mod shapes;
mod term;
mod text;
mod updates;
mod walk;

use std::fmt;

use serde_json::Value;
use wopr_kernel::{Timestamp, cost::Meter};

use machine::{Machine, Stop};
pub(crate) use math::merge;
use term::Program;

/// Maximum length of a filter, in bytes.
const MAX_SOURCE: usize = 16 * 1024;
/// Maximum nesting of brackets in a filter.
const MAX_BRACKETS: usize = 40;
/// Maximum number of words and signs that nest what follows them, around any part of a filter. Each pipe is two levels of
/// the evaluation, so more could not be evaluated.
const MAX_NESTING_WORDS: usize = 60;

/// Why a filter is not accepted, or has no result.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum JqError {
    #[error("parse the filter: {0}")]
    Syntax(String),
    /// The filter is too long, or nests too deep.
    #[error("stay within {limit} {what}")]
    TooLarge { what: &'static str, limit: usize },
    /// The filter asks for something that this host does not offer.
    #[error("compile the filter: {0}")]
    Unknown(String),
    /// The filter itself fails, with a message that may be one of its own.
    #[error("{0}")]
    Raised(String),
    #[error("the filter nests too deep")]
    TooDeep,
    /// The work would exceed the limit of the evaluation or of its decision.
    #[error("the filter is more work than one evaluation, or one decision, may do")]
    TooMuchWork,
}

/// A compiled filter.
pub struct Filter {
    source: Box<str>,
    program: Program,
}

impl fmt::Debug for Filter {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Filter").field(&self.source).finish()
    }
}

impl Filter {
    /// Compiles a filter.
    ///
    /// # Errors
    /// It is not jq, asks for what is not offered, or is too large.
    pub fn compile(source: &str) -> Result<Self, JqError> {
        Ok(Self {
            source: source.into(),
            program: compile::program(source)?,
        })
    }

    /// The result for an input: null without an output, the output if there is one, else an array of all of them.
    ///
    /// # Errors
    /// The filter fails, or takes more than the meter allows.
    pub fn evaluate(&self, input: &Value, now: Timestamp, meter: &Meter<'_>) -> Result<Value, JqError> {
        let machine = Machine::new(&self.program, now, meter);
        let mut outputs = machine.outputs(input).map_err(Stop::into_error)?;
        Ok(match outputs.len() {
            0 => Value::Null,
            1 => outputs.swap_remove(0),
            _ => Value::Array(outputs),
        })
    }

    /// The memory that it takes, approximately, in bytes.
    #[must_use]
    pub fn n_bytes(&self) -> usize {
        size_of::<Self>() + self.source.len() + self.program.n_bytes
    }

    /// The text of the filter.
    #[must_use]
    pub fn source(&self) -> &str {
        &self.source
    }
}

/// Whether jq treats a value as true: every value except `false` and `null`.
#[must_use]
pub const fn is_true(value: &Value) -> bool {
    !matches!(value, Value::Null | Value::Bool(false))
}

#[cfg(test)]
mod tests;
