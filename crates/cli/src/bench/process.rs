//! What a process of this machine used so far, read from `/proc`.
//!
//! Nothing here fails: where `/proc` does not tell (another system, a process of somebody else), the figure is left
//! out of the report.

use std::{fs, time::Duration};

/// Clock ticks per second in `/proc`, the same on every architecture that Linux 6 and this program run on.
const TICKS_PER_SECOND: u64 = 100;

/// A process of this machine.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Process(pub(crate) u32);

impl Process {
    /// The calling one.
    pub(crate) fn current() -> Self {
        Self(std::process::id())
    }

    /// The CPU time of all its threads so far.
    pub(crate) fn cpu(self) -> Option<Duration> {
        let [own, _] = times_in(&self.read("stat")?)?;
        Some(own)
    }

    /// The CPU time of it and of all its children, those that ended included. Of a PostgreSQL server, given by its
    /// first process, this is every backend, checkpoint and background writer.
    pub(crate) fn family_cpu(self) -> Option<Duration> {
        let [own, of_ended_children] = times_in(&self.read("stat")?)?;
        let mut sum = own + of_ended_children;
        for entry in fs::read_dir("/proc").ok()? {
            let Some(id) = entry
                .ok()?
                .file_name()
                .to_str()
                .and_then(|name| name.parse().ok())
            else {
                continue;
            };
            let child = Self(id);
            if child.parent() != Some(self) {
                continue;
            }
            // It may end between the look and the read; it is among the ended ones the next time.
            if let Some([own, of_ended_children]) = child.read("stat").and_then(|stat| times_in(&stat)) {
                sum += own + of_ended_children;
            }
        }
        Some(sum)
    }

    /// Its parent.
    pub(crate) fn parent(self) -> Option<Self> {
        let stat = self.read("stat")?;
        let (_, fields) = stat.rsplit_once(')')?;
        fields.split_whitespace().nth(1)?.parse().ok().map(Self)
    }

    /// The name of its program.
    pub(crate) fn name(self) -> Option<String> {
        self.read("comm").map(|name| name.trim().to_owned())
    }

    /// The memory it holds now, in bytes.
    pub(crate) fn resident(self) -> Option<u64> {
        let status = self.read("status")?;
        let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"))?;
        let kilobytes: u64 = line.trim().strip_suffix("kB")?.trim().parse().ok()?;
        Some(kilobytes * 1024)
    }

    /// The bytes it made the system write to disks so far, whole pages.
    pub(crate) fn written(self) -> Option<u64> {
        let io = self.read("io")?;
        let line = io.lines().find_map(|line| line.strip_prefix("write_bytes:"))?;
        line.trim().parse().ok()
    }

    fn read(self, file: &str) -> Option<String> {
        fs::read_to_string(format!("/proc/{}/{file}", self.0)).ok()
    }
}

/// User and system time, of the process itself and of its ended children. The name of the program, in parentheses,
/// may contain anything; the times are the 12th to 15th field after it.
fn times_in(stat: &str) -> Option<[Duration; 2]> {
    let (_, fields) = stat.rsplit_once(')')?;
    let mut ticks = fields.split_whitespace().skip(11).map(str::parse::<u64>);
    let mut pair = || -> Option<Duration> {
        let sum = ticks.next()?.ok()? + ticks.next()?.ok()?;
        Some(Duration::from_millis(sum * 1_000 / TICKS_PER_SECOND))
    };
    Some([pair()?, pair()?])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cpu_time_counts_user_and_system() {
        let stat = "7 (a) b) S 1 7 7 0 -1 4194304 100 0 0 0 150 25 7 3 20 0 8 0 100 1 1";
        let [own, children] = [Duration::from_millis(1_750), Duration::from_millis(100)];
        assert_eq!(times_in(stat), Some([own, children]));
        assert_eq!(times_in("7 (a) S 1"), None);
    }

    #[test]
    fn this_process_is_read() {
        let this = Process::current();
        // Read first: a tick may pass between two looks.
        let before = this.cpu();
        assert!(before.is_some());
        assert!(this.resident().is_some_and(|bytes| bytes > 100_000));
        assert!(this.family_cpu() >= before);
        assert!(
            this.parent()
                .is_some_and(|parent| parent != this && parent.name().is_some())
        );
    }
}
