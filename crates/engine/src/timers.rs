//! Firing timers: one loop that reads what is due and commands the runs.
//!
//! The rows are the truth. A hint only shortens the sleep; firing twice is harmless, because the append clears the
//! row and the kernel drops what is over.

use std::time::Duration;

use parking_lot::Mutex;
use tokio::{sync::Notify, task::JoinSet};
use wopr_core::{Command, RunKey, Timer, Timestamp};
use wopr_store::{ReadError, TimerKey};

use crate::{CommandError, Engine, Extras, stats::Counters};

/// Timers fired at once: enough to fill a group commit.
const ROUND: usize = 256;
/// Timers read at most to find a round of runs that are not left alone.
const DEEPEST: usize = 64 * ROUND;
/// Pause after a round in which a run could not be commanded, and while some are left alone, so that a broken one is no
/// busy loop.
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

/// What is due.
struct Due {
    timers: Vec<(RunKey, TimerKey)>,
    /// Whether there are timers of runs that are left alone.
    has_ailing: bool,
    /// Whether there may be further ones.
    has_more: bool,
}

/// What became of a timer.
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
    async fn fire_due(&self) -> Result<Duration, ReadError> {
        let shared = &self.shared;
        let Due {
            timers,
            mut has_ailing,
            has_more,
        } = self.due().await?;
        let has_fired = !timers.is_empty();
        let mut round = JoinSet::new();
        for (key, timer) in timers {
            let engine = self.clone();
            round.spawn(async move { engine.fire(key, timer).await });
        }
        let mut is_trouble = false;
        while let Some(fired) = round.join_next().await {
            match fired.unwrap_or(Fired::NotNow) {
                Fired::Yes => {}
                Fired::LeftAlone => has_ailing = true,
                Fired::NotNow => is_trouble = true,
            }
        }
        if is_trouble {
            return Ok(AFTER_TROUBLE);
        }
        if has_more && has_fired {
            return Ok(Duration::ZERO);
        }
        // Read before the hint is reset would lose a hint that came in between; so reset first.
        let hinted = shared.timers.next.lock().take();
        let (next, longest) = if has_ailing {
            // The earliest that is stored is one of theirs and long due.
            let now = self.now();
            (hinted.filter(|hinted| *hinted > now), AFTER_TROUBLE)
        } else {
            (shared.store.next_due().await?, shared.options.poll)
        };
        let now = self.now();
        let until = next.map_or(longest, |next| Duration::from_millis(next.millis_since(now)));
        let pause = until.min(longest);
        if let Some(next) = next {
            let mut hint = shared.timers.next.lock();
            if hint.is_none_or(|hint| next < hint) {
                *hint = Some(next);
            }
        }
        Ok(pause)
    }

    /// Reads what is due, of runs that are not left alone.
    async fn due(&self) -> Result<Due, ReadError> {
        let mut limit = ROUND;
        loop {
            let mut timers = self.shared.store.due_timers(self.now(), limit).await?;
            let n_read = timers.len();
            timers.retain(|(run, _)| !self.shared.setbacks.is_left_alone(run));
            if n_read < limit || timers.len() >= ROUND || limit >= DEEPEST {
                let has_more = n_read == limit;
                let has_ailing = timers.len() < n_read;
                timers.truncate(ROUND);
                return Ok(Due {
                    timers,
                    has_ailing,
                    has_more,
                });
            }
            limit *= 2;
        }
    }

    async fn fire(&self, key: RunKey, timer: TimerKey) -> Fired {
        let firing = async {
            let command = Timer::parse(&timer.0).map(Command::Timer);
            let command = command
                .ok_or_else(|| CommandError::Internal("the key of the timer is not understood".to_owned()))?;
            self.command_fenced(&key, command, Extras::default(), None).await
        };
        match self.attend(&key, Box::pin(firing)).await {
            Ok(_) => {
                Counters::add(&self.shared.counters.timers_fired, 1);
                Fired::Yes
            }
            Err(error) => {
                tracing::warn!(run = %key, timer = timer.0, %error, "timer not fired");
                if self.shared.setbacks.is_left_alone(&key) {
                    Fired::LeftAlone
                } else {
                    Fired::NotNow
                }
            }
        }
    }
}
