//! The append verb as one transaction of two round trips, for one batch or several.
//!
//! The first round runs all checks and takes the locks that keep their results valid ([`checks`]); the second
//! writes the rest and commits ([`writes`]). Everything the second round writes is protected by the lock of
//! its run and belongs to that run. The one exception is the inboxes of other runs, which only gain rows.
//!
//! Batches of several runs share a transaction if all of them pass the checks. Otherwise nothing is written,
//! and the caller learns which batches failed and appends each of those alone, with retries.

use tokio::time::Instant;
use wopr_core::{RunKey, Seq, Timestamp};

use super::{
    checks::{self, Check},
    connection::Connection,
    fault::Fault,
    pool::Pool,
    push,
    retention::present,
    round::{Failure, Round, Sent, value},
    rows, spending,
    turns::Purpose,
    writes,
};
use crate::{AppendError, Batch, Guard, IdempotencyKey};

/// Attempts per transaction that is rolled back without a verdict.
const TRIES: u32 = 8;

/// The number of events in the log, and whether the run is gone.
const HEAD: &str = concat!(
    "SELECT next_seq, NOT (true",
    present!(),
    ") FROM runs WHERE tenant = $1 AND run = $2"
);

const HEADS: &str = "SELECT run, next_seq FROM runs WHERE tenant = $1 AND run = ANY($2)";

const UNEXPIRED: &str = "SELECT digest, run, response, expires_at FROM idempotency
     WHERE tenant = $1 AND principal = $2 AND scope = $3 AND key = $4 AND expires_at > $5";

/// Appends batches in one transaction, or none of them if any fails a check; returns the indexes of those
/// that failed. The batches are sorted by run, and no run, key or child occurs in two of them.
pub(super) async fn together(
    pool: &Pool,
    client: Connection,
    batches: &[&Batch],
    until: Instant,
) -> Result<Vec<usize>, Fault> {
    let begun = Instant::now();
    let mut transaction = Transaction::new(client, until);
    let refused = in_transaction(&mut transaction, batches).await;
    transaction.conclude(pool, begun, refused.as_ref().err()).await;
    Ok(refused?.into_iter().map(|(place, _)| place).collect())
}

/// Appends a batch, and retries while nothing was written and no verdict was reached. Between attempts its
/// place and connection are free for others, so that a locked row delays only this batch.
pub(super) async fn alone(
    pool: &Pool,
    batch: &Batch,
    until: Instant,
    retried: impl Fn(),
) -> Result<(), AppendError> {
    let (mut attempt, mut n_undone) = (0, 0);
    loop {
        attempt += 1;
        let fault = match attempt_once(pool, batch, until).await {
            Ok(answer) => return answer,
            Err(fault) => fault,
        };
        // The holder of a locked row releases it, or the server ends its transaction, so such attempts are
        // limited only by time.
        n_undone += u32::from(!matches!(fault, Fault::Held(_)));
        if n_undone == TRIES || !fault.is_passing() || Instant::now() >= until {
            return Err(fault.into());
        }
        retried();
        super::pause(attempt).await;
    }
}

async fn attempt_once(pool: &Pool, batch: &Batch, until: Instant) -> Result<Result<(), AppendError>, Fault> {
    let _place = pool.place_alone(until).await?;
    let begun = Instant::now();
    let mut transaction = Transaction::new(pool.get(Purpose::Work, until).await?, until);
    let outcome = match in_transaction(&mut transaction, &[batch]).await {
        Ok(refused) => match refused.into_iter().next() {
            Some((_, check)) => refusal(&transaction, batch, check).await.map(Err),
            None => Ok(Ok(())),
        },
        Err(fault) => Err(fault),
    };
    transaction.conclude(pool, begun, outcome.as_ref().err()).await;
    outcome
}

