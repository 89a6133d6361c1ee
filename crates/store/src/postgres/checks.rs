//! The first round of an append: everything that can refuse a batch, and the locks that keep the answers true.
//!
//! Read committed is enough, because nothing that is decided rests on a plain read:
//!
//! - The record of the request is claimed by an insert that gives way to an unexpired one. Two claims of one key
//!   meet in its unique index, and the later waits for the earlier to end.
//! - The guard of a new run, and its children, are inserts that give way; that of a run that exists is a conditional
//!   update of its row. The row stays locked until the end, and a writer that waited for it looks at it as it is then.
//! - Fences are read with the effects' rows locked, so no lease is handed out between the look and the commit.
//! - A receiver that comes along is counted in the row of its run, which that locks, if there is room for it.
//!
//! Locks are taken in one order (records, new runs, runs, effects, each by their keys, then receivers), so that appends
//! do not wait for each other in a circle; leasing skips what is locked. The receiver of a parent, which comes with an
//! answer to its child, locks a run behind others, and no parent waits for the row of a child. One circle is left: an
//! append that replaces a receiver locks that and then the note of its run's events, and who expands that note locks it
//! before the receivers. What waits too long in it, or is undone by the server, is tried again.
//!
//! Rows that are only inserted take one statement however many batches there are. An update by key is a statement for
//! each: joined with a list, it would be planned for a table that is small when the plan is made, and kept when it has
//! grown.

use std::collections::HashSet;

use deadpool_postgres::ClientWrapper;
use tokio::time::Instant;
use tokio_postgres::Row;
use wopr_core::{RunId, Timestamp};

use super::{
    fault::Fault,
    push,
    retention::present,
    round::{Round, value},
    rows,
};
use crate::{Batch, EffectKey, Guard, IdempotencyKey, IdempotencyRecord, Put, Settled, Summary};

/// Begins a transaction. Whoever holds a row for longer than this is stopped, and nobody is to wait for that: not the
/// other batches of a group, and not those that want the connection.
const BEGIN: &str = "BEGIN ISOLATION LEVEL READ COMMITTED; SET LOCAL lock_timeout = '100ms'";

const BIRTHS: &str = "INSERT INTO runs (tenant, run, workflow, version, status, principal, parent_run,
         parent_node, created_at, updated_at, next_seq)
     SELECT * FROM unnest($1::text[], $2::text[], $3::text[], $4::text[], $5::text[], $6::text[], $7::text[],
         $8::text[], $9::bigint[], $10::bigint[], $11::bigint[])
     ON CONFLICT DO NOTHING RETURNING run";

const ADVANCE: &str = concat!(
    "UPDATE runs SET status = $4, updated_at = $5, next_seq = $6
     WHERE tenant = $1 AND run = $2 AND next_seq = $3",
    present!(),
    " RETURNING pushes > 0"
);

const FENCES: &str =
    "SELECT key, fence FROM effects WHERE tenant = $1 AND run = $2 AND key = ANY($3) ORDER BY key FOR UPDATE";

/// Gives way to records that are not expired at the last parameter.
const CLAIM: &str =
    "INSERT INTO idempotency (tenant, principal, scope, key, digest, run, response, expires_at)
     SELECT * FROM unnest($1::text[], $2::text[], $3::text[], $4::text[], $5::text[], $6::text[], $7::bytea[],
         $8::bigint[])
     ON CONFLICT (tenant, principal, scope, key) DO UPDATE SET digest = excluded.digest, run = excluded.run,
         response = excluded.response, expires_at = excluded.expires_at
     WHERE idempotency.expires_at <= $9
     RETURNING key";

/// What the first round says of a batch.
#[derive(Debug)]
pub(super) enum Check {
    /// It can be written. Whether somebody is told of its run.
    Holds { is_told: bool },
    /// The record of its request is there already.
    Claimed,
    /// The lease of this effect is lost.
    Stale(EffectKey),
    /// Its run is not where it was thought to be.
    Behind,
    /// A child of its is a run already.
    Colliding,
    /// Its receiver is more than these, the most there may be.
    Full(usize),
    /// The run of its receiver is not there.
    Missing,
}

/// Begins a transaction with the checks of batches, in the order of their runs and with no run, key or child twice.
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
    // One that expires between two of them is claimed by nobody here; alone, its batch has its own time. Batches without
    // a record have no say: what clears away keeps the time of an older append.
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

/// What the round answered.
struct Found<'r> {
    /// The keys that were claimed, and the runs that were inserted, for any of the batches.
    claimed: &'r HashSet<String>,
    born: &'r HashSet<&'r str>,
    /// For this one.
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

/// Claims the keys of requests, which come in order and none twice.
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

/// A run to insert.
struct Birth<'b> {
    batch: &'b Batch,
    run: &'b RunId,
    summary: &'b Summary,
    head: i64,
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
            });
        }
        births.extend(batch.children.iter().map(|child| Birth {
            batch,
            run: &child.run,
            summary: &child.summary,
            head: 0,
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
    ];
    Some(round.add(ADVANCE, values))
}

fn fences<'b>(round: &mut Round<'b>, batch: &'b Batch) -> Option<usize> {
    let keys: Vec<_> = batch
        .effects_settled
        .iter()
        .filter(|settled| settled.fence.is_some())
        .map(|settled| rows::free(&settled.key.0))
        .collect();
    (!keys.is_empty()).then(|| {
        round.add(
            FENCES,
            vec![
                value(batch.run.tenant.as_str()),
                value(batch.run.run.as_str()),
                value(keys),
            ],
        )
    })
}

fn put<'b>(round: &mut Round<'b>, batch: &'b Batch) -> Option<usize> {
    let push = batch.push.as_ref()?;
    Some(push::put_along(round, batch, push))
}

/// The first effect whose lease is not the one an outcome was won under.
fn stale(batch: &Batch, found: &[Row]) -> Result<Option<EffectKey>, Fault> {
    let mut stored = Vec::with_capacity(found.len());
    for row in found {
        stored.push((rows::free_text(row, 0)?, rows::fence(row, 1)?));
    }
    let is_held = |settled: &Settled| {
        settled.fence.is_none_or(|fence| {
            stored
                .iter()
                .any(|(key, current)| *key == settled.key.0 && *current == fence)
        })
    };
    let stale = batch.effects_settled.iter().find(|settled| !is_held(settled));
    Ok(stale.map(|settled| settled.key.clone()))
}
