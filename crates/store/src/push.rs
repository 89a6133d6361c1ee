//! Push notifications of run updates: subscriptions, pending deliveries, and the leases for sending them.
//!
//! ```text
//!   append --(the run is subscribed to)--> outbox (run, from, to) --expand--> deliveries (subscription, event)
//!                                                                            |
//!                      lease the work row -> waiting -> settle, settle .. -> park, or again later
//! ```
//!
//! An append writes at most one outbox row, and only if its run has subscriptions. Expanding that row is
//! guarded by its first event: of two concurrent expansions one is refused, and as both would write the same
//! deliveries, nothing is lost. Each subscription has one row of work ([`crate::Queue::Deliveries`]), created
//! and removed with it. The row is parked while nothing is pending, and leased to send what is: leases are per
//! subscription, not per delivery, so the deliveries of a subscription are sent in order. Contents, retries
//! and giving up are decided elsewhere.

use async_trait::async_trait;
use wopr_core::{PrincipalId, RunId, RunKey, Seq, TenantId, Timestamp};

use crate::{Epoch, Fence, ReadError, Then, WriteError};

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

/// A subscription and the deliveries that its receiver has not had yet.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Pending {
    /// The body of the subscription; empty if nothing is pending.
    pub receiver: Vec<u8>,
    /// In event order.
    pub deliveries: Vec<DeliveryRow>,
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

impl DeliveryFilter {
    /// The run, subscription and sequence number after which a page of the list begins, as SQL compares them.
    pub(crate) fn start<'a>(&'a self, after: Option<&'a DeliveryCursor>) -> (&'a str, &'a str, i64) {
        let first = self.run.as_ref().map_or("", RunId::as_str);
        match after {
            Some(after) if after.run.as_str() >= first => {
                let seq = i64::try_from(after.seq.0).unwrap_or(i64::MAX);
                (after.run.as_str(), &after.push, seq)
            }
            // No delivery sorts before the first event of the empty subscription id.
            Some(_) | None => (first, "", -1),
        }
    }
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

    /// Returns at most `limit` outbox rows that are neither quarantined nor claimed by another epoch, in key order
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

    /// Returns at most `limit` pending deliveries of a subscription.
    async fn waiting(&self, run: &RunKey, push: &str, limit: usize) -> Result<Pending, ReadError>;

    /// Records the result of a delivery attempt and what becomes of the lease of its subscription, whose
    /// deaths are forgotten. Returns `false` and writes nothing if the lease is lost or the subscription is
    /// gone.
    async fn settle_push(
        &self,
        run: &RunKey,
        push: &str,
        fence: Fence,
        attempted: (Seq, Attempted),
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
