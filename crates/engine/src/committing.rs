//! Committing a decision: one append, and what follows from it once it is durable.
//!
//! Append and follow-up are one task of the engine's own. A caller that goes away, as a client that disconnects
//! makes its handler do, takes back neither.

use std::sync::Arc;

use base64::{Engine as _, engine::general_purpose::URL_SAFE_NO_PAD};
use wopr_core::{Decision, Refusal, RunId, RunKey, Seq, Timestamp};
use wopr_store::{
    AppendError, Batch, EffectKey, Fence, Guard, IdempotencyRecord, MessageRow, ReadError, StoredEvent,
    TaskRow,
};

use crate::{
    CommandError, Engine, Extras, View,
    commit::{self, Context, Prepared},
    stats::Counters,
};

/// What to do once an append is durable.
pub(crate) struct FollowUp {
    was_terminal: bool,
    effects: Vec<(EffectKey, commit::StoredEffect)>,
    told: Vec<RunId>,
    next_timer: Option<Timestamp>,
    children: usize,
}

/// What an append is about.
pub(crate) struct Change<'a> {
    pub(crate) view: &'a View,
    pub(crate) task: Option<&'a TaskRow>,
    pub(crate) guard: Guard,
    pub(crate) fence: Option<(EffectKey, Fence)>,
    pub(crate) consumed: &'a [(RunId, Seq)],
}

pub(crate) enum Failed {
    Conflict,
    /// Nobody knows: it does not stand now, and may yet.
    InDoubt(Doubt),
    Replayed(IdempotencyRecord),
    Error(CommandError),
}

/// A commit that may still happen, by the event it begins with.
pub(crate) struct Doubt(StoredEvent);

impl Doubt {
    /// Where the commit would stand.
    pub(crate) fn seq(&self) -> Seq {
        self.0.seq
    }
}

impl Engine {
    /// Appends a decision and, once it is durable, acts on it.
    pub(crate) async fn commit(
        &self,
        change: Change<'_>,
        decision: Decision,
        extras: &Extras,
        now: Timestamp,
    ) -> Result<View, Failed> {
        let Change {
            view,
            task,
            guard,
            fence,
            consumed,
        } = change;
        if is_nothing(&decision) && consumed.is_empty() && extras_empty(extras) {
            return Ok(View {
                run: decision.run,
                ..view.clone()
            });
        }
        let lease_until =
            now.plus_millis(u64::try_from(self.shared.options.lease.as_millis()).unwrap_or(u64::MAX));
        let context = Context {
            view,
            guard,
            task_before: task,
            now,
            epoch: self.shared.epoch,
            lease_until,
            fence,
            mark: URL_SAFE_NO_PAD.encode(self.shared.dice.roll::<9>()),
        };
        let Prepared {
            mut batch,
            run,
            summary,
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
        };
        if let Some(once) = &extras.idempotency {
            batch.idempotency = Some(IdempotencyRecord {
                key: once.key.clone(),
                digest: once.digest.clone(),
                run: Some(after.key.run.clone()),
                response: (once.respond)(&after),
                expires_at: once.expires_at,
            });
        }
        let seq = after.run.head;
        batch.messages = extras
            .messages
            .iter()
            .map(|m| MessageRow {
                id: m.id.clone(),
                seq,
                body: m.body.clone(),
            })
            .collect();
        batch.blobs.clone_from(&extras.blobs);
        let follow_up = FollowUp {
            was_terminal: view.run.status.is_terminal(),
            effects,
            told,
            next_timer,
            children,
        };
        // A task of its own: a caller that goes away takes back neither the append nor what follows from it.
        let engine = self.clone();
        let committing = self.shared.tasks.spawn(async move {
            engine.append(batch, &after.key).await?;
            engine.act(&after, follow_up);
            Ok(after)
        });
        match committing.await {
            Ok(committed) => committed,
            Err(error) => Err(Failed::Error(CommandError::Internal(error.to_string()))),
        }
    }

    /// Appends; an outcome in doubt is settled by rereading.
    async fn append(&self, batch: Batch, key: &RunKey) -> Result<(), Failed> {
        let first = batch.events.first().cloned();
        match self.shared.store.append(batch).await {
            Ok(()) => Ok(()),
            Err(AppendError::Conflict { .. }) => {
                Counters::add(&self.shared.counters.conflicts, 1);
                Err(Failed::Conflict)
            }
            Err(AppendError::Duplicate(record)) => Err(Failed::Replayed(*record)),
            Err(AppendError::Fenced(_)) => Err(Failed::Error(Refusal::Stale.into())),
            Err(AppendError::Unavailable(why)) => Err(Failed::Error(CommandError::Unavailable(why))),
            Err(AppendError::Corrupt(why)) => Err(Failed::Error(CommandError::Internal(why))),
            Err(AppendError::Unknown(why)) => {
                let Some(doubt) = first.map(Doubt) else {
                    // Without events nothing moved, and the same may be decided again.
                    return Err(Failed::Conflict);
                };
                match self.stands(key, &doubt).await {
                    Ok(true) => Ok(()),
                    Ok(false) => Err(Failed::InDoubt(doubt)),
                    Err(_) => Err(Failed::Error(CommandError::Unavailable(why))),
                }
            }
        }
    }

    /// Whether a commit in doubt happened: its first event stands where it was put. It carries the mark of its commit,
    /// so that the very same decision of another replica is not taken for ours.
    pub(crate) async fn stands(&self, key: &RunKey, doubt: &Doubt) -> Result<bool, ReadError> {
        let page = self.shared.store.events(key, doubt.seq(), 1).await?;
        Ok(page.is_some_and(|page| page.events.first() == Some(&doubt.0)))
    }

    fn act(&self, after: &View, follow_up: FollowUp) {
        let FollowUp {
            was_terminal,
            effects,
            told,
            next_timer,
            children,
        } = follow_up;
        let shared = &self.shared;
        Counters::add(&shared.counters.appends, 1);
        Counters::add(&shared.counters.runs_created, children);
        if after.run.status.is_terminal() && !was_terminal {
            shared.counters.ended(after.run.status);
        }
        shared.tails.wake(&after.key);
        for (key, effect) in effects {
            self.begin_effect(after.key.clone(), key, effect, Fence(1));
        }
        for run in told {
            shared.inboxes.tell(after.key.sibling(run.clone()));
        }
        if let Some(due) = next_timer {
            shared.timers.hint(due);
        }
    }
}

fn is_nothing(decision: &Decision) -> bool {
    let Decision {
        run: _,
        events,
        effects,
        settled,
        timers_set,
        timers_cleared,
        children,
        notices,
    } = decision;
    events.is_empty()
        && effects.is_empty()
        && settled.is_empty()
        && timers_set.is_empty()
        && timers_cleared.is_empty()
        && children.is_empty()
        && notices.is_empty()
}

fn extras_empty(extras: &Extras) -> bool {
    extras.idempotency.is_none() && extras.messages.is_empty() && extras.blobs.is_empty()
}
