//! Timers, leases and inboxes in SQL.

use rusqlite::{Connection, params};
use wopr_core::{RunKey, Timestamp};

use super::{
    fault::Fault,
    quota::{Bytes, Found, Queries, pick},
    rows,
};
use crate::{
    EffectKey, Epoch, Fence, Hold, LAST_CHANCE, LeasedEffect, LeasedTimer, Mailbox, Quota, TimerKey,
};

/// The column `due` is when a timer can be leased: by the time of day, or, for a leased timer, by the clock
/// of leases.
macro_rules! due {
    ($index:literal, $condition:literal, $order:literal) => {
        concat!(
            "SELECT tenant, run, key, due, fence, deaths FROM timers INDEXED BY ",
            $index,
            " WHERE due <= max(?1, ?2) AND due <= CASE WHEN epoch IS NULL THEN ?1 ELSE ?2 END",
            $condition,
            " ORDER BY ",
            $order,
            " LIMIT ?3"
        )
    };
}

const TIMERS: Queries = Queries {
    all: due!("timers_by_due", " AND deaths < 2", "due, tenant, run, key"),
    next_tenant: "SELECT tenant FROM timers INDEXED BY timers_by_tenant
         WHERE tenant > ?1 AND deaths < 2 ORDER BY tenant LIMIT 1",
    of_tenant: due!(
        "timers_by_tenant",
        " AND deaths < 2 AND tenant = ?4",
        "due, run, key"
    ),
    suspects: due!("timers_suspect", " AND deaths = 2", "due, tenant, run, key"),
};

const NEXT_DUE: &str = "SELECT min(due) FROM timers INDEXED BY timers_by_due WHERE deaths < 2";

const NEXT_SUSPECT: &str = "SELECT min(due) FROM timers INDEXED BY timers_suspect WHERE deaths = 2";

macro_rules! free {
    ($index:literal, $condition:literal, $order:literal) => {
        concat!(
            "SELECT tenant, run, key, length(body), fence, deaths, enqueued_at FROM effects INDEXED BY ",
            $index,
            " WHERE ",
            $condition,
            " ORDER BY ",
            $order,
            " LIMIT ?2"
        )
    };
}

/// Parameter 1 is the time by which the lease of a suspect must have expired.
const EFFECTS: Queries = Queries {
    all: free!(
        "effects_free",
        "?1 IS NOT NULL AND epoch IS NULL AND deaths < 2",
        "enqueued_at, tenant, run, key"
    ),
    next_tenant: "SELECT tenant FROM effects INDEXED BY effects_by_tenant
         WHERE tenant > ?1 AND epoch IS NULL AND deaths < 2 ORDER BY tenant LIMIT 1",
    of_tenant: free!(
        "effects_by_tenant",
        "?1 IS NOT NULL AND epoch IS NULL AND deaths < 2 AND tenant = ?3",
        "enqueued_at, run, key"
    ),
    suspects: free!(
        "effects_suspect",
        "deaths = 2 AND (epoch IS NULL OR lease_until <= ?1)",
        "enqueued_at, tenant, run, key"
    ),
};

const ENDED: &str = "SELECT tenant, run, key, length(body), fence, deaths, lease_until FROM effects
     INDEXED BY effects_held
     WHERE epoch IS NOT NULL AND deaths < 2 AND lease_until <= ?1 ORDER BY lease_until, tenant, run, key LIMIT ?2";

const NEXT_INBOX: &str = "SELECT tenant, target FROM inbox
     WHERE (tenant, target) > (?1, ?2) AND deaths < 3 ORDER BY tenant, target LIMIT 1";

const PARKED: &str = "SELECT tenant, run FROM timers INDEXED BY timers_parked WHERE deaths = 3
     UNION SELECT tenant, run FROM effects INDEXED BY effects_parked WHERE deaths = 3
     UNION SELECT tenant, target FROM inbox INDEXED BY inbox_parked WHERE deaths = 3
     UNION SELECT tenant, run FROM outbox INDEXED BY outbox_parked WHERE deaths = 3
     LIMIT ?1";

