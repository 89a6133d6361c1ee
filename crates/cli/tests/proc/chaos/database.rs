//! A PostgreSQL server of this test's own, which it stops and starts again.

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

    /// Starts it again and waits until it takes connections: after a crash it recovers first.
    pub(super) fn restart(&mut self) {
        blocking(|| {
            self.0.launch()?;
            self.0.wait()
        });
    }

    /// What the server said, over all its starts.
    pub(super) fn said(&self) -> String {
        std::fs::read_to_string(self.0.log()).unwrap_or_default()
    }
}

/// Lets other tasks go on meanwhile.
fn blocking<T>(work: impl FnOnce() -> anyhow::Result<T>) -> T {
    tokio::task::block_in_place(work).unwrap()
}
