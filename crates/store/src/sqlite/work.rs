//! Timers, leases and inboxes in SQL.

use rusqlite::{Connection, params};
use wopr_core::{RunKey, Timestamp};

use super::{fault::Fault, push, rows};
use crate::{EffectKey, Epoch, Fence, LeasedEffect, LeasedTimer, TimerKey};

/// `due` says when somebody may fire a timer: by the time of day, or, of one that is leased, by the clock of leases.
const DUE: &str = "SELECT tenant, run, key, due, fence FROM timers INDEXED BY timers_by_due
     WHERE due <= max(?1, ?2) AND due <= CASE WHEN epoch IS NULL THEN ?1 ELSE ?2 END
     ORDER BY due, tenant, run, key LIMIT ?3";

const NEXT_DUE: &str = "SELECT min(due) FROM timers";

const FREE: &str = "SELECT tenant, run, key, body, fence FROM effects INDEXED BY effects_free
     WHERE epoch IS NULL ORDER BY enqueued_at, tenant, run, key LIMIT ?1";

const ENDED: &str = "SELECT tenant, run, key, body, fence FROM effects INDEXED BY effects_held
     WHERE epoch IS NOT NULL AND lease_until <= ?2 ORDER BY lease_until, tenant, run, key LIMIT ?1";

const NEXT_INBOX: &str =
    "SELECT tenant, target FROM inbox WHERE (tenant, target) > (?1, ?2) ORDER BY tenant, target LIMIT 1";

pub(super) fn begin_epoch(conn: &Connection, now: Timestamp) -> Result<Epoch, Fault> {
    // The lock file says that no other process lives, so whoever held a lease is gone.
    conn.prepare_cached("UPDATE effects SET epoch = NULL, lease_until = NULL WHERE epoch IS NOT NULL")?
        .execute([])?;
    conn.prepare_cached("UPDATE timers SET epoch = NULL, due = ?1 WHERE epoch IS NOT NULL")?
        .execute(params![now.millis()])?;
    push::end_leases(conn, now)?;
    let mut statement = conn.prepare_cached(
        "INSERT INTO epochs (epoch, began_at) SELECT coalesce(max(epoch), 0) + 1, ?1 FROM epochs RETURNING epoch",
    )?;
    let mut found = statement.query(params![now.millis()])?;
    let row = found
        .next()?
        .ok_or_else(|| Fault::Damaged("an inserted epoch is not returned".to_owned()))?;
    let epoch = Epoch(rows::count(row, 0)?);
    // The insert is over only when its statement is.
    while found.next()?.is_some() {}
    Ok(epoch)
}

pub(super) fn lease_timers(
    conn: &Connection,
    epoch: Epoch,
    due: Timestamp,
    now: Timestamp,
    until: Timestamp,
    limit: usize,
) -> Result<Vec<LeasedTimer>, Fault> {
    let mut leased = Vec::new();
    {
        let mut statement = conn.prepare_cached(DUE)?;
        let mut found = statement.query(params![due.millis(), now.millis(), rows::limit(limit)])?;
        while let Some(row) = found.next()? {
            leased.push(LeasedTimer {
                run: rows::run_key(row, 0)?,
                key: TimerKey(rows::text(row, 2)?.to_owned()),
                since: rows::time(row, 3)?,
                fence: Fence(rows::fence(row, 4)?.0 + 1),
            });
        }
    }
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
    let mut statement = conn.prepare_cached(NEXT_DUE)?;
    let mut found = statement.query([])?;
    match found.next()? {
        Some(row) => rows::opt_time(row, 0),
        None => Ok(None),
    }
}

pub(super) fn lease_effects(
    conn: &Connection,
    epoch: Epoch,
    now: Timestamp,
    until: Timestamp,
    limit: usize,
) -> Result<Vec<LeasedEffect>, Fault> {
    let mut leased = Vec::new();
    {
        let mut statement = conn.prepare_cached(FREE)?;
        let mut found = statement.query(params![rows::limit(limit)])?;
        while let Some(row) = found.next()? {
            leased.push(leased_anew(row)?);
        }
    }
    if leased.len() < limit {
        let mut statement = conn.prepare_cached(ENDED)?;
        let mut found = statement.query(params![rows::limit(limit - leased.len()), now.millis()])?;
        while let Some(row) = found.next()? {
            leased.push(leased_anew(row)?);
        }
    }
    for effect in &leased {
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
    }
    Ok(leased)
}

/// Reads (tenant, run, key, body, fence), the fence already counted up for the new lease.
fn leased_anew(row: &rusqlite::Row<'_>) -> Result<LeasedEffect, Fault> {
    Ok(LeasedEffect {
        run: rows::run_key(row, 0)?,
        key: EffectKey(rows::text(row, 2)?.to_owned()),
        body: rows::bytes(row, 3)?,
        fence: Fence(rows::fence(row, 4)?.0 + 1),
    })
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
    // One seek per run: a run that was told ten thousand things costs as much as one that was told one.
    let mut statement = conn.prepare_cached(NEXT_INBOX)?;
    let mut runs: Vec<RunKey> = Vec::new();
    while runs.len() < limit {
        // The empty text sorts before every id.
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
    fn polling_for_work_reads_no_more_than_it_finds() {
        let (_files, conn) = database();
        for sql in [DUE, NEXT_DUE, FREE, ENDED, NEXT_INBOX] {
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
