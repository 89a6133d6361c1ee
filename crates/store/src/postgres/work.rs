//! Timers, leases and inboxes in SQL, each call one statement and so one transaction.
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
    round::{Round, value},
    rows,
};
use crate::{EffectKey, Epoch, Fence, LeasedEffect, LeasedTimer, Mailbox, Quota, TimerKey};

/// Finds the tenants that have such rows, each by a seek.
macro_rules! tenants_with {
    ($table:literal, $condition:literal) => {
        concat!(
            "seeks AS (
                 (SELECT tenant FROM ",
            $table,
            " WHERE ",
            $condition,
            " ORDER BY tenant LIMIT 1)
                 UNION ALL
                 SELECT (SELECT n.tenant FROM ",
            $table,
            " AS n WHERE n.tenant > s.tenant AND ",
            $condition,
            " ORDER BY n.tenant LIMIT 1) FROM seeks AS s WHERE s.tenant IS NOT NULL),
             tenants AS (SELECT tenant FROM seeks WHERE tenant IS NOT NULL)"
        )
    };
}
pub(super) use tenants_with;

const TIME: &str = "SELECT (extract(epoch FROM clock_timestamp()) * 1000)::bigint";

const HIGH_WATER: &str = "SELECT max(high_water) FROM clock";

const KEEP_TIME: &str = "INSERT INTO clock AS c (one, high_water) VALUES (true, $1)
     ON CONFLICT (one) DO UPDATE SET high_water = excluded.high_water WHERE c.high_water < excluded.high_water";

const WRITABLE: &str = "SELECT FROM last_epoch WHERE false FOR UPDATE";

const BEGIN_EPOCH: &str = "WITH next AS (UPDATE last_epoch SET epoch = epoch + 1 RETURNING epoch)
     INSERT INTO epochs (epoch, began_at) SELECT epoch, $1 FROM next RETURNING epoch";

/// The column `due` is when a timer can be leased: by the time of day, or, for a leased timer, by the clock
/// of leases.
macro_rules! due {
    ($condition:literal, $order:literal, $limit:literal) => {
        concat!(
            "SELECT tenant, run, key, due FROM timers
             WHERE due <= greatest($2::bigint, $3::bigint)
                 AND due <= CASE WHEN epoch IS NULL THEN $2::bigint ELSE $3::bigint END AND ",
            $condition,
            " ORDER BY ",
            $order,
            " LIMIT ",
            $limit,
            " FOR UPDATE SKIP LOCKED"
        )
    };
}

/// Suspects and other rows are selected separately.
macro_rules! lease_timers {
    ($($free:expr),+) => {
        concat!(
            "WITH RECURSIVE ",
            $($free,)+
            ", suspect AS (",
            due!("deaths = 2", "due, tenant, run, key", "$6"),
            "), taken AS (SELECT * FROM free UNION ALL SELECT * FROM suspect)
             UPDATE timers AS t SET epoch = $1, due = $4, fence = t.fence + 1 FROM taken AS f
             WHERE t.tenant = f.tenant AND t.run = f.run AND t.key = f.key
             RETURNING t.tenant, t.run, t.key, t.fence, f.due, t.deaths"
        )
    };
}

const LEASE_TIMERS: &str = lease_timers!(
    "free AS (",
    due!("deaths < 2", "due, tenant, run, key", "$5"),
    ")"
);

const LEASE_TIMERS_SHARED: &str = lease_timers!(
    tenants_with!("timers", "deaths < 2"),
    ", of_tenants AS (SELECT x.* FROM tenants AS o, LATERAL (",
    due!("tenant = o.tenant AND deaths < 2", "due, run, key", "$7"),
    ") AS x WHERE o.tenant <> ALL($8)),
     free AS (SELECT * FROM of_tenants ORDER BY due, tenant, run, key LIMIT $5)"
);

const RELEASE_TIMER: &str = "UPDATE timers SET epoch = NULL, due = $5
     WHERE tenant = $1 AND run = $2 AND key = $3 AND fence = $4 AND epoch IS NOT NULL";

const NEXT_DUE: &str = "SELECT least((SELECT min(due) FROM timers WHERE deaths < 2),
         (SELECT min(due) FROM timers WHERE deaths = 2))";

/// Takes rows while those before them have less than a number of bytes. The length of a stored value is known
/// without reading it. One `SELECT` cannot both lock rows and sum them up, so the locked rows are passed in.
macro_rules! fitting {
    ($locked:literal, $limit:literal) => {
        concat!(
            "SELECT * FROM (SELECT *, sum(n_bytes) OVER (ORDER BY since, tenant, run, key) - n_bytes AS before FROM ",
            $locked,
            ") AS summed WHERE before < ",
            $limit
        )
    };
}

/// Returns the columns to sort by, because the rows of an update have no order.
macro_rules! lease_effects {
    ($($free:expr),+) => {
        concat!(
            "WITH RECURSIVE ",
            $($free,)+
            ", the_ended AS (
                 SELECT tenant, run, key, true AS is_ended, lease_until AS since, octet_length(body) AS n_bytes
                 FROM effects
                 WHERE epoch IS NOT NULL AND deaths < 2 AND lease_until <= $2 AND tenant <> ALL($6)
                 ORDER BY lease_until, tenant, run, key LIMIT $4 - (SELECT count(*) FROM free)
                 FOR UPDATE SKIP LOCKED),
             ended AS (",
            fitting!("the_ended", "$7::bigint - (SELECT coalesce(sum(n_bytes), 0) FROM free)"),
            "),
             suspects AS (
                 SELECT tenant, run, key, epoch IS NOT NULL AS is_ended, enqueued_at AS since,
                     octet_length(body) AS n_bytes
                 FROM effects WHERE deaths = 2 AND (epoch IS NULL OR lease_until <= $2)
                 ORDER BY enqueued_at, tenant, run, key LIMIT $5 FOR UPDATE SKIP LOCKED),
             suspect AS (",
            fitting!("suspects", "$7::bigint"),
            "),
             taken AS (SELECT * FROM free UNION ALL SELECT * FROM ended UNION ALL SELECT * FROM suspect)
             UPDATE effects AS e SET epoch = $1, lease_until = $3, fence = e.fence + 1 FROM taken AS t
             WHERE e.tenant = t.tenant AND e.run = t.run AND e.key = t.key
             RETURNING e.tenant, e.run, e.key, e.body, e.fence, t.is_ended, t.since, e.deaths"
        )
    };
}

const LEASE: &str = lease_effects!(
    "the_free AS (
         SELECT tenant, run, key, false AS is_ended, enqueued_at AS since, octet_length(body) AS n_bytes
         FROM effects WHERE epoch IS NULL AND deaths < 2
         ORDER BY enqueued_at, tenant, run, key LIMIT $4 FOR UPDATE SKIP LOCKED),
     free AS (",
    fitting!("the_free", "$7::bigint"),
    ")"
);

const LEASE_SHARED: &str = lease_effects!(
    tenants_with!("effects", "epoch IS NULL AND deaths < 2"),
    ", of_tenants AS (SELECT x.* FROM tenants AS o, LATERAL (
             SELECT tenant, run, key, false AS is_ended, enqueued_at AS since, octet_length(body) AS n_bytes
             FROM effects WHERE tenant = o.tenant AND epoch IS NULL AND deaths < 2
             ORDER BY enqueued_at, run, key LIMIT $8 FOR UPDATE SKIP LOCKED) AS x
         WHERE o.tenant <> ALL($6)),
     of_shares AS (SELECT *, sum(n_bytes) OVER (PARTITION BY tenant ORDER BY since, run, key) - n_bytes AS before
         FROM of_tenants),
     the_free AS (SELECT tenant, run, key, is_ended, since, n_bytes FROM of_shares WHERE before < $9::bigint
         ORDER BY since, tenant, run, key LIMIT $4),
     free AS (",
    fitting!("the_free", "$7::bigint"),
    ")"
);

const RENEW: &str = "UPDATE effects SET lease_until = $5
     WHERE tenant = $1 AND run = $2 AND key = $3 AND fence = $4 AND epoch IS NOT NULL RETURNING 1";

const RELEASE: &str = "UPDATE effects SET epoch = NULL, lease_until = NULL
     WHERE tenant = $1 AND run = $2 AND key = $3 AND fence = $4";

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

/// Records that an epoch is alive, and returns whether another has been silent for too long.
const BEAT: &str = "WITH beat AS (
         UPDATE epochs SET seen_at = (extract(epoch FROM clock_timestamp()) * 1000)::bigint, is_buried = false
         WHERE epoch = $1)
     SELECT EXISTS (SELECT FROM epochs WHERE NOT is_buried AND NOT is_ended AND epoch <> $1
         AND seen_at < (extract(epoch FROM clock_timestamp()) * 1000)::bigint - $2::bigint)";

