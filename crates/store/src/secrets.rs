//! Secrets that tenants keep with a host: their values are encrypted before they come here.

use async_trait::async_trait;
use wopr_core::{TenantId, Timestamp};

use crate::{ReadError, WriteError};

/// A secret of a tenant, as stored.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SecretRow {
    pub tenant: TenantId,
    /// Unique within the tenant.
    pub name: String,
    /// The encrypted value.
    pub sealed: Vec<u8>,
    /// Callers see this in place of the value.
    pub fingerprint: String,
    pub set_at: Timestamp,
}

/// Keeps the secrets of tenants.
#[async_trait]
pub trait StoredSecrets: Send + Sync + 'static {
    /// Stores a secret, in the place of one with the same name. Returns `false` and changes nothing if the tenant has
    /// `limit` others already.
    async fn put_secret(&self, row: SecretRow, limit: usize) -> Result<bool, WriteError>;

    async fn secret(&self, tenant: &TenantId, name: &str) -> Result<Option<SecretRow>, ReadError>;

    /// Reads all secrets of a tenant, ordered by name.
    async fn secrets(&self, tenant: &TenantId) -> Result<Vec<SecretRow>, ReadError>;

    /// Returns `false` if the tenant has no secret of that name.
    async fn remove_secret(&self, tenant: &TenantId, name: &str) -> Result<bool, WriteError>;

    /// The check value of the master key that all hosts of this store have. `None` before there was a host.
    async fn key_check(&self) -> Result<Option<String>, ReadError>;

    /// Stores the check value of the master key if there is none, or in its place if `replaces`.
    async fn put_key_check(&self, check: &str, replaces: bool) -> Result<(), WriteError>;
}
