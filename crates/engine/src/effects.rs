//! Performs effects: makes attempts under a lease, and records their outcomes.
//!
//! An attempt begins only after the batch that requested it is durable. Its outcome is appended under its
//! lease; if the lease was lost or the execution is over, the outcome is dropped. If a process dies, its rows
//! remain, and another epoch attempts them again with the same idempotency key.

use std::{sync::Arc, sync::atomic::Ordering, time::Duration};

use serde_json::{Value, json};
use wopr_core::{
    Command, Failure, ModelUsage, Object, Produced, Refusal, RunKey, StepId, TIMED_OUT, TenantId, Timestamp,
    value_size,
};
use wopr_store::{AppendError, Batch, Cause, Ended, Fence, Guard, Leased, WorkKey};

use crate::{
    Attempt, CommandError, Engine, Keep, Lost, Outcome, Progress, Report, Request, SideRows, Wake,
    call_deliveries::{CallDelivery, is_call_delivery},
    commit::{self, StoredEffect, Won},
    logs::work_failed,
    panics::{Panicked, caught},
    pool::{End, Lease},
    recalls::{Recall, is_recall},
    stats::Counters,
};

/// Tries to append an outcome while the store is unavailable, before the attempt is left to the next lease.
const APPEND_TRIES: u32 = 8;
/// Pause before a row is tried again that could not be removed.
const AFTER_TROUBLE_MS: u64 = 1_000;
/// The first pause before an agent is asked again that still asks what was answered.
const FIRST_LOOK: Duration = Duration::from_millis(100);
/// How long an agent may take to accept a message that nobody waits for any more, so that it can be told.
const ACCEPTED_LATE: Duration = Duration::from_secs(30);
/// The fence of an effect that is created with its lease. A larger one was leased before.
const FIRST_LEASE: Fence = Fence(1);
/// The code of a call that its agent has rejected, which is its reason as well: the contract has both.
const REJECTED_BY_REMOTE: &str = "rejected_by_remote";
/// A call is looked at up to this part of its wait later than it asked for.
const LOOKS_APART: u64 = 50;
/// Maximum size of a handle, as JSON.
const MAX_HANDLE: usize = 64 * 1024;

/// The body of a row of effects.
enum Stored {
    Effect(Box<StoredEffect>),
    Delivery(Box<CallDelivery>),
    Recall(Box<Recall>),
}

/// Whether a change of rows was written.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Changed {
    /// It was, or the run is being removed with its rows.
    Yes,
    /// A lease that it relies on is lost.
    Fenced,
    /// The store fails.
    No,
}

/// How recording what an attempt came to went.
enum Recorded {
    End(End),
    /// Nobody waits for this attempt any more.
    Unwanted,
    /// It could not be recorded.
    Later,
}

impl Engine {
    /// Begins an attempt at an effect that was created leased to this process.
    pub(crate) fn begin_effect(&self, run: RunKey, key: WorkKey, effect: StoredEffect) {
        let row = Leased {
            run,
            key,
            body: Vec::new(),
            since: self.lease_time(),
            fence: FIRST_LEASE,
            deaths: 0,
        };
        self.begin_work(row, Some(effect));
    }

    /// How many attempts can begin at once for a tenant.
    pub(crate) fn room_for_effects(&self, tenant: &TenantId) -> usize {
        match self.shared.leaving.is_cancelled() {
            true => 0,
            false => self.shared.effects.room(tenant),
        }
    }

    /// Makes an attempt at an effect as it is stored.
    pub(crate) async fn attempt_stored(&self, lease: &mut Lease, body: Vec<u8>) -> End {
        let name = &lease.key.name;
        let stored = if is_recall(name) {
            serde_json::from_slice(&body).map(Stored::Recall)
        } else if is_call_delivery(name) {
            serde_json::from_slice(&body).map(Stored::Delivery)
        } else {
            serde_json::from_slice(&body).map(Stored::Effect)
        };
        drop(body);
        match stored {
            Ok(Stored::Effect(effect)) => self.attempt(lease, *effect).await,
            // Boxed, so that these do not make the future of every attempt larger.
            Ok(Stored::Delivery(delivery)) => Box::pin(self.deliver_to_peer(lease, *delivery)).await,
            Ok(Stored::Recall(recall)) => Box::pin(self.recall(lease, *recall)).await,
            Err(error) => {
                let why = CommandError::Internal(Cause::about(
                    format!("effect {}: {error}", lease.key.name),
                    error,
                ));
                let is_unread = async { Err::<(), _>(why) };
                drop(self.attend(&lease.run, Box::pin(is_unread)).await);
                // The effect can be leased again once its run's backoff is over.
                lease.give_back()
            }
        }
    }

