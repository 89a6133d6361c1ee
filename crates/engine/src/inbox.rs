//! Letting runs hear what other runs told them.
//!
//! The rows are the truth; the set here only says which runs to look at. However many rows a run has, it hears them in
//! one append, and however many runs there are, each has its turn.

use std::{collections::BTreeSet, ops::Bound, time::Duration};

use parking_lot::Mutex;
use tokio::sync::Notify;
use wopr_core::RunKey;

use crate::{Engine, hands::Hands};

/// Runs that hear at once: enough to fill a group commit.
const ROUND: usize = 256;
/// Runs remembered; beyond it the sweep finds them.
const MAX_PENDING: usize = 65_536;
/// Rows read by one page of the sweep.
const SWEEP_PAGE: usize = 256;
/// Pause after a round in which a run could not hear, unless it is left alone for a while of its own.
const AFTER_TROUBLE: Duration = Duration::from_millis(500);

#[derive(Debug, Default)]
pub(crate) struct Inboxes {
    pending: Mutex<Pending>,
    told: Notify,
}

/// Runs that wait for their turn.
#[derive(Debug, Default)]
struct Pending {
    runs: BTreeSet<RunKey>,
    /// The last that had its turn. The next round begins behind it, so that those who are told ever again do not keep
    /// others from theirs.
    last: Option<RunKey>,
    /// Where the last sweep ended because there was no more room, and the next begins.
    swept: Option<RunKey>,
}

impl Inboxes {
    pub(crate) fn tell(&self, run: RunKey) {
        self.pending.lock().add(run, MAX_PENDING);
        self.told.notify_one();
    }

    fn take(&self, most: usize) -> Vec<RunKey> {
        self.pending.lock().take(most)
    }
}

impl Pending {
    /// Takes in a run; `false` if there is no room for it.
    fn add(&mut self, run: RunKey, most: usize) -> bool {
        let has_room = self.runs.len() < most || self.runs.contains(&run);
        if has_room {
            self.runs.insert(run);
        }
        has_room
    }

    /// Takes in a page of a sweep; `false` if the sweep ends here for want of room.
    fn add_page(&mut self, page: Vec<RunKey>, most: usize) -> bool {
        for run in page {
            if !self.add(run.clone(), most) {
                return false;
            }
            self.swept = Some(run);
        }
        true
    }

    /// Takes out a round, in the order of keys, and from the first again after the last.
    fn take(&mut self, most: usize) -> Vec<RunKey> {
        let taken: Vec<_> = match &self.last {
            None => self.runs.iter().take(most).cloned().collect(),
            Some(last) => {
                let behind = self.runs.range((Bound::Excluded(last), Bound::Unbounded));
                behind
                    .chain(self.runs.range(..=last))
                    .take(most)
                    .cloned()
                    .collect()
            }
        };
        for run in &taken {
            self.runs.remove(run);
        }
        if let Some(last) = taken.last() {
            self.last = Some(last.clone());
        }
        taken
    }
}

impl Engine {
    pub(crate) async fn run_inboxes(self) {
        let stop = self.shared.stop.clone();
        let mut next_sweep = tokio::time::Instant::now();
        let mut hearing = Hands::new(ROUND);
        while !stop.is_cancelled() {
            if tokio::time::Instant::now() >= next_sweep {
                self.sweep().await;
                next_sweep = tokio::time::Instant::now() + self.shared.options.poll;
            }
            let runs = self.shared.inboxes.take(hearing.room());
            if runs.is_empty() && hearing.are_empty() {
                tokio::select! {
                    biased;
                    () = stop.cancelled() => {}
                    () = self.shared.inboxes.told.notified() => {}
                    () = self.shared.nudges.inboxes.notified() => next_sweep = tokio::time::Instant::now(),
                    () = tokio::time::sleep_until(next_sweep) => {}
                }
                continue;
            }
            for run in runs {
                // The sweep tells of it again.
                if self.shared.setbacks.is_left_alone(&run) {
                    continue;
                }
                let (engine, key) = (self.clone(), run.clone());
                let has_begun = hearing.begin(run.clone(), async move {
                    let heard = engine.attend(&key, Box::pin(engine.hear(&key))).await;
                    if let Err(error) = &heard {
                        tracing::warn!(run = %key, %error, "inbox not read");
                    }
                    heard.is_ok() || engine.shared.setbacks.is_left_alone(&key)
                });
                if !has_begun {
                    self.shared.inboxes.tell(run);
                }
            }
            let ended = hearing.round().await;
            let is_trouble = ended.into_iter().any(|heard| !heard.unwrap_or(false));
            if is_trouble && self.paused_for(AFTER_TROUBLE).await {
                break;
            }
        }
        hearing.rest().await;
    }

    /// Finds runs with rows that no hint announced: those of an earlier epoch or another process. As many as there is
    /// room for; the next sweep goes on behind them.
    async fn sweep(&self) {
        let Inboxes { pending, told: _ } = &self.shared.inboxes;
        let mut after = pending.lock().swept.clone();
        loop {
            let page = self.shared.store.runs_with_inbox(after.as_ref(), SWEEP_PAGE);
            match page.await {
                Ok(runs) => {
                    let is_last = runs.len() < SWEEP_PAGE;
                    after = runs.last().cloned();
                    let mut pending = pending.lock();
                    if !pending.add_page(runs, MAX_PENDING) {
                        return;
                    }
                    if is_last {
                        pending.swept = None;
                        return;
                    }
                }
                Err(error) => return tracing::warn!(%error, "cannot read inboxes"),
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use wopr_core::{RunId, TenantId, Timestamp};

    use super::*;

    fn run(n: u8) -> RunKey {
        let tenant = TenantId::parse("acme").expect("valid");
        RunKey::new(tenant, RunId::from_parts(Timestamp::from_millis(0), [n; 10]))
    }

    fn runs(numbers: impl IntoIterator<Item = u8>) -> Vec<RunKey> {
        numbers.into_iter().map(run).collect()
    }

    #[test]
    fn runs_told_again_and_again_keep_no_others_from_their_turn() {
        let mut pending = Pending::default();
        pending.add_page(runs(0..10), 99);
        let mut heard = BTreeSet::new();
        for _ in 0..4 {
            // The first are told in every round.
            pending.add_page(runs(0..3), 99);
            let round = pending.take(3);
            assert_eq!(round.len(), 3);
            heard.extend(round);
        }
        assert!(heard.into_iter().eq(runs(0..10)));
        // Behind the last of its keys comes the first.
        pending.add_page(runs(0..10), 99);
        assert_eq!(pending.take(3), runs([2, 3, 4]));
        assert_eq!(pending.take(99), runs([5, 6, 7, 8, 9, 0, 1]));
        assert_eq!(pending.take(3), []);
    }

    #[test]
    fn a_sweep_goes_on_where_there_was_no_more_room() {
        let mut pending = Pending::default();
        assert!(pending.add_page(runs(0..2), 3));
        assert!(!pending.add_page(runs(2..5), 3));
        assert_eq!(pending.swept, Some(run(2)));
        assert_eq!(pending.take(99), runs(0..3));
        // One that is there needs no room.
        assert!(pending.add_page(runs(3..6), 3) && pending.add(run(4), 3) && !pending.add(run(6), 3));
    }
}