/// Counts a death for every row whose holder did not end cleanly, and releases the row.
const BURY: [&str; 5] = [
    "UPDATE effects SET epoch = NULL, lease_until = NULL, deaths = deaths + (
         SELECT count(*) = 0 FROM epochs AS e WHERE e.epoch = effects.epoch AND e.is_ended)
     WHERE epoch IS NOT NULL AND ?1 IS NOT NULL",
    "UPDATE timers SET epoch = NULL, due = ?1, deaths = deaths + (
         SELECT count(*) = 0 FROM epochs AS e WHERE e.epoch = timers.epoch AND e.is_ended)
     WHERE epoch IS NOT NULL",
    "UPDATE inbox SET epoch = NULL, deaths = deaths + (
         SELECT count(*) = 0 FROM epochs AS e WHERE e.epoch = inbox.epoch AND e.is_ended)
     WHERE epoch IS NOT NULL AND ?1 IS NOT NULL",
    "UPDATE outbox SET epoch = NULL, deaths = deaths + (
         SELECT count(*) = 0 FROM epochs AS e WHERE e.epoch = outbox.epoch AND e.is_ended)
     WHERE epoch IS NOT NULL AND ?1 IS NOT NULL",
    "UPDATE pushes SET epoch = NULL, due = ?1, deaths = deaths + (
         SELECT count(*) = 0 FROM epochs AS e WHERE e.epoch = pushes.epoch AND e.is_ended)
     WHERE due IS NOT NULL AND epoch IS NOT NULL",
];

/// Returns the number of the next epoch.
pub(super) fn next_epoch(conn: &Connection) -> Result<Epoch, Fault> {
    let mut statement = conn.prepare_cached("SELECT coalesce(max(epoch), 0) + 1 FROM epochs")?;
    let mut found = statement.query([])?;
    let row = found
        .next()?
        .ok_or_else(|| Fault::Damaged("the epochs are not counted".to_owned()))?;
    Ok(Epoch(rows::count(row, 0)?))
}

pub(super) fn high_water(conn: &Connection) -> Result<Option<Timestamp>, Fault> {
    let mut statement = conn.prepare_cached("SELECT max(high_water) FROM clock")?;
    let mut found = statement.query([])?;
    match found.next()? {
        Some(row) => rows::opt_time(row, 0),
        None => Ok(None),
    }
}

pub(super) fn keep_time(conn: &Connection, at: Timestamp) -> Result<(), Fault> {
    conn.prepare_cached(
        "INSERT INTO clock (one, high_water) VALUES (1, ?1)
         ON CONFLICT (one) DO UPDATE SET high_water = excluded.high_water
         WHERE high_water < excluded.high_water",
    )?
    .execute(params![at.millis()])?;
    Ok(())
}

pub(super) fn begin_epoch(conn: &Connection, now: Timestamp) -> Result<Epoch, Fault> {
    // The lock file excludes other processes, so the earlier epochs that held rows are gone.
    for sql in BURY {
        conn.prepare_cached(sql)?.execute(params![now.millis()])?;
    }
    let mut statement = conn.prepare_cached(
        "INSERT INTO epochs (epoch, began_at) SELECT coalesce(max(epoch), 0) + 1, ?1 FROM epochs RETURNING epoch",
    )?;
    let mut found = statement.query(params![now.millis()])?;
    let row = found
        .next()?
        .ok_or_else(|| Fault::Damaged("an inserted epoch is not returned".to_owned()))?;
    let epoch = Epoch(rows::count(row, 0)?);
    // The insert completes only when its statement is done.
    while found.next()?.is_some() {}
    Ok(epoch)
}

pub(super) fn end_epoch(conn: &Connection, epoch: Epoch) -> Result<(), Fault> {
    conn.prepare_cached("UPDATE epochs SET is_ended = 1 WHERE epoch = ?1")?
        .execute([rows::int(epoch.0)])?;
    Ok(())
}

/// Returns `true` if the epoch before this one did not end cleanly.
fn follows_death(conn: &Connection, epoch: Epoch) -> Result<bool, Fault> {
    let mut statement =
        conn.prepare_cached("SELECT is_ended FROM epochs WHERE epoch < ?1 ORDER BY epoch DESC LIMIT 1")?;
    let mut found = statement.query([rows::int(epoch.0)])?;
    match found.next()? {
        Some(row) => Ok(rows::count(row, 0)? == 0),
        None => Ok(false),
    }
}

