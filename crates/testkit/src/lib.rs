//! Builders and harnesses shared by tests; never part of a release build.
//!
//! [`Workflow`] builds definitions. [`Script`] drives their runs through the kernel in memory, with a manual
//! clock, and checks the kernel's invariants after every decision. [`line()`] prints an event in one line,
//! for snapshots, and [`kind`] names it.
#![expect(
    clippy::unwrap_used,
    clippy::panic,
    reason = "a harness fails a test by panicking, and its callers are tests"
)]
#![expect(
    clippy::needless_pass_by_value,
    reason = "callers hand over JSON literals; a reference before each would only be noise"
)]

mod handoffs;
mod log;
mod orchestration;
mod samples;
mod script;
mod workflow;

pub use handoffs::note_handoff;
pub use log::{N_KINDS, kind, line};
pub use orchestration::orchestrations;
pub use samples::agent_events;
pub use script::Script;
pub use workflow::Workflow;
