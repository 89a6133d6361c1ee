//! API keys that callers create for their tenant.
//!
//! Every process of a host keeps the keys of all tenants in memory, so a tenant has so many and no more.

use wopr_core::{Membership, PrincipalId, TenantId, Timestamp};
use wopr_store::KeyRow;

use crate::{App, Caller, Error, GrantedScopes, Scope, start_run::invalid};

/// Maximum number of a tenant's keys that are not revoked, and of those that are.
pub const MAX_KEYS: usize = 1_000;
/// Maximum bytes of a key's roles and groups together.
const MAX_MEMBERSHIP: usize = 8 * 1024;
/// How often a key is tried to be added while other requests change the tenant's keys.
const TRIES: u32 = 4;
/// After how long a client tries again whose key was not added.
const RETRY_AFTER_MS: u64 = 1_000;
/// How long a revoked key is remembered. A process that has not read the keys for an hour reads all of them, so none
/// misses that a key was revoked.
pub const REVOKED_FOR_MS: i64 = 7 * 24 * 60 * 60 * 1_000;

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

/// What became of a key to create.
#[derive(Debug)]
pub enum AddedKey {
    Added(ApiKey),
    /// The tenant has a key with this id, or had one not long ago.
    Taken,
    /// The tenant has as many as it may have.
    Full,
    /// The tenant has revoked as many of late as it may.
    FullOfRevoked,
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

#[derive(Debug)]
pub struct KeyPage {
    pub keys: Vec<ApiKey>,
    pub has_more: bool,
}

impl App {
    /// Adds a key to the caller's tenant.
    pub async fn add_key(&self, caller: &Caller, new: NewKey) -> Result<AddedKey, Error> {
        caller.require(Scope::KeysManage)?;
        let Membership { roles, groups } = &new.membership;
        let n_bytes: usize = roles.iter().chain(groups).map(String::len).sum();
        if n_bytes > MAX_MEMBERSHIP {
            let rule = format!("take {n_bytes} bytes together with groups, and {MAX_MEMBERSHIP} is the most");
            return Err(invalid("roles", rule).into());
        }
        let (store, now) = (self.engine.store(), self.engine.now());
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
            created_at: now,
            revoked_at: None,
        };
        let forgotten = Timestamp::from_millis(now.millis().saturating_sub(REVOKED_FOR_MS));
        for _ in 0..TRIES {
            // Requests that are refused do not reach the store's writer.
            let known = store.keys_of(&caller.tenant).await?;
            let kept = |key: &&KeyRow| key.revoked_at.is_none_or(|at| at >= forgotten);
            let n_kept = known.iter().filter(kept).count();
            if let Some(refused) = refusal(&known, n_kept, &row.id) {
                return Ok(refused);
            }
            if n_kept < known.len() {
                store.forget_keys(&caller.tenant, forgotten).await?;
            }
            if store.add_key(row.clone(), MAX_KEYS).await? {
                return Ok(AddedKey::Added(row.into()));
            }
            // Another request took the id or the last place meanwhile.
        }
        Err(Error::Busy {
            retry_after_ms: RETRY_AFTER_MS,
        })
    }

    /// A page of the keys of the caller's tenant, including revoked ones, by their ids: those after one, which may be
    /// gone by now.
    pub async fn keys(&self, caller: &Caller, after: Option<&str>, limit: usize) -> Result<KeyPage, Error> {
        caller.require(Scope::KeysManage)?;
        let mut rows = self.engine.store().keys_of(&caller.tenant).await?;
        // Stores may have an order of their own.
        rows.sort_unstable_by(|one, other| one.id.cmp(&other.id));
        let begin = after.map_or(0, |after| rows.partition_point(|row| row.id.as_str() <= after));
        let has_more = rows.len() - begin > limit;
        let keys = rows.into_iter().skip(begin).take(limit);
        Ok(KeyPage {
            keys: keys.map(ApiKey::from).collect(),
            has_more,
        })
    }

    /// Revokes a key; a revoked one stays revoked. Returns `false` if the tenant has no such key.
    pub async fn revoke_key(&self, caller: &Caller, id: &str) -> Result<bool, Error> {
        caller.require(Scope::KeysManage)?;
        let (store, now) = (self.engine.store(), self.engine.now());
        if !store
            .keys_of(&caller.tenant)
            .await?
            .iter()
            .any(|key| key.id == id)
        {
            return Ok(false);
        }
        store.revoke_key(&caller.tenant, id, now).await?;
        Ok(true)
    }
}

/// Why a tenant with these keys gets no other one, if so. Of those that are revoked, some are about to be forgotten.
fn refusal(known: &[KeyRow], n_kept: usize, id: &str) -> Option<AddedKey> {
    let n_valid = known.iter().filter(|key| key.revoked_at.is_none()).count();
    if known.iter().any(|key| key.id == id) {
        Some(AddedKey::Taken)
    } else if n_valid >= MAX_KEYS {
        Some(AddedKey::Full)
    } else if n_kept - n_valid >= MAX_KEYS {
        Some(AddedKey::FullOfRevoked)
    } else {
        None
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
