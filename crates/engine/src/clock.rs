//! The time of day, as a parameter.

use std::time::{SystemTime, UNIX_EPOCH};

use wopr_core::Timestamp;

/// Tells the time.
pub trait Clock: Send + Sync + std::fmt::Debug + 'static {
    /// The time now.
    fn now(&self) -> Timestamp;
}

/// The system's clock.
#[derive(Debug, Clone, Copy, Default)]
pub struct SystemClock;

impl Clock for SystemClock {
    fn now(&self) -> Timestamp {
        let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        Timestamp::from_millis(i64::try_from(since.as_millis()).unwrap_or(i64::MAX))
    }
}
