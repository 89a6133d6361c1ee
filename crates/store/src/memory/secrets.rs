//! Secrets of tenants, in memory.

use async_trait::async_trait;
use wopr_core::TenantId;

use super::MemoryStore;
use crate::{ReadError, SecretRow, StoredSecrets, WriteError};

#[async_trait]
impl StoredSecrets for MemoryStore {
    async fn put_secret(&self, row: SecretRow, limit: usize) -> Result<bool, WriteError> {
        let mut state = self.state.lock();
        let place = (row.tenant.clone(), row.name.clone());
        let own = state.secrets.keys().filter(|(tenant, _)| *tenant == row.tenant);
        let n_others = own.filter(|(_, name)| *name != row.name).count();
        if n_others >= limit {
            return Ok(false);
        }
        state.secrets.insert(place, row);
        Ok(true)
    }

    async fn secret(&self, tenant: &TenantId, name: &str) -> Result<Option<SecretRow>, ReadError> {
        let state = self.state.lock();
        Ok(state.secrets.get(&(tenant.clone(), name.to_owned())).cloned())
    }

    async fn secrets(&self, tenant: &TenantId) -> Result<Vec<SecretRow>, ReadError> {
        let state = self.state.lock();
        let own = state.secrets.values().filter(|row| row.tenant == *tenant);
        Ok(own.cloned().collect())
    }

    async fn remove_secret(&self, tenant: &TenantId, name: &str) -> Result<bool, WriteError> {
        let mut state = self.state.lock();
        Ok(state.secrets.remove(&(tenant.clone(), name.to_owned())).is_some())
    }

    async fn key_check(&self) -> Result<Option<String>, ReadError> {
        Ok(self.state.lock().key_check.clone())
    }

    async fn put_key_check(&self, check: &str, replaces: bool) -> Result<(), WriteError> {
        let mut state = self.state.lock();
        if replaces || state.key_check.is_none() {
            state.key_check = Some(check.to_owned());
        }
        Ok(())
    }
}
