//! Fires timers: one loop that leases due timers and sends their commands to the runs.
//!
//! The rows are authoritative. A hint only shortens the sleep, and firing twice is harmless, because the
//! append clears the row and the kernel ignores timers that are over. The lease only prevents duplicate work
//! between processes that share a store; correctness rests on the sequence check. The lease is short and not
//! renewed: if a process dies, another takes its timers over when the lease expires.
//!
//! The timer that has waited longest fires first. A timer that fails to fire moves behind those that wait: it
//! is released with a later due time or, if its run is in backoff, stays leased. A timer whose run is locked
//! waits concurrently with the others. So timers that do not fire cannot starve those that do.

use std::{
    sync::atomic::{AtomicBool, Ordering},
    time::Duration,
};

use parking_lot::Mutex;
use tokio::sync::Notify;
use tracing::Instrument;
use wopr_core::{Command, RunKey, Timer, Timestamp};
use wopr_store::{Fence, LeasedTimer, Quota, TimerKey, WriteError};

use crate::{
    CommandError, Engine, SideRows, logs::of_run, quarantine::Suspects, slots::Slots, stats::Counters,
    task_pool::TaskPool,
};

/// Timers being fired. A timer may be set again while it fires; the new lease has another fence.
type Firing = TaskPool<(RunKey, TimerKey, Fence), Fired>;

/// Timers fired at once: enough to fill a group commit.
const ROUND: usize = 256;
/// Duration of a timer's lease, unless leases are configured shorter. Firing takes milliseconds.
const LEASE: Duration = Duration::from_secs(5);
/// Pause before a timer that could not be fired is retried, and after a round in which none could.
const AFTER_TROUBLE: Duration = Duration::from_millis(500);
/// First pause if the store has a due timer that cannot be leased, because its lease ends by the clock of
/// leases and not by the time of day. It doubles, up to [`AFTER_TROUBLE`], while nothing can be leased: the
/// two clocks may differ by much.
const HELD: Duration = Duration::from_millis(20);

/// Wakes the loop when a timer is set that is due before the next look.
#[derive(Debug)]
pub(crate) struct Timers {
    next: Mutex<Option<Timestamp>>,
    earlier: Notify,
    /// Timers being fired, shared between tenants.
    slots: Slots,
    suspects: Suspects,
    /// More timers were due than were leased in the last round.
    is_behind: AtomicBool,
}

impl Default for Timers {
    fn default() -> Self {
        Self {
            next: Mutex::default(),
            earlier: Notify::new(),
            slots: Slots::new(ROUND),
            suspects: Suspects::new(1),
            is_behind: AtomicBool::new(false),
        }
    }
}

impl Timers {
    /// The quota for the next lease: no limit per tenant, unless the loop is behind or a tenant has used up
    /// its share.
    fn quota(&self, free: usize) -> Quota {
        let without = self.slots.crowded();
        let is_behind = self.is_behind.load(Ordering::Relaxed);
        let rows = free.min(self.slots.free());
        Quota {
            rows,
            per_tenant: if is_behind || !without.is_empty() {
                self.slots.share().min(rows)
            } else {
                rows
            },
            bytes: usize::MAX,
            bytes_per_tenant: usize::MAX,
            without,
            suspects: self.suspects.free(),
        }
    }

    pub(crate) fn hint(&self, due: Timestamp) {
        let mut next = self.next.lock();
        if next.is_none_or(|next| due < next) {
            *next = Some(due);
            self.earlier.notify_one();
        }
    }
}

#[derive(Debug)]
enum Fired {
    Yes,
    /// The run is in backoff.
    LeftAlone,
    /// The timer has to be retried soon.
    NotNow,
}

impl Engine {
    pub(crate) async fn run_timers(self) {
        let stop = self.shared.stop.clone();
        let mut held = HELD;
        let mut firing = TaskPool::new(ROUND);
        while !stop.is_cancelled() {
            let pause = match self.fire_due(&mut firing, &mut held).await {
                Ok(pause) => pause,
                Err(error) => {
                    tracing::warn!(%error, "cannot lease due timers");
                    AFTER_TROUBLE
                }
            };
            tokio::select! {
                biased;
                () = stop.cancelled() => {}
                () = self.shared.timers.earlier.notified() => {}
                () = self.shared.wake_hints.timers.notified() => {}
                () = tokio::time::sleep(pause) => {}
            }
        }
        firing.rest().await;
    }

