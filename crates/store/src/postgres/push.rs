//! Subscriptions and deliveries in SQL, each call one statement and so one transaction.
//!
//! A statement that waited for a row lock sees the current version of that row, but older versions of all
//! other rows. So every decision rests on the locked row: the number of subscriptions is in the row of the
//! run, and the note that deliveries were added (`woken`) is in the work row of the subscription. Pending
//! deliveries are read by a separate statement after the lease.

use async_trait::async_trait;
use tokio_postgres::Row;
use wopr_core::{RunId, RunKey, Seq, Timestamp};

use super::{
    PostgresStore,
    fault::Fault,
    pool::Pool,
    retention::{listed, present},
    round::{Round, Value, value},
    rows,
    work::{lease_update, lease_values},
};
use crate::{
    Attempted, Batch, DeliveryCursor, DeliveryFilter, DeliveryRow, Epoch, Fence, NewPush, OutboxRow, Pending,
    PushRow, Pushes, Put, ReadError, Then, Update, WorkKey, WorkRow, WriteError,
};

/// The columns that [`delivery`] reads.
macro_rules! delivery_columns {
    () => {
        "tenant, run, push, seq, body, enqueued_at, attempts, error, dead_at"
    };
}

const NOTE: &str = "INSERT INTO outbox (tenant, run, from_seq, to_seq) VALUES ($1, $2, $3, $4)
     ON CONFLICT (tenant, run) DO UPDATE SET to_seq = excluded.to_seq";

/// A new subscription covers events from parameter 9, or from the end of the log.
const PUT: &str = concat!(
    "WITH the_run AS (
         SELECT tenant, run FROM runs WHERE tenant = $1 AND run = $2",
    present!(),
    "),
     replaced AS (
         UPDATE pushes SET body = $4, created_at = $5
         WHERE tenant = $1 AND run = $2 AND id = $3 AND EXISTS (SELECT FROM the_run) RETURNING 1),
     unleased AS (
         UPDATE work SET fence = fence + 1, epoch = NULL, woken = NULL,
             due = CASE WHEN due IS NOT NULL THEN $7::bigint END
         WHERE tenant = $1 AND run = $2 AND queue = 2 AND key = $3 AND EXISTS (SELECT FROM replaced)),
     counted AS (
         UPDATE runs SET pushes = pushes + 1
         WHERE tenant = $1 AND run = $2 AND pushes < $6 AND EXISTS (SELECT FROM the_run)
             AND NOT EXISTS (SELECT FROM replaced)
         RETURNING next_seq),
     added AS (
         INSERT INTO pushes (tenant, run, id, body, created_at, since)
         SELECT $1, $2, $3, $4, $5, coalesce($9::bigint, next_seq) FROM counted RETURNING 1),
     work_added AS (
         INSERT INTO work (tenant, run, queue, key, body, fence)
         SELECT $1, $2, 2, $3, '', $8 FROM added)
     SELECT EXISTS (SELECT FROM the_run), EXISTS (SELECT FROM replaced), EXISTS (SELECT FROM added)"
);

/// Locks the row of a run, so that the next statement sees subscriptions added concurrently.
const LOCK: &str = "SELECT FROM runs WHERE tenant = $1 AND run = $2 FOR NO KEY UPDATE";

const OF_RUN: &str = concat!(
    "SELECT id, body, created_at FROM pushes WHERE tenant = $1 AND run = $2",
    listed!("pushes"),
    " ORDER BY created_at, id"
);

/// Locks the row of the run first, as appends do.
const DROP: &str = "WITH the_run AS (
         SELECT FROM runs WHERE tenant = $1 AND run = $2 FOR NO KEY UPDATE),
     dropped AS (
         DELETE FROM pushes
         WHERE tenant = $1 AND run = $2 AND id = $3 AND EXISTS (SELECT FROM the_run) RETURNING 1),
     ended AS (
         DELETE FROM work
         WHERE tenant = $1 AND run = $2 AND queue = 2 AND key = $3 AND EXISTS (SELECT FROM dropped)),
     forgotten AS (
         DELETE FROM deliveries WHERE tenant = $1 AND run = $2 AND push = $3 AND EXISTS (SELECT FROM dropped))
     UPDATE runs SET pushes = pushes - 1 WHERE tenant = $1 AND run = $2 AND EXISTS (SELECT FROM dropped)
     RETURNING 1";

const OUTBOX: &str = concat!(
    "SELECT tenant, run, from_seq, to_seq FROM outbox
     WHERE (tenant, run) > ($1, $2) AND deaths < 20 AND (epoch IS NULL OR epoch = $4)",
    listed!("outbox"),
    " ORDER BY tenant, run LIMIT $3"
);

