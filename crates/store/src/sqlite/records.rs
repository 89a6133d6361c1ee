//! Idempotency records, with an index in two levels.
//!
//! ```text
//!   record ──> idempotency, appended              durable with its batch
//!         └──> recent, in memory                  found by hash
//!                  └── in bulk, ordered by hash ──> idempotency_index
//! ```
//!
//! An index updated with each record would write one random page per record, twice: most of the cost of a
//! small run. So a record is only appended to its table, and the latest records are indexed in memory. Once
//! there are many, the writer's groups move a few at a time into the index, sorted, so that neighbours share
//! pages. The memory index can be rebuilt from the table: it covers all records after the last one known to
//! be indexed.
//!
//! Entries at both levels are only hints. The record may have been rolled back or deleted.

use std::{collections::BTreeSet, ops::Bound, sync::Arc};

use parking_lot::Mutex;
use rusqlite::{Connection, params};
use wopr_core::Timestamp;

use super::{
    fault::{Failure, Fault},
    job::Job,
    rows,
    session::Session,
};
use crate::{IdempotencyKey, IdempotencyRecord};

/// Number of recent records from which they are indexed. A start reads them, and each takes about 40 bytes of
/// memory.
pub(super) const MANY: usize = 32 << 10;

/// Records indexed per write. Larger than 1, so that indexing finishes before as many new records arrive.
const STEP: usize = 4;

/// The place up to which all records are known to be indexed.
const INDEXED: &str = "SELECT place FROM idempotency_indexed";

/// The statements of every record; see [`Session`].
const PLACES: &str = "SELECT place FROM idempotency_index WHERE hash = ?1 ORDER BY place DESC";
const INSERT: &str = "\
    INSERT INTO idempotency (place, hash, tenant, principal, scope, key, digest, run, response, expires_at)
     VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10)";

/// The possible location of a record: the hash of its key and its place in the table.
type Entry = (i64, i64);

/// The index of all records, including recent ones.
#[derive(Debug)]
pub(super) struct Records(Mutex<Inner>);

#[derive(Debug)]
struct Inner {
    /// Number of recent records from which they are indexed.
    many: usize,
    /// Every record that may be missing from the index, by hash.
    recent: BTreeSet<Entry>,
    /// Larger than the place of every record that exists or existed when it was indexed.
    next: i64,
    pass: Option<Pass>,
}

/// One pass over the recent records, in order of hash.
#[derive(Debug, Clone, Copy)]
struct Pass {
    /// When the pass has ended, all records before this place are indexed.
    until: i64,
    after: Entry,
}

/// The result of looking up a key.
#[derive(Debug)]
pub(super) enum Found {
    /// An unexpired record.
    Record(IdempotencyRecord),
    /// The place of an expired record.
    Expired(i64),
    Nothing,
}

impl Found {
    pub(super) fn unexpired(self) -> Option<IdempotencyRecord> {
        match self {
            Self::Record(record) => Some(record),
            Self::Expired(_) | Self::Nothing => None,
        }
    }

    /// The place of an expired record, which can be overwritten.
    pub(super) fn expired(&self) -> Option<i64> {
        match self {
            Self::Expired(place) => Some(*place),
            Self::Record(_) | Self::Nothing => None,
        }
    }
}

impl Records {
    /// Loads the recent records. Indexing starts once there are `many`.
    pub(super) fn load(conn: &Connection, many: usize) -> rusqlite::Result<Self> {
        let indexed: i64 = conn.query_row(INDEXED, [], |row| row.get(0))?;
        let last: Option<i64> = conn.query_row("SELECT max(place) FROM idempotency", [], |row| row.get(0))?;
        let mut statement = conn.prepare("SELECT hash, place FROM idempotency WHERE place > ?1")?;
        let recent = statement.query_map([indexed], |row| Ok((row.get(0)?, row.get(1)?)))?;
        Ok(Self(Mutex::new(Inner {
            many,
            recent: recent.collect::<rusqlite::Result<_>>()?,
            next: last.unwrap_or(0).max(indexed) + 1,
            pass: None,
        })))
    }

