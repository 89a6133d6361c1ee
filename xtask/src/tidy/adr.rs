//! ADR numbers have no gaps or duplicates, and the index lists all of them.

use super::{Finding, Tree};

const FOLDER: &str = "docs/adr/";
const INDEX: &str = "docs/adr/README.md";

pub(super) fn check(tree: &Tree) -> Vec<Finding> {
    let index = tree.text(INDEX).unwrap_or_default();
    let mut findings = Vec::new();
    let mut expected: u32 = 1;
    for (path, _) in tree.texts(".md") {
        let Some(name) = path.strip_prefix(FOLDER) else {
            continue;
        };
        if path == INDEX {
            continue;
        }
        let number: Option<u32> = name
            .split_once('-')
            .filter(|(digits, _)| digits.len() == 4)
            .and_then(|(digits, _)| digits.parse().ok());
        match number {
            Some(number) => {
                if number != expected {
                    findings.push(Finding::at(path, 1, format!("the next number is {expected:04}")));
                }
                expected = number + 1;
            }
            None => findings.push(Finding::at(
                path,
                1,
                "a decision is named NNNN-what-was-decided.md",
            )),
        }
        if !index.contains(&format!("({name})")) {
            findings.push(Finding::at(path, 1, format!("{INDEX} does not list it")));
        }
    }
    findings
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn adrs_are_dense_and_listed() {
        let files = [
            (INDEX, "- [one](0001-one.md)\n- [three](0003-three.md)\n"),
            ("docs/adr/0001-one.md", ""),
            ("docs/adr/0003-three.md", ""),
            ("docs/adr/0004-four.md", ""),
            ("docs/adr/five.md", ""),
        ];
        assert_eq!(
            Tree::findings(check, files),
            [
                "docs/adr/0003-three.md:1: the next number is 0002",
                "docs/adr/0004-four.md:1: docs/adr/README.md does not list it",
                "docs/adr/five.md:1: a decision is named NNNN-what-was-decided.md",
                "docs/adr/five.md:1: docs/adr/README.md does not list it",
            ]
        );
    }
}
