//! The append verb as one transaction of two round trips.
//!
//! The first asks everything that can refuse the batch and takes the locks that keep the answers true; the second
//! writes the rest and commits. Read committed is enough, because nothing that is decided rests on a plain read:
//!
//! - The record of the request is claimed by an insert that gives way to an unexpired one. Two claims of one key
//!   meet in its unique index, and the later waits for the earlier to end.
//! - The guard is a conditional update of the run's row, or an insert that gives way. Its row stays locked until
//!   the end, and a writer that waited for it looks at the row as it is then.
//! - Fences are read with the effects' rows locked, so no lease is handed out between the look and the commit.
//! - Children are inserts that give way, as the guard.
//! - A receiver that comes along is counted in the row of its run, which that locks, if there is room for it.
//!
//! Whatever comes after is written under the run's lock and touches rows of this run only; the one exception, the
//! inboxes of others, only ever gains rows. Locks are taken in one order (record, run, children, effects), so that
//! appends do not wait for each other in a circle; leasing skips what is locked. Only the receiver of a parent, which
//! comes with an answer to its child, locks a run behind another, and no parent waits for the row of a child. What is
//! undone by the server all the same is tried again.

use deadpool_postgres::Object;
use tokio::time::Instant;
use tokio_postgres::Row;
use wopr_core::{RunId, RunKey, Seq, Timestamp};

use super::{
    fault::Fault,
    pool::Pool,
    push,
    retention::present,
    round::{Failure, Round, Sent, silent, value},
    rows, writes,
};
use crate::{AppendError, Batch, EffectKey, Guard, IdempotencyKey, IdempotencyRecord, Put};

/// How often a transaction is tried that was undone without a verdict.
const TRIES: u32 = 8;

const CREATE: &str =
    "INSERT INTO runs (tenant, run, workflow, version, status, principal, parent_run, parent_node, created_at,
         updated_at, next_seq)
     VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11) ON CONFLICT DO NOTHING RETURNING pushes > 0";

const ADVANCE: &str = concat!(
    "UPDATE runs SET status = $4, updated_at = $5, next_seq = $6
     WHERE tenant = $1 AND run = $2 AND next_seq = $3",
    present!(),
    " RETURNING pushes > 0"
);

const CHILDREN: &str =
    "INSERT INTO runs (tenant, run, workflow, version, status, principal, parent_run, parent_node, created_at,
         updated_at, next_seq)
     SELECT $1, c.*, 0
     FROM unnest($2::text[], $3::text[], $4::text[], $5::text[], $6::text[], $7::text[], $8::text[],
         $9::bigint[], $10::bigint[]) AS c
     ON CONFLICT DO NOTHING RETURNING run";

const FENCES: &str =
    "SELECT key, fence FROM effects WHERE tenant = $1 AND run = $2 AND key = ANY($3) ORDER BY key FOR UPDATE";

/// The length of a log, and whether its run is gone.
const HEAD: &str = concat!(
    "SELECT next_seq, NOT (true",
    present!(),
    ") FROM runs WHERE tenant = $1 AND run = $2"
);

const HEADS: &str = "SELECT run, next_seq FROM runs WHERE tenant = $1 AND run = ANY($2)";

/// Gives way to a record that is not expired at the last parameter.
const CLAIM: &str =
    "INSERT INTO idempotency (tenant, principal, scope, key, digest, run, response, expires_at)
     VALUES ($1, $2, $3, $4, $5, $6, $7, $8)
     ON CONFLICT (tenant, principal, scope, key) DO UPDATE SET digest = excluded.digest, run = excluded.run,
         response = excluded.response, expires_at = excluded.expires_at
     WHERE idempotency.expires_at <= $9
     RETURNING 1";

const UNEXPIRED: &str = "SELECT digest, run, response, expires_at FROM idempotency
     WHERE tenant = $1 AND principal = $2 AND scope = $3 AND key = $4 AND expires_at > $5";

