//! The command line: one file per command.

mod a2a;
mod awp;
mod backup;
mod bench;
mod budgets;
mod completions;
mod config;
mod deliveries;
mod demo;
mod dev;
mod doctor;
mod exit_codes;
mod interrupts;
mod keys;
mod mcp;
mod migrate;
mod mock_model;
mod place;
mod run;
mod runs;
mod secrets;
mod serve;
mod tools;
mod workers;
mod workflows;

use anyhow::Result;
use clap::{Parser, Subcommand};

use crate::exit::{self, Exit};

/// Durable workflows, served over OpenWOP and A2A.
/// Every run is kept as a durable log: it survives crashes, a repeated request starts no second run, and clients can
/// re-attach from any event. Try `wopr demo` first, then `wopr dev`.
#[derive(Debug, Parser)]
#[command(
    name = "wopr",
    version,
    max_term_width = 110,
    disable_help_subcommand = false,
    after_help = "`wopr help COMMAND` says more; `wopr help exit-codes` lists how a command ends.",
    after_long_help = exit::table(),
)]
pub(crate) struct Cli {
    #[command(subcommand)]
    pub(crate) command: Command,
}

/// The subcommands of the binary.
#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    Demo(demo::Demo),
    Dev(dev::Dev),
    Serve(serve::Serve),
    Mcp(Box<mcp::Mcp>),
    Run(Box<run::Run>),
    Runs(runs::Runs),
    Interrupts(interrupts::Interrupts),
    Workflows(workflows::Workflows),
    Tools(tools::Tools),
    #[command(name = "a2a")]
    A2a(a2a::A2a),
    Awp(awp::Awp),
    Deliveries(deliveries::Deliveries),
    Workers(workers::Workers),
    Keys(keys::Keys),
    Secrets(secrets::Secrets),
    Budgets(budgets::Budgets),
    Config(config::Config),
    Migrate(migrate::Migrate),
    Backup(backup::Backup),
    Doctor(doctor::Doctor),
    #[command(name = "mock-model")]
    MockModel(mock_model::MockModel),
    Bench(wopr_bench::Args),
    Completions(completions::Completions),
    #[command(name = "exit-codes")]
    ExitCodes(exit_codes::ExitCodes),
}

pub(crate) async fn run(command: Command) -> Result<Exit> {
    match command {
        Command::Demo(command) => Box::pin(command.run()).await,
        Command::Dev(command) => Box::pin(command.run()).await,
        Command::Serve(command) => Box::pin(command.run()).await,
        Command::Mcp(command) => Box::pin(command.run()).await,
        Command::Run(command) => Box::pin(command.run()).await,
        Command::Runs(command) => Box::pin(command.run()).await,
        Command::Interrupts(command) => Box::pin(command.run()).await,
        Command::Workflows(command) => Box::pin(command.run()).await,
        Command::Tools(command) => Box::pin(command.run()).await,
        Command::A2a(command) => Box::pin(command.run()).await,
        Command::Awp(command) => Box::pin(command.run()).await,
        Command::Deliveries(command) => Box::pin(command.run()).await,
        Command::Workers(command) => Box::pin(command.run()).await,
        Command::Keys(command) => Box::pin(command.run()).await,
        Command::Secrets(command) => Box::pin(command.run()).await,
        Command::Budgets(command) => Box::pin(command.run()).await,
        Command::Config(command) => command.run(),
        Command::Migrate(command) => Box::pin(command.run()).await,
        Command::Backup(command) => Box::pin(command.run()).await,
        Command::Doctor(command) => Box::pin(command.run()).await,
        Command::MockModel(command) => Box::pin(command.run()).await,
        Command::Bench(args) => Box::pin(bench::run(args)).await,
        Command::Completions(command) => command.run(),
        Command::ExitCodes(command) => command.run(),
    }
}
