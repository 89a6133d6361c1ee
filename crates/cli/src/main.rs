//! The `wopr` command: a host, and a client of hosts and agents.
//!
//! This file is the table of contents. A command is a file in `commands/`; it speaks HTTP to a server or
//! composes a host, and keeps no logic that belongs to either. [`exit`] says how the process ends, [`output`]
//! how it talks, [`host`] how a host is opened here, [`client`] and [`agent`] how another is called.

mod agent;
mod args;
mod ask;
mod bench;
mod client;
mod commands;
mod examples;
mod exit;
mod follow;
mod host;
mod open_files;
mod output;
mod render;
mod signals;
mod variables;

use std::process::ExitCode;

use clap::Parser as _;

/// A request makes a few hundred small pieces of memory on one thread and lets many of them go on another.
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
    let exit = match runtime.block_on(commands::run(cli.command)) {
        Ok(exit) => exit,
        Err(error) => exit::report(&error),
    };
    // A thread that waits for a line from a terminal never ends; nothing else is left running here.
    runtime.shutdown_background();
    exit.into()
}