pub(super) fn claim(
    conn: &Connection,
    mailbox: Mailbox,
    epoch: Epoch,
    runs: &[RunKey],
    suspects: usize,
) -> Result<Vec<RunKey>, Fault> {
    let least = i64::from(follows_death(conn, epoch)?);
    // No other epoch holds rows: earlier epochs were cleared when this one began.
    let (deaths, take) = match mailbox {
        Mailbox::Inbox => (
            "SELECT max(deaths) FROM inbox WHERE tenant = ?1 AND target = ?2 AND deaths < 3",
            "UPDATE inbox SET epoch = ?3, deaths = max(deaths, ?4)
             WHERE tenant = ?1 AND target = ?2 AND deaths < 3",
        ),
        Mailbox::Outbox => (
            "SELECT max(deaths) FROM outbox WHERE tenant = ?1 AND run = ?2 AND deaths < 3",
            "UPDATE outbox SET epoch = ?3, deaths = max(deaths, ?4)
             WHERE tenant = ?1 AND run = ?2 AND deaths < 3",
        ),
    };
    let (mut claimed, mut left) = (Vec::new(), suspects);
    for key in runs {
        let (tenant, run) = (key.tenant.as_str(), key.run.as_str());
        let deaths: Option<u32> = conn
            .prepare_cached(deaths)?
            .query_row([tenant, run], |row| row.get(0))?;
        match deaths {
            None => continue,
            Some(LAST_CHANCE..) if left == 0 => continue,
            Some(LAST_CHANCE..) => left -= 1,
            Some(_) => {}
        }
        conn.prepare_cached(take)?
            .execute(params![tenant, run, rows::int(epoch.0), least])?;
        claimed.push(key.clone());
    }
    Ok(claimed)
}

pub(super) fn grant(conn: &Connection, root: &RunKey, wanted: u64, most: u64) -> Result<u64, Fault> {
    let (tenant, run) = (root.tenant.as_str(), root.run.as_str());
    let granted = {
        let mut statement =
            conn.prepare_cached("SELECT descendants FROM runs WHERE tenant = ?1 AND run = ?2")?;
        let mut found = statement.query([tenant, run])?;
        match found.next()? {
            Some(row) => wanted.min(most.saturating_sub(rows::count(row, 0)?)),
            None => 0,
        }
    };
    conn.prepare_cached("UPDATE runs SET descendants = descendants + ?3 WHERE tenant = ?1 AND run = ?2")?
        .execute(params![tenant, run, rows::int(granted)])?;
    Ok(granted)
}

pub(super) fn parked(conn: &Connection, limit: usize) -> Result<Vec<RunKey>, Fault> {
    let mut statement = conn.prepare_cached(PARKED)?;
    let mut found = statement.query([rows::limit(limit)])?;
    let mut runs = Vec::new();
    while let Some(row) = found.next()? {
        runs.push(rows::run_key(row, 0)?);
    }
    Ok(runs)
}

/// Parks the work rows of a run, or releases parked ones.
pub(super) fn hold(conn: &Connection, run: &RunKey, hold: Hold) -> Result<(), Fault> {
    let statements = match hold {
        Hold::Park => [
            "UPDATE timers SET deaths = 4 WHERE tenant = ?1 AND run = ?2",
            "UPDATE effects SET deaths = 4 WHERE tenant = ?1 AND run = ?2",
            "UPDATE inbox SET deaths = 4 WHERE tenant = ?1 AND target = ?2",
            "UPDATE outbox SET deaths = 4 WHERE tenant = ?1 AND run = ?2 AND deaths >= 3",
        ],
        Hold::Release => [
            "UPDATE timers SET deaths = 0 WHERE tenant = ?1 AND run = ?2 AND deaths >= 3",
            "UPDATE effects SET deaths = 0, epoch = NULL, lease_until = NULL
             WHERE tenant = ?1 AND run = ?2 AND deaths >= 3",
            "UPDATE inbox SET deaths = 0, epoch = NULL WHERE tenant = ?1 AND target = ?2 AND deaths >= 3",
            "UPDATE outbox SET deaths = 0, epoch = NULL WHERE tenant = ?1 AND run = ?2 AND deaths >= 3",
        ],
    };
    for sql in statements {
        conn.prepare_cached(sql)?
            .execute([run.tenant.as_str(), run.run.as_str()])?;
    }
    Ok(())
}

