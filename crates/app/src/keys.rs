//! API keys that callers create for their tenant.

use wopr_core::{Membership, PrincipalId, TenantId, Timestamp};
use wopr_store::KeyRow;

use crate::{App, Caller, Error, GrantedScopes, Scope};

/// A key to create.
#[derive(Debug)]
pub struct NewKey {
    /// Unique within the tenant.
    pub id: String,
    /// Lowercase hex.
    pub secret_sha256: String,
    pub principal: PrincipalId,
    pub scopes: GrantedScopes,
    pub membership: Membership,
}

/// A key as its tenant sees it: without the hash of its secret.
#[derive(Debug, Clone)]
pub struct ApiKey {
    pub id: String,
    pub tenant: TenantId,
    pub principal: PrincipalId,
    /// Scope names, or `*`.
    pub scopes: Vec<String>,
    pub membership: Membership,
    pub created_at: Timestamp,
    pub revoked_at: Option<Timestamp>,
}

impl App {
    /// Adds a key to the caller's tenant. `None` if the tenant already has a key with this id.
    pub async fn add_key(&self, caller: &Caller, new: NewKey) -> Result<Option<ApiKey>, Error> {
        caller.require(Scope::KeysManage)?;
        let NewKey {
            id,
            secret_sha256,
            principal,
            scopes: GrantedScopes(scopes),
            membership,
        } = new;
        let row = KeyRow {
            id,
            secret_sha256,
            tenant: caller.tenant.clone(),
            principal,
            scopes: scopes.names(),
            membership,
            created_at: self.engine.now(),
            revoked_at: None,
        };
        let key = ApiKey::from(row.clone());
        let is_new = self.engine.store().add_key(row).await?;
        Ok(is_new.then_some(key))
    }

    /// The keys of the caller's tenant, including revoked ones.
    pub async fn keys(&self, caller: &Caller) -> Result<Vec<ApiKey>, Error> {
        caller.require(Scope::KeysManage)?;
        let rows = self.engine.store().keys().await?.into_iter();
        let own = rows.filter(|row| row.tenant == caller.tenant);
        Ok(own.map(ApiKey::from).collect())
    }

    /// Revokes a key; a revoked one stays revoked. Returns `false` if the tenant has no such key.
    pub async fn revoke_key(&self, caller: &Caller, id: &str) -> Result<bool, Error> {
        if !self.keys(caller).await?.iter().any(|key| key.id == id) {
            return Ok(false);
        }
        let now = self.engine.now();
        self.engine.store().revoke_key(&caller.tenant, id, now).await?;
        Ok(true)
    }
}

impl From<KeyRow> for ApiKey {
    fn from(row: KeyRow) -> Self {
        let KeyRow {
            id,
            secret_sha256: _,
            tenant,
            principal,
            scopes,
            membership,
            created_at,
            revoked_at,
        } = row;
        Self {
            id,
            tenant,
            principal,
            scopes,
            membership,
            created_at,
            revoked_at,
        }
    }
}
