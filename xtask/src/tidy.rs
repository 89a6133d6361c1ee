//! Repository rules on files that no other tool checks.
//!
//! A rule is a pure function from a [`Tree`] to findings, so its tests need no files.

mod adr;
mod corpus;
mod faces;
mod features;
mod finding;
mod links;
mod machine;
mod manifests;
mod sleeps;
mod tree;
mod unfinished;

use std::fs;

use anyhow::{Context as _, Result, bail};

use self::finding::Finding;
use self::tree::Tree;
use crate::plan::Outcome;

const RULES: [fn(&Tree) -> Vec<Finding>; 9] = [
    adr::check,
    corpus::check,
    faces::check,
    features::check,
    links::check,
    machine::check,
    manifests::check,
    sleeps::check,
    unfinished::check,
];

pub(crate) fn check() -> Result<Outcome> {
    let tree = Tree::read()?;
    let mut findings: Vec<Finding> = RULES.into_iter().flat_map(|rule| rule(&tree)).collect();
    findings.sort();
    for finding in &findings {
        println!("{finding}");
    }
    if !findings.is_empty() {
        bail!("{} findings", findings.len());
    }
    println!("{} files, {} rules, no findings", tree.n_files(), RULES.len());
    Ok(Outcome::Done)
}

/// Writes the page that maps features to tests.
pub(crate) fn write_features() -> Result<Outcome> {
    let (path, page) = features::generate(&Tree::read()?)?;
    fs::write(path, page).with_context(|| format!("write {path}"))?;
    println!("{path} is current");
    Ok(Outcome::Done)
}
