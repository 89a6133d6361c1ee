//! Cuts a corpus: the data that this code stores, kept as text so that later versions can be tested against
//! it.
//!
//! A test in `crates/cli/tests/corpus` writes the corpus and immediately reads it back. This module chooses
//! the location and ensures that an existing corpus is never replaced.

use std::fs;
use std::path::Path;

use anyhow::{Context as _, Result, bail};

use crate::plan::{Outcome, Step};
use crate::postgres::{self, Server};
use crate::process::{cargo, run};

/// The folder with one corpus per version.
pub(crate) const FOLDER: &str = "crates/store/tests/corpus";
/// The variable that tells the test where to write.
const PLACE: &str = "WOPR_CORPUS_CUT";

/// Returns the steps that cut a corpus.
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
    // Written to a temporary folder and moved when complete, so that a failed cut leaves nothing behind.
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

/// Returns `true` for a release version such as `0.1.0`.
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
    fn version_has_three_numbers() {
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
