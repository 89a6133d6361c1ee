//! Applies one batch within the group's transaction.
//!
//! All checks run before anything is written, so a refused batch leaves nothing to undo. There is no race
//! because there is one writer: what was read in this transaction still holds when it commits. The guard is
//! both the last check and the first write.

use std::sync::Arc;

use rusqlite::{Connection, params};
use tokio::sync::oneshot;
use wopr_core::{InterruptKind, RunKey, Seq};

use super::{
    agent_memory, bundle,
    fault::{Failure, Fault},
    job::Job,
    push,
    records::{Found, Records},
    retention::{self, present},
    rows,
    session::Session,
    spending,
    stats::Counters,
    totals::Totals,
    work,
};
use crate::{AppendError, Batch, Guard, Snapshot, StoredEvent, Summary, Then, vitals::Vitals};

/// The statements of every append; see [`Session`].
const INSERT_RUN: &str = "\
    INSERT INTO runs (tenant, run, workflow, version, status, principal, parent_run, parent_node,
     created_at, updated_at, next_seq, waiting_on, error_code, phase_since, run_group, alias, descendants)
     VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10, ?11, ?12, ?13, ?14, ?15, ?16, ?17)
     ON CONFLICT DO NOTHING";
const INSERT_EVENTS: &str = "INSERT INTO events (tenant, run, last_seq, bodies) VALUES (?1, ?2, ?3, ?4)";
const SELECT_HEAD: &str = "SELECT next_seq FROM runs WHERE tenant = ?1 AND run = ?2";
const INSERT_MESSAGE: &str = "\
    INSERT INTO messages (tenant, run, seq, id, body) VALUES (?1, ?2, ?3, ?4, ?5)
     ON CONFLICT (tenant, run, id) DO NOTHING";

/// A batch queued for the writer.
pub(super) struct Append {
    /// Shared with the caller, so that the thread that allocated its many small parts also frees them.
    pub(super) batch: Arc<Batch>,
    pub(super) reply: oneshot::Sender<Result<(), AppendError>>,
    pub(super) counters: Arc<Counters>,
    pub(super) records: Arc<Records>,
    pub(super) vitals: Arc<Vitals>,
    pub(super) totals: Totals,
    pub(super) refusal: Option<AppendError>,
}

impl Job for Append {
    fn run(&mut self, conn: &Session<'_>) -> Result<bool, Fault> {
        self.refusal = None;
        self.refusal = append(conn, &self.records, &self.batch)?.err();
        Ok(self.refusal.is_none())
    }

    fn bytes(&self) -> usize {
        self.batch.weight()
    }

    fn runs(&self) -> usize {
        1 + self.batch.children.len()
    }

    fn settle(mut self: Box<Self>, outcome: Result<(), Failure>) {
        let answer = match (outcome, self.refusal.take()) {
            // The refusal may rest on a write of the same group that was lost, so it is not passed on. A
            // refused batch wrote nothing, even if the group's commit is in doubt.
            (Err(failure), Some(_)) => Err(AppendError::Unavailable(failure.cause)),
            (Err(failure), None) => Err(failure.into()),
            (Ok(()), Some(refusal)) => Err(refusal),
            (Ok(()), None) => Ok(()),
        };
        self.counters.appended(&answer);
        self.vitals.note(self.batch.guard, &answer);
        if self.batch.summary.may_begin_phase() || !self.batch.children.is_empty() {
            self.totals.changed(&self.batch.run.tenant);
        }
        let Self { batch, reply, .. } = *self;
        // Drop it before replying, so that the waiting caller holds the last reference.
        drop(batch);
        // The append stands even if the caller is gone.
        drop(reply.send(answer));
    }
}

