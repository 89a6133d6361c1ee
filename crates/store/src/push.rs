//! Pushes of run updates: the receivers, their pending deliveries, and the leases for sending them.
//!
//! ```text
//!   append --(the run has receivers)--> outbox (run, from, to) --expand--> deliveries (receiver, event)
//!                                                                            |
//!                             lease_pushes -> waiting -> settle, settle .. -> rest, or again later
//! ```
//!
//! An append notes at most one row, and only of a run that has receivers. Expanding that row is guarded by its own
//! beginning: of two who do it at once one is refused, and as both would have written the same, nothing is lost. What
//! is leased is a receiver and not a delivery, so what waits for it is sent in its order, and a lease has a fencing
//! token as that of an effect has. What is told to whom, when to try again and when to give up is not decided here.

use async_trait::async_trait;
use wopr_core::{PrincipalId, RunId, RunKey, Seq, TenantId, Timestamp};

use crate::{Epoch, Fence, Quota, ReadError, WriteError};

/// A receiver of what happens to a run.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PushRow {
    /// Unique within the run.
    pub id: String,
    /// Where and how; opaque to the store, and sealed by whoever made it.
    pub body: Vec<u8>,
    /// When it was set.
    pub created_at: Timestamp,
}

/// A receiver that comes along with an append: it is there if and only if the append is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NewPush {
    /// Whose news it is told: of the batch's own run these events too, of another run of its tenant, which is there
    /// already, whatever comes next.
    pub run: RunId,
    /// The receiver. One that has its id is replaced, as [`Pushes::put_push`] does it.
    pub row: PushRow,
    /// Most receivers that run may have.
    pub most: usize,
    /// The time of the leases.
    pub now: Timestamp,
}

/// What became of a receiver that was to be registered.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Put {
    /// It is new, and hears of what is appended from now on.
    Added,
    /// It took the place of one with its id; what waited for that one waits for it, and a lease of that one is lost.
    Replaced,
    /// The run has as many as it may have.
    Full,
    /// There is no such run.
    Missing,
}

/// Events of a run that its receivers have not been told.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct OutboxRow {
    /// The run.
    pub run: RunKey,
    /// The first of them.
    pub from: Seq,
    /// The one behind the last of them.
    pub to: Seq,
}

/// Something to tell.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Update {
    /// The event it tells of.
    pub seq: Seq,
    /// What; opaque to the store.
    pub body: Vec<u8>,
}

/// A receiver handed out.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LeasedPush {
    /// The run.
    pub run: RunKey,
    /// The receiver.
    pub id: String,
    /// Its body.
    pub body: Vec<u8>,
    /// The right to settle what waits for it.
    pub fence: Fence,
    /// What may have been added later has a larger number.
    pub news: u64,
    /// Deaths of processes that had it in hand. It is handed out however many there were, beside few others.
    pub deaths: u32,
}

/// Something that waits for a receiver, or was given up.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DeliveryRow {
    /// The run.
    pub run: RunKey,
    /// The receiver.
    pub push: String,
    /// The event it tells of.
    pub seq: Seq,
    /// What to tell.
    pub body: Vec<u8>,
    /// Since when it waits.
    pub enqueued_at: Timestamp,
    /// How often it was tried in vain.
    pub attempts: u64,
    /// Why the last attempt was in vain.
    pub error: Option<String>,
    /// When it was given up.
    pub dead_at: Option<Timestamp>,
}

/// How an attempt ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Attempted {
    /// The receiver has it.
    Delivered,
    /// In vain; it waits on.
    Failed {
        /// Why.
        error: String,
    },
    /// In vain for the last time.
    GivenUp {
        /// Why.
        error: String,
        /// When.
        at: Timestamp,
    },
}

/// What becomes of a lease.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Then {
    /// It goes on until then.
    GoOn(Timestamp),
    /// It ends, for nothing waits. If something was added since the lease began, the receiver is due at this time.
    Rest(Timestamp),
    /// It ends, and the receiver is due then.
    Due(Timestamp),
}

/// Which deliveries to list.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DeliveryFilter {
    /// Whose.
    pub tenant: TenantId,
    /// Only those of this run.
    pub run: Option<RunId>,
    /// Only those of runs that this principal began.
    pub principal: Option<PrincipalId>,
    /// Only those that were given up.
    pub given_up: bool,
}

/// A place in the list of deliveries.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DeliveryCursor {
    /// The run of the last one seen.
    pub run: RunId,
    /// Its receiver.
    pub push: String,
    /// Its event.
    pub seq: Seq,
}

/// Receivers, and what is on its way to them. Every `now` is that of the leases, as in [`crate::Work`].
#[async_trait]
pub trait Pushes: Send + Sync + 'static {
    /// Registers a receiver with a run that has fewer than `most`.
    async fn put_push(
        &self,
        run: &RunKey,
        row: PushRow,
        most: usize,
        now: Timestamp,
    ) -> Result<Put, WriteError>;

    /// The receivers of a run, the one set first ahead.
    async fn pushes(&self, run: &RunKey) -> Result<Vec<PushRow>, ReadError>;

    /// Removes a receiver and whatever waits for it; `false` if there is none.
    async fn drop_push(&self, run: &RunKey, id: &str) -> Result<bool, WriteError>;

    /// Runs with something to tell that are neither parked nor in another epoch's hands, in key order after the given
    /// one, at most `limit`.
    async fn outbox(
        &self,
        epoch: Epoch,
        after: Option<&RunKey>,
        limit: usize,
    ) -> Result<Vec<OutboxRow>, ReadError>;

    /// Makes deliveries of updates, one for each receiver that hears of their event, and takes the events up to `to`
    /// out of the row. `false` means that the row is not as it was read, or not there: nothing was written.
    async fn expand(&self, row: &OutboxRow, updates: &[Update], now: Timestamp) -> Result<bool, WriteError>;

    /// Leases receivers for whom something may wait and who are due, the longest due first: each gets the epoch, the
    /// end `until` and a fence larger than any before.
    async fn lease_pushes(
        &self,
        epoch: Epoch,
        now: Timestamp,
        until: Timestamp,
        quota: &Quota,
    ) -> Result<Vec<LeasedPush>, WriteError>;

    /// What waits for a receiver, the earliest event first, at most `limit`.
    async fn waiting(&self, run: &RunKey, push: &str, limit: usize) -> Result<Vec<DeliveryRow>, ReadError>;

    /// Says how an attempt ended, if there was one, and what becomes of the lease. `false` means that the lease is
    /// lost, or the receiver gone: nothing was written.
    async fn settle_push(
        &self,
        lease: &LeasedPush,
        attempted: Option<(Seq, Attempted)>,
        then: Then,
    ) -> Result<bool, WriteError>;

    /// Lists deliveries by run, receiver and event, after the given place, at most `limit`.
    async fn deliveries(
        &self,
        filter: &DeliveryFilter,
        after: Option<&DeliveryCursor>,
        limit: usize,
    ) -> Result<Vec<DeliveryRow>, ReadError>;

    /// Lets what was given up wait again as if it were new: all of a receiver's, or the one of an event. Says how many
    /// there were.
    async fn retry_push(
        &self,
        run: &RunKey,
        push: &str,
        seq: Option<Seq>,
        now: Timestamp,
    ) -> Result<usize, WriteError>;
}
