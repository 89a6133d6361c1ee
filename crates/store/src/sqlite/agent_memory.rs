//! What agents remember.

use async_trait::async_trait;
use rusqlite::{Connection, Params, params};
use wopr_core::{RunId, RunKey, TenantId, Timestamp};

use super::{SqliteStore, fault::Fault, lanes::Lane, queue::SMALL, rows};
use crate::{AgentMemory, MemoryEntry, MemoryQuery, MemoryRoom, MemoryRow, MemoryUse, ReadError, WriteError};

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
    SELECT count(*), coalesce(sum(size), 0),
         (SELECT count(DISTINCT id) FROM agent_memory WHERE tenant = ?1 AND scope = ?2)
     FROM agent_memory INDEXED BY agent_memory_sizes WHERE tenant = ?1";

const NEXT_TENANT: &str = "SELECT tenant FROM agent_memory WHERE tenant > ?1 ORDER BY tenant LIMIT 1";

/// What a newer row replaced early enough.
const REPLACED: &str = "\
    SELECT scope, id, written_at, run, seq FROM agent_memory AS old
     WHERE tenant = ?1 AND written_at < ?2 AND EXISTS (
         SELECT 1 FROM agent_memory AS new
         WHERE new.tenant = old.tenant AND new.scope = old.scope AND new.id = old.id
             AND new.written_at < ?2
             AND (new.written_at, new.run, new.seq) > (old.written_at, old.run, old.seq))
     LIMIT ?3";

const DELETE_REPLACED: &str = "\
    DELETE FROM agent_memory
     WHERE tenant = ?1 AND scope = ?2 AND id = ?3 AND written_at = ?4 AND run = ?5 AND seq = ?6 AND EXISTS (
         SELECT 1 FROM agent_memory AS new
         WHERE new.tenant = ?1 AND new.scope = ?2 AND new.id = ?3 AND (new.written_at, new.run, new.seq) > (?4, ?5, ?6))";

/// What has expired or was removed, once nothing is left that would come back.
const OVER: &str = "\
    SELECT scope, id, written_at, run, seq FROM agent_memory AS last INDEXED BY agent_memory_expiring
     WHERE tenant = ?1 AND expires_at <= ?2 AND NOT EXISTS (
         SELECT 1 FROM agent_memory AS other
         WHERE other.tenant = last.tenant AND other.scope = last.scope AND other.id = last.id
             AND (other.written_at, other.run, other.seq) <> (last.written_at, last.run, last.seq))
     UNION ALL
     SELECT scope, id, written_at, run, seq FROM agent_memory AS last INDEXED BY agent_memory_removed
     WHERE tenant = ?1 AND content IS NULL AND written_at < ?3 AND NOT EXISTS (
         SELECT 1 FROM agent_memory AS other
         WHERE other.tenant = last.tenant AND other.scope = last.scope AND other.id = last.id
             AND (other.written_at, other.run, other.seq) <> (last.written_at, last.run, last.seq))
     LIMIT ?4";

const DELETE_OVER: &str = "\
    DELETE FROM agent_memory
     WHERE tenant = ?1 AND scope = ?2 AND id = ?3 AND written_at = ?4 AND run = ?5 AND seq = ?6 AND NOT EXISTS (
         SELECT 1 FROM agent_memory AS other
         WHERE other.tenant = ?1 AND other.scope = ?2 AND other.id = ?3
             AND (other.written_at, other.run, other.seq) <> (?4, ?5, ?6))";

/// The scopes that belong to runs which have ended or are gone, in the order in which the runs ended.
const ENDED_SCOPES: &str = "\
    SELECT m.scope FROM (
         SELECT DISTINCT scope FROM agent_memory
         WHERE tenant = ?1 AND scope >= 'run:' AND scope < 'run;') AS m
     LEFT JOIN runs AS r ON r.tenant = ?1 AND r.run = substr(m.scope, 5)
     WHERE r.run IS NULL OR r.status IN ('completed', 'failed', 'cancelled')
     ORDER BY r.updated_at, m.scope LIMIT ?2";

const SIZE_OF_SCOPE: &str =
    "SELECT coalesce(sum(size), 0) FROM agent_memory WHERE tenant = ?1 AND scope = ?2";

/// Where a row is.
#[derive(Debug)]
struct Place {
    scope: String,
    id: String,
    written_at: i64,
    run: String,
    seq: i64,
}

/// Rows that nobody can read any more.
#[derive(Debug)]
struct Forgettable {
    replaced: Vec<Place>,
    over: Vec<Place>,
}

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

fn next_tenant(conn: &Connection, after: Option<&TenantId>) -> Result<Option<TenantId>, Fault> {
    let mut statement = conn.prepare_cached(NEXT_TENANT)?;
    // The empty string sorts before every tenant.
    let mut found = statement.query([after.map_or("", TenantId::as_str)])?;
    found
        .next()?
        .map(|row| rows::id(row, 0, TenantId::parse))
        .transpose()
}