/// Leases end when they expire, as always; claims do not expire and end here.
const BURY: &str = "WITH dead AS (
         UPDATE epochs SET is_buried = true WHERE NOT is_buried AND NOT is_ended AND epoch <> $1
             AND seen_at < (extract(epoch FROM clock_timestamp()) * 1000)::bigint - $2::bigint RETURNING epoch),
     the_timers AS (UPDATE timers AS x SET deaths = deaths + 1 FROM dead WHERE x.epoch = dead.epoch),
     the_effects AS (UPDATE effects AS x SET deaths = deaths + 1 FROM dead WHERE x.epoch = dead.epoch),
     the_inboxes AS (UPDATE inbox AS x SET deaths = deaths + 1, epoch = NULL FROM dead WHERE x.epoch = dead.epoch),
     the_outbox AS (UPDATE outbox AS x SET deaths = deaths + 1, epoch = NULL FROM dead WHERE x.epoch = dead.epoch),
     the_pushes AS (UPDATE pushes AS x SET deaths = deaths + 1 FROM dead WHERE x.epoch = dead.epoch)
     SELECT count(*) FROM dead";

/// Rows claimed by another epoch are skipped. The claim ends when that epoch is found dead.
macro_rules! claim {
    ($table:literal, $run:literal) => {
        concat!(
            "WITH found AS (
                 SELECT x.tenant, x.",
            $run,
            " AS run, max(x.deaths) AS deaths FROM unnest($2::text[], $3::text[]) AS r (tenant, run)
                 JOIN ",
            $table,
            " AS x ON x.tenant = r.tenant AND x.",
            $run,
            " = r.run WHERE x.deaths < 3 GROUP BY 1, 2
                 HAVING bool_and(x.epoch IS NULL OR x.epoch = $1)),
             chosen AS (SELECT * FROM found WHERE deaths < 2
                 UNION ALL (SELECT * FROM found WHERE deaths = 2 ORDER BY tenant, run LIMIT $4)),
             taken AS (
                 UPDATE ",
            $table,
            " AS x SET epoch = $1, deaths = greatest(x.deaths, coalesce((
                     SELECT is_buried::int FROM epochs WHERE epoch < $1 ORDER BY epoch DESC LIMIT 1), 0))
                 FROM chosen AS c
                 WHERE x.tenant = c.tenant AND x.",
            $run,
            " = c.run AND x.deaths < 3 AND (x.epoch IS NULL OR x.epoch = $1) RETURNING c.tenant, c.run)
             SELECT DISTINCT tenant, run FROM taken"
        )
    };
}

