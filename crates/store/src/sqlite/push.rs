//! Subscriptions and deliveries in SQL.

use async_trait::async_trait;
use rusqlite::{Connection, Row, params};
use wopr_core::{RunId, RunKey, Seq, Timestamp};

use super::{
    SqliteStore,
    fault::Fault,
    lanes::Lane,
    queue::SMALL,
    retention::{is_gone, listed},
    rows, work,
};
use crate::{
    AppendError, Attempted, Batch, DeliveryCursor, DeliveryFilter, DeliveryRow, Epoch, Fence, Guard, NewPush,
    OutboxRow, Pending, PushRow, Pushes, Put, ReadError, Then, Update, WorkKey, WorkRow, WriteError,
};

/// The columns that [`delivery`] reads.
macro_rules! delivery_columns {
    () => {
        "tenant, run, push, seq, body, enqueued_at, attempts, error, dead_at"
    };
}

const OF_RUN: &str = concat!(
    "SELECT id, body, created_at FROM pushes WHERE tenant = ?1 AND run = ?2",
    listed!("pushes"),
);

const OUTBOX: &str = concat!(
    "SELECT tenant, run, from_seq, to_seq FROM outbox
     WHERE (tenant, run) > (?1, ?2) AND deaths < 20",
    listed!("outbox"),
    " ORDER BY tenant, run LIMIT ?3"
);

const WAITING: &str = concat!(
    "SELECT ",
    delivery_columns!(),
    " FROM deliveries INDEXED BY deliveries_waiting
     WHERE tenant = ?1 AND run = ?2 AND push = ?3 AND dead_at IS NULL ORDER BY seq LIMIT ?4"
);

/// Selects from a position on, up to the run in parameter 5, and only runs of principal 7 if it is set.
macro_rules! list {
    ($index:literal, $condition:literal) => {
        concat!(
            "SELECT ",
            delivery_columns!(),
            " FROM deliveries ",
            $index,
            " WHERE tenant = ?1 AND (run, push, seq) > (?2, ?3, ?4) AND run <= ?5",
            $condition,
            " AND (?7 IS NULL OR EXISTS (
                 SELECT 1 FROM runs WHERE runs.tenant = deliveries.tenant AND runs.run = deliveries.run
                     AND runs.principal = ?7))",
            listed!("deliveries"),
            " ORDER BY run, push, seq LIMIT ?6"
        )
    };
}

const LIST: &str = list!("", "");
const LIST_DEAD: &str = list!("INDEXED BY deliveries_dead", " AND dead_at IS NOT NULL");

/// Sorts after every run id.
const BEHIND_EVERY_RUN: &str = "~";

/// Checks the subscription of a batch before anything is written.
pub(super) fn judge_along(
    conn: &Connection,
    batch: &Batch,
    push: &NewPush,
) -> Result<Option<AppendError>, Fault> {
    let (tenant, run) = (batch.run.tenant.as_str(), push.run.as_str());
    let full = AppendError::Full(push.most);
    if batch.guard == Guard::Create && push.run == batch.run.run {
        return Ok((push.most == 0).then_some(full));
    }
    let Some((n_pushes, _)) = receivers(conn, &batch.run.sibling(push.run.clone()))? else {
        return Ok(Some(AppendError::Missing));
    };
    if n_pushes < push.most as u64 {
        return Ok(None);
    }
    let is_known = conn
        .prepare_cached("SELECT 1 FROM pushes WHERE tenant = ?1 AND run = ?2 AND id = ?3")?
        .exists([tenant, run, &push.row.id])?;
    Ok((!is_known).then_some(full))
}

/// Registers the subscription of a batch whose guard held.
pub(super) fn put_along(conn: &Connection, batch: &Batch, push: &NewPush) -> Result<(), Fault> {
    let run = batch.run.sibling(push.run.clone());
    let is_own = run == batch.run;
    let since = is_own.then(|| batch.expected());
    match put(conn, &run, push, since)? {
        Put::Added | Put::Replaced => {}
        Put::Full | Put::Missing => return Err(Fault::Damaged("receivers are not as counted".into())),
    }
    if is_own {
        note(conn, &run, batch.expected(), batch.head())?;
    }
    Ok(())
}

