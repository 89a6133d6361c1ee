//! Firing timers: one loop that leases what is due and commands the runs.
//!
//! The rows are the truth. A hint only shortens the sleep; firing twice is harmless, because the append clears the
//! row and the kernel drops what is over. So the lease spares processes that share a store each other's work and is
//! not what keeps it right: that is the sequence. It is short, is not renewed, and a process that dies leaves what it
//! had in hand to whoever looks when it is over.
//!
//! Whoever waits longest is first. A timer that does not fire goes behind those that wait: it is given back for a while
//! later, or, where its run is left alone, stays leased; one whose run somebody holds is waited for beside the others.
//! So however many do not fire, every other has its turn.

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

/// Timers being fired. One that fires may be set again at once, which is another lease and so another fence.
type Firing = TaskPool<(RunKey, TimerKey, Fence), Fired>;

/// Timers fired at once: enough to fill a group commit.
const ROUND: usize = 256;
/// How long a timer is in one process's hands, unless leases are shorter anyhow. Firing takes milliseconds.
const LEASE: Duration = Duration::from_secs(5);
/// Pause before a timer that could not be fired is tried again, and after a round that came to nothing.
const AFTER_TROUBLE: Duration = Duration::from_millis(500);
/// First pause where the store calls a timer due that cannot be leased: its lease ends by another clock than the time of
/// day. It doubles, up to [`AFTER_TROUBLE`], while nothing can be leased: the clocks may differ by much.
const HELD: Duration = Duration::from_millis(20);

/// Wakes the loop when a timer is set that is due before it would look.
#[derive(Debug)]
pub(crate) struct Timers {
    next: Mutex<Option<Timestamp>>,
    earlier: Notify,
    /// Those being fired, shared by tenants.
    slots: Slots,
    suspects: Suspects,
    /// Whether more were due than were leased in the last round.
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
    /// What to lease: as it comes, unless there is more than fits or a tenant has its share in hand already.
    fn quota(&self, load_budget: usize) -> Quota {
        let without = self.slots.crowded();
        let is_behind = self.is_behind.load(Ordering::Relaxed);
        let rows = load_budget.min(self.slots.free());
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
            suspects: self.suspects.load_budget(),
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

/// What became of a timer.
#[derive(Debug)]
enum Fired {
    Yes,
    /// Its run will be tried again after a while of its own.
    LeftAlone,
    /// It has to be tried again soon.
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

    /// Fires the next round of what is due and says how long nothing is, or for how long to leave to others what they
    /// hold.
    async fn fire_due(&self, firing: &mut Firing, held: &mut Duration) -> Result<Duration, WriteError> {
        let shared = &self.shared;
        let load_budget = firing.load_budget();
        let (now, until) = shared.lease_clock.lease(LEASE.min(shared.options.lease));
        let quota = shared.timers.quota(load_budget);
        let leased = shared
            .store
            .lease_timers(shared.epoch, self.now(), now, until, &quota)
            .await?;
        let n_leased = leased.len();
        let is_behind = n_leased >= quota.per_tenant.min(load_budget);
        shared.timers.is_behind.store(is_behind, Ordering::Relaxed);
        if n_leased > 0 {
            *held = HELD;
        }
        for timer in leased {
            // The lease keeps it from coming back at once. When it is over, another process may know better.
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
                // Each lease has a fence of its own, so none is in hand.
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
        // Read before the hint is reset would lose a hint that came in between; so reset first.
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
                // Not by a time of day that may be put right by then: it would be due as much later.
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

    /// Gives a timer back whose tenant has enough in hand; it keeps its place.
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
