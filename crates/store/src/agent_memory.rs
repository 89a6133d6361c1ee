//! What agents remember: entries by tenant and scope, kept in versions.
//!
//! An append writes rows with the events that say so; a row is never changed. The latest row of an id is its
//! value, by the time at which it was written, then by run and event: an order on which all writers agree without
//! asking each other. A row without content removes the entry. So the entries of a scope can be read as of any
//! earlier time, for as long as the rows are kept.
//!
//! A scope that belongs to a run is removed with it: see [`crate::Retention`].

use async_trait::async_trait;
use wopr_core::{RunId, RunKey, Seq, TenantId, Timestamp};

use crate::{ReadError, WriteError};

/// One version of an entry, as an append writes it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct MemoryRow {
    pub scope: String,
    /// Unique in the scope.
    pub id: String,
    /// The event that wrote it.
    pub seq: Seq,
    /// When that was.
    pub at: Timestamp,
    /// `None` removes the entry.
    pub content: Option<String>,
    pub tags: Vec<String>,
    pub created_at: Timestamp,
    /// From then on, the entry is not returned.
    pub expires_at: Option<Timestamp>,
    /// Somebody outside this host may have written it.
    pub is_untrusted: bool,
}

impl MemoryRow {
    /// Its size in bytes, as the shares of tenants count it.
    #[must_use]
    pub fn size(&self) -> usize {
        let tags: usize = self.tags.iter().map(String::len).sum();
        self.scope.len() + self.id.len() + tags + self.content.as_ref().map_or(0, String::len)
    }
}

/// An entry as read.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct MemoryEntry {
    pub id: String,
    pub content: String,
    pub tags: Vec<String>,
    pub created_at: Timestamp,
    pub expires_at: Option<Timestamp>,
    pub is_untrusted: bool,
    /// The run that wrote it.
    pub run: RunId,
    /// The event that wrote it, and when that was.
    pub seq: Seq,
    pub written_at: Timestamp,
}

/// Which entries of a scope are read.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct MemoryQuery {
    pub scope: String,
    /// Only this entry.
    pub id: Option<String>,
    /// Only entries with this tag.
    pub tag: Option<String>,
    /// Entries that have expired by then are left out.
    pub now: Timestamp,
    /// Only what was written by then.
    pub as_of: Option<Timestamp>,
    pub limit: usize,
}

/// How much a tenant keeps.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct MemoryUse {
    /// All its rows, earlier versions included.
    pub rows: u64,
    /// Their bytes, as [`MemoryRow::size`] counts them.
    pub bytes: u64,
    /// The ids of one scope.
    pub in_scope: u64,
}

/// Room in what a tenant keeps.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct MemoryRoom {
    pub rows: u64,
    /// As [`MemoryRow::size`] counts them.
    pub bytes: u64,
}

impl MemoryRoom {
    /// Whether it is at least as much as what is wanted.
    #[must_use]
    pub const fn covers(&self, wanted: &Self) -> bool {
        self.rows >= wanted.rows && self.bytes >= wanted.bytes
    }
}

/// Reads and tidies what agents remember. What is written comes with [`crate::Batch::memory`].
#[async_trait]
pub trait AgentMemory: Send + Sync + 'static {
    /// Reads entries, those written last first; ties by id.
    async fn memory(&self, tenant: &TenantId, query: &MemoryQuery) -> Result<Vec<MemoryEntry>, ReadError>;

    /// Counts the rows of a tenant, and the ids in one of its scopes.
    async fn memory_use(&self, tenant: &TenantId, scope: &str) -> Result<MemoryUse, ReadError>;

    /// The next tenant, in the order of their ids, of which something is stored.
    async fn next_remembering(&self, after: Option<&TenantId>) -> Result<Option<TenantId>, ReadError>;

    /// Deletes at most `limit` rows of a tenant that nobody can read any more: what a newer row replaced before `before`, and
    /// what has expired at `now` or was removed before `before` and hides no earlier version. Returns how many.
    async fn forget_memory(
        &self,
        tenant: &TenantId,
        now: Timestamp,
        before: Timestamp,
        limit: usize,
    ) -> Result<usize, WriteError>;

    /// Deletes all rows of scopes of the tenant that belong to runs ([`RunId::memory_scope`]) which have ended, or are no
    /// longer there. Those that ended first go first, until as many rows and bytes are free as are wanted, or `limit`
    /// rows are. Returns how many rows there were, 0 if there is no such scope.
    async fn forget_ended_scopes(
        &self,
        tenant: &TenantId,
        wanted: MemoryRoom,
        limit: usize,
    ) -> Result<usize, WriteError>;

    /// Whether [`Self::forget_ended_scopes`] has deleted what the run remembered in its own scope.
    async fn has_forgotten(&self, run: &RunKey) -> Result<bool, ReadError>;
}