/// Adds a subscription that covers events from `since` on.
fn add(conn: &Connection, run: &RunKey, push: &NewPush, since: Seq) -> Result<(), Fault> {
    let row = &push.row;
    conn.prepare_cached(
        "INSERT INTO pushes (tenant, run, id, body, created_at, since) VALUES (?1, ?2, ?3, ?4, ?5, ?6)",
    )?
    .execute(params![
        run.tenant.as_str(),
        run.run.as_str(),
        row.id,
        row.body,
        row.created_at.millis(),
        rows::int(since.0),
    ])?;
    work::set(conn, run, &WorkRow::subscription(&row.id), push.now)
}

/// Adds events to the outbox row of a run with subscriptions.
pub(super) fn note(conn: &Connection, run: &RunKey, from: Seq, to: Seq) -> Result<(), Fault> {
    if from == to {
        return Ok(());
    }
    conn.prepare_cached(
        "INSERT INTO outbox (tenant, run, from_seq, to_seq) VALUES (?1, ?2, ?3, ?4)
         ON CONFLICT (tenant, run) DO UPDATE SET to_seq = excluded.to_seq",
    )?
    .execute(params![
        run.tenant.as_str(),
        run.run.as_str(),
        rows::int(from.0),
        rows::int(to.0)
    ])?;
    Ok(())
}

/// Returns the number of subscriptions of a run and the number of its events; `None` if the run does not
/// exist.
fn receivers(conn: &Connection, run: &RunKey) -> Result<Option<(u64, Seq)>, Fault> {
    let of_run = {
        let mut statement =
            conn.prepare_cached("SELECT pushes, next_seq FROM runs WHERE tenant = ?1 AND run = ?2")?;
        let mut found = statement.query([run.tenant.as_str(), run.run.as_str()])?;
        match found.next()? {
            Some(row) => (rows::count(row, 0)?, rows::seq(row, 1)?),
            None => return Ok(None),
        }
    };
    Ok((!is_gone(conn, run)?).then_some(of_run))
}

/// Registers a subscription. A new one covers events from `since`, or from the end of the log.
fn put(conn: &Connection, run: &RunKey, push: &NewPush, since: Option<Seq>) -> Result<Put, Fault> {
    let row = &push.row;
    let (tenant, id) = (run.tenant.as_str(), run.run.as_str());
    let Some((n_pushes, head)) = receivers(conn, run)? else {
        return Ok(Put::Missing);
    };
    let replaced = conn
        .prepare_cached(
            "UPDATE pushes SET body = ?4, created_at = ?5 WHERE tenant = ?1 AND run = ?2 AND id = ?3",
        )?
        .execute(params![tenant, id, row.id, row.body, row.created_at.millis()])?;
    if replaced == 1 {
        conn.prepare_cached(
            // A delivery that still uses the old subscription loses its lease.
            "UPDATE work SET fence = fence + 1, epoch = NULL, woken = NULL,
                 due = CASE WHEN due IS NOT NULL THEN ?4 END
             WHERE tenant = ?1 AND run = ?2 AND queue = 2 AND key = ?3",
        )?
        .execute(params![tenant, id, row.id, push.now.millis()])?;
        return Ok(Put::Replaced);
    }
    if n_pushes >= push.most as u64 {
        return Ok(Put::Full);
    }
    add(conn, run, push, since.unwrap_or(head))?;
    conn.prepare_cached("UPDATE runs SET pushes = pushes + 1 WHERE tenant = ?1 AND run = ?2")?
        .execute([tenant, id])?;
    Ok(Put::Added)
}

fn of_run(conn: &Connection, run: &RunKey) -> Result<Vec<PushRow>, Fault> {
    let mut statement = conn.prepare_cached(OF_RUN)?;
    let mut found = statement.query([run.tenant.as_str(), run.run.as_str()])?;
    let mut pushes = Vec::new();
    while let Some(row) = found.next()? {
        pushes.push(PushRow {
            id: rows::text(row, 0)?.to_owned(),
            body: rows::bytes(row, 1)?,
            created_at: rows::time(row, 2)?,
        });
    }
    // A run has few subscriptions and clients read them rarely, so no index orders them.
    pushes.sort_by(|a, b| (a.created_at, &a.id).cmp(&(b.created_at, &b.id)));
    Ok(pushes)
}

