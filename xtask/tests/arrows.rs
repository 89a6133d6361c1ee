//! Dependencies between our crates follow the layers drawn in ARCHITECTURE.md.
//!
//! Changing the table below needs an ADR that explains the benefit.

use std::process::Command;

use serde_json::{Value, json};

/// Each crate, with those of our crates that it may depend on.
const ARROWS: &[(&str, &[&str])] = &[
    (
        "wopr",
        &[
            "wopr-bench",
            "wopr-server",
            "wopr-connect",
            "wopr-engine",
            "wopr-store",
            "wopr-core",
            "wopr-wire",
        ],
    ),
    ("wopr-bench", &["wopr-server", "wopr-engine", "wopr-core"]),
    (
        "wopr-server",
        &[
            "wopr-app",
            "wopr-config",
            "wopr-connect",
            "wopr-engine",
            "wopr-store",
            "wopr-core",
            "wopr-wire",
        ],
    ),
    (
        "wopr-config",
        &[
            "wopr-app",
            "wopr-connect",
            "wopr-engine",
            "wopr-core",
            "wopr-wire",
        ],
    ),
    (
        "wopr-connect",
        &["wopr-engine", "wopr-store", "wopr-core", "wopr-wire"],
    ),
    ("wopr-app", &["wopr-engine", "wopr-store", "wopr-core"]),
    ("wopr-engine", &["wopr-store", "wopr-core"]),
    ("wopr-store", &["wopr-core"]),
    (
        "wopr-core",
        &[
            "wopr-dialect-awp",
            "wopr-dialect-openwop",
            "wopr-dialect-toy",
            "wopr-kernel",
        ],
    ),
    ("wopr-dialect-awp", &["wopr-schema", "wopr-kernel"]),
    ("wopr-dialect-openwop", &["wopr-schema", "wopr-kernel"]),
    ("wopr-dialect-toy", &["wopr-kernel"]),
    ("wopr-schema", &["wopr-kernel"]),
    ("wopr-kernel", &[]),
    ("wopr-wire", &[]),
    (
        "wopr-testkit",
        &[
            "wopr-server",
            "wopr-connect",
            "wopr-engine",
            "wopr-store",
            "wopr-core",
            "wopr-wire",
        ],
    ),
    // This crate is only used by tests.
    (
        "wopr-fuzz",
        &[
            "wopr-server",
            "wopr-connect",
            "wopr-engine",
            "wopr-core",
            "wopr-testkit",
            "wopr-wire",
        ],
    ),
    ("xtask", &[]),
];

/// Crates that only tests may use.
const ONLY_FOR_TESTS: &str = "wopr-testkit";

/// Crates that may use `anyhow` outside tests.
const MAY_USE_ANYHOW: [&str; 3] = ["wopr", "wopr-bench", "xtask"];

fn violations(metadata: &Value) -> Vec<String> {
    let mut violations = Vec::new();
    for package in list(metadata, "packages") {
        let name = text(package, "name");
        let Some((_, may_use)) = ARROWS.iter().find(|(known, _)| *known == name) else {
            violations.push(format!("{name} has no place in the table of arrows"));
            continue;
        };
        for dependency in list(package, "dependencies") {
            let used = text(dependency, "name");
            // For ordinary dependencies the kind is null.
            let is_for_tests = dependency["kind"] == "dev";
            if used == "anyhow" && !is_for_tests && !MAY_USE_ANYHOW.contains(&name) {
                violations.push(format!("{name} uses anyhow outside its tests"));
            }
            let is_ours = ARROWS.iter().any(|(ours, _)| *ours == used);
            let is_allowed = may_use.contains(&used) || (used == ONLY_FOR_TESTS && is_for_tests);
            if is_ours && !is_allowed {
                violations.push(format!("{name} must not depend on {used}"));
            }
        }
    }
    violations
}

fn list<'a>(value: &'a Value, key: &str) -> impl Iterator<Item = &'a Value> {
    value[key]
        .as_array()
        .expect("cargo metadata has this list")
        .iter()
}

fn text<'a>(value: &'a Value, key: &str) -> &'a str {
    value[key].as_str().expect("cargo metadata has this text")
}

#[test]
fn dependencies_point_down() {
    let output = Command::new(env!("CARGO"))
        .args(["metadata", "--no-deps", "--format-version", "1"])
        .current_dir(env!("CARGO_MANIFEST_DIR"))
        .output()
        .unwrap();
    assert!(
        output.status.success(),
        "{}",
        String::from_utf8_lossy(&output.stderr)
    );
    let metadata: Value = serde_json::from_slice(&output.stdout).unwrap();

    assert_eq!(list(&metadata, "packages").count(), ARROWS.len());
    assert_eq!(violations(&metadata), [""; 0]);
}

#[test]
fn upward_dependency_is_found() {
    let uses = |name: &str, used: &str, kind: Value| {
        let metadata = json!({"packages": [{"name": name, "dependencies": [{"name": used, "kind": kind}]}]});
        violations(&metadata)
    };
    assert_eq!(
        uses("wopr-store", "wopr-engine", Value::Null),
        ["wopr-store must not depend on wopr-engine"]
    );
    assert_eq!(
        uses("wopr-engine", "wopr-wire", Value::Null),
        ["wopr-engine must not depend on wopr-wire"]
    );
    assert_eq!(
        uses("wopr-core", "wopr-store", json!("dev")),
        ["wopr-core must not depend on wopr-store"]
    );
    assert_eq!(
        uses("wopr-server", "wopr", json!("build")),
        ["wopr-server must not depend on wopr"]
    );
    assert_eq!(
        uses("wopr-engine", "wopr-testkit", Value::Null),
        ["wopr-engine must not depend on wopr-testkit"]
    );
    assert_eq!(
        uses("wopr-core", "anyhow", Value::Null),
        ["wopr-core uses anyhow outside its tests"]
    );
    assert_eq!(
        uses("wopr-new", "serde", Value::Null),
        ["wopr-new has no place in the table of arrows"]
    );

    for (name, used, kind) in [
        ("wopr-engine", "wopr-testkit", json!("dev")),
        ("wopr-core", "anyhow", json!("dev")),
        ("wopr-server", "wopr-wire", Value::Null),
        ("xtask", "anyhow", Value::Null),
    ] {
        assert_eq!(uses(name, used, kind), [""; 0], "{name} -> {used}");
    }
}
