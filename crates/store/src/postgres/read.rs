//! Reads of one run, each as of one moment: one statement if possible, otherwise one pipelined transaction
//! with one snapshot.

use tokio_postgres::Row;
use wopr_core::{RunId, RunKey, Seq, TenantId};

use super::{
    fault::Fault,
    pool::Pool,
    retention::{listed, present},
    round::{Round, Value, value},
    rows::{self, summary_columns},
};
use crate::{
    BlobRow, EventPage, INBOX_ROWS, InboxRow, Load, Loaded, MESSAGES_BYTES, MessageRow, PAGE_BYTES, Snapshot,
    StoredEvent, Summary,
};

const SUMMARY: &str = concat!(
    "SELECT ",
    summary_columns!(),
    " FROM runs WHERE tenant = $1 AND run = $2",
    present!()
);

/// Like [`SUMMARY`], with the total size of what [`SNAPSHOT`], [`TAIL`] and [`INBOX`] would read. The server
/// knows the length of a body without reading it.
const WEIGHED_SUMMARY: &str = concat!(
    "SELECT ",
    summary_columns!(),
    ", coalesce((SELECT octet_length(body) FROM snapshots WHERE tenant = $1 AND run = $2), 0)
         + coalesce((SELECT sum(octet_length(body)) FROM events WHERE tenant = $1 AND run = $2
               AND seq >= coalesce((SELECT head FROM snapshots WHERE tenant = $1 AND run = $2), 0)), 0)
         + coalesce((SELECT sum(size) FROM (
               SELECT size, sum(size) OVER (ORDER BY place, source, source_seq ROWS UNBOUNDED PRECEDING) - size AS before
               FROM (SELECT place, source, source_seq, octet_length(body) AS size
                     FROM inbox WHERE tenant = $1 AND target = $2 AND deaths < 3
                     ORDER BY place, source, source_seq LIMIT $3) AS oldest) AS weighed
               WHERE before < $4::bigint), 0)
     FROM runs WHERE tenant = $1 AND run = $2",
    present!()
);

const HEADS: &str = concat!(
    "SELECT asked.place, runs.next_seq
     FROM unnest($1::text[], $2::text[]) WITH ORDINALITY AS asked (tenant, run, place)
     JOIN runs ON runs.tenant = asked.tenant AND runs.run = asked.run",
    listed!("runs")
);

/// This statement and the next two leave out rows beyond the limit of the load; the size from
/// [`WEIGHED_SUMMARY`] tells if any were.
const SNAPSHOT: &str =
    "SELECT head, body FROM snapshots WHERE tenant = $1 AND run = $2 AND octet_length(body) <= $3::bigint";

const TAIL: &str = "SELECT seq, body FROM (
         SELECT seq, body, sum(octet_length(body)) OVER (ORDER BY seq ROWS UNBOUNDED PRECEDING) AS total
         FROM events WHERE tenant = $1 AND run = $2
             AND seq >= coalesce((SELECT head FROM snapshots WHERE tenant = $1 AND run = $2), 0)) AS tail
     WHERE total <= $3::bigint ORDER BY seq";

const INBOX: &str = "SELECT source, source_seq, body FROM (
         SELECT place, source, source_seq, body, octet_length(body) AS size,
             sum(octet_length(body)) OVER (ORDER BY place, source, source_seq ROWS UNBOUNDED PRECEDING) AS total
         FROM (SELECT place, source, source_seq, body FROM inbox WHERE tenant = $1 AND target = $2 AND deaths < 3
               ORDER BY place, source, source_seq LIMIT $4) AS oldest) AS weighed
     WHERE total <= $3::bigint AND total - size < $5::bigint
     ORDER BY place, source, source_seq";

const OF_ALIAS: &str = concat!(
    "SELECT run FROM runs WHERE tenant = $1 AND alias = $2 AND parent_run IS NULL",
    present!()
);

const EVENTS: &str = concat!(
    "SELECT runs.status, runs.next_seq, e.seq, e.body
     FROM runs LEFT JOIN LATERAL (
         SELECT seq, body FROM (
             SELECT seq, body,
                 sum(octet_length(body)) OVER (ORDER BY seq ROWS UNBOUNDED PRECEDING) - octet_length(body) AS before
             FROM (SELECT seq, body FROM events
                   WHERE tenant = runs.tenant AND run = runs.run AND seq >= $3 ORDER BY seq LIMIT $4) AS page)
             AS weighed
         WHERE before < $5::bigint) AS e ON true
     WHERE runs.tenant = $1 AND runs.run = $2",
    present!(),
    " ORDER BY e.seq"
);

