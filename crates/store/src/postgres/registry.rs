//! Workflows and keys in SQL.

use wopr_core::{ContentHash, TenantId, Timestamp, WorkflowId};

use super::{
    fault::Fault,
    pool::Pool,
    round::{Round, value},
    rows,
};
use crate::{KeyRow, Revision, WorkflowChange, WorkflowRow};

/// The owner of workflows that every tenant shares; not a valid tenant id.
const SHARED: &str = "";

/// Locks the row of the last revision first, until the end of the transaction, and then the head: versions are deleted
/// only by one who has the head of a removed workflow.
const PUT_WORKFLOW: &str =
    "WITH next AS (UPDATE last_revision SET revision = revision + 1 RETURNING revision),
     before AS MATERIALIZED (
         SELECT h.version FROM next, workflow_heads AS h WHERE h.tenant = $1 AND h.id = $2 FOR UPDATE OF h),
     stored AS (
         INSERT INTO workflows (tenant, id, version, body, registered_at, dialect)
         SELECT $1, $2, $3, $4::bytea, $5::bigint, $6 FROM next LEFT JOIN before ON true
         ON CONFLICT (tenant, id, version) DO NOTHING RETURNING 1),
     head AS (
         INSERT INTO workflow_heads AS h (tenant, id, version, revision) SELECT $1, $2, $3, revision FROM next
         ON CONFLICT (tenant, id) DO UPDATE
             SET version = excluded.version, revision = excluded.revision, check_at = NULL, is_unused = false
             WHERE h.version IS DISTINCT FROM excluded.version)
     SELECT 1 FROM next WHERE EXISTS (SELECT FROM stored) OR EXISTS (SELECT FROM before WHERE version IS NULL)";

/// Of several that are sent at once, the one that sets the head adds the workflow.
const ADD_WORKFLOW: &str =
    "WITH next AS (UPDATE last_revision SET revision = revision + 1 RETURNING revision),
     head AS (
         INSERT INTO workflow_heads AS h (tenant, id, version, revision) SELECT $1, $2, $3, revision FROM next
         ON CONFLICT (tenant, id) DO UPDATE
             SET version = excluded.version, revision = excluded.revision, check_at = NULL, is_unused = false
             WHERE h.version IS NULL
         RETURNING version),
     stored AS (
         INSERT INTO workflows (tenant, id, version, body, registered_at, dialect)
         SELECT $1, $2, $3, $4::bytea, $5::bigint, $6 FROM head
         ON CONFLICT (tenant, id, version) DO NOTHING)
     SELECT 1 FROM head";

const REMOVE_WORKFLOW: &str =
    "WITH next AS (UPDATE last_revision SET revision = revision + 1 RETURNING revision)
     UPDATE workflow_heads AS h
     SET version = NULL, revision = next.revision, check_at = $3::bigint, is_unused = false FROM next
     WHERE h.tenant = $1 AND h.id = $2 AND h.version IS NOT NULL RETURNING 1";

/// A workflow of which versions are deleted stays due, because more may be left.
const FORGET_WORKFLOWS: &str = "WITH due AS MATERIALIZED (
         SELECT tenant, id, is_unused FROM workflow_heads WHERE check_at <= $1::bigint
         ORDER BY check_at LIMIT $3::bigint FOR UPDATE SKIP LOCKED),
     seen AS MATERIALIZED (
         SELECT d.*, EXISTS (SELECT FROM runs AS r WHERE r.tenant = d.tenant AND r.workflow = d.id) AS has_runs
         FROM due AS d),
     over AS MATERIALIZED (
         SELECT o.tenant, o.id, o.version
         FROM seen AS s JOIN workflows AS o ON o.tenant = s.tenant AND o.id = s.id
         WHERE s.is_unused AND NOT s.has_runs LIMIT $3::bigint),
     deleted AS (
         DELETE FROM workflows AS x USING over AS o
         WHERE x.tenant = o.tenant AND x.id = o.id AND x.version = o.version RETURNING 1),
     checked AS (
         UPDATE workflow_heads AS h
         SET check_at = CASE WHEN s.is_unused AND NOT s.has_runs THEN NULL ELSE $2::bigint END, is_unused = NOT s.has_runs
         FROM seen AS s
         WHERE h.tenant = s.tenant AND h.id = s.id
             AND (s.has_runs OR NOT s.is_unused
                 OR NOT EXISTS (SELECT FROM workflows AS o WHERE o.tenant = s.tenant AND o.id = s.id))
         RETURNING 1)
     SELECT (SELECT count(*) FROM deleted) + (SELECT count(*) FROM checked)";

