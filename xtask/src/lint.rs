//! The lints that the toolchain brings.

use std::process::Command;

use anyhow::{Result, bail};

use crate::plan::Outcome;
use crate::process::{cargo, in_ci, read, run};

/// The lock file is the committed one. Cargo quietly completes one that does not fit the manifests, and then CI
/// tests other versions than the commit names. While a change is being made that is only worth a note.
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

/// Every file is formatted.
pub(crate) fn format() -> Result<Outcome> {
    run(cargo().args(["fmt", "--all", "--check"]))?;
    Ok(Outcome::Done)
}

/// No warning in any target.
pub(crate) fn clippy() -> Result<Outcome> {
    run(cargo().args(["clippy", "--workspace", "--all-targets", "--", "-D", "warnings"]))?;
    Ok(Outcome::Done)
}
