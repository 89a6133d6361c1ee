//! The wall clocks of the replicas, which jump while processes run; requires libfaketime.
//!
//! Only the wall clock is changed; monotonic clocks are left alone, as when a machine's time is corrected.
//! Each replica reads its offset from its own file, so a jump persists across restarts.

use std::{
    fs,
    path::{Path, PathBuf},
    sync::Mutex,
    time::{Duration, Instant},
};

use crate::faketime;

/// Clock reads that started before a jump have ended after this time.
const GRACE: Duration = Duration::from_millis(500);

#[derive(Debug)]
pub(super) struct Clocks {
    library: Option<PathBuf>,
    folder: PathBuf,
    /// The offsets of each replica in seconds, with their start times.
    jumps: Mutex<Vec<Vec<(Instant, i64)>>>,
}

impl Clocks {
    /// Correct clocks.
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

    /// Returns `true` if libfaketime is available.
    pub(super) fn can_jump(&self) -> bool {
        self.library.is_some()
    }

    /// The environment variables that make a process use its clock file.
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

    /// Sets a clock's offset.
    pub(super) fn set(&self, replica: usize, seconds: i64) {
        self.jumps.lock().unwrap()[replica].push((Instant::now(), seconds));
        // Replaced atomically, because it is read all the time.
        let next = self.folder.join(format!("clock-{replica}.next"));
        fs::write(&next, format!("{seconds:+}")).unwrap();
        fs::rename(next, self.file(replica)).unwrap();
    }

    /// Maximum time that any clock may have gained since then, in addition to the elapsed time.
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

    /// Removes the shared memory that libfaketime leaves after a kill.
    pub(super) fn forget(&self, pid: u32) {
        if self.library.is_some() {
            for name in [format!("faketime_shm_{pid}"), format!("sem.faketime_sem_{pid}")] {
                // The process may not have created it yet.
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
    fn clock_gain_counts_while_it_may_have_been_read() {
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