fn remove(conn: &Connection, run: &RunKey, id: &str) -> Result<bool, Fault> {
    let key = (run.tenant.as_str(), run.run.as_str());
    let removed = conn
        .prepare_cached("DELETE FROM pushes WHERE tenant = ?1 AND run = ?2 AND id = ?3")?
        .execute((key.0, key.1, id))?;
    if removed == 0 {
        return Ok(false);
    }
    work::end(conn, run, &WorkKey::delivery(id))?;
    conn.prepare_cached("DELETE FROM deliveries WHERE tenant = ?1 AND run = ?2 AND push = ?3")?
        .execute((key.0, key.1, id))?;
    conn.prepare_cached("UPDATE runs SET pushes = pushes - 1 WHERE tenant = ?1 AND run = ?2")?
        .execute(key)?;
    Ok(true)
}

fn outbox(conn: &Connection, after: Option<&RunKey>, limit: usize) -> Result<Vec<OutboxRow>, Fault> {
    // The empty string sorts before every id.
    let (tenant, run) = after.map_or(("", ""), |key| (key.tenant.as_str(), key.run.as_str()));
    let mut statement = conn.prepare_cached(OUTBOX)?;
    let mut found = statement.query(params![tenant, run, rows::limit(limit)])?;
    let mut notes = Vec::new();
    while let Some(row) = found.next()? {
        notes.push(OutboxRow {
            run: rows::run_key(row, 0)?,
            from: rows::seq(row, 2)?,
            to: rows::seq(row, 3)?,
        });
    }
    Ok(notes)
}

fn expand(conn: &Connection, note: &OutboxRow, updates: &[Update], now: Timestamp) -> Result<bool, Fault> {
    let (tenant, run) = (note.run.tenant.as_str(), note.run.run.as_str());
    let (from, to) = (rows::int(note.from.0), rows::int(note.to.0));
    let key = params![tenant, run, from, to];
    let taken = conn
        .prepare_cached(
            "DELETE FROM outbox WHERE tenant = ?1 AND run = ?2 AND from_seq = ?3 AND to_seq = ?4",
        )?
        .execute(key)?;
    if taken == 0 {
        let moved = conn
            .prepare_cached(
                "UPDATE outbox SET from_seq = ?4, epoch = NULL, deaths = 0
                 WHERE tenant = ?1 AND run = ?2 AND from_seq = ?3 AND to_seq > ?4",
            )?
            .execute(key)?;
        if moved == 0 {
            return Ok(false);
        }
    }
    if updates.is_empty() {
        return Ok(true);
    }
    conn.prepare_cached(
        // A subscription in backoff stays in it.
        "UPDATE work SET due = coalesce(due, ?3), woken = CASE WHEN epoch IS NOT NULL THEN coalesce(woken, ?3) END
         WHERE tenant = ?1 AND run = ?2 AND queue = 2",
    )?
    .execute(params![tenant, run, now.millis()])?;
    let mut insert = conn.prepare_cached(
        "INSERT INTO deliveries (tenant, run, push, seq, body, enqueued_at, attempts, error, dead_at)
         SELECT tenant, run, id, ?3, ?4, ?5, 0, NULL, NULL FROM pushes
         WHERE tenant = ?1 AND run = ?2 AND since <= ?3
         ON CONFLICT DO NOTHING",
    )?;
    for update in updates {
        insert.execute(params![
            tenant,
            run,
            rows::int(update.seq.0),
            update.body,
            now.millis()
        ])?;
    }
    Ok(true)
}