/// Writes a batch. If it is refused, returns the reason and writes nothing.
fn append(conn: &Session<'_>, records: &Records, batch: &Batch) -> Result<Result<(), AppendError>, Fault> {
    let found = match &batch.idempotency {
        None => Found::Nothing,
        Some(record) => records.find(conn, &record.key, batch.summary.updated_at)?,
    };
    let expired = found.expired();
    if let Some(existing) = found.unexpired() {
        return Ok(Err(AppendError::Duplicate(Box::new(existing))));
    }
    if let Some(refusal) = refusal(conn, batch)? {
        return Ok(Err(refusal));
    }
    if !guard(conn, batch)? {
        return Ok(Err(AppendError::Conflict {
            expected: batch.expected(),
            actual: present_head(conn, &batch.run)?,
        }));
    }
    if let Some(push) = &batch.push {
        push::put_along(conn, batch, push)?;
    }
    write_events(conn, &batch.run, &batch.events)?;
    write_work(conn, batch)?;
    write_relations(conn, batch)?;
    if let Some(record) = &batch.idempotency {
        records.write(conn, record, expired)?;
    }
    write_side_rows(conn, batch)?;
    if let Some(hold) = batch.hold {
        work::hold(conn, &batch.run, hold)?;
    }
    Ok(Ok(()))
}

/// Checks everything except the guard and the idempotency record.
fn refusal(conn: &Session<'_>, batch: &Batch) -> Result<Option<AppendError>, Fault> {
    let ended = batch.work_ended.iter().map(|ended| (&ended.key, ended.fence));
    let moved = batch.work_moved.iter().map(|moved| (&moved.key, moved.fence));
    for (key, fence) in ended.chain(moved) {
        let Some(fence) = fence else { continue };
        let stored = work::fence(conn, &batch.run, key)?;
        if stored.is_none_or(|(stored, _)| stored != fence) {
            return Ok(Some(AppendError::Fenced(key.clone())));
        }
    }
    let parked = batch.work_parked.iter().map(|parked| (&parked.key, parked.fence));
    let held = batch.work_held.iter().map(|(key, fence)| (key, *fence));
    for (key, fence) in parked.chain(held) {
        if work::fence(conn, &batch.run, key)? != Some((fence, true)) {
            return Ok(Some(AppendError::Fenced(key.clone())));
        }
    }
    for child in &batch.children {
        let Some(child_head) = head(conn, &batch.run.sibling(child.run.clone()))? else {
            continue;
        };
        let collision = AppendError::Conflict {
            expected: Seq(0),
            actual: Some(child_head),
        };
        return Ok(Some(lost_race(conn, batch)?.unwrap_or(collision)));
    }
    let Some(push) = &batch.push else {
        return Ok(None);
    };
    match push::judge_along(conn, batch, push)? {
        None => Ok(None),
        Some(refusal) => Ok(Some(lost_race(conn, batch)?.unwrap_or(refusal))),
    }
}

/// Returns the conflict of a batch whose guard does not hold, which precedes other refusals.
fn lost_race(conn: &Session<'_>, batch: &Batch) -> Result<Option<AppendError>, Fault> {
    let actual = present_head(conn, &batch.run)?;
    let guard_holds = match batch.guard {
        Guard::Create => head(conn, &batch.run)?.is_none(),
        Guard::At(seq) => actual == Some(seq),
    };
    Ok((!guard_holds).then_some(AppendError::Conflict {
        expected: batch.expected(),
        actual,
    }))
}

/// Writes the run row if it is as the batch expects; otherwise writes nothing and returns `false`.
fn guard(conn: &Session<'_>, batch: &Batch) -> Result<bool, Fault> {
    let written = match batch.guard {
        Guard::Create => insert_run(
            conn,
            &batch.run,
            &batch.summary,
            batch.head(),
            batch.n_descendants(),
        )?,
        Guard::At(expected) => match update_run(conn, batch, expected, Subscribed::No)? {
            // The run has subscriptions, or another append was first.
            0 => return advance_subscribed(conn, batch, expected),
            written => written,
        },
    };
    Ok(written == 1)
}

/// Selects the runs that an update applies to. Almost no run has a subscription, and this condition costs
/// less than a query.
#[derive(Clone, Copy)]
enum Subscribed {
    No,
    Maybe,
}

