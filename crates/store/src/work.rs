//! The work port: rows that wait for something to be done, and their leases.
//!
//! Recovery and polling read only these rows, never all runs. A lease is the right to work on one row: to fire
//! a timer, to run one attempt of an effect, to send the deliveries of a subscription. It belongs to an epoch
//! (the lifetime of one process) and ends with it or when it expires.
//!
//! ```text
//!             lease                append, settle
//!   due ---------------> leased -------------------> gone
//!    ^ <-- release, expiry --'|
//!    '------ wake, due -------'--> parked
//! ```
//!
//! The column `due` says when a row can be leased; a lease moves it to the lease's own end. A parked row has
//! no lease, and no `due` if it waits to be woken. A row woken while it is leased is due as soon as it is
//! parked, so parking never hides a wake. Each lease has a larger fence than those before. Parking ends the
//! lease for good: the store refuses an outcome that arrives later under its fence.
//!
//! Each row counts the deaths of processes that held it: that had leased it or, for inbox and outbox rows,
//! had claimed it. A row with [`LAST_CHANCE`] deaths is a suspect and handed out only within the quota for
//! suspects, so that a row that crashes its process takes few others with it. A row with [`QUARANTINED`]
//! deaths is no longer handed out until its run is released; an outbox row only with [`HOPELESS`] deaths. Only
//! deliveries are never quarantined: they are given up one by one.

use std::{collections::HashMap, time::Duration};

use async_trait::async_trait;
use tokio::sync::broadcast;
use wopr_core::{PrincipalId, RunId, RunKey, TenantId, Timestamp};

use crate::{Fence, ReadError, WorkKey, WriteError};

/// Number of deaths at which a row becomes a suspect.
pub const LAST_CHANCE: u32 = 2;
/// Number of deaths at which a row is quarantined.
pub const QUARANTINED: u32 = 3;

/// Number of deaths at which what is owed to a client is given up: the deliveries of a subscription, or the events of a run
/// that its subscriptions have not been notified of. Far more than [`QUARANTINED`]: they rarely kill a process, and their
/// run may have ended, so that nobody resumes it.
pub const HOPELESS: u32 = 20;

/// What a row of work is for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Queue {
    /// Commands for runs at a certain time.
    Timers,
    /// Calls to executors.
    Effects,
    /// Subscriptions with pending deliveries.
    Deliveries,
}

impl Queue {
    pub(crate) const ALL: [Self; 3] = [Self::Timers, Self::Effects, Self::Deliveries];

    /// The stored form.
    pub(crate) const fn number(self) -> i64 {
        match self {
            Self::Timers => 0,
            Self::Effects => 1,
            Self::Deliveries => 2,
        }
    }

    /// Returns `true` if rows with this many deaths are not handed out.
    pub(crate) const fn is_quarantined(self, deaths: u32) -> bool {
        match self {
            Self::Timers | Self::Effects => deaths >= QUARANTINED,
            Self::Deliveries => false,
        }
    }
}

/// Limits of one lease call, in total and per tenant.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Quota {
    /// Maximum rows, not counting suspects.
    pub rows: usize,
    /// Maximum rows per tenant.
    pub per_tenant: usize,
    /// Maximum bytes of bodies, and as many again for suspects. The last row handed out may exceed the limit.
    pub bytes: usize,
    /// Maximum bytes of bodies per tenant.
    pub bytes_per_tenant: usize,
    /// Tenants that get only suspects.
    pub without: Vec<TenantId>,
    /// Maximum rows that have counted [`LAST_CHANCE`] deaths.
    pub suspects: usize,
}

impl Quota {
    /// Returns `true` if no limit per tenant applies.
    pub(crate) fn is_plain(&self) -> bool {
        self.per_tenant >= self.rows && self.bytes_per_tenant >= self.bytes && self.without.is_empty()
    }

