//! Reads of one run, each as of one moment.

use rusqlite::{Connection, params};
use wopr_core::{RunId, RunKey, Seq, TenantId};

use super::{fault::Fault, retention::present, rows};
use crate::{
    BlobRow, EventPage, INBOX_ROWS, InboxRow, Load, Loaded, MESSAGES_BYTES, MessageRow, PAGE_BYTES, Snapshot,
    StoredEvent, Summary,
};

/// If the snapshot covers part of an event row, the whole row counts.
const WEIGHT: &str = "\
    SELECT coalesce((SELECT length(body) FROM snapshots WHERE tenant = ?1 AND run = ?2), 0)
         + coalesce((SELECT sum(length(bodies)) FROM events WHERE tenant = ?1 AND run = ?2 AND last_seq >=
               coalesce((SELECT head FROM snapshots WHERE tenant = ?1 AND run = ?2), 0)), 0)";

pub(super) fn load(conn: &Connection, run: &RunKey, most: usize) -> Result<Option<Load>, Fault> {
    let Some((summary, head)) = summary(conn, run)? else {
        return Ok(None);
    };
    let (places, waiting) = waiting(conn, run)?;
    let sized = snapshot_size(conn, run)?;
    let (folded, n_folded) = sized.unwrap_or((Seq(0), 0));
    if folded > head {
        return Err(Fault::Damaged(
            format!("the snapshot of {run} folds {folded} events, the log holds {head}").into(),
        ));
    }
    // Most runs are small. So the events are read at once, and weighed only if they turn out to be too many.
    let room = most.checked_sub(waiting.saturating_add(n_folded));
    let tail = match room {
        None => None,
        Some(room) => {
            let bound = Bound {
                events: usize::MAX,
                bytes: room.saturating_add(1),
            };
            let (tail, n_bytes) = events_from(conn, run, folded, bound, head)?;
            (n_bytes <= room).then_some(tail)
        }
    };
    let Some(tail) = tail else {
        return Ok(Some(Load::Heavy(weight(conn, run)?.saturating_add(waiting))));
    };
    let snapshot = match sized {
        None => None,
        Some(_) => snapshot(conn, run)?,
    };
    Ok(Some(Load::Whole(Box::new(Loaded {
        summary,
        head,
        snapshot,
        tail,
        inbox: inbox(conn, run, &places)?,
    }))))
}

/// Returns the bytes of the newest snapshot and of the events after it. SQLite knows the length of a body
/// without reading it.
fn weight(conn: &Connection, run: &RunKey) -> Result<usize, Fault> {
    let mut statement = conn.prepare_cached(WEIGHT)?;
    let mut found = statement.query(params![run.tenant.as_str(), run.run.as_str()])?;
    let weight = found.next()?.map(|row| rows::count(row, 0)).transpose()?;
    Ok(usize::try_from(weight.unwrap_or(0)).unwrap_or(usize::MAX))
}

pub(super) fn summary(conn: &Connection, run: &RunKey) -> Result<Option<(Summary, Seq)>, Fault> {
    const SELECT: &str = concat!(
        "SELECT workflow, version, status, principal, parent_run, parent_node, created_at, updated_at, waiting_on,
             error_code, phase_since, run_group, alias, next_seq
         FROM runs WHERE tenant = ?1 AND run = ?2",
        present!()
    );
    let mut statement = conn.prepare_cached(SELECT)?;
    let mut found = statement.query(params![run.tenant.as_str(), run.run.as_str()])?;
    found.next()?.map(|row| rows::summary(row, 0)).transpose()
}

pub(super) fn run_of_alias(
    conn: &Connection,
    tenant: &TenantId,
    alias: &str,
) -> Result<Option<RunId>, Fault> {
    const SELECT: &str = concat!(
        "SELECT run FROM runs WHERE tenant = ?1 AND alias = ?2 AND parent_run IS NULL",
        present!()
    );
    let mut statement = conn.prepare_cached(SELECT)?;
    let mut found = statement.query(params![tenant.as_str(), alias])?;
    found
        .next()?
        .map(|row| rows::id(row, 0, RunId::parse))
        .transpose()
}

