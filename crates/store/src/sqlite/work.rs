//! The work port in SQL.

use rusqlite::{Connection, params};
use wopr_core::{RunKey, Timestamp};

use super::{
    fault::Fault,
    quota::{NEXT_DUE, pick},
    retention::listed,
    rows,
};
use crate::{
    CallDeliveryCursor, CallDeliveryFilter, CallDeliveryRow, Epoch, Fence, Hold, LAST_CHANCE, Leased,
    Mailbox, Moved, Queue, Quota, Then, Times, WorkKey, WorkRow, work::Candidate,
};

const LEASE: &str = "UPDATE work SET epoch = ?5, due = ?6, fence = fence + 1, woken = NULL
     WHERE tenant = ?1 AND run = ?2 AND queue = ?3 AND key = ?4 RETURNING body, fence";

/// Parameter 7 is 0 for a lease that is renewed, 1 for one that is released and 2 for a row that is parked.
const SET_LEASE: &str = "UPDATE work SET
         epoch = CASE ?7 WHEN 0 THEN epoch END,
         woken = CASE ?7 WHEN 0 THEN woken END,
         due = CASE ?7 WHEN 2 THEN min(coalesce(?6, woken), coalesce(woken, ?6)) ELSE ?6 END,
         fence = CASE ?7 WHEN 2 THEN fence + 1 ELSE fence END,
         body = coalesce(?8, body),
         deaths = CASE WHEN ?7 = 2 AND (deaths < 3 OR queue = 2) THEN 0 ELSE deaths END
     WHERE tenant = ?1 AND run = ?2 AND queue = ?3 AND key = ?4 AND fence = ?5 AND epoch IS NOT NULL";

const SET_WORK: &str =
    "INSERT INTO work (tenant, run, queue, key, due, body, epoch, fence, worker_queue, ready)
     VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10)
     ON CONFLICT (tenant, run, queue, key) DO UPDATE SET due = excluded.due, body = excluded.body,
         epoch = excluded.epoch, fence = fence + 1, deaths = 0, woken = NULL,
         worker_queue = excluded.worker_queue, ready = excluded.ready, leases = 0";

/// Makes room for a row that is moved from parameter 4 to 5.
const DISPLACE: &str = "DELETE FROM work
     WHERE tenant = ?1 AND run = ?2 AND queue = ?3 AND key = ?5 AND ?4 <> ?5 AND EXISTS (
         SELECT 1 FROM work AS moved
         WHERE moved.tenant = ?1 AND moved.run = ?2 AND moved.queue = ?3 AND moved.key = ?4)";

/// Parameter 7 is 1 if the lease of the row ends.
const MOVE: &str = "UPDATE work SET
         key = ?5,
         epoch = CASE ?7 WHEN 0 THEN epoch END,
         due = CASE WHEN epoch IS NULL OR ?7 = 1 THEN ?6 ELSE due END,
         woken = CASE WHEN epoch IS NULL OR ?7 = 1 THEN NULL ELSE woken END,
         fence = fence + ?7,
         deaths = CASE ?7 WHEN 0 THEN deaths ELSE 0 END,
         worker_queue = NULL, ready = NULL, leases = 0
     WHERE tenant = ?1 AND run = ?2 AND queue = ?3 AND key = ?4";

const WAKE: &str = "UPDATE work SET
         due = CASE WHEN epoch IS NULL THEN min(coalesce(due, ?5), ?5) ELSE due END,
         woken = CASE WHEN epoch IS NOT NULL THEN min(coalesce(woken, ?5), ?5) END
     WHERE tenant = ?1 AND run = ?2 AND queue = ?3 AND key = ?4";

/// Selects from a position on, up to the run in parameter 4, and only runs of principal 7 if it is set.
const CALL_DELIVERIES: &str = concat!(
    "SELECT tenant, run, key, body, due, epoch IS NOT NULL FROM work INDEXED BY work_call_deliveries
     WHERE tenant = ?1 AND queue = 1 AND key >= 'a' AND (run, key) > (?2, ?3) AND run <= ?4
         AND (?6 = 0 OR due IS NULL)
         AND (?7 IS NULL OR EXISTS (
             SELECT 1 FROM runs WHERE runs.tenant = work.tenant AND runs.run = work.run
                 AND runs.principal = ?7))",
    listed!("work"),
    " ORDER BY run, key LIMIT ?5"
);

