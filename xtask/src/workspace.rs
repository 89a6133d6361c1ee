//! Finds the workspace root.

use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result};

/// Changes the current directory to the workspace root, so that all paths here are relative to it.
pub(crate) fn enter() -> Result<()> {
    let root = root()?;
    std::env::set_current_dir(&root).with_context(|| format!("enter {}", root.display()))
}

fn root() -> Result<PathBuf> {
    let package =
        std::env::var_os("CARGO_MANIFEST_DIR").context("find the workspace: start me as `cargo xtask`")?;
    let root = Path::new(&package)
        .parent()
        .context("find the workspace above this package")?;
    Ok(root.to_owned())
}