/// The length of a body is known without reading it.
const MESSAGES: &str = concat!(
    "SELECT id, seq, body FROM
     (SELECT id, seq, body, sum(length(body)) OVER newest AS n_bytes, row_number() OVER newest AS rank
      FROM messages WHERE tenant = $1 AND run = $2",
    present!(),
    " WINDOW newest AS (ORDER BY seq DESC, place DESC) ORDER BY seq DESC, place DESC LIMIT $3) AS message
     WHERE n_bytes <= $4 OR rank = 1 ORDER BY rank"
);

const BLOB: &str = concat!(
    "SELECT media_type, bytes FROM blobs WHERE tenant = $1 AND run = $2 AND id = $3",
    present!()
);

fn of(run: &RunKey) -> Vec<Value<'_>> {
    vec![value(run.tenant.as_str()), value(run.run.as_str())]
}

pub(super) async fn load(pool: &Pool, run: &RunKey, most: usize) -> Result<Option<Load>, Fault> {
    let (n_rows, page) = (rows::limit(INBOX_ROWS), rows::limit(PAGE_BYTES));
    let with = |bounds: &[i64]| {
        let mut values = of(run);
        values.extend(bounds.iter().map(|bound| value(*bound)));
        values
    };
    let round = || {
        let most = rows::limit(most);
        let mut round = Round::default();
        round.control("BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY");
        round.add(WEIGHED_SUMMARY, with(&[n_rows, page]));
        round.add(SNAPSHOT, with(&[most]));
        round.add(TAIL, with(&[most]));
        round.add(INBOX, with(&[most, n_rows, page]));
        round.control("COMMIT");
        round
    };
    let answers = pool.read_all(&run.tenant, round).await?;
    let [_, summary, snapshot, tail, inbox, _] = answers.as_slice() else {
        return Err(Fault::Damaged(
            "a round of six had another number of answers".into(),
        ));
    };
    let Some(summary) = summary.first() else {
        return Ok(None);
    };
    let weight = usize::try_from(rows::count(summary, rows::N_SUMMARY)?).unwrap_or(usize::MAX);
    if weight > most {
        return Ok(Some(Load::Heavy(weight)));
    }
    let (summary, head) = rows::summary(summary, 0)?;
    let snapshot = snapshot.first().map(read_snapshot).transpose()?;
    let folded = snapshot.as_ref().map_or(Seq(0), |snapshot| snapshot.head);
    if folded > head {
        return Err(Fault::Damaged(
            format!("the snapshot of {run} folds {folded} events, the log holds {head}").into(),
        ));
    }
    let tail = read_events(run, tail, 0, folded, Bound::NONE, head)?;
    let mut heard = Vec::with_capacity(inbox.len());
    for row in inbox {
        heard.push(InboxRow {
            target: run.run.clone(),
            source: rows::id(row, 0, RunId::parse)?,
            source_seq: rows::seq(row, 1)?,
            body: rows::bytes(row, 2)?,
        });
    }
    Ok(Some(Load::Whole(Box::new(Loaded {
        summary,
        head,
        snapshot,
        tail,
        inbox: heard,
    }))))
}

fn read_snapshot(row: &Row) -> Result<Snapshot, Fault> {
    Ok(Snapshot {
        head: rows::seq(row, 0)?,
        body: rows::bytes(row, 1)?,
    })
}

pub(super) async fn summary(pool: &Pool, run: &RunKey) -> Result<Option<(Summary, Seq)>, Fault> {
    let found = pool.read(&run.tenant, || Round::of(SUMMARY, of(run))).await?;
    found.first().map(|row| rows::summary(row, 0)).transpose()
}

pub(super) async fn run_of_alias(
    pool: &Pool,
    tenant: &TenantId,
    alias: &str,
) -> Result<Option<RunId>, Fault> {
    let found = pool
        .read(tenant, || {
            Round::of(OF_ALIAS, vec![value(tenant.as_str()), value(rows::free(alias))])
        })
        .await?;
    found
        .first()
        .map(|row| rows::id(row, 0, RunId::parse))
        .transpose()
}

