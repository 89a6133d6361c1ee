//! The raw cost of durability on the disk that is measured: appending 16 KiB to a growing file and `fdatasync`.
//!
//! Disks of shared machines swing by an order of magnitude within a minute. So the raw cost is taken between the
//! rounds of a measurement, while no client runs, and figures are given as multiples of it.

use std::{
    fs::{self, File},
    io::{self, Write as _},
    path::Path,
    time::{Duration, Instant},
};

/// What is appended each time: about one transaction of a small group.
const PAGE: [u8; 16 << 10] = [0x5a; 16 << 10];

/// A file to append to.
#[derive(Debug)]
pub(crate) struct Probe(File);

impl Probe {
    /// Makes the file.
    pub(crate) fn create(folder: &Path) -> io::Result<Self> {
        let mut probe = Self(File::create(folder.join("raw"))?);
        // The first one pays for making the file.
        probe.take()?;
        Ok(probe)
    }

    /// Appends once and waits until the disk has it.
    pub(crate) fn take(&mut self) -> io::Result<Duration> {
        let start = Instant::now();
        self.0.write_all(&PAGE)?;
        self.0.sync_data()?;
        Ok(start.elapsed())
    }
}

/// The kind of file system a folder is on, if that can be found out.
pub(crate) fn kind(folder: &Path) -> Option<String> {
    let folder = fs::canonicalize(folder).ok()?;
    let mounts = fs::read_to_string("/proc/self/mountinfo").ok()?;
    kind_in(&mounts, &folder)
}

/// Lines read `36 35 98:0 /root /mount/point options [tags] - kind source options`.
fn kind_in(mounts: &str, folder: &Path) -> Option<String> {
    let mount = |line: &str| {
        let (left, right) = line.split_once(" - ")?;
        let point = left.split(' ').nth(4)?.replace("\\040", " ");
        let kind = right.split(' ').next()?.to_owned();
        folder.starts_with(&point).then_some((point.len(), kind))
    };
    // Of two on the same point, the later one hides the other.
    let (_, kind) = mounts
        .lines()
        .filter_map(mount)
        .max_by_key(|(length, _)| *length)?;
    Some(kind)
}

/// Whether a file system of this kind keeps nothing on a disk, so that syncing it proves nothing.
pub(crate) fn is_in_memory(kind: &str) -> bool {
    matches!(kind, "tmpfs" | "ramfs")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_innermost_mount_decides() {
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
