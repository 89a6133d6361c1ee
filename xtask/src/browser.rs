//! A browser for the tests of web pages: Chromium, controlled by chromedriver.

use std::process::Command;

use anyhow::{Context as _, Result};

use crate::debian;
use crate::plan::Outcome;
use crate::process::read;

/// The variable that tells tests the path of chromedriver, unless it is in `PATH`.
const VARIABLE: &str = "WOPR_INTEROP_CHROMEDRIVER";
/// The Debian package, which depends on the matching browser.
const PACKAGE: &str = "chromium-driver";

/// Installs Chromium and chromedriver.
pub(crate) fn set_up() -> Result<Outcome> {
    let version = match version() {
        Ok(version) => version,
        Err(_) => {
            let missing =
                "find chromedriver; the tests of the pages need it, and `--no-interop` leaves them out";
            debian::install(PACKAGE, missing)?;
            version().context("start the chromedriver just installed")?
        }
    };
    println!("{}", version.trim());
    Ok(Outcome::Done)
}

fn version() -> Result<String> {
    let named = std::env::var_os(VARIABLE).filter(|program| !program.is_empty());
    let program = named.unwrap_or_else(|| "chromedriver".into());
    read(Command::new(program).arg("--version"))
}
