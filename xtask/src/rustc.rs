//! Compiles our own crates with additional flags, and dependencies without them.
//!
//! The simulator needs our crates optimized; fuzz targets need them instrumented. Setting `RUSTFLAGS` or a
//! profile would recompile all dependencies, which takes minutes without benefit. Cargo supports a wrapper
//! around rustc for workspace packages only, and caches its results by the wrapper's path. So each set of
//! flags gets a one-line wrapper script, whose path depends on the flags.

use std::fs;
use std::hash::{DefaultHasher, Hash as _, Hasher as _};
use std::path::PathBuf;
use std::process::Command;

use anyhow::{Context as _, Result};

/// The folder of the scripts.
const FOLDER: &str = "target/rustc";

/// The crate types that get the flags.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Scope {
    /// Libraries, binaries and tests.
    Everything,
    Libraries,
}

/// Makes a cargo command compile the workspace packages with additional flags.
pub(crate) fn with_flags(command: &mut Command, flags: &[&str], scope: Scope) -> Result<()> {
    command.env("RUSTC_WORKSPACE_WRAPPER", script(flags, scope)?);
    Ok(())
}

fn script(flags: &[&str], scope: Scope) -> Result<PathBuf> {
    let text = text(flags, scope);
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

fn text(flags: &[&str], scope: Scope) -> String {
    let others = match scope {
        Scope::Everything => "",
        Scope::Libraries => "case \" $* \" in *\" --crate-type lib \"*) ;; *) exec \"$@\" ;; esac\n",
    };
    format!("#!/bin/sh\n{others}exec \"$@\" {}\n", flags.join(" "))
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

    #[test]
    fn wrapper_script_appends_its_flags() {
        assert_eq!(
            text(&["-Copt-level=1", "--cfg=fuzzing"], Scope::Everything),
            "#!/bin/sh\nexec \"$@\" -Copt-level=1 --cfg=fuzzing\n"
        );
    }

    #[cfg(unix)]
    #[test]
    fn wrapper_script_can_apply_to_libraries_only() {
        let compiled = |words: &[&str]| {
            let mut shell = Command::new("sh");
            shell
                .args(["-c", &text(&["-O"], Scope::Libraries), "script", "echo"])
                .args(words);
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
