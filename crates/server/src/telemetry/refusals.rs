//! Which refusals for load are worth a line in the log.
//!
//! A client can cause as many refusals as it sends requests, so a line for each would let it fill the log. There is a line
//! for the first, and then one an interval at most. The metrics count all of them by route.

use std::time::{Duration, Instant};

use parking_lot::Mutex;

/// Minimum time between two lines.
const BETWEEN_LINES: Duration = Duration::from_secs(60);

/// The refusals of a host.
#[derive(Debug, Default)]
pub(super) struct Refusals(Mutex<Counted>);

#[derive(Debug, Default)]
struct Counted {
    said: Option<Instant>,
    /// Since the last line.
    n: u64,
}

impl Refusals {
    /// Counts a refusal. Returns how many there were since the last line, with this one, if a line is due.
    pub(super) fn count(&self, now: Instant) -> Option<u64> {
        let mut counted = self.0.lock();
        counted.n += 1;
        let is_due = counted
            .said
            .is_none_or(|said| now.saturating_duration_since(said) >= BETWEEN_LINES);
        is_due.then(|| {
            counted.said = Some(now);
            std::mem::take(&mut counted.n)
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn refusals_have_a_line_for_the_first_and_then_one_an_interval() {
        let (refusals, begun) = (Refusals::default(), Instant::now());
        let lines = (0..150).filter_map(|second| refusals.count(begun + Duration::from_secs(second)));
        assert_eq!(lines.collect::<Vec<_>>(), [1, 60, 60]);
    }
}
