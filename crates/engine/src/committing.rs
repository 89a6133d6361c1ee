//! Committing a decision: one append, and what follows from it once it is durable.
//!
//! Append and follow-up are one piece of work. A caller that goes away, as a client that disconnects makes its
//! handler do, takes back neither.

use std::sync::Arc;

use base64::{Engine as _, engine::general_purpose::URL_SAFE_NO_PAD};
use wopr_core::{Decision, Refusal, RunId, RunKey, Seq, Timestamp};
use wopr_store::{
    AppendError, Batch, EffectKey, Fence, Guard, IdempotencyRecord, MessageRow, NewPush, StoredEvent, TaskRow,
};

use crate::{
    CommandError, Engine, NewSubscription, SideRows, View,
    commit::{self, Context, Prepared},
    complete_on_drop::CompleteOnDrop,
    engine::Shared,
    follow_up::FollowUp,
    panics::Panicked,
    stats::Counters,
    uncertain_commit::UncertainCommit,
};

/// What an append is about.
pub(crate) struct Change<'a> {
    pub(crate) view: &'a View,
    pub(crate) task: Option<&'a TaskRow>,
    /// Bytes of the events after the run's last snapshot.
    pub(crate) n_tail_bytes: usize,
    pub(crate) guard: Guard,
    pub(crate) fence: Option<(EffectKey, Fence)>,
    pub(crate) consumed: &'a [(RunId, Seq)],
}

pub(crate) enum Failed {
    Conflict,
    Replayed(IdempotencyRecord),
    /// Nobody knows; the log may tell later.
    InDoubt(Box<UncertainCommit>),
    Error(CommandError),
}

/// How an append ended that did not fail for sure.
enum Appended {
    Yes,
    /// It may yet turn out to have happened. The event that would be its first.
    InDoubt(StoredEvent),
}

impl Engine {
    /// Appends a decision and, once it is durable, acts on it.
    pub(crate) async fn commit(
        &self,
        change: Change<'_>,
        decision: Decision,
        side_rows: &SideRows,
        now: Timestamp,
    ) -> Result<View, Failed> {
        let Change {
            view,
            task,
            n_tail_bytes,
            guard,
            fence,
            consumed,
        } = change;
        let is_quiet = is_quiet(&decision) && extras_empty(side_rows);
        if is_quiet && clears_nothing(&decision) && consumed.is_empty() {
            return Ok(View {
                run: decision.run,
                ..view.clone()
            });
        }
        let (_, lease_until) = self.shared.lease_clock.lease(self.shared.options.lease);
        let context = Context {
            view,
            guard,
            task_before: task,
            n_tail_bytes,
            // What only clears away does not change a run, and the time until it is removed does not begin again.
            // Clocks of two replicas differ; the time of a run, as that of its events, never goes back.
            now: match is_quiet {
                true => view.summary.updated_at,
                false => now.max(view.summary.updated_at),
            },
            epoch: self.shared.epoch,
            lease_until,
            fence,
            mark: URL_SAFE_NO_PAD.encode(self.shared.entropy_source.roll::<9>()),
        };
        let Prepared {
            mut batch,
            run,
            summary,
            events,
            effects,
            told,
            next_timer,
            children,
        } = commit::prepare(&context, decision);
        batch.inbox_consumed = consumed.to_vec();
        let after = View {
            key: view.key.clone(),
            plan: Arc::clone(&view.plan),
            run,
            summary,
            held: view.held.clone(),
        };
        if let Some(once) = &side_rows.idempotency {
            batch.idempotency = Some(IdempotencyRecord {
                key: once.key.clone(),
                digest: once.digest.clone(),
                run: Some(after.key.run.clone()),
                response: (once.respond)(&after),
                expires_at: once.expires_at,
            });
        }
        let seq = after.run.head;
        batch.messages = side_rows
            .messages
            .iter()
            .map(|m| MessageRow {
                id: m.id.clone(),
                seq,
                body: m.body.clone(),
            })
            .collect();
        batch.blobs.clone_from(&side_rows.blobs);
        if let Some(NewSubscription { run, row, most }) = &side_rows.push {
            self.shared.pushes.is_used();
            batch.push = Some(Box::new(NewPush {
                run: run.clone(),
                row: row.clone(),
                most: *most,
                now: self.lease_time(),
            }));
        }
        let follow_up = FollowUp {
            was_terminal: view.run.status.is_terminal(),
            settled: batch.effects_settled.iter().map(|s| s.key.clone()).collect(),
            n_bytes: batch.events.iter().map(|event| event.body.len()).sum(),
            events,
            is_log_unread: side_rows.is_log_unread,
            is_heard: batch.push.is_some(),
            effects,
            told,
            next_timer,
            is_released: batch.hold.is_some(),
            children,
        };
        // A caller that goes away takes back neither the append nor what follows from it.
        let engine = self.clone();
        let change = (!batch.events.is_empty()).then(|| self.shared.recent_runs.change(&after.key));
        let committing = async move {
            match engine.append(batch, &after.key).await? {
                Appended::Yes => {
                    engine.act(&after, follow_up, change);
                    Ok(after)
                }
                Appended::InDoubt(first) => Err(Failed::InDoubt(Box::new(UncertainCommit {
                    first,
                    after,
                    follow_up,
                }))),
            }
        };
        let Shared { runtime, tasks, .. } = &*self.shared;
        match CompleteOnDrop::new(committing, runtime.clone(), tasks).await {
            Ok(committed) => committed,
            Err(Panicked(text)) => {
                Counters::add(&self.shared.counters.panics, 1);
                Err(Failed::Error(CommandError::Internal(format!(
                    "a commit panicked: {text}"
                ))))
            }
        }
    }

