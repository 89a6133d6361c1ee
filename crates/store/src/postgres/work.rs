//! The work port in SQL, each call one statement and so one transaction.
//!
//! A lease is taken under the row's lock, and locked rows are skipped: whoever locked one is leasing,
//! settling or releasing it. A lease ends when it expires or when its holder ends it. Other processes of this
//! database are alive, so beginning an epoch ends no leases.

use std::time::Duration;

use tokio_postgres::Row;
use wopr_core::{RunKey, Timestamp};

use super::{
    fault::Fault,
    pool::Pool,
    retention::listed,
    round::{Round, Value, value},
    rows,
};
use crate::{
    CallDeliveryCursor, CallDeliveryFilter, CallDeliveryRow, Epoch, Fence, LAST_CHANCE, Leased, Mailbox,
    Parking, Queue, Quota, Then, Times, WorkKey,
};

const TIME: &str = "SELECT (extract(epoch FROM clock_timestamp()) * 1000)::bigint";

const HIGH_WATER: &str = "SELECT max(high_water) FROM clock";

const KEEP_TIME: &str = "INSERT INTO clock AS c (one, high_water) VALUES (true, $1)
     ON CONFLICT (one) DO UPDATE SET high_water = excluded.high_water WHERE c.high_water < excluded.high_water";

const WRITABLE: &str = "SELECT FROM last_epoch WHERE false FOR UPDATE";

const BEGIN_EPOCH: &str = "WITH next AS (UPDATE last_epoch SET epoch = epoch + 1 RETURNING epoch)
     INSERT INTO epochs (epoch, began_at) SELECT epoch, $1 FROM next RETURNING epoch";

/// Selects and locks rows of the queue in parameter 1.
macro_rules! rows {
    ($condition:literal, $order:literal, $limit:literal) => {
        concat!(
            "SELECT tenant, run, key, due, octet_length(body) AS n_bytes FROM work
             WHERE queue = $1 AND due IS NOT NULL AND ",
            $condition,
            listed!("work"),
            " ORDER BY ",
            $order,
            $limit,
            " FOR UPDATE SKIP LOCKED"
        )
    };
}

/// Leases free rows, rows whose lease has expired, and suspects. The length of a stored value is known without
/// reading it. One `SELECT` cannot both lock rows and number or sum them up, so that is done with locked rows.
/// Also returns the column to sort by, because the rows of an update have no order.
macro_rules! lease {
    ($free:expr, $limit_expired:literal, $fair:literal) => {
        concat!(
            "WITH RECURSIVE ",
            $free,
            ", expired AS (",
            rows!(
                "due <= $4 AND epoch IS NOT NULL AND deaths < 2",
                "due, tenant, run, key",
                $limit_expired
            ),
            "), ready AS (SELECT * FROM free UNION ALL SELECT * FROM expired), ",
            $fair,
            ", fitting AS (
                 SELECT *, sum(n_bytes) OVER (ORDER BY due, tenant, run, key) - n_bytes AS before
                 FROM (SELECT * FROM fair ORDER BY due, tenant, run, key LIMIT $6) AS first),
             the_suspects AS (",
            rows!(
                "due <= greatest($3::bigint, $4::bigint)
                     AND due <= CASE WHEN epoch IS NULL THEN $3::bigint ELSE $4::bigint END
                     AND (deaths = 2 OR deaths > 2 AND queue = 2)",
                "due, tenant, run, key",
                " LIMIT $8"
            ),
            "), suspects AS (
                 SELECT *, sum(n_bytes) OVER (ORDER BY due, tenant, run, key) - n_bytes AS before
                 FROM the_suspects),
             taken AS (
                 SELECT tenant, run, key, due FROM fitting WHERE before < $7::bigint
                 UNION ALL SELECT tenant, run, key, due FROM suspects WHERE before < $7::bigint)
             UPDATE work AS w SET epoch = $2, due = $5, fence = w.fence + 1, woken = NULL FROM taken AS t
             WHERE w.tenant = t.tenant AND w.run = t.run AND w.queue = $1 AND w.key = t.key
             RETURNING w.tenant, w.run, w.key, w.body, t.due, w.fence, w.deaths"
        )
    };
}

