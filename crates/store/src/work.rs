//! Work rows: what is due, and who may do it.
//!
//! Recovery and polling read these rows and never all runs. A lease is the right to run one attempt of an
//! effect, or the turn to fire a timer; it belongs to an epoch (one life of one process) and ends with it, or at its
//! time.
//!
//! A row counts the deaths of processes that had it in hand: those that leased it or, of inboxes and outboxes, claimed
//! it. From [`LAST_CHANCE`] on a row is handed out only as one of a quota's suspects, so that the row which kills
//! processes does not take its neighbours along. A row that has counted [`PARKED`] is handed out no more until its run
//! is released.

use std::time::Duration;

use async_trait::async_trait;
use tokio::sync::broadcast;
use wopr_core::{RunKey, TenantId, Timestamp};

use crate::{EffectKey, Fence, ReadError, TimerKey, WriteError};

/// Deaths after which a row is handed out as a suspect, beside few others.
pub const LAST_CHANCE: u32 = 2;
/// Deaths after which a row is not handed out any more.
pub const PARKED: u32 = 3;

/// How much may be leased at once, and whose.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Quota {
    /// Rows in all, suspects apart.
    pub rows: usize,
    /// Rows of one tenant.
    pub per_tenant: usize,
    /// Bytes of what effects ask for, in all, and once more for suspects. The last row that is handed out may exceed it.
    pub bytes: usize,
    /// The same of one tenant.
    pub bytes_per_tenant: usize,
    /// Tenants that get none but suspects.
    pub without: Vec<TenantId>,
    /// Rows that have counted [`LAST_CHANCE`] deaths.
    pub suspects: usize,
}

impl Quota {
    /// Claims that no tenant is treated differently.
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

/// Rows of runs that are worked at without a lease.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Mailbox {
    /// What other runs told it.
    Inbox,
    /// What its receivers have to be told.
    Outbox,
}

/// One life of one process.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Epoch(pub u64);

/// A timer handed out.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LeasedTimer {
    /// The run it belongs to.
    pub run: RunKey,
    /// Its name.
    pub key: TimerKey,
    /// Since when it waits: when it came due, or when the lease ended that somebody else had.
    pub since: Timestamp,
    /// The right to give it back.
    pub fence: Fence,
    /// Deaths of processes that had it in hand.
    pub deaths: u32,
}

/// An effect handed out.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LeasedEffect {
    /// The run it belongs to.
    pub run: RunKey,
    /// Its name.
    pub key: EffectKey,
    /// What to do.
    pub body: Vec<u8>,
    /// The right to settle it.
    pub fence: Fence,
    /// Deaths of processes that had it in hand.
    pub deaths: u32,
}

/// That something may have changed which this process did not change itself. A hint may be wrong, late or missing.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Hint {
    /// This run's log may have grown, or there is work to do for it.
    Run(RunKey),
    /// A workflow or a key may have changed.
    Registry,
    /// Hints were lost: anything may have changed.
    Any,
}

