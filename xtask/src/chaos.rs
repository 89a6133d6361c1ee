//! The long-running chaos tests: host processes are killed and frozen under load, with faults in the database
//! and clock jumps, and so are two hosts of which one calls the other. `crates/cli/tests/proc/chaos` and `kills` implement
//! the tests; this module only decides how often they run.

use std::process::Command;

use anyhow::{Result, bail};

use crate::debian;
use crate::faketime;
use crate::plan::{Outcome, Step};
use crate::process::{cargo, in_ci, run_tests};
use crate::rustc;

/// Kills per round and store.
pub(crate) const KILLS: u32 = 100;
/// Rounds of a long run.
pub(crate) const LONG: u32 = 20;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Store {
    /// A single host.
    Sqlite,
    /// Three replicas that share a database server.
    Postgres,
}

impl Store {
    pub(crate) const ALL: [Self; 2] = [Self::Sqlite, Self::Postgres];

    pub(crate) fn parse(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|store| store.name() == name)
    }

    const fn name(self) -> &'static str {
        match self {
            Self::Sqlite => "sqlite",
            Self::Postgres => "postgres",
        }
    }

    /// One host or one service alone, and calls between two hosts.
    pub(crate) const fn tests(self) -> [&'static str; 2] {
        match self {
            Self::Sqlite => [
                "chaos::one_host_on_sqlite_keeps_every_promise",
                "kills::calls_between_hosts_on_sqlite_survive_kills_of_both",
            ],
            Self::Postgres => [
                "chaos::three_replicas_on_postgres_keep_every_promise",
                "kills::calls_between_hosts_on_postgres_survive_kills_of_both",
            ],
        }
    }

    const fn title(self) -> &'static str {
        match self {
            Self::Sqlite => "chaos on SQLite",
            Self::Postgres => "chaos on PostgreSQL",
        }
    }
}

/// The amount of chaos testing.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Amount {
    /// Only this store; both if `None`.
    pub(crate) store: Option<Store>,
    pub(crate) kills: u32,
    /// Number of rounds, each on an empty store.
    pub(crate) rounds: u32,
    /// Seed of the first round; each further round adds one. Without it, every round draws its own.
    pub(crate) seed: Option<u64>,
}

impl Default for Amount {
    fn default() -> Self {
        Self {
            store: None,
            kills: KILLS,
            rounds: 1,
            seed: None,
        }
    }
}

/// Installs libfaketime, or reports that clock jumps are skipped.
pub(crate) fn set_up() -> Result<Outcome> {
    if faketime::find().is_none()
        && let Err(error) = debian::install("faketime", "find libfaketime")
    {
        if in_ci() {
            return Err(error);
        }
        return Ok(Outcome::Skipped(format!(
            "no clock jumps in the chaos tests: {error:#}"
        )));
    }
    Ok(match faketime::find() {
        Some(library) => {
            println!("libfaketime is {}", library.display());
            Outcome::Done
        }
        None if in_ci() => bail!("find the library of the package faketime, which is installed"),
        None => Outcome::Skipped(
            "no clock jumps in the chaos tests: the package faketime is installed, and its library is not where \
             it should be"
                .to_owned(),
        ),
    })
}

/// Returns a step for each store.
pub(crate) fn steps(amount: Amount) -> Vec<Step> {
    let stores = Store::ALL.into_iter();
    stores
        .filter(|store| amount.store.is_none_or(|only| only == *store))
        .map(|store| Step::new(store.title(), move || on(store, amount)))
        .collect()
}

/// Runs all rounds on one store.
fn on(store: Store, amount: Amount) -> Result<Outcome> {
    let Amount {
        store: _,
        kills,
        rounds,
        seed,
    } = amount;
    for round in 0..rounds {
        if rounds > 1 {
            println!("\nround {} of {rounds}", round + 1);
        }
        let mut tests = command(&store.tests())?;
        tests.env("WOPR_CHAOS_KILLS", kills.to_string());
        if let Some(seed) = seed {
            tests.env("WOPR_CHAOS_SEED", seed.wrapping_add(round.into()).to_string());
        }
        run_tests(&mut tests, &store.tests())?;
    }
    Ok(Outcome::Done)
}

/// Uses plain `cargo test`, which has no time limit and streams its output. One test after the other: a host that has
/// to share the processors may be killed at the same row at each start, until the row is quarantined. Optimized,
/// because the checks at the end read every run.
fn command(tests: &[&str]) -> Result<Command> {
    let mut command = cargo();
    command.args(["test", "--quiet", "--workspace", "--test", "proc", "--"]);
    command.args(["--nocapture", "--test-threads", "1", "--exact"]);
    command.args(tests);
    command.env("RUST_BACKTRACE", "0");
    rustc::optimized(&mut command)?;
    Ok(command)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_store_has_a_step_unless_one_is_named() {
        assert_eq!(steps(Amount::default()).len(), 2);
        for store in Store::ALL {
            assert_eq!(Store::parse(store.name()), Some(store));
            let amount = Amount {
                store: Some(store),
                ..Amount::default()
            };
            assert_eq!(steps(amount).len(), 1);
        }
        assert_eq!(Store::parse("memory"), None);
    }
}
