//! The clocks of the replicas, which jump while processes run: libfaketime, where it is installed.
//!
//! Only the time of day is wrong; clocks that only go forward are left alone, as they are on a machine whose time is
//! corrected. Each replica reads how far off it is from a file of its own, so a jump outlives a restart.

use std::{
    fs,
    path::{Path, PathBuf},
    sync::Mutex,
    time::{Duration, Instant},
};

use crate::faketime;

/// After a jump, reads of the clock that began before it have ended.
const GRACE: Duration = Duration::from_millis(500);

#[derive(Debug)]
pub(super) struct Clocks {
    library: Option<PathBuf>,
    folder: PathBuf,
    /// For each replica, how many seconds off it was from when on.
    jumps: Mutex<Vec<Vec<(Instant, i64)>>>,
}

impl Clocks {
    /// Clocks that are right.
    pub(super) fn new(folder: &Path, replicas: usize) -> Self {
        let clocks = Self {
            library: faketime::find(),
            folder: folder.to_owned(),
            jumps: Mutex::new(vec![Vec::new(); replicas]),
        };
        for replica in 0..replicas {
            clocks.set(replica, 0);
        }
        clocks
    }

    /// Whether clocks can be put wrong here.
    pub(super) fn can_jump(&self) -> bool {
        self.library.is_some()
    }

    /// What makes a process read its clock here.
    pub(super) fn variables(&self, replica: usize) -> Vec<(&'static str, String)> {
        let Some(library) = &self.library else {
            return Vec::new();
        };
        vec![
            ("LD_PRELOAD", library.display().to_string()),
            (
                "FAKETIME_TIMESTAMP_FILE",
                self.file(replica).display().to_string(),
            ),
            ("FAKETIME_NO_CACHE", "1".to_owned()),
            ("FAKETIME_DONT_FAKE_MONOTONIC", "1".to_owned()),
            ("NO_FAKE_STAT", "1".to_owned()),
        ]
    }

    /// Puts a clock so many seconds off.
    pub(super) fn set(&self, replica: usize, seconds: i64) {
        self.jumps.lock().unwrap()[replica].push((Instant::now(), seconds));
        // Whole at any moment: it is read all the time.
        let next = self.folder.join(format!("clock-{replica}.next"));
        fs::write(&next, format!("{seconds:+}")).unwrap();
        fs::rename(next, self.file(replica)).unwrap();
    }

    /// How much later it can have been than it was, beyond the time that passed since a moment.
    pub(super) fn gained_since(&self, since: Instant) -> Duration {
        let jumps = self.jumps.lock().unwrap();
        let mut off = Vec::new();
        for of_replica in jumps.iter() {
            let until = of_replica.iter().skip(1).map(|(at, _)| Some(*at + GRACE));
            for ((_, seconds), until) in of_replica.iter().zip(until.chain([None])) {
                if until.is_none_or(|until| until >= since) {
                    off.push(*seconds);
                }
            }
        }
        let most = off.iter().max().copied().unwrap_or_default();
        let least = off.iter().min().copied().unwrap_or_default();
        Duration::from_secs(most.abs_diff(least))
    }

    /// Removes what the library leaves behind of a process that was killed.
    pub(super) fn forget(&self, pid: u32) {
        if self.library.is_some() {
            for name in [format!("faketime_shm_{pid}"), format!("sem.faketime_sem_{pid}")] {
                // It may not have come that far.
                let _ = fs::remove_file(Path::new("/dev/shm").join(name));
            }
        }
    }

    fn file(&self, replica: usize) -> PathBuf {
        self.folder.join(format!("clock-{replica}"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_clock_gained_counts_while_it_may_have_been_read() {
        let folder = tempfile::tempdir().unwrap();
        let clocks = Clocks::new(folder.path(), 2);
        let start = Instant::now();
        assert_eq!(clocks.gained_since(start), Duration::ZERO);
        clocks.set(0, 20);
        clocks.set(1, -10);
        assert_eq!(clocks.gained_since(start), Duration::from_secs(30));
        clocks.set(0, 0);
        clocks.set(1, 0);
        assert_eq!(clocks.gained_since(start), Duration::from_secs(30));
        assert_eq!(clocks.gained_since(Instant::now() + 2 * GRACE), Duration::ZERO);
        assert_eq!(fs::read_to_string(folder.path().join("clock-1")).unwrap(), "+0");
    }
}
