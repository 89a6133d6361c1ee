//! Firing timers: one loop that reads what is due and commands the runs.
//!
//! The rows are the truth. A hint only shortens the sleep; firing twice is harmless, because the append clears the
//! row and the kernel drops what is over.

use std::time::Duration;

use parking_lot::Mutex;
use tokio::{sync::Notify, task::JoinSet};
use wopr_core::{Command, RunKey, Timer, Timestamp};
use wopr_store::TimerKey;

use crate::{Engine, Extras, stats::Counters};

/// Timers fired at once: enough to fill a group commit.
const ROUND: usize = 256;
/// Pause after a round in which a run could not be commanded, so that a broken one is no busy loop.
const AFTER_TROUBLE: Duration = Duration::from_millis(500);

/// Wakes the loop when a timer is set that is due before it would look.
#[derive(Debug, Default)]
pub(crate) struct Timers {
    next: Mutex<Option<Timestamp>>,
    earlier: Notify,
}

impl Timers {
    pub(crate) fn hint(&self, due: Timestamp) {
        let mut next = self.next.lock();
        if next.is_none_or(|next| due < next) {
            *next = Some(due);
            self.earlier.notify_one();
        }
    }
}

impl Engine {
    pub(crate) async fn run_timers(self) {
        let stop = self.shared.stop.clone();
        while !stop.is_cancelled() {
            let pause = match self.fire_due().await {
                Ok(pause) => pause,
                Err(error) => {
                    tracing::warn!(%error, "cannot read due timers");
                    AFTER_TROUBLE
                }
            };
            tokio::select! {
                biased;
                () = stop.cancelled() => {}
                () = self.shared.timers.earlier.notified() => {}
                () = self.shared.nudges.timers.notified() => {}
                () = tokio::time::sleep(pause) => {}
            }
        }
    }

    /// Fires what is due and says how long nothing is.
    async fn fire_due(&self) -> Result<Duration, wopr_store::ReadError> {
        let shared = &self.shared;
        let due = shared.store.due_timers(self.now(), ROUND).await?;
        let is_full = due.len() == ROUND;
        let mut round = JoinSet::new();
        for (key, timer) in due {
            let engine = self.clone();
            round.spawn(async move { engine.fire(key, timer).await });
        }
        let mut is_trouble = false;
        while let Some(fired) = round.join_next().await {
            is_trouble |= !fired.unwrap_or(false);
        }
        if is_trouble {
            return Ok(AFTER_TROUBLE);
        }
        if is_full {
            return Ok(Duration::ZERO);
        }
        // Read before the hint is reset would lose a hint that came in between; so reset first.
        *shared.timers.next.lock() = None;
        let next = shared.store.next_due().await?;
        let now = self.now();
        let until = next.map_or(shared.options.poll, |next| {
            Duration::from_millis(next.millis_since(now))
        });
        let pause = until.min(shared.options.poll);
        if let Some(next) = next {
            let mut hint = shared.timers.next.lock();
            if hint.is_none_or(|hint| next < hint) {
                *hint = Some(next);
            }
        }
        Ok(pause)
    }

    async fn fire(&self, key: RunKey, timer: TimerKey) -> bool {
        let Some(command) = Timer::parse(&timer.0).map(Command::Timer) else {
            tracing::error!(run = %key, timer = timer.0, "timer key not understood");
            return false;
        };
        match self.command_fenced(&key, command, Extras::default(), None).await {
            Ok(_) => {
                Counters::add(&self.shared.counters.timers_fired, 1);
                true
            }
            Err(error) => {
                tracing::warn!(run = %key, timer = timer.0, %error, "timer not fired");
                false
            }
        }
    }
}