    /// Selects the rows to hand out: those that have waited longest first, the suspects last.
    pub(crate) fn admit(&self, mut rows: Vec<Candidate>) -> Vec<Candidate> {
        rows.sort_unstable_by(|one, other| {
            (one.since, &one.run, &one.name).cmp(&(other.since, &other.run, &other.name))
        });
        let mut of_tenants: HashMap<TenantId, (usize, usize)> = HashMap::new();
        let (mut handed_out, mut suspects) = (Vec::new(), Vec::new());
        let (mut taken, mut of_suspects) = (0, 0);
        for row in rows {
            if row.deaths >= LAST_CHANCE {
                if suspects.len() < self.suspects && of_suspects < self.bytes {
                    of_suspects += row.n_bytes;
                    suspects.push(row);
                }
                continue;
            }
            let is_without = self.without.contains(&row.run.tenant);
            let (n_rows, of_tenant) = of_tenants.entry(row.run.tenant.clone()).or_default();
            let has_share = *n_rows < self.per_tenant && *of_tenant < self.bytes_per_tenant;
            if has_share && !is_without && handed_out.len() < self.rows && taken < self.bytes {
                *n_rows += 1;
                *of_tenant += row.n_bytes;
                taken += row.n_bytes;
                handed_out.push(row);
            }
        }
        handed_out.append(&mut suspects);
        handed_out
    }
}

/// A row that could be leased, before its body is read.
#[derive(Debug)]
pub(crate) struct Candidate {
    pub(crate) run: RunKey,
    pub(crate) name: String,
    /// When the row became available.
    pub(crate) since: Timestamp,
    pub(crate) deaths: u32,
    pub(crate) n_bytes: usize,
}

impl From<usize> for Quota {
    fn from(rows: usize) -> Self {
        Self {
            rows,
            per_tenant: rows,
            bytes: usize::MAX,
            bytes_per_tenant: usize::MAX,
            without: Vec::new(),
            suspects: rows,
        }
    }
}

/// Rows of a run that are claimed instead of leased.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Mailbox {
    /// Messages from other runs.
    Inbox,
    /// Events that the run's subscriptions have not been notified of.
    Outbox,
}

impl Mailbox {
    /// Number of deaths at which a row is quarantined.
    pub(crate) const fn quarantined(self) -> u32 {
        match self {
            Self::Inbox => QUARANTINED,
            Self::Outbox => HOPELESS,
        }
    }
}

/// The lifetime of one process at this store.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Epoch(pub u64);

/// The times of one lease call. There are two because timers come due by the time of day, and leases expire
/// by the clock of leases.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Times {
    /// Rows without a lease are handed out if they are due at this time.
    pub due: Timestamp,
    /// Leased rows are handed out if their lease has expired at this time.
    pub now: Timestamp,
    /// The end of the new leases.
    pub until: Timestamp,
}

/// A row of work that was just leased.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Leased {
    pub run: RunKey,
    pub key: WorkKey,
    pub body: Vec<u8>,
    /// When the row became available: when it came due, or when its previous lease expired.
    pub since: Timestamp,
    pub fence: Fence,
    /// Deaths of processes that held the row.
    pub deaths: u32,
}

/// A delivery to the peer of a call: a row of the queue of effects that is no attempt.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CallDeliveryRow {
    pub run: RunKey,
    pub key: WorkKey,
    pub body: Vec<u8>,
    /// `None` if the row waits to be woken.
    pub due: Option<Timestamp>,
    pub is_leased: bool,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CallDeliveryFilter {
    pub tenant: TenantId,
    /// Only deliveries of this run.
    pub run: Option<RunId>,
    /// Only deliveries of runs created by this principal.
    pub principal: Option<PrincipalId>,
    /// Only rows that wait to be woken.
    pub parked: bool,
}

/// The last delivery seen in a list.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CallDeliveryCursor {
    pub run: RunId,
    pub name: String,
}

