//! Runs the simulator of the engine's test suite with many worlds. `crates/engine/tests/suite/simulation`
//! defines the worlds and their invariants; this module only chooses how many to run, and compiles them
//! optimized.

use std::process::Command;
use std::thread;

use anyhow::Result;

use crate::plan::{Outcome, Step};
use crate::process::{cargo, run_test};
use crate::rustc;

/// The test that runs the worlds.
pub(crate) const TEST: &str = "simulation::replicas_keep_every_promise_whatever_fails";
/// Number of worlds in CI: what fits in a few minutes.
const SEEDS: u64 = 2_000;

/// The worlds to run.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Worlds {
    /// Only this world, with a detailed log.
    pub(crate) seed: Option<u64>,
    /// The first seed.
    pub(crate) from: u64,
    /// Number of seeds, in addition to the stored ones.
    pub(crate) seeds: u64,
    /// Number of parallel jobs; by default the number of processors.
    pub(crate) jobs: Option<u64>,
}

impl Default for Worlds {
    fn default() -> Self {
        Self {
            seed: None,
            from: 0,
            seeds: SEEDS,
            jobs: None,
        }
    }
}

pub(crate) fn steps(worlds: Worlds) -> Vec<Step> {
    vec![Step::new("simulator", move || live(worlds))]
}

fn live(worlds: Worlds) -> Result<Outcome> {
    let mut test = test();
    rustc::optimized(&mut test)?;
    let processors = thread::available_parallelism().map_or(1, |n| n.get() as u64);
    test.env("WOPR_SIM_FROM", worlds.from.to_string())
        .env("WOPR_SIM_SEEDS", worlds.seeds.to_string())
        .env("WOPR_SIM_JOBS", worlds.jobs.unwrap_or(processors).to_string());
    match worlds.seed {
        Some(seed) => test.env("WOPR_SIM_SEED", seed.to_string()),
        None => test.env_remove("WOPR_SIM_SEED"),
    };
    run_test(&mut test, TEST)?;
    Ok(Outcome::Done)
}

/// Uses plain `cargo test`, which has no time limit and shows progress. The other packages do not have this
/// test; they are named so that features are unified as in the whole workspace and dependencies are not built
/// twice.
fn test() -> Command {
    let mut command = cargo();
    command.args([
        "test",
        "--quiet",
        "-p",
        "wopr-engine",
        "-p",
        "wopr",
        "-p",
        "wopr-fuzz",
        "-p",
        "wopr-wire",
        "-p",
        "xtask",
    ]);
    command.args(["--test", "suite", "--", "--nocapture", "--exact"]);
    command.arg(TEST);
    command.env("RUST_BACKTRACE", "0");
    command
}
