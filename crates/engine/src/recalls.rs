//! Recalls: calls that no run waits for, and that their peer may have all the same.
//!
//! The peer of a call may have its message before this host knows: one of the two died, or the connection broke. If the
//! run then drops the call, no handle names what the peer makes of it. So the same append moves the row of the
//! attempt, with the request in it, into a recall:
//!
//! ```text
//!   attempt ---- dropped by its run ------------------------> recall --> found: cancel
//!      '--- failed, may have been sent --> kept -- dropped ----^    |--> nothing, twice: over
//!                                           |                       |--> ended: over
//!                                           |                       '--> sent again, unanswered: given up
//!                                           '--> accepted, completed: over
//! ```
//!
//! A row that is leased stays so when it is moved: the attempt goes on for a while under the new key, and if the peer
//! accepts the call, cancels it by its handle. Once that lease has ended, the executor looks for what the peer has.
//! An attempt that fails and is followed by another one keeps its request until it is known what became of it.

use serde::{Deserialize, Serialize};
use wopr_core::{Event, KernelEvent, Recorded, Run, StepId, Timer, Timestamp};
use wopr_store::{Ended, Moved, Parked, WorkKey};

use crate::{
    Engine, Keep, Recalled, Recalling,
    commit::{Context, StoredEffect, effect_key},
    panics::caught,
    pool::{End, Lease},
    tries::{FIRST_PAUSE_MS, Repeats, Tries},
};

/// Begins the names of recalls.
const RECALL: &str = "recall:";
/// Begins the names of calls that may have to be recalled. They are no deliveries, so it is no lower-case letter.
const KEPT: &str = "KEPT:";
/// When a peer that has nothing is asked once more: the message may still be under way to it.
const ONCE_MORE_MS: u64 = 15_000;
/// The pauses before a peer gets the request of a recall again whose answers are lost. Each time it may do the work
/// anew, so after the last one the recall is given up.
const SENT_AGAIN_MS: [u64; 2] = [60_000, 3_600_000];

/// The stored body of a recall: that of its attempt, and what came of the tries so far.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(crate) struct Recall {
    #[serde(flatten)]
    pub(crate) effect: StoredEffect,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) tries: Option<Tries>,
    /// The peer had nothing.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    had_nothing: bool,
    /// How often the peer got the request for this recall, and nobody knows what became of it.
    #[serde(default, skip_serializing_if = "is_zero")]
    n_unanswered: usize,
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde passes a reference")]
const fn is_zero(n: &usize) -> bool {
    *n == 0
}

impl Recall {
    /// The same recall as if it had never been tried.
    pub(crate) fn anew(self, now: Timestamp) -> Self {
        Self {
            tries: Some(Tries::new(now)),
            had_nothing: false,
            n_unanswered: 0,
            ..self
        }
    }

    pub(crate) fn body(&self) -> Vec<u8> {
        serde_json::to_vec(self).expect("a request has string keys")
    }
}

pub(crate) fn is_recall(name: &str) -> bool {
    name.starts_with(RECALL)
}

pub(crate) fn recall_key(step: &StepId, attempt: u32) -> WorkKey {
    WorkKey::call_delivery(format!("{RECALL}{}:{attempt}:{}", step.ordinal, step.node))
}

/// One per step: all its attempts make the same request.
fn kept_key(step: &StepId) -> WorkKey {
    WorkKey::effect(format!("{KEPT}{}:{}", step.ordinal, step.node))
}

/// What becomes of the rows of attempts.
#[derive(Debug, Default)]
pub(crate) struct Rows {
    pub(crate) ended: Vec<Ended>,
    pub(crate) moved: Vec<Moved>,
}

impl Rows {
    /// Removes what was kept of a call.
    fn forget(&mut self, step: &StepId) {
        self.ended.push(Ended {
            key: kept_key(step),
            fence: None,
        });
    }

    /// Recalls what was kept of a call.
    fn recall_kept(&mut self, step: &StepId, attempt: u32, now: Timestamp) {
        self.moved.push(Moved {
            key: kept_key(step),
            to: recall_key(step, attempt),
            fence: None,
            due: Some(now),
        });
    }
}

/// What a decision says of attempts.
pub(crate) struct Decided<'a> {
    /// The run as the decision leaves it.
    pub(crate) run: &'a Run,
    pub(crate) events: &'a [Recorded],
    pub(crate) settled: &'a [(StepId, u32)],
    /// Attempts that the peer has accepted.
    pub(crate) accepted: &'a [(&'a StepId, u32)],
    pub(crate) timers_cleared: &'a [Timer],
}