const LEASE: &str = lease!(
    concat!(
        "free AS (",
        rows!(
            "due <= $3 AND epoch IS NULL AND deaths < 2",
            "due, tenant, run, key",
            " LIMIT $6"
        ),
        ")"
    ),
    " LIMIT $6",
    "fair AS (SELECT * FROM ready)"
);

/// Finds the tenants with free rows each by a seek.
const LEASE_SHARED: &str = lease!(
    concat!(
        "seeks AS (
             (SELECT tenant FROM work
              WHERE queue = $1 AND due IS NOT NULL AND epoch IS NULL AND deaths < 2 ORDER BY tenant LIMIT 1)
             UNION ALL
             SELECT (SELECT n.tenant FROM work AS n
                 WHERE n.queue = $1 AND n.tenant > s.tenant AND due IS NOT NULL AND epoch IS NULL AND deaths < 2
                 ORDER BY n.tenant LIMIT 1)
             FROM seeks AS s WHERE s.tenant IS NOT NULL),
         free AS (SELECT x.* FROM seeks AS o, LATERAL (",
        rows!(
            "tenant = o.tenant AND due <= $3 AND epoch IS NULL AND deaths < 2",
            "due, run, key",
            " LIMIT $9"
        ),
        ") AS x WHERE o.tenant IS NOT NULL AND o.tenant <> ALL($11))"
    ),
    "",
    "shares AS (
         SELECT *, row_number() OVER share AS place, sum(n_bytes) OVER share - n_bytes AS before_tenant
         FROM ready WHERE tenant <> ALL($11) WINDOW share AS (PARTITION BY tenant ORDER BY due, run, key)),
     fair AS (SELECT * FROM shares WHERE place <= $9 AND before_tenant < $10::bigint)"
);

/// Renews or ends the lease of the row in the first five parameters: 0 in parameter 7 for a lease that is
/// renewed, 1 for one that is released and 2 for a row that is parked.
macro_rules! lease_update {
    ($deaths:literal) => {
        concat!(
            "UPDATE work SET
                 epoch = CASE $7::bigint WHEN 0 THEN epoch END,
                 woken = CASE $7::bigint WHEN 0 THEN woken END,
                 due = CASE $7::bigint WHEN 2 THEN least($6::bigint, woken) ELSE $6::bigint END,
                 fence = CASE $7::bigint WHEN 2 THEN fence + 1 ELSE fence END,
                 body = coalesce($8::bytea, body),
                 deaths = ",
            $deaths,
            " WHERE tenant = $1 AND run = $2 AND queue = $3 AND key = $4 AND fence = $5 AND epoch IS NOT NULL
             RETURNING 1"
        )
    };
}
pub(super) use lease_update;

pub(super) const SET_LEASE: &str =
    lease_update!("CASE WHEN $7::bigint = 2 AND (deaths < 3 OR queue = 2) THEN 0 ELSE deaths END");

/// Parks the rows that nobody else has locked, and returns their places among the parameters.
const PARK_ALL: &str = "WITH wanted AS (
         SELECT * FROM unnest($1::text[], $2::text[], $3::bigint[], $4::text[], $5::bigint[], $6::bigint[])
             WITH ORDINALITY AS u (tenant, run, queue, key, fence, due, place)),
     held AS (
         SELECT w.tenant, w.run, w.queue, w.key, wanted.due, wanted.place FROM work AS w, wanted
         WHERE w.tenant = wanted.tenant AND w.run = wanted.run AND w.queue = wanted.queue AND w.key = wanted.key
             AND w.fence = wanted.fence AND w.epoch IS NOT NULL
         FOR UPDATE OF w SKIP LOCKED)
     UPDATE work AS w SET epoch = NULL, woken = NULL, due = least(held.due, w.woken), fence = w.fence + 1,
         deaths = CASE WHEN w.deaths < 3 OR w.queue = 2 THEN 0 ELSE w.deaths END
     FROM held WHERE w.tenant = held.tenant AND w.run = held.run AND w.queue = held.queue AND w.key = held.key
     RETURNING held.place";

