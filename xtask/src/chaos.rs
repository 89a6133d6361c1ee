//! The chaos tests at length: hosts as processes, killed and frozen under load, their database and their clocks put
//! wrong. `crates/cli/tests/proc/chaos` says what is done and what must hold; here is only how often.

use std::process::Command;

use anyhow::{Result, bail};

use crate::debian;
use crate::faketime;
use crate::plan::{Outcome, Step};
use crate::process::{cargo, in_ci, run_test};

/// Kills of one round on one store.
pub(crate) const KILLS: u32 = 100;
/// Rounds of a long run.
pub(crate) const LONG: u32 = 20;

/// A store under test.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Store {
    /// One host.
    Sqlite,
    /// Three replicas over a database server of their own.
    Postgres,
}

impl Store {
    pub(crate) const ALL: [Self; 2] = [Self::Sqlite, Self::Postgres];

    /// The store of this name on the command line.
    pub(crate) fn parse(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|store| store.name() == name)
    }

    const fn name(self) -> &'static str {
        match self {
            Self::Sqlite => "sqlite",
            Self::Postgres => "postgres",
        }
    }

    const fn test(self) -> &'static str {
        match self {
            Self::Sqlite => "chaos::one_host_on_sqlite_keeps_every_promise",
            Self::Postgres => "chaos::three_replicas_on_postgres_keep_every_promise",
        }
    }

    /// The name of the step.
    const fn title(self) -> &'static str {
        match self {
            Self::Sqlite => "chaos on SQLite",
            Self::Postgres => "chaos on PostgreSQL",
        }
    }
}

/// How much chaos.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Amount {
    /// Only on this store.
    pub(crate) store: Option<Store>,
    /// Kills in a round.
    pub(crate) kills: u32,
    /// How often, each time on an empty store.
    pub(crate) rounds: u32,
    /// The first round's seed; each further round has the next one. Without it, each draws its own.
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

/// Clocks can be made to jump, or it is said that they cannot.
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

/// A step for each store.
pub(crate) fn steps(amount: Amount) -> Vec<Step> {
    let stores = Store::ALL.into_iter();
    stores
        .filter(|store| amount.store.is_none_or(|only| only == *store))
        .map(|store| Step::new(store.title(), move || on(store, amount)))
        .collect()
}

/// Every round passes.
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
        let mut test = command(store);
        test.env("WOPR_CHAOS_KILLS", kills.to_string());
        if let Some(seed) = seed {
            test.env("WOPR_CHAOS_SEED", seed.wrapping_add(round.into()).to_string());
        }
        run_test(&mut test, store.test())?;
    }
    Ok(Outcome::Done)
}

/// The test by plain cargo, which has no time limit and shows what is done; with the features of the whole workspace,
/// so that nothing is built twice.
fn command(store: Store) -> Command {
    let mut command = cargo();
    command.args(["test", "--quiet", "--workspace", "--test", "proc", "--"]);
    command.args(["--exact", store.test(), "--nocapture"]);
    command.env("RUST_BACKTRACE", "0");
    command
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_store_has_a_step_unless_one_is_named() {
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
