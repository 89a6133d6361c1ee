//! Resource usage of a local process, read from `/proc`.
//!
//! Functions return `None` instead of failing if `/proc` is not readable (another system, another user's
//! process); the report then omits the figure.

use std::{fs, time::Duration};

/// Clock ticks per second in `/proc`, the same on all architectures that this program supports.
const TICKS_PER_SECOND: u64 = 100;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Process(pub(crate) u32);

impl Process {
    pub(crate) fn current() -> Self {
        Self(std::process::id())
    }

    /// CPU time of all threads so far.
    pub(crate) fn cpu(self) -> Option<Duration> {
        let [own, _] = times_in(&self.read("stat")?)?;
        Some(own)
    }

    /// CPU time of the process and all its children, including those that have ended. For a PostgreSQL
    /// postmaster this covers all backends, the checkpointer and the background writer.
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
            // A child may end before it is read; it then counts among the ended ones next time.
            if let Some([own, of_ended_children]) = child.read("stat").and_then(|stat| times_in(&stat)) {
                sum += own + of_ended_children;
            }
        }
        Some(sum)
    }

    pub(crate) fn parent(self) -> Option<Self> {
        let stat = self.read("stat")?;
        let (_, fields) = stat.rsplit_once(')')?;
        fields.split_whitespace().nth(1)?.parse().ok().map(Self)
    }

    /// The name of the executable.
    pub(crate) fn name(self) -> Option<String> {
        self.read("comm").map(|name| name.trim().to_owned())
    }

    /// Resident memory in bytes.
    pub(crate) fn resident(self) -> Option<u64> {
        let status = self.read("status")?;
        let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"))?;
        let kilobytes: u64 = line.trim().strip_suffix("kB")?.trim().parse().ok()?;
        Some(kilobytes * 1024)
    }

    /// Bytes written to disk so far, in whole pages.
    pub(crate) fn written(self) -> Option<u64> {
        let io = self.read("io")?;
        let line = io.lines().find_map(|line| line.strip_prefix("write_bytes:"))?;
        line.trim().parse().ok()
    }

    fn read(self, file: &str) -> Option<String> {
        fs::read_to_string(format!("/proc/{}/{file}", self.0)).ok()
    }
}

/// Number of established connections from this machine to a local port over IPv4.
pub(crate) fn connections_to(port: u16) -> Option<usize> {
    Some(established_to(&fs::read_to_string("/proc/net/tcp").ok()?, port))
}

/// Counts lines such as `0: 0100007F:A1B2 0100007F:1F90 01 …`: number, local and remote address, and the state, which
/// is 01 for an established connection.
fn established_to(table: &str, port: u16) -> usize {
    let port = format!("{port:04X}");
    let is_counted = |line: &&str| {
        let mut fields = line.split_whitespace().skip(2);
        let remote = fields.next().and_then(|remote| remote.rsplit_once(':'));
        remote.is_some_and(|(_, remote)| remote == port) && fields.next() == Some("01")
    };
    table.lines().filter(is_counted).count()
}

/// Parses user plus system time of the process and of its ended children. The executable's name, in
/// parentheses, may contain any character; the times are the 12th to 15th field after it.
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
    fn cpu_time_includes_user_and_system_time() {
        let stat = "7 (a) b) S 1 7 7 0 -1 4194304 100 0 0 0 150 25 7 3 20 0 8 0 100 1 1";
        let [own, children] = [Duration::from_millis(1_750), Duration::from_millis(100)];
        assert_eq!(times_in(stat), Some([own, children]));
        assert_eq!(times_in("7 (a) S 1"), None);
    }

    #[test]
    fn established_connections_to_a_port_are_counted() {
        let table = "  sl  local_address rem_address   st tx_queue\n\
                     0: 0100007F:1F90 00000000:0000 0A 00000000\n\
                     1: 0100007F:A1B2 0100007F:1F90 01 00000000\n\
                     2: 0100007F:1F90 0100007F:A1B2 01 00000000\n\
                     3: 0100007F:A1B3 0100007F:1F90 06 00000000\n";
        assert_eq!(established_to(table, 0x1f90), 1);
        assert_eq!(established_to(table, 1), 0);
    }

    #[test]
    fn current_process_can_be_read() {
        let this = Process::current();
        // Read first, because a tick may pass between two reads.
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
