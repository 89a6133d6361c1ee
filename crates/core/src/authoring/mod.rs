//! Help for people who write definitions: every problem at once, with its place and a suggestion; the JSON Schema for
//! editors; lines and columns.
//!
//! Nothing here decides whether a definition can run: the decoder does. This module explains what the decoder refuses
//! and describes what it takes.

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
