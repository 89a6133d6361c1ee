//! API keys that callers make for their tenant.

use wopr_core::TenantId;
use wopr_store::KeyRow;

use crate::{App, Error};

impl App {
    /// Adds a key; false if the tenant has one of its id.
    pub async fn add_key(&self, row: KeyRow) -> Result<bool, Error> {
        Ok(self.engine.store().add_key(row).await?)
    }

    /// The keys of a tenant, revoked ones too.
    pub async fn keys(&self, tenant: &TenantId) -> Result<Vec<KeyRow>, Error> {
        let mut rows = self.engine.store().keys().await?;
        rows.retain(|row| row.tenant == *tenant);
        Ok(rows)
    }

    /// Revokes a key; revoking it again changes nothing.
    pub async fn revoke_key(&self, tenant: &TenantId, id: &str) -> Result<(), Error> {
        let now = self.engine.now();
        self.engine.store().revoke_key(tenant, id, now).await?;
        Ok(())
    }
}
