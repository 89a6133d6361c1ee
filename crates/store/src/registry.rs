//! What is registered with a host: workflow versions and API keys.

use async_trait::async_trait;
use wopr_core::{ContentHash, Membership, PrincipalId, TenantId, Timestamp, WorkflowId};

use crate::{ReadError, WriteError};

/// One version of a workflow.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct WorkflowRow {
    /// The owner; `None` is shared by every tenant (loaded from a directory).
    pub tenant: Option<TenantId>,
    /// The workflow.
    pub id: WorkflowId,
    /// The version.
    pub version: ContentHash,
    /// The definition as registered.
    pub body: Vec<u8>,
    /// When this version was first registered.
    pub registered_at: Timestamp,
}

/// An API key as stored: never the secret.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct KeyRow {
    /// Public id, unique within its tenant.
    pub id: String,
    /// Lowercase hex SHA-256 of the secret.
    pub secret_sha256: String,
    /// The tenant it opens.
    pub tenant: TenantId,
    /// Who uses it.
    pub principal: PrincipalId,
    /// Scope names, or `*`.
    pub scopes: Vec<String>,
    /// Roles and groups of who uses it.
    pub membership: Membership,
    /// When it was made.
    pub created_at: Timestamp,
    /// When it was revoked.
    pub revoked_at: Option<Timestamp>,
}

/// A place in the history of the registry. Each change has a larger one than every change before it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Default)]
pub struct Revision(pub u64);

/// Keeping registrations.
///
/// Other processes may change them: who keeps a copy asks now and then for what came after the largest revision it
/// has seen, and misses nothing that way.
#[async_trait]
pub trait Registry: Send + Sync + 'static {
    /// Stores a version and makes it the current one of its (tenant, id). Storing a known version again only makes
    /// it current, and storing the current one changes nothing. Returns whether the version was new.
    async fn put_workflow(&self, row: WorkflowRow) -> Result<bool, WriteError>;

    /// Reads one version; a tenant's own wins over a shared one.
    async fn workflow(
        &self,
        tenant: &TenantId,
        id: &WorkflowId,
        version: &ContentHash,
    ) -> Result<Option<WorkflowRow>, ReadError>;

    /// Reads a page of the current versions of every (tenant, id) that became current after a revision, in that order:
    /// as many as fit within `max_bytes` of definitions, and at least one. The page after the last is empty. The
    /// default revision is before all.
    async fn workflows_since(
        &self,
        after: Revision,
        max_bytes: usize,
    ) -> Result<Vec<(Revision, WorkflowRow)>, ReadError>;

    /// Adds a key; `false` if its tenant already has one of that id, revoked or not, which stays as it is.
    async fn add_key(&self, row: KeyRow) -> Result<bool, WriteError>;

    /// Revokes a key of a tenant; `false` if there is none or it is revoked already.
    async fn revoke_key(&self, tenant: &TenantId, id: &str, at: Timestamp) -> Result<bool, WriteError>;

    /// Reads every key, revoked ones too, by id and tenant.
    async fn keys(&self) -> Result<Vec<KeyRow>, ReadError>;

    /// Reads the keys that were stored or revoked after a revision, in that order. The default revision is before all.
    async fn keys_since(&self, after: Revision) -> Result<Vec<(Revision, KeyRow)>, ReadError>;
}
