//! Repository rules on files that no other tool checks.
//!
//! A rule is a pure function from a [`Tree`] to findings, so its tests need no files.

mod adr;
mod corpus;
mod faces;
mod finding;
mod links;
mod machine;
mod manifests;
mod sleeps;
mod tree;
mod unfinished;

use anyhow::{Result, bail};

use self::finding::Finding;
use self::tree::Tree;
use crate::plan::Outcome;

const RULES: [fn(&Tree) -> Vec<Finding>; 8] = [
    adr::check,
    corpus::check,
    faces::check,
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
