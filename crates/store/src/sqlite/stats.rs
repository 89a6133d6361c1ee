//! Counters, for metrics and for tests of group commit.

use std::{
    sync::atomic::{AtomicU64, Ordering::Relaxed},
    time::Duration,
};

use crate::AppendError;

/// Counters of a [`super::SqliteStore`] since it was opened.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Stats {
    /// Batches committed.
    pub appends: u64,
    /// Transactions that wrote something; each is one commit and one fsync.
    pub groups: u64,
    /// The largest number of writes that shared one transaction.
    pub largest_group: u64,
    /// Batches refused because the log had advanced.
    pub conflicts: u64,
    /// Batches refused because their request had already taken effect.
    pub duplicates: u64,
    /// Batches refused because a lease was lost.
    pub fenced: u64,
    /// Writes waiting for the writer now.
    pub queued_writes: u64,
    /// Reads waiting for a reader now.
    pub queued_reads: u64,
    /// Reads and writes refused because too many waited.
    pub refused: u64,
    /// Groups that were retried job by job because one write failed.
    pub retried_groups: u64,
    /// Commits whose outcome is unknown.
    pub doubtful_commits: u64,
    /// Pages in the write-ahead log after the last commit.
    pub wal_pages: u64,
    pub checkpoints: u64,
    /// Pages copied from the write-ahead log into the database.
    pub checkpointed_pages: u64,
    /// Checkpoints that could not restart the write-ahead log because a reader still used it.
    pub checkpoints_held_up: u64,
    /// Groups that waited for a checkpoint.
    pub stalls: u64,
    /// Total time that groups waited for checkpoints.
    pub stall_micros: u64,
}

#[derive(Debug, Default)]
pub(super) struct Counters {
    appends: AtomicU64,
    groups: AtomicU64,
    largest_group: AtomicU64,
    conflicts: AtomicU64,
    duplicates: AtomicU64,
    fenced: AtomicU64,
    refused: AtomicU64,
    retried_groups: AtomicU64,
    doubtful_commits: AtomicU64,
    pub(super) wal_pages: AtomicU64,
    checkpoints: AtomicU64,
    checkpointed_pages: AtomicU64,
    checkpoints_held_up: AtomicU64,
    stalls: AtomicU64,
    stall_micros: AtomicU64,
}

impl Counters {
    pub(super) fn appended(&self, answer: &Result<(), AppendError>) {
        let counter = match answer {
            Ok(()) => &self.appends,
            Err(AppendError::Conflict { .. }) => &self.conflicts,
            Err(AppendError::Duplicate(_)) => &self.duplicates,
            Err(AppendError::Fenced(_)) => &self.fenced,
            Err(
                AppendError::Full(_)
                | AppendError::Missing
                | AppendError::Unavailable(_)
                | AppendError::Unknown(_)
                | AppendError::Corrupt(_),
            ) => return,
        };
        counter.fetch_add(1, Relaxed);
    }

    pub(super) fn committed(&self, jobs: usize) {
        self.groups.fetch_add(1, Relaxed);
        self.largest_group.fetch_max(jobs as u64, Relaxed);
    }

    pub(super) fn refused(&self) {
        self.refused.fetch_add(1, Relaxed);
    }

    pub(super) fn retried_group(&self) {
        self.retried_groups.fetch_add(1, Relaxed);
    }

    pub(super) fn doubtful_commit(&self) {
        self.doubtful_commits.fetch_add(1, Relaxed);
    }

    pub(super) fn checkpointed(&self, pages: u64, started_over: bool) {
        self.checkpoints.fetch_add(1, Relaxed);
        self.checkpointed_pages.fetch_add(pages, Relaxed);
        self.checkpoints_held_up
            .fetch_add(u64::from(!started_over), Relaxed);
    }

    pub(super) fn stalled(&self, waited: Duration) {
        self.stalls.fetch_add(1, Relaxed);
        self.stall_micros
            .fetch_add(u64::try_from(waited.as_micros()).unwrap_or(u64::MAX), Relaxed);
    }

    pub(super) fn snapshot(&self, queued_writes: usize, queued_reads: usize) -> Stats {
        Stats {
            queued_writes: queued_writes as u64,
            queued_reads: queued_reads as u64,
            appends: self.appends.load(Relaxed),
            groups: self.groups.load(Relaxed),
            largest_group: self.largest_group.load(Relaxed),
            conflicts: self.conflicts.load(Relaxed),
            duplicates: self.duplicates.load(Relaxed),
            fenced: self.fenced.load(Relaxed),
            refused: self.refused.load(Relaxed),
            retried_groups: self.retried_groups.load(Relaxed),
            doubtful_commits: self.doubtful_commits.load(Relaxed),
            wal_pages: self.wal_pages.load(Relaxed),
            checkpoints: self.checkpoints.load(Relaxed),
            checkpointed_pages: self.checkpointed_pages.load(Relaxed),
            checkpoints_held_up: self.checkpoints_held_up.load(Relaxed),
            stalls: self.stalls.load(Relaxed),
            stall_micros: self.stall_micros.load(Relaxed),
        }
    }
}
