//! Lints of the Rust toolchain.

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

/// Requires that no target has warnings.
pub(crate) fn clippy() -> Result<Outcome> {
    run(cargo().args(["clippy", "--workspace", "--all-targets", "--", "-D", "warnings"]))?;
    Ok(Outcome::Done)
}
