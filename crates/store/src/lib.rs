//! The log port of wopr, and what implements it.
//!
//! A store keeps runs: their logs, and the rows that belong to one append. It knows no business
//! rules. [`Log`] appends and reads, [`Work`] hands out what is due, [`Registry`] keeps what is
//! registered, [`Pushes`] whom to tell what, [`Retention`] takes runs out again; a [`Store`] is all five. Bodies of events,
//! snapshots and run messages are opaque bytes here.

mod batch;
mod check;
mod error;
mod log;
mod memory;
pub mod postgres;
mod push;
mod registry;
mod retention;
pub mod slots;
pub mod sqlite;
mod timeout;
pub mod turns;
mod vitals;
mod work;

pub use batch::{
    Batch, BlobRow, ChildRow, EffectKey, EffectRow, Fence, Guard, Hold, IdempotencyKey, IdempotencyRecord,
    InboxRow, MessageRow, Settled, Snapshot, StoredEvent, Summary, TaskInterrupt, TaskRow, TaskState,
    TimerKey, TimerRow,
};
pub use error::{AppendError, ReadError, WriteError};
pub use log::{
    EventPage, INBOX_ROWS, Load, Loaded, Log, PAGE_BYTES, RunFilter, RunPage, TaskCursor, TaskFilter,
    TaskPage,
};
pub use memory::MemoryStore;
pub use postgres::PostgresStore;
pub use push::{
    Attempted, DeliveryCursor, DeliveryFilter, DeliveryRow, LeasedPush, NewPush, OutboxRow, PushRow, Pushes,
    Put, Then, Update,
};
pub use registry::{KeyRow, Registry, Revision, WorkflowRow};
pub use retention::{Child, EndedRoots, Removal, Retention, Swept};
pub use sqlite::SqliteStore;
pub use timeout::with_timeout;
pub use work::{Epoch, Hint, LAST_CHANCE, LeasedEffect, LeasedTimer, Mailbox, PARKED, Quota, Work};

/// Everything wopr asks of a database.
pub trait Store: Log + Work + Registry + Pushes + Retention + std::fmt::Debug {}

impl<T: Log + Work + Registry + Pushes + Retention + std::fmt::Debug> Store for T {}