/// Like [`guard`], for a run that may have subscriptions; also extends its outbox row.
fn advance_subscribed(conn: &Connection, batch: &Batch, expected: Seq) -> Result<bool, Fault> {
    if update_run(conn, batch, expected, Subscribed::Maybe)? == 0 {
        return Ok(false);
    }
    push::note(conn, &batch.run, expected, batch.head())?;
    Ok(true)
}

fn update_run(conn: &Connection, batch: &Batch, expected: Seq, runs: Subscribed) -> Result<usize, Fault> {
    let (tenant, run) = (batch.run.tenant.as_str(), batch.run.run.as_str());
    let (expected, head) = (rows::int(expected.0), rows::int(batch.head().0));
    let updated_at = batch.summary.updated_at.millis();
    let most = match runs {
        Subscribed::No => 0,
        Subscribed::Maybe => i64::MAX,
    };
    let written = if batch.summary.may_begin_phase() {
        conn.prepare_cached(concat!(
            "UPDATE runs SET updated_at = ?4, next_seq = ?5, status = ?7, waiting_on = ?8, error_code = ?9,
                 phase_since = ?10
             WHERE tenant = ?1 AND run = ?2 AND next_seq = ?3 AND pushes <= ?6",
            present!()
        ))?
        .execute(params![
            tenant,
            run,
            expected,
            updated_at,
            head,
            most,
            batch.summary.status.as_str(),
            batch.summary.waiting_on.map(InterruptKind::as_str),
            batch.summary.error_code,
            batch.summary.phase_since.millis(),
        ])?
    } else {
        // SQLite writes the entries of every index that has a column named here.
        conn.prepare_cached(concat!(
            "UPDATE runs SET updated_at = ?4, next_seq = ?5
             WHERE tenant = ?1 AND run = ?2 AND next_seq = ?3 AND pushes <= ?6",
            present!()
        ))?
        .execute(params![tenant, run, expected, updated_at, head, most])?
    };
    Ok(written)
}

fn insert_run(
    conn: &Session<'_>,
    run: &RunKey,
    summary: &Summary,
    head: Seq,
    descendants: u64,
) -> Result<usize, Fault> {
    let (parent_run, parent_node) = match &summary.parent {
        Some((run, node)) => (Some(run.as_str()), Some(node.as_str())),
        None => (None, None),
    };
    let written = conn.with(INSERT_RUN, |insert| {
        insert.execute(params![
            run.tenant.as_str(),
            run.run.as_str(),
            summary.workflow.as_str(),
            summary.version.as_str(),
            summary.status.as_str(),
            summary.principal.as_str(),
            parent_run,
            parent_node,
            summary.created_at.millis(),
            summary.updated_at.millis(),
            rows::int(head.0),
            summary.waiting_on.map(InterruptKind::as_str),
            summary.error_code,
            summary.phase_since.millis(),
            summary.group,
            summary.alias,
            rows::int(descendants),
        ])
    })?;
    Ok(written)
}

/// The number of events in the log, unless the run is gone.
fn present_head(conn: &Session<'_>, run: &RunKey) -> Result<Option<Seq>, Fault> {
    if retention::is_gone(conn, run)? {
        return Ok(None);
    }
    head(conn, run)
}

fn head(conn: &Session<'_>, run: &RunKey) -> Result<Option<Seq>, Fault> {
    conn.with(SELECT_HEAD, |statement| {
        let mut found = statement.query(params![run.tenant.as_str(), run.run.as_str()])?;
        match found.next()? {
            Some(row) => Ok(Some(rows::seq(row, 0)?)),
            None => Ok(None),
        }
    })
}

fn write_events(conn: &Session<'_>, run: &RunKey, events: &[StoredEvent]) -> Result<(), Fault> {
    if events.is_empty() {
        return Ok(());
    }
    conn.with(INSERT_EVENTS, |insert| {
        bundle::pack(events, |last, bodies| {
            insert.execute(params![
                run.tenant.as_str(),
                run.run.as_str(),
                rows::int(last.0),
                bodies
            ])?;
            Ok(())
        })
    })
}