/// What becomes of a lease.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Then {
    /// It lasts until this time, even if it has expired.
    Renew(Timestamp),
    /// It ends, and the row is due at this time. Until the row is leased again, an outcome with its fence
    /// still counts.
    Release(Timestamp),
    /// It ends, and its holder is done for now: the deaths are forgotten, and an outcome with its fence no
    /// longer counts. The row is due at this time, or waits to be woken. If it was woken since it was leased,
    /// it is due then at the latest.
    Park(Option<Timestamp>),
}

impl Then {
    /// The stored form: a number for the statements of the databases, and the new `due`.
    pub(crate) const fn columns(self) -> (i64, Option<Timestamp>) {
        match self {
            Self::Renew(until) => (0, Some(until)),
            Self::Release(due) => (1, Some(due)),
            Self::Park(due) => (2, due),
        }
    }
}

/// A lease whose row is to be parked, as [`Then::Park`].
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Parking {
    pub run: RunKey,
    pub key: WorkKey,
    pub fence: Fence,
    pub due: Option<Timestamp>,
}

/// A possible change by another process. A hint may be wrong, late or missing.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Hint {
    /// The log of this run may have grown, or it may have work to do.
    Run(RunKey),
    /// A workflow or a key may have changed.
    Registry,
    /// Hints were lost: anything may have changed.
    Any,
}