    /// Finds the record of a request. Memory is searched before the database, because a record is added to
    /// the index before it leaves memory.
    pub(super) fn find(
        &self,
        conn: &Session<'_>,
        key: &IdempotencyKey,
        now: Timestamp,
    ) -> Result<Found, Fault> {
        let hash = hash(key);
        let recent: Vec<i64> = {
            let inner = self.0.lock();
            let here = inner.recent.range((hash, i64::MIN)..=(hash, i64::MAX));
            here.rev().map(|(_, place)| *place).collect()
        };
        for place in recent {
            let found = read(conn, place, key, now)?;
            if !matches!(found, Found::Nothing) {
                return Ok(found);
            }
        }
        conn.with(PLACES, |places| {
            let mut indexed = places.query([hash])?;
            while let Some(row) = indexed.next()? {
                let found = read(conn, row.get(0)?, key, now)?;
                if !matches!(found, Found::Nothing) {
                    return Ok(found);
                }
            }
            Ok(Found::Nothing)
        })
    }

    /// Writes a record, overwriting an expired one of the same key.
    pub(super) fn write(
        &self,
        conn: &Session<'_>,
        record: &IdempotencyRecord,
        expired: Option<i64>,
    ) -> Result<(), Fault> {
        let run = record.run.as_ref().map(wopr_core::RunId::as_str);
        let expires_at = record.expires_at.millis();
        if let Some(place) = expired {
            conn.prepare_cached(
                "UPDATE idempotency SET digest = ?2, run = ?3, response = ?4, expires_at = ?5 WHERE place = ?1",
            )?
            .execute(params![place, record.digest, run, record.response, expires_at])?;
            return Ok(());
        }
        let hash = hash(&record.key);
        let place = {
            let mut inner = self.0.lock();
            let place = inner.next;
            inner.next += 1;
            inner.recent.insert((hash, place));
            place
        };
        conn.with(INSERT, |insert| {
            insert.execute(params![
                place,
                hash,
                record.key.tenant.as_str(),
                record.key.principal.as_str(),
                record.key.scope,
                record.key.key,
                record.digest,
                run,
                record.response,
                expires_at,
            ])
        })?;
        Ok(())
    }

    /// Returns the indexing job to run with a group of `writes` writes, if one is due.
    pub(super) fn due(self: &Arc<Self>, writes: usize) -> Option<Box<dyn Job>> {
        let mut inner = self.0.lock();
        if inner.pass.is_none() && inner.recent.len() < inner.many {
            return None;
        }
        let until = inner.next;
        let pass = *inner.pass.get_or_insert(Pass {
            until,
            after: (i64::MIN, i64::MIN),
        });
        let n_entries = writes.saturating_mul(STEP);
        let ahead = inner
            .recent
            .range((Bound::Excluded(pass.after), Bound::Unbounded));
        let entries: Vec<_> = ahead.take(n_entries).copied().collect();
        let ends_at = (entries.len() < n_entries).then_some(pass.until);
        drop(inner);
        Some(Box::new(Indexing {
            records: Arc::clone(self),
            entries,
            ends_at,
        }))
    }

    fn indexed(&self, entries: &[Entry], has_ended: bool) {
        let mut inner = self.0.lock();
        for entry in entries {
            inner.recent.remove(entry);
        }
        match (&mut inner.pass, entries.last()) {
            (pass, _) if has_ended => *pass = None,
            (Some(pass), Some(last)) => pass.after = *last,
            (Some(_) | None, _) => {}
        }
    }
}

/// One step of a pass. Entries that are already in the index are left as they are: an earlier step may have
/// been in doubt.
struct Indexing {
    records: Arc<Records>,
    entries: Vec<Entry>,
    /// If present, all records before this place are indexed once this step is done.
    ends_at: Option<i64>,
}

impl Job for Indexing {
    fn run(&mut self, conn: &Session<'_>) -> Result<bool, Fault> {
        let mut insert = conn.prepare_cached(
            "INSERT OR IGNORE INTO idempotency_index (hash, place)
             SELECT hash, place FROM idempotency WHERE place = ?1 AND hash = ?2",
        )?;
        for (hash, place) in &self.entries {
            insert.execute([place, hash])?;
        }
        if let Some(until) = self.ends_at {
            conn.prepare_cached("UPDATE idempotency_indexed SET place = ?1")?
                .execute([until - 1])?;
        }
        Ok(true)
    }

    fn settle(self: Box<Self>, outcome: Result<(), Failure>) {
        match outcome {
            Ok(()) => self.records.indexed(&self.entries, self.ends_at.is_some()),
            // The entries are still in memory, and the next step retries them.
            Err(failure) => tracing::warn!(failure = %failure.cause, "records of requests not indexed yet"),
        }
    }
}

