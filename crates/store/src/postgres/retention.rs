//! Retention in SQL.
//!
//! Every statement about runs excludes removed ones: [`present!`] for a single run, [`listed!`] in lists. The
//! table of marks is almost always empty, and then either costs one lookup in an empty index.
//!
//! Any number of processes may mark and sweep. A mark is set only while its run's row is locked, so no mark
//! outlives its run. A sweep skips locked rows and deletes the run's own row first. It thereby waits for an
//! append in progress, and a later append finds no run. Rows written by the former are found when the mark is
//! deleted, which happens only once nothing is left.

use async_trait::async_trait;
use wopr_core::{RunId, RunKey, TenantId, Timestamp};

use super::{
    PostgresStore,
    fault::Fault,
    pool::Pool,
    registry,
    round::{Round, value},
    rows,
};
use crate::{Child, EndedRoots, PhaseCursor, ReadError, Removal, Retention, Swept, WriteError};

/// The condition that the run in parameters 1 and 2 is not removed.
macro_rules! present {
    () => {
        " AND NOT EXISTS (SELECT 1 FROM removals AS m JOIN removals AS r ON r.tenant = m.tenant AND r.run = m.root
             WHERE m.tenant = $1 AND m.run = $2)"
    };
}
pub(super) use present;

/// The condition that the run of a row of this table is not removed.
macro_rules! listed {
    ($table:literal) => {
        concat!(
            " AND (NOT EXISTS (SELECT 1 FROM removals) OR NOT EXISTS (
                 SELECT 1 FROM removals AS m JOIN removals AS r ON r.tenant = m.tenant AND r.run = m.root
                 WHERE m.tenant = ",
            $table,
            ".tenant AND m.run = ",
            $table,
            ".run))"
        )
    };
}
pub(super) use listed;

/// Selects the marks to process: those of removed trees, and a root's mark only when nothing else of its tree
/// is left. To be completed with a further condition and the limit.
macro_rules! gone {
    ($also:literal) => {
        concat!(
            "SELECT m.tenant, m.run FROM removals AS m
             WHERE CASE WHEN m.run = m.root
                 THEN NOT EXISTS (SELECT 1 FROM removals AS c
                     WHERE c.tenant = m.tenant AND c.root = m.run AND c.run <> c.root)
                 ELSE EXISTS (SELECT 1 FROM removals AS r WHERE r.tenant = m.tenant AND r.run = m.root) END",
            $also,
            " ORDER BY m.tenant, m.run LIMIT $1 FOR UPDATE SKIP LOCKED"
        )
    };
}

const NEXT_TENANT: &str = "SELECT tenant FROM runs WHERE tenant > $1 ORDER BY tenant LIMIT 1";

const OLD_RUNS: &str = concat!(
    "SELECT run, phase_since, status IN ('completed', 'failed', 'cancelled') AND parent_run IS NULL
     FROM runs
     WHERE tenant = $1 AND (phase_since, run) > ($2, $3) AND phase_since < $4",
    listed!("runs"),
    " ORDER BY phase_since, run LIMIT $5"
);

const CHILDREN: &str = "SELECT parent_run, run, status, updated_at FROM runs
     WHERE tenant = $1 AND parent_run = ANY($2) AND (parent_run, run) > ($3, $4)
     ORDER BY parent_run, run LIMIT $5";

const MARK: &str = "INSERT INTO removals (tenant, run, root)
     SELECT runs.tenant, runs.run, m.root
     FROM unnest($2::text[], $3::text[]) AS m (run, root) JOIN runs ON runs.tenant = $1 AND runs.run = m.run
     WHERE runs.status IN ('completed', 'failed', 'cancelled')
     FOR KEY SHARE OF runs
     ON CONFLICT DO NOTHING";

const BEGUN: &str = "SELECT DISTINCT m.tenant, m.root FROM removals AS m
     WHERE m.run <> m.root AND NOT EXISTS (
         SELECT 1 FROM removals AS r WHERE r.tenant = m.tenant AND r.run = m.root)
     ORDER BY m.tenant, m.root LIMIT $1";

