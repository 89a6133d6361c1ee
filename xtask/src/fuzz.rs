//! Fuzz targets: everything that parses, given what a fuzzer makes of the inputs that are kept. `fuzz/src/lib.rs` says
//! what must hold; here is only how the targets are built, and for how long each is tried.
//!
//! libFuzzer comes with its crate and needs of the compiler only that our libraries count what they run through. The
//! stable compiler can do that, by flags of LLVM; so neither a nightly one nor cargo-fuzz has to be there.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::Mutex;
use std::thread;
use std::time::Duration;

use anyhow::{Context as _, Result, anyhow, bail};

use crate::debian;
use crate::plan::{Outcome, Step};
use crate::process::{cargo, in_ci, read, run};
use crate::rustc::{self, Scope};

/// Seconds of a run in CI: what its three minutes leave beside the build.
const SECONDS: u64 = 75;
/// Debug assertions and overflow checks stay; everything else is counting: each edge, and what is compared with what.
const FLAGS: [&str; 7] = [
    "-Copt-level=1",
    "-Cpasses=sancov-module",
    "-Cllvm-args=-sanitizer-coverage-level=4",
    "-Cllvm-args=-sanitizer-coverage-inline-8bit-counters",
    "-Cllvm-args=-sanitizer-coverage-pc-table",
    "-Cllvm-args=-sanitizer-coverage-trace-compares",
    "--cfg=fuzzing",
];
/// One file for each target.
const SOURCES: &str = "fuzz/fuzz_targets";
/// The inputs that are kept.
const CORPUS: &str = "fuzz/corpus";
/// Inputs that broke a promise.
const ARTIFACTS: &str = "fuzz/artifacts";
/// Inputs that were found on the way, and what the fuzzer printed.
const FOUND: &str = "target/fuzz";
/// How long one input may take, in seconds.
const TIMEOUT: u64 = 10;
/// What one target may take of memory, in MiB.
const MEMORY: u64 = 2_048;

/// How much fuzzing.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Effort {
    /// Seconds in all, beside the build.
    pub(crate) seconds: u64,
    /// Only these; every one if there is none.
    pub(crate) targets: Vec<String>,
}

impl Default for Effort {
    fn default() -> Self {
        Self {
            seconds: SECONDS,
            targets: Vec::new(),
        }
    }
}

/// Builds the targets, then tries them.
pub(crate) fn steps(effort: Effort) -> Vec<Step> {
    vec![Step::new("fuzz targets", move || fuzz(&effort))]
}

fn fuzz(effort: &Effort) -> Result<Outcome> {
    if let Err(error) = find_compiler() {
        if in_ci() {
            return Err(error);
        }
        return Ok(Outcome::Skipped(format!("{error:#}")));
    }
    let targets = chosen(&known()?, &effort.targets)?;
    build(&targets)?;
    let jobs = thread::available_parallelism()
        .map_or(1, usize::from)
        .min(targets.len());
    let share = share(effort.seconds, targets.len(), jobs);
    println!(
        "{} targets, {} s each, {jobs} at once",
        targets.len(),
        share.as_secs()
    );
    let failed = try_all(&targets, share, jobs)?;
    if failed.is_empty() {
        return Ok(Outcome::Done);
    }
    bail!("{} broke a promise", failed.join(", "));
}

/// libFuzzer is C++.
fn find_compiler() -> Result<()> {
    let compiler = std::env::var_os("CXX").unwrap_or_else(|| "c++".into());
    if read(Command::new(compiler).arg("--version")).is_ok() {
        return Ok(());
    }
    debian::install("g++", "find a C++ compiler, which libFuzzer is built with")
}

/// The names of all targets.
fn known() -> Result<Vec<String>> {
    let mut names = Vec::new();
    for file in fs::read_dir(SOURCES).with_context(|| format!("list {SOURCES}"))? {
        let path = file.with_context(|| format!("list {SOURCES}"))?.path();
        if let Some(name) = path.file_stem() {
            names.push(name.to_string_lossy().into_owned());
        }
    }
    names.sort();
    Ok(names)
}

fn chosen(known: &[String], wanted: &[String]) -> Result<Vec<String>> {
    if let Some(unknown) = wanted.iter().find(|name| !known.contains(name)) {
        bail!(
            "no fuzz target is called {unknown:?}; there are {}",
            known.join(", ")
        );
    }
    Ok(if wanted.is_empty() { known } else { wanted }.to_vec())
}

/// How long each target is tried, so that all of them take that many seconds.
fn share(seconds: u64, n_targets: usize, jobs: usize) -> Duration {
    let rounds = n_targets.div_ceil(jobs.max(1)).max(1) as u64;
    Duration::from_secs((seconds / rounds).max(1))
}

/// Compiles our libraries anew, and of the dependencies none but libFuzzer: the whole workspace is named, and one of its
/// tests, so that they have the features they have for the tests.
fn build(targets: &[String]) -> Result<()> {
    let mut command = cargo();
    command.args(["build", "--workspace", "--features", "wopr-fuzz/libfuzzer"]);
    command.args(["--test", "arrows"]);
    for target in targets {
        command.args(["--bin", target]);
    }
    rustc::with_flags(&mut command, &FLAGS, Scope::Libraries)?;
    run(&mut command)
}

