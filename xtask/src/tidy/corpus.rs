//! Every release has its corpus: what it stored, for later versions to open.
//!
//! A version is released when the changelog has a heading for it, or when the workspace has gone on from it: the
//! first, 0.1.0, as soon as the workspace is at any other.

use toml::Table;

use super::{Finding, Tree};
use crate::corpus::{FOLDER, is_version};

const CHANGELOG: &str = "CHANGELOG.md";
const MANIFEST: &str = "Cargo.toml";
/// The first version whose databases every later one opens.
const FIRST: &str = "0.1.0";
/// What a corpus consists of.
const FILES: [&str; 4] = [
    "sqlite.sql",
    "sqlite.views.json",
    "postgres.jsonl",
    "postgres.views.json",
];

pub(super) fn check(tree: &Tree) -> Vec<Finding> {
    let mut findings = Vec::new();
    let mut missing = |path: &str, line: usize, version: &str| {
        for file in FILES {
            let name = format!("{FOLDER}/{version}/{file}");
            if !tree.has(&name) {
                let what = format!(
                    "{version} was released without {name}: `cargo xtask corpus cut {version}` at its tag"
                );
                findings.push(Finding::at(path, line, what));
            }
        }
    };
    if workspace_version(tree).is_some_and(|version| version != FIRST) {
        missing(MANIFEST, 1, FIRST);
    }
    for (index, line) in tree.text(CHANGELOG).unwrap_or_default().lines().enumerate() {
        if let Some(version) = released(line) {
            missing(CHANGELOG, index + 1, version);
        }
    }
    findings
}

fn workspace_version(tree: &Tree) -> Option<String> {
    let manifest: Table = tree.text(MANIFEST)?.parse().ok()?;
    let version = manifest.get("workspace")?.get("package")?.get("version")?;
    version.as_str().map(str::to_owned)
}

/// The version a heading of the changelog is about: `## 0.1.0`, `## [0.1.0] - 2026-01-01`.
fn released(line: &str) -> Option<&str> {
    let heading = line.strip_prefix("## ")?;
    let version = heading.split_whitespace().next()?;
    let version = version.trim_start_matches('[').trim_end_matches(']');
    is_version(version).then_some(version)
}

#[cfg(test)]
mod tests {
    use super::*;

    const UNRELEASED: &str = "# Changelog\n\n## Unreleased\n\n### Added\n";

    fn manifest(version: &str) -> String {
        format!("[workspace.package]\nversion = \"{version}\"\n")
    }

    #[test]
    fn nothing_is_asked_before_the_first_release() {
        let manifest = manifest("0.1.0");
        let files = [(CHANGELOG, UNRELEASED), (MANIFEST, manifest.as_str())];
        assert_eq!(Tree::findings(check, files), [""; 0]);
    }

    #[test]
    fn the_first_release_is_missed_as_soon_as_the_workspace_has_gone_on() {
        let manifest = manifest("0.2.0");
        let files = [(CHANGELOG, UNRELEASED), (MANIFEST, manifest.as_str())];
        let findings = Tree::findings(check, files);
        assert_eq!(findings.len(), FILES.len());
        assert_eq!(
            findings[0],
            "Cargo.toml:1: 0.1.0 was released without crates/store/tests/corpus/0.1.0/sqlite.sql: \
             `cargo xtask corpus cut 0.1.0` at its tag"
        );
    }

    #[test]
    fn every_file_of_every_released_version_has_to_be_there() {
        let changelog = "## Unreleased\n\n## [0.2.0] - 2027-01-01\n\n## 0.1.0\n";
        let files = [
            (CHANGELOG, changelog),
            ("crates/store/tests/corpus/0.1.0/sqlite.sql", ""),
            ("crates/store/tests/corpus/0.1.0/sqlite.views.json", ""),
            ("crates/store/tests/corpus/0.1.0/postgres.jsonl", ""),
            ("crates/store/tests/corpus/0.1.0/postgres.views.json", ""),
            ("crates/store/tests/corpus/0.2.0/sqlite.sql", ""),
            ("crates/store/tests/corpus/0.2.0/sqlite.views.json", ""),
            ("crates/store/tests/corpus/0.2.0/postgres.views.json", ""),
        ];
        assert_eq!(
            Tree::findings(check, files),
            [
                "CHANGELOG.md:3: 0.2.0 was released without crates/store/tests/corpus/0.2.0/postgres.jsonl: \
              `cargo xtask corpus cut 0.2.0` at its tag"
            ]
        );
    }
}
