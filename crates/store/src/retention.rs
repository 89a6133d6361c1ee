//! Removal of runs: at one moment for every reader, in steps for the database.
//!
//! A run is *marked* with the root of its tree. It is gone for every reader and every append from the moment both
//! it and that root are marked, so whoever marks the root last lets the whole tree go at once, however large it
//! is. Rows of runs that are gone are *swept* in steps that a busy store does not notice; a crash between any two
//! steps leaves nothing that can be seen half. Which runs make a tree, and when a tree has had its time, is not
//! decided here. Records of requests are not touched: they have an expiry of their own.

use async_trait::async_trait;
use wopr_core::{RunId, RunKey, TenantId, Timestamp};

use crate::{ReadError, TaskCursor, WriteError};

/// A run to take out, with the root it goes with. A root goes with itself.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Removal {
    /// The run.
    pub run: RunId,
    /// The root of its tree.
    pub root: RunId,
}

/// Runs without a parent that have ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct EndedRoots {
    /// The runs, the longest ended first.
    pub roots: Vec<RunId>,
    /// Where to go on; `None` if there is nothing further.
    pub next: Option<TaskCursor>,
}

/// A run that another created.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Child {
    /// Who created it.
    pub parent: RunId,
    /// The run.
    pub run: RunId,
    /// Its last append, if it has ended.
    pub ended: Option<Timestamp>,
}

/// What a step of sweeping did.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Swept {
    /// Runs of which nothing is left now.
    pub runs: usize,
    /// Rows deleted. With none of either, nothing was left to do.
    pub rows: usize,
}

/// Taking runs out.
#[async_trait]
pub trait Retention: Send + Sync + 'static {
    /// The first tenant after the given one that has runs.
    async fn next_tenant(&self, after: Option<&TenantId>) -> Result<Option<TenantId>, ReadError>;

    /// Looks at the tasks of a tenant that last changed before a time, the longest unchanged first, after the given
    /// place: at `limit` of them at most, whatever they are. Those of runs that have ended and have no parent are
    /// the answer.
    async fn ended_roots(
        &self,
        tenant: &TenantId,
        before: Timestamp,
        after: Option<&TaskCursor>,
        limit: usize,
    ) -> Result<EndedRoots, ReadError>;

    /// The children of some runs, by parent and id, after the given one, at most `limit`.
    async fn children(
        &self,
        tenant: &TenantId,
        parents: &[RunId],
        after: Option<&Child>,
        limit: usize,
    ) -> Result<Vec<Child>, ReadError>;

    /// Marks runs, all at one moment. What is not there or has not ended is not marked, what is marked stays so.
    async fn remove(&self, tenant: &TenantId, removals: &[Removal]) -> Result<(), WriteError>;

    /// Roots that are not marked although runs that go with them are, at most `limit`: whoever began that did not
    /// finish it, or is about to.
    async fn begun_removals(&self, limit: usize) -> Result<Vec<RunKey>, ReadError>;

    /// Deletes about `limit` rows of runs that are gone.
    async fn sweep(&self, limit: usize) -> Result<Swept, WriteError>;
}
