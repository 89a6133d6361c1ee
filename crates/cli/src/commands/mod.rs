//! The commands, one file each.

mod completions;
mod dev;
mod exit_codes;
mod serve;

use anyhow::Result;
use clap::Subcommand;

use crate::{bench, exit::Exit};

/// What can be asked of the binary.
#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    Serve(serve::Serve),
    Dev(dev::Dev),
    Bench(bench::Args),
    Completions(completions::Completions),
    #[command(name = "exit-codes")]
    ExitCodes(exit_codes::ExitCodes),
}

/// Does what was asked.
pub(crate) async fn run(command: Command) -> Result<Exit> {
    match command {
        Command::Serve(command) => Box::pin(command.run()).await,
        Command::Dev(command) => Box::pin(command.run()).await,
        Command::Bench(args) => Box::pin(bench::run(args)).await,
        Command::Completions(command) => command.run(),
        Command::ExitCodes(command) => command.run(),
    }
}