/// Locks the work rows of the subscriptions before inserting deliveries, so that none is dropped meanwhile. A
/// subscription in backoff stays in it.
const EXPAND: &str = "WITH taken AS (
         DELETE FROM outbox WHERE tenant = $1 AND run = $2 AND from_seq = $3 AND to_seq = $4 RETURNING 1),
     moved AS (
         UPDATE outbox SET from_seq = $4, epoch = NULL, deaths = 0
         WHERE tenant = $1 AND run = $2 AND from_seq = $3 AND to_seq > $4 RETURNING 1),
     told AS (
         UPDATE work SET due = coalesce(due, $5),
             woken = CASE WHEN epoch IS NOT NULL THEN coalesce(woken, $5) END
         WHERE tenant = $1 AND run = $2 AND queue = 2 AND cardinality($6::bigint[]) > 0
             AND (EXISTS (SELECT FROM taken) OR EXISTS (SELECT FROM moved))
         RETURNING key),
     made AS (
         INSERT INTO deliveries (tenant, run, push, seq, body, enqueued_at, attempts)
         SELECT $1, $2, p.id, u.seq, u.body, $5, 0
         FROM told JOIN pushes AS p ON p.tenant = $1 AND p.run = $2 AND p.id = told.key,
             unnest($6::bigint[], $7::bytea[]) AS u (seq, body)
         WHERE u.seq >= p.since
         ON CONFLICT DO NOTHING)
     SELECT EXISTS (SELECT FROM taken) OR EXISTS (SELECT FROM moved)";

const WAITING: &str = concat!(
    "SELECT ",
    delivery_columns!(),
    " FROM deliveries WHERE tenant = $1 AND run = $2 AND push = $3 AND dead_at IS NULL ORDER BY seq LIMIT $4"
);

const RECEIVER: &str = "SELECT body FROM pushes WHERE tenant = $1 AND run = $2 AND id = $3";

/// Records the result of the attempt at the event in parameter 9: deletes the delivery or stores its error.
const SETTLE: &str = concat!(
    "WITH lease AS (",
    lease_update!("0"),
    "),
     delivered AS (
         DELETE FROM deliveries
         WHERE tenant = $1 AND run = $2 AND push = $4 AND seq = $9::bigint AND $10::text IS NULL
             AND EXISTS (SELECT FROM lease)),
     failed AS (
         UPDATE deliveries SET attempts = attempts + 1, error = $10::text, dead_at = $11::bigint
         WHERE tenant = $1 AND run = $2 AND push = $4 AND seq = $9::bigint AND $10::text IS NOT NULL
             AND EXISTS (SELECT FROM lease))
     SELECT FROM lease"
);

/// Selects from a position on, up to the run in parameter 5.
macro_rules! list {
    ($condition:literal) => {
        concat!(
            "SELECT ",
            delivery_columns!(),
            " FROM deliveries WHERE tenant = $1 AND (run, push, seq) > ($2, $3, $4) AND run <= $5",
            $condition,
            " AND ($7::text IS NULL OR EXISTS (
                 SELECT FROM runs WHERE runs.tenant = deliveries.tenant AND runs.run = deliveries.run
                     AND runs.principal = $7::text))",
            listed!("deliveries"),
            " ORDER BY run, push, seq LIMIT $6"
        )
    };
}

const LIST: &str = list!("");
const LIST_DEAD: &str = list!(" AND dead_at IS NOT NULL");

const RETRY: &str = concat!(
    "WITH retried AS (
         UPDATE deliveries SET dead_at = NULL, attempts = 0, enqueued_at = $5
         WHERE tenant = $1 AND run = $2 AND push = $3 AND dead_at IS NOT NULL
             AND ($4::bigint IS NULL OR seq = $4::bigint)",
    listed!("deliveries"),
    " RETURNING 1),
     released AS (
         UPDATE outbox SET epoch = NULL, deaths = 0 WHERE tenant = $1 AND run = $2),
     told AS (
         UPDATE work SET due = CASE WHEN epoch IS NULL THEN least(due, $5) ELSE due END,
             woken = CASE WHEN epoch IS NOT NULL THEN least(woken, $5) END
         WHERE tenant = $1 AND run = $2 AND queue = 2 AND key = $3 AND EXISTS (SELECT FROM retried))
     SELECT count(*) FROM retried"
);

/// Sorts after every run id.
const BEHIND_EVERY_RUN: &str = "~";

/// Registers the subscription of a batch, after the guard, which has locked the batch's own run.
pub(super) fn put_along<'b>(round: &mut Round<'b>, batch: &'b Batch, push: &'b NewPush) -> usize {
    let is_own = push.run == batch.run.run;
    if !is_own {
        let run = vec![value(batch.run.tenant.as_str()), value(push.run.as_str())];
        round.add(LOCK, run);
    }
    let since = is_own.then(|| batch.expected());
    round.add(PUT, put_values(batch.run.tenant.as_str(), push, since))
}

