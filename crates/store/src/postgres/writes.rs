//! The rows of a batch, table by table, once nothing can refuse it any more.
//!
//! Each table gets one statement however many rows there are. What is cleared, settled or consumed goes first, so
//! that a key may be used anew in the same batch. A batch may name a key twice, which one statement may not
//! update twice: [`rounds_of`] deals such rows to statements that follow each other.

use super::{
    round::{Round, value},
    rows,
};
use crate::{Batch, EffectRow, TaskRow, TimerRow};

const EVENTS: &str = "INSERT INTO events (tenant, run, seq, body)
     SELECT $1, $2, e.* FROM unnest($3::bigint[], $4::bytea[]) AS e";

const TASKS: &str = "INSERT INTO tasks (tenant, run, context, state, interrupt, updated_at, principal)
     SELECT $1, t.* FROM unnest($2::text[], $3::text[], $4::text[], $5::text[], $6::bigint[], $7::text[]) AS t
     ON CONFLICT (tenant, run) DO UPDATE SET context = excluded.context, state = excluded.state,
         interrupt = excluded.interrupt, updated_at = excluded.updated_at";

const SNAPSHOT: &str = "INSERT INTO snapshots (tenant, run, head, body) VALUES ($1, $2, $3, $4)
     ON CONFLICT (tenant, run) DO UPDATE SET head = excluded.head, body = excluded.body";

const CLEAR_TIMERS: &str = "DELETE FROM timers WHERE tenant = $1 AND run = $2 AND key = ANY($3)";

const SET_TIMERS: &str = "INSERT INTO timers (tenant, run, key, due)
     SELECT $1, $2, t.* FROM unnest($3::text[], $4::bigint[]) AS t
     ON CONFLICT (tenant, run, key) DO UPDATE SET due = excluded.due";

const SETTLE: &str = "DELETE FROM effects WHERE tenant = $1 AND run = $2 AND key = ANY($3)";

const ENQUEUE: &str = "INSERT INTO effects (tenant, run, key, body, enqueued_at, epoch, lease_until, fence)
     SELECT $1, $2, e.key, e.body, $3, e.epoch, e.until, CASE WHEN e.epoch IS NULL THEN 0 ELSE 1 END
     FROM unnest($4::text[], $5::bytea[], $6::bigint[], $7::bigint[]) AS e (key, body, epoch, until)
     ON CONFLICT (tenant, run, key) DO UPDATE SET body = excluded.body, enqueued_at = excluded.enqueued_at,
         epoch = excluded.epoch, lease_until = excluded.lease_until, fence = effects.fence + 1";

const CONSUME: &str = "DELETE FROM inbox USING unnest($3::text[], $4::bigint[]) AS c (source, source_seq)
     WHERE inbox.tenant = $1 AND inbox.target = $2 AND inbox.source = c.source
         AND inbox.source_seq = c.source_seq";

const TELL: &str = "INSERT INTO inbox (tenant, target, source, source_seq, place, body)
     SELECT $1, s.target, s.source, s.source_seq, s.n + coalesce((
         SELECT max(place) FROM inbox AS i WHERE i.tenant = $1 AND i.target = s.target), 0), s.body
     FROM unnest($2::text[], $3::text[], $4::bigint[], $5::bytea[]) WITH ORDINALITY
         AS s (target, source, source_seq, body, n)
     ON CONFLICT (tenant, target, source, source_seq) DO NOTHING";

const MESSAGES: &str = "INSERT INTO messages (tenant, run, seq, id, body)
     SELECT $1, $2, m.* FROM unnest($3::bigint[], $4::text[], $5::bytea[]) AS m
     ON CONFLICT (tenant, run, id) DO NOTHING";

const BLOBS: &str = "INSERT INTO blobs (tenant, run, id, media_type, bytes)
     SELECT $1, $2, b.* FROM unnest($3::text[], $4::text[], $5::bytea[]) AS b
     ON CONFLICT (tenant, run, id) DO NOTHING";

