//! The commands, one file each.

mod a2a;
mod backup;
mod completions;
mod config;
mod deliveries;
mod demo;
mod dev;
mod doctor;
mod exit_codes;
mod interrupts;
mod keys;
mod migrate;
mod run;
mod runs;
mod serve;
mod workflows;

use anyhow::Result;
use clap::Subcommand;

use crate::{bench, exit::Exit};

/// What can be asked of the binary.
#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    Demo(demo::Demo),
    Dev(dev::Dev),
    Serve(serve::Serve),
    Run(Box<run::Run>),
    Runs(runs::Runs),
    Interrupts(interrupts::Interrupts),
    Workflows(workflows::Workflows),
    #[command(name = "a2a")]
    A2a(a2a::A2a),
    Deliveries(deliveries::Deliveries),
    Keys(keys::Keys),
    Config(config::Config),
    Migrate(migrate::Migrate),
    Backup(backup::Backup),
    Doctor(doctor::Doctor),
    Bench(bench::Args),
    Completions(completions::Completions),
    #[command(name = "exit-codes")]
    ExitCodes(exit_codes::ExitCodes),
}

/// Does what was asked.
pub(crate) async fn run(command: Command) -> Result<Exit> {
    match command {
        Command::Demo(command) => Box::pin(command.run()).await,
        Command::Dev(command) => Box::pin(command.run()).await,
        Command::Serve(command) => Box::pin(command.run()).await,
        Command::Run(command) => Box::pin(command.run()).await,
        Command::Runs(command) => Box::pin(command.run()).await,
        Command::Interrupts(command) => Box::pin(command.run()).await,
        Command::Workflows(command) => Box::pin(command.run()).await,
        Command::A2a(command) => Box::pin(command.run()).await,
        Command::Deliveries(command) => Box::pin(command.run()).await,
        Command::Keys(command) => Box::pin(command.run()).await,
        Command::Config(command) => command.run(),
        Command::Migrate(command) => Box::pin(command.run()).await,
        Command::Backup(command) => Box::pin(command.run()).await,
        Command::Doctor(command) => Box::pin(command.run()).await,
        Command::Bench(args) => Box::pin(bench::run(args)).await,
        Command::Completions(command) => command.run(),
        Command::ExitCodes(command) => command.run(),
    }
}