pub(super) fn heads(conn: &Connection, runs: &[RunKey]) -> Result<Vec<Option<Seq>>, Fault> {
    const SELECT: &str = concat!(
        "SELECT next_seq FROM runs WHERE tenant = ?1 AND run = ?2",
        present!()
    );
    let mut statement = conn.prepare_cached(SELECT)?;
    let mut heads = Vec::with_capacity(runs.len());
    for run in runs {
        let mut found = statement.query(params![run.tenant.as_str(), run.run.as_str()])?;
        heads.push(found.next()?.map(|row| rows::seq(row, 0)).transpose()?);
    }
    Ok(heads)
}

pub(super) fn events(
    conn: &Connection,
    run: &RunKey,
    from: Seq,
    limit: usize,
) -> Result<Option<EventPage>, Fault> {
    let (status, head) = {
        const SELECT: &str = concat!(
            "SELECT status, next_seq FROM runs WHERE tenant = ?1 AND run = ?2",
            present!()
        );
        let mut statement = conn.prepare_cached(SELECT)?;
        let mut found = statement.query(params![run.tenant.as_str(), run.run.as_str()])?;
        let Some(row) = found.next()? else { return Ok(None) };
        (rows::status(row, 0)?, rows::seq(row, 1)?)
    };
    let bound = Bound {
        events: limit,
        bytes: PAGE_BYTES,
    };
    let (events, _) = events_from(conn, run, from, bound, head)?;
    Ok(Some(EventPage { events, head, status }))
}

/// Limits of a log read, which ends with the event that reaches either.
#[derive(Clone, Copy)]
struct Bound {
    events: usize,
    bytes: usize,
}

/// Reads events of a log with `head` events, and checks that none is missing. Also returns the size of the rows that they
/// are in.
fn events_from(
    conn: &Connection,
    run: &RunKey,
    from: Seq,
    bound: Bound,
    head: Seq,
) -> Result<(Vec<StoredEvent>, usize), Fault> {
    let expected = usize::try_from(head.0.saturating_sub(from.0))
        .unwrap_or(usize::MAX)
        .min(bound.events);
    if expected == 0 {
        return Ok((Vec::new(), 0));
    }
    let mut statement = conn.prepare_cached(
        "SELECT last_seq, bodies FROM events WHERE tenant = ?1 AND run = ?2 AND last_seq >= ?3 ORDER BY last_seq",
    )?;
    let mut found = statement.query(params![run.tenant.as_str(), run.run.as_str(), rows::int(from.0)])?;
    // The length comes from the run row; limit the allocation in case that row is damaged.
    let mut events = Vec::with_capacity(expected.min(1024));
    let (mut n_bytes, mut n_row_bytes) = (0, 0);
    'rows: while events.len() < expected
        && n_bytes < bound.bytes
        && let Some(row) = found.next()?
    {
        n_row_bytes += rows::size(row, 1)?;
        for (seq, body) in rows::events(row)?.skip_while(|(seq, _)| *seq < from) {
            let is_full = events.len() == expected || n_bytes >= bound.bytes;
            if is_full || seq != from.plus(events.len()) {
                break 'rows;
            }
            n_bytes += body.len();
            let body = body.to_vec();
            events.push(StoredEvent { seq, body });
        }
    }
    if events.len() != expected && n_bytes < bound.bytes {
        let missing = from.plus(events.len());
        return Err(Fault::Damaged(
            format!("the log of {run} holds {head} events, but not event {missing}").into(),
        ));
    }
    Ok((events, n_row_bytes))
}

/// The head of a run's snapshot, and its size, without reading it.
fn snapshot_size(conn: &Connection, run: &RunKey) -> Result<Option<(Seq, usize)>, Fault> {
    let mut statement =
        conn.prepare_cached("SELECT head, length(body) FROM snapshots WHERE tenant = ?1 AND run = ?2")?;
    let mut found = statement.query(params![run.tenant.as_str(), run.run.as_str()])?;
    let Some(row) = found.next()? else { return Ok(None) };
    let length = usize::try_from(rows::count(row, 1)?).unwrap_or(usize::MAX);
    Ok(Some((rows::seq(row, 0)?, length)))
}