const WAKE: &str = "UPDATE work SET
         due = CASE WHEN epoch IS NULL THEN least(due, $5) ELSE due END,
         woken = CASE WHEN epoch IS NOT NULL THEN least(woken, $5) END
     WHERE tenant = $1 AND run = $2 AND queue = $3 AND key = $4 RETURNING 1";

const NEXT_DUE: &str = concat!(
    "SELECT least(
         (SELECT due FROM work WHERE queue = $1 AND due IS NOT NULL AND epoch IS NULL AND deaths < 2",
    listed!("work"),
    " ORDER BY due LIMIT 1),
         (SELECT due FROM work WHERE queue = $1 AND due IS NOT NULL AND epoch IS NOT NULL AND deaths < 2",
    listed!("work"),
    " ORDER BY due LIMIT 1),
         (SELECT due FROM work WHERE queue = $1 AND due IS NOT NULL
              AND (deaths = 2 OR deaths > 2 AND queue = 2)",
    listed!("work"),
    " ORDER BY due LIMIT 1))"
);

/// Selects from a position on, up to the run in parameter 4, and only runs of principal 7 if it is set.
const CALL_DELIVERIES: &str = concat!(
    "SELECT tenant, run, key, body, due, epoch IS NOT NULL FROM work
     WHERE tenant = $1 AND queue = 1 AND key >= 'a' AND (run, key) > ($2, $3) AND run <= $4
         AND (NOT $6::boolean OR due IS NULL)
         AND ($7::text IS NULL OR EXISTS (
             SELECT FROM runs WHERE runs.tenant = work.tenant AND runs.run = work.run
                 AND runs.principal = $7))",
    listed!("work"),
    " ORDER BY run, key LIMIT $5"
);

/// Sorts after every run id.
const BEHIND_EVERY_RUN: &str = "~";

/// One seek per run, so the cost does not depend on the number of messages in an inbox.
const WITH_INBOX: &str = "WITH RECURSIVE runs AS (
         (SELECT tenant, target FROM inbox
          WHERE (tenant, target) > ($1, $2) AND deaths < 3 AND (epoch IS NULL OR epoch = $4)
          ORDER BY tenant, target LIMIT 1)
         UNION ALL
         SELECT next.tenant, next.target FROM runs, LATERAL (
             SELECT tenant, target FROM inbox
             WHERE (tenant, target) > (runs.tenant, runs.target) AND deaths < 3 AND (epoch IS NULL OR epoch = $4)
             ORDER BY tenant, target LIMIT 1) AS next)
     SELECT tenant, target FROM runs LIMIT $3";

const END_EPOCH: &str = "WITH ended AS (UPDATE epochs SET is_ended = true WHERE epoch = $1),
     inboxes AS (UPDATE inbox SET epoch = NULL WHERE epoch = $1)
     UPDATE outbox SET epoch = NULL WHERE epoch = $1";

/// Records that an epoch is alive, and returns whether another has been silent for too long. An epoch that was buried
/// alive takes back the death of what it still holds. Whoever could not beat for long says nothing of others: the
/// database may have been away from all.
const BEAT: &str = "WITH known AS (
         SELECT is_buried, seen_at >= (extract(epoch FROM clock_timestamp()) * 1000)::bigint - $3::bigint AS is_steady
         FROM epochs WHERE epoch = $1),
     beat AS (
         UPDATE epochs SET seen_at = (extract(epoch FROM clock_timestamp()) * 1000)::bigint, is_buried = false
         WHERE epoch = $1),
     risen AS (
         UPDATE work AS w SET deaths = w.deaths - 1 FROM known
         WHERE known.is_buried AND w.epoch = $1 AND w.deaths IN (1, 2))
     SELECT $2::bigint IS NOT NULL AND (SELECT is_steady FROM known)
         AND EXISTS (SELECT FROM epochs WHERE NOT is_buried AND NOT is_ended AND epoch <> $1
             AND seen_at < (extract(epoch FROM clock_timestamp()) * 1000)::bigint - $2::bigint)";

/// How much longer than half a silence the beats of an epoch may be apart that counts the deaths of others.
const SLACK: Duration = Duration::from_millis(500);

/// Leases end when they expire, as always; claims do not expire and end here.
const BURY: &str = "WITH dead AS (
         UPDATE epochs SET is_buried = true WHERE NOT is_buried AND NOT is_ended AND epoch <> $1
             AND seen_at < (extract(epoch FROM clock_timestamp()) * 1000)::bigint - $2::bigint
             AND EXISTS (SELECT FROM epochs WHERE epoch = $1
                 AND seen_at >= (extract(epoch FROM clock_timestamp()) * 1000)::bigint - $3::bigint)
         RETURNING epoch),
     the_work AS (UPDATE work AS x SET deaths = deaths + 1 FROM dead WHERE x.epoch = dead.epoch),
     the_inboxes AS (UPDATE inbox AS x SET deaths = deaths + 1, epoch = NULL FROM dead WHERE x.epoch = dead.epoch),
     the_outbox AS (UPDATE outbox AS x SET deaths = deaths + 1, epoch = NULL FROM dead WHERE x.epoch = dead.epoch)
     SELECT count(*) FROM dead";

