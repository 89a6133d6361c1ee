//! Work rows: what is due, and who may do it.
//!
//! Recovery and polling read these rows and never all runs. A lease is the right to run one attempt of an
//! effect, or the turn to fire a timer; it belongs to an epoch (one life of one process) and ends with it, or at its
//! time.

use async_trait::async_trait;
use tokio::sync::broadcast;
use wopr_core::{RunKey, Timestamp};

use crate::{EffectKey, Fence, ReadError, TimerKey, WriteError};

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

    /// Learns whether the store answers and takes writes, in a bounded time and at a bounded cost however many ask. An append
    /// that failed within the last half minute for no reason of its own says no, until another is written.
    async fn ready(&self) -> Result<(), WriteError> {
        self.next_due().await?;
        Ok(())
    }

    /// Begins a new epoch, larger than every earlier one. Where the store belongs to one process (SQLite, memory),
    /// every lease of an earlier epoch ends at once.
    async fn begin_epoch(&self, now: Timestamp) -> Result<Epoch, WriteError>;

    /// Leases timers that nobody holds and that are due at `due`, and those whose lease is over at `now`, the longest
    /// waiting first: each gets the epoch, the end `until` and a fence larger than any before. A timer comes due by
    /// the time of day and a lease ends by the clock of leases, hence two times. It is there until an append clears
    /// it; an append that sets it anew ends its lease.
    async fn lease_timers(
        &self,
        epoch: Epoch,
        due: Timestamp,
        now: Timestamp,
        until: Timestamp,
        limit: usize,
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
    /// longest over first: each gets the epoch, the end `until` and a fence larger than any before.
    async fn lease_effects(
        &self,
        epoch: Epoch,
        now: Timestamp,
        until: Timestamp,
        limit: usize,
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

    /// Runs with unconsumed inbox rows, in key order after the given one, at most `limit`.
    async fn runs_with_inbox(&self, after: Option<&RunKey>, limit: usize) -> Result<Vec<RunKey>, ReadError>;

    /// Hints of other processes of this store, from now on; `None` where it has no other process or gives none.
    /// A receiver that lags behind has lost hints, as with [`Hint::Any`].
    fn hints(&self) -> Option<broadcast::Receiver<Hint>> {
        None
    }
}
