//! The clock that leases are measured by.
//!
//! Processes that share a store measure leases by its clock, so their own clocks need not agree. Between two
//! reads of that clock, and for a store that belongs to one process, time advances with the monotonic clock,
//! which does not jump when the system clock is set. Timers and expiry use the engine's [`Clock`] instead,
//! which follows the store's clock too, but never goes back.

use std::time::Duration;

use parking_lot::Mutex;
use tokio::time::Instant;
use wopr_core::Timestamp;
use wopr_store::{ReadError, Store};

use crate::Clock;

/// How long a reading of the store's clock is good enough for those who would read it again.
const FRESH: Duration = Duration::from_millis(500);

#[derive(Debug)]
pub(crate) struct LeaseClock(Mutex<(Timestamp, Instant)>);

impl LeaseClock {
    /// Starts at the store's time, or at `now` if the store has no clock.
    pub(crate) async fn start(store: &dyn Store, now: Timestamp) -> Result<Self, ReadError> {
        let time = store.time().await?.unwrap_or(now);
        Ok(Self(Mutex::new((time, Instant::now()))))
    }

    /// Reads the store's clock again, unless that was done a moment ago, and makes the engine's clock follow it.
    pub(crate) async fn set(&self, store: &dyn Store, clock: &dyn Clock) -> Result<(), ReadError> {
        let (_, at) = *self.0.lock();
        if at.elapsed() < FRESH {
            return Ok(());
        }
        if let Some(time) = store.time().await? {
            *self.0.lock() = (time, Instant::now());
            clock.follow(time);
        }
        Ok(())
    }

    /// Returns the current time, and the end of a lease of this length that begins now.
    pub(crate) fn lease(&self, length: Duration) -> (Timestamp, Timestamp) {
        let (time, at) = *self.0.lock();
        let now = time.plus_millis(millis(at.elapsed()));
        (now, now.plus_millis(millis(length)))
    }
}

fn millis(time: Duration) -> u64 {
    u64::try_from(time.as_millis()).unwrap_or(u64::MAX)
}