/// Rows claimed by another epoch are skipped. The claim ends when that epoch is found dead.
macro_rules! claim {
    ($table:literal, $run:literal, $most:literal) => {
        concat!(
            "WITH found AS (
                 SELECT x.tenant, x.",
            $run,
            " AS run, max(x.deaths) AS deaths FROM unnest($2::text[], $3::text[]) AS r (tenant, run)
                 JOIN ",
            $table,
            " AS x ON x.tenant = r.tenant AND x.",
            $run,
            " = r.run WHERE x.deaths < ",
            $most,
            " GROUP BY 1, 2
                 HAVING bool_and(x.epoch IS NULL OR x.epoch = $1)),
             chosen AS (SELECT * FROM found WHERE deaths < 2
                 UNION ALL (SELECT * FROM found WHERE deaths >= 2 ORDER BY tenant, run LIMIT $4)),
             taken AS (
                 UPDATE ",
            $table,
            " AS x SET epoch = $1, deaths = greatest(x.deaths, coalesce((
                     SELECT is_buried::int FROM epochs WHERE epoch < $1 ORDER BY epoch DESC LIMIT 1), 0))
                 FROM chosen AS c
                 WHERE x.tenant = c.tenant AND x.",
            $run,
            " = c.run AND x.deaths < ",
            $most,
            " AND (x.epoch IS NULL OR x.epoch = $1) RETURNING c.tenant, c.run)
             SELECT DISTINCT tenant, run FROM taken"
        )
    };
}

const CLAIM_INBOX: &str = claim!("inbox", "target", 3);
const CLAIM_OUTBOX: &str = claim!("outbox", "run", 20);

const GRANT: &str = "UPDATE runs AS r
     SET descendants = greatest(o.descendants, least(o.descendants + $3::bigint, $4::bigint))
     FROM (SELECT descendants FROM runs WHERE tenant = $1 AND run = $2 FOR NO KEY UPDATE) AS o
     WHERE r.tenant = $1 AND r.run = $2 RETURNING r.descendants - o.descendants";

const QUARANTINED: &str = "SELECT tenant, run FROM work WHERE deaths = 3 AND queue <> 2
     UNION SELECT tenant, target FROM inbox WHERE deaths = 3
     UNION SELECT tenant, run FROM outbox WHERE deaths = 20 LIMIT $1";

const FORGET: &str = "DELETE FROM idempotency WHERE (tenant, principal, scope, key) IN (
         SELECT tenant, principal, scope, key FROM idempotency
         WHERE expires_at <= $1 ORDER BY expires_at LIMIT $2 FOR UPDATE SKIP LOCKED)
     RETURNING 1";

pub(super) async fn time(pool: &Pool) -> Result<Timestamp, Fault> {
    let found = pool.learn(|| Round::of(TIME, Vec::new())).await?;
    let row = found
        .first()
        .ok_or_else(|| Fault::Damaged("the database does not tell the time".into()))?;
    rows::time(row, 0)
}

