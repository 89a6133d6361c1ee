//! Performs effects: makes attempts under a lease, and records their outcomes.
//!
//! An attempt begins only after the batch that requested it is durable. Its outcome is appended under its
//! lease; if the lease was lost or the execution is over, the outcome is dropped. If a process dies, its rows
//! remain, and another epoch attempts them again with the same idempotency key.

use std::{sync::Arc, sync::atomic::Ordering, time::Duration};

use serde_json::{Value, json};
use wopr_core::{Command, Failure, Object, Produced, Refusal, RunKey, StepId, value_size};
use wopr_store::{AppendError, Batch, Cause, Ended, Fence, Guard, Leased, WorkKey};

use crate::{
    Answered, Answering, Attempt, Cancellation, CommandError, Engine, Keep, Outcome, Report, Request,
    SideRows, Wake,
    commit::{self, ANSWER, CANCEL, StoredAnswer, StoredCancel, StoredEffect, Won},
    panics::{Panicked, caught},
    pool::{End, Lease},
    stats::Counters,
};

/// Tries to append an outcome while the store is unavailable, before the attempt is left to the next lease.
const APPEND_TRIES: u32 = 8;
/// How long a peer is told of a cancelled call.
const CANCEL_FOR_MS: u64 = 24 * 3_600 * 1_000;
/// The first pause before a peer is told again, and the longest.
const CANCEL_FIRST_MS: u64 = 1_000;
const CANCEL_LONGEST_MS: u64 = 3_600 * 1_000;
/// How long an agent may take to accept a message that nobody waits for any more, so that it can be told.
const ACCEPTED_LATE: Duration = Duration::from_secs(30);
/// Maximum size of a handle, as JSON.
const MAX_HANDLE: usize = 64 * 1024;

/// The body of a row of effects.
enum Stored {
    Effect(StoredEffect),
    Cancel(StoredCancel),
    Answer(StoredAnswer),
}

/// How recording what an attempt came to went.
enum Recorded {
    End(End),
    /// Nobody waits for this attempt any more.
    Unwanted,
}

impl Engine {
    /// Begins an attempt at an effect that was created leased to this process.
    pub(crate) fn begin_effect(&self, run: RunKey, key: WorkKey, effect: StoredEffect) {
        let row = Leased {
            run,
            key,
            body: Vec::new(),
            since: self.lease_time(),
            fence: Fence(1),
            deaths: 0,
        };
        self.begin_work(row, Some(effect));
    }