    /// Fires the next round of due timers. Returns how long to sleep: until the next timer is due, or until
    /// one leased by another process may be available.
    async fn fire_due(&self, firing: &mut Firing, held: &mut Duration) -> Result<Duration, WriteError> {
        let shared = &self.shared;
        let free = firing.free();
        let (now, until) = shared.lease_clock.lease(LEASE.min(shared.options.lease));
        let quota = shared.timers.quota(free);
        let leased = shared
            .store
            .lease_timers(shared.epoch, self.now(), now, until, &quota)
            .await?;
        let n_leased = leased.len();
        let is_behind = n_leased >= quota.per_tenant.min(free);
        shared.timers.is_behind.store(is_behind, Ordering::Relaxed);
        if n_leased > 0 {
            *held = HELD;
        }
        for timer in leased {
            // Otherwise the timer stays leased, so that it does not come back at once. Another process may
            // succeed later.
            if !shared.run_backoff.is_left_alone(&timer.run) {
                let engine = self.clone();
                let about = (timer.run.clone(), timer.key.clone(), timer.fence);
                let slot = shared.timers.slots.take(&timer.run.tenant);
                let suspect = shared.timers.suspects.begin(timer.deaths);
                let span = of_run(&timer.run);
                let work = async move {
                    let fired = match slot {
                        Some(_) => engine.fire(timer).await,
                        None => engine.postpone(&timer).await,
                    };
                    drop((slot, suspect));
                    fired
                };
                // Cannot fail: each lease has a unique fence, so the key is new.
                let _ = firing.begin(about, work.instrument(span));
            }
        }
        let (mut has_fired, mut has_trouble) = (false, false);
        for fired in firing.round().await {
            match fired.unwrap_or(Fired::NotNow) {
                Fired::Yes => has_fired = true,
                Fired::LeftAlone => {}
                Fired::NotNow => has_trouble = true,
            }
        }
        let is_stuck = has_trouble && !has_fired;
        if is_behind && n_leased > 0 {
            return Ok(if is_stuck { AFTER_TROUBLE } else { Duration::ZERO });
        }
        // Reset the hint before reading: a hint that arrives in between would be lost otherwise.
        shared.timers.next.lock().take();
        let Some(next) = shared.store.next_due().await? else {
            return Ok(shared.options.poll);
        };
        let now = self.now();
        if next <= now {
            if n_leased > 0 {
                return Ok(if is_stuck { AFTER_TROUBLE } else { Duration::ZERO });
            }
            let pause = *held;
            *held = (pause * 2).min(AFTER_TROUBLE);
            return Ok(pause);
        }
        let mut hint = shared.timers.next.lock();
        if hint.is_none_or(|hint| next < hint) {
            *hint = Some(next);
        }
        Ok(Duration::from_millis(next.millis_since(now)).min(shared.options.poll))
    }

    async fn fire(&self, timer: LeasedTimer) -> Fired {
        let LeasedTimer {
            run,
            key,
            since,
            fence,
            deaths: _,
        } = timer;
        let firing = async {
            let command = Timer::parse(&key.0).map(Command::Timer);
            let command = command
                .ok_or_else(|| CommandError::Internal("the key of the timer is not understood".to_owned()))?;
            self.command_fenced(&run, None, &command, SideRows::default(), None)
                .await
        };
        match self.attend(&run, Box::pin(firing)).await {
            Ok(_) => {
                Counters::add(&self.shared.counters.timers_fired, 1);
                Fired::Yes
            }
            Err(error) => {
                tracing::warn!(timer = key.0, %error, "timer not fired");
                if self.shared.run_backoff.is_left_alone(&run) {
                    return Fired::LeftAlone;
                }
                // Not simply the time of day: if the clock is set back later, the timer would be that much
                // later.
                let (steady, _) = self.shared.lease_clock.lease(Duration::ZERO);
                let again = self
                    .now()
                    .min(since.max(steady))
                    .plus_millis(u64::try_from(AFTER_TROUBLE.as_millis()).unwrap_or(u64::MAX));
                if let Err(error) = self.shared.store.release_timer(&run, &key, fence, again).await {
                    tracing::warn!(timer = key.0, %error, "timer not given back, its lease will run out");
                }
                Fired::NotNow
            }
        }
    }

    /// Releases a timer whose tenant has used up its share; it keeps its place.
    async fn postpone(&self, timer: &LeasedTimer) -> Fired {
        let LeasedTimer {
            run,
            key,
            since,
            fence,
            ..
        } = timer;
        let store = &self.shared.store;
        if let Err(error) = store.release_timer(run, key, *fence, *since).await {
            tracing::warn!(timer = key.0, %error, "timer not given back, its lease will run out");
        }
        Fired::NotNow
    }
}