/// Leases and claims of work rows.
#[async_trait]
pub trait Work: Send + Sync + 'static {
    /// The time by the clock that all processes of this store share; `None` if the caller is to use its own
    /// clock. Leases are measured by the shared clock, so the clocks of the processes need not agree.
    async fn time(&self) -> Result<Option<Timestamp>, ReadError> {
        Ok(None)
    }

    /// The latest time stored by [`Work::keep_time`], by any process.
    async fn high_water(&self) -> Result<Option<Timestamp>, ReadError>;

    /// Stores a time, unless a later one is stored already. A host stores its current time periodically, so
    /// that its time does not go backwards if the clock is set back before the next start.
    async fn keep_time(&self, at: Timestamp) -> Result<(), WriteError>;

    /// Checks that the store answers and accepts writes, in bounded time and at bounded cost however many
    /// callers ask. Fails for half a minute after a failed append that was not itself at fault, unless a
    /// later append succeeds.
    async fn ready(&self) -> Result<(), WriteError> {
        self.next_due(Queue::Timers).await?;
        Ok(())
    }

    /// Begins a new epoch, larger than every earlier one. If the store belongs to one process (SQLite,
    /// memory), every lease of an earlier epoch ends at once, and rows held by an epoch that did not end
    /// cleanly count a death.
    async fn begin_epoch(&self, now: Timestamp) -> Result<Epoch, WriteError>;

    /// Ends an epoch cleanly: the rows it still holds do not count a death.
    async fn end_epoch(&self, epoch: Epoch) -> Result<(), WriteError>;

    /// Records that an epoch is alive: deaths that others have counted for it since its last beat no longer count
    /// against the rows it still holds. If processes share the store and `silence` is given, also counts a death for
    /// every row held by an epoch that has been silent for so long, unless this epoch itself could not beat
    /// meanwhile. Returns `true` if there were any such epochs.
    async fn beat(&self, _epoch: Epoch, _silence: Option<Duration>) -> Result<bool, WriteError> {
        Ok(false)
    }

    /// Claims the mailboxes of these runs for an epoch and returns the runs claimed. Skips runs that are
    /// quarantined or claimed by another epoch, and claims at most `suspects` suspects. Rows that existed when an
    /// earlier epoch died count as held by it.
    async fn claim(
        &self,
        mailbox: Mailbox,
        epoch: Epoch,
        runs: &[RunKey],
        suspects: usize,
    ) -> Result<Vec<RunKey>, WriteError>;

    /// Lets the run tree below `root` grow by up to `wanted` runs, to at most `most` runs in total, and
    /// returns how many were granted. Unused grants are not returned. The children that are created with the root count
    /// from the beginning.
    async fn grant(&self, root: &RunKey, wanted: u64, most: u64) -> Result<u64, WriteError>;

    /// Returns at most `limit` runs with quarantined rows that no batch has recorded yet with
    /// [`crate::Hold::Quarantine`].
    async fn quarantined(&self, limit: usize) -> Result<Vec<RunKey>, ReadError>;

    /// Leases rows of a queue that are due and not leased, and rows whose lease has expired, the longest
    /// waiting first and suspects last. Each gets the epoch, a new end and a fence larger than any before. A
    /// row remains until an append ends it; an append that sets it again ends its lease and resets its
    /// deaths. No body is read before the store knows how many rows fit the quota.
    async fn lease(
        &self,
        queue: Queue,
        epoch: Epoch,
        times: Times,
        quota: &Quota,
    ) -> Result<Vec<Leased>, WriteError>;

    /// Renews or ends a lease. Returns `false` and changes nothing if the lease is lost: the row was leased
    /// again, set again or removed, or the lease has ended.
    async fn set_lease(
        &self,
        run: &RunKey,
        key: &WorkKey,
        fence: Fence,
        then: Then,
    ) -> Result<bool, WriteError>;

    /// Extends a lease, as [`Then::Renew`]. On `false` the attempt should stop.
    async fn renew(
        &self,
        run: &RunKey,
        key: &WorkKey,
        fence: Fence,
        until: Timestamp,
    ) -> Result<bool, WriteError> {
        self.set_lease(run, key, fence, Then::Renew(until)).await
    }

    /// Gives a lease back, as [`Then::Release`].
    async fn release(
        &self,
        run: &RunKey,
        key: &WorkKey,
        fence: Fence,
        due: Timestamp,
    ) -> Result<bool, WriteError> {
        self.set_lease(run, key, fence, Then::Release(due)).await
    }

    /// Parks a row without an append, as [`Then::Park`].
    async fn park(
        &self,
        run: &RunKey,
        key: &WorkKey,
        fence: Fence,
        due: Option<Timestamp>,
    ) -> Result<bool, WriteError> {
        self.set_lease(run, key, fence, Then::Park(due)).await
    }

    /// Parks the rows of several leases, each once. Returns for each whether its lease was still held. After an
    /// error any of them may be parked.
    async fn park_all(&self, rows: &[Parking]) -> Result<Vec<bool>, WriteError>;

    /// Makes a row due at `at`, unless it is due earlier. A leased row keeps its lease and comes due by the
    /// time it is parked. Returns `false` if there is no such row.
    async fn wake(&self, run: &RunKey, key: &WorkKey, at: Timestamp) -> Result<bool, WriteError>;

    /// Lists at most `limit` deliveries to peers of calls after the cursor, ordered by run and name.
    async fn call_deliveries(
        &self,
        filter: &CallDeliveryFilter,
        after: Option<&CallDeliveryCursor>,
        limit: usize,
    ) -> Result<Vec<CallDeliveryRow>, ReadError>;

    /// When the next row of a queue can be leased: when it comes due or its lease expires.
    async fn next_due(&self, queue: Queue) -> Result<Option<Timestamp>, ReadError>;

    /// Returns at most `limit` runs with unconsumed inbox rows that are neither quarantined nor claimed by another
    /// epoch, in key order after the given run.
    async fn runs_with_inbox(
        &self,
        epoch: Epoch,
        after: Option<&RunKey>,
        limit: usize,
    ) -> Result<Vec<RunKey>, ReadError>;

    /// Subscribes to hints from other processes of this store; `None` if there are no other processes or the
    /// store gives no hints. A receiver that lags has lost hints, as with [`Hint::Any`].
    fn hints(&self) -> Option<broadcast::Receiver<Hint>> {
        None
    }
}
