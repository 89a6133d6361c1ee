//! What agents remember.

use async_trait::async_trait;
use rusqlite::{Connection, OptionalExtension as _, params};
use wopr_core::{RunId, RunKey, TenantId, Timestamp};

use super::{SqliteStore, fault::Fault, lanes::Lane, queue::SMALL, rows};
use crate::{AgentMemory, MemoryEntry, MemoryQuery, MemoryRow, MemoryUse, ReadError, WriteError};

/// A row that a batch repeats is the same row.
const INSERT: &str = "\
    INSERT INTO agent_memory (tenant, scope, id, written_at, run, seq, content, tags, created_at, expires_at,
     untrusted, size)
     VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10, ?11, ?12)
     ON CONFLICT DO NOTHING";

const SELECT: &str = "\
    SELECT id, content, tags, created_at, expires_at, untrusted, run, seq, written_at FROM (
         SELECT *, row_number() OVER (PARTITION BY id ORDER BY written_at DESC, run DESC, seq DESC) AS nth
         FROM agent_memory
         WHERE tenant = ?1 AND scope = ?2 AND written_at <= ?3 AND (?4 IS NULL OR id = ?4))
     WHERE nth = 1 AND content IS NOT NULL AND (expires_at IS NULL OR expires_at > ?5)
         AND (?6 IS NULL OR EXISTS (SELECT 1 FROM json_each(tags) WHERE json_each.value = ?6))
     ORDER BY written_at DESC, id LIMIT ?7";

const COUNT: &str = "\
    SELECT count(*), coalesce(sum(size), 0), count(DISTINCT CASE WHEN scope = ?2 THEN id END)
     FROM agent_memory WHERE tenant = ?1";

/// What a newer row replaced early enough.
const REPLACED: &str = "\
    DELETE FROM agent_memory WHERE (tenant, scope, id, written_at, run, seq) IN (
         SELECT tenant, scope, id, written_at, run, seq FROM agent_memory AS old
         WHERE (?1 IS NULL OR tenant = ?1) AND written_at < ?2 AND EXISTS (
             SELECT 1 FROM agent_memory AS new
             WHERE new.tenant = old.tenant AND new.scope = old.scope AND new.id = old.id
                 AND new.written_at < ?2
                 AND (new.written_at, new.run, new.seq) > (old.written_at, old.run, old.seq))
         LIMIT ?3)";

/// What has expired or was removed, once nothing is left that would come back.
const OVER: &str = "\
    DELETE FROM agent_memory WHERE (tenant, scope, id, written_at, run, seq) IN (
         SELECT tenant, scope, id, written_at, run, seq FROM agent_memory AS last
         WHERE (?1 IS NULL OR tenant = ?1)
             AND (expires_at <= ?2 OR (content IS NULL AND written_at < ?3))
             AND NOT EXISTS (
                 SELECT 1 FROM agent_memory AS other
                 WHERE other.tenant = last.tenant AND other.scope = last.scope AND other.id = last.id
                     AND (other.written_at, other.run, other.seq) <> (last.written_at, last.run, last.seq))
         LIMIT ?4)";

/// Of the scopes that belong to runs which have ended or are gone, the one of the run that ended first.
const ENDED_SCOPE: &str = "\
    SELECT m.scope FROM (
         SELECT DISTINCT scope FROM agent_memory
         WHERE tenant = ?1 AND scope >= 'run:' AND scope < 'run;') AS m
     LEFT JOIN runs AS r ON r.tenant = ?1 AND r.run = substr(m.scope, 5)
     WHERE r.run IS NULL OR r.status IN ('completed', 'failed', 'cancelled')
     ORDER BY r.updated_at, m.scope LIMIT 1";

pub(super) fn write(conn: &Connection, run: &RunKey, row: &MemoryRow) -> Result<(), Fault> {
    let tags = serde_json::to_string(&row.tags).unwrap_or_default();
    conn.prepare_cached(INSERT)?.execute(params![
        run.tenant.as_str(),
        row.scope,
        row.id,
        row.at.millis(),
        run.run.as_str(),
        rows::int(row.seq.0),
        row.content,
        tags,
        row.created_at.millis(),
        row.expires_at.map(Timestamp::millis),
        row.is_untrusted,
        rows::int(row.size() as u64),
    ])?;
    Ok(())
}

