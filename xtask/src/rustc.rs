//! Compiles our own crates with additional flags, and dependencies without them.
//!
//! Tests, the simulator, the chaos tests and the siege want our libraries optimized; fuzz targets need them instrumented.
//! Setting `RUSTFLAGS` or a profile would recompile all dependencies, which takes minutes without benefit.
//! Cargo supports a wrapper around rustc for workspace packages only, and caches its results by the wrapper's
//! path. So each set of flags gets a one-line wrapper script, whose path depends on the flags.

use std::fs;
use std::hash::{DefaultHasher, Hash as _, Hasher as _};
use std::path::PathBuf;
use std::process::Command;

use anyhow::{Context as _, Result};

/// The folder of the scripts.
const FOLDER: &str = "target/rustc";

/// As in a release, with debug assertions and overflow checks. One set for all that runs tests, because compiling our
/// crates once more takes longer than any of them would save with flags of its own.
const OPTIMIZED: [&str; 1] = ["-Copt-level=3"];

/// Makes a cargo command optimize our libraries as in a release. Test binaries, of which each runs once, take longer to
/// optimize than that saves.
pub(crate) fn optimized(command: &mut Command) -> Result<()> {
    with_flags(command, &OPTIMIZED)
}

/// Makes a cargo command compile our libraries with additional flags.
///
/// Without incremental compilation, which splits crates into so many parts that optimizing them takes twice as
/// long and gives slower code.
pub(crate) fn with_flags(command: &mut Command, flags: &[&str]) -> Result<()> {
    command.env("RUSTC_WORKSPACE_WRAPPER", script(flags)?);
    command.env("CARGO_INCREMENTAL", "0");
    Ok(())
}

fn script(flags: &[&str]) -> Result<PathBuf> {
    let text = text(flags);
    let mut hasher = DefaultHasher::new();
    text.hash(&mut hasher);
    fs::create_dir_all(FOLDER).with_context(|| format!("make {FOLDER}"))?;
    let folder = fs::canonicalize(FOLDER).with_context(|| format!("find {FOLDER}"))?;
    let path = folder.join(format!("{:016x}.sh", hasher.finish()));
    // An existing script is not rewritten, because a new modification time could trigger a rebuild.
    if !fs::read_to_string(&path).is_ok_and(|known| known == text) {
        fs::write(&path, &text).with_context(|| format!("write {}", path.display()))?;
        make_executable(&path).with_context(|| format!("make {} executable", path.display()))?;
    }
    Ok(path)
}

fn text(flags: &[&str]) -> String {
    let others = "case \" $* \" in *\" --crate-type lib \"*) ;; *) exec \"$@\" ;; esac";
    format!("#!/bin/sh\n{others}\nexec \"$@\" {}\n", flags.join(" "))
}

#[cfg(unix)]
fn make_executable(path: &std::path::Path) -> std::io::Result<()> {
    use std::os::unix::fs::PermissionsExt as _;

    fs::set_permissions(path, fs::Permissions::from_mode(0o755))
}

#[cfg(not(unix))]
fn make_executable(_: &std::path::Path) -> std::io::Result<()> {
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[cfg(unix)]
    #[test]
    fn wrapper_script_applies_to_libraries_only() {
        let compiled = |words: &[&str]| {
            let mut shell = Command::new("sh");
            shell.args(["-c", &text(&["-O"]), "script", "echo"]).args(words);
            String::from_utf8(shell.output().unwrap().stdout).unwrap()
        };
        assert_eq!(
            compiled(&["--crate-type", "lib", "a.rs"]),
            "--crate-type lib a.rs -O\n"
        );
        assert_eq!(
            compiled(&["--crate-type", "bin", "a.rs"]),
            "--crate-type bin a.rs\n"
        );
        assert_eq!(compiled(&["--test", "a.rs"]), "--test a.rs\n");
    }
}
