//! Waits at startup for a database that cannot be reached yet.
//!
//! Hosts and databases are often started together, and a host that exits because it was first has to be
//! restarted. So the host retries with exponential backoff and logs now and then.

use std::time::Duration;

use tokio::time::Instant;
use wopr_store::postgres::OpenError;

/// The first backoff; each is twice the one before.
const FIRST: Duration = Duration::from_millis(250);
const LONGEST: Duration = Duration::from_secs(5);
/// Interval between log lines.
const BETWEEN_LINES: Duration = Duration::from_secs(60);

#[derive(Debug)]
pub(crate) struct Waiting {
    pause: Duration,
    since: Option<Instant>,
    said: Option<Instant>,
}

impl Waiting {
    pub(crate) const fn new() -> Self {
        Self {
            pause: FIRST,
            since: None,
            said: None,
        }
    }

    /// Logs a failed attempt and sleeps for the backoff.
    pub(crate) async fn after(&mut self, error: &OpenError) {
        let since = *self.since.get_or_insert_with(Instant::now);
        if self.said.is_none_or(|said| said.elapsed() >= BETWEEN_LINES) {
            self.said = Some(Instant::now());
            tracing::warn!(%error, waited_s = since.elapsed().as_secs(), "waiting for the database");
        }
        // Jitter keeps the hosts of a cluster from retrying at the same moment.
        let share = rand::random_range(0.5..=1.0);
        tokio::time::sleep(self.pause.mul_f64(share)).await;
        self.pause = (self.pause * 2).min(LONGEST);
    }

    /// Logs the total wait, if there was one.
    pub(crate) fn is_over(&self) {
        if let Some(since) = self.since {
            tracing::info!(
                waited_s = since.elapsed().as_secs(),
                "no longer waiting for the database"
            );
        }
    }
}