    /// Gives back the row of an attempt that has not begun. Its next holder has to know: a call that an earlier holder
    /// may have made is a repeat, which not every call allows.
    pub(crate) async fn give_back_unbegun(
        &self,
        lease: &Lease,
        effect: Option<StoredEffect>,
        body: &[u8],
    ) -> End {
        let is_other = is_recall(&lease.key.name) || is_call_delivery(&lease.key.name);
        let effect = effect.or_else(|| match is_other {
            true => None,
            false => serde_json::from_slice(body).ok(),
        });
        match effect.filter(|effect| lease.fence <= effect.first_lease()) {
            Some(effect) => self.put_off_unbegun(lease, effect, Some(lease.since)).await,
            None => lease.give_back(),
        }
    }

    /// Parks an attempt that has not begun.
    async fn put_off_unbegun(&self, lease: &Lease, effect: StoredEffect, due: Option<Timestamp>) -> End {
        let again = StoredEffect {
            not_begun: Some(lease.fence.0),
            ..effect
        };
        let body = serde_json::to_vec(&again).expect("a request has string keys");
        self.put_off(lease, body, due).await
    }

    /// Makes an attempt under a lease, and records its outcome.
    pub(crate) async fn attempt(&self, lease: &mut Lease, effect: StoredEffect) -> End {
        let counters = &self.shared.counters;
        Counters::add(&counters.effects_started, 1);
        Counters::add(&counters.effects_active, 1);
        let keep = Keep::default();
        let performing = std::pin::pin!(caught(self.perform(Attempt {
            run: lease.run.clone(),
            step: effect.step.clone(),
            attempt: effect.attempt,
            number: effect.number,
            is_repeat: effect.attempt > 0 || lease.fence > effect.first_lease(),
            is_interrupted: lease.fence > effect.first_lease(),
            idempotency_key: effect.idempotency_key.clone(),
            trace: effect.trace.clone(),
            request: effect.request.clone(),
            handle: effect.handle.clone(),
            cursor: effect.cursor.clone(),
            wake: self.waker(&lease.run, &lease.key),
            progress: self.progress(lease, &effect),
            blobs: self.blobs(&lease.run, &keep),
            keep: keep.clone(),
        })));
        let mut performing = performing;
        let mut report = lease.hold(performing.as_mut()).await;
        // The run may have been cancelled. An agent that gets the message all the same has to be told.
        let tells_late = effect.handle.is_none() && self.shared.executor.may_go_on(effect.request.provider());
        if report.is_none() && tells_late && !self.shared.stop.is_cancelled() {
            self.follow_recall(lease, &effect).await;
            report = match (effect.request.is_followed(), is_recall(&lease.key.name)) {
                (false, _) => None,
                // Nobody else recalls it meanwhile.
                (true, true) => {
                    let late = lease.hold(performing);
                    tokio::time::timeout(ACCEPTED_LATE, late).await.ok().flatten()
                }
                (true, false) => tokio::time::timeout(ACCEPTED_LATE, performing).await.ok(),
            };
        }
        let end = match report {
            Some(report) => {
                let broken_off = |panicked| self.broken_off(&lease.run, &effect, &panicked);
                let report = report.unwrap_or_else(|panicked| broken_off(panicked).into());
                self.report(lease, effect, report, Vec::new()).await
            }
            None if is_recall(&lease.key.name) && !effect.request.is_followed() => self.end_row(lease).await,
            None => lease.give_back(),
        };
        counters.effects_active.fetch_sub(1, Ordering::Relaxed);
        keep.let_go();
        end
    }

