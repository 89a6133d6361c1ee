//! Links between Markdown files of this repository have existing targets.

use super::{Finding, Tree};

pub(super) fn check(tree: &Tree) -> Vec<Finding> {
    let mut findings = Vec::new();
    for (path, text) in tree.texts(".md") {
        for (line, target) in targets(text) {
            let to_file = target.split('#').next().unwrap_or_default();
            if is_elsewhere(target) || to_file.is_empty() {
                continue;
            }
            if !resolve(path, to_file).is_some_and(|resolved| tree.has(&resolved)) {
                findings.push(Finding::at(
                    path,
                    line,
                    format!("link to {target}, which is not in the repository"),
                ));
            }
        }
    }
    findings
}

/// Returns the targets of inline links, images and link definitions outside code, with their lines.
fn targets(text: &str) -> Vec<(usize, &str)> {
    let mut targets = Vec::new();
    let mut is_code = false;
    for (index, line) in text.lines().enumerate() {
        if line.trim_start().starts_with("```") || line.trim_start().starts_with("~~~") {
            is_code = !is_code;
            continue;
        }
        if is_code {
            continue;
        }
        if line.starts_with('[')
            && let Some((_, definition)) = line.split_once("]: ")
        {
            targets.push((index + 1, clean(definition)));
        }
        for (at, mark) in line.match_indices("](") {
            // An odd number of backticks precedes the link, so it is inside inline code.
            if line[..at].matches('`').count() % 2 == 1 {
                continue;
            }
            let rest = &line[at + mark.len()..];
            if let Some((target, _)) = rest.split_once(')') {
                targets.push((index + 1, clean(target)));
            }
        }
    }
    targets
}

/// Removes the title and angle brackets.
fn clean(target: &str) -> &str {
    let target = target.trim();
    match target.strip_prefix('<').and_then(|rest| rest.split_once('>')) {
        Some((inside, _)) => inside,
        None => target.split_whitespace().next().unwrap_or_default(),
    }
}

fn is_elsewhere(target: &str) -> bool {
    ["http://", "https://", "mailto:"]
        .iter()
        .any(|scheme| target.starts_with(scheme))
}

/// Resolves a link to a path from the repository root. Returns `None` if it leaves the repository.
fn resolve(file: &str, target: &str) -> Option<String> {
    let mut parts: Vec<&str> = match target.strip_prefix('/') {
        Some(_) => Vec::new(),
        None => file.split('/').collect(),
    };
    parts.pop();
    for part in target.split('/') {
        match part {
            "" | "." => {}
            ".." => {
                parts.pop()?;
            }
            name => parts.push(name),
        }
    }
    Some(parts.join("/"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn link_targets_must_exist() {
        let text = "[a](a.md) [b](../b.md#part) [c](<c d.md> \"title\") [up](..) [site](https://example.com/x.md)\n\
                    [here](#part) ![image](missing.png)\n\
                    [out](../../b.md)\n\
                    `[code](nothing.md)` and\n```\n[code](nothing.md)\n```\n\
                    [named]\n\n[named]: gone.md\n";
        let files = [
            ("docs/x.md", text),
            ("docs/a.md", ""),
            ("b.md", ""),
            ("docs/c d.md", ""),
        ];
        assert_eq!(
            Tree::findings(check, files),
            [
                "docs/x.md:2: link to missing.png, which is not in the repository",
                "docs/x.md:3: link to ../../b.md, which is not in the repository",
                "docs/x.md:10: link to gone.md, which is not in the repository",
            ]
        );
    }
}
