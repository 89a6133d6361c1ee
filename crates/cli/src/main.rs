//! The `wopr` command: a host, and a client of hosts and agents.
//!
//! This file is the table of contents. Each command is a file in `commands/`; it either calls a server over
//! HTTP or composes a host, and contains no logic of either. [`exit`] defines the exit codes, [`output`] the
//! terminal output, [`host`] opens an in-process host, [`client`] and [`agent`] call remote ones.

mod agent;
mod args;
mod ask;
mod board;
mod client;
mod commands;
mod drawing;
mod examples;
mod exit;
mod follow;
mod follow_tree;
mod host;
mod mock_model;
mod noted;
mod open_files;
mod output;
mod render;
mod signals;
mod spending;
mod variables;

use std::process::ExitCode;

use clap::Parser as _;

/// A request allocates a few hundred small objects on one thread and frees many of them on another, which
/// mimalloc handles well.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

fn main() -> ExitCode {
    let cli = match commands::Cli::try_parse() {
        Ok(cli) => cli,
        Err(stop) => return exit::refuse(&stop),
    };
    let runtime = match tokio::runtime::Runtime::new() {
        Ok(runtime) => runtime,
        Err(error) => return exit::report(&anyhow::Error::new(error).context("start the runtime")).into(),
    };
    let ended = runtime.block_on(commands::run(cli.command));
    // What was logged comes before what the command says of its end.
    wopr_server::telemetry::flush();
    let exit = match ended {
        Ok(exit) => exit,
        Err(error) => exit::report(&error),
    };
    // A thread blocked on reading from the terminal never ends; nothing else is still running.
    runtime.shutdown_background();
    exit.into()
}
