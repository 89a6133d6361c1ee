//! No placeholders in sources, and no ignored tests.

use super::{Finding, Tree};

// Split so that this file does not violate the rule.
const PLACEHOLDERS: [&str; 3] = [
    concat!("to", "do!("),
    concat!("unimple", "mented!("),
    concat!("d", "bg!("),
];
const IGNORE: &str = concat!("#[ig", "nore");

pub(super) fn check(tree: &Tree) -> Vec<Finding> {
    let mut findings = Vec::new();
    for (path, text) in tree.texts(".rs") {
        for (index, line) in text.lines().enumerate() {
            for mark in PLACEHOLDERS.into_iter().filter(|mark| line.contains(mark)) {
                findings.push(Finding::at(path, index + 1, format!("{mark}..) is left")));
            }
            if line.contains(IGNORE) {
                findings.push(Finding::at(
                    path,
                    index + 1,
                    "an ignored test; make it pass or remove it",
                ));
            }
        }
    }
    findings
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn placeholders_and_ignored_tests_are_found() {
        let text = format!(
            "fn a() {{\n    {})\n}}\n{}]\nfn b() {{}}\n",
            PLACEHOLDERS[0], IGNORE
        );
        assert_eq!(
            Tree::findings(check, [("crates/core/src/a.rs", &text), ("docs/a.md", &text)]),
            [
                format!("crates/core/src/a.rs:2: {}..) is left", PLACEHOLDERS[0]),
                "crates/core/src/a.rs:4: an ignored test; make it pass or remove it".to_owned(),
            ]
        );
    }
}