    /// Records what an attempt came to and what its peer has made before, or parks it.
    async fn report(
        &self,
        lease: &mut Lease,
        effect: StoredEffect,
        report: Report,
        produced: Vec<Produced>,
    ) -> End {
        let due_after = |after: Option<Duration>| {
            let millis = after.map(|after| u64::try_from(after.as_millis()).unwrap_or(u64::MAX));
            millis.map(|millis| aligned(self.lease_time(), millis))
        };
        let StoredEffect { step, attempt, .. } = &effect;
        let (step, attempt) = (step.clone(), *attempt);
        let with = |produced: Vec<Produced>, then: Command| match produced.is_empty() {
            true => then,
            false => Command::Produced {
                step: effect.step.clone(),
                attempt: effect.attempt,
                produced,
                then: Box::new(then),
            },
        };
        if let Report::Interrupted {
            handle,
            question,
            check_after,
        } = &report
            && effect.handle.as_ref() == Some(handle)
            && produced.is_empty()
            && let Some(earliest) = self
                .known_question(&lease.run, &step, attempt, &question.key)
                .await
        {
            let check_after = check_after.iter().copied().chain(earliest).min();
            return End::Park(due_after(check_after));
        }
        match report {
            Report::Produced {
                produced: more,
                cursor,
                then,
            } => {
                let effect = StoredEffect {
                    cursor: Some(cursor).filter(|cursor| value_size(cursor) <= MAX_HANDLE),
                    ..effect
                };
                lease.grow(more.iter().map(Produced::size).sum());
                let produced = produced.into_iter().chain(more).collect();
                Box::pin(self.report(lease, effect, *then, produced)).await
            }
            Report::Unchanged { check_after } => match effect.handle.clone() {
                Some(handle) if !produced.is_empty() => {
                    let parked = Report::Accepted { handle, check_after };
                    Box::pin(self.report(lease, effect, parked, produced)).await
                }
                Some(_) => End::Park(due_after(check_after)),
                // The executor had no room. Nothing was sent, which the next holder of the row has to know.
                None if attempt == 0
                    && lease.fence <= effect.first_lease()
                    && self.shared.executor.may_go_on(effect.request.provider()) =>
                {
                    self.put_off_unbegun(lease, effect, due_after(check_after)).await
                }
                None => End::Park(due_after(check_after)),
            },
            // Each is an event of the run, and part of its state.
            Report::Accepted { handle, .. } | Report::Interrupted { handle, .. }
                if value_size(&handle) > MAX_HANDLE =>
            {
                let failed = Outcome::Failed {
                    code: "response_too_large".to_owned(),
                    message: "the peer's name for its task is too large".to_owned(),
                    retryable: false,
                    retry_after: None,
                    may_go_on: false,
                    is_timeout: false,
                };
                Box::pin(self.report(lease, effect, failed.into(), produced)).await
            }
            Report::Accepted { handle, check_after }
                if effect.handle.as_ref() == Some(&handle) && produced.is_empty() =>
            {
                End::Park(due_after(check_after))
            }
            accepted @ (Report::Accepted { .. } | Report::Interrupted { .. }) => {
                let (command, handle) = match accepted {
                    Report::Interrupted {
                        handle,
                        question,
                        check_after,
                    } => {
                        let command = Command::Interrupted {
                            step,
                            attempt,
                            handle: handle.clone(),
                            question,
                            check_at: due_after(check_after),
                        };
                        (command, handle)
                    }
                    Report::Accepted { handle, check_after } => {
                        let command = Command::Accepted {
                            step,
                            attempt,
                            handle: handle.clone(),
                            check_at: due_after(check_after),
                        };
                        (command, handle)
                    }
                    Report::Unchanged { .. } | Report::Ended(_) | Report::Produced { .. } => {
                        return lease.give_back();
                    }
                };
                let command = with(produced, command);
                let accepted = StoredEffect {
                    handle: Some(handle),
                    ..effect
                };
                let body = serde_json::to_vec(&accepted).expect("a request has string keys");
                let won = Won {
                    parked: Some(body),
                    ..lease.won(&accepted)
                };
                match self.record(&lease.run, command, won).await {
                    Recorded::End(end) => end,
                    Recorded::Later => lease.give_back(),
                    // Another process may have the attempt now, with the same task.
                    Recorded::Unwanted if self.is_awaited(&lease.run, &accepted.step, attempt).await => {
                        End::Over
                    }
                    // Cancelled meanwhile, when there was no handle to tell the peer of.
                    Recorded::Unwanted => self.cancel_late(lease, accepted).await,
                }
            }
            Report::Ended(outcome) => {
                lease.grow(outcome.n_bytes());
                // An earlier holder of the row may have reached a peer that this one did not.
                let may_go_on = matches!(
                    outcome,
                    Outcome::Failed { retryable, may_go_on, .. }
                        if may_go_on || retryable && lease.fence > effect.first_lease()
                );
                let took = taken(&effect.request, &outcome);
                if let Some(took) = &took {
                    self.shared.counters.took(took);
                }
                let command = with(produced, ended(step, attempt, outcome));
                let won = Won {
                    may_go_on,
                    took,
                    ..lease.won(&effect)
                };
                drop(effect);
                match self.record(&lease.run, command, won).await {
                    Recorded::End(end) => end,
                    Recorded::Later => lease.give_back(),
                    Recorded::Unwanted if is_recall(&lease.key.name) => match may_go_on {
                        true => lease.give_back(),
                        false => self.end_row(lease).await,
                    },
                    Recorded::Unwanted => {
                        let (run, effect) = (&lease.run, &lease.key.name);
                        Counters::add(&self.shared.counters.effects_dropped, 1);
                        // As often as a tenant cancels runs; the counter says it, too.
                        tracing::debug!(%run, effect, "outcome of a lost attempt dropped");
                        End::Over
                    }
                }
            }
        }
    }

