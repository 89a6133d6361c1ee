//! Tries at a delivery: how often and why they failed, when the next one is due, and when it is given up.

use std::time::{Duration, Instant};

use serde::{Deserialize, Serialize};
use wopr_core::Timestamp;

use crate::{Engine, Throttles, pool::Lease};

/// How long a delivery is repeated that nobody waits for.
const REPEATED_FOR_MS: u64 = 24 * 3_600 * 1_000;
/// The first pause before a delivery is repeated, and the longest.
pub(crate) const FIRST_PAUSE_MS: u64 = 1_000;
const LONGEST_PAUSE_MS: u64 = 3_600 * 1_000;
/// The longest pause before a delivery is repeated that a call waits for.
const LONGEST_AWAITED_PAUSE_MS: u64 = 300 * 1_000;
/// Longest stored error, in bytes.
const MAX_ERROR: usize = 2_000;

/// Lines a minute about deliveries of a tenant that fail: peers decide how many do.
static GIVEN_UP: Throttles = Throttles::new(30);
static REPEATED: Throttles = Throttles::new(30);

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(crate) struct Tries {
    /// When the delivery was first due, by the clock of leases.
    pub(crate) since: Timestamp,
    #[serde(default, skip_serializing_if = "is_zero")]
    pub(crate) n_failed: u64,
    /// The error of the last try.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) error: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) given_up_at: Option<Timestamp>,
}

fn is_zero(n: &u64) -> bool {
    *n == 0
}

/// How long a delivery is repeated.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Repeats {
    ForADay,
    /// As long as the call waits for it; the row ends with the call.
    WhileItIsAwaited,
    /// Once more, after so many milliseconds.
    After(u64),
    /// Not again.
    Never,
}

impl Repeats {
    /// How long to wait after a failure at this time; `None` if it is the last one.
    fn pause(self, tries: &Tries, now: Timestamp) -> Option<u64> {
        // As long again as it has been tried, so the pauses double.
        let waited = now.millis_since(tries.since);
        match self {
            Self::ForADay if waited >= REPEATED_FOR_MS => None,
            Self::ForADay => Some(waited.clamp(FIRST_PAUSE_MS, LONGEST_PAUSE_MS)),
            Self::WhileItIsAwaited => Some(waited.clamp(FIRST_PAUSE_MS, LONGEST_AWAITED_PAUSE_MS)),
            Self::After(pause) => Some(pause),
            Self::Never => None,
        }
    }
}

impl Tries {
    /// No try yet.
    pub(crate) const fn new(since: Timestamp) -> Self {
        Self {
            since,
            n_failed: 0,
            error: None,
            given_up_at: None,
        }
    }
}

impl Engine {
    /// Counts a failed try, and waits for as long as the peer asks for. Also returns when the next one is due; `None` if the
    /// delivery is given up.
    pub(crate) fn failed_again(
        &self,
        lease: &Lease,
        (tries, repeats): (&Tries, Repeats),
        (mut error, retry_after): (String, Option<Duration>),
    ) -> (Tries, Option<Timestamp>) {
        let now = self.lease_time();
        let (run, call) = (&lease.run, &lease.key.name);
        let asked = retry_after.map_or(0, |after| u64::try_from(after.as_millis()).unwrap_or(u64::MAX));
        let asked = asked.min(LONGEST_PAUSE_MS);
        let pause = repeats.pause(tries, now);
        let due = pause.map(|pause| now.plus_millis(pause.max(asked)));
        match due {
            None => {
                if let Some(left_out) = GIVEN_UP.admit(&run.tenant, Instant::now()) {
                    tracing::warn!(%run, call, error, left_out, "a delivery to the peer of a call was given up");
                }
            }
            Some(_) => {
                if let Some(left_out) = REPEATED.admit(&run.tenant, Instant::now()) {
                    tracing::info!(%run, call, error, left_out, "a delivery to the peer of a call failed; it is repeated");
                }
            }
        }
        error.truncate(error.floor_char_boundary(MAX_ERROR));
        let failed = Tries {
            n_failed: tries.n_failed + 1,
            error: Some(error),
            given_up_at: due.is_none().then_some(now),
            since: tries.since,
        };
        (failed, due)
    }
}
