//! Free disk space and the writes it allows.
//!
//! A checkpoint copies the pages of the write-ahead log into the database, so they need space twice. If the
//! log filled the disk, neither a checkpoint nor a write would be possible any more. Therefore the log is
//! checkpointed while as much space again is free, and a group of writes that would use up that space is
//! refused before it begins, as on a full disk. Writes by other programs are noticed at the next measurement.
//!
//! A limit on the size of files (`RLIMIT_FSIZE`, systemd's `LimitFSIZE`) counts as a disk of that size: what the
//! database may still grow by is what the log may hold.

use std::{
    fmt,
    path::{Path, PathBuf},
    sync::atomic::{AtomicU64, Ordering::Relaxed},
};

use super::open::PAGE_SIZE;

/// Pages that one write may change besides those of its own bytes: a leaf of each table and index it touches.
const PAGES_A_WRITE: u64 = 8;

/// Measures the free bytes; `None` if they cannot be determined.
type Look = Box<dyn Fn() -> Option<u64> + Send + Sync>;

pub(super) struct Space {
    look: Look,
    /// In pages, as of the last measurement.
    free: AtomicU64,
}

impl fmt::Debug for Space {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Space")
            .field("free", &self.free)
            .finish_non_exhaustive()
    }
}

impl Space {
    /// Creates the space of the disk that holds a file or will hold it.
    pub(super) fn of(file: &Path) -> Self {
        let folder = match file.parent() {
            Some(folder) if !folder.as_os_str().is_empty() => folder.to_owned(),
            Some(_) | None => PathBuf::from("."),
        };
        let file = file.to_owned();
        Self::told_by(Box::new(move || {
            let left = file_limit().map(|limit| growth(&file, limit));
            free_bytes(&folder).into_iter().chain(left).min()
        }))
    }

    pub(super) fn told_by(look: Look) -> Self {
        let space = Self {
            look,
            free: AtomicU64::new(u64::MAX),
        };
        space.look();
        space
    }

    /// Measures again. If the result is unknown, space is unlimited.
    pub(super) fn look(&self) -> Option<u64> {
        let bytes = (self.look)();
        let pages = bytes.map_or(u64::MAX, |bytes| bytes / u64::from(PAGE_SIZE));
        self.free.store(pages, Relaxed);
        bytes
    }

    /// Free pages as of the last measurement.
    pub(super) fn free_pages(&self) -> u64 {
        self.free.load(Relaxed)
    }

    /// Returns `true` if a log of `log` pages should be checkpointed soon. While twice its size is free,
    /// there is room to copy it and for writes that arrive meanwhile.
    pub(super) fn wants_checkpoint(&self, log: u64) -> bool {
        log > 0 && log >= self.free_pages() / 2
    }

    /// Measures again and returns `true` if the space holds a group of writes besides `log` pages still to be
    /// copied.
    pub(super) fn has_room(&self, log: u64, writes: usize, bytes: usize) -> bool {
        self.look();
        let bytes = u64::try_from(bytes).unwrap_or(u64::MAX);
        let writes = u64::try_from(writes).unwrap_or(u64::MAX);
        // A body may leave its last page and one page of its index half empty.
        let needed = writes
            .saturating_mul(PAGES_A_WRITE)
            .saturating_add(bytes.saturating_mul(2) / u64::from(PAGE_SIZE));
        self.free_pages() >= log.saturating_add(needed)
    }
}

/// The largest size of a file that this process may write, if there is one.
#[cfg(unix)]
fn file_limit() -> Option<u64> {
    rustix::process::getrlimit(rustix::process::Resource::Fsize).current
}

#[cfg(not(unix))]
fn file_limit() -> Option<u64> {
    None
}

/// By how many bytes a file may grow. A frame of the log is somewhat larger than its page.
fn growth(file: &Path, limit: u64) -> u64 {
    let size = std::fs::metadata(file).map_or(0, |found| found.len());
    let left = limit.saturating_sub(size);
    left - left / 64
}

/// Bytes that this process may still write to the file system of a folder.
#[cfg(unix)]
fn free_bytes(folder: &Path) -> Option<u64> {
    let found = rustix::fs::statvfs(folder).ok()?;
    // File systems without a size, such as ramfs, report zero blocks.
    if found.f_blocks == 0 {
        return None;
    }
    Some(found.f_bavail.saturating_mul(found.f_frsize))
}

#[cfg(not(unix))]
fn free_bytes(_: &Path) -> Option<u64> {
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    fn with_pages(pages: u64) -> Space {
        Space::told_by(Box::new(move || Some(pages * u64::from(PAGE_SIZE))))
    }

    #[test]
    fn checkpoint_is_wanted_before_the_log_exceeds_half_the_free_space() {
        assert!(!with_pages(4_000).wants_checkpoint(1_999));
        assert!(with_pages(4_000).wants_checkpoint(2_000));
        assert!(!with_pages(0).wants_checkpoint(0), "nothing to copy");
        assert!(!Space::told_by(Box::new(|| None)).wants_checkpoint(1 << 40));
    }

    #[test]
    fn groups_that_leave_no_space_for_the_log_are_refused() {
        let space = with_pages(100);
        assert!(space.has_room(50, 1, 100_000));
        assert!(!space.has_room(95, 1, 0), "its pages and those of the log");
        assert!(!space.has_room(0, 1, 500_000));
        assert!(!space.has_room(0, 20, 0), "all of them together");
        assert!(space.has_room(0, 10, 0));
        assert!(Space::told_by(Box::new(|| None)).has_room(u64::MAX, 512, usize::MAX));
    }

    #[test]
    fn a_file_may_grow_up_to_the_limit_of_its_size() {
        let folder = tempfile::tempdir().expect("a folder");
        let file = folder.path().join("db");
        assert_eq!(growth(&file, 64_000), 63_000, "it is not there yet");
        std::fs::write(&file, vec![0; 1_000]).expect("written");
        assert_eq!(growth(&file, 65_000), 63_000);
        assert_eq!(growth(&file, 500), 0);
    }

    #[test]
    fn free_space_of_this_machine_can_be_measured() {
        let folder = tempfile::tempdir().expect("a folder");
        assert!(
            Space::of(&folder.path().join("db"))
                .look()
                .is_some_and(|free| free > 0)
        );
    }
}