/// Deletes rows of removed runs and of their own memory scopes: of each kind at most parameter 2, and of kinds with
/// bodies only up to the row that reaches the bytes in parameter 3. Sizes are known without reading the bodies.
const EMPTY: &str = concat!(
    "WITH gone AS MATERIALIZED (",
    gone!(""),
    "), the_runs AS (
         DELETE FROM runs AS x USING gone AS g WHERE x.tenant = g.tenant AND x.run = g.run RETURNING 1),
     the_snapshots AS (
         DELETE FROM snapshots AS x USING gone AS g WHERE x.tenant = g.tenant AND x.run = g.run RETURNING 1),
     the_work AS (
         DELETE FROM work AS x USING gone AS g WHERE x.tenant = g.tenant AND x.run = g.run RETURNING 1),
     the_pushes AS (
         DELETE FROM pushes AS x USING gone AS g WHERE x.tenant = g.tenant AND x.run = g.run RETURNING 1),
     the_outbox AS (
         DELETE FROM outbox AS x USING gone AS g WHERE x.tenant = g.tenant AND x.run = g.run RETURNING 1),
     the_deliveries AS (
         DELETE FROM deliveries AS x USING (
             SELECT o.tenant, o.run, o.push, o.seq
             FROM gone AS g JOIN deliveries AS o ON o.tenant = g.tenant AND o.run = g.run
             LIMIT $2) AS g
         WHERE x.tenant = g.tenant AND x.run = g.run AND x.push = g.push AND x.seq = g.seq RETURNING 1),
     the_events AS (
         DELETE FROM events AS x USING (
             SELECT o.*, coalesce(sum(o.size) OVER (ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING), 0) AS before FROM (
                 SELECT o.tenant, o.run, o.seq, pg_column_size(o.body) AS size
                 FROM gone AS g JOIN events AS o ON o.tenant = g.tenant AND o.run = g.run
                 LIMIT $2) AS o) AS g
         WHERE g.before < $3 AND x.tenant = g.tenant AND x.run = g.run AND x.seq = g.seq RETURNING 1),
     the_messages AS (
         DELETE FROM messages AS x USING (
             SELECT o.*, coalesce(sum(o.size) OVER (ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING), 0) AS before FROM (
                 SELECT o.tenant, o.run, o.id, pg_column_size(o.body) AS size
                 FROM gone AS g JOIN messages AS o ON o.tenant = g.tenant AND o.run = g.run
                 LIMIT $2) AS o) AS g
         WHERE g.before < $3 AND x.tenant = g.tenant AND x.run = g.run AND x.id = g.id RETURNING 1),
     the_blobs AS (
         DELETE FROM blobs AS x USING (
             SELECT o.*, coalesce(sum(o.size) OVER (ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING), 0) AS before FROM (
                 SELECT o.tenant, o.run, o.id, pg_column_size(o.bytes) AS size
                 FROM gone AS g JOIN blobs AS o ON o.tenant = g.tenant AND o.run = g.run
                 LIMIT $2) AS o) AS g
         WHERE g.before < $3 AND x.tenant = g.tenant AND x.run = g.run AND x.id = g.id RETURNING 1),
     the_inbox AS (
         DELETE FROM inbox AS x USING (
             SELECT o.*, coalesce(sum(o.size) OVER (ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING), 0) AS before FROM (
                 SELECT o.tenant, o.target, o.source, o.source_seq, pg_column_size(o.body) AS size
                 FROM gone AS g JOIN inbox AS o ON o.tenant = g.tenant AND o.target = g.run
                 LIMIT $2) AS o) AS g
         WHERE g.before < $3 AND x.tenant = g.tenant AND x.target = g.target AND x.source = g.source
             AND x.source_seq = g.source_seq RETURNING 1),
     the_memory AS (
         DELETE FROM agent_memory AS x USING (
             SELECT o.*, coalesce(sum(o.size) OVER (ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING), 0) AS before FROM (
                 SELECT o.tenant, o.scope, o.id, o.written_at, o.run, o.seq, o.size
                 FROM gone AS g JOIN agent_memory AS o ON o.tenant = g.tenant AND o.scope = 'run:' || g.run
                 LIMIT $2) AS o) AS g
         WHERE g.before < $3 AND x.tenant = g.tenant AND x.scope = g.scope AND x.id = g.id
             AND x.written_at = g.written_at AND x.run = g.run AND x.seq = g.seq RETURNING 1)
     SELECT count(*) FROM (
         SELECT FROM the_runs UNION ALL SELECT FROM the_snapshots
         UNION ALL SELECT FROM the_pushes UNION ALL SELECT FROM the_outbox UNION ALL SELECT FROM the_deliveries
         UNION ALL SELECT FROM the_work UNION ALL SELECT FROM the_events
         UNION ALL SELECT FROM the_messages UNION ALL SELECT FROM the_blobs UNION ALL SELECT FROM the_inbox
         UNION ALL SELECT FROM the_memory) AS all_rows"
);

