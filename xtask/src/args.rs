//! The command line.

use std::str::FromStr;

use anyhow::{Context as _, Result, bail};

use crate::chaos::{Amount, LONG, Store};
use crate::corpus::is_version;
use crate::fuzz::Effort;
use crate::siege::Duration;
use crate::sim::Worlds;

pub(crate) const USAGE: &str = "\
usage: cargo xtask <chore>

  test [--quick] [--no-interop] [--filter EXPR]
           lint, set up, build and run every test, then the simulator, the fuzz targets, the chaos tests and a
           siege of an optimised build; what CI runs
             --quick        without these
             --no-interop   without the tests that drive other people's clients, and their set-up
             --filter EXPR  only the tests a nextest filter expression selects, and nothing after them
  chaos [--long] [--store sqlite|postgres] [--kills N] [--rounds N] [--seed N]
           only the chaos tests: hosts killed and frozen under load, 100 times on each store
             --long         20 rounds of it
             --store NAME   only on this store
             --seed N       the same plan again; each further round has the next seed
  siege [--minutes N]
           only the siege: all known attacks on one host at once, beside a tenant that must not notice
             --minutes N    so long on each store, 1 without it
  sim [--seeds N] [--from N] [--seed N] [--jobs N]
           only the simulator: replicas over a store, with everything that can go wrong, in virtual time
             --seeds N      so many worlds, after those whose seeds are kept
             --from N       the first seed
             --seed N       only the world of this seed, and how it goes
             --jobs N       so many at once
  fuzz [--seconds N] [TARGET..]
           only the fuzz targets: everything that parses, for a minute or so
             --seconds N    so long in all, beside the build
             TARGET         only this one
  setup    only set up what the tests need
  pg -- COMMAND [ARG..]
           run a command with a PostgreSQL server that lives as long, WOPR_TEST_POSTGRES names it
  corpus cut VERSION
           keep what this code stores as that version's corpus, for every later version to open
  coverage [PACKAGE..]
           which lines the tests of these packages reach, or of the workspace, with cargo-llvm-cov
  lint     formatting, tidy, clippy, dependency rules
  tidy     only this repository's own rules on its files
  features
           write docs/features.md, the map from features to the tests that hold them
  help     this text";

#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Chore {
    Test(Selection),
    Chaos(Amount),
    Siege(Duration),
    Simulate(Worlds),
    Fuzz(Effort),
    Setup,
    /// A command that needs a database server.
    Postgres(Vec<String>),
    /// Cut a corpus from this code, for the given version.
    Corpus(String),
    /// Measure what the tests of these packages reach; of all if empty.
    Coverage(Vec<String>),
    /// The checks that do not build tests.
    Lint,
    /// Only the rules on files.
    Tidy,
    /// Write the map from features to tests.
    Features,
    Help,
}

#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct Selection {
    /// Skips the steps that take minutes: simulator, fuzz targets, chaos and siege.
    pub(crate) is_quick: bool,
    pub(crate) without_interop: bool,
    /// A nextest filter expression.
    pub(crate) filter: Option<String>,
}

/// Parses the arguments after the program name.
pub(crate) fn parse(args: impl Iterator<Item = String>) -> Result<Chore> {
    let mut args = args.peekable();
    let chore = match args.next().as_deref() {
        Some("test") => Chore::Test(selection(&mut args)?),
        Some("chaos") => Chore::Chaos(amount(&mut args)?),
        Some("siege") => Chore::Siege(duration(&mut args)?),
        Some("sim") => Chore::Simulate(worlds(&mut args)?),
        Some("fuzz") => Chore::Fuzz(effort(&mut args)?),
        Some("setup") => Chore::Setup,
        Some("pg") => Chore::Postgres(command(&mut args)?),
        Some("corpus") => Chore::Corpus(version(&mut args)?),
        Some("coverage") => Chore::Coverage(packages(&mut args)?),
        Some("lint") => Chore::Lint,
        Some("tidy") => Chore::Tidy,
        Some("features") => Chore::Features,
        None | Some("help" | "--help" | "-h") => Chore::Help,
        Some(other) => bail!("no chore is called {other:?}\n\n{USAGE}"),
    };
    if let Some(extra) = args.next() {
        bail!("argument {extra:?} is one too many\n\n{USAGE}");
    }
    Ok(chore)
}

