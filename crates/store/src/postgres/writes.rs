//! The rows of batches, table by table, after all checks have passed.
//!
//! Inserts take one statement per table, however many rows and batches there are. Removals come first, so
//! that a key can be reused in the same batch. A batch may name a key twice, but one statement cannot update
//! a row twice: [`rounds_of`] distributes such rows over consecutive statements.

use std::{collections::HashMap, hash::Hash};

use tokio_postgres::types::ToSql;
use wopr_core::RunKey;

use super::{
    round::{Round, Value, value},
    rows,
};
use crate::{Batch, EffectRow, Fence, Hold, Summary, TaskRow, TimerRow};

const EVENTS: &str = "INSERT INTO events (tenant, run, seq, body)
     SELECT * FROM unnest($1::text[], $2::text[], $3::bigint[], $4::bytea[])";

const TASKS: &str = "INSERT INTO tasks (tenant, run, context, state, interrupt, updated_at, principal)
     SELECT * FROM unnest($1::text[], $2::text[], $3::text[], $4::text[], $5::text[], $6::bigint[], $7::text[])
     ON CONFLICT (tenant, run) DO UPDATE SET context = excluded.context, state = excluded.state,
         interrupt = excluded.interrupt, updated_at = excluded.updated_at";

const SNAPSHOTS: &str = "INSERT INTO snapshots (tenant, run, head, body)
     SELECT * FROM unnest($1::text[], $2::text[], $3::bigint[], $4::bytea[])
     ON CONFLICT (tenant, run) DO UPDATE SET head = excluded.head, body = excluded.body";

const CLEAR_TIMERS: &str = "DELETE FROM timers WHERE tenant = $1 AND run = $2 AND key = ANY($3)";

const SET_TIMERS: &str = "INSERT INTO timers (tenant, run, key, due, fence)
     SELECT * FROM unnest($1::text[], $2::text[], $3::text[], $4::bigint[], $5::bigint[])
     ON CONFLICT (tenant, run, key) DO UPDATE SET due = excluded.due, epoch = NULL, fence = timers.fence + 1,
         deaths = 0";

const SETTLE: &str = "DELETE FROM effects WHERE tenant = $1 AND run = $2 AND key = ANY($3)";

const ENQUEUE: &str = "INSERT INTO effects (tenant, run, key, body, enqueued_at, epoch, lease_until, fence)
     SELECT e.*, CASE WHEN e.epoch IS NULL THEN 0 ELSE 1 END
     FROM unnest($1::text[], $2::text[], $3::text[], $4::bytea[], $5::bigint[], $6::bigint[], $7::bigint[])
         AS e (tenant, run, key, body, enqueued_at, epoch, until)
     ON CONFLICT (tenant, run, key) DO UPDATE SET body = excluded.body, enqueued_at = excluded.enqueued_at,
         epoch = excluded.epoch, lease_until = excluded.lease_until, fence = effects.fence + 1, deaths = 0";

const CONSUME: &str = "DELETE FROM inbox USING unnest($3::text[], $4::bigint[]) AS c (source, source_seq)
     WHERE inbox.tenant = $1 AND inbox.target = $2 AND inbox.source = c.source
         AND inbox.source_seq = c.source_seq";

const TELL: &str = "INSERT INTO inbox (tenant, target, source, source_seq, place, body)
     SELECT s.tenant, s.target, s.source, s.source_seq, s.n + coalesce((
         SELECT max(place) FROM inbox AS i WHERE i.tenant = s.tenant AND i.target = s.target), 0), s.body
     FROM unnest($1::text[], $2::text[], $3::text[], $4::bigint[], $5::bytea[]) WITH ORDINALITY
         AS s (tenant, target, source, source_seq, body, n)
     ON CONFLICT (tenant, target, source, source_seq) DO NOTHING";

const MESSAGES: &str = "INSERT INTO messages (tenant, run, seq, id, body)
     SELECT * FROM unnest($1::text[], $2::text[], $3::bigint[], $4::text[], $5::bytea[])
     ON CONFLICT (tenant, run, id) DO NOTHING";

const BLOBS: &str = "INSERT INTO blobs (tenant, run, id, media_type, bytes)
     SELECT * FROM unnest($1::text[], $2::text[], $3::text[], $4::text[], $5::bytea[])
     ON CONFLICT (tenant, run, id) DO NOTHING";

