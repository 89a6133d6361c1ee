//! What agents remember.

use async_trait::async_trait;
use wopr_core::{RunId, RunKey, TenantId, Timestamp};

use super::{
    PostgresStore,
    fault::Fault,
    round::{Round, value},
    rows,
};
use crate::{AgentMemory, MemoryEntry, MemoryQuery, MemoryRoom, MemoryUse, ReadError, WriteError};

/// A row that a batch repeats is the same row.
pub(super) const INSERT: &str = "INSERT INTO agent_memory (tenant, run, scope, id, written_at, seq, content, tags,
         created_at, expires_at, untrusted, size)
     SELECT * FROM unnest($1::text[], $2::text[], $3::text[], $4::text[], $5::bigint[], $6::bigint[], $7::text[],
         $8::text[], $9::bigint[], $10::bigint[], $11::boolean[], $12::bigint[])
     ON CONFLICT DO NOTHING";

const SELECT: &str =
    "SELECT id, content, tags, created_at, expires_at, untrusted, run, seq, written_at FROM (
         SELECT DISTINCT ON (id) * FROM agent_memory
         WHERE tenant = $1 AND scope = $2 AND written_at <= $3 AND ($4::text IS NULL OR id = $4)
         ORDER BY id, written_at DESC, run DESC, seq DESC) AS latest
     WHERE content IS NOT NULL AND (expires_at IS NULL OR expires_at > $5)
         AND ($6::text IS NULL OR position($6 IN tags) > 0)
     ORDER BY written_at DESC, id LIMIT $7";

const COUNT: &str =
    "SELECT count(*), coalesce(sum(size), 0)::bigint, count(DISTINCT id) FILTER (WHERE scope = $2)
     FROM agent_memory WHERE tenant = $1";

const NEXT_TENANT: &str = "SELECT tenant FROM agent_memory WHERE tenant > $1 ORDER BY tenant LIMIT 1";

/// What a newer row replaced early enough.
const REPLACED: &str = "DELETE FROM agent_memory WHERE (tenant, scope, id, written_at, run, seq) IN (
         SELECT tenant, scope, id, written_at, run, seq FROM agent_memory AS old
         WHERE tenant = $1 AND written_at < $2 AND EXISTS (
             SELECT FROM agent_memory AS new
             WHERE new.tenant = old.tenant AND new.scope = old.scope AND new.id = old.id
                 AND new.written_at < $2
                 AND (new.written_at, new.run, new.seq) > (old.written_at, old.run, old.seq))
         LIMIT $3)
     RETURNING 1";

/// What has expired or was removed, once nothing is left that would come back.
const OVER: &str = "DELETE FROM agent_memory WHERE (tenant, scope, id, written_at, run, seq) IN (
         SELECT tenant, scope, id, written_at, run, seq FROM agent_memory AS last
         WHERE tenant = $1
             AND (expires_at <= $2 OR (content IS NULL AND written_at < $3))
             AND NOT EXISTS (
                 SELECT FROM agent_memory AS other
                 WHERE other.tenant = last.tenant AND other.scope = last.scope AND other.id = last.id
                     AND (other.written_at, other.run, other.seq) <> (last.written_at, last.run, last.seq))
         LIMIT $4)
     RETURNING 1";

/// Deletes scopes that belong to runs which have ended or are gone, those that ended first, as long as the scopes before
/// them are not enough.
const FORGET_SCOPES: &str = "WITH sizes AS (
         SELECT scope, count(*) AS n_rows, sum(size) AS n_bytes FROM agent_memory
         WHERE tenant = $1 AND scope >= 'run:' AND scope < 'run;' GROUP BY scope),
     ended AS (
         SELECT s.scope, r.run, coalesce(sum(s.n_rows) OVER earlier, 0) AS rows_before,
             coalesce(sum(s.n_bytes) OVER earlier, 0) AS bytes_before
         FROM sizes AS s LEFT JOIN runs AS r ON r.tenant = $1 AND r.run = substr(s.scope, 5)
         WHERE r.run IS NULL OR r.status IN ('completed', 'failed', 'cancelled')
         WINDOW earlier AS (
             ORDER BY r.updated_at NULLS FIRST, s.scope ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING)),
     chosen AS (
         SELECT scope, run FROM ended
         WHERE (rows_before < $2::bigint OR bytes_before < $3::bigint) AND rows_before < $4::bigint),
     marked AS (
         UPDATE runs AS r SET memory_forgotten = true FROM chosen WHERE r.tenant = $1 AND r.run = chosen.run)
     DELETE FROM agent_memory AS m USING chosen WHERE m.tenant = $1 AND m.scope = chosen.scope RETURNING 1";

