//! The rows of batches, table by table, after all checks have passed.
//!
//! Inserts take one statement per table, however many rows and batches there are. Removals come first, so
//! that a key can be reused in the same batch. A batch may name a key twice, but one statement cannot update
//! a row twice: [`rounds_of`] distributes such rows over consecutive statements.

use std::{collections::HashMap, hash::Hash};

use tokio_postgres::types::ToSql;
use wopr_core::{RunId, RunKey, Timestamp};

use super::{
    agent_memory,
    round::{Round, Value, value},
    rows,
    work::{SET_LEASE, lease_values},
};
use crate::{Batch, Hold, Moved, Queue, Then, WorkRow};

const EVENTS: &str = "INSERT INTO events (tenant, run, seq, body)
     SELECT * FROM unnest($1::text[], $2::text[], $3::bigint[], $4::bytea[])";

const SNAPSHOTS: &str = "INSERT INTO snapshots (tenant, run, head, body)
     SELECT * FROM unnest($1::text[], $2::text[], $3::bigint[], $4::bytea[])
     ON CONFLICT (tenant, run) DO UPDATE SET head = excluded.head, body = excluded.body";

const END_WORK: &str = "DELETE FROM work WHERE tenant = $1 AND run = $2 AND queue = $3 AND key = ANY($4)";

/// Makes room for a row that is moved from parameter 4 to 5.
const DISPLACE: &str = "DELETE FROM work
     WHERE tenant = $1 AND run = $2 AND queue = $3 AND key = $5 AND $4::text <> $5::text AND EXISTS (
         SELECT FROM work AS moved
         WHERE moved.tenant = $1 AND moved.run = $2 AND moved.queue = $3 AND moved.key = $4)";

/// Parameter 7 is true if the lease of the row ends.
const MOVE: &str = "UPDATE work SET
         key = $5,
         epoch = CASE WHEN NOT $7::boolean THEN epoch END,
         due = CASE WHEN epoch IS NULL OR $7::boolean THEN $6::bigint ELSE due END,
         woken = CASE WHEN epoch IS NULL OR $7::boolean THEN NULL ELSE woken END,
         fence = fence + CASE WHEN $7::boolean THEN 1 ELSE 0 END,
         deaths = CASE WHEN $7::boolean THEN 0 ELSE deaths END,
         worker_queue = NULL, ready = NULL, leases = 0
     WHERE tenant = $1 AND run = $2 AND queue = $3 AND key = $4";

const SET_WORK: &str =
    "INSERT INTO work (tenant, run, queue, key, due, body, epoch, fence, worker_queue, ready)
     SELECT * FROM unnest($1::text[], $2::text[], $3::bigint[], $4::text[], $5::bigint[], $6::bytea[],
         $7::bigint[], $8::bigint[], $9::text[], $10::bigint[])
     ON CONFLICT (tenant, run, queue, key) DO UPDATE SET due = excluded.due, body = excluded.body,
         epoch = excluded.epoch, fence = work.fence + 1, deaths = 0, woken = NULL,
         worker_queue = excluded.worker_queue, ready = excluded.ready, leases = 0";

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
     SELECT m.tenant, m.run, m.seq, m.id, m.body
     FROM unnest($1::text[], $2::text[], $3::bigint[], $4::text[], $5::bytea[]) WITH ORDINALITY
         AS m (tenant, run, seq, id, body, n)
     ORDER BY m.n
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
    add(round, EVENTS, events(batches));
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
    for work in rounds_of(batches, |batch| &batch.work_set, |row: &WorkRow| &row.key) {
        let rows = work.0.iter().map(|(batch, row)| (*batch, &batch.run.run, *row));
        round.add(SET_WORK, work_columns(&rows.collect::<Vec<_>>()));
    }
    // Almost no child that is created with its log leaves anything.
    let children = batches
        .iter()
        .flat_map(|batch| batch.children.iter().map(|child| (*batch, child)));
    let snapshots = children
        .clone()
        .filter_map(|(batch, child)| Some((batch, &child.run, child.snapshot.as_ref()?)));
    let snapshots: Vec<_> = snapshots.collect();
    if !snapshots.is_empty() {
        let mut columns = run_columns(&snapshots);
        columns.push(column(&snapshots, |(_, _, snapshot)| rows::int(snapshot.head.0)));
        columns.push(column(&snapshots, |(_, _, snapshot)| snapshot.body.as_slice()));
        round.add(SNAPSHOTS, columns);
    }
    let work: Vec<_> = children
        .flat_map(|(batch, child)| child.work.iter().map(move |row| (batch, &child.run, row)))
        .collect();
    if !work.is_empty() {
        round.add(SET_WORK, work_columns(&work));
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
    add(
        round,
        agent_memory::INSERT,
        Rows::of(batches, |batch| &batch.memory).map(|memory| {
            let mut columns = memory.of_runs();
            columns.push(memory.column(|_, row| rows::free(&row.scope)));
            columns.push(memory.column(|_, row| rows::free(&row.id)));
            columns.push(memory.column(|_, row| row.at.millis()));
            columns.push(memory.column(|_, row| rows::int(row.seq.0)));
            columns.push(memory.column(|_, row| row.content.as_deref().map(rows::free)));
            columns.push(memory.column(|_, row| rows::joined(&row.tags)));
            columns.push(memory.column(|_, row| row.created_at.millis()));
            columns.push(memory.column(|_, row| row.expires_at.map(Timestamp::millis)));
            columns.push(memory.column(|_, row| row.is_untrusted));
            columns.push(memory.column(|_, row| rows::int(row.size() as u64)));
            columns
        }),
    );
    hold(round, batches);
}

