//! The siege: every known attack on one host at once, beside a tenant that must not notice. `crates/cli/tests/proc/siege`
//! says what is done and what must hold; here is only for how long.

use std::process::Command;

use anyhow::Result;

use crate::plan::{Outcome, Step};
use crate::process::{cargo, run_test};

/// Minutes on each store, where nobody says.
const MINUTES: u64 = 1;

/// The stores, with the test and the name of the step of each.
const STORES: [(&str, &str); 2] = [
    ("siege::a_host_on_sqlite_serves_its_tenant", "siege on SQLite"),
    (
        "siege::a_host_on_postgres_serves_its_tenant",
        "siege on PostgreSQL",
    ),
];

/// The step among all tests: SQLite alone. PostgreSQL shares the processors of a small machine with the host and its
/// attackers.
pub(crate) fn step(duration: Duration) -> Step {
    let (test, title) = STORES[0];
    Step::new(title, move || on(test, duration))
}

/// How long a siege lasts on each store, its second part; the first, without the hostile tenant, lasts half as long.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Duration {
    pub(crate) minutes: u64,
}

impl Default for Duration {
    fn default() -> Self {
        Self { minutes: MINUTES }
    }
}

/// Beside the heaviest workflow, which is measured on a machine that does nothing else.
const FAIR: (&str, &str) = (
    "siege::fair::a_tenant_waits_little_beside_the_heaviest_workflow",
    "fair shares",
);

/// A step for each store, and one for the shares of tenants.
pub(crate) fn steps(duration: Duration) -> Vec<Step> {
    STORES
        .into_iter()
        .chain([FAIR])
        .map(|(test, title)| Step::new(title, move || on(test, duration)))
        .collect()
}

fn on(test: &str, duration: Duration) -> Result<Outcome> {
    let mut command = command(test);
    command.env("WOPR_SIEGE_SECONDS", (duration.minutes * 60).to_string());
    run_test(&mut command, test)?;
    Ok(Outcome::Done)
}

/// The test by plain cargo, which has no time limit and shows what was measured; of an optimised build, as bars of time and
/// memory are those of a release.
fn command(test: &str) -> Command {
    let mut command = cargo();
    command.args(["test", "--quiet", "--profile", "measured"]);
    command.args(["--package", "wopr", "--test", "proc", "--"]);
    command.args(["--exact", test, "--nocapture"]);
    command.env("RUST_BACKTRACE", "0");
    command
}