fn places(conn: &Connection, sql: &str, values: impl Params) -> Result<Vec<Place>, Fault> {
    let mut statement = conn.prepare_cached(sql)?;
    let found = statement.query_map(values, |row| {
        Ok(Place {
            scope: row.get(0)?,
            id: row.get(1)?,
            written_at: row.get(2)?,
            run: row.get(3)?,
            seq: row.get(4)?,
        })
    })?;
    Ok(found.collect::<Result<_, _>>()?)
}

fn forgettable(
    conn: &Connection,
    tenant: &TenantId,
    (now, before): (i64, i64),
    limit: usize,
) -> Result<Forgettable, Fault> {
    let tenant = tenant.as_str();
    let replaced = places(conn, REPLACED, params![tenant, before, rows::limit(limit)])?;
    let left = rows::limit(limit.saturating_sub(replaced.len()));
    let over = places(conn, OVER, params![tenant, now, before, left])?;
    Ok(Forgettable { replaced, over })
}

/// Deletes rows that could be forgotten a moment ago, unless they no longer can.
fn forget(conn: &Connection, tenant: &TenantId, rows: &Forgettable) -> Result<usize, Fault> {
    let mut n_forgotten = 0;
    for (sql, places) in [(DELETE_REPLACED, &rows.replaced), (DELETE_OVER, &rows.over)] {
        let mut delete = conn.prepare_cached(sql)?;
        for place in places {
            n_forgotten += delete.execute(params![
                tenant.as_str(),
                place.scope,
                place.id,
                place.written_at,
                place.run,
                place.seq,
            ])?;
        }
    }
    Ok(n_forgotten)
}

fn ended_scopes(conn: &Connection, tenant: &TenantId, limit: usize) -> Result<Vec<String>, Fault> {
    let mut statement = conn.prepare_cached(ENDED_SCOPES)?;
    let found = statement.query_map(params![tenant.as_str(), rows::limit(limit)], |row| row.get(0))?;
    Ok(found.collect::<Result<_, _>>()?)
}

fn forget_scopes(
    conn: &Connection,
    tenant: &TenantId,
    scopes: &[String],
    wanted: &MemoryRoom,
    limit: usize,
) -> Result<usize, Fault> {
    let tenant = tenant.as_str();
    let mut size = conn.prepare_cached(SIZE_OF_SCOPE)?;
    let mut mark = conn
        .prepare_cached("UPDATE runs SET memory_forgotten = 1 WHERE tenant = ?1 AND run = substr(?2, 5)")?;
    let mut delete = conn.prepare_cached("DELETE FROM agent_memory WHERE tenant = ?1 AND scope = ?2")?;
    let (mut freed, mut n_rows) = (MemoryRoom::default(), 0);
    for scope in scopes {
        if freed.covers(wanted) || n_rows >= limit {
            break;
        }
        let bytes: i64 = size.query_row([tenant, scope], |row| row.get(0))?;
        let n_deleted = delete.execute([tenant, scope])?;
        if n_deleted > 0 {
            mark.execute([tenant, scope])?;
        }
        n_rows += n_deleted;
        freed.rows += n_deleted as u64;
        freed.bytes += u64::try_from(bytes).unwrap_or(0);
    }
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

    async fn next_remembering(&self, after: Option<&TenantId>) -> Result<Option<TenantId>, ReadError> {
        let after = after.cloned();
        self.read(Lane::Work, move |conn| next_tenant(conn, after.as_ref()))
            .await
    }

    async fn forget_memory(
        &self,
        tenant: &TenantId,
        now: Timestamp,
        before: Timestamp,
        limit: usize,
    ) -> Result<usize, WriteError> {
        let tenant = tenant.clone();
        let of = tenant.clone();
        let times = (now.millis(), before.millis());
        // A reader looks for them: all that the tenant remembers has to be looked at.
        let found = self
            .read(Lane::Look(tenant.clone()), move |conn| {
                forgettable(conn, &of, times, limit)
            })
            .await?;
        if found.replaced.is_empty() && found.over.is_empty() {
            return Ok(0);
        }
        self.write(SMALL, move |conn| forget(conn, &tenant, &found)).await
    }

    async fn forget_ended_scopes(
        &self,
        tenant: &TenantId,
        wanted: MemoryRoom,
        limit: usize,
    ) -> Result<usize, WriteError> {
        let tenant = tenant.clone();
        let of = tenant.clone();
        // A run that has ended does not begin again. Each scope has a row at least.
        let scopes = self
            .read(Lane::Look(tenant.clone()), move |conn| {
                ended_scopes(conn, &of, limit)
            })
            .await?;
        if scopes.is_empty() {
            return Ok(0);
        }
        self.write(SMALL, move |conn| {
            forget_scopes(conn, &tenant, &scopes, &wanted, limit)
        })
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sqlite::schema::tests::{assert_indexed, database};

    #[test]
    fn tidying_reads_rows_of_one_tenant() {
        let (_files, conn) = database();
        let reads = [COUNT, NEXT_TENANT, REPLACED, SIZE_OF_SCOPE];
        assert_indexed(&conn, reads.into_iter().chain([DELETE_REPLACED, DELETE_OVER]));
    }
}