/// Appends a batch; tries again as long as nothing was written and nothing was decided.
pub(super) async fn append(pool: &Pool, batch: &Batch, retried: impl Fn()) -> Result<(), AppendError> {
    let until = pool.deadline();
    let mut attempt = 0;
    loop {
        attempt += 1;
        let fault = match attempt_once(pool, batch, until).await {
            Ok(answer) => return answer,
            Err(fault) => fault,
        };
        if attempt == TRIES || !fault.is_passing() || Instant::now() >= until {
            return Err(fault.into());
        }
        retried();
        super::pause(attempt).await;
    }
}

async fn attempt_once(pool: &Pool, batch: &Batch, until: Instant) -> Result<Result<(), AppendError>, Fault> {
    let begun = Instant::now();
    let mut transaction = Transaction::new(pool.get(until).await?, until);
    let outcome = in_transaction(&mut transaction, batch).await;
    if matches!(&outcome, Err(Fault::Lost(_) | Fault::InDoubt(_))) {
        pool.lost(begun);
    } else {
        transaction.end().await;
    }
    outcome
}

async fn in_transaction(
    transaction: &mut Transaction,
    batch: &Batch,
) -> Result<Result<(), AppendError>, Fault> {
    let is_told = match begin(transaction, batch).await? {
        Ok(is_told) => is_told,
        Err(refusal) => return Ok(Err(refusal)),
    };
    let mut round = Round::default();
    writes::rest(&mut round, batch);
    push::note(&mut round, batch, is_told);
    round.control("COMMIT");
    let ready = round.prepare(transaction.client(), transaction.until).await?;
    let commit = ready.last();
    let Sent { failure, .. } = ready.send(transaction.client()).await;
    match failure {
        None => {
            transaction.is_open = false;
            Ok(Ok(()))
        }
        // COMMIT is on its way in any case; only the server's word that a statement failed says what it did.
        Some(Failure { error: None, .. }) => Err(in_doubt(silent())),
        Some(Failure {
            step,
            error: Some(error),
        }) => {
            let is_verdict = error.as_db_error().is_some();
            if step == commit {
                Err(Fault::at_commit(error))
            } else if is_verdict {
                Err(Fault::from(error))
            } else {
                Err(in_doubt(error.into()))
            }
        }
    }
}

fn in_doubt(fault: Fault) -> Fault {
    match fault {
        Fault::Again(text)
        | Fault::Taken(text)
        | Fault::Lost(text)
        | Fault::Refused(text)
        | Fault::InDoubt(text)
        | Fault::Damaged(text) => Fault::InDoubt(text),
    }
}

/// Begins the transaction with everything that can refuse the batch. Says whether somebody is told of this run.
async fn begin(transaction: &Transaction, batch: &Batch) -> Result<Result<bool, AppendError>, Fault> {
    let client = transaction.client();
    let mut round = Round::default();
    round.control("BEGIN ISOLATION LEVEL READ COMMITTED");
    let claimed = batch
        .idempotency
        .as_ref()
        .map(|record| claim(&mut round, record, batch.summary.updated_at));
    let guarded = guard(&mut round, batch);
    let created = (!batch.children.is_empty()).then(|| children(&mut round, batch));
    let fenced = fences(&mut round, batch);
    let put = batch
        .push
        .as_ref()
        .map(|push| push::put_along(&mut round, batch, push));
    let mut answers = round.ask(client, transaction.until).await?;
    let mut answer = |place: usize| answers.get_mut(place).map(std::mem::take).unwrap_or_default();

    if let (Some(place), Some(record)) = (claimed, &batch.idempotency)
        && answer(place).is_empty()
    {
        let at = batch.summary.updated_at;
        return match unexpired(&record.key, at)
            .ask(client, transaction.until)
            .await?
            .pop()
            .unwrap_or_default()
            .first()
        {
            Some(row) => Ok(Err(AppendError::Duplicate(Box::new(rows::record(
                row,
                &record.key,
            )?)))),
            // It was forgotten in between.
            None => Err(Fault::Taken("a record that was there is gone".to_owned())),
        };
    }
    if let Some(place) = fenced
        && let Some(stale) = stale(batch, &answer(place))?
    {
        return Ok(Err(AppendError::Fenced(stale)));
    }
    let guarded = answer(guarded);
    let Some(advanced) = guarded.first() else {
        let actual = head(transaction, &batch.run).await?;
        if actual == Head::Missing && batch.guard == Guard::Create {
            return Err(Fault::Taken("a run that was there is gone".to_owned()));
        }
        return Ok(Err(AppendError::Conflict {
            expected: batch.expected(),
            actual: match actual {
                Head::At(seq) => Some(seq),
                Head::Gone | Head::Missing => None,
            },
        }));
    };
    let mut is_told = rows::flag(advanced, 0)?;
    if let Some(place) = created {
        let new = answer(place);
        if new.len() < batch.children.len() {
            return colliding(transaction, batch).await.map(Err);
        }
    }
    if let (Some(place), Some(push)) = (put, &batch.push) {
        match push::put_answer(&answer(place))? {
            Put::Added | Put::Replaced => is_told |= push.run == batch.run.run,
            Put::Full => return Ok(Err(AppendError::Full(push.most))),
            Put::Missing => return Ok(Err(AppendError::Missing)),
        }
    }
    Ok(Ok(is_told))
}

