//! Commits a decision: one append, then its follow-up.
//!
//! Append and follow-up are one unit of work. It completes even if the caller is dropped, as when a client
//! disconnects.

use std::sync::Arc;

use base64::{Engine as _, engine::general_purpose::URL_SAFE_NO_PAD};
use wopr_core::{Decision, Refusal, RunId, RunKey, Seq, Timestamp, Work};
use wopr_store::{
    AppendError, Batch, Guard, IdempotencyRecord, MessageRow, NewPush, Queue, StoredEvent, WorkState,
};

use crate::{
    CommandError, Engine, NewSubscription, SideRows, View,
    commit::{self, Context, Prepared, Won},
    complete_on_drop::CompleteOnDrop,
    engine::Shared,
    follow_up::FollowUp,
    logs::store_failed,
    panics::Panicked,
    stats::Counters,
    uncertain_commit::UncertainCommit,
    view::Sizes,
    whole_children::WholeChildren,
};

/// The input of an append besides the decision.
pub(crate) struct Change<'a> {
    pub(crate) view: &'a View,
    /// Bytes of the events after the run's last snapshot.
    pub(crate) n_tail_bytes: usize,
    /// Bytes of the run before, if no permit says so.
    pub(crate) n_run_bytes: usize,
    pub(crate) guard: Guard,
    pub(crate) won: Option<&'a Won>,
    pub(crate) consumed: &'a [(RunId, Seq)],
}

pub(crate) enum Failed {
    Conflict,
    Replayed(IdempotencyRecord),
    /// The outcome is unknown; the log may tell later.
    InDoubt(Box<UncertainCommit>),
    Error(CommandError),
}

/// The outcome of an append that did not certainly fail.
enum Appended {
    Yes,
    /// The append may have committed, or may commit later. Holds its first event.
    InDoubt(StoredEvent),
}