/// Deletes the marks of runs of which nothing is left.
const FINISH: &str = concat!(
    "WITH gone AS MATERIALIZED (",
    gone!(
        " AND NOT EXISTS (SELECT 1 FROM runs AS x WHERE x.tenant = m.tenant AND x.run = m.run)
          AND NOT EXISTS (SELECT 1 FROM snapshots AS x WHERE x.tenant = m.tenant AND x.run = m.run)
          AND NOT EXISTS (SELECT 1 FROM work AS x WHERE x.tenant = m.tenant AND x.run = m.run)
          AND NOT EXISTS (SELECT 1 FROM pushes AS x WHERE x.tenant = m.tenant AND x.run = m.run)
          AND NOT EXISTS (SELECT 1 FROM outbox AS x WHERE x.tenant = m.tenant AND x.run = m.run)
          AND NOT EXISTS (SELECT 1 FROM deliveries AS x WHERE x.tenant = m.tenant AND x.run = m.run)
          AND NOT EXISTS (SELECT 1 FROM events AS x WHERE x.tenant = m.tenant AND x.run = m.run)
          AND NOT EXISTS (SELECT 1 FROM messages AS x WHERE x.tenant = m.tenant AND x.run = m.run)
          AND NOT EXISTS (SELECT 1 FROM blobs AS x WHERE x.tenant = m.tenant AND x.run = m.run)
          AND NOT EXISTS (SELECT 1 FROM inbox AS x WHERE x.tenant = m.tenant AND x.target = m.run)
          AND NOT EXISTS (SELECT 1 FROM agent_memory AS x WHERE x.tenant = m.tenant AND x.scope = 'run:' || m.run)"
    ),
    ") DELETE FROM removals AS x USING gone AS g WHERE x.tenant = g.tenant AND x.run = g.run RETURNING 1"
);

/// Approximate minimum number of rows of a run.
const ROWS_OF_A_RUN: usize = 8;

/// Body bytes deleted per row of the limit, so that a step with large bodies stays well within the statement
/// timeout.
const BYTES_OF_A_ROW: usize = 64 << 10;

async fn next_tenant(pool: &Pool, after: Option<&TenantId>) -> Result<Option<TenantId>, Fault> {
    // The empty string sorts before every tenant.
    let after = after.map_or("", TenantId::as_str);
    let found = pool.learn(|| Round::of(NEXT_TENANT, vec![value(after)])).await?;
    found
        .first()
        .map(|row| rows::id(row, 0, TenantId::parse))
        .transpose()
}

async fn ended_roots(
    pool: &Pool,
    tenant: &TenantId,
    before: Timestamp,
    after: Option<&PhaseCursor>,
    limit: usize,
) -> Result<EndedRoots, Fault> {
    let (from, run) = after.map_or((i64::MIN, ""), |after| (after.since.millis(), after.run.as_str()));
    let round = || {
        Round::of(
            OLD_RUNS,
            vec![
                value(tenant.as_str()),
                value(from),
                value(run),
                value(before.millis()),
                value(rows::limit(limit)),
            ],
        )
    };
    let found = pool.learn(round).await?;
    let mut roots = Vec::new();
    for row in &found {
        if rows::flag(row, 2)? {
            roots.push(rows::id(row, 0, RunId::parse)?);
        }
    }
    let next = match found.last() {
        Some(last) if found.len() == limit => Some(PhaseCursor {
            since: rows::time(last, 1)?,
            run: rows::id(last, 0, RunId::parse)?,
        }),
        Some(_) | None => None,
    };
    Ok(EndedRoots { roots, next })
}