pub(super) async fn high_water(pool: &Pool) -> Result<Option<Timestamp>, Fault> {
    let found = pool.learn(|| Round::of(HIGH_WATER, Vec::new())).await?;
    found.first().map_or(Ok(None), |row| rows::opt_time(row, 0))
}

pub(super) async fn keep_time(pool: &Pool, at: Timestamp) -> Result<(), Fault> {
    pool.write(|| Round::of(KEEP_TIME, vec![value(at.millis())]))
        .await?;
    Ok(())
}

/// Checks that the server accepts writes. A standby or a read-only primary refuses to lock even an empty set
/// of rows.
pub(super) async fn ready(pool: &Pool) -> Result<(), Fault> {
    pool.learn(|| Round::of(WRITABLE, Vec::new())).await?;
    Ok(())
}

pub(super) async fn begin_epoch(pool: &Pool, now: Timestamp) -> Result<Epoch, Fault> {
    let begun = pool
        .write(|| Round::of(BEGIN_EPOCH, vec![value(now.millis())]))
        .await?;
    let row = begun
        .first()
        .ok_or_else(|| Fault::Damaged("the row of the last epoch is missing".into()))?;
    Ok(Epoch(rows::count(row, 0)?))
}

pub(super) async fn end_epoch(pool: &Pool, epoch: Epoch) -> Result<(), Fault> {
    pool.write(|| Round::of(END_EPOCH, vec![value(rows::int(epoch.0))]))
        .await?;
    Ok(())
}

pub(super) async fn beat(pool: &Pool, epoch: Epoch, silence: Option<Duration>) -> Result<bool, Fault> {
    let millis = |time: Duration| i64::try_from(time.as_millis()).unwrap_or(i64::MAX);
    let steady = silence.unwrap_or_default() / 2 + SLACK;
    let values = || {
        vec![
            value(rows::int(epoch.0)),
            value(silence.map(millis)),
            value(millis(steady)),
        ]
    };
    let is_somebody_silent = pool.write(|| Round::of(BEAT, values())).await?;
    let row = is_somebody_silent
        .first()
        .ok_or_else(|| Fault::Damaged("the epochs are not told".into()))?;
    if !rows::flag(row, 0)? {
        return Ok(false);
    }
    let buried = pool.write(|| Round::of(BURY, values())).await?;
    buried
        .first()
        .map_or(Ok(false), |row| Ok(rows::count(row, 0)? > 0))
}

pub(super) async fn claim(
    pool: &Pool,
    mailbox: Mailbox,
    epoch: Epoch,
    runs: &[RunKey],
    suspects: usize,
) -> Result<Vec<RunKey>, Fault> {
    let sql = match mailbox {
        Mailbox::Inbox => CLAIM_INBOX,
        Mailbox::Outbox => CLAIM_OUTBOX,
    };
    let round = || {
        let tenants: Vec<_> = runs.iter().map(|key| key.tenant.as_str()).collect();
        let of_tenants: Vec<_> = runs.iter().map(|key| key.run.as_str()).collect();
        let values = vec![
            value(rows::int(epoch.0)),
            value(tenants),
            value(of_tenants),
            value(rows::limit(suspects)),
        ];
        Round::of(sql, values)
    };
    let found = pool.write(round).await?;
    found.iter().map(|row| rows::run_key(row, 0)).collect()
}

pub(super) async fn grant(pool: &Pool, root: &RunKey, wanted: u64, most: u64) -> Result<u64, Fault> {
    let round = || {
        let values = vec![
            value(root.tenant.as_str()),
            value(root.run.as_str()),
            value(rows::int(wanted)),
            value(rows::int(most)),
        ];
        Round::of(GRANT, values)
    };
    let granted = pool.write(round).await?;
    granted.first().map_or(Ok(0), |row| rows::count(row, 0))
}

pub(super) async fn quarantined(pool: &Pool, limit: usize) -> Result<Vec<RunKey>, Fault> {
    let found = pool
        .learn(|| Round::of(QUARANTINED, vec![value(rows::limit(limit))]))
        .await?;
    found.iter().map(|row| rows::run_key(row, 0)).collect()
}

