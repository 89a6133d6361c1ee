//! Runs that could not be worked at because of something in themselves, and when to try again.
//!
//! Its rows stay due, so without a pause such a run would be tried at full speed for ever, and hundreds of them would
//! keep the others from their turn. Each is left alone for a while that doubles with each setback in a row. One that
//! panics is never given up: a later wopr, or a restart, may know better. One whose rows cannot be read is quarantined
//! soon (see [`crate::quarantine`]). This is about the loops of this process; a command of a
//! client is tried at once, whatever happened before.

use std::{collections::HashMap, time::Duration};

use parking_lot::Mutex;
use tokio::time::Instant;
use wopr_core::RunKey;

/// The pause after the first setback.
const FIRST: Duration = Duration::from_secs(1);
/// The longest pause.
const LONGEST: Duration = Duration::from_secs(300);
/// Runs remembered; beyond it the others are tried at the loops' own pace.
const MAX: usize = 4_096;

#[derive(Debug, Default)]
pub(crate) struct Setbacks(Mutex<HashMap<RunKey, Setback>>);

#[derive(Debug)]
struct Setback {
    in_a_row: u32,
    until: Instant,
}

impl Setbacks {
    /// Takes in another setback of a run; how long it is left alone, and how many there were in a row.
    pub(crate) fn add(&self, run: &RunKey) -> (Duration, u32) {
        let now = Instant::now();
        let mut runs = self.0.lock();
        if runs.len() >= MAX && !runs.contains_key(run) {
            runs.retain(|_, setback| setback.until > now);
            if runs.len() >= MAX {
                return (Duration::ZERO, 1);
            }
        }
        let setback = runs.entry(run.clone()).or_insert(Setback {
            in_a_row: 0,
            until: now,
        });
        let pause = FIRST.saturating_mul(1 << setback.in_a_row.min(16)).min(LONGEST);
        setback.in_a_row = setback.in_a_row.saturating_add(1);
        setback.until = now + pause;
        (pause, setback.in_a_row)
    }

    /// A run could be worked at.
    pub(crate) fn forget(&self, run: &RunKey) {
        self.0.lock().remove(run);
    }

    /// Whether it is too early to try again.
    pub(crate) fn is_left_alone(&self, run: &RunKey) -> bool {
        let runs = self.0.lock();
        runs.get(run)
            .is_some_and(|setback| setback.until > Instant::now())
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
        let setbacks = Setbacks::default();
        let pauses: Vec<_> = (0..20).map(|_| setbacks.add(&run(1)).0.as_secs()).collect();
        assert_eq!(pauses[..10], [1, 2, 4, 8, 16, 32, 64, 128, 256, 300]);
        assert_eq!(pauses[19], 300);
        assert!(setbacks.is_left_alone(&run(1)) && !setbacks.is_left_alone(&run(2)));
        tokio::time::advance(LONGEST).await;
        assert!(!setbacks.is_left_alone(&run(1)));
        setbacks.forget(&run(1));
        assert_eq!(setbacks.add(&run(1)), (FIRST, 1));
    }
}
