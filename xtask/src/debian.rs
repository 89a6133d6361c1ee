//! Installs Debian packages when running as root on a machine with apt (a container, CI).

use std::process::Command;

use anyhow::{Result, bail};

use crate::process::{read, run};

fn is_root() -> bool {
    read(Command::new("id").arg("-u")).is_ok_and(|id| id.trim() == "0")
}

/// Installs a package if possible; otherwise fails with `missing`.
pub(crate) fn install(package: &str, missing: &str) -> Result<()> {
    let has_apt = read(Command::new("apt-get").arg("--version")).is_ok();
    if !(is_root() && has_apt) {
        bail!("{missing} (Debian: apt-get install {package})");
    }
    let apt = || {
        let mut command = Command::new("apt-get");
        command.env("DEBIAN_FRONTEND", "noninteractive");
        command
    };
    run(apt().args(["update", "--quiet"]))?;
    run(apt().args(["install", "--quiet", "--yes", "--no-install-recommends", package]))
}
