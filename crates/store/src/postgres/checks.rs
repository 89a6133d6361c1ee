//! The first round of an append: all checks, and the locks that keep their results valid.
//!
//! Read committed is enough, because no decision rests on a plain read:
//!
//! - The idempotency record is claimed by an insert that yields to an unexpired one. Two claims of one key
//!   meet in its unique index, and the later waits for the earlier to end.
//! - The guard of a new run, and its children, are inserts that yield to existing rows. The guard of an
//!   existing run is a conditional update of its row. The row stays locked until the end, and a writer that
//!   waited for it sees its new version.
//! - Fences are read with the work rows locked, so no lease is handed out between the check and the
//!   commit.
//! - A subscription is counted by an update of its run's row, which locks the row and applies only within the
//!   limit.
//!
//! Locks are taken in one order (records, new runs, runs, work, each by key, then subscriptions), so that
//! appends do not deadlock; leasing skips locked rows. A subscription on a parent, which comes with an answer
//! to its child, locks a run after others, but no parent waits for the row of a child. One deadlock is
//! possible: an append that replaces a subscription locks it before the outbox row, and an expansion locks
//! the outbox row before the subscriptions. The transaction that times out or is rolled back is retried.
//!
//! Inserts take one statement however many batches there are. Updates by key take one statement each: joined
//! with a list, the update would be planned while the table is small, and the plan kept when it has grown.

use std::{borrow::Cow, collections::HashSet};

use deadpool_postgres::ClientWrapper;
use tokio::time::Instant;
use tokio_postgres::Row;
use wopr_core::{InterruptKind, RunId, Timestamp};

use super::{
    fault::Fault,
    push,
    retention::present,
    round::{Round, value},
    rows,
};
use crate::{Batch, Fence, Guard, IdempotencyKey, IdempotencyRecord, Put, Summary, WorkKey};

/// Begins a transaction. A process that holds a row lock for longer than this has stopped, and neither the
/// other batches of a group nor the callers waiting for the connection should wait for it.
const BEGIN: &str = "BEGIN ISOLATION LEVEL READ COMMITTED; SET LOCAL lock_timeout = '100ms'";

const BIRTHS: &str = "INSERT INTO runs (tenant, run, workflow, version, status, principal, parent_run,
         parent_node, created_at, updated_at, next_seq, waiting_on, error_code, phase_since, run_group, alias,
         descendants)
     SELECT * FROM unnest($1::text[], $2::text[], $3::text[], $4::text[], $5::text[], $6::text[], $7::text[],
         $8::text[], $9::bigint[], $10::bigint[], $11::bigint[], $12::text[], $13::text[], $14::bigint[],
         $15::text[], $16::text[], $17::bigint[])
     ON CONFLICT DO NOTHING RETURNING run";

const ADVANCE: &str = concat!(
    "UPDATE runs SET status = $4, updated_at = $5, next_seq = $6, waiting_on = $7, error_code = $8,
         phase_since = $9
     WHERE tenant = $1 AND run = $2 AND next_seq = $3",
    present!(),
    " RETURNING pushes > 0"
);

/// The rows of these keys in these queues, and perhaps others, which does no harm.
const FENCES: &str = "SELECT queue, key, fence, epoch IS NOT NULL FROM work
     WHERE tenant = $1 AND run = $2 AND queue = ANY($3) AND key = ANY($4) ORDER BY queue, key FOR UPDATE";

/// Yields to records that are not expired at the last parameter.
const CLAIM: &str =
    "INSERT INTO idempotency (tenant, principal, scope, key, digest, run, response, expires_at)
     SELECT * FROM unnest($1::text[], $2::text[], $3::text[], $4::text[], $5::text[], $6::text[], $7::bytea[],
         $8::bigint[])
     ON CONFLICT (tenant, principal, scope, key) DO UPDATE SET digest = excluded.digest, run = excluded.run,
         response = excluded.response, expires_at = excluded.expires_at
     WHERE idempotency.expires_at <= $9
     RETURNING key";

