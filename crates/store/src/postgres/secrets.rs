//! Secrets of tenants in SQL.

use async_trait::async_trait;
use wopr_core::TenantId;

use super::{
    PostgresStore,
    fault::Fault,
    round::{Round, value},
    rows,
};
use crate::{ReadError, SecretRow, StoredSecrets, WriteError};

/// Two that are put at once may both find the last place free: the bound is one of size, not of promises.
const PUT: &str = "INSERT INTO secrets (tenant, name, sealed, fingerprint, set_at)
     SELECT $1, $2, $3::bytea, $4, $5::bigint
     WHERE (SELECT count(*) FROM secrets WHERE tenant = $1 AND name <> $2) < $6::bigint
     ON CONFLICT (tenant, name) DO UPDATE SET
         sealed = excluded.sealed, fingerprint = excluded.fingerprint, set_at = excluded.set_at
     RETURNING 1";

const SELECT: &str = "SELECT tenant, name, sealed, fingerprint, set_at FROM secrets
     WHERE tenant = $1 AND ($2::text IS NULL OR name = $2) ORDER BY name";

const REMOVE: &str = "DELETE FROM secrets WHERE tenant = $1 AND name = $2 RETURNING 1";

const KEY_CHECK: &str = "SELECT check_value FROM master_key";

const PUT_KEY_CHECK: &str = "INSERT INTO master_key (one, check_value) VALUES (true, $1)
     ON CONFLICT (one) DO UPDATE SET check_value = excluded.check_value WHERE $2::boolean";

impl PostgresStore {
    async fn read_secrets(&self, tenant: &TenantId, name: Option<&str>) -> Result<Vec<SecretRow>, Fault> {
        let round = || Round::of(SELECT, vec![value(tenant.as_str()), value(name.map(rows::free))]);
        let found = self.pool.read(tenant, round).await?;
        let read = |row| {
            Ok(SecretRow {
                tenant: rows::id(row, 0, TenantId::parse)?,
                name: rows::free_text(row, 1)?,
                sealed: rows::bytes(row, 2)?,
                fingerprint: rows::free_text(row, 3)?,
                set_at: rows::time(row, 4)?,
            })
        };
        found.iter().map(read).collect()
    }
}

#[async_trait]
impl StoredSecrets for PostgresStore {
    async fn put_secret(&self, row: SecretRow, limit: usize) -> Result<bool, WriteError> {
        let round = || {
            Round::of(
                PUT,
                vec![
                    value(row.tenant.as_str()),
                    value(rows::free(&row.name)),
                    value(row.sealed.as_slice()),
                    value(rows::free(&row.fingerprint)),
                    value(row.set_at.millis()),
                    value(rows::limit(limit)),
                ],
            )
        };
        Ok(!self.pool.write(round).await?.is_empty())
    }

    async fn secret(&self, tenant: &TenantId, name: &str) -> Result<Option<SecretRow>, ReadError> {
        Ok(self.read_secrets(tenant, Some(name)).await?.pop())
    }

    async fn secrets(&self, tenant: &TenantId) -> Result<Vec<SecretRow>, ReadError> {
        Ok(self.read_secrets(tenant, None).await?)
    }

    async fn remove_secret(&self, tenant: &TenantId, name: &str) -> Result<bool, WriteError> {
        let round = || Round::of(REMOVE, vec![value(tenant.as_str()), value(rows::free(name))]);
        Ok(!self.pool.write(round).await?.is_empty())
    }

    async fn key_check(&self) -> Result<Option<String>, ReadError> {
        let found = self.pool.learn(|| Round::of(KEY_CHECK, Vec::new())).await?;
        let read = |row| rows::text(row, 0).map(str::to_owned);
        Ok(found.first().map(read).transpose()?)
    }

    async fn put_key_check(&self, check: &str, replaces: bool) -> Result<(), WriteError> {
        let round = || Round::of(PUT_KEY_CHECK, vec![value(check), value(replaces)]);
        self.pool.write(round).await?;
        Ok(())
    }
}