    /// Makes an attempt at an effect as it is stored.
    pub(crate) async fn attempt_stored(&self, lease: &mut Lease, body: Vec<u8>) -> End {
        let name = &lease.key.name;
        let done = if name.starts_with(CANCEL) {
            serde_json::from_slice(&body).map(Stored::Cancel)
        } else if name.starts_with(ANSWER) {
            serde_json::from_slice(&body).map(Stored::Answer)
        } else {
            serde_json::from_slice(&body).map(Stored::Effect)
        };
        drop(body);
        match done {
            Ok(Stored::Effect(effect)) => self.attempt(lease, effect).await,
            Ok(Stored::Cancel(call)) => self.tell_peer(lease, call).await,
            Ok(Stored::Answer(answer)) => self.answer_peer(lease, answer).await,
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

    /// Makes an attempt under a lease, and records its outcome.
    pub(crate) async fn attempt(&self, lease: &mut Lease, effect: StoredEffect) -> End {
        let counters = &self.shared.counters;
        Counters::add(&counters.effects_started, 1);
        Counters::add(&counters.effects_active, 1);
        let keep = Keep::default();
        let performing = std::pin::pin!(caught(self.shared.executor.run(Attempt {
            run: lease.run.clone(),
            idempotency_key: effect.idempotency_key.clone(),
            traceparent: effect.traceparent.clone(),
            request: effect.request.clone(),
            handle: effect.handle.clone(),
            cursor: effect.cursor.clone(),
            wake: self.waker(&lease.run, &lease.key),
            keep: keep.clone(),
        })));
        let mut performing = performing;
        let mut report = lease.hold(performing.as_mut()).await;
        // The run may have been cancelled. An agent that gets the message all the same has to be told.
        let tells_late = effect.handle.is_none() && matches!(effect.request, Request::Agent(_));
        if report.is_none() && tells_late && !self.shared.stop.is_cancelled() {
            report = tokio::time::timeout(ACCEPTED_LATE, performing).await.ok();
        }
        let end = match report {
            Some(report) => {
                let broken_off = |panicked| self.broken_off(&lease.run, &panicked).into();
                let report = report.unwrap_or_else(broken_off);
                self.report(lease, effect, report, Vec::new()).await
            }
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
            millis.map(|millis| self.lease_time().plus_millis(millis))
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
                Some(_) | None => End::Park(due_after(check_after)),
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
                };
                Box::pin(self.report(lease, effect, failed.into(), produced)).await
            }
            Report::Accepted { handle, check_after }
            | Report::Interrupted {
                handle, check_after, ..
            } if effect.handle.as_ref() == Some(&handle) && produced.is_empty() => {
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
                match self.record(lease, command, Some(body)).await {
                    Recorded::End(end) => end,
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
                let command = with(produced, ended(step, attempt, outcome));
                drop(effect);
                match self.record(lease, command, None).await {
                    Recorded::End(end) => end,
                    Recorded::Unwanted => {
                        let (run, effect) = (&lease.run, &lease.key.name);
                        Counters::add(&self.shared.counters.effects_dropped, 1);
                        tracing::info!(%run, effect, "outcome of a lost attempt dropped");
                        End::Over
                    }
                }
            }
        }
    }

    /// Tells the peer of a cancelled call, again and again for a day.
    async fn tell_peer(&self, lease: &mut Lease, call: StoredCancel) -> End {
        let StoredCancel {
            provider,
            idempotency_key,
            handle,
            since,
        } = call;
        let telling = caught(self.shared.executor.cancel(Cancellation {
            run: lease.run.clone(),
            provider,
            idempotency_key,
            handle,
        }));
        let Some(told) = lease.hold(telling).await else {
            return lease.give_back();
        };
        let error = match told {
            Ok(Ok(())) => return self.end_row(lease).await,
            Ok(Err(error)) => error.to_string(),
            Err(Panicked(text)) => text,
        };
        let now = self.lease_time();
        let waited = now.millis_since(since);
        let (run, call) = (&lease.run, &lease.key.name);
        if waited >= CANCEL_FOR_MS {
            tracing::warn!(%run, call, error, "a peer was not told of a cancelled call; given up");
            return self.end_row(lease).await;
        }
        tracing::info!(%run, call, error, "a peer could not be told of a cancelled call yet");
        // As long again as it has been tried, so the intervals double.
        let after = waited.clamp(CANCEL_FIRST_MS, CANCEL_LONGEST_MS);
        End::Park(Some(now.plus_millis(after)))
    }

    /// Tells the peer of a call the answer to what it asked, again and again for a day, and looks at the call.
    async fn answer_peer(&self, lease: &mut Lease, answer: StoredAnswer) -> End {
        let StoredAnswer {
            step,
            attempt,
            provider,
            idempotency_key,
            handle,
            interrupt,
            value,
            since,
        } = answer;
        if !self.is_awaited(&lease.run, &step, attempt).await {
            return self.end_row(lease).await;
        }
        let telling = caught(self.shared.executor.answer(Answering {
            run: lease.run.clone(),
            provider,
            idempotency_key,
            handle,
            interrupt,
            value,
        }));
        let Some(told) = lease.hold(telling).await else {
            return lease.give_back();
        };
        let now = self.lease_time();
        let waited = now.millis_since(since);
        let failed = |code: &str, message: String| Outcome::Failed {
            code: code.to_owned(),
            message,
            retryable: false,
            retry_after: None,
        };
        let outcome = match told {
            Ok(Ok(Answered::Taken)) => {
                if let Err(error) = self.wake_effect(&lease.run, &step, attempt).await {
                    let (run, call) = (&lease.run, &lease.key.name);
                    // It is looked at when it is due.
                    tracing::info!(%run, call, %error, "a call is not looked at after its answer yet");
                }
                return self.end_row(lease).await;
            }
            Ok(Ok(Answered::Ended(outcome))) => outcome,
            Ok(Err(error)) if waited < CANCEL_FOR_MS => {
                let (run, call) = (&lease.run, &lease.key.name);
                tracing::info!(%run, call, %error, "a peer could not be answered yet");
                let after = waited.clamp(CANCEL_FIRST_MS, CANCEL_LONGEST_MS);
                return End::Park(Some(now.plus_millis(after)));
            }
            Ok(Err(error)) => failed("external_call_failed", error.to_string()),
            Err(Panicked(text)) => {
                let (run, call) = (&lease.run, &lease.key.name);
                tracing::error!(%run, call, panic = text, "answering a peer panicked");
                failed(
                    "internal_error",
                    "the answer broke off by a fault of this host".to_owned(),
                )
            }
        };
        let command = ended(step, attempt, outcome);
        let recording = Box::pin(self.command(&lease.run, command, SideRows::default()));
        match self.attend(&lease.run, recording).await {
            Ok(_) | Err(CommandError::Refused(_) | CommandError::NotFound) => self.end_row(lease).await,
            Err(_) => End::Park(Some(now.plus_millis(CANCEL_FIRST_MS))),
        }
    }

    /// Whether a run still waits for the call of an attempt, or cannot be read.
    async fn is_awaited(&self, run: &RunKey, step: &StepId, attempt: u32) -> bool {
        match self.view(run).await {
            Ok(Some(view)) => view.run.awaits_call(&view.plan, step, attempt),
            Ok(None) => false,
            Err(_) => true,
        }
    }

    /// Stores a row that tells the peer to stop a call, because its run no longer waits for it.
    async fn cancel_late(&self, lease: &Lease, accepted: StoredEffect) -> End {
        let now = self.lease_time();
        let Some(row) = commit::late_cancel_row(now, accepted) else {
            return End::Over;
        };
        if self
            .change_rows(&lease.run, |batch| batch.work_set.push(row.clone()))
            .await
        {
            self.shared.effects.hint(now);
        } else {
            let (run, effect) = (&lease.run, &lease.key.name);
            tracing::warn!(%run, effect, "the peer of a cancelled call will not be told");
        }
        End::Over
    }

    /// Removes a row that nothing waits for.
    async fn end_row(&self, lease: &Lease) -> End {
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
            false => End::Park(Some(self.lease_time().plus_millis(CANCEL_FIRST_MS))),
        }
    }

