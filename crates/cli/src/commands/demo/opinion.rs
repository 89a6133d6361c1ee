//! `wopr demo second-opinion`: a workflow that asks two agents and a person.
//!
//! ```text
//!   you ── answers ──> host ── A2A ──> builder   streams its estimate
//!                       '───── A2A ──> sceptic   asks back before it answers
//! ```

use anyhow::Result;
use clap::Args;
use serde_json::json;

use super::hosts::{Cast, Watching, perform};
use crate::{
    examples::second_opinion::{ASKS, BUILDER, SCEPTIC},
    exit::Exit,
};

/// Watch a workflow ask two agents and you.
///
/// Starts two hosts as agents and a third one that asks them, all on this machine. One agent asks back, and you
/// decide. Without a terminal, every question needs an --answer, first the agent's and then the host's.
#[derive(Debug, Args)]
pub(super) struct SecondOpinion {
    /// What to ask about
    #[arg(
        value_name = "TEXT",
        default_value = "Move the shop to the new checkout on Friday"
    )]
    prompt: String,

    #[command(flatten)]
    watching: Watching,
}

impl SecondOpinion {
    pub(super) async fn run(self) -> Result<Exit> {
        let cast = Cast {
            agents: &[("builder", BUILDER), ("sceptic", SCEPTIC)],
            asks: &[ASKS],
            inputs: json!({ "prompt": self.prompt }),
            configurable: json!({}),
        };
        Box::pin(perform(&cast, &self.watching)).await
    }
}