fn command(args: &mut impl Iterator<Item = String>) -> Result<Vec<String>> {
    let words: Vec<_> = match args.next().as_deref() {
        Some("--") => args.collect(),
        Some(_) | None => Vec::new(),
    };
    if words.is_empty() {
        bail!("pg needs a command after `--`\n\n{USAGE}");
    }
    Ok(words)
}

fn version(args: &mut impl Iterator<Item = String>) -> Result<String> {
    match (args.next().as_deref(), args.next()) {
        (Some("cut"), Some(version)) if is_version(&version) => Ok(version),
        (Some("cut"), _) => bail!("corpus cut needs a version such as 0.1.0\n\n{USAGE}"),
        (Some(_) | None, _) => bail!("corpus can only be `cut`\n\n{USAGE}"),
    }
}

fn selection(args: &mut impl Iterator<Item = String>) -> Result<Selection> {
    let mut selection = Selection::default();
    while let Some(arg) = args.next() {
        match arg.as_str() {
            "--quick" => selection.is_quick = true,
            "--no-interop" => selection.without_interop = true,
            "--filter" => match args.next() {
                Some(filter) => selection.filter = Some(filter),
                None => bail!("--filter needs a nextest filter expression"),
            },
            other => match other.strip_prefix("--filter=") {
                Some(filter) => selection.filter = Some(filter.to_owned()),
                None => bail!("option {other:?} is unknown\n\n{USAGE}"),
            },
        }
    }
    Ok(selection)
}

fn amount(args: &mut impl Iterator<Item = String>) -> Result<Amount> {
    let mut amount = Amount::default();
    while let Some(arg) = args.next() {
        match arg.as_str() {
            "--long" => amount.rounds = LONG,
            "--store" => {
                let name = value(args, &arg)?;
                let store = Store::parse(&name);
                amount.store =
                    Some(store.with_context(|| format!("no store is called {name:?}\n\n{USAGE}"))?);
            }
            "--kills" => amount.kills = number(args, &arg)?,
            "--rounds" => amount.rounds = number(args, &arg)?,
            "--seed" => amount.seed = Some(number(args, &arg)?),
            other => bail!("option {other:?} is unknown\n\n{USAGE}"),
        }
    }
    Ok(amount)
}

fn duration(args: &mut impl Iterator<Item = String>) -> Result<Duration> {
    let mut duration = Duration::default();
    while let Some(arg) = args.next() {
        match arg.as_str() {
            "--minutes" => duration.minutes = number(args, &arg)?,
            other => bail!("option {other:?} is unknown\n\n{USAGE}"),
        }
    }
    Ok(duration)
}

fn worlds(args: &mut impl Iterator<Item = String>) -> Result<Worlds> {
    let mut worlds = Worlds::default();
    while let Some(arg) = args.next() {
        match arg.as_str() {
            "--seeds" => worlds.seeds = number(args, &arg)?,
            "--from" => worlds.from = number(args, &arg)?,
            "--seed" => worlds.seed = Some(number(args, &arg)?),
            "--jobs" => worlds.jobs = Some(number(args, &arg)?),
            other => bail!("option {other:?} is unknown\n\n{USAGE}"),
        }
    }
    Ok(worlds)
}

fn effort(args: &mut impl Iterator<Item = String>) -> Result<Effort> {
    let mut effort = Effort::default();
    while let Some(arg) = args.next() {
        match arg.as_str() {
            "--seconds" => effort.seconds = number(args, &arg)?,
            other if other.starts_with('-') => bail!("option {other:?} is unknown\n\n{USAGE}"),
            target => effort.targets.push(target.to_owned()),
        }
    }
    Ok(effort)
}

fn packages(args: &mut impl Iterator<Item = String>) -> Result<Vec<String>> {
    let packages: Vec<_> = args.collect();
    if let Some(option) = packages.iter().find(|name| name.starts_with('-')) {
        bail!("option {option:?} is unknown\n\n{USAGE}");
    }
    Ok(packages)
}

fn value(args: &mut impl Iterator<Item = String>, option: &str) -> Result<String> {
    args.next().with_context(|| format!("{option} needs a value"))
}

