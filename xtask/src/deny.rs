//! Checks the dependency rules in `deny.toml` with cargo-deny.
//!
//! cargo-deny is pinned and installed under `target/tools` if it is missing, so that the rules behave the
//! same everywhere and the user's own tools are not touched. The advisory database is not consulted, because
//! the result for a commit must not change over time. One rule is about features of what is shipped, which cargo-deny
//! does not tell from those of tests.

use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context as _, Result, bail};

use crate::plan::Outcome;
use crate::process::{cargo, in_ci, read, run};

const VERSION: &str = "0.20.2";
const TOOLS: &str = "target/tools";

/// Installs cargo-deny.
pub(crate) fn set_up() -> Result<Outcome> {
    with_tool(|_| Ok(()))
}

/// With these features `serde_json` reads an object whose only key is a certain name as what its text means. So a client
/// could send deep or large values past every bound, and other values than it seems to.
const KEYS_WITH_A_MEANING: [&str; 2] = ["raw_value", "arbitrary_precision"];

/// Checks bans, licenses and sources against `deny.toml`, and features.
pub(crate) fn check() -> Result<Outcome> {
    let shipped = read(cargo().args([
        "tree",
        "--package",
        "wopr",
        "--all-features",
        "--edges",
        "normal,features",
        "--invert",
        "serde_json",
        "--depth",
        "1",
        "--prefix",
        "none",
    ]))?;
    if let Some(feature) = meaning(&shipped) {
        bail!(
            "the program is built with the feature `{feature}` of serde_json: objects with a certain key would be read as \
             other values; find who enables it with `cargo tree -p wopr -e normal,features -i serde_json`"
        );
    }
    with_tool(|tool| run(Command::new(tool).args(["check", "bans", "licenses", "sources"])))
}

/// The first forbidden feature in the output of `cargo tree`.
fn meaning(tree: &str) -> Option<&'static str> {
    let is_enabled = |feature: &&str| tree.contains(&format!("feature \"{feature}\""));
    KEYS_WITH_A_MEANING.into_iter().find(is_enabled)
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn features_that_give_keys_a_meaning_are_found() {
        let plain =
            "serde_json v1.0.1\nserde_json feature \"default\"\nserde_json feature \"float_roundtrip\"\n";
        assert_eq!(meaning(plain), None);
        let with = format!("{plain}serde_json feature \"raw_value\"\n");
        assert_eq!(meaning(&with), Some("raw_value"));
    }
}
