//! The chores of this repository: `cargo xtask <chore>`.
//!
//! A chore is a list of [`plan::Step`]s. They run in order and stream their output; the first failure ends
//! the list, and a summary with durations is printed last. `test` is the command that CI runs; all other
//! chores are parts of it. Nothing here is needed to build or run `wopr`.
//!
//! `lint` and `tidy` check the sources and `deny` the dependencies; `clients`, `browser` and `postgres` set
//! up what tests need; `suite`, `sim`, `fuzz`, `chaos` and `siege` run them; `coverage` measures what they
//! reach. To add a chore, add a variant in `args`, a line in `chore`, and a file.

#![expect(
    clippy::print_stdout,
    clippy::print_stderr,
    reason = "talking to a terminal is what this program is for"
)]

mod args;
mod browser;
mod chaos;
mod chore;
mod clients;
mod cluster;
mod corpus;
mod coverage;
mod debian;
mod deny;
mod disk;
mod faketime;
mod fuzz;
mod lint;
mod plan;
mod postgres;
mod process;
mod rustc;
mod siege;
mod sim;
mod suite;
mod tidy;
mod workspace;

use std::process::ExitCode;

fn main() -> ExitCode {
    match args::parse(std::env::args().skip(1)).and_then(chore::run) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("error: {error:#}");
            ExitCode::FAILURE
        }
    }
}