/// A row of a run, with the batch that writes it.
type OfRun<'b, T> = (&'b Batch, &'b RunId, &'b T);

fn column<'b, R: Copy, C>(rows: &[R], read: impl Fn(R) -> C) -> Value<'b>
where
    C: ToSql + Sync + Send + 'b,
{
    value(rows.iter().map(|row| read(*row)).collect::<Vec<_>>())
}

/// The first two parameters: tenants and runs.
fn run_columns<'b, T>(rows: &[OfRun<'b, T>]) -> Vec<Value<'b>> {
    vec![
        column(rows, |(batch, _, _)| batch.run.tenant.as_str()),
        column(rows, |(_, run, _)| run.as_str()),
    ]
}

/// The parameters of [`SET_WORK`].
fn work_columns<'b>(work: &[OfRun<'b, WorkRow>]) -> Vec<Value<'b>> {
    let mut columns = run_columns(work);
    columns.push(column(work, |(_, _, row)| row.key.queue.number()));
    columns.push(column(work, |(_, _, row)| rows::free(&row.key.name)));
    columns.push(column(work, |(_, _, row)| {
        row.state.columns().0.map(Timestamp::millis)
    }));
    columns.push(column(work, |(_, _, row)| row.body.as_slice()));
    columns.push(column(work, |(_, _, row)| {
        row.state.columns().1.map(|epoch| rows::int(epoch.0))
    }));
    columns.push(column(work, |(batch, _, row)| {
        rows::int(row.first_fence(batch.summary.updated_at).0)
    }));
    columns.push(column(work, |(_, _, row)| {
        row.state.offer().map(|offer| rows::free(&offer.queue))
    }));
    columns.push(column(work, |(_, _, row)| {
        row.state.offer().map(|offer| offer.since.millis())
    }));
    columns
}

/// The events of the runs that batches append to, and of the children that they create whole.
fn events<'b>(batches: &[&'b Batch]) -> Option<Vec<Value<'b>>> {
    let mut events = Vec::new();
    for batch in batches {
        let tenant = batch.run.tenant.as_str();
        let own = batch.events.iter().map(|event| (batch.run.run.as_str(), event));
        let children = batch.children.iter();
        let of_children =
            children.flat_map(|child| child.events.iter().map(|event| (child.run.as_str(), event)));
        events.extend(own.chain(of_children).map(|(run, event)| (tenant, run, event)));
    }
    if events.is_empty() {
        return None;
    }
    Some(vec![
        value(events.iter().map(|(tenant, _, _)| *tenant).collect::<Vec<_>>()),
        value(events.iter().map(|(_, run, _)| *run).collect::<Vec<_>>()),
        value(
            events
                .iter()
                .map(|(_, _, event)| rows::int(event.seq.0))
                .collect::<Vec<_>>(),
        ),
        value(
            events
                .iter()
                .map(|(_, _, event)| event.body.as_slice())
                .collect::<Vec<_>>(),
        ),
    ])
}

const QUARANTINE: [&str; 3] = [
    "UPDATE work SET deaths = 4 WHERE tenant = $1 AND run = $2 AND queue <> 2",
    "UPDATE inbox SET deaths = 4 WHERE tenant = $1 AND target = $2",
    "UPDATE outbox SET deaths = 21 WHERE tenant = $1 AND run = $2 AND deaths >= 20",
];

const RELEASE: [&str; 3] = [
    "UPDATE work SET deaths = 0 WHERE tenant = $1 AND run = $2 AND queue <> 2 AND deaths >= 3",
    "UPDATE inbox SET deaths = 0, epoch = NULL WHERE tenant = $1 AND target = $2 AND deaths >= 3",
    "UPDATE outbox SET deaths = 0, epoch = NULL WHERE tenant = $1 AND run = $2 AND deaths >= 20",
];

/// Quarantines the work rows of runs, or releases quarantined ones.
fn hold<'b>(round: &mut Round<'b>, batches: &[&'b Batch]) {
    for batch in batches {
        let statements = match batch.hold {
            None => continue,
            Some(Hold::Quarantine) => QUARANTINE,
            Some(Hold::Release) => RELEASE,
        };
        for sql in statements {
            let run = vec![value(batch.run.tenant.as_str()), value(batch.run.run.as_str())];
            round.add(sql, run);
        }
    }
}

/// Adds the removals of a batch, and the rows it parks and moves.
fn leave<'b>(round: &mut Round<'b>, batch: &'b Batch) {
    let (tenant, run) = (batch.run.tenant.as_str(), batch.run.run.as_str());
    for queue in Queue::ALL {
        let ended = batch.work_ended.iter().filter(|ended| ended.key.queue == queue);
        let keys: Vec<_> = ended.map(|ended| rows::free(&ended.key.name)).collect();
        if !keys.is_empty() {
            let values = vec![value(tenant), value(run), value(queue.number()), value(keys)];
            round.add(END_WORK, values);
        }
    }
    for parked in &batch.work_parked {
        let then = Then::Park(parked.due);
        let values = lease_values(
            &batch.run,
            &parked.key,
            parked.fence,
            then,
            parked.body.as_deref(),
        );
        round.add(SET_LEASE, values);
    }
    for Moved { key, to, fence, due } in &batch.work_moved {
        let names = || {
            let queue = key.queue.number();
            let (key, to) = (rows::free(&key.name), rows::free(&to.name));
            vec![value(tenant), value(run), value(queue), value(key), value(to)]
        };
        round.add(DISPLACE, names());
        let mut values = names();
        values.push(value(due.map(Timestamp::millis)));
        values.push(value(fence.is_some()));
        round.add(MOVE, values);
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