pub(super) fn lease_timers(
    conn: &Connection,
    epoch: Epoch,
    due: Timestamp,
    now: Timestamp,
    until: Timestamp,
    quota: &Quota,
) -> Result<Vec<LeasedTimer>, Fault> {
    let leased = pick(conn, &TIMERS, &[due.millis(), now.millis()], quota, |row| {
        let since = rows::time(row, 3)?;
        let timer = LeasedTimer {
            run: rows::run_key(row, 0)?,
            key: TimerKey(rows::text(row, 2)?.to_owned()),
            since,
            fence: Fence(rows::fence(row, 4)?.0 + 1),
            deaths: rows::deaths(row, 5)?,
        };
        Ok(Found {
            since: since.millis(),
            n_bytes: 0,
            row: timer,
        })
    })?;
    let leased: Vec<_> = leased.into_iter().map(|found| found.row).collect();
    for timer in &leased {
        conn.prepare_cached(
            "UPDATE timers SET epoch = ?4, due = ?5, fence = ?6 WHERE tenant = ?1 AND run = ?2 AND key = ?3",
        )?
        .execute(params![
            timer.run.tenant.as_str(),
            timer.run.run.as_str(),
            timer.key.0,
            rows::int(epoch.0),
            until.millis(),
            rows::int(timer.fence.0),
        ])?;
    }
    Ok(leased)
}

pub(super) fn release_timer(
    conn: &Connection,
    run: &RunKey,
    key: &TimerKey,
    fence: Fence,
    due: Timestamp,
) -> Result<(), Fault> {
    conn.prepare_cached(
        "UPDATE timers SET epoch = NULL, due = ?5
         WHERE tenant = ?1 AND run = ?2 AND key = ?3 AND fence = ?4 AND epoch IS NOT NULL",
    )?
    .execute(params![
        run.tenant.as_str(),
        run.run.as_str(),
        key.0,
        rows::int(fence.0),
        due.millis()
    ])?;
    Ok(())
}

pub(super) fn next_due(conn: &Connection) -> Result<Option<Timestamp>, Fault> {
    let mut earliest = None;
    for sql in [NEXT_DUE, NEXT_SUSPECT] {
        let mut statement = conn.prepare_cached(sql)?;
        let mut found = statement.query([])?;
        let due = match found.next()? {
            Some(row) => rows::opt_time(row, 0)?,
            None => None,
        };
        earliest = [earliest, due].into_iter().flatten().min();
    }
    Ok(earliest)
}

pub(super) fn lease_effects(
    conn: &Connection,
    epoch: Epoch,
    now: Timestamp,
    until: Timestamp,
    quota: &Quota,
) -> Result<Vec<LeasedEffect>, Fault> {
    let mut picked = pick(conn, &EFFECTS, &[now.millis()], quota, leased_anew)?;
    let place = picked.partition_point(|found| found.row.deaths < LAST_CHANCE);
    let room = quota.rows - place;
    let mut left = Bytes::new(quota.bytes);
    for found in &picked[..place] {
        left.take(found.n_bytes);
    }
    if room > 0 {
        let mut statement = conn.prepare_cached(ENDED)?;
        // Rows of excluded tenants are skipped below, so the query cannot limit them.
        let most = if quota.without.is_empty() {
            room
        } else {
            usize::MAX
        };
        let mut found = statement.query(params![now.millis(), rows::limit(most)])?;
        let mut ended = Vec::new();
        while let Some(row) = found.next()?
            && ended.len() < room
        {
            let found = leased_anew(row)?;
            if quota.without.contains(&found.row.run.tenant) {
                continue;
            }
            if !left.take(found.n_bytes) {
                break;
            }
            ended.push(found);
        }
        picked.splice(place..place, ended);
    }
    let mut leased = Vec::with_capacity(picked.len());
    for Found { row: mut effect, .. } in picked {
        match body(conn, &effect) {
            Ok(body) => effect.body = body,
            // A damaged row must not block the others.
            Err(Fault::Damaged(why)) => {
                tracing::error!(why, "effect passed over that cannot be read");
                continue;
            }
            Err(fault) => return Err(fault),
        }
        conn.prepare_cached(
            "UPDATE effects SET epoch = ?4, lease_until = ?5, fence = ?6
             WHERE tenant = ?1 AND run = ?2 AND key = ?3",
        )?
        .execute(params![
            effect.run.tenant.as_str(),
            effect.run.run.as_str(),
            effect.key.0,
            rows::int(epoch.0),
            until.millis(),
            rows::int(effect.fence.0),
        ])?;
        leased.push(effect);
    }
    Ok(leased)
}