/// The result of the first round for one batch.
#[derive(Debug)]
pub(super) enum Check {
    /// The batch can be written. `is_told` is `true` if its run has subscriptions.
    Holds { is_told: bool },
    /// A record of its request exists.
    Claimed,
    /// The lease of this row is lost.
    Stale(WorkKey),
    /// The guard of its run does not hold.
    Behind,
    /// A child of the batch already exists.
    Colliding,
    /// The run of its subscription has this many, the maximum.
    Full(usize),
    /// The run of its subscription does not exist.
    Missing,
}

/// Begins a transaction with the checks of batches. They are sorted by run, and no run, key or child occurs
/// twice.
pub(super) async fn check(
    client: &ClientWrapper,
    until: Instant,
    batches: &[&Batch],
) -> Result<Vec<Check>, Fault> {
    let mut round = Round::default();
    round.control(BEGIN);
    let mut records: Vec<_> = batches
        .iter()
        .filter_map(|batch| batch.idempotency.as_ref())
        .collect();
    records.sort_unstable_by(|one, other| parts(&one.key).cmp(&parts(&other.key)));
    // The earliest of their times: a record that expires between two of them is not claimed here, and its
    // batch, appended alone, uses its own time. Batches without a record do not count, because a cleanup
    // batch keeps the time of an older append.
    let now = batches
        .iter()
        .filter(|batch| batch.idempotency.is_some())
        .map(|batch| batch.summary.updated_at)
        .min();
    let claimed = now.map(|now| claim(&mut round, &records, now));
    let born = births(&mut round, batches);
    let advanced: Vec<_> = batches.iter().map(|batch| advance(&mut round, batch)).collect();
    let fenced: Vec<_> = batches.iter().map(|batch| fences(&mut round, batch)).collect();
    let put: Vec<_> = batches.iter().map(|batch| put(&mut round, batch)).collect();
    let answers = round.ask(client, until).await?;
    let answer = |place: Option<usize>| place.and_then(|place| answers.get(place));

    let claimed: HashSet<String> = answer(claimed)
        .into_iter()
        .flatten()
        .map(|row| rows::free_text(row, 0))
        .collect::<Result<_, _>>()?;
    let born: HashSet<&str> = answer(born)
        .into_iter()
        .flatten()
        .map(|row| rows::text(row, 0))
        .collect::<Result<_, _>>()?;
    let mut checks = Vec::with_capacity(batches.len());
    for (batch, ((advanced, fenced), put)) in batches.iter().zip(advanced.into_iter().zip(fenced).zip(put)) {
        let found = Found {
            claimed: &claimed,
            born: &born,
            advanced: answer(advanced).and_then(|rows| rows.first()),
            fenced: answer(fenced).map(Vec::as_slice),
            put: answer(put).map(Vec::as_slice),
        };
        checks.push(verdict(batch, &found)?);
    }
    Ok(checks)
}

/// The results of the round.
struct Found<'r> {
    /// The keys claimed and the runs inserted, for all batches.
    claimed: &'r HashSet<String>,
    born: &'r HashSet<&'r str>,
    /// The results for this batch.
    advanced: Option<&'r Row>,
    fenced: Option<&'r [Row]>,
    put: Option<&'r [Row]>,
}

