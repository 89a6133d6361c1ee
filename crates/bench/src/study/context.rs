//! Parameters of a study.

use std::{path::Path, time::Duration};

use anyhow::{Result, ensure};

use crate::{
    place::{Place, Store},
    server::Server,
    talk::Talk,
    workflow,
};

/// File descriptors needed in addition to the streams.
const OTHER_FILES: u64 = 256;

#[derive(Debug)]
pub(crate) struct Context<'a> {
    pub(crate) store: &'a Store,
    pub(crate) folder: &'a Path,
    /// Approximate duration of each measurement.
    pub(crate) seconds: Duration,
    pub(crate) talk: Talk,
    pub(crate) size: usize,
    /// How many files this process may open; `None` means without limit.
    pub(crate) max_files: Option<u64>,
}

impl Context<'_> {
    /// Creates a place for the store.
    pub(super) async fn place(&self) -> Result<Place> {
        Place::make(self.store, self.folder).await
    }

    /// Fails if this process may not open that many connections; a child server has the same limit.
    pub(super) fn check_files(&self, streams: usize) -> Result<()> {
        let needed = streams as u64 + OTHER_FILES;
        ensure!(
            self.max_files.is_none_or(|max| max >= needed),
            "open {streams} streams: that takes {needed} file descriptors, and this process may have {}; raise the \
             hard limit (ulimit -Hn), or choose a smaller --size",
            self.max_files.unwrap_or_default()
        );
        Ok(())
    }

    /// Starts a server on the place, with the workflows and additional settings.
    pub(super) async fn serve(&self, place: &Place, settings: &[String]) -> Result<Server> {
        let server = Server::start(place, settings).await?;
        for document in workflow::all() {
            server.register(&document).await?;
        }
        Ok(server)
    }
}
