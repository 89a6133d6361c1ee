//! Help for authors of definitions: all problems at once, with position and suggestion; the JSON Schema for
//! editors; lines and columns.
//!
//! This module does not decide whether a definition can run; the decoder does. It explains what the decoder
//! refuses and describes what it accepts.

mod grammar;
mod json_schema;
mod lint;
mod position;
mod suggest;
mod walk;

pub use json_schema::definition_schema;
pub use lint::{Lint, Warning};
pub use position::{Place, locate};

pub(crate) use position::push;
pub(crate) use walk::{Depth, walk};
