//! Studies: a situation of some size, set up once and looked at from several sides.
//!
//! Each has a store of its own, so that none sees what another left behind.

mod children;
mod flat;
mod followers;
mod list;
mod parked;
mod streams;

use std::{path::Path, time::Duration};

use anyhow::Result;

use super::{
    Talk,
    figure::Figure,
    place::{Place, Store},
    scenario::Study,
    server::Server,
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
    async fn place(&self) -> Result<Place> {
        Place::make(self.store, self.folder).await
    }

    /// Starts a server there, with the workflows, and settings besides the defaults.
    async fn serve(&self, place: &Place, settings: &[String]) -> Result<Server> {
        let server = Server::start(place, settings).await?;
        for document in workflow::all() {
            server.register(&document).await?;
        }
        Ok(server)
    }
}

/// Does a study.
///
/// # Errors
/// It cannot be set up, or the server does not do what it should.
pub(crate) async fn run(study: Study, context: &Context<'_>) -> Result<Vec<Figure>> {
    match study {
        Study::Subscribers => followers::one_run(context).await,
        Study::Followers => followers::many_runs(context).await,
        Study::Children => children::study(context).await,
        Study::List => list::study(context).await,
        Study::Parked => parked::study(context).await,
        Study::Streams => streams::study(context).await,
        Study::Flat => flat::study(context).await,
    }
}

/// Bytes as mebibytes.
fn mebibytes(bytes: u64) -> f64 {
    bytes as f64 / f64::from(1 << 20)
}
