//! A face imports the application layer, `core` and `wire`, and neither the engine nor the store.
//!
//! A use case that a face builds from the engine by itself is one that other faces do not have, or have otherwise.

use super::{Finding, Tree};

const FACES: [&str; 4] = [
    "crates/server/src/a2a/",
    "crates/server/src/mcp/",
    "crates/server/src/openwop/",
    "crates/server/src/page/",
];
const FORBIDDEN: [&str; 2] = ["wopr_engine", "wopr_store"];

pub(super) fn check(tree: &Tree) -> Vec<Finding> {
    let mut findings = Vec::new();
    for (path, text) in tree.texts(".rs") {
        let is_face = FACES.iter().any(|face| path.starts_with(face));
        if !is_face || path.ends_with("/tests.rs") {
            continue;
        }
        let lines = text.lines().take_while(|line| !line.starts_with("#[cfg(test)]"));
        for (n, line) in lines.enumerate() {
            if let Some(name) = FORBIDDEN.iter().find(|name| line.contains(*name)) {
                let finding = format!("{name} in a face: go through wopr_app");
                findings.push(Finding::at(path, n + 1, finding));
            }
        }
    }
    findings
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_face_that_reaches_past_the_application_layer_is_found() {
        let files = [
            (
                "crates/server/src/a2a/send.rs",
                "use wopr_app::View;\nuse wopr_store::Log;\n",
            ),
            (
                "crates/server/src/openwop/runs.rs",
                "#[cfg(test)]\nmod tests {\n    use wopr_engine::Create;\n",
            ),
            ("crates/server/src/host.rs", "use wopr_engine::Engine;\n"),
        ];
        let findings = Tree::findings(check, files);
        assert_eq!(
            findings,
            ["crates/server/src/a2a/send.rs:2: wopr_store in a face: go through wopr_app"]
        );
    }
}