/// Adds the writes that [`super::checks`] has not already done.
pub(super) fn rest<'b>(round: &mut Round<'b>, batches: &[&'b Batch]) {
    for batch in batches {
        leave(round, batch);
    }
    let add = |round: &mut Round<'b>, sql, columns: Option<Vec<Value<'b>>>| {
        if let Some(columns) = columns {
            round.add(sql, columns);
        }
    };
    add(
        round,
        EVENTS,
        Rows::of(batches, |batch| &batch.events).map(|events| {
            let mut columns = events.of_runs();
            columns.push(events.column(|_, event| rows::int(event.seq.0)));
            columns.push(events.column(|_, event| event.body.as_slice()));
            columns
        }),
    );
    add(round, TASKS, tasks(batches));
    add(
        round,
        SNAPSHOTS,
        Rows::of(batches, |batch| batch.snapshot.as_slice()).map(|snapshots| {
            let mut columns = snapshots.of_runs();
            columns.push(snapshots.column(|_, snapshot| rows::int(snapshot.head.0)));
            columns.push(snapshots.column(|_, snapshot| snapshot.body.as_slice()));
            columns
        }),
    );
    for timers in rounds_of(batches, |batch| &batch.timers_set, |timer: &TimerRow| &timer.key) {
        let mut columns = timers.of_runs();
        columns.push(timers.column(|_, timer| rows::free(&timer.key.0)));
        columns.push(timers.column(|_, timer| timer.due.millis()));
        columns.push(timers.column(|batch, _| rows::int(Fence::first_at(batch.summary.updated_at).0)));
        round.add(SET_TIMERS, columns);
    }
    for effects in rounds_of(
        batches,
        |batch| &batch.effects_enqueued,
        |effect: &EffectRow| &effect.key,
    ) {
        let mut columns = effects.of_runs();
        columns.push(effects.column(|_, effect| rows::free(&effect.key.0)));
        columns.push(effects.column(|_, effect| effect.body.as_slice()));
        columns.push(effects.column(|batch, _| batch.summary.updated_at.millis()));
        columns.push(effects.column(|_, effect| effect.leased.map(|(epoch, _)| rows::int(epoch.0))));
        columns.push(effects.column(|_, effect| effect.leased.map(|(_, until)| until.millis())));
        round.add(ENQUEUE, columns);
    }
    add(
        round,
        TELL,
        Rows::of(batches, |batch| &batch.inbox_sent).map(|sent| {
            vec![
                sent.column(|batch, _| batch.run.tenant.as_str()),
                sent.column(|_, row| row.target.as_str()),
                sent.column(|_, row| row.source.as_str()),
                sent.column(|_, row| rows::int(row.source_seq.0)),
                sent.column(|_, row| row.body.as_slice()),
            ]
        }),
    );
    add(
        round,
        MESSAGES,
        Rows::of(batches, |batch| &batch.messages).map(|messages| {
            let mut columns = messages.of_runs();
            columns.push(messages.column(|_, message| rows::int(message.seq.0)));
            columns.push(messages.column(|_, message| rows::free(&message.id)));
            columns.push(messages.column(|_, message| message.body.as_slice()));
            columns
        }),
    );
    add(
        round,
        BLOBS,
        Rows::of(batches, |batch| &batch.blobs).map(|blobs| {
            let mut columns = blobs.of_runs();
            columns.push(blobs.column(|_, blob| rows::free(&blob.id)));
            columns.push(blobs.column(|_, blob| rows::free(&blob.media_type)));
            columns.push(blobs.column(|_, blob| blob.bytes.as_slice()));
            columns
        }),
    );
    hold(round, batches);
}

const PARK: [&str; 4] = [
    "UPDATE timers SET deaths = 4 WHERE tenant = $1 AND run = $2",
    "UPDATE effects SET deaths = 4 WHERE tenant = $1 AND run = $2",
    "UPDATE inbox SET deaths = 4 WHERE tenant = $1 AND target = $2",
    "UPDATE outbox SET deaths = 4 WHERE tenant = $1 AND run = $2 AND deaths >= 3",
];

const RELEASE: [&str; 4] = [
    "UPDATE timers SET deaths = 0 WHERE tenant = $1 AND run = $2 AND deaths >= 3",
    "UPDATE effects SET deaths = 0, epoch = NULL, lease_until = NULL
     WHERE tenant = $1 AND run = $2 AND deaths >= 3",
    "UPDATE inbox SET deaths = 0, epoch = NULL WHERE tenant = $1 AND target = $2 AND deaths >= 3",
    "UPDATE outbox SET deaths = 0, epoch = NULL WHERE tenant = $1 AND run = $2 AND deaths >= 3",
];

/// Parks the work rows of runs, or releases parked ones.
fn hold<'b>(round: &mut Round<'b>, batches: &[&'b Batch]) {
    for batch in batches {
        let statements = match batch.hold {
            None => continue,
            Some(Hold::Park) => PARK,
            Some(Hold::Release) => RELEASE,
        };
        for sql in statements {
            let run = vec![value(batch.run.tenant.as_str()), value(batch.run.run.as_str())];
            round.add(sql, run);
        }
    }
}

