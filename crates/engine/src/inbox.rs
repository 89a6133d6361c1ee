//! Letting runs hear what other runs told them.
//!
//! The rows are the truth; the set here only says which runs to look at first. However many rows a run has, it hears
//! them in one append.

use std::{collections::BTreeSet, time::Duration};

use parking_lot::Mutex;
use tokio::{sync::Notify, task::JoinSet};
use wopr_core::RunKey;

use crate::Engine;

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
    pending: Mutex<BTreeSet<RunKey>>,
    told: Notify,
}

impl Inboxes {
    pub(crate) fn tell(&self, run: RunKey) {
        let mut pending = self.pending.lock();
        if pending.len() < MAX_PENDING {
            pending.insert(run);
        }
        drop(pending);
        self.told.notify_one();
    }

    fn take(&self, most: usize) -> Vec<RunKey> {
        let mut pending = self.pending.lock();
        let taken: Vec<_> = pending.iter().take(most).cloned().collect();
        for run in &taken {
            pending.remove(run);
        }
        taken
    }
}

impl Engine {
    pub(crate) async fn run_inboxes(self) {
        let stop = self.shared.stop.clone();
        let mut next_sweep = tokio::time::Instant::now();
        while !stop.is_cancelled() {
            if tokio::time::Instant::now() >= next_sweep {
                self.sweep().await;
                next_sweep = tokio::time::Instant::now() + self.shared.options.poll;
            }
            let runs = self.shared.inboxes.take(ROUND);
            if runs.is_empty() {
                tokio::select! {
                    biased;
                    () = stop.cancelled() => {}
                    () = self.shared.inboxes.told.notified() => {}
                    () = self.shared.nudges.inboxes.notified() => next_sweep = tokio::time::Instant::now(),
                    () = tokio::time::sleep_until(next_sweep) => {}
                }
                continue;
            }
            let mut round = JoinSet::new();
            for run in runs {
                // The sweep tells of it again.
                if self.shared.setbacks.is_left_alone(&run) {
                    continue;
                }
                let engine = self.clone();
                round.spawn(async move {
                    let heard = engine.attend(&run, Box::pin(engine.hear(&run))).await;
                    if let Err(error) = &heard {
                        tracing::warn!(%run, %error, "inbox not read");
                    }
                    heard.is_ok() || engine.shared.setbacks.is_left_alone(&run)
                });
            }
            let mut is_trouble = false;
            while let Some(heard) = round.join_next().await {
                is_trouble |= !heard.unwrap_or(false);
            }
            if is_trouble && self.paused_for(AFTER_TROUBLE).await {
                return;
            }
        }
    }

    /// Finds runs with rows that no hint announced: those of an earlier epoch or another process.
    async fn sweep(&self) {
        let mut after = None;
        loop {
            match self
                .shared
                .store
                .runs_with_inbox(after.as_ref(), SWEEP_PAGE)
                .await
            {
                Ok(runs) => {
                    let is_last = runs.len() < SWEEP_PAGE;
                    after = runs.last().cloned();
                    for run in runs {
                        self.shared.inboxes.tell(run);
                    }
                    if is_last {
                        return;
                    }
                }
                Err(error) => return tracing::warn!(%error, "cannot read inboxes"),
            }
        }
    }
}
