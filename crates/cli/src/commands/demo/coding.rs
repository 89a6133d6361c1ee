//! `wopr demo coding-crew`: a document of the Agent Workflow Protocol whose delegate is another host.
//!
//! ```text
//!   you ── answers ──> host: plan -> implement -> test ─ passed ─> review
//!                              A2A |      ^─── learn <─┘ failed
//!                                  v
//!                                coder   asks for the style of its first patch
//! ```

use anyhow::{Context as _, Result};
use clap::Args;
use serde_json::json;

use super::hosts::{Cast, Watching, perform};
use crate::{
    examples::coding_crew::{CODER, CREW, OPTIONS, TESTS},
    exit::Exit,
};

/// Watch an agent code, tests send it back, and you approve.
///
/// Starts a host as the agent and another one that runs a document of the Agent Workflow Protocol, both on this
/// machine. The agent asks half way, and you approve what passes the tests. Without a terminal, every question needs
/// an --answer, first the agent's and then the host's.
#[derive(Debug, Args)]
pub(super) struct CodingCrew {
    /// What to code
    #[arg(value_name = "TEXT", default_value = "Refuse an empty cart")]
    task: String,

    #[command(flatten)]
    watching: Watching,
}

impl CodingCrew {
    pub(super) async fn run(self) -> Result<Exit> {
        let cast = Cast {
            agents: &[("coder", CODER)],
            asks: &[CREW, TESTS],
            inputs: json!({ "task": self.task }),
            configurable: serde_json::from_str(OPTIONS).context("read the options of the example")?,
        };
        Box::pin(perform(&cast, &self.watching)).await
    }
}