impl Engine {
    /// Appends a decision, with the children that were decided with it, and acts on it once it is durable.
    pub(crate) async fn commit(
        &self,
        change: Change<'_>,
        (decision, whole): (Decision, WholeChildren),
        side_rows: &SideRows,
        now: Timestamp,
    ) -> Result<View, Failed> {
        let Change {
            view,
            n_tail_bytes,
            n_run_bytes,
            guard,
            won,
            consumed,
        } = change;
        if side_rows.push.is_some() && decision.run.is_replay() {
            return Err(Failed::Error(Refusal::TellsNobody.into()));
        }
        let is_quiet = is_quiet(&decision) && has_no_side_rows(side_rows);
        if is_quiet && clears_nothing(&decision) && consumed.is_empty() {
            return Ok(View {
                run: decision.run,
                ..view.clone()
            });
        }
        let (lease_now, lease_until) = self.shared.lease_clock.lease(self.shared.options.lease);
        let context = Context {
            executor: &*self.shared.executor,
            view,
            guard,
            n_tail_bytes,
            // An append that only clears work rows does not change the run, so its retention period does not
            // start over. Clocks of replicas differ, but the times of a run and of its events never go back.
            now: match is_quiet {
                true => view.summary.updated_at,
                false => now.max(view.summary.updated_at),
            },
            epoch: self.shared.epoch,
            lease_now,
            lease_until,
            // Most decisions begin no attempt, and need not look at the slots.
            room: match decision.work.effects.is_empty() {
                true => 0,
                false => self.room_for_effects(&view.key.tenant),
            },
            won,
            budgets: &self.shared.budgets,
            continues: side_rows.continues,
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
            is_left_to_caller,
            has_told,
            next_check,
            children,
            ended_children,
        } = commit::prepare(&context, decision, whole);
        batch.inbox_consumed = consumed.to_vec();
        let mut after = View {
            key: view.key.clone(),
            plan: Arc::clone(&view.plan),
            run,
            summary,
            last_events: Vec::new(),
            continues: None,
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
                seq: m.seen.map_or(seq, |seen| seen.min(seq)),
                body: m.body.clone(),
            })
            .collect();
        batch.blobs.clone_from(&side_rows.blobs);
        batch.memory.extend(side_rows.memory.iter().cloned());
        if let Some(NewSubscription { run, row, most }) = &side_rows.push {
            self.shared.outboxes.is_used();
            batch.push = Some(Box::new(NewPush {
                run: run.clone(),
                row: row.clone(),
                most: *most,
                now: self.lease_time(),
            }));
        }
        let n_bytes = batch.events.iter().map(|event| event.body.len()).sum();
        let n_tail_bytes = match batch.snapshot {
            Some(_) => 0,
            None => n_tail_bytes + n_bytes,
        };
        let n_run_bytes = n_run_bytes.max(view.held.n_bytes());
        after.continues = is_left_to_caller.then_some(Sizes {
            n_tail_bytes,
            n_run_bytes: n_run_bytes.saturating_add(2 * n_bytes),
        });
        let follow_up = FollowUp {
            was_terminal: view.run.status.is_terminal(),
            settled: (batch.work_ended.iter().map(|ended| &ended.key))
                .chain(batch.work_moved.iter().map(|moved| &moved.key))
                .filter(|key| key.queue == Queue::Effects)
                .cloned()
                .collect(),
            n_bytes,
            n_run_bytes,
            n_tail_bytes,
            offered: (batch.work_set.iter())
                .chain(batch.children.iter().flat_map(|child| &child.work))
                .filter_map(|row| match &row.state {
                    WorkState::Offered(offer) => Some(offer.queue.clone()),
                    WorkState::Due(_) | WorkState::Leased(..) | WorkState::Parked => None,
                })
                .collect(),
            events,
            is_log_unread: side_rows.is_log_unread,
            is_heard: batch.push.is_some(),
            effects,
            told,
            next_timer,
            has_told,
            next_check,
            is_released: batch.hold.is_some(),
            children,
            ended_children,
        };
        // The append and its follow-up complete even if the caller is dropped.
        let engine = self.clone();
        let change = (!batch.events.is_empty()).then(|| self.shared.recent_runs.change(&after.key));
        let committing = async move {
            match engine.append(batch, &after.key).await? {
                Appended::Yes => {
                    let mut after = after;
                    after.last_events = engine.act(&after, follow_up, change);
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
                Err(Failed::Error(CommandError::Internal(
                    format!("a commit panicked: {text}").into(),
                )))
            }
        }
    }

    /// Appends a batch. If the outcome is unknown, looks for the batch in the log at once, which settles most
    /// cases.
    async fn append(&self, batch: Box<Batch>, key: &RunKey) -> Result<Appended, Failed> {
        let first = batch.events.first().cloned();
        match self.shared.store.append(*batch).await {
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
                store_failed("commit in doubt", &why);
                // Without events nothing can happen twice, so the command is simply decided again.
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

/// Returns `true` if the decision clears no work rows.
fn clears_nothing(decision: &Decision) -> bool {
    decision.work.settled.is_empty() && decision.work.timers_cleared.is_empty()
}

/// Returns `true` if the decision leaves the run unchanged, except that it may clear work rows.
fn is_quiet(decision: &Decision) -> bool {
    let Decision {
        run: _,
        events,
        work,
        heard: _,
    } = decision;
    let Work {
        effects,
        settled: _,
        parked,
        cancelled,
        answered,
        timers_set,
        timers_cleared: _,
        children,
        messages,
    } = work;
    events.is_empty()
        && effects.is_empty()
        && parked.is_empty()
        && cancelled.is_empty()
        && answered.is_empty()
        && timers_set.is_empty()
        && children.is_empty()
        && messages.is_empty()
}

fn has_no_side_rows(side_rows: &SideRows) -> bool {
    let SideRows {
        idempotency,
        messages,
        blobs,
        memory,
        push,
        is_log_unread: _,
        continues: _,
    } = side_rows;
    idempotency.is_none() && messages.is_empty() && blobs.is_empty() && memory.is_empty() && push.is_none()
}