const CLAIM_INBOX: &str = claim!("inbox", "target");
const CLAIM_OUTBOX: &str = claim!("outbox", "run");

const GRANT: &str = "UPDATE runs AS r
     SET descendants = greatest(o.descendants, least(o.descendants + $3::bigint, $4::bigint))
     FROM (SELECT descendants FROM runs WHERE tenant = $1 AND run = $2 FOR NO KEY UPDATE) AS o
     WHERE r.tenant = $1 AND r.run = $2 RETURNING r.descendants - o.descendants";

const PARKED: &str = "SELECT tenant, run FROM timers WHERE deaths = 3
     UNION SELECT tenant, run FROM effects WHERE deaths = 3
     UNION SELECT tenant, target FROM inbox WHERE deaths = 3
     UNION SELECT tenant, run FROM outbox WHERE deaths = 3 LIMIT $1";

const FORGET: &str = "DELETE FROM idempotency WHERE (tenant, principal, scope, key) IN (
         SELECT tenant, principal, scope, key FROM idempotency
         WHERE expires_at <= $1 ORDER BY expires_at LIMIT $2 FOR UPDATE SKIP LOCKED)
     RETURNING 1";

pub(super) async fn time(pool: &Pool) -> Result<Timestamp, Fault> {
    let found = pool.learn(|| Round::of(TIME, Vec::new())).await?;
    let row = found
        .first()
        .ok_or_else(|| Fault::Damaged("the database does not tell the time".to_owned()))?;
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
        .ok_or_else(|| Fault::Damaged("the row of the last epoch is missing".to_owned()))?;
    Ok(Epoch(rows::count(row, 0)?))
}

