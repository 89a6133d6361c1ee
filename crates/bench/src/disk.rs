//! The raw cost of durability on the measured disk: appending 16 KiB to a growing file and `fdatasync`.
//!
//! The speed of disks in shared machines varies by an order of magnitude within a minute. The raw cost is
//! therefore measured between the rounds of a measurement, while no client runs, and figures are given as
//! multiples of it.

use std::{
    fs::{self, File},
    io::{self, Write as _},
    path::Path,
    time::{Duration, Instant},
};

/// The data appended each time: about one transaction of a small group.
const PAGE: [u8; 16 << 10] = [0x5a; 16 << 10];

#[derive(Debug)]
pub(crate) struct Probe(File);

impl Probe {
    pub(crate) fn create(folder: &Path) -> io::Result<Self> {
        let mut probe = Self(File::create(folder.join("raw"))?);
        // The first append includes the cost of creating the file.
        probe.take()?;
        Ok(probe)
    }

    /// Appends once and waits for the sync.
    pub(crate) fn take(&mut self) -> io::Result<Duration> {
        let start = Instant::now();
        self.0.write_all(&PAGE)?;
        self.0.sync_data()?;
        Ok(start.elapsed())
    }
}

/// Returns the file system type of a folder, if it can be determined.
pub(crate) fn kind(folder: &Path) -> Option<String> {
    let folder = fs::canonicalize(folder).ok()?;
    let mounts = fs::read_to_string("/proc/self/mountinfo").ok()?;
    kind_in(&mounts, &folder)
}

/// Parses lines of the form `36 35 98:0 /root /mount/point options [tags] - type source options`.
fn kind_in(mounts: &str, folder: &Path) -> Option<String> {
    let mount = |line: &str| {
        let (left, right) = line.split_once(" - ")?;
        let point = left.split(' ').nth(4)?.replace("\\040", " ");
        let kind = right.split(' ').next()?.to_owned();
        folder.starts_with(&point).then_some((point.len(), kind))
    };
    // Of two mounts on the same point, the later one hides the other.
    let (_, kind) = mounts
        .lines()
        .filter_map(mount)
        .max_by_key(|(length, _)| *length)?;
    Some(kind)
}

/// Returns `true` for file systems without a disk, on which a sync proves nothing.
pub(crate) fn is_in_memory(kind: &str) -> bool {
    matches!(kind, "tmpfs" | "ramfs")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn innermost_mount_wins() {
        let mounts = "1 0 254:0 / / rw,relatime - ext4 /dev/vda rw\n\
                      2 1 0:5 / /tmp rw shared:3 - tmpfs tmpfs rw\n\
                      3 1 0:6 / /with\\040space rw - xfs /dev/vdb rw\n\
                      nonsense\n";
        let check = |folder: &str, kind: &str| {
            assert_eq!(
                kind_in(mounts, Path::new(folder)).as_deref(),
                Some(kind),
                "{folder}"
            );
        };
        check("/srv/a", "ext4");
        check("/tmp", "tmpfs");
        check("/tmp/a/b", "tmpfs");
        check("/tmpfile", "ext4");
        check("/with space/a", "xfs");
        assert_eq!(kind_in("", Path::new("/")), None);
    }
}