fn snapshot(conn: &Connection, run: &RunKey) -> Result<Option<Snapshot>, Fault> {
    let mut statement =
        conn.prepare_cached("SELECT head, body FROM snapshots WHERE tenant = ?1 AND run = ?2")?;
    let mut found = statement.query(params![run.tenant.as_str(), run.run.as_str()])?;
    let Some(row) = found.next()? else { return Ok(None) };
    Ok(Some(Snapshot {
        head: rows::seq(row, 0)?,
        body: rows::bytes(row, 1)?,
    }))
}

/// Returns the places of the oldest inbox rows, as many as a load reads, and the total size of their bodies.
/// The bodies are read separately, because SQLite would sort the rows with them.
fn waiting(conn: &Connection, run: &RunKey) -> Result<(Vec<i64>, usize), Fault> {
    let mut statement = conn.prepare_cached(
        "SELECT place, length(body) FROM inbox WHERE tenant = ?1 AND target = ?2 AND deaths < 3
         ORDER BY place LIMIT ?3",
    )?;
    let mut found = statement.query(params![
        run.tenant.as_str(),
        run.run.as_str(),
        rows::limit(INBOX_ROWS)
    ])?;
    let (mut places, mut n_bytes) = (Vec::new(), 0_usize);
    while n_bytes < PAGE_BYTES
        && let Some(row) = found.next()?
    {
        places.push(rows::int(rows::count(row, 0)?));
        let length = usize::try_from(rows::count(row, 1)?).unwrap_or(usize::MAX);
        n_bytes = n_bytes.saturating_add(length);
    }
    Ok((places, n_bytes))
}

fn inbox(conn: &Connection, run: &RunKey, places: &[i64]) -> Result<Vec<InboxRow>, Fault> {
    let mut inbox = Vec::with_capacity(places.len());
    if places.is_empty() {
        return Ok(inbox);
    }
    let mut statement = conn.prepare_cached("SELECT source, source_seq, body FROM inbox WHERE place = ?1")?;
    for place in places {
        let mut found = statement.query([place])?;
        let Some(row) = found.next()? else { continue };
        inbox.push(InboxRow {
            target: run.run.clone(),
            source: rows::id(row, 0, RunId::parse)?,
            source_seq: rows::seq(row, 1)?,
            body: rows::bytes(row, 2)?,
        });
    }
    Ok(inbox)
}

pub(super) fn messages(conn: &Connection, run: &RunKey, limit: usize) -> Result<Vec<MessageRow>, Fault> {
    const SELECT: &str = concat!(
        "SELECT id, seq, body FROM messages WHERE tenant = ?1 AND run = ?2",
        present!(),
        " ORDER BY seq DESC, place DESC LIMIT ?3"
    );
    let mut statement = conn.prepare_cached(SELECT)?;
    let mut found = statement.query(params![run.tenant.as_str(), run.run.as_str(), rows::limit(limit)])?;
    let mut messages = Vec::new();
    let mut n_bytes = 0;
    while let Some(row) = found.next()? {
        let body = rows::bytes(row, 2)?;
        n_bytes += body.len();
        if n_bytes > MESSAGES_BYTES && !messages.is_empty() {
            break;
        }
        messages.push(MessageRow {
            id: rows::text(row, 0)?.to_owned(),
            seq: rows::seq(row, 1)?,
            body,
        });
    }
    messages.reverse();
    Ok(messages)
}

pub(super) fn blob(conn: &Connection, run: &RunKey, id: &str) -> Result<Option<BlobRow>, Fault> {
    const SELECT: &str = concat!(
        "SELECT media_type, bytes FROM blobs WHERE tenant = ?1 AND run = ?2 AND id = ?3",
        present!()
    );
    let mut statement = conn.prepare_cached(SELECT)?;
    let mut found = statement.query(params![run.tenant.as_str(), run.run.as_str(), id])?;
    let Some(row) = found.next()? else { return Ok(None) };
    Ok(Some(BlobRow {
        id: id.to_owned(),
        media_type: rows::text(row, 0)?.to_owned(),
        bytes: rows::bytes(row, 1)?,
    }))
}
