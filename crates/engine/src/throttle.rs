//! Which of many similar lines are written to the log.
//!
//! What a client or a tenant can cause as often as it likes would fill the log if each time had a line. A throttle lets a
//! few lines an interval through and counts the others; the next line says how many were left out.

use std::{
    hash::{BuildHasher as _, Hash},
    time::{Duration, Instant},
};

use foldhash::quality::FixedState;
use parking_lot::Mutex;

/// The interval in which lines are counted.
const INTERVAL: Duration = Duration::from_secs(60);
/// Number of throttles that tenants share: their lines an interval are bounded together, and few share one.
const SHARES: usize = 64;

/// Lets some lines an interval through.
#[derive(Debug)]
pub struct Throttle {
    /// Lines an interval.
    most: u32,
    counted: Mutex<Counted>,
}

#[derive(Debug)]
struct Counted {
    since: Option<Instant>,
    n_lines: u32,
    n_left_out: u64,
}

impl Throttle {
    #[must_use]
    pub const fn new(most: u32) -> Self {
        Self {
            most,
            counted: Mutex::new(Counted {
                since: None,
                n_lines: 0,
                n_left_out: 0,
            }),
        }
    }

    /// Returns how many lines were left out before this one, or `None` if this one is left out, too.
    pub fn admit(&self, now: Instant) -> Option<u64> {
        let mut counted = self.counted.lock();
        let is_over = |since| now.saturating_duration_since(since) >= INTERVAL;
        if counted.since.is_none_or(is_over) {
            counted.since = Some(now);
            counted.n_lines = 0;
        }
        if counted.n_lines >= self.most {
            counted.n_left_out += 1;
            return None;
        }
        counted.n_lines += 1;
        Some(std::mem::take(&mut counted.n_left_out))
    }
}

/// A throttle for each tenant, so that the lines of one do not crowd out those of another.
#[derive(Debug)]
pub struct Throttles([Throttle; SHARES]);

impl Throttles {
    /// With so many lines an interval for each tenant.
    #[must_use]
    pub const fn new(most: u32) -> Self {
        let mut throttles = [const { Throttle::new(0) }; SHARES];
        let mut at = 0;
        while at < SHARES {
            throttles[at].most = most;
            at += 1;
        }
        Self(throttles)
    }

    /// See [`Throttle::admit`].
    pub fn admit(&self, tenant: &impl Hash, now: Instant) -> Option<u64> {
        let hash = FixedState::default().hash_one(tenant);
        let share = usize::try_from(hash % SHARES as u64).unwrap_or_default();
        self.0[share].admit(now)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_beyond_the_rate_are_counted_in_the_next_one() {
        let (throttle, begun) = (Throttle::new(2), Instant::now());
        let lines = (0..150).filter_map(|second| throttle.admit(begun + Duration::from_secs(second)));
        assert_eq!(lines.collect::<Vec<_>>(), [0, 0, 58, 0, 58, 0]);
    }

    #[test]
    fn lines_of_one_tenant_do_not_crowd_out_those_of_others() {
        let (throttles, now) = (Throttles::new(1), Instant::now());
        for _ in 0..10 {
            throttles.admit(&"loud", now);
        }
        assert_eq!(throttles.admit(&"loud", now), None);
        let heard = (0..100).filter(|n| throttles.admit(&format!("tenant {n}"), now).is_some());
        assert!(heard.count() > 30);
    }
}
