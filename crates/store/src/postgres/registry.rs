//! Workflows and keys in SQL.

use wopr_core::{ContentHash, TenantId, Timestamp, WorkflowId};

use super::{
    fault::Fault,
    pool::Pool,
    round::{Round, value},
    rows,
};
use crate::{KeyRow, Revision, WorkflowRow};

/// The owner of workflows that every tenant shares; not a valid tenant id.
const SHARED: &str = "";

/// Locks the row of the last revision first, until the end of the transaction.
const PUT_WORKFLOW: &str =
    "WITH next AS (UPDATE last_revision SET revision = revision + 1 RETURNING revision),
     head AS (
         INSERT INTO workflow_heads (tenant, id, version, revision) SELECT $1, $2, $3, revision FROM next
         ON CONFLICT (tenant, id) DO UPDATE SET version = excluded.version, revision = excluded.revision
         WHERE workflow_heads.version <> excluded.version)
     INSERT INTO workflows (tenant, id, version, body, registered_at, dialect)
     SELECT $1, $2, $3, $4::bytea, $5::bigint, $6 FROM next
     ON CONFLICT (tenant, id, version) DO NOTHING RETURNING 1";

/// Of several that are sent at once, the one that inserts the head adds the workflow.
const ADD_WORKFLOW: &str =
    "WITH next AS (UPDATE last_revision SET revision = revision + 1 RETURNING revision),
     head AS (
         INSERT INTO workflow_heads (tenant, id, version, revision) SELECT $1, $2, $3, revision FROM next
         ON CONFLICT (tenant, id) DO NOTHING RETURNING version)
     INSERT INTO workflows (tenant, id, version, body, registered_at, dialect)
     SELECT $1, $2, $3, $4::bytea, $5::bigint, $6 FROM head RETURNING 1";

/// The shared owner is the empty string and sorts last here, after the tenant's own row.
const WORKFLOW: &str = "SELECT tenant, id, version, body, registered_at, dialect FROM workflows
     WHERE tenant IN ($1, '') AND id = $2 AND version = $3 ORDER BY tenant DESC LIMIT 1";

/// The length of a stored value is known without reading it. Every change has its own revision.
const WORKFLOWS_SINCE: &str = "SELECT tenant, id, version, body, registered_at, dialect, revision FROM (
         SELECT *, sum(octet_length(body)) OVER up_to AS total, row_number() OVER up_to AS place
         FROM (SELECT * FROM workflow_heads WHERE revision > $1 ORDER BY revision LIMIT 256) AS heads
             JOIN workflows USING (tenant, id, version)
         WINDOW up_to AS (ORDER BY revision)) AS found
     WHERE total <= $2::bigint OR place = 1 ORDER BY revision";

/// A round resent after a commit in doubt finds its own key, and recognizes it by the secret.
const ADD_KEY: &str = "WITH next AS (UPDATE last_revision SET revision = revision + 1 RETURNING revision)
     INSERT INTO api_keys (id, secret_sha256, tenant, principal, scopes, membership, created_at, revoked_at, revision)
     SELECT $1, $2, $3, $4, $5, $6, $7::bigint, $8::bigint, revision FROM next
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
) -> Result<Vec<(Revision, WorkflowRow)>, Fault> {
    let found = pool
        .learn(|| {
            let values = vec![value(rows::int(after.0)), value(rows::limit(max_bytes))];
            Round::of(WORKFLOWS_SINCE, values)
        })
        .await?;
    let read = |row| Ok((Revision(rows::count(row, 6)?), rows::workflow(row)?));
    found.iter().map(read).collect()
}

pub(super) async fn add_key(pool: &Pool, key: &KeyRow) -> Result<bool, Fault> {
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

pub(super) async fn keys_since(pool: &Pool, after: Revision) -> Result<Vec<(Revision, KeyRow)>, Fault> {
    let found = pool
        .learn(|| Round::of(KEYS_SINCE, vec![value(rows::int(after.0))]))
        .await?;
    let read = |row| Ok((Revision(rows::count(row, 8)?), rows::key(row)?));
    found.iter().map(read).collect()
}
