//! Studies: a situation of some size, set up once and looked at from several sides.
//!
//! Each has a store of its own, so that none sees what another left behind.

mod children;
mod context;
mod flat;
mod followers;
mod list;
mod parked;
mod streams;

use anyhow::Result;

use super::{figure::Figure, scenario::Study};

pub(crate) use context::Context;

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