pub(super) fn forget_expired(conn: &Connection, now: Timestamp, limit: usize) -> Result<usize, Fault> {
    let mut statement = conn.prepare_cached(
        "SELECT hash, place FROM idempotency INDEXED BY idempotency_by_expiry
         WHERE expires_at <= ?1 ORDER BY expires_at LIMIT ?2",
    )?;
    let expired = statement.query_map([now.millis(), rows::limit(limit)], |row| {
        Ok((row.get(0)?, row.get(1)?))
    })?;
    // In index order, so that neighbours share pages.
    let expired: BTreeSet<Entry> = expired.collect::<rusqlite::Result<_>>()?;
    let mut index = conn.prepare_cached("DELETE FROM idempotency_index WHERE hash = ?1 AND place = ?2")?;
    let mut table = conn.prepare_cached("DELETE FROM idempotency WHERE place = ?1")?;
    for (hash, place) in &expired {
        index.execute([hash, place])?;
        table.execute([place])?;
    }
    Ok(expired.len())
}

/// Reads the record at a place, if it belongs to this key.
fn read(conn: &Connection, place: i64, key: &IdempotencyKey, now: Timestamp) -> Result<Found, Fault> {
    let mut statement = conn.prepare_cached(
        "SELECT digest, run, response, expires_at FROM idempotency
         WHERE place = ?1 AND tenant = ?2 AND principal = ?3 AND scope = ?4 AND key = ?5",
    )?;
    let mut found = statement.query(params![
        place,
        key.tenant.as_str(),
        key.principal.as_str(),
        key.scope,
        key.key
    ])?;
    match found.next()? {
        Some(row) if rows::time(row, 3)? > now => Ok(Found::Record(rows::record(row, key)?)),
        Some(_) => Ok(Found::Expired(place)),
        None => Ok(Found::Nothing),
    }
}

/// Hashes a key. Stored, so it must never change: 64-bit FNV-1a over the parts, each followed by a byte that
/// occurs in none of them.
fn hash(key: &IdempotencyKey) -> i64 {
    const OFFSET: u64 = 0xcbf2_9ce4_8422_2325;
    const PRIME: u64 = 0x0100_0000_01b3;
    let parts = [key.tenant.as_str(), key.principal.as_str(), &key.scope, &key.key];
    let bytes = parts.iter().flat_map(|part| part.bytes().chain([0xff]));
    bytes
        .fold(OFFSET, |hash, byte| (hash ^ u64::from(byte)).wrapping_mul(PRIME))
        .cast_signed()
}

#[cfg(test)]
mod tests {
    use wopr_core::{PrincipalId, TenantId};

    use super::*;
    use crate::sqlite::schema::tests::database;

    const NOW: Timestamp = Timestamp::from_millis(10);

    fn key(n: usize) -> IdempotencyKey {
        IdempotencyKey {
            tenant: TenantId::parse("acme").expect("a tenant"),
            principal: PrincipalId::parse("ada").expect("a principal"),
            scope: "new".to_owned(),
            key: n.to_string(),
        }
    }

    fn record(n: usize, expires_at: i64) -> IdempotencyRecord {
        IdempotencyRecord {
            key: key(n),
            digest: format!("d{n}"),
            run: None,
            response: Vec::new(),
            expires_at: Timestamp::from_millis(expires_at),
        }
    }

    fn load(conn: &Connection, many: usize) -> Arc<Records> {
        Arc::new(Records::load(conn, many).expect("records"))
    }

    fn write(records: &Records, conn: &Connection, record: &IdempotencyRecord) {
        let expired = records
            .find(&Session::new(conn), &record.key, NOW)
            .expect("a look")
            .expired();
        records
            .write(&Session::new(conn), record, expired)
            .expect("a write");
    }

    fn digest(records: &Records, conn: &Connection, n: usize) -> Option<String> {
        let found = records.find(&Session::new(conn), &key(n), NOW).expect("a look");
        found.unexpired().map(|record| record.digest)
    }

    fn count(conn: &Connection, sql: &str) -> usize {
        let count: i64 = conn.query_row(sql, [], |row| row.get(0)).expect("a count");
        usize::try_from(count).expect("a small number")
    }

