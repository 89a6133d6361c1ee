//! Firing timers: one loop that reads what is due and commands the runs.
//!
//! The rows are the truth. A hint only shortens the sleep; firing twice is harmless, because the append clears the
//! row and the kernel drops what is over.
//!
//! What is due is gone through in passes, each from the longest due to what was due when it began. A timer that does
//! not fire stays where it is and is tried again by the next pass, so however many do not, every other has its turn.

use std::time::Duration;

use parking_lot::Mutex;
use tokio::{sync::Notify, task::JoinSet};
use wopr_core::{Command, RunKey, Timer, Timestamp};
use wopr_store::{DueTimer, ReadError, TimerKey};

use crate::{CommandError, Engine, Extras, stats::Counters};

/// Timers fired at once: enough to fill a group commit.
const ROUND: usize = 256;
/// Pages read at most to find a round of timers of runs that are not left alone.
const DEEPEST: usize = 64;
/// Pause after a round in which no run could be commanded and after a pass in which one could not, and while some are
/// left alone, so that a broken one is no busy loop.
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

/// How far the timers that are due have been gone through.
struct Pass {
    /// What came due later is left for the next pass, so that this one ends.
    until: Timestamp,
    /// The last that was looked at.
    after: Option<DueTimer>,
    /// Whether there are timers of runs that are left alone.
    has_ailing: bool,
    /// Whether a run could not be commanded.
    has_trouble: bool,
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
        let mut pass = None;
        while !stop.is_cancelled() {
            let pause = match self.fire_due(&mut pass).await {
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

    /// Fires the next round of what is due and says how long nothing is.
    async fn fire_due(&self, under_way: &mut Option<Pass>) -> Result<Duration, ReadError> {
        let shared = &self.shared;
        let pass = under_way.get_or_insert_with(|| Pass {
            until: self.now(),
            after: None,
            has_ailing: false,
            has_trouble: false,
        });
        let (timers, has_more) = self.due(pass).await?;
        let mut round = JoinSet::new();
        for DueTimer { due: _, run, key } in timers {
            let engine = self.clone();
            round.spawn(async move { engine.fire(run, key).await });
        }
        let (mut has_fired, mut is_trouble) = (false, false);
        while let Some(fired) = round.join_next().await {
            match fired.unwrap_or(Fired::NotNow) {
                Fired::Yes => has_fired = true,
                Fired::LeftAlone => pass.has_ailing = true,
                Fired::NotNow => is_trouble = true,
            }
        }
        pass.has_trouble |= is_trouble;
        if has_more {
            let is_stuck = is_trouble && !has_fired;
            return Ok(if is_stuck { AFTER_TROUBLE } else { Duration::ZERO });
        }
        let Pass {
            has_ailing,
            has_trouble,
            ..
        } = *pass;
        *under_way = None;
        if has_trouble {
            return Ok(AFTER_TROUBLE);
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

    /// Goes on to the next round of timers, of runs that are not left alone; whether there may be further ones.
    async fn due(&self, pass: &mut Pass) -> Result<(Vec<DueTimer>, bool), ReadError> {
        let mut timers: Vec<DueTimer> = Vec::with_capacity(ROUND);
        for _ in 0..DEEPEST {
            let limit = ROUND - timers.len();
            let page = self
                .shared
                .store
                .due_timers(pass.until, pass.after.as_ref(), limit);
            let page = page.await?;
            let n_read = page.len();
            if let Some(last) = page.last() {
                pass.after = Some(last.clone());
            }
            let n_before = timers.len();
            let sound = |timer: &DueTimer| !self.shared.setbacks.is_left_alone(&timer.run);
            timers.extend(page.into_iter().filter(sound));
            pass.has_ailing |= timers.len() - n_before < n_read;
            if n_read < limit {
                return Ok((timers, false));
            }
            if timers.len() == ROUND {
                break;
            }
        }
        Ok((timers, true))
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