const HAS_FORGOTTEN: &str = "SELECT 1 FROM runs WHERE tenant = $1 AND run = $2 AND memory_forgotten";

#[async_trait]
impl AgentMemory for PostgresStore {
    async fn memory(&self, tenant: &TenantId, query: &MemoryQuery) -> Result<Vec<MemoryEntry>, ReadError> {
        let round = || {
            Round::of(
                SELECT,
                vec![
                    value(tenant.as_str()),
                    value(rows::free(&query.scope)),
                    value(query.as_of.map_or(i64::MAX, Timestamp::millis)),
                    value(query.id.as_deref().map(rows::free)),
                    value(query.now.millis()),
                    value(query.tag.as_deref().map(rows::marked)),
                    value(rows::limit(query.limit)),
                ],
            )
        };
        let found = self.pool.read(tenant, round).await?;
        let entry = |row| {
            Ok(MemoryEntry {
                id: rows::free_text(row, 0)?,
                content: rows::free_text(row, 1)?,
                tags: rows::free_texts(row, 2)?,
                created_at: rows::time(row, 3)?,
                expires_at: rows::opt_time(row, 4)?,
                is_untrusted: rows::flag(row, 5)?,
                run: rows::id(row, 6, RunId::parse)?,
                seq: rows::seq(row, 7)?,
                written_at: rows::time(row, 8)?,
            })
        };
        let entries: Result<_, Fault> = found.iter().map(entry).collect();
        Ok(entries?)
    }

    async fn memory_use(&self, tenant: &TenantId, scope: &str) -> Result<MemoryUse, ReadError> {
        let round = || Round::of(COUNT, vec![value(tenant.as_str()), value(rows::free(scope))]);
        let found = self.pool.read(tenant, round).await?;
        let Some(row) = found.first() else {
            return Ok(MemoryUse::default());
        };
        Ok(MemoryUse {
            rows: rows::count(row, 0)?,
            bytes: rows::count(row, 1)?,
            in_scope: rows::count(row, 2)?,
        })
    }

    async fn next_remembering(&self, after: Option<&TenantId>) -> Result<Option<TenantId>, ReadError> {
        // The empty string sorts before every tenant.
        let after = after.map_or("", TenantId::as_str);
        let next = || Round::of(NEXT_TENANT, vec![value(after)]);
        let found = self.pool.learn(next).await?;
        let tenant = found.first().map(|row| rows::id(row, 0, TenantId::parse));
        Ok(tenant.transpose()?)
    }

    async fn forget_memory(
        &self,
        tenant: &TenantId,
        now: Timestamp,
        before: Timestamp,
        limit: usize,
    ) -> Result<usize, WriteError> {
        let tenant = || value(tenant.as_str());
        let (now, before) = (now.millis(), before.millis());
        let replaced = || {
            let values = vec![tenant(), value(before), value(rows::limit(limit))];
            Round::of(REPLACED, values)
        };
        let n_replaced = self.pool.write(replaced).await?.len();
        let left = limit.saturating_sub(n_replaced);
        let over = || {
            let values = vec![tenant(), value(now), value(before), value(rows::limit(left))];
            Round::of(OVER, values)
        };
        Ok(n_replaced + self.pool.write(over).await?.len())
    }

    async fn forget_ended_scopes(
        &self,
        tenant: &TenantId,
        wanted: MemoryRoom,
        limit: usize,
    ) -> Result<usize, WriteError> {
        let round = || {
            Round::of(
                FORGET_SCOPES,
                vec![
                    value(tenant.as_str()),
                    value(rows::int(wanted.rows)),
                    value(rows::int(wanted.bytes)),
                    value(rows::limit(limit)),
                ],
            )
        };
        Ok(self.pool.write(round).await?.len())
    }

    async fn has_forgotten(&self, run: &RunKey) -> Result<bool, ReadError> {
        let values = || vec![value(run.tenant.as_str()), value(run.run.as_str())];
        let found = self
            .pool
            .read(&run.tenant, || Round::of(HAS_FORGOTTEN, values()))
            .await?;
        Ok(!found.is_empty())
    }
}