pub(super) async fn lease(
    pool: &Pool,
    queue: Queue,
    epoch: Epoch,
    times: Times,
    quota: &Quota,
) -> Result<Vec<Leased>, Fault> {
    let round = || {
        let mut values = vec![
            value(queue.number()),
            value(rows::int(epoch.0)),
            value(times.due.millis()),
            value(times.now.millis()),
            value(times.until.millis()),
            value(rows::limit(quota.rows)),
            value(rows::limit(quota.bytes)),
            value(rows::limit(quota.suspects)),
        ];
        if quota.is_plain() {
            return Round::of(LEASE, values);
        }
        let without = quota.without.iter().map(wopr_core::TenantId::as_str);
        values.extend([
            value(rows::limit(quota.per_tenant)),
            value(rows::limit(quota.bytes_per_tenant)),
            value(without.collect::<Vec<_>>()),
        ]);
        Round::of(LEASE_SHARED, values)
    };
    let found = pool.write(round).await?;
    let mut leased = Vec::with_capacity(found.len());
    let mut damage = None;
    for row in &found {
        match read_leased(queue, row) {
            Ok(row) => leased.push(row),
            // This row is leased and its lease will expire; the other leased rows must not wait for that.
            Err(fault) => {
                tracing::error!(?fault, "leased a work row that cannot be read");
                damage = Some(fault);
            }
        }
    }
    if let (Some(fault), true) = (damage, leased.is_empty()) {
        return Err(fault);
    }
    let order = |row: &Leased| (row.deaths >= LAST_CHANCE, row.since);
    leased.sort_unstable_by(|one, other| {
        (order(one), &one.run, &one.key).cmp(&(order(other), &other.run, &other.key))
    });
    Ok(leased)
}

pub(super) fn read_leased(queue: Queue, row: &Row) -> Result<Leased, Fault> {
    let name = rows::free_text(row, 2)?;
    Ok(Leased {
        run: rows::run_key(row, 0)?,
        key: WorkKey { queue, name },
        body: rows::bytes(row, 3)?,
        since: rows::time(row, 4)?,
        fence: rows::fence(row, 5)?,
        deaths: rows::deaths(row, 6)?,
    })
}

/// The first parameters of statements about one row.
pub(super) fn of_row<'v>(run: &'v RunKey, key: &'v WorkKey) -> Vec<Value<'v>> {
    vec![
        value(run.tenant.as_str()),
        value(run.run.as_str()),
        value(key.queue.number()),
        value(rows::free(&key.name)),
    ]
}

/// The parameters of [`SET_LEASE`].
pub(super) fn lease_values<'v>(
    run: &'v RunKey,
    key: &'v WorkKey,
    fence: Fence,
    then: Then,
    body: Option<&'v [u8]>,
) -> Vec<Value<'v>> {
    let (how, due) = then.columns();
    let mut values = of_row(run, key);
    values.extend([
        value(rows::int(fence.0)),
        value(due.map(Timestamp::millis)),
        value(how),
        value(body),
    ]);
    values
}

pub(super) async fn set_lease(
    pool: &Pool,
    run: &RunKey,
    key: &WorkKey,
    fence: Fence,
    then: Then,
) -> Result<bool, Fault> {
    let round = || Round::of(SET_LEASE, lease_values(run, key, fence, then, None));
    Ok(!pool.write(round).await?.is_empty())
}

