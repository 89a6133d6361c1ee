//! Every crate inherits its lints from the workspace, and none is optimized in every build as if it were a dependency.

use toml::Table;

use super::{Finding, Tree};

const ROOT: &str = "Cargo.toml";

pub(super) fn check(tree: &Tree) -> Vec<Finding> {
    let root = tree.text(ROOT).and_then(|text| text.parse::<Table>().ok());
    let mut findings = Vec::new();
    for (path, text) in tree.texts("/Cargo.toml") {
        match text.parse::<Table>() {
            Ok(manifest) => {
                if !inherits_lints(&manifest) {
                    findings.push(Finding::at(path, 1, "[lints] workspace = true is missing"));
                }
                if let (Some(root), Some(name)) = (&root, name(&manifest))
                    && !has_dev_profile(root, name)
                {
                    let missing = format!(
                        "[profile.dev.package] has no {name}: each build would optimize it like a dependency"
                    );
                    findings.push(Finding::at(ROOT, 1, missing));
                }
            }
            Err(error) => findings.push(Finding::at(path, 1, format!("not TOML: {}", error.message()))),
        }
    }
    findings
}

fn name(manifest: &Table) -> Option<&str> {
    manifest.get("package")?.get("name")?.as_str()
}

fn has_dev_profile(root: &Table, name: &str) -> bool {
    let dev = root.get("profile").and_then(|profiles| profiles.get("dev"));
    let packages = dev.and_then(|dev| dev.get("package"));
    packages.and_then(|packages| packages.get(name)).is_some()
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
    fn crate_without_lints_or_profile_is_found() {
        let files = [
            (
                "Cargo.toml",
                "[workspace]\n[profile.dev.package]\na = { opt-level = 0 }\n",
            ),
            (
                "crates/a/Cargo.toml",
                "[package]\nname = \"a\"\n[lints]\nworkspace = true\n",
            ),
            ("crates/b/Cargo.toml", "[package]\nname = \"b\"\n"),
            ("crates/c/Cargo.toml", "[package"),
        ];
        let findings = Tree::findings(check, files);
        assert_eq!(findings.len(), 3, "{findings:?}");
        assert_eq!(
            findings[..2],
            [
                "crates/b/Cargo.toml:1: [lints] workspace = true is missing",
                "Cargo.toml:1: [profile.dev.package] has no b: each build would optimize it like a dependency",
            ]
        );
        assert!(
            findings[2].starts_with("crates/c/Cargo.toml:1: not TOML"),
            "{findings:?}"
        );
    }
}
