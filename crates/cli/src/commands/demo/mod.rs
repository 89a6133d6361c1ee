//! `wopr demo`: an A2A task that survives the process it started in.
//!
//! ```text
//!   demo ── spawns ──> wopr serve (child)  ── sqlite file in a folder of its own
//!    |  card, SendStreamingMessage  -> input-required
//!    |  SIGKILL, spawn again on the same file
//!    |  SubscribeToTask, SendMessage {approve: true} -> artifact, completed
//! ```
//!
//! `wopr demo second-opinion` and `wopr demo coding-crew` start several hosts instead: see [`opinion`] and [`coding`].
//!
//! Nothing is simulated: the host is this binary with ordinary flags, and all calls go over HTTP. The child
//! processes and the folder are removed when the command ends, even on errors.

mod coding;
mod hosts;
mod opinion;
mod process;
mod story;

use std::{io::IsTerminal as _, time::Duration};

use anyhow::{Context as _, Result};
use clap::{Args, Subcommand};
use tempfile::TempDir;
use wopr_server::config::Period;

use self::{
    process::{Place, ourselves},
    story::Story,
};
use crate::{
    examples,
    exit::{Exit, Failure},
    output::{self, Paint},
    signals::Signals,
};

/// Pause between two steps on a terminal.
const PACE: Duration = Duration::from_millis(900);
/// Time limit of the demo, not counting pauses.
const TIMEOUT: Duration = Duration::from_secs(60);

/// Watch an A2A task survive kill -9, or workflows that consult agents and a person.
///
/// Starts a host on a new SQLite database and sends it a message as an A2A client. Kills the host with
/// SIGKILL while the task waits for approval, starts it again, approves, and shows the result and the log.
/// `wopr demo second-opinion` starts two agents and a host that asks them instead, `wopr demo coding-crew` an agent
/// that codes for a document of the Agent Workflow Protocol. Needs no setup and removes its files.
#[derive(Debug, Args)]
#[command(args_conflicts_with_subcommands = true)]
pub(crate) struct Demo {
    /// Keep the folder with the database, and print its path
    #[arg(long)]
    keep: bool,
    /// Pause between steps, such as 2s [default: 900ms on a terminal, else 0s]
    #[arg(long, value_name = "TIME")]
    pace: Option<Period>,
    #[command(subcommand)]
    other: Option<Other>,
}

/// The other demos.
#[derive(Debug, Subcommand)]
enum Other {
    CodingCrew(coding::CodingCrew),
    SecondOpinion(opinion::SecondOpinion),
}

impl Demo {
    pub(crate) async fn run(self) -> Result<Exit> {
        match self.other {
            Some(Other::CodingCrew(demo)) => return demo.run().await,
            Some(Other::SecondOpinion(demo)) => return demo.run().await,
            None => {}
        }
        let mut signals = Signals::catch()?;
        let folder = tempfile::Builder::new()
            .prefix("wopr-demo-")
            .tempdir()
            .context("make a folder for the demo")?;
        let mut place = Place::new(folder.path(), examples::ALL, &[])?;
        let told = {
            let mut story = Story::new(&mut place, self.pace());
            tokio::select! {
                told = Box::pin(story.tell(TIMEOUT)) => told.map(|()| Exit::Ok),
                () = signals.next() => Ok(Exit::Interrupted),
            }
        };
        place.kill().await;
        let told = told.map_err(|error| explain(error, &place));
        self.clean_up(folder, &place, told.is_ok())?;
        told
    }

    fn pace(&self) -> Duration {
        match self.pace {
            Some(pace) => pace.as_duration(),
            None if std::io::stdout().is_terminal() => PACE,
            None => Duration::ZERO,
        }
    }

    fn clean_up(&self, folder: TempDir, place: &Place, went_well: bool) -> Result<()> {
        if !self.keep {
            return folder.close().context("remove the demo's folder");
        }
        let folder = folder.keep();
        if went_well {
            let paint = Paint::stdout();
            output::line(format!("Kept {}. Serve it again with", folder.display()))?;
            output::line(paint.cyan(format!(
                "  {} serve --config {}",
                ourselves(),
                place.config().display()
            )))?;
            output::line(format!("Its key is {}", place.key()))?;
        }
        Ok(())
    }
}

/// Adds the end of the host's log to an error.
fn explain(error: anyhow::Error, place: &Place) -> anyhow::Error {
    let log = place.log();
    if log.is_empty() {
        return error;
    }
    let exit = error
        .downcast_ref::<Failure>()
        .map_or(Exit::Failed, Failure::exit);
    Failure::new(exit, format!("the demo stopped: {error:#}"))
        .hint(format!("the host's log ends with\n{log}"))
        .into()
}
