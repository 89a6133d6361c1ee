//! Builds and runs the tests.

use std::fs;
use std::process::Command;
use std::thread;

use anyhow::{Context as _, Result, bail};

use crate::args::Selection;
use crate::clients;
use crate::lint;
use crate::plan::Outcome;
use crate::postgres::Server;
use crate::process::{cargo, in_ci, read, run};
use crate::rustc;

/// Tests that use third-party clients are in modules or binaries named `interop*`.
const INTEROP_TESTS: &str = "test(/(^|::)interop/)";
const INTEROP_BINARIES: &str = "binary(/^interop/)";

/// Builds `wopr` and all test binaries.
///
/// Both in one command: building `wopr` alone enables fewer features and would compile most dependencies
/// twice.
pub(crate) fn build() -> Result<Outcome> {
    let mut command = cargo();
    command.args(["build", "--workspace", "--bins", "--tests"]);
    rustc::optimized(&mut command)?;
    run(&mut command)?;
    Ok(Outcome::Done)
}

/// Runs the selected tests, without the named ones: those that later steps run at length.
pub(crate) fn test(selection: &Selection, left_out: &[&str]) -> Result<Outcome> {
    let mut command = if has_nextest() {
        nextest(selection, left_out)?
    } else if in_ci() {
        bail!("find cargo-nextest; `.ci/run` installs it");
    } else {
        println!(
            "cargo-nextest is not here (`cargo install --locked cargo-nextest`); running plain cargo test"
        );
        plain(selection, left_out)?
    };
    rustc::optimized(&mut command)?;
    if !selection.without_interop {
        command.envs(clients::variables()?);
    }
    // The server stops when this step ends.
    let server = Server::start()?;
    let (name, url) = server.variable();
    run(command.env(name, url))?;
    Ok(Outcome::Done)
}

/// Runs the examples in the documentation.
pub(crate) fn doc_tests() -> Result<Outcome> {
    let mut command = cargo();
    command.args(["test", "--doc", "--workspace"]);
    rustc::optimized(&mut command)?;
    run(&mut command)?;
    Ok(Outcome::Done)
}

/// Builds the documentation and fails on warnings, such as broken links.
///
/// There are no examples to document, but the option has cargo enable the features that tests need, as it does for
/// Clippy, so that nothing is checked twice.
pub(crate) fn docs() -> Result<Outcome> {
    let mut command = cargo();
    command
        .args(["doc", "--no-deps", "--workspace", "--lib", "--bins", "--examples"])
        .env("RUSTDOCFLAGS", "-D warnings");
    lint::with_clippy(&mut command)?;
    run(&mut command)?;
    Ok(Outcome::Done)
}

fn has_nextest() -> bool {
    read(cargo().args(["nextest", "--version"])).is_ok()
}

fn nextest(selection: &Selection, left_out: &[&str]) -> Result<Command> {
    let mut command = cargo();
    command.args(["nextest", "run", "--workspace"]);
    if in_ci() {
        command.args(["--profile", "ci"]);
    }
    // One more than processors: many tests wait for other processes or for time to pass.
    let threads = thread::available_parallelism().map_or(1, usize::from) + 1;
    command.args(["--test-threads", &threads.to_string()]);
    if let Some(expression) = expression(selection, left_out, has_interop_binaries()?) {
        command.args(["--filterset", &expression]);
    }
    Ok(command)
}

/// Returns the nextest filter; `None` selects all tests.
fn expression(selection: &Selection, left_out: &[&str], has_interop_binaries: bool) -> Option<String> {
    let mut parts = Vec::new();
    if let Some(filter) = &selection.filter {
        parts.push(format!("({filter})"));
    }
    if selection.without_interop {
        parts.push(format!("not {INTEROP_TESTS}"));
        // nextest rejects a binary filter that matches nothing.
        if has_interop_binaries {
            parts.push(format!("not {INTEROP_BINARIES}"));
        }
    }
    parts.extend(left_out.iter().map(|test| format!("not test(={test})")));
    (!parts.is_empty()).then(|| parts.join(" and "))
}

fn has_interop_binaries() -> Result<bool> {
    for package in fs::read_dir("crates").context("list crates")? {
        let tests = package.context("list crates")?.path().join("tests");
        let Ok(entries) = fs::read_dir(tests) else {
            continue;
        };
        for entry in entries {
            if entry
                .context("list tests")?
                .file_name()
                .to_string_lossy()
                .starts_with("interop")
            {
                return Ok(true);
            }
        }
    }
    Ok(false)
}

fn plain(selection: &Selection, left_out: &[&str]) -> Result<Command> {
    if selection.filter.is_some() {
        bail!("filter tests without cargo-nextest; --filter takes one of its expressions");
    }
    let mut command = cargo();
    command.args(["test", "--workspace", "--lib", "--bins", "--tests", "--"]);
    if selection.without_interop {
        command.args(["--skip", "interop"]);
    }
    command.args(left_out.iter().flat_map(|test| ["--skip", test]));
    Ok(command)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rendered(filter: Option<&str>, without_interop: bool, has_interop_binaries: bool) -> Option<String> {
        expression(
            &Selection {
                is_quick: false,
                without_interop,
                filter: filter.map(str::to_owned),
            },
            &[],
            has_interop_binaries,
        )
    }

    #[test]
    fn filter_and_no_interop_are_combined() {
        assert_eq!(rendered(None, false, true), None);
        assert_eq!(
            rendered(Some("test(a) | test(b)"), false, true).unwrap(),
            "(test(a) | test(b))"
        );
        assert_eq!(rendered(None, true, false).unwrap(), "not test(/(^|::)interop/)");
        assert_eq!(
            rendered(Some("test(a) | test(b)"), true, true).unwrap(),
            "(test(a) | test(b)) and not test(/(^|::)interop/) and not binary(/^interop/)"
        );
    }
    #[test]
    fn tests_that_run_later_are_left_out() {
        let all = Selection::default();
        assert_eq!(
            expression(&all, &["chaos::one", "siege::two"], true).unwrap(),
            "not test(=chaos::one) and not test(=siege::two)"
        );
    }
}
