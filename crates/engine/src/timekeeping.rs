//! Timekeeping: reads the clock often enough to notice that it was set, and stores the current time.
//!
//! The stored time is a lower bound for the next start. While nothing is appended and the clock agrees, it is
//! stored rarely, so that an idle host does not keep a disk busy.

use std::{sync::atomic::Ordering::Relaxed, time::Duration};

use tokio::time::Instant;
use wopr_core::Timestamp;

use crate::Engine;

/// Interval of storing the time while runs progress, or while the engine's time is ahead of the clock.
const BUSY: Duration = Duration::from_secs(5);
/// Interval otherwise.
const IDLE: Duration = Duration::from_secs(60);
/// From this difference on, the engine's time counts as ahead of the clock, and a crash must not lose it.
const AHEAD_MS: u64 = 1_000;

/// Time limit for storing the time once more while stopping.
const LAST: Duration = Duration::from_secs(1);

impl Engine {
    pub(crate) async fn run_clock(self) {
        let stop = self.shared.stop.clone();
        self.keep_time(self.now()).await;
        let (mut kept, mut appends) = (Instant::now(), 0);
        let looking = async {
            loop {
                tokio::time::sleep(self.shared.options.poll.max(BUSY / 5)).await;
                // Read in each round, so that a step is noticed soon.
                let now = self.now();
                let appended = self.shared.counters.appends.load(Relaxed);
                let is_busy = appended != appends || self.shared.clock.steps().ahead_ms >= AHEAD_MS;
                if kept.elapsed() >= if is_busy { BUSY } else { IDLE } {
                    self.keep_time(now).await;
                    (kept, appends) = (Instant::now(), appended);
                }
            }
        };
        stop.run_until_cancelled(looking).await;
        // A database that does not answer must not delay shutdown.
        let _ = tokio::time::timeout(LAST, self.keep_time(self.now())).await;
    }

    async fn keep_time(&self, at: Timestamp) {
        if let Err(error) = self.shared.store.keep_time(at).await {
            // Appends report the same trouble more loudly.
            tracing::debug!(%error, "time not kept");
        }
    }
}