/// Adds what [`super::append`] has not written with its checks.
pub(super) fn rest<'b>(round: &mut Round<'b>, batch: &'b Batch) {
    let (tenant, run) = (batch.run.tenant.as_str(), batch.run.run.as_str());
    if !batch.events.is_empty() {
        let seqs: Vec<_> = batch.events.iter().map(|event| rows::int(event.seq.0)).collect();
        let bodies: Vec<_> = batch.events.iter().map(|event| event.body.as_slice()).collect();
        round.add(
            EVENTS,
            vec![value(tenant), value(run), value(seqs), value(bodies)],
        );
    }
    tasks(round, batch);
    if let Some(snapshot) = &batch.snapshot {
        let head = rows::int(snapshot.head.0);
        let body = snapshot.body.as_slice();
        round.add(
            SNAPSHOT,
            vec![value(tenant), value(run), value(head), value(body)],
        );
    }
    timers(round, batch);
    effects(round, batch);
    inboxes(round, batch);
    side_rows(round, batch);
}

/// The run's own task row and those of its children.
fn tasks<'b>(round: &mut Round<'b>, batch: &'b Batch) {
    let own = batch
        .task
        .as_ref()
        .map(|task| (&batch.run.run, task, &batch.summary));
    let children = batch
        .children
        .iter()
        .map(|child| (&child.run, &child.task, &child.summary));
    let all: Vec<_> = own.into_iter().chain(children).collect();
    if all.is_empty() {
        return;
    }
    let of = |read: fn(&'b TaskRow) -> &'b str| all.iter().map(|(_, task, _)| read(task)).collect::<Vec<_>>();
    let contexts: Vec<_> = all
        .iter()
        .map(|(_, task, _)| task.context.as_deref().map(rows::free))
        .collect();
    let interrupts: Vec<_> = all
        .iter()
        .map(|(_, task, _)| task.interrupt.map(rows::interrupt_text))
        .collect();
    round.add(
        TASKS,
        vec![
            value(batch.run.tenant.as_str()),
            value(all.iter().map(|(run, _, _)| run.as_str()).collect::<Vec<_>>()),
            value(contexts),
            value(of(|task| task.state.as_str())),
            value(interrupts),
            value(
                all.iter()
                    .map(|(_, task, _)| task.updated_at.millis())
                    .collect::<Vec<_>>(),
            ),
            value(
                all.iter()
                    .map(|(_, _, summary)| summary.principal.as_str())
                    .collect::<Vec<_>>(),
            ),
        ],
    );
}

fn timers<'b>(round: &mut Round<'b>, batch: &'b Batch) {
    let (tenant, run) = (batch.run.tenant.as_str(), batch.run.run.as_str());
    if !batch.timers_cleared.is_empty() {
        let keys: Vec<_> = batch
            .timers_cleared
            .iter()
            .map(|key| rows::free(&key.0))
            .collect();
        round.add(CLEAR_TIMERS, vec![value(tenant), value(run), value(keys)]);
    }
    for timers in rounds_of(&batch.timers_set, |timer: &TimerRow| &timer.key) {
        let keys: Vec<_> = timers.iter().map(|timer| rows::free(&timer.key.0)).collect();
        let dues: Vec<_> = timers.iter().map(|timer| timer.due.millis()).collect();
        round.add(
            SET_TIMERS,
            vec![value(tenant), value(run), value(keys), value(dues)],
        );
    }
}