pub(super) async fn heads(pool: &Pool, runs: &[RunKey]) -> Result<Vec<Option<Seq>>, Fault> {
    let tenants: Vec<_> = runs.iter().map(|run| run.tenant.as_str()).collect();
    let ids: Vec<_> = runs.iter().map(|run| run.run.as_str()).collect();
    let found = pool
        .learn(|| Round::of(HEADS, vec![value(tenants.clone()), value(ids.clone())]))
        .await?;
    let mut heads = vec![None; runs.len()];
    for row in &found {
        // `WITH ORDINALITY` counts from 1.
        let place = usize::try_from(rows::count(row, 0)?).unwrap_or(usize::MAX);
        if let Some(head) = heads.get_mut(place.wrapping_sub(1)) {
            *head = Some(rows::seq(row, 1)?);
        }
    }
    Ok(heads)
}

pub(super) async fn events(
    pool: &Pool,
    run: &RunKey,
    from: Seq,
    limit: usize,
) -> Result<Option<EventPage>, Fault> {
    let round = || {
        let mut values = of(run);
        let page = rows::limit(PAGE_BYTES);
        values.extend([value(rows::int(from.0)), value(rows::limit(limit)), value(page)]);
        Round::of(EVENTS, values)
    };
    let found = pool.read(&run.tenant, round).await?;
    let Some(first) = found.first() else {
        return Ok(None);
    };
    let (status, head) = (rows::status(first, 0)?, rows::seq(first, 1)?);
    let is_empty = first.try_get::<_, Option<i64>>(2).is_ok_and(|seq| seq.is_none());
    let found = if is_empty { &[] } else { found.as_slice() };
    let bound = Bound {
        events: limit,
        bytes: PAGE_BYTES,
    };
    let events = read_events(run, found, 2, from, bound, head)?;
    Ok(Some(EventPage { events, head, status }))
}

/// Limits of a log read, which ends with the event that reaches either.
#[derive(Clone, Copy)]
struct Bound {
    events: usize,
    bytes: usize,
}

impl Bound {
    const NONE: Self = Self {
        events: usize::MAX,
        bytes: usize::MAX,
    };
}

/// Reads (seq, body) at `column`: events of a log with `head` events. Checks that none is missing.
fn read_events(
    run: &RunKey,
    found: &[Row],
    column: usize,
    from: Seq,
    bound: Bound,
    head: Seq,
) -> Result<Vec<StoredEvent>, Fault> {
    let expected = usize::try_from(head.0.saturating_sub(from.0))
        .unwrap_or(usize::MAX)
        .min(bound.events);
    let mut n_bytes = 0;
    let mut events = Vec::with_capacity(found.len());
    for row in found {
        let event = rows::event(row, column)?;
        if event.seq != from.plus(events.len()) || events.len() == expected {
            break;
        }
        n_bytes += event.body.len();
        events.push(event);
    }
    if events.len() != expected && n_bytes < bound.bytes {
        let missing = from.plus(events.len());
        return Err(Fault::Damaged(
            format!("the log of {run} holds {head} events, but not event {missing}").into(),
        ));
    }
    Ok(events)
}

pub(super) async fn messages(pool: &Pool, run: &RunKey, limit: usize) -> Result<Vec<MessageRow>, Fault> {
    let round = || {
        let mut values = of(run);
        values.push(value(rows::limit(limit)));
        values.push(value(rows::limit(MESSAGES_BYTES)));
        Round::of(MESSAGES, values)
    };
    let found = pool.read(&run.tenant, round).await?;
    let mut messages = Vec::with_capacity(found.len());
    for row in found.iter().rev() {
        messages.push(MessageRow {
            id: rows::free_text(row, 0)?,
            seq: rows::seq(row, 1)?,
            body: rows::bytes(row, 2)?,
        });
    }
    Ok(messages)
}

pub(super) async fn blob(pool: &Pool, run: &RunKey, id: &str) -> Result<Option<BlobRow>, Fault> {
    let round = || {
        let mut values = of(run);
        values.push(value(rows::free(id)));
        Round::of(BLOB, values)
    };
    let found = pool.read(&run.tenant, round).await?;
    let Some(row) = found.first() else { return Ok(None) };
    Ok(Some(BlobRow {
        id: id.to_owned(),
        media_type: rows::free_text(row, 0)?,
        bytes: rows::bytes(row, 1)?,
    }))
}