/// Handing out what is due.
#[async_trait]
pub trait Work: Send + Sync + 'static {
    /// The time by the clock that the processes of this store share; `None` where that is the caller's own. Leases
    /// are measured by it, so that it does not matter whether the clocks of processes agree.
    async fn time(&self) -> Result<Option<Timestamp>, ReadError> {
        Ok(None)
    }

    /// The latest time that was kept by [`Work::keep_time`], by whomever.
    async fn high_water(&self) -> Result<Option<Timestamp>, ReadError>;

    /// Keeps a time, unless a later one is kept already. A host keeps the time it goes by every now and then, so that
    /// time does not go back when it starts again with a clock that was set back meanwhile.
    async fn keep_time(&self, at: Timestamp) -> Result<(), WriteError>;

    /// Learns whether the store answers and takes writes, in a bounded time and at a bounded cost however many ask. An append
    /// that failed within the last half minute for no reason of its own says no, until another is written.
    async fn ready(&self) -> Result<(), WriteError> {
        self.next_due().await?;
        Ok(())
    }

    /// Begins a new epoch, larger than every earlier one. Where the store belongs to one process (SQLite, memory),
    /// every lease of an earlier epoch ends at once, and what an epoch had in hand that did not end in order counts a
    /// death.
    async fn begin_epoch(&self, now: Timestamp) -> Result<Epoch, WriteError>;

    /// Ends an epoch in order: whatever it still holds counts no death.
    async fn end_epoch(&self, epoch: Epoch) -> Result<(), WriteError>;

    /// Says that an epoch lives. Where processes share the store, counts the deaths of what others had in hand that
    /// have been silent for so long; whether there were any.
    async fn beat(&self, _epoch: Epoch, _silence: Duration) -> Result<bool, WriteError> {
        Ok(false)
    }

    /// Notes that an epoch has the mailboxes of these runs in hand, and says of which: not of those that another epoch
    /// has or that are parked, and of suspects no more than so many. What was there when an earlier epoch died counts as
    /// in hand then.
    async fn claim(
        &self,
        mailbox: Mailbox,
        epoch: Epoch,
        runs: &[RunKey],
        suspects: usize,
    ) -> Result<Vec<RunKey>, WriteError>;

    /// Lets the tree below a root grow by up to so many runs, as long as it has no more than `most` in all; by how many
    /// it may. What is granted and not used is lost.
    async fn grant(&self, root: &RunKey, wanted: u64, most: u64) -> Result<u64, WriteError>;

    /// Runs with rows that are parked and not yet noted as such by a batch ([`crate::Hold::Park`]), at most `limit`.
    async fn parked(&self, limit: usize) -> Result<Vec<RunKey>, ReadError>;

    /// Leases timers that nobody holds and that are due at `due`, and those whose lease is over at `now`, the longest
    /// waiting first: each gets the epoch, the end `until` and a fence larger than any before. A timer comes due by
    /// the time of day and a lease ends by the clock of leases, hence two times. It is there until an append clears
    /// it; an append that sets it anew ends its lease and forgets its deaths.
    async fn lease_timers(
        &self,
        epoch: Epoch,
        due: Timestamp,
        now: Timestamp,
        until: Timestamp,
        quota: &Quota,
    ) -> Result<Vec<LeasedTimer>, WriteError>;

    /// Gives the lease of a timer back, which is due anew at `due`. A lease that is lost already is no error.
    async fn release_timer(
        &self,
        run: &RunKey,
        key: &TimerKey,
        fence: Fence,
        due: Timestamp,
    ) -> Result<(), WriteError>;

    /// When the next timer can be leased: when it comes due, or its lease ends.
    async fn next_due(&self) -> Result<Option<Timestamp>, ReadError>;

    /// Leases effects that nobody holds, the longest enqueued first, then those whose lease is over at `now`, the
    /// longest over first: each gets the epoch, the end `until` and a fence larger than any before. No body is read
    /// before it is known how many fit within the quota.
    async fn lease_effects(
        &self,
        epoch: Epoch,
        now: Timestamp,
        until: Timestamp,
        quota: &Quota,
    ) -> Result<Vec<LeasedEffect>, WriteError>;

    /// Extends a lease, even one that is over as long as nobody else has it. `false` means it is lost: the
    /// attempt should stop.
    async fn renew(
        &self,
        run: &RunKey,
        key: &EffectKey,
        fence: Fence,
        until: Timestamp,
    ) -> Result<bool, WriteError>;

    /// Gives a lease back, so that the effect can be leased at once. A lease that is lost already is no error.
    /// Until somebody leases the effect anew, an outcome won under the old fence still settles it.
    async fn release(&self, run: &RunKey, key: &EffectKey, fence: Fence) -> Result<(), WriteError>;

    /// Runs with unconsumed inbox rows that are neither parked nor in another epoch's hands, in key order after the
    /// given one, at most `limit`.
    async fn runs_with_inbox(
        &self,
        epoch: Epoch,
        after: Option<&RunKey>,
        limit: usize,
    ) -> Result<Vec<RunKey>, ReadError>;

    /// Hints of other processes of this store, from now on; `None` where it has no other process or gives none.
    /// A receiver that lags behind has lost hints, as with [`Hint::Any`].
    fn hints(&self) -> Option<broadcast::Receiver<Hint>> {
        None
    }
}
