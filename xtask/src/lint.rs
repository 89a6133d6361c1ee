//! Lints of the Rust toolchain.

use std::path::Path;
use std::process::Command;

use anyhow::{Result, bail};

use crate::plan::Outcome;
use crate::process::{cargo, in_ci, read, run};

/// Checks that the lock file fits the manifests. Cargo silently updates one that does not, and CI would then
/// test other versions than the commit specifies. In a local run this is only a note.
pub(crate) fn lock_file() -> Result<Outcome> {
    let git = [
        "-c",
        "safe.directory=*",
        "diff",
        "--name-only",
        "HEAD",
        "--",
        "Cargo.lock",
    ];
    let changed = read(Command::new("git").args(git))?;
    if changed.is_empty() {
        return Ok(Outcome::Done);
    }
    let what = "Cargo.lock differs from the committed one; commit it with the change that needs it";
    if in_ci() {
        bail!("{what}");
    }
    Ok(Outcome::Skipped(what.to_owned()))
}

pub(crate) fn format() -> Result<Outcome> {
    run(cargo().args(["fmt", "--all", "--check"]))?;
    Ok(Outcome::Done)
}

/// What Clippy is asked for.
const CLIPPY: [&str; 2] = ["-D", "warnings"];

/// Requires that no target has warnings.
pub(crate) fn clippy() -> Result<Outcome> {
    run(cargo()
        .args(["clippy", "--workspace", "--all-targets", "--"])
        .args(CLIPPY))?;
    Ok(Outcome::Done)
}

/// Makes a cargo command use what Clippy has checked of our crates, and check the rest with it, as `cargo clippy`
/// does. Cargo would check them all again otherwise, since it keeps results by the compiler that made them.
pub(crate) fn with_clippy(command: &mut Command) -> Result<()> {
    let toolchain = read(Command::new("rustc").args(["--print", "sysroot"]))?;
    let arguments = CLIPPY.map(|argument| format!("{argument}__CLIPPY_HACKERY__"));
    command
        .env(
            "RUSTC_WORKSPACE_WRAPPER",
            Path::new(toolchain.trim()).join("bin/clippy-driver"),
        )
        .env("CLIPPY_ARGS", arguments.concat());
    Ok(())
}