/// The shared owner is the empty string and sorts last here, after the tenant's own row.
const WORKFLOW: &str = "SELECT tenant, id, version, body, registered_at, dialect FROM workflows
     WHERE tenant IN ($1, '') AND id = $2 AND version = $3 ORDER BY tenant DESC LIMIT 1";

/// The length of a stored value is known without reading it. Every change has its own revision.
const WORKFLOWS_SINCE: &str = "SELECT tenant, id, version, body, registered_at, dialect, revision FROM (
         SELECT *, coalesce(sum(octet_length(body)) OVER up_to, 0) AS total, row_number() OVER up_to AS place
         FROM (SELECT * FROM workflow_heads WHERE revision > $1 ORDER BY revision LIMIT 256) AS heads
             LEFT JOIN workflows USING (tenant, id, version)
         WINDOW up_to AS (ORDER BY revision)) AS found
     WHERE total <= $2::bigint OR place = 1 ORDER BY revision";

/// A round resent after a commit in doubt finds its own key, and recognizes it by the secret.
/// A key that a retried write has added already does not count. Two keys that are added at once may both find the last
/// place free: the bound is one of size, not of promises.
const ADD_KEY: &str = "WITH next AS (UPDATE last_revision SET revision = revision + 1 RETURNING revision)
     INSERT INTO api_keys (id, secret_sha256, tenant, principal, scopes, membership, created_at, revoked_at, revision)
     SELECT $1, $2, $3, $4, $5, $6, $7::bigint, $8::bigint, revision FROM next
     WHERE (SELECT count(*) FROM api_keys WHERE tenant = $3 AND id <> $1 AND revoked_at IS NULL) < $9::bigint
         AND (SELECT count(*) FROM api_keys WHERE tenant = $3 AND id <> $1 AND revoked_at IS NOT NULL) < $9::bigint
     ON CONFLICT (tenant, id) DO UPDATE SET revision = excluded.revision
         WHERE api_keys.secret_sha256 = excluded.secret_sha256 RETURNING 1";

const REVOKE_KEY: &str = "WITH next AS (UPDATE last_revision SET revision = revision + 1 RETURNING revision)
     UPDATE api_keys SET revoked_at = $3, revision = next.revision FROM next
     WHERE tenant = $1 AND id = $2 AND revoked_at IS NULL RETURNING 1";

const KEYS_SINCE: &str =
    "SELECT id, secret_sha256, tenant, principal, scopes, membership, created_at, revoked_at, revision
     FROM api_keys WHERE revision > $1 ORDER BY revision, id";

const KEYS: &str = "SELECT id, secret_sha256, tenant, principal, scopes, membership, created_at, revoked_at
     FROM api_keys ORDER BY id, tenant";

const KEYS_OF: &str =
    "SELECT id, secret_sha256, tenant, principal, scopes, membership, created_at, revoked_at
     FROM api_keys WHERE tenant = $1 ORDER BY id";

const FORGET_KEYS: &str = "DELETE FROM api_keys WHERE tenant = $1 AND revoked_at < $2";

pub(super) async fn put_workflow(pool: &Pool, workflow: &WorkflowRow) -> Result<bool, Fault> {
    register(pool, PUT_WORKFLOW, workflow).await
}

pub(super) async fn add_workflow(pool: &Pool, workflow: &WorkflowRow) -> Result<bool, Fault> {
    register(pool, ADD_WORKFLOW, workflow).await
}

/// Runs a statement that stores a version. Returns whether it did.
async fn register(pool: &Pool, statement: &'static str, workflow: &WorkflowRow) -> Result<bool, Fault> {
    let tenant = workflow.tenant.as_ref().map_or(SHARED, TenantId::as_str);
    let round = || {
        Round::of(
            statement,
            vec![
                value(tenant),
                value(workflow.id.as_str()),
                value(workflow.version.as_str()),
                value(workflow.body.as_slice()),
                value(workflow.registered_at.millis()),
                value(workflow.dialect.as_str()),
            ],
        )
    };
    Ok(!pool.write(round).await?.is_empty())
}

pub(super) async fn remove_workflow(
    pool: &Pool,
    tenant: &TenantId,
    id: &WorkflowId,
    check_at: Timestamp,
) -> Result<bool, Fault> {
    let round = || {
        let values = vec![
            value(tenant.as_str()),
            value(id.as_str()),
            value(check_at.millis()),
        ];
        Round::of(REMOVE_WORKFLOW, values)
    };
    Ok(!pool.write(round).await?.is_empty())
}