/// Reads (tenant, run, key, length of the body, fence, deaths, since). The fence is already incremented for
/// the new lease; the body is left empty.
fn leased_anew(row: &rusqlite::Row<'_>) -> Result<Found<LeasedEffect>, Fault> {
    let effect = LeasedEffect {
        run: rows::run_key(row, 0)?,
        key: EffectKey(rows::text(row, 2)?.to_owned()),
        body: Vec::new(),
        fence: Fence(rows::fence(row, 4)?.0 + 1),
        deaths: rows::deaths(row, 5)?,
    };
    Ok(Found {
        since: rows::time(row, 6)?.millis(),
        n_bytes: rows::count(row, 3)?,
        row: effect,
    })
}

fn body(conn: &Connection, effect: &LeasedEffect) -> Result<Vec<u8>, Fault> {
    let mut statement =
        conn.prepare_cached("SELECT body FROM effects WHERE tenant = ?1 AND run = ?2 AND key = ?3")?;
    let mut found = statement.query(params![
        effect.run.tenant.as_str(),
        effect.run.run.as_str(),
        effect.key.0
    ])?;
    match found.next()? {
        Some(row) => rows::bytes(row, 0),
        None => Err(Fault::Damaged("an effect that was just found is gone".to_owned())),
    }
}

pub(super) fn renew(
    conn: &Connection,
    run: &RunKey,
    key: &EffectKey,
    fence: Fence,
    until: Timestamp,
) -> Result<bool, Fault> {
    let renewed = conn
        .prepare_cached(
            "UPDATE effects SET lease_until = ?5
             WHERE tenant = ?1 AND run = ?2 AND key = ?3 AND fence = ?4 AND epoch IS NOT NULL",
        )?
        .execute(params![
            run.tenant.as_str(),
            run.run.as_str(),
            key.0,
            rows::int(fence.0),
            until.millis()
        ])?;
    Ok(renewed == 1)
}

pub(super) fn release(conn: &Connection, run: &RunKey, key: &EffectKey, fence: Fence) -> Result<(), Fault> {
    conn.prepare_cached(
        "UPDATE effects SET epoch = NULL, lease_until = NULL
         WHERE tenant = ?1 AND run = ?2 AND key = ?3 AND fence = ?4",
    )?
    .execute(params![
        run.tenant.as_str(),
        run.run.as_str(),
        key.0,
        rows::int(fence.0)
    ])?;
    Ok(())
}

pub(super) fn runs_with_inbox(
    conn: &Connection,
    after: Option<&RunKey>,
    limit: usize,
) -> Result<Vec<RunKey>, Fault> {
    // One seek per run, so the cost does not depend on the number of messages in an inbox.
    let mut statement = conn.prepare_cached(NEXT_INBOX)?;
    let mut runs: Vec<RunKey> = Vec::new();
    while runs.len() < limit {
        // The empty string sorts before every id.
        let (tenant, run) = runs
            .last()
            .or(after)
            .map_or(("", ""), |key| (key.tenant.as_str(), key.run.as_str()));
        let mut found = statement.query(params![tenant, run])?;
        let Some(row) = found.next()? else { break };
        let next = rows::run_key(row, 0)?;
        runs.push(next);
    }
    Ok(runs)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sqlite::schema::tests::database;

    #[test]
    fn polling_for_work_reads_only_matching_rows() {
        let (_files, conn) = database();
        let queries = [TIMERS, EFFECTS].map(|queries| {
            let Queries {
                all,
                next_tenant,
                of_tenant,
                suspects,
            } = queries;
            [all, next_tenant, of_tenant, suspects]
        });
        let others = [NEXT_DUE, NEXT_SUSPECT, ENDED, NEXT_INBOX];
        for sql in queries.into_iter().flatten().chain(others) {
            let mut statement = conn
                .prepare(&format!("EXPLAIN QUERY PLAN {sql}"))
                .expect("a valid statement");
            let n = statement.parameter_count();
            let steps = statement
                .query_map(rusqlite::params_from_iter(vec![0; n]), |row| row.get(3))
                .expect("a plan");
            let plan: Vec<String> = steps.collect::<Result<_, _>>().expect("readable steps");
            assert!(
                !plan.iter().any(|step| step.contains("TEMP B-TREE")),
                "{sql}: {plan:?}"
            );
            assert!(
                plan.iter().all(|step| step.contains(" USING ")),
                "{sql}: {plan:?}"
            );
        }
    }
}