/// Reads the result of registering the subscription.
pub(super) fn put_answer(found: &[Row]) -> Result<Put, Fault> {
    let found = only(found)?;
    Ok(
        match (
            rows::flag(found, 0)?,
            rows::flag(found, 1)?,
            rows::flag(found, 2)?,
        ) {
            (false, _, _) => Put::Missing,
            (true, true, _) => Put::Replaced,
            (true, false, true) => Put::Added,
            (true, false, false) => Put::Full,
        },
    )
}

fn put_values<'v>(tenant: &'v str, push: &'v NewPush, since: Option<Seq>) -> Vec<Value<'v>> {
    let row = &push.row;
    let first = WorkRow::subscription(&row.id).first_fence(push.now);
    vec![
        value(tenant),
        value(push.run.as_str()),
        value(rows::free(&row.id)),
        value(row.body.as_slice()),
        value(row.created_at.millis()),
        value(rows::limit(push.most)),
        value(push.now.millis()),
        value(rows::int(first.0)),
        value(since.map(|since| rows::int(since.0))),
    ]
}

/// Adds the events of a batch to the outbox row of its run.
pub(super) fn note<'b>(round: &mut Round<'b>, batch: &'b Batch, is_told: bool) {
    let (tenant, run) = (batch.run.tenant.as_str(), batch.run.run.as_str());
    if is_told && !batch.events.is_empty() {
        let (from, to) = (rows::int(batch.expected().0), rows::int(batch.head().0));
        round.add(NOTE, vec![value(tenant), value(run), value(from), value(to)]);
    }
}

fn of_run(run: &RunKey) -> Vec<Value<'_>> {
    vec![value(run.tenant.as_str()), value(run.run.as_str())]
}

fn of_push<'v>(run: &'v RunKey, push: &'v str) -> Vec<Value<'v>> {
    let mut values = of_run(run);
    values.push(value(rows::free(push)));
    values
}

async fn expand(pool: &Pool, note: &OutboxRow, updates: &[Update], now: Timestamp) -> Result<bool, Fault> {
    let round = || {
        let seqs: Vec<_> = updates.iter().map(|update| rows::int(update.seq.0)).collect();
        let bodies: Vec<_> = updates.iter().map(|update| update.body.as_slice()).collect();
        let mut values = of_run(&note.run);
        values.extend([
            value(rows::int(note.from.0)),
            value(rows::int(note.to.0)),
            value(now.millis()),
            value(seqs),
            value(bodies),
        ]);
        Round::of(EXPAND, values)
    };
    rows::flag(only(&pool.write(round).await?)?, 0)
}

async fn waiting(pool: &Pool, run: &RunKey, push: &str, limit: usize) -> Result<Pending, Fault> {
    let round = || {
        let mut values = of_push(run, push);
        values.push(value(rows::limit(limit)));
        Round::of(WAITING, values)
    };
    let found = pool.learn(round).await?;
    let deliveries: Vec<_> = found.iter().map(delivery).collect::<Result<_, _>>()?;
    if deliveries.is_empty() {
        return Ok(Pending::default());
    }
    let found = pool.learn(|| Round::of(RECEIVER, of_push(run, push))).await?;
    // Without the subscription nothing is pending.
    found.first().map_or(Ok(Pending::default()), |row| {
        Ok(Pending {
            receiver: rows::bytes(row, 0)?,
            deliveries,
        })
    })
}

async fn settle(
    pool: &Pool,
    run: &RunKey,
    push: &str,
    fence: Fence,
    (seq, attempted): &(Seq, Attempted),
    then: Then,
) -> Result<bool, Fault> {
    let (error, dead_at) = match attempted {
        Attempted::Delivered => (None, None),
        Attempted::Failed { error } => (Some(error.as_str()), None),
        Attempted::GivenUp { error, at } => (Some(error.as_str()), Some(at.millis())),
    };
    let key = WorkKey::delivery(push);
    let round = || {
        let mut values = lease_values(run, &key, fence, then, None);
        values.extend([
            value(rows::int(seq.0)),
            value(error.map(rows::free)),
            value(dead_at),
        ]);
        Round::of(SETTLE, values)
    };
    Ok(!pool.write(round).await?.is_empty())
}

async fn list(
    pool: &Pool,
    filter: &DeliveryFilter,
    after: Option<&DeliveryCursor>,
    limit: usize,
) -> Result<Vec<DeliveryRow>, Fault> {
    let run = filter.run.as_ref().map(RunId::as_str);
    let (from, push, seq) = filter.start(after);
    let round = || {
        Round::of(
            if filter.given_up { LIST_DEAD } else { LIST },
            vec![
                value(filter.tenant.as_str()),
                value(from),
                value(rows::free(push)),
                value(seq),
                value(run.unwrap_or(BEHIND_EVERY_RUN)),
                value(rows::limit(limit)),
                value(filter.principal.as_ref().map(wopr_core::PrincipalId::as_str)),
            ],
        )
    };
    pool.list(&filter.tenant, round)
        .await?
        .iter()
        .map(delivery)
        .collect()
}

