//! Every crate inherits its lints from the workspace.

use toml::Table;

use super::{Finding, Tree};

pub(super) fn check(tree: &Tree) -> Vec<Finding> {
    let mut findings = Vec::new();
    for (path, text) in tree.texts("/Cargo.toml") {
        match text.parse::<Table>() {
            Ok(manifest) if inherits_lints(&manifest) => {}
            Ok(_) => findings.push(Finding::at(path, 1, "[lints] workspace = true is missing")),
            Err(error) => findings.push(Finding::at(path, 1, format!("not TOML: {}", error.message()))),
        }
    }
    findings
}

fn inherits_lints(manifest: &Table) -> bool {
    manifest
        .get("lints")
        .and_then(|lints| lints.get("workspace"))
        .and_then(toml::Value::as_bool)
        == Some(true)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn crate_with_its_own_lints_is_found() {
        let files = [
            ("Cargo.toml", "[workspace]\n"),
            (
                "crates/a/Cargo.toml",
                "[package]\nname = \"a\"\n[lints]\nworkspace = true\n",
            ),
            ("crates/b/Cargo.toml", "[package]\nname = \"b\"\n"),
            ("crates/c/Cargo.toml", "[package"),
        ];
        let findings = Tree::findings(check, files);
        assert_eq!(findings.len(), 2, "{findings:?}");
        assert_eq!(
            findings[0],
            "crates/b/Cargo.toml:1: [lints] workspace = true is missing"
        );
        assert!(
            findings[1].starts_with("crates/c/Cargo.toml:1: not TOML"),
            "{findings:?}"
        );
    }
}
