//! Removal of runs: atomic for readers, incremental for the database.
//!
//! A run is *marked* with the root of its tree. Once both a run and its root are marked, the run is gone for
//! every reader and every append. Marking the root last therefore removes a whole tree at once, however large
//! it is. Rows of removed runs are *swept* in small steps that do not disturb a busy store; a crash between
//! two steps leaves no partly visible run. Which runs form a tree and when a tree expires is decided
//! elsewhere. Idempotency records are not touched: they have their own expiry.

use async_trait::async_trait;
use wopr_core::{RunId, RunKey, TenantId, Timestamp};

use crate::{PhaseCursor, ReadError, WriteError};

/// A run to mark, with the root of its tree. A root names itself.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Removal {
    pub run: RunId,
    pub root: RunId,
}

/// Runs that have ended and have no parent.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct EndedRoots {
    /// The longest ended first.
    pub roots: Vec<RunId>,
    /// Where to continue; `None` at the end of the list.
    pub next: Option<PhaseCursor>,
}

/// A run that another run created.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Child {
    pub parent: RunId,
    pub run: RunId,
    /// Time of the last append if the run has ended.
    pub ended: Option<Timestamp>,
}

/// The result of one sweep step.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Swept {
    /// Runs that were removed completely.
    pub runs: usize,
    /// Rows deleted. If both counts are zero, nothing is left to sweep.
    pub rows: usize,
}

/// Removes runs.
#[async_trait]
pub trait Retention: Send + Sync + 'static {
    /// Returns the first tenant after the given one that has runs.
    async fn next_tenant(&self, after: Option<&TenantId>) -> Result<Option<TenantId>, ReadError>;

    /// Examines at most `limit` tasks of a tenant that last changed before `before`, the longest unchanged
    /// first, after the cursor. Returns those whose runs have ended and have no parent.
    async fn ended_roots(
        &self,
        tenant: &TenantId,
        before: Timestamp,
        after: Option<&PhaseCursor>,
        limit: usize,
    ) -> Result<EndedRoots, ReadError>;

    /// Returns at most `limit` children of these runs after the cursor, ordered by parent and id.
    async fn children(
        &self,
        tenant: &TenantId,
        parents: &[RunId],
        after: Option<&Child>,
        limit: usize,
    ) -> Result<Vec<Child>, ReadError>;

    /// Marks runs atomically. Missing runs and runs that have not ended are skipped; marked runs keep their
    /// mark.
    async fn remove(&self, tenant: &TenantId, removals: &[Removal]) -> Result<(), WriteError>;

    /// Returns at most `limit` roots that are not marked although runs of their tree are: their removal was
    /// interrupted or is still in progress.
    async fn begun_removals(&self, limit: usize) -> Result<Vec<RunKey>, ReadError>;

    /// Deletes about `limit` rows of removed runs.
    async fn sweep(&self, limit: usize) -> Result<Swept, WriteError>;

    /// Looks at removed workflows whose time for it has come, and deletes the versions of those that have no run and
    /// had none at the check before: a run whose start was decided before that one has been stored by now. Others are
    /// checked again at `next_check`, which is after `now`. Returns how many were checked and how many versions were
    /// deleted, together at most about `limit`; 0 if nothing is due.
    async fn forget_workflows(
        &self,
        now: Timestamp,
        next_check: Timestamp,
        limit: usize,
    ) -> Result<usize, WriteError>;
}
