//! The simulator at length: many worlds of the engine's suite. `crates/engine/tests/suite/simulation` says what a world is
//! and what must hold in it; here is only how many, and that they are quick.

use std::process::Command;
use std::thread;

use anyhow::Result;

use crate::plan::{Outcome, Step};
use crate::process::{cargo, run_test};
use crate::rustc::{self, Scope};

/// What lives them.
const TEST: &str = "simulation::replicas_keep_every_promise_whatever_fails";
/// Worlds of a run in CI: what a minute is enough for.
const SEEDS: u64 = 5_000;
/// Debug assertions and overflow checks stay. A higher level takes longer to compile than it saves.
const FLAGS: [&str; 1] = ["-Copt-level=1"];

/// Which worlds.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Worlds {
    /// Only this one, with its story.
    pub(crate) seed: Option<u64>,
    /// The first of many.
    pub(crate) from: u64,
    /// How many, after those that are kept.
    pub(crate) seeds: u64,
    /// How many at once; as many as there are processors unless it is said.
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

/// What lives them.
pub(crate) fn steps(worlds: Worlds) -> Vec<Step> {
    vec![Step::new("simulator", move || live(worlds))]
}

fn live(worlds: Worlds) -> Result<Outcome> {
    let mut test = test();
    rustc::with_flags(&mut test, &FLAGS, Scope::Everything)?;
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

/// The test by plain cargo, which has no time limit and shows how far it is. The other packages have no such test; they
/// are named so that dependencies have the features they have in the whole workspace, and are not built twice.
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