fn number<T: FromStr>(args: &mut impl Iterator<Item = String>, option: &str) -> Result<T> {
    let text = value(args, option)?;
    let Ok(number) = text.parse() else {
        bail!("{option} needs a number, not {text:?}");
    };
    Ok(number)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse_line(line: &str) -> Result<Chore> {
        parse(line.split_whitespace().map(str::to_owned))
    }

    #[test]
    fn test_options_are_accepted_in_any_order() {
        let expected = Chore::Test(Selection {
            is_quick: true,
            without_interop: true,
            filter: Some("test(lease)".to_owned()),
        });
        for line in [
            "test --quick --no-interop --filter test(lease)",
            "test --filter=test(lease) --no-interop --quick",
        ] {
            assert_eq!(parse_line(line).unwrap(), expected, "{line}");
        }
        assert_eq!(parse_line("test").unwrap(), Chore::Test(Selection::default()));
    }

    #[test]
    fn invalid_command_lines_are_rejected() {
        for line in [
            "tset",
            "test --filter",
            "test --interop",
            "setup now",
            "chaos --kills",
            "chaos --kills many",
            "chaos --store memory",
            "chaos 7",
            "siege --minutes",
            "siege 5",
            "sim --seeds",
            "sim --seed x",
            "sim 5",
            "fuzz --seconds",
            "fuzz --seconds long",
            "fuzz --runs 3",
            "pg",
            "pg --",
            "pg psql",
            "tidy --fix",
            "features --check",
            "coverage --html",
            "corpus",
            "corpus paste 0.1.0",
            "corpus cut",
            "corpus cut v1",
            "corpus cut 0.1.0 now",
        ] {
            assert!(parse_line(line).is_err(), "{line}");
        }
    }

    #[test]
    fn simulator_worlds_are_given_by_count_or_seed() {
        assert_eq!(parse_line("sim").unwrap(), Chore::Simulate(Worlds::default()));
        let many = Worlds {
            seeds: 7,
            from: 3,
            jobs: Some(2),
            ..Worlds::default()
        };
        let line = "sim --jobs 2 --from 3 --seeds 7";
        assert_eq!(parse_line(line).unwrap(), Chore::Simulate(many));
        let Chore::Simulate(one) = parse_line("sim --seed 629").unwrap() else {
            panic!("another chore");
        };
        assert_eq!(one.seed, Some(629));
    }

    #[test]
    fn fuzz_targets_may_be_named() {
        assert_eq!(parse_line("fuzz").unwrap(), Chore::Fuzz(Effort::default()));
        let effort = Effort {
            seconds: 600,
            targets: vec!["sse".to_owned(), "http".to_owned()],
        };
        assert_eq!(
            parse_line("fuzz sse --seconds 600 http").unwrap(),
            Chore::Fuzz(effort)
        );
    }

    #[test]
    fn chaos_options_are_parsed() {
        assert_eq!(parse_line("chaos").unwrap(), Chore::Chaos(Amount::default()));
        let long = Amount {
            rounds: LONG,
            ..Amount::default()
        };
        assert_eq!(parse_line("chaos --long").unwrap(), Chore::Chaos(long));
        let replayed = Amount {
            store: Some(Store::Postgres),
            kills: 7,
            rounds: 2,
            seed: Some(u64::MAX),
        };
        assert_eq!(
            parse_line("chaos --store postgres --kills 7 --rounds 2 --seed 18446744073709551615").unwrap(),
            Chore::Chaos(replayed)
        );
    }

    #[test]
    fn siege_duration_is_parsed() {
        assert_eq!(parse_line("siege").unwrap(), Chore::Siege(Duration::default()));
        let long = Duration { minutes: 5 };
        assert_eq!(parse_line("siege --minutes 5").unwrap(), Chore::Siege(long));
    }

    #[test]
    fn pg_passes_options_to_its_command() {
        let words = ["cargo", "test", "--", "--nocapture"].map(str::to_owned);
        assert_eq!(
            parse_line("pg -- cargo test -- --nocapture").unwrap(),
            Chore::Postgres(words.to_vec())
        );
    }

    #[test]
    fn coverage_is_of_the_named_packages() {
        assert_eq!(parse_line("coverage").unwrap(), Chore::Coverage(Vec::new()));
        let one = vec!["wopr-wire".to_owned()];
        assert_eq!(parse_line("coverage wopr-wire").unwrap(), Chore::Coverage(one));
    }

    #[test]
    fn missing_chore_prints_help() {
        assert_eq!(parse_line("").unwrap(), Chore::Help);
    }
}