/// Ends the rows of attempts that have ended, or moves them if the peer may go on with the call.
pub(crate) fn settle(context: &Context<'_>, decided: &Decided<'_>) -> Rows {
    let Context { view, lease_now, .. } = context;
    let now = *lease_now;
    let mut rows = Rows::default();
    let is_active = |step: &StepId| decided.run.is_active(&view.plan, step);
    for (index, (step, attempt)) in decided.settled.iter().enumerate() {
        // A call that this decision began and stopped again has no row.
        if decided.settled[..index].contains(&(step.clone(), *attempt)) {
            continue;
        }
        let number = view.run.n_calls(&**view.plan, step).unwrap_or(0);
        let key = effect_key(step, *attempt, number);
        let won = context.won.filter(|won| won.key == key);
        let fence = won.map(|won| won.fence);
        let pending = view.run.call(&view.plan, step, *attempt);
        // The next attempt makes a call again that a pause has cut, so nobody recalls it.
        let may_go_on = !is_cut(decided.events, step)
            && pending
                .is_some_and(|call| call.handle.is_none() && context.executor.may_go_on(&call.provider));
        if !may_go_on {
            rows.ended.push(Ended { key, fence });
            continue;
        }
        let is_repeat = *attempt > 0;
        let moved = |to, due| Moved {
            key: key.clone(),
            to,
            fence,
            due,
        };
        match won {
            // The request of this attempt is that of the earlier ones.
            None => {
                rows.moved.push(moved(recall_key(step, *attempt), Some(now)));
                if is_repeat {
                    rows.forget(step);
                }
            }
            Some(won) if won.may_go_on => {
                if is_repeat {
                    rows.forget(step);
                }
                rows.moved.push(match is_active(step) {
                    true => moved(kept_key(step), None),
                    false => moved(recall_key(step, *attempt), Some(now)),
                });
            }
            Some(_) => {
                rows.ended.push(Ended {
                    key: key.clone(),
                    fence,
                });
                if is_repeat && !is_active(step) {
                    match has_completed(decided.events, step) {
                        true => rows.forget(step),
                        false => rows.recall_kept(step, *attempt, now),
                    }
                }
            }
        }
    }
    // The run knows the task from here on.
    for (step, _) in decided.accepted.iter().filter(|(_, attempt)| *attempt > 0) {
        rows.forget(step);
    }
    for timer in decided.timers_cleared {
        if let Timer::Retry(step, next) = timer
            && !is_active(step)
        {
            rows.recall_kept(step, next.saturating_sub(1), now);
        }
    }
    rows
}

fn is_cut(events: &[Recorded], step: &StepId) -> bool {
    events.iter().any(|recorded| {
        matches!(&recorded.event, Event::Kernel(KernelEvent::RunPaused { cut, .. })
            if cut.iter().any(|cut| cut.step == *step))
    })
}

fn has_completed(events: &[Recorded], step: &StepId) -> bool {
    events.iter().any(|recorded| {
        matches!(&recorded.event, Event::Kernel(KernelEvent::NodeCompleted { step: of, .. }) if of == step)
    })
}

impl Engine {
    /// Looks for what the peer of a dropped call has, and has it cancelled.
    pub(crate) async fn recall(&self, lease: &mut Lease, recall: Recall) -> End {
        let Recall { effect, .. } = &recall;
        if !effect.request.is_followed() || effect.is_unsent(lease.fence) {
            return self.end_row(lease).await;
        }
        let recalling = caught(self.shared.executor.recall(Recalling {
            run: lease.run.clone(),
            step: effect.step.clone(),
            attempt: effect.attempt,
            number: effect.number,
            idempotency_key: effect.idempotency_key.clone(),
            trace: effect.trace.clone(),
            request: effect.request.clone(),
            blobs: self.blobs(&lease.run, &Keep::default()),
        }));
        let (mut repeats, mut n_unanswered) = (Repeats::ForADay, recall.n_unanswered);
        let mut retry_after = None;
        let error = match lease.hold(recalling).await {
            None => return lease.give_back(),
            Some(Ok(Ok(Recalled::Found(handle)))) => {
                let found = StoredEffect {
                    handle: Some(handle),
                    ..recall.effect
                };
                return self.cancel_late(lease, found).await;
            }
            Some(Ok(Ok(Recalled::Over))) => return self.end_row(lease).await,
            Some(Ok(Ok(Recalled::Nothing))) if recall.had_nothing => return self.end_row(lease).await,
            Some(Ok(Ok(Recalled::Nothing))) => {
                let again = Recall {
                    had_nothing: true,
                    ..recall
                };
                let due = self.lease_time().plus_millis(ONCE_MORE_MS);
                return self.put_off(lease, again.body(), Some(due)).await;
            }
            Some(Ok(Ok(Recalled::Unanswered(reason)))) => {
                let pause = SENT_AGAIN_MS.get(recall.n_unanswered).copied();
                n_unanswered += 1;
                repeats = pause.map_or(Repeats::Never, Repeats::After);
                reason
            }
            Some(Ok(Ok(Recalled::Unusable(reason)))) => {
                repeats = Repeats::Never;
                reason
            }
            Some(Ok(Err(error))) => {
                retry_after = error.retry_after();
                error.to_string()
            }
            Some(Err(panicked)) => self.broke_off(lease, &panicked),
        };
        let since = lease.since;
        let tries = recall.tries.clone().unwrap_or_else(|| Tries::new(since));
        let (tries, due) = self.failed_again(lease, (&tries, repeats), (error, retry_after));
        let again = Recall {
            tries: Some(tries),
            n_unanswered,
            ..recall
        };
        self.put_off(lease, again.body(), due).await
    }

    /// Parks a delivery with a new body.
    pub(crate) async fn put_off(&self, lease: &Lease, body: Vec<u8>, due: Option<Timestamp>) -> End {
        let parked = Parked {
            key: lease.key.clone(),
            fence: lease.fence,
            due,
            body: Some(body),
        };
        let is_written = self.change_rows(&lease.run, |batch| batch.work_parked.push(parked.clone()));
        if !is_written.await {
            return End::Park(Some(self.lease_time().plus_millis(FIRST_PAUSE_MS)));
        }
        if let Some(due) = due {
            self.shared.effects.hint(due);
        }
        End::Over
    }

    /// Whether the row of an attempt has become a recall that is leased as the attempt was. Its lease then goes on
    /// under the new key.
    pub(crate) async fn follow_recall(&self, lease: &mut Lease, effect: &StoredEffect) {
        let key = recall_key(&effect.step, effect.attempt);
        let until = lease.extended();
        if let Ok(true) = self
            .shared
            .store
            .renew(&lease.run, &key, lease.fence, until)
            .await
        {
            lease.key = key;
        }
    }
}