/// Claims the key of a request.
pub(super) fn claim<'b>(round: &mut Round<'b>, record: &'b IdempotencyRecord, now: Timestamp) -> usize {
    let key = &record.key;
    round.add(
        CLAIM,
        vec![
            value(key.tenant.as_str()),
            value(key.principal.as_str()),
            value(rows::free(&key.scope)),
            value(rows::free(&key.key)),
            value(rows::free(&record.digest)),
            value(record.run.as_ref().map(RunId::as_str)),
            value(record.response.as_slice()),
            value(record.expires_at.millis()),
            value(now.millis()),
        ],
    )
}

/// Asks for the unexpired record of a request.
pub(super) fn unexpired(key: &IdempotencyKey, now: Timestamp) -> Round<'_> {
    Round::of(
        UNEXPIRED,
        vec![
            value(key.tenant.as_str()),
            value(key.principal.as_str()),
            value(rows::free(&key.scope)),
            value(rows::free(&key.key)),
            value(now.millis()),
        ],
    )
}

fn guard<'b>(round: &mut Round<'b>, batch: &'b Batch) -> usize {
    let (run, summary) = (&batch.run, &batch.summary);
    let head = rows::int(batch.head().0);
    match batch.guard {
        Guard::Create => {
            let (parent_run, parent_node) = match &summary.parent {
                Some((run, node)) => (Some(run.as_str()), Some(node.as_str())),
                None => (None, None),
            };
            round.add(
                CREATE,
                vec![
                    value(run.tenant.as_str()),
                    value(run.run.as_str()),
                    value(summary.workflow.as_str()),
                    value(summary.version.as_str()),
                    value(summary.status.as_str()),
                    value(summary.principal.as_str()),
                    value(parent_run),
                    value(parent_node),
                    value(summary.created_at.millis()),
                    value(summary.updated_at.millis()),
                    value(head),
                ],
            )
        }
        Guard::At(expected) => round.add(
            ADVANCE,
            vec![
                value(run.tenant.as_str()),
                value(run.run.as_str()),
                value(rows::int(expected.0)),
                value(summary.status.as_str()),
                value(summary.updated_at.millis()),
                value(head),
            ],
        ),
    }
}

fn children<'b>(round: &mut Round<'b>, batch: &'b Batch) -> usize {
    let each = || batch.children.iter();
    let text = |read: fn(&'b crate::Summary) -> &'b str| -> Vec<&'b str> {
        each().map(|child| read(&child.summary)).collect()
    };
    let parents = || each().map(|child| child.summary.parent.as_ref());
    round.add(
        CHILDREN,
        vec![
            value(batch.run.tenant.as_str()),
            value(each().map(|child| child.run.as_str()).collect::<Vec<_>>()),
            value(text(|summary| summary.workflow.as_str())),
            value(text(|summary| summary.version.as_str())),
            value(text(|summary| summary.status.as_str())),
            value(text(|summary| summary.principal.as_str())),
            value(
                parents()
                    .map(|parent| parent.map(|(run, _)| run.as_str()))
                    .collect::<Vec<_>>(),
            ),
            value(
                parents()
                    .map(|parent| parent.map(|(_, node)| node.as_str()))
                    .collect::<Vec<_>>(),
            ),
            value(
                each()
                    .map(|child| child.summary.created_at.millis())
                    .collect::<Vec<_>>(),
            ),
            value(
                each()
                    .map(|child| child.summary.updated_at.millis())
                    .collect::<Vec<_>>(),
            ),
        ],
    )
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

