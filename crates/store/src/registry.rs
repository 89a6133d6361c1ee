//! What is registered with a host: workflow versions and API keys.

use async_trait::async_trait;
use wopr_core::{ContentHash, Membership, PrincipalId, TenantId, Timestamp, WorkflowId};

use crate::{ReadError, WriteError};

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct WorkflowRow {
    /// `None` for a workflow that every tenant shares (loaded from a directory).
    pub tenant: Option<TenantId>,
    pub id: WorkflowId,
    pub version: ContentHash,
    /// The workflow language that the definition is written in.
    pub dialect: String,
    /// The definition as registered.
    pub body: Vec<u8>,
    /// When this version was first registered.
    pub registered_at: Timestamp,
}

/// An API key as stored, without the secret.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct KeyRow {
    /// Public id, unique within its tenant.
    pub id: String,
    /// Lowercase hex.
    pub secret_sha256: String,
    pub tenant: TenantId,
    pub principal: PrincipalId,
    /// Scope names, or `*`.
    pub scopes: Vec<String>,
    /// Roles and groups of the principal.
    pub membership: Membership,
    pub created_at: Timestamp,
    pub revoked_at: Option<Timestamp>,
}

/// A position in the history of the registry. Each change gets a larger revision than every change before it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Default)]
pub struct Revision(pub u64);

/// A change of the current version of a workflow.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum WorkflowChange {
    /// This version became the current one.
    Current(WorkflowRow),
    /// The tenant removed its workflow.
    Removed { tenant: TenantId, id: WorkflowId },
}

/// Keeps registrations.
///
/// Other processes may change them. A caller that caches them polls for changes after the largest revision it
/// has seen; no change is missed this way.
#[async_trait]
pub trait Registry: Send + Sync + 'static {
    /// Stores a version and makes it the current one of its (tenant, id). Storing a known version again only
    /// makes it current; storing the current version changes nothing. Returns `true` if the version was new, or
    /// the workflow had been removed.
    async fn put_workflow(&self, row: WorkflowRow) -> Result<bool, WriteError>;

    /// Stores the first version of its (tenant, id) and makes it the current one. Returns `false` and changes nothing if
    /// one is current: of several processes that add one at once, one gets `true`. A commit in doubt may be answered with
    /// `false`, too.
    async fn add_workflow(&self, row: WorkflowRow) -> Result<bool, WriteError>;

    /// Removes a tenant's own workflow: none of its versions is current any more. They stay readable until
    /// [`Retention::forget_workflows`] deletes them, which looks at them at `check_at` for the first time. Returns
    /// `false` and changes nothing if the tenant has no current version. A commit in doubt may be answered with `false`,
    /// too.
    ///
    /// [`Retention::forget_workflows`]: crate::Retention::forget_workflows
    async fn remove_workflow(
        &self,
        tenant: &TenantId,
        id: &WorkflowId,
        check_at: Timestamp,
    ) -> Result<bool, WriteError>;

    /// Reads one version; the tenant's own version wins over a shared one.
    async fn workflow(
        &self,
        tenant: &TenantId,
        id: &WorkflowId,
        version: &ContentHash,
    ) -> Result<Option<WorkflowRow>, ReadError>;

    /// Reads a page of the workflows that changed after a revision, in that order, each as it is now: as many as
    /// fit into `max_bytes` of definitions, and at least one. The page after the last is empty. The default
    /// revision precedes every change.
    async fn workflows_since(
        &self,
        after: Revision,
        max_bytes: usize,
    ) -> Result<Vec<(Revision, WorkflowChange)>, ReadError>;

    /// Adds a key. Returns `false` and changes nothing if the tenant already has a key of that id, revoked or not, or
    /// `limit` others that are not revoked, or `limit` that are.
    async fn add_key(&self, row: KeyRow, limit: usize) -> Result<bool, WriteError>;

    /// Revokes a key of a tenant; `false` if it does not exist or is already revoked.
    async fn revoke_key(&self, tenant: &TenantId, id: &str, at: Timestamp) -> Result<bool, WriteError>;

    /// Reads every key, including revoked ones, ordered by id and tenant.
    async fn keys(&self) -> Result<Vec<KeyRow>, ReadError>;

    /// Reads the keys of a tenant, including revoked ones, ordered by id.
    async fn keys_of(&self, tenant: &TenantId) -> Result<Vec<KeyRow>, ReadError>;

    /// Deletes the keys of a tenant that were revoked before a time. No revision tells of it.
    async fn forget_keys(&self, tenant: &TenantId, revoked_before: Timestamp) -> Result<(), WriteError>;

    /// Reads the keys that were added or revoked after a revision, in that order. The default revision
    /// precedes every change.
    async fn keys_since(&self, after: Revision) -> Result<Vec<(Revision, KeyRow)>, ReadError>;
}