    /// Whether the run knows this question of a call's peer, which then need not be recorded: it is open, or it was
    /// answered and the peer may still go on. In the second case, returns after how long the peer is asked next.
    /// Returns `None` if the peer has ignored the answer.
    async fn known_question(
        &self,
        run: &RunKey,
        step: &StepId,
        attempt: u32,
        key: &str,
    ) -> Option<Option<Duration>> {
        let Ok(Some(view)) = self.view(run).await else {
            return Some(None);
        };
        let call = view.run.call(&view.plan, step, attempt)?;
        let Some(answered_at) = call.answered_at(key) else {
            return call.asks(key).then_some(None);
        };
        let now = self.now();
        if call.has_answer(key, now) || self.is_answering(run, step, attempt).await.unwrap_or(true) {
            let waited = Duration::from_millis(now.millis_since(answered_at));
            return Some(Some((waited / 4).max(FIRST_LOOK)));
        }
        None
    }

    /// Whether a run still waits for the call of an attempt, or cannot be read.
    pub(crate) async fn is_awaited(&self, run: &RunKey, step: &StepId, attempt: u32) -> bool {
        match self.view(run).await {
            Ok(Some(view)) => view.run.awaits_call(&view.plan, step, attempt),
            Ok(None) => false,
            Err(_) => true,
        }
    }

    /// Removes a row that nothing waits for.
    pub(crate) async fn end_row(&self, lease: &Lease) -> End {
        let ended = Ended {
            key: lease.key.clone(),
            fence: Some(lease.fence),
        };
        match self
            .change_rows(&lease.run, |batch| batch.work_ended.push(ended.clone()))
            .await
        {
            true => End::Over,
            // Telling the peer again does no harm.
            false => End::Park(Some(self.lease_time().plus_millis(AFTER_TROUBLE_MS))),
        }
    }

    /// Changes work rows of a run without an event, unless a lease is lost. Returns `false` if the store fails.
    pub(crate) async fn change_rows(&self, run: &RunKey, change: impl Fn(&mut Batch)) -> bool {
        match self.change(run, change).await {
            Changed::Yes | Changed::Fenced => true,
            Changed::No => false,
        }
    }

    /// Changes work rows of a run without an event.
    pub(crate) async fn change(&self, run: &RunKey, change: impl Fn(&mut Batch)) -> Changed {
        for _ in 0..APPEND_TRIES {
            let (summary, head) = match self.shared.store.summary(run).await {
                Ok(Some(found)) => found,
                // The run is being removed, and its rows with it.
                Ok(None) => return Changed::Yes,
                Err(_) => return Changed::No,
            };
            let mut batch = Batch::new(run.clone(), Guard::At(head), Vec::new(), summary);
            change(&mut batch);
            match self.shared.store.append(batch).await {
                Ok(()) => return Changed::Yes,
                Err(AppendError::Fenced(_)) => return Changed::Fenced,
                Err(AppendError::Conflict { .. } | AppendError::Unknown(_)) => {}
                Err(_) => return Changed::No,
            }
        }
        Changed::No
    }

    /// The outcome of an attempt whose executor panicked: a failure, so that the node's retry policy limits
    /// further attempts. A call that its peer has accepted is given up instead, and one that must not be made twice has
    /// an unknown outcome.
    fn broken_off(&self, run: &RunKey, effect: &StoredEffect, Panicked(text): &Panicked) -> Outcome {
        Counters::add(&self.shared.counters.panics, 1);
        tracing::error!(%run, panic = text, "attempt panicked");
        let is_repeatable = effect.request.may_be_repeated();
        let code = match is_repeatable {
            true => "internal_error",
            false => "outcome_unknown",
        };
        let (code, message) = (
            code.to_owned(),
            "the attempt broke off by a fault of this host".to_owned(),
        );
        match &effect.handle {
            Some(handle) => Outcome::GivenUp {
                handle: Some(handle.clone()),
                code,
                message,
            },
            None => Outcome::Failed {
                code,
                message,
                retryable: is_repeatable,
                retry_after: None,
                may_go_on: true,
                is_timeout: false,
            },
        }
    }