/// Adds the removals of a batch.
fn leave<'b>(round: &mut Round<'b>, batch: &'b Batch) {
    let (tenant, run) = (batch.run.tenant.as_str(), batch.run.run.as_str());
    if !batch.timers_cleared.is_empty() {
        let keys: Vec<_> = batch
            .timers_cleared
            .iter()
            .map(|key| rows::free(&key.0))
            .collect();
        round.add(CLEAR_TIMERS, vec![value(tenant), value(run), value(keys)]);
    }
    if !batch.effects_settled.is_empty() {
        let keys = batch
            .effects_settled
            .iter()
            .map(|settled| rows::free(&settled.key.0));
        let keys: Vec<_> = keys.collect();
        round.add(SETTLE, vec![value(tenant), value(run), value(keys)]);
    }
    let consumed = &batch.inbox_consumed;
    if !consumed.is_empty() {
        let sources: Vec<_> = consumed.iter().map(|(source, _)| source.as_str()).collect();
        let seqs: Vec<_> = consumed.iter().map(|(_, seq)| rows::int(seq.0)).collect();
        round.add(
            CONSUME,
            vec![value(tenant), value(run), value(sources), value(seqs)],
        );
    }
}

/// The task rows of the batches' runs and their children.
fn tasks<'b>(batches: &[&'b Batch]) -> Option<Vec<Value<'b>>> {
    let mut all: Vec<(&Batch, &str, &TaskRow, &Summary)> = Vec::new();
    for batch in batches {
        let own = batch.task.as_ref();
        all.extend(own.map(|task| (*batch, batch.run.run.as_str(), task, &batch.summary)));
        let children = batch.children.iter();
        all.extend(children.map(|child| (*batch, child.run.as_str(), &child.task, &child.summary)));
    }
    let each = || all.iter();
    (!all.is_empty()).then(|| {
        vec![
            value(
                each()
                    .map(|(batch, ..)| batch.run.tenant.as_str())
                    .collect::<Vec<_>>(),
            ),
            value(each().map(|(_, run, ..)| *run).collect::<Vec<_>>()),
            value(
                each()
                    .map(|(_, _, task, _)| task.context.as_deref().map(rows::free))
                    .collect::<Vec<_>>(),
            ),
            value(
                each()
                    .map(|(_, _, task, _)| task.state.as_str())
                    .collect::<Vec<_>>(),
            ),
            value(
                each()
                    .map(|(_, _, task, _)| task.interrupt.map(rows::interrupt_text))
                    .collect::<Vec<_>>(),
            ),
            value(
                each()
                    .map(|(_, _, task, _)| task.updated_at.millis())
                    .collect::<Vec<_>>(),
            ),
            value(
                each()
                    .map(|(.., summary)| summary.principal.as_str())
                    .collect::<Vec<_>>(),
            ),
        ]
    })
}

/// The rows of one kind in all batches, each with its batch.
struct Rows<'b, T>(Vec<(&'b Batch, &'b T)>);

impl<'b, T> Rows<'b, T> {
    /// Collects the rows; `None` if there are none.
    fn of(batches: &[&'b Batch], read: fn(&'b Batch) -> &'b [T]) -> Option<Self> {
        let rows: Vec<_> = batches
            .iter()
            .flat_map(|batch| read(batch).iter().map(|row| (*batch, row)))
            .collect();
        (!rows.is_empty()).then_some(Self(rows))
    }

    /// A parameter with one value per row.
    fn column<C>(&self, read: impl Fn(&'b Batch, &'b T) -> C) -> Value<'b>
    where
        C: ToSql + Sync + Send + 'b,
    {
        value(
            self.0
                .iter()
                .map(|(batch, row)| read(batch, row))
                .collect::<Vec<_>>(),
        )
    }

    /// The first two parameters: tenants and runs.
    fn of_runs(&self) -> Vec<Value<'b>> {
        vec![
            self.column(|batch, _| batch.run.tenant.as_str()),
            self.column(|batch, _| batch.run.run.as_str()),
        ]
    }
}

/// Distributes rows over rounds so that no round contains a key of a run twice, in order per key. Almost
/// always one round.
fn rounds_of<'b, T, K: Eq + Hash>(
    batches: &[&'b Batch],
    read: fn(&'b Batch) -> &'b [T],
    key: fn(&'b T) -> &'b K,
) -> Vec<Rows<'b, T>> {
    let mut rounds: Vec<Rows<'b, T>> = Vec::new();
    let mut earlier: HashMap<(&RunKey, &K), usize> = HashMap::new();
    for batch in batches {
        for row in read(batch) {
            let n = earlier.entry((&batch.run, key(row))).or_default();
            match rounds.get_mut(*n) {
                Some(Rows(round)) => round.push((batch, row)),
                None => rounds.push(Rows(vec![(batch, row)])),
            }
            *n += 1;
        }
    }
    rounds
}