async fn children(
    pool: &Pool,
    tenant: &TenantId,
    parents: &[RunId],
    after: Option<&Child>,
    limit: usize,
) -> Result<Vec<Child>, Fault> {
    let parents: Vec<_> = parents.iter().map(RunId::as_str).collect();
    let (parent, run) = after.map_or(("", ""), |after| (after.parent.as_str(), after.run.as_str()));
    let round = || {
        Round::of(
            CHILDREN,
            vec![
                value(tenant.as_str()),
                value(parents.clone()),
                value(parent),
                value(run),
                value(rows::limit(limit)),
            ],
        )
    };
    let found = pool.learn(round).await?;
    let mut children = Vec::with_capacity(found.len());
    for row in &found {
        let ended = rows::status(row, 2)?.is_terminal();
        children.push(Child {
            parent: rows::id(row, 0, RunId::parse)?,
            run: rows::id(row, 1, RunId::parse)?,
            ended: ended.then(|| rows::time(row, 3)).transpose()?,
        });
    }
    Ok(children)
}

async fn remove(pool: &Pool, tenant: &TenantId, removals: &[Removal]) -> Result<(), Fault> {
    let runs: Vec<_> = removals.iter().map(|removal| removal.run.as_str()).collect();
    let roots: Vec<_> = removals.iter().map(|removal| removal.root.as_str()).collect();
    let round = || {
        Round::of(
            MARK,
            vec![value(tenant.as_str()), value(runs.clone()), value(roots.clone())],
        )
    };
    pool.write(round).await?;
    Ok(())
}

async fn begun_removals(pool: &Pool, limit: usize) -> Result<Vec<RunKey>, Fault> {
    let found = pool
        .learn(|| Round::of(BEGUN, vec![value(rows::limit(limit))]))
        .await?;
    found.iter().map(|row| rows::run_key(row, 0)).collect()
}

async fn sweep(pool: &Pool, limit: usize) -> Result<Swept, Fault> {
    let runs = rows::limit((limit / ROWS_OF_A_RUN).max(1));
    let bytes = rows::limit(limit.saturating_mul(BYTES_OF_A_ROW));
    let deleted = pool
        .write(|| Round::of(EMPTY, vec![value(runs), value(rows::limit(limit)), value(bytes)]))
        .await?;
    let rows = match deleted.first() {
        Some(row) => usize::try_from(rows::count(row, 0)?).unwrap_or(usize::MAX),
        None => 0,
    };
    // A separate statement, so that it sees the result of the first.
    let runs = pool.write(|| Round::of(FINISH, vec![value(runs)])).await?.len();
    Ok(Swept { runs, rows })
}

#[async_trait]
impl Retention for PostgresStore {
    async fn next_tenant(&self, after: Option<&TenantId>) -> Result<Option<TenantId>, ReadError> {
        Ok(next_tenant(&self.pool, after).await?)
    }

    async fn ended_roots(
        &self,
        tenant: &TenantId,
        before: Timestamp,
        after: Option<&PhaseCursor>,
        limit: usize,
    ) -> Result<EndedRoots, ReadError> {
        Ok(ended_roots(&self.pool, tenant, before, after, limit).await?)
    }

    async fn children(
        &self,
        tenant: &TenantId,
        parents: &[RunId],
        after: Option<&Child>,
        limit: usize,
    ) -> Result<Vec<Child>, ReadError> {
        Ok(children(&self.pool, tenant, parents, after, limit).await?)
    }

    async fn remove(&self, tenant: &TenantId, removals: &[Removal]) -> Result<(), WriteError> {
        Ok(remove(&self.pool, tenant, removals).await?)
    }

    async fn begun_removals(&self, limit: usize) -> Result<Vec<RunKey>, ReadError> {
        Ok(begun_removals(&self.pool, limit).await?)
    }

    async fn sweep(&self, limit: usize) -> Result<Swept, WriteError> {
        Ok(sweep(&self.pool, limit).await?)
    }

    async fn forget_workflows(
        &self,
        now: Timestamp,
        next_check: Timestamp,
        limit: usize,
    ) -> Result<usize, WriteError> {
        Ok(registry::forget_workflows(&self.pool, now, next_check, limit).await?)
    }
}