fn verdict(batch: &Batch, found: &Found<'_>) -> Result<Check, Fault> {
    let Found {
        claimed,
        born,
        advanced,
        fenced,
        put,
    } = found;
    if let Some(record) = &batch.idempotency
        && !claimed.contains(&record.key.key)
    {
        return Ok(Check::Claimed);
    }
    if let Some(found) = fenced
        && let Some(stale) = stale(batch, found)?
    {
        return Ok(Check::Stale(stale));
    }
    let mut is_told = match (batch.guard, advanced) {
        (Guard::Create, _) if born.contains(batch.run.run.as_str()) => false,
        (Guard::At(_), Some(row)) => rows::flag(row, 0)?,
        (Guard::Create | Guard::At(_), _) => return Ok(Check::Behind),
    };
    let is_new = |child: &crate::ChildRow| born.contains(child.run.as_str());
    if !batch.children.iter().all(is_new) {
        return Ok(Check::Colliding);
    }
    if let (Some(put), Some(push)) = (put, &batch.push) {
        match push::put_answer(put)? {
            Put::Added | Put::Replaced => is_told |= push.run == batch.run.run,
            Put::Full => return Ok(Check::Full(push.most)),
            Put::Missing => return Ok(Check::Missing),
        }
    }
    Ok(Check::Holds { is_told })
}

fn parts(key: &IdempotencyKey) -> [&str; 4] {
    [key.tenant.as_str(), key.principal.as_str(), &key.scope, &key.key]
}

/// Claims the keys of requests, which are sorted and distinct.
pub(super) fn claim<'b>(round: &mut Round<'b>, records: &[&'b IdempotencyRecord], now: Timestamp) -> usize {
    let free = |read: fn(&'b IdempotencyRecord) -> &'b str| {
        value(
            records
                .iter()
                .map(|record| rows::free(read(record)))
                .collect::<Vec<_>>(),
        )
    };
    let each = || records.iter();
    round.add(
        CLAIM,
        vec![
            free(|record| record.key.tenant.as_str()),
            free(|record| record.key.principal.as_str()),
            free(|record| &record.key.scope),
            free(|record| &record.key.key),
            free(|record| &record.digest),
            value(
                each()
                    .map(|record| record.run.as_ref().map(RunId::as_str))
                    .collect::<Vec<_>>(),
            ),
            value(
                each()
                    .map(|record| record.response.as_slice())
                    .collect::<Vec<_>>(),
            ),
            value(
                each()
                    .map(|record| record.expires_at.millis())
                    .collect::<Vec<_>>(),
            ),
            value(now.millis()),
        ],
    )
}

struct Birth<'b> {
    batch: &'b Batch,
    run: &'b RunId,
    summary: &'b Summary,
    head: i64,
    descendants: i64,
}

