//! The fuzz targets: all parsers, starting from a corpus of inputs. `fuzz/src/lib.rs` documents the
//! properties; this module only decides how the targets are built and how long each one runs.
//!
//! The libFuzzer crate only requires our libraries to be compiled with coverage instrumentation, which the
//! stable compiler supports through LLVM flags. Neither a nightly toolchain nor cargo-fuzz is needed.

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
use crate::rustc;

/// Duration of a CI run: what is left of its three minutes after the build.
const SECONDS: u64 = 75;
/// Debug assertions and overflow checks stay on; the other flags instrument edges and comparisons.
const FLAGS: [&str; 7] = [
    "-Copt-level=1",
    "-Cpasses=sancov-module",
    "-Cllvm-args=-sanitizer-coverage-level=4",
    "-Cllvm-args=-sanitizer-coverage-inline-8bit-counters",
    "-Cllvm-args=-sanitizer-coverage-pc-table",
    "-Cllvm-args=-sanitizer-coverage-trace-compares",
    "--cfg=fuzzing",
];
/// The binary of all targets, and the variable that chooses one.
const BINARY: &str = "fuzz-target";
const VARIABLE: &str = "WOPR_FUZZ_TARGET";
/// The corpus, a folder per target.
const CORPUS: &str = "fuzz/corpus";
/// Inputs that violated a property.
const ARTIFACTS: &str = "fuzz/artifacts";
/// New inputs found by the fuzzer, and its output.
const FOUND: &str = "target/fuzz";
/// Timeout for one input, in seconds.
const TIMEOUT: u64 = 10;
/// Memory limit of one target, in MiB.
const MEMORY: u64 = 2_048;

/// The amount of fuzzing.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Effort {
    /// Total duration in seconds, not counting the build.
    pub(crate) seconds: u64,
    /// Only these targets; all if empty.
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

/// Returns the steps that build and run the targets.
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
    build()?;
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

/// Compiling libFuzzer requires a C++ compiler.
fn find_compiler() -> Result<()> {
    let compiler = std::env::var_os("CXX").unwrap_or_else(|| "c++".into());
    if read(Command::new(compiler).arg("--version")).is_ok() {
        return Ok(());
    }
    debian::install("g++", "find a C++ compiler, which libFuzzer is built with")
}

/// Lists all targets.
fn known() -> Result<Vec<String>> {
    let mut names = Vec::new();
    for folder in fs::read_dir(CORPUS).with_context(|| format!("list {CORPUS}"))? {
        let folder = folder.with_context(|| format!("list {CORPUS}"))?;
        names.push(folder.file_name().to_string_lossy().into_owned());
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

/// Returns the time for each target, so that all of them together take `seconds`.
fn share(seconds: u64, n_targets: usize, jobs: usize) -> Duration {
    let rounds = n_targets.div_ceil(jobs.max(1)).max(1) as u64;
    Duration::from_secs((seconds / rounds).max(1))
}

/// Recompiles our libraries, but of the dependencies only libFuzzer. Names the whole workspace and one of its
/// tests, so that features are unified as in the test build.
fn build() -> Result<()> {
    let mut command = cargo();
    command.args(["build", "--workspace", "--features", "wopr-fuzz/libfuzzer"]);
    command.args(["--test", "arrows", "--bin", BINARY]);
    rustc::with_flags(&mut command, &FLAGS)?;
    run(&mut command)
}

/// Runs all targets, several in parallel, and returns the ones that failed.
fn try_all(targets: &[String], share: Duration, jobs: usize) -> Result<Vec<String>> {
    // Cargo puts its other binaries next to this program.
    let program = std::env::current_exe().context("find this program")?;
    let folder = program.parent().context("find the folder of this program")?;
    let binary = folder.join(BINARY);
    let queue = Mutex::new(targets.iter());
    let next = || queue.lock().ok().and_then(|mut queue| queue.next());
    let work = || -> Result<Vec<String>> {
        let mut failed = Vec::new();
        while let Some(target) = next() {
            if !try_one(&binary, target, share)? {
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

/// Runs one target, prints the result, and returns `true` if all properties held.
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
        .env(VARIABLE, target)
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

/// Formats the result as one line.
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

/// Describes a failure and how to reproduce it.
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
        "{shown}\n\n{target} broke a promise. To see it again: {VARIABLE}={target} {} {input}\nTo keep it: copy {input} to \
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
    fn all_targets_run_unless_some_are_named() {
        let known = names(&["a", "b", "c"]);
        assert_eq!(chosen(&known, &[]).unwrap(), known);
        assert_eq!(chosen(&known, &names(&["c"])).unwrap(), ["c"]);
        assert!(chosen(&known, &names(&["c", "d"])).is_err());
    }

    #[test]
    fn shares_add_up_to_the_requested_time() {
        assert_eq!(share(80, 14, 2), Duration::from_secs(11));
        assert_eq!(share(80, 1, 2), Duration::from_secs(80));
        assert_eq!(share(80, 3, 2), Duration::from_secs(40));
        assert_eq!(share(1, 14, 2), Duration::from_secs(1));
    }

    #[test]
    fn successful_run_is_reported_in_one_line() {
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
    fn failure_report_names_the_input() {
        let said = "#2 INITED\nthread '<unnamed>' panicked at fuzz/src/sse.rs:1:\ncut differently\n\
                    artifact_prefix='x/'; Test unit written to fuzz/artifacts/sse/crash-1\nBase64: \n";
        let told = complaint("sse", Path::new("target/debug/fuzz-target"), said);
        assert!(told.starts_with("thread '<unnamed>' panicked"), "{told}");
        assert!(
            told.contains("WOPR_FUZZ_TARGET=sse target/debug/fuzz-target fuzz/artifacts/sse/crash-1\n"),
            "{told}"
        );
    }
}