/// Tries all targets, some at once, and names those that failed.
fn try_all(targets: &[String], share: Duration, jobs: usize) -> Result<Vec<String>> {
    // Cargo puts what it builds beside this program.
    let program = std::env::current_exe().context("find this program")?;
    let binaries = program.parent().context("find the folder of this program")?;
    let queue = Mutex::new(targets.iter());
    let next = || queue.lock().ok().and_then(|mut queue| queue.next());
    let work = || -> Result<Vec<String>> {
        let mut failed = Vec::new();
        while let Some(target) = next() {
            if !try_one(&binaries.join(target), target, share)? {
                failed.push(target.clone());
            }
        }
        Ok(failed)
    };
    thread::scope(|scope| {
        let workers: Vec<_> = (0..jobs).map(|_| scope.spawn(work)).collect();
        let mut failed = Vec::new();
        for worker in workers {
            failed.extend(worker.join().map_err(|_| anyhow!("await a fuzzer"))??);
        }
        failed.sort();
        Ok(failed)
    })
}

/// Tries one target, says how it went, and whether every promise held.
fn try_one(binary: &Path, target: &str, share: Duration) -> Result<bool> {
    let found = Path::new(FOUND).join(target);
    let artifacts = Path::new(ARTIFACTS).join(target);
    for folder in [&found, &artifacts] {
        fs::create_dir_all(folder).with_context(|| format!("make {}", folder.display()))?;
    }
    let log_path = Path::new(FOUND).join(format!("{target}.log"));
    let log = fs::File::create(&log_path).with_context(|| format!("write {}", log_path.display()))?;
    let mut command = Command::new(binary);
    command
        .arg(format!("-max_total_time={}", share.as_secs()))
        .arg(format!("-timeout={TIMEOUT}"))
        .arg(format!("-rss_limit_mb={MEMORY}"))
        .arg(format!("-artifact_prefix={}/", artifacts.display()))
        .args(["-print_final_stats=1", "-verbosity=1"]);
    let words = PathBuf::from(format!("fuzz/dictionaries/{target}.dict"));
    if words.exists() {
        command.arg(format!("-dict={}", words.display()));
    }
    let status = command
        .arg(&found)
        .arg(Path::new(CORPUS).join(target))
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(log)
        .status()
        .with_context(|| format!("start {}", binary.display()))?;
    let said = fs::read(&log_path).with_context(|| format!("read {}", log_path.display()))?;
    let said = String::from_utf8_lossy(&said);
    if status.success() {
        println!("{}", account(target, &said));
    } else {
        println!("{}", complaint(target, binary, &said));
    }
    Ok(status.success())
}

/// What was done, in a line.
fn account(target: &str, said: &str) -> String {
    let stat = |name: &str| {
        let line = said.lines().rev().find_map(|line| line.strip_prefix(name));
        line.map_or("?", str::trim)
    };
    let coverage = said.lines().rev().find_map(|line| {
        let mut words = line.split_whitespace();
        words.find(|word| *word == "cov:").and_then(|_| words.next())
    });
    format!(
        "  {target:12} {:>9} inputs, {:>6} edges, {:>5} new ones",
        stat("stat::number_of_executed_units:"),
        coverage.unwrap_or("?"),
        stat("stat::new_units_added:"),
    )
}

/// What went wrong, and how to see it again.
fn complaint(target: &str, binary: &Path, said: &str) -> String {
    let lines: Vec<_> = said.lines().collect();
    let from = lines
        .iter()
        .position(|line| line.contains("panicked at") || line.starts_with("=="));
    let shown = lines[from.unwrap_or(lines.len().saturating_sub(20))..].join("\n");
    let input = said
        .lines()
        .find_map(|line| line.split("Test unit written to ").nth(1));
    let input = input.map_or("the input", str::trim);
    format!(
        "{shown}\n\n{target} broke a promise. To see it again: {} {input}\nTo keep it: copy {input} to \
         {CORPUS}/{target}, under a name that says what it broke; `cargo nextest run -p wopr-fuzz` holds it from then on",
        binary.display()
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    fn names(names: &[&str]) -> Vec<String> {
        names.iter().map(|name| (*name).to_owned()).collect()
    }

    #[test]
    fn all_targets_are_tried_unless_some_are_named() {
        let known = names(&["a", "b", "c"]);
        assert_eq!(chosen(&known, &[]).unwrap(), known);
        assert_eq!(chosen(&known, &names(&["c"])).unwrap(), ["c"]);
        assert!(chosen(&known, &names(&["c", "d"])).is_err());
    }

    #[test]
    fn shares_add_up_to_what_was_asked() {
        assert_eq!(share(80, 14, 2), Duration::from_secs(11));
        assert_eq!(share(80, 1, 2), Duration::from_secs(80));
        assert_eq!(share(80, 3, 2), Duration::from_secs(40));
        assert_eq!(share(1, 14, 2), Duration::from_secs(1));
    }

    #[test]
    fn a_run_is_told_in_a_line() {
        let said = "#2\tINITED cov: 10 ft: 1\n#9\tDONE   cov: 512 ft: 9 corp: 3/7b\nDone 9 runs\n\
                    stat::number_of_executed_units: 9\nstat::new_units_added:          3\n";
        let told = account("sse", said);
        let words: Vec<_> = told.split_whitespace().collect();
        assert_eq!(
            words,
            ["sse", "9", "inputs,", "512", "edges,", "3", "new", "ones"]
        );
    }

    #[test]
    fn a_broken_promise_names_its_input() {
        let said = "#2 INITED\nthread '<unnamed>' panicked at fuzz/src/sse.rs:1:\ncut differently\n\
                    artifact_prefix='x/'; Test unit written to fuzz/artifacts/sse/crash-1\nBase64: \n";
        let told = complaint("sse", Path::new("target/debug/sse"), said);
        assert!(told.starts_with("thread '<unnamed>' panicked"), "{told}");
        assert!(
            told.contains("target/debug/sse fuzz/artifacts/sse/crash-1\n"),
            "{told}"
        );
    }
}
