//! What is packaged agrees with the workspace.

use std::fs;
use std::path::Path;

use toml::Table;

fn read(path: &str) -> String {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("..").join(path);
    fs::read_to_string(path).expect("the repository has this file")
}

#[test]
fn the_image_is_built_with_the_rust_the_workspace_asks_for() {
    let manifest: Table = read("Cargo.toml").parse().unwrap();
    let version = manifest["workspace"]["package"]["rust-version"].as_str().unwrap();
    assert!(
        read("Dockerfile").contains(&format!("FROM rust:{version}-slim")),
        "rust-version is {version}"
    );
}