/// Inserts the runs that batches create, and their children.
fn births<'b>(round: &mut Round<'b>, batches: &[&'b Batch]) -> Option<usize> {
    let mut births = Vec::new();
    for batch in batches {
        if batch.guard == Guard::Create {
            births.push(Birth {
                batch,
                run: &batch.run.run,
                summary: &batch.summary,
                head: rows::int(batch.head().0),
                descendants: rows::int(batch.n_descendants()),
            });
        }
        births.extend(batch.children.iter().map(|child| Birth {
            batch,
            run: &child.run,
            summary: &child.summary,
            head: rows::int(child.events.len() as u64),
            descendants: 0,
        }));
    }
    if births.is_empty() {
        return None;
    }
    let text = |read: fn(&Birth<'b>) -> &'b str| value(births.iter().map(read).collect::<Vec<_>>());
    let parent = |read: fn(&'b (RunId, wopr_core::NodeId)) -> &'b str| {
        let parents = births.iter().map(|birth| birth.summary.parent.as_ref().map(read));
        value(parents.collect::<Vec<_>>())
    };
    let opt_text = |read: fn(&'b Summary) -> Option<Cow<'b, str>>| {
        value(births.iter().map(|birth| read(birth.summary)).collect::<Vec<_>>())
    };
    let number = |read: fn(&Birth<'b>) -> i64| value(births.iter().map(read).collect::<Vec<_>>());
    Some(round.add(
        BIRTHS,
        vec![
            text(|birth| birth.batch.run.tenant.as_str()),
            text(|birth| birth.run.as_str()),
            text(|birth| birth.summary.workflow.as_str()),
            text(|birth| birth.summary.version.as_str()),
            text(|birth| birth.summary.status.as_str()),
            text(|birth| birth.summary.principal.as_str()),
            parent(|(run, _)| run.as_str()),
            parent(|(_, node)| node.as_str()),
            number(|birth| birth.summary.created_at.millis()),
            number(|birth| birth.summary.updated_at.millis()),
            number(|birth| birth.head),
            opt_text(|summary| summary.waiting_on.map(|kind| Cow::Borrowed(kind.as_str()))),
            opt_text(|summary| summary.error_code.as_deref().map(rows::free)),
            number(|birth| birth.summary.phase_since.millis()),
            opt_text(|summary| summary.group.as_deref().map(rows::free)),
            opt_text(|summary| summary.alias.as_deref().map(rows::free)),
            number(|birth| birth.descendants),
        ],
    ))
}

fn advance<'b>(round: &mut Round<'b>, batch: &'b Batch) -> Option<usize> {
    let Guard::At(expected) = batch.guard else {
        return None;
    };
    let values = vec![
        value(batch.run.tenant.as_str()),
        value(batch.run.run.as_str()),
        value(rows::int(expected.0)),
        value(batch.summary.status.as_str()),
        value(batch.summary.updated_at.millis()),
        value(rows::int(batch.head().0)),
        value(batch.summary.waiting_on.map(InterruptKind::as_str)),
        value(batch.summary.error_code.as_deref().map(rows::free)),
        value(batch.summary.phase_since.millis()),
    ];
    Some(round.add(ADVANCE, values))
}

/// The leases that a batch relies on: the key, the fence, and whether the lease must not have ended.
fn fenced(batch: &Batch) -> impl Iterator<Item = (&WorkKey, Fence, bool)> {
    let ended = batch.work_ended.iter();
    let ended = ended.filter_map(|ended| Some((&ended.key, ended.fence?, false)));
    let moved = batch.work_moved.iter();
    let moved = moved.filter_map(|moved| Some((&moved.key, moved.fence?, false)));
    let parked = batch.work_parked.iter();
    let held = batch.work_held.iter();
    ended
        .chain(moved)
        .chain(parked.map(|parked| (&parked.key, parked.fence, true)))
        .chain(held.map(|(key, fence)| (key, *fence, true)))
}

fn fences<'b>(round: &mut Round<'b>, batch: &'b Batch) -> Option<usize> {
    let (queues, keys): (Vec<_>, Vec<_>) = fenced(batch)
        .map(|(key, _, _)| (key.queue.number(), rows::free(&key.name)))
        .unzip();
    (!keys.is_empty()).then(|| {
        round.add(
            FENCES,
            vec![
                value(batch.run.tenant.as_str()),
                value(batch.run.run.as_str()),
                value(queues),
                value(keys),
            ],
        )
    })
}

fn put<'b>(round: &mut Round<'b>, batch: &'b Batch) -> Option<usize> {
    let push = batch.push.as_ref()?;
    Some(push::put_along(round, batch, push))
}

/// Finds the first row whose lease is not the one that the batch relies on.
fn stale(batch: &Batch, found: &[Row]) -> Result<Option<WorkKey>, Fault> {
    let mut stored = Vec::with_capacity(found.len());
    for row in found {
        let (queue, name) = (rows::number(row, 0)?, rows::free_text(row, 1)?);
        stored.push((queue, name, rows::fence(row, 2)?, rows::flag(row, 3)?));
    }
    let is_held = |key: &WorkKey, fence: Fence, must_last: bool| {
        stored.iter().any(|(queue, name, current, is_leased)| {
            (*queue, name) == (key.queue.number(), &key.name)
                && *current == fence
                && (*is_leased || !must_last)
        })
    };
    let mut fenced = fenced(batch);
    let stale = fenced.find(|(key, fence, must_last)| !is_held(key, *fence, *must_last));
    Ok(stale.map(|(key, _, _)| key.clone()))
}
