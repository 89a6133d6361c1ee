//! The work port: timers, effects and mailboxes that are due, and their leases.
//!
//! Recovery and polling read only these rows, never all runs. A lease is the right to run one attempt of an
//! effect or to fire a timer. It belongs to an epoch (the lifetime of one process) and ends with it or when
//! it expires.
//!
//! Each row counts the deaths of processes that held it: that had leased it or, for inbox and outbox rows,
//! had claimed it. A row with [`LAST_CHANCE`] deaths is a suspect and handed out only within the quota for
//! suspects, so that a row that crashes its process takes few others with it. A row with [`PARKED`] deaths is
//! no longer handed out until its run is released.

use std::time::Duration;

use async_trait::async_trait;
use tokio::sync::broadcast;
use wopr_core::{RunKey, TenantId, Timestamp};

use crate::{EffectKey, Fence, ReadError, TimerKey, WriteError};

/// Number of deaths at which a row becomes a suspect.
pub const LAST_CHANCE: u32 = 2;
/// Number of deaths at which a row is parked.
pub const PARKED: u32 = 3;

/// Limits of one lease call, in total and per tenant.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Quota {
    /// Maximum rows, not counting suspects.
    pub rows: usize,
    /// Maximum rows per tenant.
    pub per_tenant: usize,
    /// Maximum bytes of effect bodies, and as many again for suspects. The last row handed out may exceed the
    /// limit.
    pub bytes: usize,
    /// Maximum bytes of effect bodies per tenant.
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

/// The lifetime of one process at this store.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Epoch(pub u64);

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LeasedTimer {
    pub run: RunKey,
    pub key: TimerKey,
    /// When the timer became available: when it came due, or when its previous lease expired.
    pub since: Timestamp,
    pub fence: Fence,
    /// Deaths of processes that held the row.
    pub deaths: u32,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LeasedEffect {
    pub run: RunKey,
    pub key: EffectKey,
    pub body: Vec<u8>,
    pub fence: Fence,
    /// Deaths of processes that held the row.
    pub deaths: u32,
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
        self.next_due().await?;
        Ok(())
    }

    /// Begins a new epoch, larger than every earlier one. If the store belongs to one process (SQLite,
    /// memory), every lease of an earlier epoch ends at once, and rows held by an epoch that did not end
    /// cleanly count a death.
    async fn begin_epoch(&self, now: Timestamp) -> Result<Epoch, WriteError>;

    /// Ends an epoch cleanly: the rows it still holds do not count a death.
    async fn end_epoch(&self, epoch: Epoch) -> Result<(), WriteError>;

    /// Records that an epoch is alive. If processes share the store, also counts a death for every row held
    /// by an epoch that has been silent for `silence`. Returns `true` if there were any.
    async fn beat(&self, _epoch: Epoch, _silence: Duration) -> Result<bool, WriteError> {
        Ok(false)
    }

    /// Claims the mailboxes of these runs for an epoch and returns the runs claimed. Skips runs that are
    /// parked or claimed by another epoch, and claims at most `suspects` suspects. Rows that existed when an
    /// earlier epoch died count as held by it.
    async fn claim(
        &self,
        mailbox: Mailbox,
        epoch: Epoch,
        runs: &[RunKey],
        suspects: usize,
    ) -> Result<Vec<RunKey>, WriteError>;

    /// Lets the run tree below `root` grow by up to `wanted` runs, to at most `most` runs in total, and
    /// returns how many were granted. Unused grants are not returned.
    async fn grant(&self, root: &RunKey, wanted: u64, most: u64) -> Result<u64, WriteError>;

    /// Returns at most `limit` runs with parked rows that no batch has recorded yet with
    /// [`crate::Hold::Park`].
    async fn parked(&self, limit: usize) -> Result<Vec<RunKey>, ReadError>;

    /// Leases timers that are due at `due` and not leased, and timers whose lease has expired at `now`, the
    /// longest waiting first. Each gets the epoch, the end `until` and a fence larger than any before. There
    /// are two times because timers come due by the time of day and leases expire by the clock of leases. A
    /// timer remains until an append clears it; an append that sets it again ends its lease and resets its
    /// deaths.
    async fn lease_timers(
        &self,
        epoch: Epoch,
        due: Timestamp,
        now: Timestamp,
        until: Timestamp,
        quota: &Quota,
    ) -> Result<Vec<LeasedTimer>, WriteError>;

    /// Ends the lease of a timer, which becomes due at `due`. A lease that is already lost is not an error.
    async fn release_timer(
        &self,
        run: &RunKey,
        key: &TimerKey,
        fence: Fence,
        due: Timestamp,
    ) -> Result<(), WriteError>;

    /// When the next timer can be leased: when it comes due or its lease expires.
    async fn next_due(&self) -> Result<Option<Timestamp>, ReadError>;

    /// Leases effects that are not leased, the longest enqueued first, then effects whose lease has expired
    /// at `now`, the longest expired first. Each gets the epoch, the end `until` and a fence larger than any
    /// before. No body is read before the store knows how many rows fit the quota.
    async fn lease_effects(
        &self,
        epoch: Epoch,
        now: Timestamp,
        until: Timestamp,
        quota: &Quota,
    ) -> Result<Vec<LeasedEffect>, WriteError>;

    /// Extends a lease, even an expired one, unless the effect was leased again since. `false` means that the
    /// lease is lost and the attempt should stop.
    async fn renew(
        &self,
        run: &RunKey,
        key: &EffectKey,
        fence: Fence,
        until: Timestamp,
    ) -> Result<bool, WriteError>;

    /// Ends a lease, so that the effect can be leased at once. A lease that is already lost is not an error.
    /// Until the effect is leased again, an outcome with the old fence still settles it.
    async fn release(&self, run: &RunKey, key: &EffectKey, fence: Fence) -> Result<(), WriteError>;

    /// Returns at most `limit` runs with unconsumed inbox rows that are neither parked nor claimed by another
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
