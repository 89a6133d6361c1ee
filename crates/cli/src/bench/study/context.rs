//! What a study is given.

use std::{path::Path, time::Duration};

use anyhow::Result;

use crate::bench::{
    place::{Place, Store},
    server::Server,
    talk::Talk,
    workflow,
};

/// What a study is given.
#[derive(Debug)]
pub(crate) struct Context<'a> {
    /// Where its runs are kept.
    pub(crate) store: &'a Store,
    /// Where its files go.
    pub(crate) folder: &'a Path,
    /// About how long each of its measurements goes on.
    pub(crate) seconds: Duration,
    pub(crate) talk: Talk,
    /// How many of what it is about.
    pub(crate) size: usize,
}

impl Context<'_> {
    /// Makes a place for a store.
    pub(super) async fn place(&self) -> Result<Place> {
        Place::make(self.store, self.folder).await
    }

    /// Starts a server there, with the workflows, and settings besides the defaults.
    pub(super) async fn serve(&self, place: &Place, settings: &[String]) -> Result<Server> {
        let server = Server::start(place, settings).await?;
        for document in workflow::all() {
            server.register(&document).await?;
        }
        Ok(server)
    }
}
