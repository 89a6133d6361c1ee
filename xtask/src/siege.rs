//! The siege test: all known attacks on one host at once, next to a tenant that must not be affected.
//! `crates/cli/tests/proc/siege` implements the test; this module only decides how long it runs.

use std::process::Command;

use anyhow::Result;

use crate::plan::{Outcome, Step};
use crate::process::{cargo, run_test};
use crate::rustc;

/// Default duration on each store, in minutes.
const MINUTES: u64 = 1;

/// For each store: the name of the test and the title of its step.
const STORES: [(&str, &str); 2] = [
    ("siege::a_host_on_sqlite_serves_its_tenant", "siege on SQLite"),
    (
        "siege::a_host_on_postgres_serves_its_tenant",
        "siege on PostgreSQL",
    ),
];

/// The step for a full test run: SQLite only, because PostgreSQL would compete with the host and its
/// attackers for the processors of a small machine.
pub(crate) fn step(duration: Duration) -> Step {
    let (test, title) = STORES[0];
    Step::new(title, move || on(test, duration))
}

/// Duration of the siege's second phase, per store. The first phase, without the hostile tenant, takes half
/// as long.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Duration {
    pub(crate) minutes: u64,
}

impl Default for Duration {
    fn default() -> Self {
        Self { minutes: MINUTES }
    }
}

/// The fairness test next to the heaviest workflow, which needs an otherwise idle machine.
const FAIR: (&str, &str) = (
    "siege::fair::a_tenant_waits_little_beside_the_heaviest_workflow",
    "fair shares",
);

/// Returns a step for each store, and one for the fairness test.
pub(crate) fn steps(duration: Duration) -> Vec<Step> {
    STORES
        .into_iter()
        .chain([FAIR])
        .map(|(test, title)| Step::new(title, move || on(test, duration)))
        .collect()
}

fn on(test: &str, duration: Duration) -> Result<Outcome> {
    let mut command = command(test)?;
    command.env("WOPR_SIEGE_SECONDS", (duration.minutes * 60).to_string());
    run_test(&mut command, test)?;
    Ok(Outcome::Done)
}

/// Uses plain `cargo test`, which has no time limit and streams its output. Optimized, because the limits on
/// time and memory apply to release builds.
fn command(test: &str) -> Result<Command> {
    let mut command = cargo();
    command.args(["test", "--quiet", "--workspace", "--test", "proc", "--"]);
    command.args(["--exact", test, "--nocapture"]);
    command.env("RUST_BACKTRACE", "0");
    rustc::optimized(&mut command)?;
    Ok(command)
}