    /// Changes work rows of a run without an event. Returns `false` if the store fails.
    async fn change_rows(&self, run: &RunKey, change: impl Fn(&mut Batch)) -> bool {
        for _ in 0..APPEND_TRIES {
            let (summary, head) = match self.shared.store.summary(run).await {
                Ok(Some(found)) => found,
                // The run is being removed, and its rows with it.
                Ok(None) => return true,
                Err(_) => return false,
            };
            let mut batch = Batch::new(run.clone(), Guard::At(head), Vec::new(), summary);
            change(&mut batch);
            match self.shared.store.append(batch).await {
                Ok(()) | Err(AppendError::Fenced(_)) => return true,
                Err(AppendError::Conflict { .. } | AppendError::Unknown(_)) => {}
                Err(_) => return false,
            }
        }
        false
    }

    /// The outcome of an attempt whose executor panicked: a failure, so that the node's retry policy limits
    /// further attempts.
    fn broken_off(&self, run: &RunKey, Panicked(text): &Panicked) -> Outcome {
        Counters::add(&self.shared.counters.panics, 1);
        tracing::error!(%run, panic = text, "attempt panicked");
        Outcome::Failed {
            code: "internal_error".to_owned(),
            message: "the attempt broke off by a fault of this host".to_owned(),
            retryable: true,
            retry_after: None,
        }
    }

    async fn record(&self, lease: &Lease, command: Command, parked: Option<Vec<u8>>) -> Recorded {
        let Lease { run, key, fence, .. } = lease;
        let mut pause = Duration::from_millis(50);
        for _ in 0..APPEND_TRIES {
            let fenced = Some(Won {
                key: key.clone(),
                fence: *fence,
                parked: parked.clone(),
            });
            let recording = Box::pin(self.command_fenced(run, None, &command, SideRows::default(), fenced));
            match self.attend(run, recording).await {
                Ok(_) => return Recorded::End(End::Over),
                Err(CommandError::Refused(Refusal::Stale)) => return Recorded::Unwanted,
                Err(CommandError::Unavailable(_) | CommandError::Busy { .. }) => {
                    tokio::time::sleep(pause).await;
                    pause *= 2;
                }
                Err(error) => {
                    tracing::error!(%run, effect = key.name, %error, "outcome not recorded");
                    return Recorded::End(End::Over);
                }
            }
        }
        tracing::warn!(%run, effect = key.name, "outcome not recorded, the effect will be attempted again");
        Recorded::End(lease.give_back())
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
                engine.wake_row(&run, &key).await.unwrap_or(true)
            })
        })
    }

    /// Makes the executor look at an accepted call now, as when its peer says that something has changed. What
    /// the peer said is not believed: it is asked. Returns `false` if the call is not parked.
    pub async fn wake_effect(&self, run: &RunKey, step: &StepId, attempt: u32) -> Result<bool, CommandError> {
        self.wake_row(run, &commit::effect_key(step, attempt)).await
    }

    async fn wake_row(&self, run: &RunKey, key: &WorkKey) -> Result<bool, CommandError> {
        let now = self.lease_time();
        let woken = self.shared.store.wake(run, key, now).await;
        let woken = woken.map_err(|error| CommandError::Unavailable(Cause::of(error)))?;
        if woken {
            self.shared.effects.hint(now);
        }
        Ok(woken)
    }
}

/// The command that records how an attempt ended.
fn ended(step: StepId, attempt: u32, outcome: Outcome) -> Command {
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
        } => {
            retry_after_ms = retry_after.map(|time| u64::try_from(time.as_millis()).unwrap_or(u64::MAX));
            Err(Failure {
                code,
                message,
                retryable,
                reason: None,
            })
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
