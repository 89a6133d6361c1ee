//! Builders and harnesses shared by tests; never part of a build that ships.
//!
//! [`Workflow`] builds definitions. [`Script`] drives runs of them through the kernel in memory, with a clock that
//! only moves when told, and holds every decision against the kernel's invariants. [`line()`] prints an event
//! in one line, for snapshots.
#![expect(
    clippy::unwrap_used,
    clippy::panic,
    reason = "a harness fails a test by panicking, and its callers are tests"
)]
#![expect(
    clippy::needless_pass_by_value,
    reason = "callers hand over JSON literals; a reference before each would only be noise"
)]

mod log;
mod script;
mod workflow;

pub use log::line;
pub use script::Script;
pub use workflow::Workflow;