/// Writes the snapshot and rows of work. Removals come first, so that a key can be reused in the same batch.
fn write_work(conn: &Connection, batch: &Batch) -> Result<(), Fault> {
    let run = &batch.run;
    if let Some(snapshot) = &batch.snapshot {
        write_snapshot(conn, run, snapshot)?;
    }
    for ended in &batch.work_ended {
        work::end(conn, run, &ended.key)?;
    }
    for parked in &batch.work_parked {
        let then = Then::Park(parked.due);
        work::set_lease(conn, run, &parked.key, parked.fence, then, parked.body.as_deref())?;
    }
    for moved in &batch.work_moved {
        work::rename(conn, run, moved)?;
    }
    for row in &batch.work_set {
        work::set(conn, run, row, batch.summary.updated_at)?;
    }
    Ok(())
}

fn write_snapshot(conn: &Connection, run: &RunKey, snapshot: &Snapshot) -> Result<(), Fault> {
    conn.prepare_cached(
        "INSERT INTO snapshots (tenant, run, head, body) VALUES (?1, ?2, ?3, ?4)
         ON CONFLICT (tenant, run) DO UPDATE SET head = excluded.head, body = excluded.body",
    )?
    .execute(params![
        run.tenant.as_str(),
        run.run.as_str(),
        rows::int(snapshot.head.0),
        snapshot.body
    ])?;
    Ok(())
}

/// Writes children and inbox rows.
fn write_relations(conn: &Session<'_>, batch: &Batch) -> Result<(), Fault> {
    let (tenant, run) = (batch.run.tenant.as_str(), batch.run.run.as_str());
    for child in &batch.children {
        let key = batch.run.sibling(child.run.clone());
        insert_run(conn, &key, &child.summary, Seq(0).plus(child.events.len()), 0)?;
        write_events(conn, &key, &child.events)?;
        if let Some(snapshot) = &child.snapshot {
            write_snapshot(conn, &key, snapshot)?;
        }
        for row in &child.work {
            work::set(conn, &key, row, batch.summary.updated_at)?;
        }
    }
    for (source, source_seq) in &batch.inbox_consumed {
        conn.prepare_cached(
            "DELETE FROM inbox WHERE tenant = ?1 AND target = ?2 AND source = ?3 AND source_seq = ?4",
        )?
        .execute(params![tenant, run, source.as_str(), rows::int(source_seq.0)])?;
    }
    for row in &batch.inbox_sent {
        conn.prepare_cached(
            "INSERT INTO inbox (tenant, target, source, source_seq, body) VALUES (?1, ?2, ?3, ?4, ?5)
             ON CONFLICT (tenant, target, source, source_seq) DO NOTHING",
        )?
        .execute(params![
            tenant,
            row.target.as_str(),
            row.source.as_str(),
            rows::int(row.source_seq.0),
            row.body
        ])?;
    }
    Ok(())
}

/// Writes messages, blobs, what agents remember and what models took.
fn write_side_rows(conn: &Session<'_>, batch: &Batch) -> Result<(), Fault> {
    let (tenant, run) = (batch.run.tenant.as_str(), batch.run.run.as_str());
    for message in &batch.messages {
        conn.with(INSERT_MESSAGE, |insert| {
            insert.execute(params![
                tenant,
                run,
                rows::int(message.seq.0),
                message.id,
                message.body
            ])
        })?;
    }
    for row in &batch.memory {
        agent_memory::write(conn, &batch.run, row)?;
    }
    for row in &batch.spent {
        spending::add(conn, &batch.run.tenant, row)?;
    }
    for blob in &batch.blobs {
        conn.prepare_cached(
            "INSERT INTO blobs (tenant, run, id, media_type, bytes) VALUES (?1, ?2, ?3, ?4, ?5)
             ON CONFLICT (tenant, run, id) DO NOTHING",
        )?
        .execute(params![tenant, run, blob.id, blob.media_type, blob.bytes])?;
    }
    Ok(())
}
