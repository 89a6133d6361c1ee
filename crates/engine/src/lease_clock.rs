//! The clock that leases are measured by.
//!
//! Processes that share a store measure them by its clock, so theirs need not agree. Between two looks at that clock,
//! and where a store belongs to one process, time passes as this process sees it pass, which does not jump when
//! somebody sets the system's clock. Timers come due, and what expires does, by the engine's [`Clock`], which follows the
//! store's clock as well, but never back.

use std::time::Duration;

use parking_lot::Mutex;
use tokio::time::Instant;
use wopr_core::Timestamp;
use wopr_store::{ReadError, Store};

use crate::Clock;

#[derive(Debug)]
pub(crate) struct LeaseClock(Mutex<(Timestamp, Instant)>);

impl LeaseClock {
    /// A clock that goes by the store's, or begins at `now` where the store has none.
    pub(crate) async fn start(store: &dyn Store, now: Timestamp) -> Result<Self, ReadError> {
        let time = store.time().await?.unwrap_or(now);
        Ok(Self(Mutex::new((time, Instant::now()))))
    }

    /// Looks at the store's clock again, and has the engine's follow it.
    pub(crate) async fn set(&self, store: &dyn Store, clock: &dyn Clock) -> Result<(), ReadError> {
        if let Some(time) = store.time().await? {
            *self.0.lock() = (time, Instant::now());
            clock.follow(time);
        }
        Ok(())
    }

    /// The time now, and when a lease ends that begins now.
    pub(crate) fn lease(&self, length: Duration) -> (Timestamp, Timestamp) {
        let (time, at) = *self.0.lock();
        let now = time.plus_millis(millis(at.elapsed()));
        (now, now.plus_millis(millis(length)))
    }
}

fn millis(time: Duration) -> u64 {
    u64::try_from(time.as_millis()).unwrap_or(u64::MAX)
}