/// Sorts after every run id.
const BEHIND_EVERY_RUN: &str = "~";

const NEXT_INBOX: &str = "SELECT tenant, target FROM inbox
     WHERE (tenant, target) > (?1, ?2) AND deaths < 3 ORDER BY tenant, target LIMIT 1";

const QUARANTINED: &str =
    "SELECT tenant, run FROM work INDEXED BY work_quarantined WHERE deaths = 3 AND queue <> 2
     UNION SELECT tenant, target FROM inbox INDEXED BY inbox_quarantined WHERE deaths = 3
     UNION SELECT tenant, run FROM outbox INDEXED BY outbox_quarantined WHERE deaths = 20
     LIMIT ?1";

/// Counts a death for every row whose holder did not end cleanly, and releases the row.
const BURY: [&str; 3] = [
    "UPDATE work SET epoch = NULL, due = ?1, woken = NULL, deaths = deaths + (
         SELECT count(*) = 0 FROM epochs AS e WHERE e.epoch = work.epoch AND e.is_ended)
     WHERE epoch IS NOT NULL",
    "UPDATE inbox SET epoch = NULL, deaths = deaths + (
         SELECT count(*) = 0 FROM epochs AS e WHERE e.epoch = inbox.epoch AND e.is_ended)
     WHERE epoch IS NOT NULL AND ?1 IS NOT NULL",
    "UPDATE outbox SET epoch = NULL, deaths = deaths + (
         SELECT count(*) = 0 FROM epochs AS e WHERE e.epoch = outbox.epoch AND e.is_ended)
     WHERE epoch IS NOT NULL AND ?1 IS NOT NULL",
];

