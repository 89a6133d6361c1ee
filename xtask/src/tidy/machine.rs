//! No file contains a path of a developer's machine.

use super::{Finding, Tree};

// Split so that this file does not violate the rule.
const FOLDERS: [&str; 3] = [
    concat!("/ro", "ot/"),
    concat!("/ho", "me/"),
    concat!("/wo", "rk/"),
];

pub(super) fn check(tree: &Tree) -> Vec<Finding> {
    let mut findings = Vec::new();
    for (path, text) in tree.texts("") {
        for (index, line) in text.lines().enumerate() {
            for folder in FOLDERS {
                if line
                    .match_indices(folder)
                    .any(|(at, _)| is_start_of_path(&line[..at]))
                {
                    findings.push(Finding::at(
                        path,
                        index + 1,
                        format!("absolute path of a machine ({folder}..)"),
                    ));
                }
            }
        }
    }
    findings
}

/// Returns `true` if a slash after this text starts a path, and is not inside a path or URL.
fn is_start_of_path(before: &str) -> bool {
    before
        .chars()
        .next_back()
        .is_none_or(|last| !(last.is_alphanumeric() || "._-/~}>*$)".contains(last)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn path_is_found_only_at_its_start() {
        let [root, home, work] = FOLDERS;
        let text = format!(
            "see {home}me/wopr\nopen(\"{root}x\")\n{work}main\nsrc{work}timers.rs\nhttps://example.com{home}x\n../{}x\n",
            &work[1..]
        );
        assert_eq!(
            Tree::findings(check, [("a.md", &text)]),
            [
                format!("a.md:1: absolute path of a machine ({home}..)"),
                format!("a.md:2: absolute path of a machine ({root}..)"),
                format!("a.md:3: absolute path of a machine ({work}..)"),
            ]
        );
    }
}
