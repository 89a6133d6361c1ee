//! Workflows and keys in SQL.

use rusqlite::{Connection, params};
use wopr_core::{ContentHash, TenantId, Timestamp, WorkflowId};

use super::{fault::Fault, rows};
use crate::{KeyRow, Revision, WorkflowChange, WorkflowRow};

/// The owner of workflows that every tenant shares; not a valid tenant id.
const SHARED: &str = "";

const SET_HEAD: &str = "INSERT INTO workflow_heads (tenant, id, version, revision) VALUES (?1, ?2, ?3, ?4)
     ON CONFLICT (tenant, id) DO UPDATE
         SET version = excluded.version, revision = excluded.revision, check_at = NULL, is_unused = 0
         WHERE version IS NOT excluded.version";

const REMOVE_HEAD: &str =
    "UPDATE workflow_heads SET version = NULL, revision = ?3, check_at = ?4, is_unused = 0
     WHERE tenant = ?1 AND id = ?2 AND version IS NOT NULL";

/// Every change has its own revision, so the index gives the order without sorting.
const WORKFLOWS_SINCE: &str =
    "SELECT h.tenant, h.id, h.version, w.body, w.registered_at, w.dialect, h.revision, coalesce(length(w.body), 0)
     FROM workflow_heads AS h
         LEFT JOIN workflows AS w ON w.tenant = h.tenant AND w.id = h.id AND w.version = h.version
     WHERE h.revision > ?1 ORDER BY h.revision LIMIT 256";

const DUE_HEADS: &str = "SELECT tenant, id, is_unused FROM workflow_heads WHERE check_at <= ?1
     ORDER BY check_at LIMIT ?2";

const HAS_RUNS: &str = "SELECT 1 FROM runs INDEXED BY runs_by_workflow WHERE tenant = ?1 AND workflow = ?2";

const CHECK_HEAD: &str =
    "UPDATE workflow_heads SET check_at = ?3, is_unused = ?4 WHERE tenant = ?1 AND id = ?2";

const DELETE_VERSIONS: &str = "DELETE FROM workflows WHERE rowid IN (
         SELECT rowid FROM workflows WHERE tenant = ?1 AND id = ?2 LIMIT ?3)";

pub(super) fn put_workflow(conn: &Connection, workflow: &WorkflowRow) -> Result<bool, Fault> {
    let tenant = workflow.tenant.as_ref().map_or(SHARED, TenantId::as_str);
    let is_current = has_current(conn, tenant, &workflow.id)?;
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
    conn.prepare_cached(SET_HEAD)?.execute(params![
        tenant,
        workflow.id.as_str(),
        workflow.version.as_str(),
        next_revision(conn)?
    ])?;
    Ok(stored == 1 || !is_current)
}

pub(super) fn add_workflow(conn: &Connection, workflow: &WorkflowRow) -> Result<bool, Fault> {
    let tenant = workflow.tenant.as_ref().map_or(SHARED, TenantId::as_str);
    // There is only one writer, so the check and the insert cannot race.
    match has_current(conn, tenant, &workflow.id)? {
        true => Ok(false),
        false => put_workflow(conn, workflow),
    }
}

/// Whether a workflow is registered, and not removed.
fn has_current(conn: &Connection, tenant: &str, id: &WorkflowId) -> Result<bool, Fault> {
    let sql = "SELECT 1 FROM workflow_heads WHERE tenant = ?1 AND id = ?2 AND version IS NOT NULL";
    Ok(conn.prepare_cached(sql)?.exists(params![tenant, id.as_str()])?)
}

pub(super) fn remove_workflow(
    conn: &Connection,
    tenant: &TenantId,
    id: &WorkflowId,
    check_at: Timestamp,
) -> Result<bool, Fault> {
    let removed = conn.prepare_cached(REMOVE_HEAD)?.execute(params![
        tenant.as_str(),
        id.as_str(),
        next_revision(conn)?,
        check_at.millis()
    ])?;
    Ok(removed == 1)
}