/// Parks rows by one statement, and by one of their own those that others have locked meanwhile: who locks several
/// rows in an order of its own must not wait for another who does.
pub(super) async fn park_all(pool: &Pool, parkings: &[Parking]) -> Result<Vec<bool>, Fault> {
    let round = || {
        let column = |text: fn(&Parking) -> String| parkings.iter().map(text).collect::<Vec<_>>();
        let fences = parkings.iter().map(|row| rows::int(row.fence.0));
        let dues = parkings.iter().map(|row| row.due.map(Timestamp::millis));
        let values = vec![
            value(column(|row| row.run.tenant.as_str().to_owned())),
            value(column(|row| row.run.run.as_str().to_owned())),
            value(
                parkings
                    .iter()
                    .map(|row| row.key.queue.number())
                    .collect::<Vec<_>>(),
            ),
            value(column(|row| rows::free(&row.key.name).into_owned())),
            value(fences.collect::<Vec<_>>()),
            value(dues.collect::<Vec<_>>()),
        ];
        Round::of(PARK_ALL, values)
    };
    let mut parked = vec![false; parkings.len()];
    for row in &pool.write(round).await? {
        let place = usize::try_from(rows::count(row, 0)?).ok();
        // They are numbered from 1.
        if let Some(parked) = place.and_then(|place| parked.get_mut(place.checked_sub(1)?)) {
            *parked = true;
        }
    }
    for (row, parked) in parkings.iter().zip(&mut parked) {
        if !*parked {
            *parked = set_lease(pool, &row.run, &row.key, row.fence, Then::Park(row.due)).await?;
        }
    }
    Ok(parked)
}

pub(super) async fn wake(pool: &Pool, run: &RunKey, key: &WorkKey, at: Timestamp) -> Result<bool, Fault> {
    let round = || {
        let mut values = of_row(run, key);
        values.push(value(at.millis()));
        Round::of(WAKE, values)
    };
    Ok(!pool.write(round).await?.is_empty())
}

pub(super) async fn call_deliveries(
    pool: &Pool,
    filter: &CallDeliveryFilter,
    after: Option<&CallDeliveryCursor>,
    limit: usize,
) -> Result<Vec<CallDeliveryRow>, Fault> {
    let wanted = filter.run.as_ref().map(wopr_core::RunId::as_str);
    let first = wanted.unwrap_or_default();
    // No name sorts before the empty one.
    let (run, name) = match after {
        Some(after) if after.run.as_str() >= first => (after.run.as_str(), after.name.as_str()),
        Some(_) | None => (first, ""),
    };
    let round = || {
        let principal = filter.principal.as_ref().map(wopr_core::PrincipalId::as_str);
        let values = vec![
            value(filter.tenant.as_str()),
            value(run),
            value(rows::free(name)),
            value(wanted.unwrap_or(BEHIND_EVERY_RUN)),
            value(rows::limit(limit)),
            value(filter.parked),
            value(principal),
        ];
        Round::of(CALL_DELIVERIES, values)
    };
    let found = pool.list(&filter.tenant, round).await?;
    let read = |row: &Row| {
        Ok(CallDeliveryRow {
            run: rows::run_key(row, 0)?,
            key: WorkKey {
                queue: Queue::Effects,
                name: rows::free_text(row, 2)?,
            },
            body: rows::bytes(row, 3)?,
            due: rows::opt_time(row, 4)?,
            is_leased: rows::flag(row, 5)?,
        })
    };
    found.iter().map(read).collect()
}

pub(super) async fn next_due(pool: &Pool, queue: Queue) -> Result<Option<Timestamp>, Fault> {
    let found = pool
        .learn(|| Round::of(NEXT_DUE, vec![value(queue.number())]))
        .await?;
    found.first().map_or(Ok(None), |row| rows::opt_time(row, 0))
}

pub(super) async fn runs_with_inbox(
    pool: &Pool,
    epoch: Epoch,
    after: Option<&RunKey>,
    limit: usize,
) -> Result<Vec<RunKey>, Fault> {
    // The empty string sorts before every id.
    let (tenant, run) = after.map_or(("", ""), |key| (key.tenant.as_str(), key.run.as_str()));
    let round = || {
        Round::of(
            WITH_INBOX,
            vec![
                value(tenant),
                value(run),
                value(rows::limit(limit)),
                value(rows::int(epoch.0)),
            ],
        )
    };
    let found = pool.learn(round).await?;
    found.iter().map(|row| rows::run_key(row, 0)).collect()
}

pub(super) async fn forget_expired(pool: &Pool, now: Timestamp, limit: usize) -> Result<usize, Fault> {
    let round = || Round::of(FORGET, vec![value(now.millis()), value(rows::limit(limit))]);
    Ok(pool.write(round).await?.len())
}