/// Returns the number of the next epoch.
pub(super) fn next_epoch(conn: &Connection) -> Result<Epoch, Fault> {
    let mut statement = conn.prepare_cached("SELECT coalesce(max(epoch), 0) + 1 FROM epochs")?;
    let mut found = statement.query([])?;
    let row = found
        .next()?
        .ok_or_else(|| Fault::Damaged("the epochs are not counted".into()))?;
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
        .ok_or_else(|| Fault::Damaged("an inserted epoch is not returned".into()))?;
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
            "SELECT max(deaths) FROM outbox WHERE tenant = ?1 AND run = ?2 AND deaths < 20",
            "UPDATE outbox SET epoch = ?3, deaths = max(deaths, ?4)
             WHERE tenant = ?1 AND run = ?2 AND deaths < 20",
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

pub(super) fn quarantined(conn: &Connection, limit: usize) -> Result<Vec<RunKey>, Fault> {
    let mut statement = conn.prepare_cached(QUARANTINED)?;
    let mut found = statement.query([rows::limit(limit)])?;
    let mut runs = Vec::new();
    while let Some(row) = found.next()? {
        runs.push(rows::run_key(row, 0)?);
    }
    Ok(runs)
}

/// Quarantines the work rows of a run, or releases quarantined ones.
pub(super) fn hold(conn: &Connection, run: &RunKey, hold: Hold) -> Result<(), Fault> {
    let statements = match hold {
        Hold::Quarantine => [
            "UPDATE work SET deaths = 4 WHERE tenant = ?1 AND run = ?2 AND queue <> 2",
            "UPDATE inbox SET deaths = 4 WHERE tenant = ?1 AND target = ?2",
            "UPDATE outbox SET deaths = 21 WHERE tenant = ?1 AND run = ?2 AND deaths >= 20",
        ],
        Hold::Release => [
            "UPDATE work SET deaths = 0 WHERE tenant = ?1 AND run = ?2 AND queue <> 2 AND deaths >= 3",
            "UPDATE inbox SET deaths = 0, epoch = NULL WHERE tenant = ?1 AND target = ?2 AND deaths >= 3",
            "UPDATE outbox SET deaths = 0, epoch = NULL WHERE tenant = ?1 AND run = ?2 AND deaths >= 20",
        ],
    };
    for sql in statements {
        conn.prepare_cached(sql)?
            .execute([run.tenant.as_str(), run.run.as_str()])?;
    }
    Ok(())
}

/// Creates a row of work, or replaces the one with its key.
pub(super) fn set(conn: &Connection, run: &RunKey, row: &WorkRow, now: Timestamp) -> Result<(), Fault> {
    let (due, epoch) = row.state.columns();
    let offer = row.state.offer();
    conn.prepare_cached(SET_WORK)?.execute(params![
        run.tenant.as_str(),
        run.run.as_str(),
        row.key.queue.number(),
        row.key.name,
        due.map(Timestamp::millis),
        row.body,
        epoch.map(|epoch| rows::int(epoch.0)),
        rows::int(row.first_fence(now).0),
        offer.map(|offer| offer.queue.as_str()),
        offer.map(|offer| offer.since.millis()),
    ])?;
    Ok(())
}

pub(super) fn end(conn: &Connection, run: &RunKey, key: &WorkKey) -> Result<(), Fault> {
    conn.prepare_cached("DELETE FROM work WHERE tenant = ?1 AND run = ?2 AND queue = ?3 AND key = ?4")?
        .execute(params![
            run.tenant.as_str(),
            run.run.as_str(),
            key.queue.number(),
            key.name
        ])?;
    Ok(())
}

/// Gives a row another key.
pub(super) fn rename(conn: &Connection, run: &RunKey, moved: &Moved) -> Result<(), Fault> {
    let Moved { key, to, fence, due } = moved;
    let (tenant, of, queue) = (run.tenant.as_str(), run.run.as_str(), key.queue.number());
    conn.prepare_cached(DISPLACE)?
        .execute(params![tenant, of, queue, key.name, to.name])?;
    conn.prepare_cached(MOVE)?.execute(params![
        tenant,
        of,
        queue,
        key.name,
        to.name,
        due.map(Timestamp::millis),
        i64::from(fence.is_some()),
    ])?;
    Ok(())
}

/// Returns the fence of a row, and whether it is leased.
pub(super) fn fence(conn: &Connection, run: &RunKey, key: &WorkKey) -> Result<Option<(Fence, bool)>, Fault> {
    let mut statement = conn.prepare_cached(
        "SELECT fence, epoch IS NOT NULL FROM work
         WHERE tenant = ?1 AND run = ?2 AND queue = ?3 AND key = ?4",
    )?;
    let mut found = statement.query(params![
        run.tenant.as_str(),
        run.run.as_str(),
        key.queue.number(),
        key.name
    ])?;
    match found.next()? {
        Some(row) => Ok(Some((rows::fence(row, 0)?, rows::count(row, 1)? == 1))),
        None => Ok(None),
    }
}

pub(super) fn lease(
    conn: &Connection,
    queue: Queue,
    epoch: Epoch,
    times: Times,
    quota: &Quota,
) -> Result<Vec<Leased>, Fault> {
    let picked = pick(conn, queue, times, quota)?;
    let mut leased = Vec::with_capacity(picked.len());
    for Candidate {
        run,
        name,
        since,
        deaths,
        ..
    } in picked
    {
        let mut statement = conn.prepare_cached(LEASE)?;
        let mut found = statement.query(params![
            run.tenant.as_str(),
            run.run.as_str(),
            queue.number(),
            name,
            rows::int(epoch.0),
            times.until.millis(),
        ])?;
        let Some(row) = found.next()? else {
            return Err(Fault::Damaged("a row that was just found is gone".into()));
        };
        let read = rows::bytes(row, 0).and_then(|body| Ok((body, rows::fence(row, 1)?)));
        // The update completes only when its statement is done.
        while found.next()?.is_some() {}
        match read {
            Ok((body, fence)) => leased.push(Leased {
                run,
                key: WorkKey { queue, name },
                body,
                since,
                fence,
                deaths,
            }),
            // A damaged row must not block the others.
            Err(Fault::Damaged(why)) => tracing::error!(%why, "work row passed over that cannot be read"),
            Err(fault) => return Err(fault),
        }
    }
    Ok(leased)
}

/// Renews or ends a lease, and replaces the body if there is a new one. Returns `false` if the lease is lost.
pub(super) fn set_lease(
    conn: &Connection,
    run: &RunKey,
    key: &WorkKey,
    fence: Fence,
    then: Then,
    body: Option<&[u8]>,
) -> Result<bool, Fault> {
    let (how, due) = then.columns();
    let held = conn.prepare_cached(SET_LEASE)?.execute(params![
        run.tenant.as_str(),
        run.run.as_str(),
        key.queue.number(),
        key.name,
        rows::int(fence.0),
        due.map(Timestamp::millis),
        how,
        body,
    ])?;
    Ok(held == 1)
}

pub(super) fn wake(conn: &Connection, run: &RunKey, key: &WorkKey, at: Timestamp) -> Result<bool, Fault> {
    let woken = conn.prepare_cached(WAKE)?.execute(params![
        run.tenant.as_str(),
        run.run.as_str(),
        key.queue.number(),
        key.name,
        at.millis()
    ])?;
    Ok(woken == 1)
}

pub(super) fn call_deliveries(
    conn: &Connection,
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
    let mut statement = conn.prepare_cached(CALL_DELIVERIES)?;
    let mut found = statement.query(params![
        filter.tenant.as_str(),
        run,
        name,
        wanted.unwrap_or(BEHIND_EVERY_RUN),
        rows::limit(limit),
        filter.parked,
        filter.principal.as_ref().map(wopr_core::PrincipalId::as_str),
    ])?;
    let mut deliveries = Vec::new();
    while let Some(row) = found.next()? {
        deliveries.push(CallDeliveryRow {
            run: rows::run_key(row, 0)?,
            key: WorkKey {
                queue: Queue::Effects,
                name: rows::text(row, 2)?.to_owned(),
            },
            body: rows::bytes(row, 3)?,
            due: rows::opt_time(row, 4)?,
            is_leased: rows::count(row, 5)? == 1,
        });
    }
    Ok(deliveries)
}

pub(super) fn next_due(conn: &Connection, queue: Queue) -> Result<Option<Timestamp>, Fault> {
    let mut earliest = None;
    for sql in NEXT_DUE {
        let mut statement = conn.prepare_cached(sql)?;
        let mut found = statement.query([queue.number()])?;
        if let Some(row) = found.next()? {
            let due = rows::time(row, 0)?;
            earliest = Some(earliest.map_or(due, |earliest: Timestamp| earliest.min(due)));
        }
    }
    Ok(earliest)
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
    use crate::sqlite::schema::tests::{assert_indexed, database};

    #[test]
    fn listing_deliveries_to_peers_reads_only_matching_rows() {
        let (_files, conn) = database();
        assert_indexed(&conn, [CALL_DELIVERIES]);
    }

    #[test]
    fn polling_for_mailboxes_reads_only_matching_rows() {
        let (_files, conn) = database();
        for sql in [NEXT_INBOX, QUARANTINED].into_iter().chain(BURY) {
            let mut statement = conn
                .prepare(&format!("EXPLAIN QUERY PLAN {sql}"))
                .expect("a valid statement");
            let n = statement.parameter_count();
            let steps = statement
                .query_map(rusqlite::params_from_iter(vec![0; n]), |row| row.get(3))
                .expect("a plan");
            let plan: Vec<String> = steps.collect::<Result<_, _>>().expect("readable steps");
            let reads = |step: &String| step.starts_with("SCAN") || step.starts_with("SEARCH");
            assert!(
                plan.iter()
                    .filter(|step| reads(step))
                    .all(|step| step.contains(" USING ")),
                "{sql}: {plan:?}"
            );
        }
    }
}
