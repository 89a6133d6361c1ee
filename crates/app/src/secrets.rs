//! Secrets that a tenant keeps with this host.

use wopr_core::Timestamp;
use wopr_store::SecretRow;

use crate::{App, Caller, Error, Scope};

/// Most secrets of one tenant.
pub const MAX_SECRETS: usize = 100;

/// A secret whose value is encrypted.
#[derive(Debug)]
pub struct SealedSecret {
    /// Unique within the tenant.
    pub name: String,
    pub sealed: Vec<u8>,
    /// Callers see this in place of the value.
    pub fingerprint: String,
}

/// A secret as its tenant sees it: without its value.
#[derive(Debug, Clone)]
pub struct ShownSecret {
    pub name: String,
    pub fingerprint: String,
    pub set_at: Timestamp,
}

impl App {
    /// Sets a secret of the caller's tenant, in the place of one with the same name. `None` if the tenant has as many
    /// as it may have.
    pub async fn set_secret(
        &self,
        caller: &Caller,
        secret: SealedSecret,
    ) -> Result<Option<ShownSecret>, Error> {
        caller.require(Scope::SecretsManage)?;
        let SealedSecret {
            name,
            sealed,
            fingerprint,
        } = secret;
        let row = SecretRow {
            tenant: caller.tenant.clone(),
            name,
            sealed,
            fingerprint,
            set_at: self.engine.now(),
        };
        let shown = ShownSecret::from(row.clone());
        let is_set = self.engine.store().put_secret(row, MAX_SECRETS).await?;
        Ok(is_set.then_some(shown))
    }

    /// The secrets of the caller's tenant, by name.
    pub async fn secrets(&self, caller: &Caller) -> Result<Vec<ShownSecret>, Error> {
        caller.require(Scope::SecretsManage)?;
        let rows = self.engine.store().secrets(&caller.tenant).await?;
        Ok(rows.into_iter().map(ShownSecret::from).collect())
    }

    /// Returns `false` if the caller's tenant has no secret of that name.
    pub async fn remove_secret(&self, caller: &Caller, name: &str) -> Result<bool, Error> {
        caller.require(Scope::SecretsManage)?;
        Ok(self.engine.store().remove_secret(&caller.tenant, name).await?)
    }
}

impl From<SecretRow> for ShownSecret {
    fn from(row: SecretRow) -> Self {
        let SecretRow {
            tenant: _,
            name,
            sealed: _,
            fingerprint,
            set_at,
        } = row;
        Self {
            name,
            fingerprint,
            set_at,
        }
    }
}