fn effects<'b>(round: &mut Round<'b>, batch: &'b Batch) {
    let (tenant, run) = (batch.run.tenant.as_str(), batch.run.run.as_str());
    if !batch.effects_settled.is_empty() {
        let keys: Vec<_> = batch
            .effects_settled
            .iter()
            .map(|settled| rows::free(&settled.key.0))
            .collect();
        round.add(SETTLE, vec![value(tenant), value(run), value(keys)]);
    }
    for effects in rounds_of(&batch.effects_enqueued, |effect: &EffectRow| &effect.key) {
        let epochs: Vec<_> = effects
            .iter()
            .map(|effect| effect.leased.map(|(epoch, _)| rows::int(epoch.0)))
            .collect();
        let untils: Vec<_> = effects
            .iter()
            .map(|effect| effect.leased.map(|(_, until)| until.millis()))
            .collect();
        round.add(
            ENQUEUE,
            vec![
                value(tenant),
                value(run),
                value(batch.summary.updated_at.millis()),
                value(
                    effects
                        .iter()
                        .map(|effect| rows::free(&effect.key.0))
                        .collect::<Vec<_>>(),
                ),
                value(
                    effects
                        .iter()
                        .map(|effect| effect.body.as_slice())
                        .collect::<Vec<_>>(),
                ),
                value(epochs),
                value(untils),
            ],
        );
    }
}

fn inboxes<'b>(round: &mut Round<'b>, batch: &'b Batch) {
    let tenant = batch.run.tenant.as_str();
    let consumed = &batch.inbox_consumed;
    if !consumed.is_empty() {
        round.add(
            CONSUME,
            vec![
                value(tenant),
                value(batch.run.run.as_str()),
                value(
                    consumed
                        .iter()
                        .map(|(source, _)| source.as_str())
                        .collect::<Vec<_>>(),
                ),
                value(
                    consumed
                        .iter()
                        .map(|(_, seq)| rows::int(seq.0))
                        .collect::<Vec<_>>(),
                ),
            ],
        );
    }
    let sent = &batch.inbox_sent;
    if !sent.is_empty() {
        round.add(
            TELL,
            vec![
                value(tenant),
                value(sent.iter().map(|row| row.target.as_str()).collect::<Vec<_>>()),
                value(sent.iter().map(|row| row.source.as_str()).collect::<Vec<_>>()),
                value(
                    sent.iter()
                        .map(|row| rows::int(row.source_seq.0))
                        .collect::<Vec<_>>(),
                ),
                value(sent.iter().map(|row| row.body.as_slice()).collect::<Vec<_>>()),
            ],
        );
    }
}

/// Messages and blobs. The record of the request was written when it was claimed.
fn side_rows<'b>(round: &mut Round<'b>, batch: &'b Batch) {
    let (tenant, run) = (batch.run.tenant.as_str(), batch.run.run.as_str());
    let messages = &batch.messages;
    if !messages.is_empty() {
        round.add(
            MESSAGES,
            vec![
                value(tenant),
                value(run),
                value(
                    messages
                        .iter()
                        .map(|message| rows::int(message.seq.0))
                        .collect::<Vec<_>>(),
                ),
                value(
                    messages
                        .iter()
                        .map(|message| rows::free(&message.id))
                        .collect::<Vec<_>>(),
                ),
                value(
                    messages
                        .iter()
                        .map(|message| message.body.as_slice())
                        .collect::<Vec<_>>(),
                ),
            ],
        );
    }
    let blobs = &batch.blobs;
    if !blobs.is_empty() {
        round.add(
            BLOBS,
            vec![
                value(tenant),
                value(run),
                value(blobs.iter().map(|blob| rows::free(&blob.id)).collect::<Vec<_>>()),
                value(
                    blobs
                        .iter()
                        .map(|blob| rows::free(&blob.media_type))
                        .collect::<Vec<_>>(),
                ),
                value(blobs.iter().map(|blob| blob.bytes.as_slice()).collect::<Vec<_>>()),
            ],
        );
    }
}

/// Deals rows to rounds in which no key comes twice, each key's rows in order. Almost always one round.
fn rounds_of<'b, T, K: PartialEq>(all: &'b [T], key: fn(&'b T) -> &'b K) -> Vec<Vec<&'b T>> {
    let mut rounds: Vec<Vec<&T>> = Vec::new();
    for (n, row) in all.iter().enumerate() {
        let earlier = all.iter().take(n).filter(|other| key(other) == key(row)).count();
        match rounds.get_mut(earlier) {
            Some(round) => round.push(row),
            None => rounds.push(vec![row]),
        }
    }
    rounds
}