    async fn record(&self, run: &RunKey, command: Command, won: Won) -> Recorded {
        let mut pause = Duration::from_millis(50);
        for n_tries in 1..=APPEND_TRIES {
            let fenced = Some(won.clone());
            let recording = Box::pin(self.command_fenced(run, None, &command, SideRows::default(), fenced));
            match self.attend(run, recording).await {
                Ok(_) => return Recorded::End(End::Over),
                Err(CommandError::Refused(Refusal::Stale)) => return Recorded::Unwanted,
                Err(error @ (CommandError::Unavailable(_) | CommandError::Busy { .. })) => {
                    if n_tries == APPEND_TRIES {
                        work_failed(
                            "outcome not recorded, the effect will be attempted again",
                            run,
                            &error,
                        );
                    }
                    tokio::time::sleep(pause).await;
                    pause *= 2;
                }
                Err(error) => {
                    work_failed("outcome not recorded", run, &error);
                    return Recorded::End(End::Over);
                }
            }
        }
        Recorded::Later
    }

    /// Records what the peer of a call makes while its attempt goes on.
    fn progress(&self, lease: &Lease, effect: &StoredEffect) -> Progress {
        let (shared, run) = (Arc::downgrade(&self.shared), lease.run.clone());
        let (step, attempt) = (effect.step.clone(), effect.attempt);
        let won = Won {
            goes_on: true,
            ..lease.won(effect)
        };
        Progress::new(move |produced| {
            let (shared, run, won) = (shared.clone(), run.clone(), won.clone());
            let command = Command::Produced {
                step: step.clone(),
                attempt,
                produced,
                then: Box::new(Command::Progressed {
                    step: step.clone(),
                    attempt,
                    details: Value::Null,
                    then: None,
                }),
            };
            Box::pin(async move {
                let engine = Self {
                    shared: shared.upgrade().ok_or(Lost)?,
                };
                match engine.record(&run, command, won).await {
                    Recorded::End(_) => Ok(()),
                    Recorded::Unwanted | Recorded::Later => Err(Lost),
                }
            })
        })
    }
}

impl Lease {
    /// What an append under this lease names, for an attempt at a call.
    fn won(&self, effect: &StoredEffect) -> Won {
        Won {
            key: self.key.clone(),
            fence: self.fence,
            parked: None,
            may_go_on: false,
            call: (effect.step.clone(), effect.number),
            goes_on: false,
            took: None,
        }
    }
}

impl Engine {
    fn waker(&self, run: &RunKey, key: &WorkKey) -> Wake {
        let (shared, run, key) = (Arc::downgrade(&self.shared), run.clone(), key.clone());
        Wake::new(move || {
            let (shared, run, key) = (shared.clone(), run.clone(), key.clone());
            Box::pin(async move {
                let Some(shared) = shared.upgrade() else {
                    return false;
                };
                let engine = Self { shared };
                // A store that fails says nothing of the call.
                engine.wake_row(&run, &key, Duration::ZERO).await.unwrap_or(true)
            })
        })
    }

    /// Makes the executor look at an accepted call now, as when its peer says that something has changed. What
    /// the peer said is not believed: it is asked. Returns `false` if the call is not parked.
    pub async fn wake_effect(&self, run: &RunKey, step: &StepId, attempt: u32) -> Result<bool, CommandError> {
        let first = (attempt, 0);
        self.wake_effect_after(run, step, first, Duration::ZERO).await
    }

    /// Like [`Self::wake_effect`], but has the executor look a little later, so that it looks once for many wakes.
    /// A call is named by its attempt and by how many calls the step had made before.
    pub async fn wake_effect_after(
        &self,
        run: &RunKey,
        step: &StepId,
        (attempt, number): (u32, u32),
        after: Duration,
    ) -> Result<bool, CommandError> {
        self.wake_row(run, &commit::effect_key(step, attempt, number), after)
            .await
    }

    pub(crate) async fn wake_row(
        &self,
        run: &RunKey,
        key: &WorkKey,
        after: Duration,
    ) -> Result<bool, CommandError> {
        let after = u64::try_from(after.as_millis()).unwrap_or(u64::MAX);
        let at = self.lease_time().plus_millis(after);
        let woken = self.shared.store.wake(run, key, at).await;
        let woken = woken.map_err(|error| CommandError::Unavailable(Cause::of(error)))?;
        if woken {
            self.shared.effects.hint(at);
        }
        Ok(woken)
    }
}

