//! Workflows and keys in SQL.

use rusqlite::{Connection, params};
use wopr_core::{ContentHash, TenantId, Timestamp, WorkflowId};

use super::{fault::Fault, rows};
use crate::{KeyRow, Revision, WorkflowRow};

/// The owner of workflows that every tenant shares; not a valid tenant id.
const SHARED: &str = "";

pub(super) fn put_workflow(conn: &Connection, workflow: &WorkflowRow) -> Result<bool, Fault> {
    let tenant = workflow.tenant.as_ref().map_or(SHARED, TenantId::as_str);
    let stored = conn
        .prepare_cached(
            "INSERT INTO workflows (tenant, id, version, body, registered_at, dialect)
             VALUES (?1, ?2, ?3, ?4, ?5, ?6)
             ON CONFLICT (tenant, id, version) DO NOTHING",
        )?
        .execute(params![
            tenant,
            workflow.id.as_str(),
            workflow.version.as_str(),
            workflow.body,
            workflow.registered_at.millis(),
            workflow.dialect
        ])?;
    conn.prepare_cached(
        "INSERT INTO workflow_heads (tenant, id, version, revision) VALUES (?1, ?2, ?3, ?4)
         ON CONFLICT (tenant, id) DO UPDATE SET version = excluded.version, revision = excluded.revision
         WHERE version <> excluded.version",
    )?
    .execute(params![
        tenant,
        workflow.id.as_str(),
        workflow.version.as_str(),
        next_revision(conn)?
    ])?;
    Ok(stored == 1)
}

pub(super) fn add_workflow(conn: &Connection, workflow: &WorkflowRow) -> Result<bool, Fault> {
    let tenant = workflow.tenant.as_ref().map_or(SHARED, TenantId::as_str);
    let is_taken = conn
        .prepare_cached("SELECT 1 FROM workflow_heads WHERE tenant = ?1 AND id = ?2")?
        .exists(params![tenant, workflow.id.as_str()])?;
    // There is only one writer, so the check and the insert cannot race.
    match is_taken {
        true => Ok(false),
        false => put_workflow(conn, workflow),
    }
}

/// Allocates the revision of a change. A rollback of the change releases it.
fn next_revision(conn: &Connection) -> Result<i64, Fault> {
    conn.prepare_cached("UPDATE last_revision SET revision = revision + 1")?
        .execute([])?;
    let mut statement = conn.prepare_cached("SELECT revision FROM last_revision")?;
    Ok(statement.query_row([], |row| row.get(0))?)
}

pub(super) fn workflow(
    conn: &Connection,
    tenant: &TenantId,
    id: &WorkflowId,
    version: &ContentHash,
) -> Result<Option<WorkflowRow>, Fault> {
    // The shared owner is the empty string and sorts last here, after the tenant's own row.
    let mut statement = conn.prepare_cached(
        "SELECT tenant, id, version, body, registered_at, dialect FROM workflows
         WHERE tenant IN (?1, '') AND id = ?2 AND version = ?3 ORDER BY tenant DESC LIMIT 1",
    )?;
    let mut found = statement.query(params![tenant.as_str(), id.as_str(), version.as_str()])?;
    found.next()?.map(rows::workflow).transpose()
}

pub(super) fn workflows_since(
    conn: &Connection,
    after: Revision,
    max_bytes: usize,
) -> Result<Vec<(Revision, WorkflowRow)>, Fault> {
    // Every change has its own revision, so the index gives the order without sorting.
    let mut statement = conn.prepare_cached(
        "SELECT tenant, id, version, body, registered_at, dialect, revision, length(body)
         FROM workflow_heads JOIN workflows USING (tenant, id, version)
         WHERE revision > ?1 ORDER BY revision",
    )?;
    let mut found = statement.query([rows::int(after.0)])?;
    let (mut workflows, mut left) = (Vec::new(), max_bytes as u64);
    while let Some(row) = found.next()? {
        let n_bytes = rows::count(row, 7)?;
        if n_bytes > left && !workflows.is_empty() {
            break;
        }
        left = left.saturating_sub(n_bytes);
        workflows.push((Revision(rows::count(row, 6)?), rows::workflow(row)?));
    }
    Ok(workflows)
}

pub(super) fn add_key(conn: &Connection, key: &KeyRow) -> Result<bool, Fault> {
    let scopes = serde_json::to_string(&key.scopes).expect("a list of strings is always JSON");
    let membership = serde_json::to_string(&key.membership).expect("lists of strings are always JSON");
    let added = conn
        .prepare_cached(
            "INSERT INTO api_keys
                 (id, secret_sha256, tenant, principal, scopes, membership, created_at, revoked_at, revision)
             VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9) ON CONFLICT (tenant, id) DO NOTHING",
        )?
        .execute(params![
            key.id,
            key.secret_sha256,
            key.tenant.as_str(),
            key.principal.as_str(),
            scopes,
            membership,
            key.created_at.millis(),
            key.revoked_at.map(Timestamp::millis),
            next_revision(conn)?,
        ])?;
    Ok(added == 1)
}

pub(super) fn revoke_key(
    conn: &Connection,
    tenant: &TenantId,
    id: &str,
    at: Timestamp,
) -> Result<bool, Fault> {
    let revoked = conn
        .prepare_cached(
            "UPDATE api_keys SET revoked_at = ?3, revision = ?4
             WHERE tenant = ?1 AND id = ?2 AND revoked_at IS NULL",
        )?
        .execute(params![tenant.as_str(), id, at.millis(), next_revision(conn)?])?;
    Ok(revoked == 1)
}

pub(super) fn keys(conn: &Connection) -> Result<Vec<KeyRow>, Fault> {
    let mut statement = conn.prepare_cached(
        "SELECT id, secret_sha256, tenant, principal, scopes, membership, created_at, revoked_at FROM api_keys
         ORDER BY id, tenant",
    )?;
    let mut found = statement.query([])?;
    let mut keys = Vec::new();
    while let Some(row) = found.next()? {
        keys.push(rows::key(row)?);
    }
    Ok(keys)
}

pub(super) fn keys_since(conn: &Connection, after: Revision) -> Result<Vec<(Revision, KeyRow)>, Fault> {
    let mut statement = conn.prepare_cached(
        "SELECT id, secret_sha256, tenant, principal, scopes, membership, created_at, revoked_at, revision FROM api_keys
         WHERE revision > ?1 ORDER BY revision, id",
    )?;
    let mut found = statement.query([rows::int(after.0)])?;
    let mut keys = Vec::new();
    while let Some(row) = found.next()? {
        keys.push((Revision(rows::count(row, 8)?), rows::key(row)?));
    }
    Ok(keys)
}
