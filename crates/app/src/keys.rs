//! API keys that callers create for their tenant.

use wopr_core::TenantId;
use wopr_store::KeyRow;

use crate::{App, Error};

impl App {
    /// Adds a key. Returns `false` if the tenant already has a key with this id.
    pub async fn add_key(&self, row: KeyRow) -> Result<bool, Error> {
        Ok(self.engine.store().add_key(row).await?)
    }

    /// The keys of a tenant, including revoked ones.
    pub async fn keys(&self, tenant: &TenantId) -> Result<Vec<KeyRow>, Error> {
        let mut rows = self.engine.store().keys().await?;
        rows.retain(|row| row.tenant == *tenant);
        Ok(rows)
    }

    /// Revokes a key. Does nothing if it is already revoked.
    pub async fn revoke_key(&self, tenant: &TenantId, id: &str) -> Result<(), Error> {
        let now = self.engine.now();
        self.engine.store().revoke_key(tenant, id, now).await?;
        Ok(())
    }
}