/// Commits if every batch passes its checks. Otherwise returns the failed checks with the index of their
/// batch.
async fn in_transaction(
    transaction: &mut Transaction,
    batches: &[&Batch],
) -> Result<Vec<(usize, Check)>, Fault> {
    let checks = checks::check(transaction.client(), transaction.until, batches).await?;
    let mut is_told = Vec::with_capacity(batches.len());
    let mut refused = Vec::new();
    for (place, check) in checks.into_iter().enumerate() {
        match check {
            Check::Holds { is_told: told } => is_told.push(told),
            Check::Claimed
            | Check::Stale(_)
            | Check::Behind
            | Check::Colliding
            | Check::Full(_)
            | Check::Missing => refused.push((place, check)),
        }
    }
    if !refused.is_empty() {
        return Ok(refused);
    }
    let mut round = Round::default();
    writes::rest(&mut round, batches);
    for (batch, is_told) in batches.iter().zip(is_told) {
        push::note(&mut round, batch, is_told);
    }
    spending::add(&mut round, batches);
    round.control("COMMIT");
    let ready = round.prepare(transaction.client(), transaction.until).await?;
    let commit = ready.last();
    let Sent { failure, .. } = ready.send(transaction.client()).await;
    match failure {
        None => {
            transaction.is_open = false;
            Ok(Vec::new())
        }
        Some(Failure {
            step,
            error: Some(error),
            ..
        }) if step == commit => Err(Fault::at_commit(error)),
        // If a step could not be sent, neither was COMMIT. Otherwise COMMIT may have been executed, and only
        // the server's report of a failed statement proves that it was not.
        Some(failure) => {
            let is_verdict = failure
                .error
                .as_ref()
                .is_some_and(|error| error.as_db_error().is_some());
            if failure.is_unsent || is_verdict {
                Err(failure.into())
            } else {
                Err(in_doubt(failure.into()))
            }
        }
    }
}

fn in_doubt(fault: Fault) -> Fault {
    Fault::InDoubt(fault.into_cause())
}

/// Maps a failed check to the error of the append.
async fn refusal(transaction: &Transaction, batch: &Batch, check: Check) -> Result<AppendError, Fault> {
    match (check, &batch.idempotency) {
        (Check::Claimed, Some(record)) => {
            let now = batch.summary.updated_at;
            let mut found = unexpired(&record.key, now)
                .ask(transaction.client(), transaction.until)
                .await?;
            match found.pop().unwrap_or_default().first() {
                Some(row) => Ok(AppendError::Duplicate(Box::new(rows::record(row, &record.key)?))),
                // The record was deleted in the meantime.
                None => Err(Fault::Taken("a record that was there is gone".into())),
            }
        }
        (Check::Stale(key), _) => Ok(AppendError::Fenced(key)),
        (Check::Colliding, _) => colliding(transaction, batch).await,
        (Check::Full(most), _) => Ok(AppendError::Full(most)),
        (Check::Missing, _) => Ok(AppendError::Missing),
        (Check::Behind | Check::Claimed | Check::Holds { .. }, _) => {
            let actual = head(transaction, &batch.run).await?;
            // A run with an alias may be missing because another one has it. If that is gone by now, the caller
            // finds no such run and appends again.
            let may_be_named = batch.summary.alias.is_some() && batch.summary.parent.is_none();
            if actual == Head::Missing && batch.guard == Guard::Create && !may_be_named {
                return Err(Fault::Taken("a run that was there is gone".into()));
            }
            Ok(AppendError::Conflict {
                expected: batch.expected(),
                actual: match actual {
                    Head::At(seq) => Some(seq),
                    Head::Gone | Head::Missing => None,
                },
            })
        }
    }
}

/// Queries the unexpired record of a request.
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

/// The number of events in a log.
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

/// Finds the first child that already exists. The guard of the run has held.
async fn colliding(transaction: &Transaction, batch: &Batch) -> Result<AppendError, Fault> {
    // Children inserted by this transaction are visible to it, and cannot be told from
    // those that another process has created. Roll back first, to see only other processes' rows.
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
    Err(Fault::Taken("a child that was there is gone".into()))
}

/// A connection that may be inside a transaction. It is closed when dropped unless the transaction has ended,
/// so that nobody else continues it. Appends run on their own tasks, so a caller cannot cancel them; only the
/// end of the task does.
struct Transaction {
    client: Option<Connection>,
    is_open: bool,
    /// The deadline of the call.
    until: Instant,
}

impl Transaction {
    fn new(client: Connection, until: Instant) -> Self {
        Self {
            client: Some(client),
            is_open: true,
            until,
        }
    }

    fn client(&self) -> &deadpool_postgres::ClientWrapper {
        self.client.as_ref().expect("only dropping takes the connection")
    }

    /// Rolls back if the transaction is open. A lost connection is not used again.
    async fn conclude(mut self, pool: &Pool, begun: Instant, fault: Option<&Fault>) {
        if matches!(fault, Some(Fault::Lost(_) | Fault::InDoubt(_))) {
            pool.lost(begun);
        } else if self.is_open {
            let mut round = Round::default();
            round.control("ROLLBACK");
            self.is_open = round.ask(self.client(), self.until).await.is_err();
        }
    }
}

impl Drop for Transaction {
    fn drop(&mut self) {
        match self.client.take() {
            Some(client) if self.is_open => client.close(),
            Some(client) => client.give_back(),
            None => {}
        }
    }
}