/// The first effect whose lease is not the one an outcome was won under.
fn stale(batch: &Batch, found: &[Row]) -> Result<Option<EffectKey>, Fault> {
    let mut stored = Vec::with_capacity(found.len());
    for row in found {
        stored.push((rows::free_text(row, 0)?, rows::fence(row, 1)?));
    }
    let is_held = |settled: &crate::Settled| {
        settled.fence.is_none_or(|fence| {
            stored
                .iter()
                .any(|(key, current)| *key == settled.key.0 && *current == fence)
        })
    };
    let stale = batch.effects_settled.iter().find(|settled| !is_held(settled));
    Ok(stale.map(|settled| settled.key.clone()))
}

/// The length of a log.
#[derive(Debug, PartialEq, Eq)]
enum Head {
    At(Seq),
    /// The run is gone, but its row is not swept yet.
    Gone,
    Missing,
}

async fn head(transaction: &Transaction, run: &RunKey) -> Result<Head, Fault> {
    let values = vec![value(run.tenant.as_str()), value(run.run.as_str())];
    let mut answers = Round::of(HEAD, values)
        .ask(transaction.client(), transaction.until)
        .await?;
    match answers.pop().unwrap_or_default().first() {
        Some(row) if rows::flag(row, 1)? => Ok(Head::Gone),
        Some(row) => Ok(Head::At(rows::seq(row, 0)?)),
        None => Ok(Head::Missing),
    }
}

/// The first child that is a run already. The run's own guard held.
async fn colliding(transaction: &Transaction, batch: &Batch) -> Result<AppendError, Fault> {
    // Those just made are there too, but only within this transaction, and their logs are empty like those of
    // children somebody else made; so ask as an onlooker would, after undoing it.
    let runs: Vec<_> = batch.children.iter().map(|child| child.run.as_str()).collect();
    let mut round = Round::default();
    round.control("ROLLBACK");
    let place = round.add(HEADS, vec![value(batch.run.tenant.as_str()), value(runs)]);
    let mut answers = round.ask(transaction.client(), transaction.until).await?;
    let found = answers.get_mut(place).map(std::mem::take).unwrap_or_default();
    for child in &batch.children {
        for row in &found {
            if rows::text(row, 0)? == child.run.as_str() {
                return Ok(AppendError::Conflict {
                    expected: Seq(0),
                    actual: Some(rows::seq(row, 1)?),
                });
            }
        }
    }
    Err(Fault::Taken("a child that was there is gone".to_owned()))
}

/// A connection that may be inside a transaction. Unless the transaction has ended the connection is closed when
/// dropped, so that nobody else ever continues it.
struct Transaction {
    client: Option<Object>,
    is_open: bool,
    /// When the call it is for is over.
    until: Instant,
}

impl Transaction {
    fn new(client: Object, until: Instant) -> Self {
        Self {
            client: Some(client),
            is_open: true,
            until,
        }
    }

    fn client(&self) -> &deadpool_postgres::ClientWrapper {
        self.client.as_ref().expect("only dropping takes the connection")
    }

    /// Undoes what is not committed.
    async fn end(&mut self) {
        if self.is_open {
            let mut round = Round::default();
            round.control("ROLLBACK");
            self.is_open = round.ask(self.client(), self.until).await.is_err();
        }
    }
}

impl Drop for Transaction {
    fn drop(&mut self) {
        if self.is_open
            && let Some(client) = self.client.take()
        {
            drop(Object::take(client));
        }
    }
}
