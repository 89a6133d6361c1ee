//! Runs that could not be worked at because of something in themselves, and when to try again.
//!
//! Its rows stay due, so without a pause such a run would be tried at full speed for ever, and hundreds of them would
//! keep the others from their turn. Each is left alone for a while that doubles with each failure in a row. One that
//! panics is never given up: a later wopr, or a restart, may know better. One whose rows cannot be read is quarantined
//! soon (see [`crate::quarantine`]). This is about the loops of this process; a command of a
//! client is tried at once, whatever happened before.

use std::{collections::HashMap, time::Duration};

use parking_lot::Mutex;
use tokio::time::Instant;
use wopr_core::RunKey;

/// The pause after the first failure.
const FIRST: Duration = Duration::from_secs(1);
/// The longest pause.
const LONGEST: Duration = Duration::from_secs(300);
/// Runs remembered; beyond it the others are tried at the loops' own pace.
const MAX: usize = 4_096;

#[derive(Debug, Default)]
pub(crate) struct RunBackoff(Mutex<HashMap<RunKey, Backoff>>);

#[derive(Debug)]
struct Backoff {
    in_a_row: u32,
    until: Instant,
}

impl RunBackoff {
    /// Takes in another failure of a run; how long it is left alone, and how many there were in a row.
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

    /// A run could be worked at.
    pub(crate) fn forget(&self, run: &RunKey) {
        self.0.lock().remove(run);
    }

    /// Whether it is too early to try again.
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
    async fn pauses_double_up_to_the_longest_and_end() {
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
