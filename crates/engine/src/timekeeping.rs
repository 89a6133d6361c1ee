//! Timekeeping: reads the clock often enough to notice that it was set, and records the time in the store.
//!
//! What is noted is where a later start begins at least. While nothing is appended and the clock agrees, it is noted
//! seldom: a host that waits should not keep a disk busy.

use std::{sync::atomic::Ordering::Relaxed, time::Duration};

use tokio::time::Instant;
use wopr_core::Timestamp;

use crate::Engine;

/// How often the time is noted while runs go on, or while time is ahead of the clock.
const BUSY: Duration = Duration::from_secs(5);
/// How often it is noted otherwise.
const IDLE: Duration = Duration::from_secs(60);
/// Time that is ahead of the clock by so many milliseconds would be lost with the process.
const AHEAD_MS: u64 = 1_000;

/// How long a stop may take to note the time once more.
const LAST: Duration = Duration::from_secs(1);

impl Engine {
    pub(crate) async fn run_clock(self) {
        let stop = self.shared.stop.clone();
        self.keep_time(self.now()).await;
        let (mut kept, mut appends) = (Instant::now(), 0);
        let looking = async {
            loop {
                tokio::time::sleep(self.shared.options.poll.max(BUSY / 5)).await;
                // Looked at each time, so that a step is seen soon.
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
        // A database that does not answer must not hold up the stop.
        let _ = tokio::time::timeout(LAST, self.keep_time(self.now())).await;
    }

    async fn keep_time(&self, at: Timestamp) {
        if let Err(error) = self.shared.store.keep_time(at).await {
            // Whoever appends hears of it as well.
            tracing::debug!(%error, "time not kept");
        }
    }
}