fn waiting(conn: &Connection, run: &RunKey, push: &str, limit: usize) -> Result<Pending, Fault> {
    let (tenant, id) = (run.tenant.as_str(), run.run.as_str());
    let mut statement = conn.prepare_cached(WAITING)?;
    let deliveries = deliveries(statement.query(params![tenant, id, push, rows::limit(limit)])?)?;
    if deliveries.is_empty() {
        return Ok(Pending::default());
    }
    let mut statement =
        conn.prepare_cached("SELECT body FROM pushes WHERE tenant = ?1 AND run = ?2 AND id = ?3")?;
    let mut found = statement.query([tenant, id, push])?;
    match found.next()? {
        Some(row) => Ok(Pending {
            receiver: rows::bytes(row, 0)?,
            deliveries,
        }),
        None => Ok(Pending::default()),
    }
}

fn settle(
    conn: &Connection,
    run: &RunKey,
    push: &str,
    fence: Fence,
    (seq, attempted): &(Seq, Attempted),
    then: Then,
) -> Result<bool, Fault> {
    if !work::set_lease(conn, run, &WorkKey::delivery(push), fence, then, None)? {
        return Ok(false);
    }
    let key = (run.tenant.as_str(), run.run.as_str(), push);
    conn.prepare_cached(
        "UPDATE work SET deaths = 0
         WHERE tenant = ?1 AND run = ?2 AND queue = 2 AND key = ?3 AND deaths > 0",
    )?
    .execute(key)?;
    let seq = rows::int(seq.0);
    let (error, dead_at) = match attempted {
        Attempted::Delivered => {
            conn.prepare_cached(
                "DELETE FROM deliveries WHERE tenant = ?1 AND run = ?2 AND push = ?3 AND seq = ?4",
            )?
            .execute(params![key.0, key.1, key.2, seq])?;
            return Ok(true);
        }
        Attempted::Failed { error } => (error, None),
        Attempted::GivenUp { error, at } => (error, Some(at.millis())),
    };
    conn.prepare_cached(
        "UPDATE deliveries SET attempts = attempts + 1, error = ?5, dead_at = ?6
         WHERE tenant = ?1 AND run = ?2 AND push = ?3 AND seq = ?4",
    )?
    .execute(params![key.0, key.1, key.2, seq, error, dead_at])?;
    Ok(true)
}

fn list(
    conn: &Connection,
    filter: &DeliveryFilter,
    after: Option<&DeliveryCursor>,
    limit: usize,
) -> Result<Vec<DeliveryRow>, Fault> {
    let run = filter.run.as_ref().map(RunId::as_str);
    let (from, push, seq) = filter.start(after);
    let mut statement = conn.prepare_cached(if filter.given_up { LIST_DEAD } else { LIST })?;
    let found = statement.query(params![
        filter.tenant.as_str(),
        from,
        push,
        seq,
        run.unwrap_or(BEHIND_EVERY_RUN),
        rows::limit(limit),
        filter.principal.as_ref().map(wopr_core::PrincipalId::as_str)
    ])?;
    deliveries(found)
}

fn retry(
    conn: &Connection,
    run: &RunKey,
    push: &str,
    seq: Option<Seq>,
    now: Timestamp,
) -> Result<usize, Fault> {
    if is_gone(conn, run)? {
        return Ok(0);
    }
    let (tenant, id) = (run.tenant.as_str(), run.run.as_str());
    conn.prepare_cached("UPDATE outbox SET epoch = NULL, deaths = 0 WHERE tenant = ?1 AND run = ?2")?
        .execute([tenant, id])?;
    let n_retried = conn
        .prepare_cached(
            "UPDATE deliveries SET dead_at = NULL, attempts = 0, enqueued_at = ?5
             WHERE tenant = ?1 AND run = ?2 AND push = ?3 AND dead_at IS NOT NULL AND (?4 IS NULL OR seq = ?4)",
        )?
        .execute(params![
            tenant,
            id,
            push,
            seq.map(|seq| rows::int(seq.0)),
            now.millis()
        ])?;
    if n_retried > 0 {
        work::wake(conn, run, &WorkKey::delivery(push), now)?;
    }
    Ok(n_retried)
}

fn deliveries(mut found: rusqlite::Rows<'_>) -> Result<Vec<DeliveryRow>, Fault> {
    let mut deliveries = Vec::new();
    while let Some(row) = found.next()? {
        deliveries.push(delivery(row)?);
    }
    Ok(deliveries)
}

