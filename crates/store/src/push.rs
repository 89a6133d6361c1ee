//! Push notifications of run updates: subscriptions, pending deliveries, and the leases for sending them.
//!
//! ```text
//!   append --(the run is subscribed to)--> outbox (run, from, to) --expand--> deliveries (subscription, event)
//!                                                                            |
//!                             lease_pushes -> waiting -> settle, settle .. -> rest, or again later
//! ```
//!
//! An append writes at most one outbox row, and only if its run has subscriptions. Expanding that row is
//! guarded by its first event: of two concurrent expansions one is refused, and as both would write the same
//! deliveries, nothing is lost. Leases are per subscription, not per delivery, so the deliveries of a
//! subscription are sent in order. They carry a fencing token like leases of effects. Contents, retries and
//! giving up are decided elsewhere.

use async_trait::async_trait;
use wopr_core::{PrincipalId, RunId, RunKey, Seq, TenantId, Timestamp};

use crate::{Epoch, Fence, Quota, ReadError, WriteError};

/// A subscription to the events of a run.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PushRow {
    /// Unique within the run.
    pub id: String,
    /// Destination and method; opaque to the store and encrypted by the caller.
    pub body: Vec<u8>,
    pub created_at: Timestamp,
}

/// A subscription created with an append: it exists if and only if the append committed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NewPush {
    /// The run to subscribe to. On the batch's own run the subscription covers the events of this batch. Any
    /// other run must exist in the same tenant, and the subscription covers its later events.
    pub run: RunId,
    /// A subscription with the same id is replaced, as by [`Pushes::put_push`].
    pub row: PushRow,
    /// Maximum number of subscriptions of that run.
    pub most: usize,
    /// The current time by the clock of leases.
    pub now: Timestamp,
}

/// The result of registering a subscription.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Put {
    /// The subscription is new and covers events appended from now on.
    Added,
    /// A subscription with the same id was replaced. Its pending deliveries are kept; its lease is lost.
    Replaced,
    /// The run already has the maximum number of subscriptions.
    Full,
    /// The run does not exist.
    Missing,
}

/// Events of a run that have not been expanded into deliveries.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct OutboxRow {
    pub run: RunKey,
    /// The first event.
    pub from: Seq,
    /// The position after the last event.
    pub to: Seq,
}

/// The notification for one event.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Update {
    pub seq: Seq,
    /// Opaque to the store.
    pub body: Vec<u8>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LeasedPush {
    pub run: RunKey,
    pub id: String,
    pub body: Vec<u8>,
    pub fence: Fence,
    /// Change counter at the time of the lease; deliveries added later increase it.
    pub news: u64,
    /// Deaths of processes that held the subscription. It is never parked: with [`crate::LAST_CHANCE`] or
    /// more deaths it is leased as a suspect.
    pub deaths: u32,
}

/// A delivery that is pending or dead-lettered.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DeliveryRow {
    pub run: RunKey,
    pub push: String,
    pub seq: Seq,
    pub body: Vec<u8>,
    pub enqueued_at: Timestamp,
    /// Number of failed attempts.
    pub attempts: u64,
    /// The error of the last attempt.
    pub error: Option<String>,
    /// When the delivery was dead-lettered.
    pub dead_at: Option<Timestamp>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Attempted {
    Delivered,
    /// The delivery stays pending.
    Failed {
        error: String,
    },
    /// The delivery failed for the last time and is dead-lettered.
    GivenUp {
        error: String,
        at: Timestamp,
    },
}

/// What happens to the lease after a delivery attempt.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Then {
    /// The lease is extended to this time.
    GoOn(Timestamp),
    /// The lease ends because nothing is pending. If a delivery was added since the lease began, the
    /// subscription is due at this time.
    Rest(Timestamp),
    /// The lease ends and the subscription is due at this time.
    Due(Timestamp),
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DeliveryFilter {
    pub tenant: TenantId,
    /// Only deliveries of this run.
    pub run: Option<RunId>,
    /// Only deliveries of runs created by this principal.
    pub principal: Option<PrincipalId>,
    /// Only dead-lettered deliveries.
    pub given_up: bool,
}

/// The last delivery seen in a list.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DeliveryCursor {
    pub run: RunId,
    pub push: String,
    pub seq: Seq,
}

/// Subscriptions and their deliveries. Every `now` is by the clock of leases, as in [`crate::Work`].
#[async_trait]
pub trait Pushes: Send + Sync + 'static {
    /// Registers or replaces a subscription. A run may have at most `most`.
    async fn put_push(
        &self,
        run: &RunKey,
        row: PushRow,
        most: usize,
        now: Timestamp,
    ) -> Result<Put, WriteError>;

    /// Lists the subscriptions of a run, oldest first.
    async fn pushes(&self, run: &RunKey) -> Result<Vec<PushRow>, ReadError>;

    /// Removes a subscription and its deliveries; `false` if it does not exist.
    async fn drop_push(&self, run: &RunKey, id: &str) -> Result<bool, WriteError>;

    /// Returns at most `limit` outbox rows that are neither parked nor claimed by another epoch, in key order
    /// after the given run.
    async fn outbox(
        &self,
        epoch: Epoch,
        after: Option<&RunKey>,
        limit: usize,
    ) -> Result<Vec<OutboxRow>, ReadError>;

    /// Turns updates into deliveries, one for each subscription that covers the event, and removes the events
    /// before `to` from the outbox row. Returns `false` and writes nothing if the row is gone or no longer
    /// begins at `from`.
    async fn expand(&self, row: &OutboxRow, updates: &[Update], now: Timestamp) -> Result<bool, WriteError>;

    /// Leases subscriptions that are due and may have pending deliveries, the longest due first. Each gets
    /// the epoch, the end `until` and a fence larger than any before.
    async fn lease_pushes(
        &self,
        epoch: Epoch,
        now: Timestamp,
        until: Timestamp,
        quota: &Quota,
    ) -> Result<Vec<LeasedPush>, WriteError>;

    /// Returns at most `limit` pending deliveries of a subscription, in event order.
    async fn waiting(&self, run: &RunKey, push: &str, limit: usize) -> Result<Vec<DeliveryRow>, ReadError>;

    /// Records the result of an attempt, if there was one, and ends or extends the lease. Returns `false` and
    /// writes nothing if the lease is lost or the subscription is gone.
    async fn settle_push(
        &self,
        lease: &LeasedPush,
        attempted: Option<(Seq, Attempted)>,
        then: Then,
    ) -> Result<bool, WriteError>;

    /// Lists at most `limit` deliveries after the cursor, ordered by run, subscription and event.
    async fn deliveries(
        &self,
        filter: &DeliveryFilter,
        after: Option<&DeliveryCursor>,
        limit: usize,
    ) -> Result<Vec<DeliveryRow>, ReadError>;

    /// Makes dead-lettered deliveries pending again with no failed attempts: all of a subscription, or the
    /// one for `seq`. Returns how many there were.
    async fn retry_push(
        &self,
        run: &RunKey,
        push: &str,
        seq: Option<Seq>,
        now: Timestamp,
    ) -> Result<usize, WriteError>;
}
