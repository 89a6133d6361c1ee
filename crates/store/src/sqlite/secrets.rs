//! Secrets of tenants in SQL.

use async_trait::async_trait;
use rusqlite::{Connection, params};
use wopr_core::TenantId;

use super::{SqliteStore, fault::Fault, guest::Guest, lanes::Lane, queue::SMALL, rows};
use crate::{ReadError, SecretRow, StoredSecrets, WriteError};

const PUT: &str = "\
    INSERT INTO secrets (tenant, name, sealed, fingerprint, set_at)
     SELECT ?1, ?2, ?3, ?4, ?5
     WHERE (SELECT count(*) FROM secrets WHERE tenant = ?1 AND name <> ?2) < ?6
     ON CONFLICT (tenant, name) DO UPDATE SET
         sealed = excluded.sealed, fingerprint = excluded.fingerprint, set_at = excluded.set_at";

const SELECT: &str = "\
    SELECT tenant, name, sealed, fingerprint, set_at FROM secrets
     WHERE tenant = ?1 AND (?2 IS NULL OR name = ?2) ORDER BY name";

const REMOVE: &str = "DELETE FROM secrets WHERE tenant = ?1 AND name = ?2";

const KEY_CHECK: &str = "SELECT check_value FROM master_key";

const PUT_KEY_CHECK: &str = "\
    INSERT INTO master_key (one, check_value) VALUES (1, ?1)
     ON CONFLICT (one) DO UPDATE SET check_value = excluded.check_value WHERE ?2";

fn key_check(conn: &Connection) -> Result<Option<String>, Fault> {
    let mut statement = conn.prepare(KEY_CHECK)?;
    let mut found = statement.query([])?;
    match found.next()? {
        Some(row) => Ok(Some(rows::text(row, 0)?.to_owned())),
        None => Ok(None),
    }
}

fn put_key_check(conn: &Connection, check: &str, replaces: bool) -> Result<(), Fault> {
    conn.prepare(PUT_KEY_CHECK)?.execute(params![check, replaces])?;
    Ok(())
}

fn put(conn: &Connection, row: &SecretRow, limit: usize) -> Result<bool, Fault> {
    let n_put = conn.prepare_cached(PUT)?.execute(params![
        row.tenant.as_str(),
        row.name,
        row.sealed,
        row.fingerprint,
        row.set_at.millis(),
        rows::limit(limit),
    ])?;
    Ok(n_put == 1)
}

fn read(conn: &Connection, tenant: &TenantId, name: Option<&str>) -> Result<Vec<SecretRow>, Fault> {
    let mut statement = conn.prepare_cached(SELECT)?;
    let mut found = statement.query(params![tenant.as_str(), name])?;
    let mut secrets = Vec::new();
    while let Some(row) = found.next()? {
        secrets.push(SecretRow {
            tenant: rows::id(row, 0, TenantId::parse)?,
            name: rows::text(row, 1)?.to_owned(),
            sealed: rows::bytes(row, 2)?,
            fingerprint: rows::text(row, 3)?.to_owned(),
            set_at: rows::time(row, 4)?,
        });
    }
    Ok(secrets)
}

fn remove(conn: &Connection, tenant: &TenantId, name: &str) -> Result<bool, Fault> {
    let n_removed = conn
        .prepare_cached(REMOVE)?
        .execute(params![tenant.as_str(), name])?;
    Ok(n_removed == 1)
}

#[async_trait]
impl StoredSecrets for SqliteStore {
    async fn put_secret(&self, row: SecretRow, limit: usize) -> Result<bool, WriteError> {
        self.write(SMALL, move |conn| put(conn, &row, limit)).await
    }

    async fn secret(&self, tenant: &TenantId, name: &str) -> Result<Option<SecretRow>, ReadError> {
        let (tenant, name) = (tenant.clone(), name.to_owned());
        let found = self.read(Lane::Look(tenant.clone()), move |conn| {
            read(conn, &tenant, Some(&name))
        });
        Ok(found.await?.pop())
    }

    async fn secrets(&self, tenant: &TenantId) -> Result<Vec<SecretRow>, ReadError> {
        let tenant = tenant.clone();
        self.read(Lane::Look(tenant.clone()), move |conn| read(conn, &tenant, None))
            .await
    }

    async fn remove_secret(&self, tenant: &TenantId, name: &str) -> Result<bool, WriteError> {
        let (tenant, name) = (tenant.clone(), name.to_owned());
        self.write(SMALL, move |conn| remove(conn, &tenant, &name)).await
    }

    async fn key_check(&self) -> Result<Option<String>, ReadError> {
        self.read(Lane::Work, key_check).await
    }

    async fn put_key_check(&self, check: &str, replaces: bool) -> Result<(), WriteError> {
        let check = check.to_owned();
        self.write(SMALL, move |conn| put_key_check(conn, &check, replaces))
            .await
    }
}

#[async_trait]
impl StoredSecrets for Guest {
    async fn put_secret(&self, row: SecretRow, limit: usize) -> Result<bool, WriteError> {
        self.write(|conn| put(conn, &row, limit))
    }

    async fn secret(&self, tenant: &TenantId, name: &str) -> Result<Option<SecretRow>, ReadError> {
        Ok(self.read(|conn| read(conn, tenant, Some(name)))?.pop())
    }

    async fn secrets(&self, tenant: &TenantId) -> Result<Vec<SecretRow>, ReadError> {
        self.read(|conn| read(conn, tenant, None))
    }

    async fn remove_secret(&self, tenant: &TenantId, name: &str) -> Result<bool, WriteError> {
        self.write(|conn| remove(conn, tenant, name))
    }

    async fn key_check(&self) -> Result<Option<String>, ReadError> {
        self.read(key_check)
    }

    async fn put_key_check(&self, check: &str, replaces: bool) -> Result<(), WriteError> {
        self.write(|conn| put_key_check(conn, check, replaces))
    }
}
