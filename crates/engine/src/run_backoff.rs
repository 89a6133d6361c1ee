//! Backoff for runs whose background work failed because of the run itself.
//!
//! The rows of such a run stay due, so without a pause the loops would retry it at full speed forever, and
//! hundreds of such runs would starve the others. The pause doubles with each consecutive failure. A run that
//! panics is retried indefinitely, because an upgrade or a restart may fix it. A run whose rows cannot be
//! read is quarantined soon (see [`crate::quarantine`]). The backoff applies only to the loops of this
//! process: commands of clients are never delayed.

use std::{collections::HashMap, time::Duration};

use parking_lot::Mutex;
use tokio::time::Instant;
use wopr_core::RunKey;

const FIRST: Duration = Duration::from_secs(1);
const LONGEST: Duration = Duration::from_secs(300);
/// Maximum runs remembered. Beyond it, failing runs are retried without backoff.
const MAX: usize = 4_096;

#[derive(Debug, Default)]
pub(crate) struct RunBackoff(Mutex<HashMap<RunKey, Backoff>>);

#[derive(Debug)]
struct Backoff {
    in_a_row: u32,
    until: Instant,
}

impl RunBackoff {
    /// Counts a failure of a run. Returns the pause and the number of consecutive failures.
    pub(crate) fn add(&self, run: &RunKey) -> (Duration, u32) {
        let now = Instant::now();
        let mut runs = self.0.lock();
        if runs.len() >= MAX && !runs.contains_key(run) {
            runs.retain(|_, backoff| backoff.until > now);
            if runs.len() >= MAX {
                return (Duration::ZERO, 1);
            }
        }
        let backoff = runs.entry(run.clone()).or_insert(Backoff {
            in_a_row: 0,
            until: now,
        });
        let pause = FIRST.saturating_mul(1 << backoff.in_a_row.min(16)).min(LONGEST);
        backoff.in_a_row = backoff.in_a_row.saturating_add(1);
        backoff.until = now + pause;
        (pause, backoff.in_a_row)
    }

    /// Resets a run after a success.
    pub(crate) fn forget(&self, run: &RunKey) {
        self.0.lock().remove(run);
    }

    /// Returns `true` while the run's pause lasts.
    pub(crate) fn is_left_alone(&self, run: &RunKey) -> bool {
        let runs = self.0.lock();
        runs.get(run)
            .is_some_and(|backoff| backoff.until > Instant::now())
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

    #[tokio::test(start_paused = true)]
    async fn pauses_double_up_to_a_maximum_and_expire() {
        let run_backoff = RunBackoff::default();
        let pauses: Vec<_> = (0..20).map(|_| run_backoff.add(&run(1)).0.as_secs()).collect();
        assert_eq!(pauses[..10], [1, 2, 4, 8, 16, 32, 64, 128, 256, 300]);
        assert_eq!(pauses[19], 300);
        assert!(run_backoff.is_left_alone(&run(1)) && !run_backoff.is_left_alone(&run(2)));
        tokio::time::advance(LONGEST).await;
        assert!(!run_backoff.is_left_alone(&run(1)));
        run_backoff.forget(&run(1));
        assert_eq!(run_backoff.add(&run(1)), (FIRST, 1));
    }
}
