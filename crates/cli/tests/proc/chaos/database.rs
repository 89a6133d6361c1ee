//! A PostgreSQL server of this test, which can be stopped and restarted.

use anyhow::Context as _;

use super::plan::Stop;
use crate::cluster::{Cluster, OLDEST, Programs};

/// A server that may be down.
pub(super) struct Database(Cluster);

impl Database {
    pub(super) fn start() -> Self {
        let missing = || format!("find PostgreSQL {OLDEST} or later; `cargo xtask setup` installs it");
        let programs = Programs::find().with_context(missing).unwrap();
        Self(blocking(|| Cluster::start(programs)))
    }

    pub(super) fn url(&self) -> String {
        self.0.url()
    }

    pub(super) fn stop(&mut self, stop: Stop) {
        blocking(|| self.0.stop(stop.mode()));
    }

    /// Starts it again and waits until it accepts connections. After a crash it recovers first.
    pub(super) fn restart(&mut self) {
        blocking(|| {
            self.0.launch()?;
            self.0.wait()
        });
    }

    /// The server's log, across all starts.
    pub(super) fn said(&self) -> String {
        std::fs::read_to_string(self.0.log()).unwrap_or_default()
    }
}

/// Runs blocking work without stalling other tasks.
fn blocking<T>(work: impl FnOnce() -> anyhow::Result<T>) -> T {
    tokio::task::block_in_place(work).unwrap()
}
