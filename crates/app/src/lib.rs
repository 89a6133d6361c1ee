//! The application layer of wopr: each use case exists once and serves every protocol.
//!
//! A use case takes a [`Caller`], checks that the caller may perform it, makes it take effect once, and fails
//! with an [`Error`]. Protocol faces parse requests into use cases and render the results; they see neither
//! the engine nor the store. This crate contains no protocol, URL or header.

mod answer_interrupt;
mod app;
mod caller;
mod command_run;
mod error;
mod idempotency;
mod keys;
mod last_reads;
mod mask;
mod open_interrupts;
mod questions;
mod read_run;
mod scopes;
mod staleness;
mod start_run;
mod subscriptions;
mod workflows;

pub use app::{App, Options};
pub use caller::{Caller, Forbidden};
pub use error::Error;
pub use last_reads::LastReads;
pub use mask::{EDITED, Mask, REDACTED, definition, is_redacted_definition, reads_artifacts, reference};
pub use open_interrupts::{OpenInterrupts, Waiting};
pub use questions::{AskedAt, MAX_SHOWN, Open, here as question_here, within};
pub use scopes::{Scope, Scopes};
pub use staleness::Looked;
pub use start_run::NewRun;

// Types that use cases take and return besides their own.
pub use wopr_engine::{
    AUTH_REQUIRED_WORKFLOW, Decided, Delivery, Done, Events, Idempotency, NewMessage, NewSubscription,
    Notifier, Opened, RegisterError, Registered, SideRows, Tail, Undelivered, View, WorkflowLimit,
    asks_for_authentication, task_state,
};
pub use wopr_store::{
    BlobRow, DeliveryCursor, DeliveryFilter, DeliveryRow, IdempotencyKey, IdempotencyRecord, KeyRow,
    MessageRow, PushRow, Put, RunFilter, Summary, TaskCursor, TaskFilter, TaskInterrupt, TaskRow, TaskState,
    Update,
};
