//! Parameters of a study.

use std::{path::Path, time::Duration};

use anyhow::Result;

use crate::bench::{
    place::{Place, Store},
    server::Server,
    talk::Talk,
    workflow,
};

#[derive(Debug)]
pub(crate) struct Context<'a> {
    pub(crate) store: &'a Store,
    pub(crate) folder: &'a Path,
    /// Approximate duration of each measurement.
    pub(crate) seconds: Duration,
    pub(crate) talk: Talk,
    pub(crate) size: usize,
}

impl Context<'_> {
    /// Creates a place for the store.
    pub(super) async fn place(&self) -> Result<Place> {
        Place::make(self.store, self.folder).await
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