fn read(conn: &Connection, tenant: &TenantId, query: &MemoryQuery) -> Result<Vec<MemoryEntry>, Fault> {
    let mut statement = conn.prepare_cached(SELECT)?;
    let mut found = statement.query(params![
        tenant.as_str(),
        query.scope,
        query.as_of.map_or(i64::MAX, Timestamp::millis),
        query.id,
        query.now.millis(),
        query.tag,
        rows::limit(query.limit),
    ])?;
    let mut entries = Vec::new();
    while let Some(row) = found.next()? {
        entries.push(MemoryEntry {
            id: rows::text(row, 0)?.to_owned(),
            content: rows::text(row, 1)?.to_owned(),
            tags: serde_json::from_str(rows::text(row, 2)?).map_err(|error| Fault::damaged(row, 2, error))?,
            created_at: rows::time(row, 3)?,
            expires_at: rows::opt_time(row, 4)?,
            is_untrusted: row.get(5)?,
            run: rows::id(row, 6, RunId::parse)?,
            seq: rows::seq(row, 7)?,
            written_at: rows::time(row, 8)?,
        });
    }
    Ok(entries)
}

fn count(conn: &Connection, tenant: &TenantId, scope: &str) -> Result<MemoryUse, Fault> {
    let mut statement = conn.prepare_cached(COUNT)?;
    let counts: (i64, i64, i64) = statement.query_row(params![tenant.as_str(), scope], |row| {
        Ok((row.get(0)?, row.get(1)?, row.get(2)?))
    })?;
    let whole = |n: i64| u64::try_from(n).unwrap_or(0);
    Ok(MemoryUse {
        rows: whole(counts.0),
        bytes: whole(counts.1),
        in_scope: whole(counts.2),
    })
}

fn forget_ended_scope(conn: &Connection, tenant: &TenantId) -> Result<usize, Fault> {
    let tenant = tenant.as_str();
    let scope: Option<String> = conn
        .prepare_cached(ENDED_SCOPE)?
        .query_row([tenant], |row| row.get(0))
        .optional()?;
    let Some(scope) = scope else {
        return Ok(0);
    };
    conn.prepare_cached("UPDATE runs SET memory_forgotten = 1 WHERE tenant = ?1 AND run = substr(?2, 5)")?
        .execute([tenant, &scope])?;
    let n_rows = conn
        .prepare_cached("DELETE FROM agent_memory WHERE tenant = ?1 AND scope = ?2")?
        .execute([tenant, &scope])?;
    Ok(n_rows)
}

#[async_trait]
impl AgentMemory for SqliteStore {
    async fn memory(&self, tenant: &TenantId, query: &MemoryQuery) -> Result<Vec<MemoryEntry>, ReadError> {
        let (tenant, query) = (tenant.clone(), query.clone());
        self.read(Lane::Look(tenant.clone()), move |conn| {
            read(conn, &tenant, &query)
        })
        .await
    }

    async fn memory_use(&self, tenant: &TenantId, scope: &str) -> Result<MemoryUse, ReadError> {
        let (tenant, scope) = (tenant.clone(), scope.to_owned());
        self.read(Lane::Look(tenant.clone()), move |conn| {
            count(conn, &tenant, &scope)
        })
        .await
    }

    async fn forget_memory(
        &self,
        tenant: Option<&TenantId>,
        now: Timestamp,
        before: Timestamp,
        limit: usize,
    ) -> Result<usize, WriteError> {
        let tenant = tenant.cloned();
        self.write(SMALL, move |conn| {
            let tenant = tenant.as_ref().map(TenantId::as_str);
            let (now, before) = (now.millis(), before.millis());
            let n_replaced =
                conn.prepare_cached(REPLACED)?
                    .execute(params![tenant, before, rows::limit(limit)])?;
            let left = limit.saturating_sub(n_replaced);
            let n_over =
                conn.prepare_cached(OVER)?
                    .execute(params![tenant, now, before, rows::limit(left)])?;
            Ok(n_replaced + n_over)
        })
        .await
    }

    async fn forget_ended_scope(&self, tenant: &TenantId) -> Result<usize, WriteError> {
        let tenant = tenant.clone();
        self.write(SMALL, move |conn| forget_ended_scope(conn, &tenant))
            .await
    }

    async fn has_forgotten(&self, run: &RunKey) -> Result<bool, ReadError> {
        let run = run.clone();
        self.read(Lane::Look(run.tenant.clone()), move |conn| {
            let mut statement = conn
                .prepare_cached("SELECT 1 FROM runs WHERE tenant = ?1 AND run = ?2 AND memory_forgotten")?;
            Ok(statement.exists([run.tenant.as_str(), run.run.as_str()])?)
        })
        .await
    }
}
