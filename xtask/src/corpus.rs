//! Cutting a corpus: what this code stores, kept as text for every later version to open.
//!
//! A test writes it (`crates/cli/tests/corpus`) and holds this code to it at once, so a corpus that was cut is one
//! that reads back. Here is only where it goes, and that none is ever replaced.

use std::fs;
use std::path::Path;

use anyhow::{Context as _, Result, bail};

use crate::plan::{Outcome, Step};
use crate::postgres::{self, Server};
use crate::process::{cargo, run};

/// Where the versions are kept.
pub(crate) const FOLDER: &str = "crates/store/tests/corpus";
/// Tells the test where to write.
const PLACE: &str = "WOPR_CORPUS_CUT";

/// The steps of a cut.
pub(crate) fn steps(version: String) -> Vec<Step> {
    vec![
        Step::new("postgres", postgres::set_up),
        Step::new("corpus", move || cut(&version)),
    ]
}

fn cut(version: &str) -> Result<Outcome> {
    let folder = Path::new(FOLDER).join(version);
    if folder.exists() {
        bail!(
            "{} is there: what a release stored never changes",
            folder.display()
        );
    }
    // Written beside and named when it is whole, so that a cut that fails leaves nothing behind.
    let unfinished = Path::new("target/corpus").join(version);
    if unfinished.exists() {
        fs::remove_dir_all(&unfinished).context("remove what an earlier cut left")?;
    }
    fs::create_dir_all(&unfinished).context("make a folder for the corpus")?;
    let place = fs::canonicalize(&unfinished).context("find the folder of the corpus")?;
    let server = Server::start()?;
    let (name, url) = server.variable();
    run(cargo()
        .args([
            "test",
            "--package",
            "wopr",
            "--test",
            "corpus",
            "what_this_version_stores",
        ])
        .env(PLACE, place)
        .env(name, url))?;
    fs::create_dir_all(FOLDER).with_context(|| format!("make {FOLDER}"))?;
    fs::rename(&unfinished, &folder).with_context(|| format!("write {}", folder.display()))?;
    println!("\n{} holds what this version stores; commit it", folder.display());
    Ok(Outcome::Done)
}

/// Whether a text is the number of a release, such as `0.1.0`.
pub(crate) fn is_version(text: &str) -> bool {
    let parts: Vec<_> = text.split('.').collect();
    parts.len() == 3
        && parts.iter().all(|part| {
            part.parse::<u32>()
                .is_ok_and(|number| number.to_string() == **part)
        })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_version_has_three_numbers() {
        for good in ["0.1.0", "1.20.3"] {
            assert!(is_version(good), "{good}");
        }
        for bad in [
            "",
            "1",
            "0.1",
            "0.1.0.0",
            "v0.1.0",
            "0.1.x",
            "0.01.0",
            "0.1.0-rc1",
            "../x",
            "+1.0.0",
        ] {
            assert!(!is_version(bad), "{bad}");
        }
    }
}
