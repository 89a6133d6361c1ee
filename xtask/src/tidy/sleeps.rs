//! Tests wait for conditions, not for time to pass.
//!
//! A sleep in a test is too short on a busy machine and too long on all others. Where a sleep is intended
//! (such as a fault injected at a random moment), explain it in that line or the one before: `// sleep:
//! reason`.

use super::{Finding, Tree};

const REASON: &str = "// sleep: ";

pub(super) fn check(tree: &Tree) -> Vec<Finding> {
    let mut findings = Vec::new();
    for (path, text) in tree.texts(".rs") {
        let mut is_test = is_test_file(path);
        let mut previous = "";
        for (index, line) in text.lines().enumerate() {
            // Tests are at the end of a file.
            is_test |= previous.trim() == "#[cfg(test)]" && line.trim_end().ends_with('{');
            if is_test && sleeps(line) && !has_reason(line) && !has_reason(previous) {
                findings.push(Finding::at(
                    path,
                    index + 1,
                    format!("a sleep in a test without `{REASON}<reason>`"),
                ));
            }
            previous = line;
        }
    }
    findings
}

fn is_test_file(path: &str) -> bool {
    path.starts_with("crates/testkit/") || path.contains("/tests/") || path.ends_with("/tests.rs")
}

fn has_reason(line: &str) -> bool {
    line.split_once(REASON)
        .is_some_and(|(_, reason)| !reason.trim().is_empty())
}

/// Returns `true` if the line uses the sleep of `std::thread` or `tokio::time`, or calls an imported function
/// `sleep`. Methods of that name (of a clock) and definitions do not count.
fn sleeps(line: &str) -> bool {
    let code = line.split("//").next().unwrap_or_default();
    let is_named = ["thread::sleep", "time::sleep"]
        .iter()
        .any(|name| code.contains(name));
    let is_called = ["sleep(", "sleep_until("].iter().any(|call| {
        code.match_indices(call).any(|(at, _)| {
            let before = &code[..at];
            let is_word = before
                .chars()
                .next_back()
                .is_none_or(|last| !(last.is_alphanumeric() || "_.:".contains(last)));
            is_word && !before.ends_with("fn ")
        })
    });
    is_named || is_called
}

#[cfg(test)]
mod tests {
    use super::*;

    // Split so that this file does not violate the rule.
    const SLEEP: &str = concat!("sle", "ep(");

    #[test]
    fn sleep_needs_a_reason() {
        let text = format!(
            "    std::thread::{SLEEP}x);\n    {SLEEP}x).await;\n    // sleep: the kill must hit at random\n    {SLEEP}x);\n    \
             {SLEEP}x); // sleep: \n    clock.{SLEEP}x);\n    async fn {SLEEP}x: u8) {{}}\n"
        );
        let lines = |path: &str| -> Vec<usize> {
            let tree = Tree::of([(path, text.as_str())]);
            (1..=7)
                .filter(|line| {
                    check(&tree)
                        .iter()
                        .any(|f| f.to_string().starts_with(&format!("{path}:{line}:")))
                })
                .collect()
        };
        assert_eq!(lines("crates/cli/tests/kill.rs"), [1, 2, 5]);
        assert_eq!(lines("crates/core/src/clock/tests.rs"), [1, 2, 5]);
        assert_eq!(lines("crates/core/src/clock.rs"), []);
    }

    #[test]
    fn tests_at_the_end_of_a_source_file_are_checked() {
        let text = format!(
            "fn wait() {{ {SLEEP}x) }}\n\n#[cfg(test)]\nmod tests {{\n    fn f() {{ {SLEEP}x) }}\n}}\n"
        );
        assert_eq!(Tree::findings(check, [("crates/core/src/a.rs", &text)]).len(), 1);
        let text = format!("#[cfg(test)]\nmod tests;\n\nfn wait() {{ {SLEEP}x) }}\n");
        assert_eq!(Tree::findings(check, [("crates/core/src/a.rs", &text)]).len(), 0);
    }
}
