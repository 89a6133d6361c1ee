//! The rules on dependencies (`deny.toml`), and the tool that checks them.
//!
//! cargo-deny is pinned and installed under `target/tools` if it is not there: rules pass or fail the same
//! way everywhere, and nobody's own tools are touched. The advisory database is not consulted, since a
//! verdict must not change while the commit stays the same.

use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context as _, Result};

use crate::plan::Outcome;
use crate::process::{cargo, in_ci, read, run};

const VERSION: &str = "0.20.2";
const TOOLS: &str = "target/tools";

/// cargo-deny is there.
pub(crate) fn set_up() -> Result<Outcome> {
    with_tool(|_| Ok(()))
}

/// Bans, licenses and sources are as `deny.toml` wants them.
pub(crate) fn check() -> Result<Outcome> {
    with_tool(|tool| run(Command::new(tool).args(["check", "bans", "licenses", "sources"])))
}

/// Without the tool a run on somebody's machine goes on with a note; a CI run fails.
fn with_tool(work: impl FnOnce(&Path) -> Result<()>) -> Result<Outcome> {
    let tool = match found().map_or_else(install, Ok) {
        Ok(tool) => tool,
        Err(error) if in_ci() => return Err(error),
        Err(error) => return Ok(Outcome::Skipped(format!("{error:#}"))),
    };
    work(&tool)?;
    Ok(Outcome::Done)
}

/// The pinned version, ours or one on the path.
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
    // Its release profile (one unit, full LTO) costs minutes that a tool used for seconds never gives back.
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