fn only(found: &[Row]) -> Result<&Row, Fault> {
    found
        .first()
        .ok_or_else(|| Fault::Damaged("a statement that always answers did not".into()))
}

fn delivery(row: &Row) -> Result<DeliveryRow, Fault> {
    let error = match rows::opt_text(row, 7)? {
        Some(_) => Some(rows::free_text(row, 7)?),
        None => None,
    };
    Ok(DeliveryRow {
        run: rows::run_key(row, 0)?,
        push: rows::free_text(row, 2)?,
        seq: rows::seq(row, 3)?,
        body: rows::bytes(row, 4)?,
        enqueued_at: rows::time(row, 5)?,
        attempts: rows::count(row, 6)?,
        error,
        dead_at: rows::opt_time(row, 8)?,
    })
}

#[async_trait]
impl Pushes for PostgresStore {
    async fn put_push(
        &self,
        run: &RunKey,
        row: PushRow,
        most: usize,
        now: Timestamp,
    ) -> Result<Put, WriteError> {
        let push = NewPush {
            run: run.run.clone(),
            row,
            most,
            now,
        };
        let round = || {
            let values = put_values(run.tenant.as_str(), &push, None);
            Round::of(PUT, values)
        };
        Ok(put_answer(&self.pool.write(round).await?)?)
    }

    async fn pushes(&self, run: &RunKey) -> Result<Vec<PushRow>, ReadError> {
        let mut pushes = Vec::new();
        for row in &self
            .pool
            .read(&run.tenant, || Round::of(OF_RUN, of_run(run)))
            .await?
        {
            pushes.push(PushRow {
                id: rows::free_text(row, 0)?,
                body: rows::bytes(row, 1)?,
                created_at: rows::time(row, 2)?,
            });
        }
        Ok(pushes)
    }

    async fn drop_push(&self, run: &RunKey, id: &str) -> Result<bool, WriteError> {
        let dropped = self.pool.write(|| Round::of(DROP, of_push(run, id))).await?;
        Ok(!dropped.is_empty())
    }

    async fn outbox(
        &self,
        epoch: Epoch,
        after: Option<&RunKey>,
        limit: usize,
    ) -> Result<Vec<OutboxRow>, ReadError> {
        // The empty string sorts before every id.
        let (tenant, run) = after.map_or(("", ""), |key| (key.tenant.as_str(), key.run.as_str()));
        let round = || {
            let values = vec![
                value(tenant),
                value(run),
                value(rows::limit(limit)),
                value(rows::int(epoch.0)),
            ];
            Round::of(OUTBOX, values)
        };
        let mut notes = Vec::new();
        for row in &self.pool.learn(round).await? {
            notes.push(OutboxRow {
                run: rows::run_key(row, 0)?,
                from: rows::seq(row, 2)?,
                to: rows::seq(row, 3)?,
            });
        }
        Ok(notes)
    }

    async fn expand(&self, row: &OutboxRow, updates: &[Update], now: Timestamp) -> Result<bool, WriteError> {
        Ok(expand(&self.pool, row, updates, now).await?)
    }

    async fn waiting(&self, run: &RunKey, push: &str, limit: usize) -> Result<Pending, ReadError> {
        Ok(waiting(&self.pool, run, push, limit).await?)
    }

    async fn settle_push(
        &self,
        run: &RunKey,
        push: &str,
        fence: Fence,
        attempted: (Seq, Attempted),
        then: Then,
    ) -> Result<bool, WriteError> {
        Ok(settle(&self.pool, run, push, fence, &attempted, then).await?)
    }

    async fn deliveries(
        &self,
        filter: &DeliveryFilter,
        after: Option<&DeliveryCursor>,
        limit: usize,
    ) -> Result<Vec<DeliveryRow>, ReadError> {
        Ok(list(&self.pool, filter, after, limit).await?)
    }

    async fn retry_push(
        &self,
        run: &RunKey,
        push: &str,
        seq: Option<Seq>,
        now: Timestamp,
    ) -> Result<usize, WriteError> {
        let round = || {
            let mut values = of_push(run, push);
            values.push(value(seq.map(|seq| rows::int(seq.0))));
            values.push(value(now.millis()));
            Round::of(RETRY, values)
        };
        let found = self.pool.write(round).await?;
        let n_retried = rows::count(only(&found)?, 0)?;
        Ok(usize::try_from(n_retried).unwrap_or(usize::MAX))
    }
}
