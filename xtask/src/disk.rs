//! Reports free disk space, because a build without space fails with misleading errors.

use std::env;
use std::path::Path;
use std::process::Command;

use crate::process::read;

/// Returns the free space in the two places that builds write to: the current directory, and the temporary
/// directory used by `cargo install`. `None` if `df` fails.
pub(crate) fn told() -> Option<String> {
    let (here, passing) = (free(Path::new("."))?, free(&env::temp_dir())?);
    Some(format!(
        "free on the disk: {} here, {} in {}",
        shown(here),
        shown(passing),
        env::temp_dir().display()
    ))
}

/// Free space at a path in KiB.
fn free(path: &Path) -> Option<u64> {
    let said = read(Command::new("df").arg("-Pk").arg(path)).ok()?;
    available(&said)
}

/// Parses the fourth column of the line below the header, in POSIX format.
fn available(said: &str) -> Option<u64> {
    said.lines().nth(1)?.split_whitespace().nth(3)?.parse().ok()
}

fn shown(kib: u64) -> String {
    let tenths_of_gib = (kib * 10) >> 20;
    format!("{}.{} GiB", tenths_of_gib / 10, tenths_of_gib % 10)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn df_output_is_parsed() {
        let said = "Filesystem 1024-blocks Used Available Capacity Mounted on\n/dev/vda 264239180 93000000 1572864 99% /\n";
        assert_eq!(available(said).map(shown), Some("1.5 GiB".to_owned()));
        assert_eq!(available("nothing"), None);
    }
}