pub(super) async fn forget_workflows(
    pool: &Pool,
    now: Timestamp,
    next_check: Timestamp,
    limit: usize,
) -> Result<usize, Fault> {
    let round = || {
        let values = vec![
            value(now.millis()),
            value(next_check.millis()),
            value(rows::limit(limit)),
        ];
        Round::of(FORGET_WORKFLOWS, values)
    };
    let found = pool.write(round).await?;
    let changed = found.first().map_or(Ok(0), |row| rows::count(row, 0))?;
    Ok(usize::try_from(changed).unwrap_or(usize::MAX))
}

pub(super) async fn workflow(
    pool: &Pool,
    tenant: &TenantId,
    id: &WorkflowId,
    version: &ContentHash,
) -> Result<Option<WorkflowRow>, Fault> {
    let round = || {
        let values = [tenant.as_str(), id.as_str(), version.as_str()];
        Round::of(WORKFLOW, values.into_iter().map(value).collect())
    };
    let found = pool.read(tenant, round).await?;
    found.first().map(rows::workflow).transpose()
}

pub(super) async fn workflows_since(
    pool: &Pool,
    after: Revision,
    max_bytes: usize,
) -> Result<Vec<(Revision, WorkflowChange)>, Fault> {
    let found = pool
        .learn(|| {
            let values = vec![value(rows::int(after.0)), value(rows::limit(max_bytes))];
            Round::of(WORKFLOWS_SINCE, values)
        })
        .await?;
    let read = |row| {
        let change = match rows::opt_text(row, 2)? {
            Some(_) => WorkflowChange::Current(rows::workflow(row)?),
            None => WorkflowChange::Removed {
                tenant: rows::id(row, 0, TenantId::parse)?,
                id: rows::id(row, 1, WorkflowId::parse)?,
            },
        };
        Ok((Revision(rows::count(row, 6)?), change))
    };
    found.iter().map(read).collect()
}

pub(super) async fn add_key(pool: &Pool, key: &KeyRow, limit: usize) -> Result<bool, Fault> {
    let scopes = serde_json::to_string(&key.scopes).expect("a list of strings is always JSON");
    let membership = serde_json::to_string(&key.membership).expect("lists of strings are always JSON");
    let round = || {
        Round::of(
            ADD_KEY,
            vec![
                value(rows::free(&key.id)),
                value(rows::free(&key.secret_sha256)),
                value(key.tenant.as_str()),
                value(key.principal.as_str()),
                value(scopes.as_str()),
                value(membership.as_str()),
                value(key.created_at.millis()),
                value(key.revoked_at.map(Timestamp::millis)),
                value(rows::limit(limit)),
            ],
        )
    };
    Ok(!pool.write(round).await?.is_empty())
}

pub(super) async fn revoke_key(
    pool: &Pool,
    tenant: &TenantId,
    id: &str,
    at: Timestamp,
) -> Result<bool, Fault> {
    let round = || {
        let values = vec![value(tenant.as_str()), value(rows::free(id)), value(at.millis())];
        Round::of(REVOKE_KEY, values)
    };
    Ok(!pool.write(round).await?.is_empty())
}

pub(super) async fn keys(pool: &Pool) -> Result<Vec<KeyRow>, Fault> {
    let found = pool.learn(|| Round::of(KEYS, Vec::new())).await?;
    found.iter().map(rows::key).collect()
}

pub(super) async fn keys_of(pool: &Pool, tenant: &TenantId) -> Result<Vec<KeyRow>, Fault> {
    let found = pool
        .read(tenant, || Round::of(KEYS_OF, vec![value(tenant.as_str())]))
        .await?;
    found.iter().map(rows::key).collect()
}

pub(super) async fn forget_keys(
    pool: &Pool,
    tenant: &TenantId,
    revoked_before: Timestamp,
) -> Result<(), Fault> {
    let round = || {
        let values = vec![value(tenant.as_str()), value(revoked_before.millis())];
        Round::of(FORGET_KEYS, values)
    };
    pool.write(round).await?;
    Ok(())
}

pub(super) async fn keys_since(pool: &Pool, after: Revision) -> Result<Vec<(Revision, KeyRow)>, Fault> {
    let found = pool
        .learn(|| Round::of(KEYS_SINCE, vec![value(rows::int(after.0))]))
        .await?;
    let read = |row| Ok((Revision(rows::count(row, 8)?), rows::key(row)?));
    found.iter().map(read).collect()
}
