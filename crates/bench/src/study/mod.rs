//! Studies: a setup of some size, measured in several ways.
//!
//! Each study has its own store, so that studies do not affect each other.

mod children;
mod context;
mod flat;
mod followers;
mod list;
mod mcp;
mod parked;
mod remote;
mod streams;
mod workers;

use anyhow::Result;

use super::{figure::Figure, scenario::Study};

pub(crate) use context::Context;

pub(crate) async fn run(study: Study, context: &Context<'_>) -> Result<Vec<Figure>> {
    match study {
        Study::Subscribers => followers::one_run(context).await,
        Study::Followers => followers::many_runs(context).await,
        Study::Children => children::study(context).await,
        Study::List => list::study(context).await,
        Study::Parked => parked::study(context).await,
        Study::Streams => streams::study(context).await,
        Study::Flat => flat::study(context).await,
        Study::Remote => remote::study(context).await,
        Study::Workers => workers::study(context).await,
        Study::Mcp => mcp::study(context).await,
    }
}