pub(super) fn forget_workflows(
    conn: &Connection,
    now: Timestamp,
    next_check: Timestamp,
    limit: usize,
) -> Result<usize, Fault> {
    let mut due: Vec<(String, String, bool)> = Vec::new();
    {
        let mut statement = conn.prepare_cached(DUE_HEADS)?;
        let mut found = statement.query(params![now.millis(), rows::limit(limit)])?;
        while let Some(row) = found.next()? {
            due.push((row.get(0)?, row.get(1)?, row.get(2)?));
        }
    }
    let mut n_changed = 0;
    for (tenant, id, was_unused) in due {
        if n_changed >= limit {
            break;
        }
        let has_runs = conn.prepare_cached(HAS_RUNS)?.exists(params![tenant, id])?;
        let check_at = if was_unused && !has_runs {
            let left = rows::limit(limit - n_changed);
            let deleted = conn
                .prepare_cached(DELETE_VERSIONS)?
                .execute(params![tenant, id, left])?;
            n_changed += deleted;
            // Where versions were deleted, more may be left: the workflow stays due.
            match deleted {
                0 => None,
                _ => continue,
            }
        } else {
            Some(next_check.millis())
        };
        let check = params![tenant, id, check_at, !has_runs];
        n_changed += conn.prepare_cached(CHECK_HEAD)?.execute(check)?;
    }
    Ok(n_changed)
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
) -> Result<Vec<(Revision, WorkflowChange)>, Fault> {
    let mut statement = conn.prepare_cached(WORKFLOWS_SINCE)?;
    let mut found = statement.query([rows::int(after.0)])?;
    let (mut workflows, mut left) = (Vec::new(), max_bytes as u64);
    while let Some(row) = found.next()? {
        let n_bytes = rows::count(row, 7)?;
        if n_bytes > left && !workflows.is_empty() {
            break;
        }
        left = left.saturating_sub(n_bytes);
        let change = match rows::opt_text(row, 2)? {
            Some(_) => WorkflowChange::Current(rows::workflow(row)?),
            None => WorkflowChange::Removed {
                tenant: rows::id(row, 0, TenantId::parse)?,
                id: rows::id(row, 1, WorkflowId::parse)?,
            },
        };
        workflows.push((Revision(rows::count(row, 6)?), change));
    }
    Ok(workflows)
}

pub(super) fn add_key(conn: &Connection, key: &KeyRow, limit: usize) -> Result<bool, Fault> {
    let scopes = serde_json::to_string(&key.scopes).expect("a list of strings is always JSON");
    let membership = serde_json::to_string(&key.membership).expect("lists of strings are always JSON");
    let added = conn
        .prepare_cached(
            "INSERT INTO api_keys
                 (id, secret_sha256, tenant, principal, scopes, membership, created_at, revoked_at, revision)
             SELECT ?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9
             WHERE (SELECT count(*) FROM api_keys WHERE tenant = ?3 AND revoked_at IS NULL) < ?10
                 AND (SELECT count(*) FROM api_keys WHERE tenant = ?3 AND revoked_at IS NOT NULL) < ?10
             ON CONFLICT (tenant, id) DO NOTHING",
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
            rows::limit(limit),
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

pub(super) fn keys_of(conn: &Connection, tenant: &TenantId) -> Result<Vec<KeyRow>, Fault> {
    let mut statement = conn.prepare_cached(
        "SELECT id, secret_sha256, tenant, principal, scopes, membership, created_at, revoked_at FROM api_keys
         WHERE tenant = ?1 ORDER BY id",
    )?;
    let mut found = statement.query([tenant.as_str()])?;
    let mut keys = Vec::new();
    while let Some(row) = found.next()? {
        keys.push(rows::key(row)?);
    }
    Ok(keys)
}

pub(super) fn forget_keys(
    conn: &Connection,
    tenant: &TenantId,
    revoked_before: Timestamp,
) -> Result<(), Fault> {
    conn.prepare_cached("DELETE FROM api_keys WHERE tenant = ?1 AND revoked_at < ?2")?
        .execute(params![tenant.as_str(), revoked_before.millis()])?;
    Ok(())
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sqlite::schema::tests::{assert_indexed, database};

    #[test]
    fn polling_the_registry_reads_only_matching_rows() {
        let (_files, conn) = database();
        let statements = [
            WORKFLOWS_SINCE,
            DUE_HEADS,
            HAS_RUNS,
            DELETE_VERSIONS,
            CHECK_HEAD,
            REMOVE_HEAD,
        ];
        assert_indexed(&conn, statements);
    }
}