    fn n_indexed(conn: &Connection) -> usize {
        count(conn, "SELECT count(*) FROM idempotency_index")
    }

    fn n_recent(records: &Records) -> usize {
        records.0.lock().recent.len()
    }

    /// Runs an indexing step; `false` if none is due.
    fn step(records: &Arc<Records>, conn: &Connection, outcome: Result<(), Failure>) -> bool {
        let Some(mut job) = records.due(1) else {
            return false;
        };
        job.run(&Session::new(conn)).expect("a step");
        job.settle(outcome);
        true
    }

    #[test]
    fn hashes_are_stable() {
        assert_eq!(hash(&key(7)), -2_596_895_574_736_793_476);
        assert_ne!(hash(&key(7)), hash(&key(8)));
    }

    #[test]
    fn records_are_found_during_indexing() {
        let (_files, conn) = database();
        let records = load(&conn, 50);
        for n in 0..49 {
            write(&records, &conn, &record(n, 100));
            assert!(records.due(1).is_none(), "{n} are not many");
        }
        write(&records, &conn, &record(49, 100));
        let mut n_steps = 0;
        while step(&records, &conn, Ok(())) {
            n_steps += 1;
            // More records arrive meanwhile, and a process that starts now finds them as well.
            write(&records, &conn, &record(49 + n_steps, 100));
            let started = load(&conn, 50);
            for n in 0..50 + n_steps {
                let wanted = Some(format!("d{n}"));
                assert_eq!(digest(&records, &conn, n), wanted, "step {n_steps}");
                assert_eq!(digest(&started, &conn, n), wanted, "after step {n_steps}");
            }
            assert_eq!(digest(&records, &conn, 1_000), None);
        }
        assert!(n_steps > 50 / STEP, "{n_steps}");
        assert!(n_indexed(&conn) >= 50);
        assert_eq!(n_indexed(&conn) + n_recent(&records), 50 + n_steps);
        assert!(
            n_recent(&load(&conn, 50)) <= n_steps,
            "the others need not be read"
        );
    }

    #[test]
    fn an_indexing_step_in_doubt_is_retried() {
        let (_files, conn) = database();
        let records = load(&conn, 6);
        for n in 0..6 {
            write(&records, &conn, &record(n, 100));
        }
        assert!(step(&records, &conn, Err(Failure::in_doubt(String::new()))));
        assert_eq!((n_indexed(&conn), n_recent(&records)), (STEP, 6));
        while step(&records, &conn, Ok(())) {}
        assert_eq!((n_indexed(&conn), n_recent(&records)), (6, 0));
    }

    #[test]
    fn entries_of_deleted_records_are_ignored() {
        let (_files, conn) = database();
        let records = load(&conn, 4);
        conn.execute_batch("BEGIN").expect("begin");
        write(&records, &conn, &record(0, 100));
        conn.execute_batch("ROLLBACK").expect("roll back");
        write(&records, &conn, &record(1, 5));
        assert_eq!(forget_expired(&conn, NOW, 10).expect("forget"), 1);
        for n in 2..4 {
            write(&records, &conn, &record(n, 100));
        }
        for n in 0..2 {
            assert_eq!(digest(&records, &conn, n), None);
        }
        while step(&records, &conn, Ok(())) {}
        assert_eq!(n_indexed(&conn), 2);
        assert_eq!(
            forget_expired(&conn, Timestamp::from_millis(100), 1).expect("forget"),
            1
        );
        assert_eq!(
            forget_expired(&conn, Timestamp::from_millis(100), 9).expect("forget"),
            1
        );
        assert_eq!(n_indexed(&conn), 0);
        // A place is not reused, although the table is empty.
        assert_eq!(load(&conn, 4).0.lock().next, 5);
    }

    #[test]
    fn expired_records_are_overwritten_before_and_after_indexing() {
        let (_files, conn) = database();
        for many in [100, 1] {
            let records = load(&conn, many);
            write(&records, &conn, &record(many, 10));
            while step(&records, &conn, Ok(())) {}
            assert_eq!(digest(&records, &conn, many), None, "expired");
            write(&records, &conn, &record(many, 11));
            assert_eq!(digest(&records, &conn, many), Some(format!("d{many}")));
        }
        assert_eq!(count(&conn, "SELECT count(*) FROM idempotency"), 2);
    }
}
