//! A browser for the tests of the pages: Chromium, driven by its chromedriver.

use std::process::Command;

use anyhow::{Context as _, Result};

use crate::debian;
use crate::plan::Outcome;
use crate::process::read;

/// Tells tests where the driver is, unless it is on the path.
const VARIABLE: &str = "WOPR_INTEROP_CHROMEDRIVER";
/// Debian's package; it brings the browser of the same version.
const PACKAGE: &str = "chromium-driver";

/// Chromium and chromedriver are installed.
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