pub(super) async fn end_epoch(pool: &Pool, epoch: Epoch) -> Result<(), Fault> {
    pool.write(|| Round::of(END_EPOCH, vec![value(rows::int(epoch.0))]))
        .await?;
    Ok(())
}

pub(super) async fn beat(pool: &Pool, epoch: Epoch, silence: Duration) -> Result<bool, Fault> {
    let silence = i64::try_from(silence.as_millis()).unwrap_or(i64::MAX);
    let values = || vec![value(rows::int(epoch.0)), value(silence)];
    let is_somebody_silent = pool.write(|| Round::of(BEAT, values())).await?;
    let row = is_somebody_silent
        .first()
        .ok_or_else(|| Fault::Damaged("the epochs are not told".to_owned()))?;
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

pub(super) async fn parked(pool: &Pool, limit: usize) -> Result<Vec<RunKey>, Fault> {
    let found = pool
        .learn(|| Round::of(PARKED, vec![value(rows::limit(limit))]))
        .await?;
    found.iter().map(|row| rows::run_key(row, 0)).collect()
}

pub(super) async fn lease_timers(
    pool: &Pool,
    epoch: Epoch,
    due: Timestamp,
    now: Timestamp,
    until: Timestamp,
    quota: &Quota,
) -> Result<Vec<LeasedTimer>, Fault> {
    let round = || {
        let mut values = vec![
            value(rows::int(epoch.0)),
            value(due.millis()),
            value(now.millis()),
            value(until.millis()),
            value(rows::limit(quota.rows)),
            value(rows::limit(quota.suspects)),
        ];
        if quota.is_plain() {
            return Round::of(LEASE_TIMERS, values);
        }
        values.push(value(rows::limit(quota.per_tenant)));
        values.push(value(without(quota)));
        Round::of(LEASE_TIMERS_SHARED, values)
    };
    let found = pool.write(round).await?;
    let mut leased = Vec::with_capacity(found.len());
    for row in &found {
        leased.push(LeasedTimer {
            run: rows::run_key(row, 0)?,
            key: TimerKey(rows::free_text(row, 2)?),
            since: rows::time(row, 4)?,
            fence: rows::fence(row, 3)?,
            deaths: rows::deaths(row, 5)?,
        });
    }
    // The rows of an update have no order.
    leased.sort_unstable_by(|one, other| {
        (one.since, &one.run, &one.key).cmp(&(other.since, &other.run, &other.key))
    });
    Ok(leased)
}

pub(super) async fn release_timer(
    pool: &Pool,
    run: &RunKey,
    key: &TimerKey,
    fence: Fence,
    due: Timestamp,
) -> Result<(), Fault> {
    let round = || {
        let mut values = lease(run, &key.0, fence);
        values.push(value(due.millis()));
        Round::of(RELEASE_TIMER, values)
    };
    pool.write(round).await?;
    Ok(())
}

pub(super) async fn next_due(pool: &Pool) -> Result<Option<Timestamp>, Fault> {
    let found = pool.learn(|| Round::of(NEXT_DUE, Vec::new())).await?;
    match found.first() {
        Some(row) => rows::opt_time(row, 0),
        None => Ok(None),
    }
}

/// The tenants excluded by the quota.
pub(super) fn without(quota: &Quota) -> Vec<&str> {
    quota.without.iter().map(wopr_core::TenantId::as_str).collect()
}

pub(super) async fn lease_effects(
    pool: &Pool,
    epoch: Epoch,
    now: Timestamp,
    until: Timestamp,
    quota: &Quota,
) -> Result<Vec<LeasedEffect>, Fault> {
    let round = || {
        let mut values = vec![
            value(rows::int(epoch.0)),
            value(now.millis()),
            value(until.millis()),
            value(rows::limit(quota.rows)),
            value(rows::limit(quota.suspects)),
            value(without(quota)),
            value(rows::limit(quota.bytes)),
        ];
        if quota.is_plain() {
            return Round::of(LEASE, values);
        }
        values.push(value(rows::limit(quota.per_tenant)));
        values.push(value(rows::limit(quota.bytes_per_tenant)));
        Round::of(LEASE_SHARED, values)
    };
    let found = pool.write(round).await?;
    let mut leased = Vec::with_capacity(found.len());
    let mut damage = None;
    for row in &found {
        match read_leased(row) {
            Ok(effect) => leased.push(effect),
            // This effect is leased and its lease will expire; the other leased effects must not wait for
            // that.
            Err(fault) => {
                tracing::error!(?fault, "leased an effect that cannot be read");
                damage = Some(fault);
            }
        }
    }
    if let (Some(fault), true) = (damage, leased.is_empty()) {
        return Err(fault);
    }
    leased.sort_by(|(place, one), (other, another)| {
        (place, &one.run, &one.key).cmp(&(other, &another.run, &another.key))
    });
    Ok(leased.into_iter().map(|(_, effect)| effect).collect())
}

/// Reads an effect and its position in the queue.
fn read_leased(row: &Row) -> Result<((bool, i64), LeasedEffect), Fault> {
    let effect = LeasedEffect {
        run: rows::run_key(row, 0)?,
        key: EffectKey(rows::free_text(row, 2)?),
        body: rows::bytes(row, 3)?,
        fence: rows::fence(row, 4)?,
        deaths: rows::deaths(row, 7)?,
    };
    Ok(((rows::flag(row, 5)?, rows::number(row, 6)?), effect))
}

pub(super) async fn renew(
    pool: &Pool,
    run: &RunKey,
    key: &EffectKey,
    fence: Fence,
    until: Timestamp,
) -> Result<bool, Fault> {
    let round = || {
        let mut values = lease(run, &key.0, fence);
        values.push(value(until.millis()));
        Round::of(RENEW, values)
    };
    Ok(!pool.write(round).await?.is_empty())
}

pub(super) async fn release(pool: &Pool, run: &RunKey, key: &EffectKey, fence: Fence) -> Result<(), Fault> {
    pool.write(|| Round::of(RELEASE, lease(run, &key.0, fence)))
        .await?;
    Ok(())
}

fn lease<'v>(run: &'v RunKey, key: &'v str, fence: Fence) -> Vec<super::round::Value<'v>> {
    vec![
        value(run.tenant.as_str()),
        value(run.run.as_str()),
        value(rows::free(key)),
        value(rows::int(fence.0)),
    ]
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
