//! Counters, for metrics and for tests.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use crate::AppendError;

/// Counters of a [`super::PostgresStore`] since it was opened.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Stats {
    /// Batches committed.
    pub appends: u64,
    /// Transactions that appended; each is one commit.
    pub groups: u64,
    /// The largest number of batches in one transaction.
    pub largest_group: u64,
    /// Batches refused because the log had advanced.
    pub conflicts: u64,
    /// Batches refused because their request had already taken effect.
    pub duplicates: u64,
    /// Batches refused because a lease was lost.
    pub fenced: u64,
    /// Appends whose outcome is unknown.
    pub doubtful_commits: u64,
    /// Transactions retried after serialization failures, deadlocks, locked rows or lost connections.
    pub retries: u64,
    /// Calls refused because every connection was busy or too many calls waited.
    pub refused: u64,
    /// Hints received from other processes.
    pub hints: u64,
    /// Connections now.
    pub connections: u64,
    /// Connections in use now.
    pub busy_connections: u64,
}

#[derive(Debug, Default)]
pub(super) struct Counters {
    appends: AtomicU64,
    groups: AtomicU64,
    largest_group: AtomicU64,
    conflicts: AtomicU64,
    duplicates: AtomicU64,
    fenced: AtomicU64,
    doubtful_commits: AtomicU64,
    retries: AtomicU64,
    refused: AtomicU64,
    hints: AtomicU64,
}

impl Counters {
    pub(super) fn appended(&self, answer: &Result<(), AppendError>) {
        let counter = match answer {
            Ok(()) => &self.appends,
            Err(AppendError::Conflict { .. }) => &self.conflicts,
            Err(AppendError::Duplicate(_)) => &self.duplicates,
            Err(AppendError::Fenced(_)) => &self.fenced,
            Err(AppendError::Unknown(_)) => &self.doubtful_commits,
            Err(
                AppendError::Full(_)
                | AppendError::Missing
                | AppendError::Unavailable(_)
                | AppendError::Corrupt(_),
            ) => return,
        };
        counter.fetch_add(1, Relaxed);
    }

    /// Records a committed transaction of `n_batches` batches.
    pub(super) fn committed(&self, n_batches: usize) {
        self.groups.fetch_add(1, Relaxed);
        self.largest_group.fetch_max(n_batches as u64, Relaxed);
    }

    pub(super) fn retried(&self) {
        self.retries.fetch_add(1, Relaxed);
    }

    pub(super) fn refused(&self) {
        self.refused.fetch_add(1, Relaxed);
    }

    pub(super) fn hinted(&self) {
        self.hints.fetch_add(1, Relaxed);
    }

    pub(super) fn snapshot(&self, (connections, busy): (usize, usize)) -> Stats {
        Stats {
            appends: self.appends.load(Relaxed),
            groups: self.groups.load(Relaxed),
            largest_group: self.largest_group.load(Relaxed),
            conflicts: self.conflicts.load(Relaxed),
            duplicates: self.duplicates.load(Relaxed),
            fenced: self.fenced.load(Relaxed),
            doubtful_commits: self.doubtful_commits.load(Relaxed),
            retries: self.retries.load(Relaxed),
            refused: self.refused.load(Relaxed),
            hints: self.hints.load(Relaxed),
            connections: connections as u64,
            busy_connections: busy as u64,
        }
    }
}