/// When a call is looked at that waits for so long: at most two percent later, at a time that calls which wait about
/// as long have in common. Many calls that wait for the same peer then take few leases and few commits.
fn aligned(now: Timestamp, wait_ms: u64) -> Timestamp {
    let due = now.plus_millis(wait_ms);
    let shared = (wait_ms / LOOKS_APART).max(1);
    // A power of two, so that waits of different lengths have times in common.
    let grid = 1 << shared.ilog2();
    let past = due.millis().rem_euclid(grid);
    match u64::try_from(grid - past) {
        Ok(left) if past > 0 => due.plus_millis(left),
        Ok(_) | Err(_) => due,
    }
}

/// What a model took for an answer.
fn taken(request: &Request, outcome: &Outcome) -> Option<ModelUsage> {
    match (request, outcome) {
        (Request::Model(_), Outcome::Done(reply)) => serde_json::from_value(reply.get("usage")?.clone()).ok(),
        _ => None,
    }
}

/// The command that records how an attempt ended.
pub(crate) fn ended(step: StepId, attempt: u32, outcome: Outcome) -> Command {
    let mut retry_after_ms = None;
    let outcome = match outcome {
        Outcome::Done(Value::Object(outputs)) => Ok(outputs),
        Outcome::Done(other) => {
            let mut outputs = Object::new();
            outputs.insert("result".to_owned(), json!(other));
            Ok(outputs)
        }
        Outcome::Failed {
            code,
            message,
            retryable,
            retry_after,
            may_go_on: _,
            is_timeout,
        } => {
            retry_after_ms = retry_after.map(|time| u64::try_from(time.as_millis()).unwrap_or(u64::MAX));
            let reason = match is_timeout {
                true => Some(TIMED_OUT),
                false => (code == REJECTED_BY_REMOTE).then_some(REJECTED_BY_REMOTE),
            };
            Err(Failure {
                code,
                message,
                retryable,
                reason: reason.map(str::to_owned),
                worker: None,
            })
        }
        Outcome::GivenUp {
            handle,
            code,
            message,
        } => {
            return Command::EffectGivenUp {
                step,
                attempt,
                handle,
                failure: Failure::new(&code, message),
            };
        }
        Outcome::Cancelled { reason } => {
            return Command::EffectCancelled {
                step,
                attempt,
                reason,
            };
        }
    };
    Command::Effect {
        step,
        attempt,
        outcome,
        retry_after_ms,
    }
}

#[cfg(test)]
mod tests {
    use wopr_core::NodeId;

    use super::*;

    #[test]
    fn failure_of_a_rejected_call_says_so_in_its_reason() {
        let step = StepId {
            node: NodeId::parse("ask").expect("valid"),
            ordinal: 0,
        };
        for (code, is_timeout, reason) in [
            ("rejected_by_remote", false, Some("rejected_by_remote")),
            ("external_call_failed", true, Some(TIMED_OUT)),
            ("remote_failed", false, None),
        ] {
            let failed = Outcome::Failed {
                code: code.to_owned(),
                message: String::new(),
                retryable: false,
                retry_after: None,
                may_go_on: false,
                is_timeout,
            };
            match ended(step.clone(), 0, failed) {
                Command::Effect {
                    outcome: Err(failure),
                    ..
                } => {
                    assert_eq!(failure.reason.as_deref(), reason, "{code}");
                }
                other => panic!("{other:?}"),
            }
        }
    }

    #[test]
    fn calls_that_wait_equally_long_are_looked_at_together() {
        let base = 1_800_000_000_000;
        let due =
            |now: i64, wait_ms: u64| aligned(Timestamp::from_millis(base + now), wait_ms).millis() - base;
        // Short waits are exact.
        for wait_ms in [0, 1, 50, 99] {
            assert_eq!(due(7, wait_ms), 7 + i64::try_from(wait_ms).unwrap());
        }
        let mut times: Vec<_> = (0..1_000).map(|now| due(now, 30_000)).collect();
        for (now, due) in (0..).zip(&times) {
            assert!((30_000..=30_600).contains(&(due - now)), "{now}: {due}");
        }
        times.dedup();
        assert!(times.len() <= 3, "{times:?}");
        assert_eq!(aligned(Timestamp::from_millis(5), u64::MAX).millis(), i64::MAX);
    }
}
