//! Timers, leases and inboxes in SQL, each one statement and so one transaction.
//!
//! A lease is handed out under the row's lock, and rows that others have locked are passed over: whoever locked
//! one leases it, settles it or gives it back. A lease ends by its time or by its holder; other processes of this
//! database live, so beginning an epoch ends nothing.

use tokio_postgres::Row;
use wopr_core::{RunKey, Timestamp};

use super::{
    fault::Fault,
    pool::Pool,
    round::{Round, value},
    rows,
};
use crate::{EffectKey, Epoch, Fence, LeasedEffect, LeasedTimer, TimerKey};

const TIME: &str = "SELECT (extract(epoch FROM clock_timestamp()) * 1000)::bigint";

const WRITABLE: &str = "SELECT FROM last_epoch WHERE false FOR UPDATE";

const BEGIN_EPOCH: &str = "WITH next AS (UPDATE last_epoch SET epoch = epoch + 1 RETURNING epoch)
     INSERT INTO epochs (epoch, began_at) SELECT epoch, $1 FROM next RETURNING epoch";

/// `due` says when somebody may fire a timer: by the time of day, or, of one that is leased, by the clock of leases.
const LEASE_TIMERS: &str = "WITH free AS (
         SELECT tenant, run, key, due FROM timers
         WHERE due <= greatest($2::bigint, $3::bigint)
             AND due <= CASE WHEN epoch IS NULL THEN $2::bigint ELSE $3::bigint END
         ORDER BY due, tenant, run, key LIMIT $5 FOR UPDATE SKIP LOCKED)
     UPDATE timers AS t SET epoch = $1, due = $4, fence = t.fence + 1 FROM free AS f
     WHERE t.tenant = f.tenant AND t.run = f.run AND t.key = f.key
     RETURNING t.tenant, t.run, t.key, t.fence, f.due";

const RELEASE_TIMER: &str = "UPDATE timers SET epoch = NULL, due = $5
     WHERE tenant = $1 AND run = $2 AND key = $3 AND fence = $4 AND epoch IS NOT NULL";

const NEXT_DUE: &str = "SELECT min(due) FROM timers";

/// The order is told by the rows themselves, since what an update returns has none.
const LEASE: &str = "WITH free AS (
         SELECT tenant, run, key, false AS is_ended, enqueued_at AS since FROM effects WHERE epoch IS NULL
         ORDER BY enqueued_at, tenant, run, key LIMIT $4 FOR UPDATE SKIP LOCKED),
     ended AS (
         SELECT tenant, run, key, true AS is_ended, lease_until AS since FROM effects
         WHERE epoch IS NOT NULL AND lease_until <= $2
         ORDER BY lease_until, tenant, run, key LIMIT $4 - (SELECT count(*) FROM free) FOR UPDATE SKIP LOCKED),
     taken AS (SELECT * FROM free UNION ALL SELECT * FROM ended)
     UPDATE effects AS e SET epoch = $1, lease_until = $3, fence = e.fence + 1 FROM taken AS t
     WHERE e.tenant = t.tenant AND e.run = t.run AND e.key = t.key
     RETURNING e.tenant, e.run, e.key, e.body, e.fence, t.is_ended, t.since";

const RENEW: &str = "UPDATE effects SET lease_until = $5
     WHERE tenant = $1 AND run = $2 AND key = $3 AND fence = $4 AND epoch IS NOT NULL RETURNING 1";

const RELEASE: &str = "UPDATE effects SET epoch = NULL, lease_until = NULL
     WHERE tenant = $1 AND run = $2 AND key = $3 AND fence = $4";

/// One seek per run: a run that was told ten thousand things costs as much as one that was told one.
const WITH_INBOX: &str = "WITH RECURSIVE runs AS (
         (SELECT tenant, target FROM inbox WHERE (tenant, target) > ($1, $2) ORDER BY tenant, target LIMIT 1)
         UNION ALL
         SELECT next.tenant, next.target FROM runs, LATERAL (
             SELECT tenant, target FROM inbox WHERE (tenant, target) > (runs.tenant, runs.target)
             ORDER BY tenant, target LIMIT 1) AS next)
     SELECT tenant, target FROM runs LIMIT $3";

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

/// Learns whether the server takes writes. A standby, and a primary that is read only, refuse to lock even nothing.
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

pub(super) async fn lease_timers(
    pool: &Pool,
    epoch: Epoch,
    due: Timestamp,
    now: Timestamp,
    until: Timestamp,
    limit: usize,
) -> Result<Vec<LeasedTimer>, Fault> {
    let round = || {
        Round::of(
            LEASE_TIMERS,
            vec![
                value(rows::int(epoch.0)),
                value(due.millis()),
                value(now.millis()),
                value(until.millis()),
                value(rows::limit(limit)),
            ],
        )
    };
    let found = pool.write(round).await?;
    let mut leased = Vec::with_capacity(found.len());
    for row in &found {
        leased.push(LeasedTimer {
            run: rows::run_key(row, 0)?,
            key: TimerKey(rows::free_text(row, 2)?),
            since: rows::time(row, 4)?,
            fence: rows::fence(row, 3)?,
        });
    }
    // What an update returns has no order.
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

pub(super) async fn lease_effects(
    pool: &Pool,
    epoch: Epoch,
    now: Timestamp,
    until: Timestamp,
    limit: usize,
) -> Result<Vec<LeasedEffect>, Fault> {
    let round = || {
        Round::of(
            LEASE,
            vec![
                value(rows::int(epoch.0)),
                value(now.millis()),
                value(until.millis()),
                value(rows::limit(limit)),
            ],
        )
    };
    let found = pool.write(round).await?;
    let mut leased = Vec::with_capacity(found.len());
    let mut damage = None;
    for row in &found {
        match read_leased(row) {
            Ok(effect) => leased.push(effect),
            // Its lease is handed out and will end; the others are ours and must not wait for that.
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

/// Reads an effect and its place in the queue.
fn read_leased(row: &Row) -> Result<((bool, i64), LeasedEffect), Fault> {
    let effect = LeasedEffect {
        run: rows::run_key(row, 0)?,
        key: EffectKey(rows::free_text(row, 2)?),
        body: rows::bytes(row, 3)?,
        fence: rows::fence(row, 4)?,
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
    after: Option<&RunKey>,
    limit: usize,
) -> Result<Vec<RunKey>, Fault> {
    // The empty text sorts before every id.
    let (tenant, run) = after.map_or(("", ""), |key| (key.tenant.as_str(), key.run.as_str()));
    let round = || {
        Round::of(
            WITH_INBOX,
            vec![value(tenant), value(run), value(rows::limit(limit))],
        )
    };
    let found = pool.learn(round).await?;
    found.iter().map(|row| rows::run_key(row, 0)).collect()
}

/// Deletes expired records of requests.
pub(super) async fn forget_expired(pool: &Pool, now: Timestamp, limit: usize) -> Result<usize, Fault> {
    let round = || Round::of(FORGET, vec![value(now.millis()), value(rows::limit(limit))]);
    Ok(pool.write(round).await?.len())
}