fn delivery(row: &Row<'_>) -> Result<DeliveryRow, Fault> {
    Ok(DeliveryRow {
        run: rows::run_key(row, 0)?,
        push: rows::text(row, 2)?.to_owned(),
        seq: rows::seq(row, 3)?,
        body: rows::bytes(row, 4)?,
        enqueued_at: rows::time(row, 5)?,
        attempts: rows::count(row, 6)?,
        error: rows::opt_text(row, 7)?.map(str::to_owned),
        dead_at: rows::opt_time(row, 8)?,
    })
}

#[async_trait]
impl Pushes for SqliteStore {
    async fn put_push(
        &self,
        run: &RunKey,
        row: PushRow,
        most: usize,
        now: Timestamp,
    ) -> Result<Put, WriteError> {
        let run = run.clone();
        let bytes = SMALL + row.body.len();
        let push = NewPush {
            run: run.run.clone(),
            row,
            most,
            now,
        };
        self.write(bytes, move |conn| put(conn, &run, &push, None)).await
    }

    async fn pushes(&self, run: &RunKey) -> Result<Vec<PushRow>, ReadError> {
        let run = run.clone();
        self.read(Lane::Look(run.tenant.clone()), move |conn| of_run(conn, &run))
            .await
    }

    async fn drop_push(&self, run: &RunKey, id: &str) -> Result<bool, WriteError> {
        let (run, id) = (run.clone(), id.to_owned());
        self.write(SMALL, move |conn| remove(conn, &run, &id)).await
    }

    async fn outbox(
        &self,
        _epoch: Epoch,
        after: Option<&RunKey>,
        limit: usize,
    ) -> Result<Vec<OutboxRow>, ReadError> {
        let after = after.cloned();
        self.read(Lane::Work, move |conn| outbox(conn, after.as_ref(), limit))
            .await
    }

    async fn expand(&self, row: &OutboxRow, updates: &[Update], now: Timestamp) -> Result<bool, WriteError> {
        let (row, updates) = (row.clone(), updates.to_vec());
        let bytes = SMALL + updates.iter().map(|update| update.body.len()).sum::<usize>();
        self.write(bytes, move |conn| expand(conn, &row, &updates, now))
            .await
    }

    async fn waiting(&self, run: &RunKey, push: &str, limit: usize) -> Result<Pending, ReadError> {
        let (run, push) = (run.clone(), push.to_owned());
        self.read(Lane::Work, move |conn| waiting(conn, &run, &push, limit))
            .await
    }

    async fn settle_push(
        &self,
        run: &RunKey,
        push: &str,
        fence: Fence,
        attempted: (Seq, Attempted),
        then: Then,
    ) -> Result<bool, WriteError> {
        let (run, push) = (run.clone(), push.to_owned());
        self.write(SMALL, move |conn| {
            settle(conn, &run, &push, fence, &attempted, then)
        })
        .await
    }

    async fn deliveries(
        &self,
        filter: &DeliveryFilter,
        after: Option<&DeliveryCursor>,
        limit: usize,
    ) -> Result<Vec<DeliveryRow>, ReadError> {
        let (filter, after) = (filter.clone(), after.cloned());
        self.read(Lane::List(filter.tenant.clone()), move |conn| {
            list(conn, &filter, after.as_ref(), limit)
        })
        .await
    }

    async fn retry_push(
        &self,
        run: &RunKey,
        push: &str,
        seq: Option<Seq>,
        now: Timestamp,
    ) -> Result<usize, WriteError> {
        let (run, push) = (run.clone(), push.to_owned());
        self.write(SMALL, move |conn| retry(conn, &run, &push, seq, now))
            .await
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sqlite::schema::tests::{assert_indexed, database};

    #[test]
    fn polling_for_deliveries_reads_only_matching_rows() {
        let (_files, conn) = database();
        assert_indexed(&conn, [OF_RUN, OUTBOX, WAITING, LIST, LIST_DEAD]);
    }
}
