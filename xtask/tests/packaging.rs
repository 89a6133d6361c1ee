//! Packaging files agree with the workspace.

use std::fs;
use std::path::Path;

use toml::Table;

fn read(path: &str) -> String {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("..").join(path);
    fs::read_to_string(path).expect("the repository has this file")
}

#[test]
fn image_uses_the_rust_version_of_the_workspace() {
    let manifest: Table = read("Cargo.toml").parse().unwrap();
    let version = manifest["workspace"]["package"]["rust-version"].as_str().unwrap();
    assert!(
        read("Dockerfile").contains(&format!("FROM rust:{version}-slim")),
        "rust-version is {version}"
    );
}
