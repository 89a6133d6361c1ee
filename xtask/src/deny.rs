//! Checks the dependency rules in `deny.toml` with cargo-deny.
//!
//! cargo-deny is pinned and installed under `target/tools` if it is missing, so that the rules behave the
//! same everywhere and the user's own tools are not touched. The advisory database is not consulted, because
//! the result for a commit must not change over time.

use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context as _, Result};

use crate::plan::Outcome;
use crate::process::{cargo, in_ci, read, run};

const VERSION: &str = "0.20.2";
const TOOLS: &str = "target/tools";

/// Installs cargo-deny.
pub(crate) fn set_up() -> Result<Outcome> {
    with_tool(|_| Ok(()))
}

/// Checks bans, licenses and sources against `deny.toml`.
pub(crate) fn check() -> Result<Outcome> {
    with_tool(|tool| run(Command::new(tool).args(["check", "bans", "licenses", "sources"])))
}

/// Without the tool, a CI run fails and a local run skips the step.
fn with_tool(work: impl FnOnce(&Path) -> Result<()>) -> Result<Outcome> {
    let tool = match found().map_or_else(install, Ok) {
        Ok(tool) => tool,
        Err(error) if in_ci() => return Err(error),
        Err(error) => return Ok(Outcome::Skipped(format!("{error:#}"))),
    };
    work(&tool)?;
    Ok(Outcome::Done)
}

/// Finds the pinned version, installed by us or in `PATH`.
fn found() -> Option<PathBuf> {
    let wanted = format!("cargo-deny {VERSION}");
    [
        Path::new(TOOLS).join("bin/cargo-deny"),
        PathBuf::from("cargo-deny"),
    ]
    .into_iter()
    .find(|tool| read(Command::new(tool).arg("--version")).is_ok_and(|said| said.trim() == wanted))
}

fn install() -> Result<PathBuf> {
    println!("cargo-deny {VERSION} is not here; building it into {TOOLS} (once)");
    // Its release profile (one codegen unit, full LTO) costs minutes of compile time for a tool that runs for
    // seconds.
    run(cargo()
        .args([
            "install",
            "--locked",
            "--debug",
            "--root",
            TOOLS,
            "--version",
            VERSION,
            "cargo-deny",
        ])
        .env("CARGO_PROFILE_DEV_DEBUG", "0"))
    .with_context(|| format!("install cargo-deny {VERSION}, which the dependency rules need"))?;
    Ok(Path::new(TOOLS).join("bin/cargo-deny"))
}
