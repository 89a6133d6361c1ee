//! The log port of wopr and its three implementations.
//!
//! A store keeps the logs of runs and the rows that commit with an append. It knows no business rules: the
//! bodies of events, snapshots and run messages are opaque bytes here.
//!
//! - [`Log`] appends and reads.
//! - [`Work`] leases what is due: timers, effects and deliveries.
//! - [`Offers`] leases work to programs outside this host.
//! - [`Registry`] keeps workflow versions and API keys.
//! - [`Pushes`] keeps subscriptions and their deliveries.
//! - [`Retention`] removes runs.
//! - [`AgentMemory`] keeps what agents remember.
//! - [`StoredSecrets`] keeps encrypted secrets of tenants.
//! - [`Spending`] keeps what models took.
//!
//! A [`Store`] is all nine.

mod agent_memory;
mod batch;
mod cause;
mod check;
mod error;
mod log;
mod memory;
mod offers;
pub mod postgres;
mod push;
mod readiness;
mod registry;
mod retention;
mod secrets;
pub mod slots;
mod spending;
pub mod sqlite;
mod timeout;
pub mod turns;
mod vitals;
mod work;

pub use agent_memory::{AgentMemory, MemoryEntry, MemoryQuery, MemoryRoom, MemoryRow, MemoryUse};
pub use batch::{
    Batch, BlobRow, ChildRow, ERROR_CODE_BYTES, Ended, Fence, Guard, Hold, IdempotencyKey, IdempotencyRecord,
    InboxRow, MessageRow, Moved, Parked, Snapshot, StoredEvent, Summary, WorkKey, WorkRow, WorkState,
};
pub use cause::Cause;
pub use error::{AppendError, ReadError, WriteError};
pub use log::{
    EventPage, INBOX_ROWS, Load, Loaded, Log, MESSAGES_BYTES, Match, PAGE_BYTES, PhaseCursor, PhaseFilter,
    PhasePage, RunFilter, RunPage,
};
pub use memory::MemoryStore;
pub use offers::{
    LeasedOffers, LostOffer, MOST_COUNTED, Offer, OfferRequest, OfferThen, OfferedQueue, Offers, Outage,
};
pub use postgres::PostgresStore;
pub use push::{
    Attempted, DeliveryCursor, DeliveryFilter, DeliveryRow, NewPush, OutboxRow, Pending, PushRow, Pushes,
    Put, Update,
};
pub use registry::{KeyRow, Registry, Revision, WorkflowChange, WorkflowRow};
pub use retention::{Child, EndedRoots, Removal, Retention, Swept};
pub use secrets::{SecretRow, StoredSecrets};
pub use spending::{MOST_ADDED, Spenders, Spending, SpentRow};
pub use sqlite::SqliteStore;
pub use timeout::with_timeout;
pub use work::{
    CallDeliveryCursor, CallDeliveryFilter, CallDeliveryRow, Epoch, HOPELESS, Hint, LAST_CHANCE, Leased,
    Mailbox, Parking, QUARANTINED, Queue, Quota, Then, Times, Work,
};

pub trait Store:
    Log + Work + Offers + Registry + Pushes + Retention + AgentMemory + StoredSecrets + Spending + std::fmt::Debug
{
}

impl<T> Store for T where
    T: Log
        + Work
        + Offers
        + Registry
        + Pushes
        + Retention
        + AgentMemory
        + StoredSecrets
        + Spending
        + std::fmt::Debug
{
}
