//! Runs other programs: prints the command, streams its output, and names it in errors.

use std::ffi::OsStr;
use std::process::{Command, Stdio};

use anyhow::{Context as _, Result, bail};

/// Uses the cargo of the toolchain that runs this program.
pub(crate) fn cargo() -> Command {
    let mut command = Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
    forget_package(&mut command);
    command
}

/// Removes the environment variables that `cargo run` sets.
///
/// They describe this package. Build scripts of other packages would see them and run again whenever the
/// calling chore differs.
pub(crate) fn forget_package(command: &mut Command) {
    for (name, _) in std::env::vars_os() {
        let text = name.to_string_lossy();
        if text.starts_with("CARGO_PKG_") || text.starts_with("CARGO_MANIFEST_") {
            command.env_remove(&name);
        }
    }
}

/// Runs a command and requires success.
pub(crate) fn run(command: &mut Command) -> Result<()> {
    println!("$ {}", shown(command));
    let status = command
        .stdin(Stdio::null())
        .status()
        .with_context(|| format!("start {}", command.get_program().to_string_lossy()))?;
    if !status.success() {
        bail!("`{}` ended with {status}", shown(command));
    }
    Ok(())
}

/// Runs the single test named by `cargo test -- --exact`.
pub(crate) fn run_test(command: &mut Command, name: &str) -> Result<()> {
    run_tests(command, &[name])
}

/// Runs the tests named by `cargo test -- --exact`. Checks that they exist first, because an unknown name would
/// pass without running anything.
pub(crate) fn run_tests(command: &mut Command, names: &[&str]) -> Result<()> {
    let mut listing = Command::new(command.get_program());
    listing
        .args(command.get_args())
        .args(["--list", "--format", "terse"]);
    for (variable, value) in command.get_envs() {
        match value {
            Some(value) => listing.env(variable, value),
            None => listing.env_remove(variable),
        };
    }
    // Shows compiler output.
    listing.stderr(Stdio::inherit());
    let listed = read(&mut listing)?;
    let is_listed = |name: &str| {
        listed
            .lines()
            .any(|line| line.strip_suffix(": test") == Some(name))
    };
    if let Some(name) = names.iter().find(|name| !is_listed(name)) {
        bail!("find the test {name}: `{}` lists it not", shown(&listing));
    }
    run(command)
}

/// Runs a command quietly, requires success and returns its output.
pub(crate) fn read(command: &mut Command) -> Result<String> {
    let output = command
        .stdin(Stdio::null())
        .output()
        .with_context(|| format!("start {}", command.get_program().to_string_lossy()))?;
    if !output.status.success() {
        let said = String::from_utf8_lossy(&output.stderr);
        bail!(
            "`{}` ended with {}: {}",
            shown(command),
            output.status,
            said.trim()
        );
    }
    String::from_utf8(output.stdout).with_context(|| format!("read what `{}` printed", shown(command)))
}

/// Returns `true` in CI, where no step may be skipped.
pub(crate) fn in_ci() -> bool {
    std::env::var("CI").is_ok_and(|value| matches!(value.as_str(), "true" | "1"))
}

fn shown(command: &Command) -> String {
    let mut words = vec![command.get_program().to_string_lossy().into_owned()];
    words.extend(command.get_args().map(OsStr::to_string_lossy).map(|word| {
        if word.contains(' ') {
            format!("'{word}'")
        } else {
            word.into_owned()
        }
    }));
    words.join(" ")
}