    /// Appends. An outcome in doubt is looked for in the log at once, as most have happened or never will.
    async fn append(&self, batch: Batch, key: &RunKey) -> Result<Appended, Failed> {
        let first = batch.events.first().cloned();
        match self.shared.store.append(batch).await {
            Ok(()) => Ok(Appended::Yes),
            Err(AppendError::Conflict { .. }) => {
                Counters::add(&self.shared.counters.conflicts, 1);
                Err(Failed::Conflict)
            }
            Err(AppendError::Duplicate(record)) => Err(Failed::Replayed(*record)),
            Err(AppendError::Fenced(_)) => Err(Failed::Error(Refusal::Stale.into())),
            Err(AppendError::Full(most)) => Err(Failed::Error(CommandError::TooManyReceivers { most })),
            Err(AppendError::Missing) => Err(Failed::Error(CommandError::NotFound)),
            Err(AppendError::Unavailable(why)) => Err(Failed::Error(CommandError::Unavailable(why))),
            Err(AppendError::Corrupt(why)) => Err(Failed::Error(CommandError::Internal(why))),
            Err(AppendError::Unknown(why)) => {
                tracing::warn!(run = %key, %why, "commit in doubt");
                // Without events there is nothing that could happen twice: it is decided again on what is there.
                let Some(first) = first else {
                    return Err(Failed::Conflict);
                };
                match self.shared.store.events(key, first.seq, 1).await {
                    Ok(Some(page)) if page.events.first() == Some(&first) => Ok(Appended::Yes),
                    Ok(_) | Err(_) => Ok(Appended::InDoubt(first)),
                }
            }
        }
    }
}

/// Claims that no work rows of the run go.
fn clears_nothing(decision: &Decision) -> bool {
    decision.settled.is_empty() && decision.timers_cleared.is_empty()
}

/// Claims that the run is as it was: at the most, work rows of it go.
fn is_quiet(decision: &Decision) -> bool {
    let Decision {
        run: _,
        events,
        effects,
        settled: _,
        timers_set,
        timers_cleared: _,
        children,
        messages,
        heard: _,
    } = decision;
    events.is_empty()
        && effects.is_empty()
        && timers_set.is_empty()
        && children.is_empty()
        && messages.is_empty()
}

fn extras_empty(side_rows: &SideRows) -> bool {
    let SideRows {
        idempotency,
        messages,
        blobs,
        push,
        is_log_unread: _,
    } = side_rows;
    idempotency.is_none() && messages.is_empty() && blobs.is_empty() && push.is_none()
}
