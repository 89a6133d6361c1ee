//! Every release has a corpus of the data it stored, for tests of later versions.
//!
//! A version counts as released if the changelog has a heading for it. The first one, 0.1.0, also counts as
//! soon as the workspace has another version.

use toml::Table;

use super::{Finding, Tree};
use crate::corpus::{FOLDER, is_version};

const CHANGELOG: &str = "CHANGELOG.md";
const MANIFEST: &str = "Cargo.toml";
/// The first version whose databases every later one can open.
const FIRST: &str = "0.1.0";
/// The files of a corpus.
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

/// Parses the version from a changelog heading: `## 0.1.0`, `## [0.1.0] - 2026-01-01`.
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
    fn no_corpus_is_required_before_the_first_release() {
        let manifest = manifest("0.1.0");
        let files = [(CHANGELOG, UNRELEASED), (MANIFEST, manifest.as_str())];
        assert_eq!(Tree::findings(check, files), [""; 0]);
    }

    #[test]
    fn corpus_of_first_release_is_required_once_version_changes() {
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
    fn every_file_of_every_release_is_required() {
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
