//! Performs effects: makes attempts under a lease, and records their outcomes.
//!
//! An attempt begins only after the batch that requested it is durable. Its outcome is appended under its
//! lease; if the lease was lost or the execution is over, the outcome is dropped. If a process dies, its rows
//! remain, and another epoch attempts them again with the same idempotency key.

use std::{sync::atomic::Ordering, time::Duration};

use serde_json::{Value, json};
use wopr_core::{Command, Failure, Object, Refusal, RunKey, StepId, value_size};
use wopr_store::{AppendError, Batch, Ended, Fence, Guard, Leased, WorkKey};

use crate::{
    Attempt, Cancellation, CommandError, Engine, Keep, Outcome, Report, SideRows,
    commit::{self, CANCEL, StoredCancel, StoredEffect, Won},
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
/// Maximum size of a handle, as JSON.
const MAX_HANDLE: usize = 64 * 1024;

/// The body of a row of effects.
enum Stored {
    Effect(StoredEffect),
    Cancel(StoredCancel),
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
        let is_cancellation = lease.key.name.starts_with(CANCEL);
        let done = match is_cancellation {
            true => serde_json::from_slice(&body).map(Stored::Cancel),
            false => serde_json::from_slice(&body).map(Stored::Effect),
        };
        drop(body);
        match done {
            Ok(Stored::Effect(effect)) => self.attempt(lease, effect).await,
            Ok(Stored::Cancel(call)) => self.tell_peer(lease, call).await,
            Err(error) => {
                let why = CommandError::Internal(format!("effect {}: {error}", lease.key.name));
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
        let performing = caught(self.shared.executor.run(Attempt {
            run: lease.run.clone(),
            idempotency_key: effect.idempotency_key.clone(),
            traceparent: effect.traceparent.clone(),
            request: effect.request.clone(),
            handle: effect.handle.clone(),
            keep: keep.clone(),
        }));
        let end = match lease.hold(performing).await {
            Some(report) => {
                let broken_off = |panicked| self.broken_off(&lease.run, &panicked).into();
                let report = report.unwrap_or_else(broken_off);
                self.report(lease, effect, report).await
            }
            None => lease.give_back(),
        };
        counters.effects_active.fetch_sub(1, Ordering::Relaxed);
        keep.let_go();
        end
    }

    /// Records what an attempt came to, or parks it.
    async fn report(&self, lease: &mut Lease, effect: StoredEffect, report: Report) -> End {
        let due_after = |after: Option<Duration>| {
            let millis = after.map(|after| u64::try_from(after.as_millis()).unwrap_or(u64::MAX));
            millis.map(|millis| self.lease_time().plus_millis(millis))
        };
        let StoredEffect { step, attempt, .. } = &effect;
        let (step, attempt) = (step.clone(), *attempt);
        match report {
            Report::Unchanged { check_after } => End::Park(due_after(check_after)),
            // Each is an event of the run, and part of its state.
            Report::Accepted { handle, .. } if value_size(&handle) > MAX_HANDLE => {
                let failed = Outcome::Failed {
                    code: "response_too_large".to_owned(),
                    message: "the peer's name for its task is too large".to_owned(),
                    retryable: false,
                    retry_after: None,
                };
                Box::pin(self.report(lease, effect, failed.into())).await
            }
            Report::Accepted { handle, check_after } if effect.handle.as_ref() == Some(&handle) => {
                End::Park(due_after(check_after))
            }
            Report::Accepted { handle, check_after } => {
                let command = Command::Accepted {
                    step,
                    attempt,
                    handle: handle.clone(),
                    check_at: due_after(check_after),
                };
                let accepted = StoredEffect {
                    handle: Some(handle),
                    ..effect
                };
                let body = serde_json::to_vec(&accepted).expect("a request has string keys");
                match self.record(lease, command, Some(body)).await {
                    Recorded::End(end) => end,
                    // Cancelled meanwhile, when there was no handle to tell the peer of.
                    Recorded::Unwanted => self.cancel_late(lease, accepted).await,
                }
            }
            Report::Ended(outcome) => {
                drop(effect);
                lease.grow(outcome.n_bytes());
                let command = Command::Effect {
                    step,
                    attempt,
                    retry_after_ms: retry_after_ms(&outcome),
                    outcome: read_outcome(outcome),
                };
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

    /// Stores that the peer of a call has to be told that nobody waits for it.
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
    /// Makes the executor look at an accepted call now, as when its peer says that something has changed. What
    /// the peer said is not believed: it is asked. Returns `false` if the call is not parked.
    pub async fn wake_effect(&self, run: &RunKey, step: &StepId, attempt: u32) -> Result<bool, CommandError> {
        let key = commit::effect_key(step, attempt);
        let now = self.lease_time();
        let woken = self.shared.store.wake(run, &key, now).await;
        let woken = woken.map_err(|error| CommandError::Unavailable(error.to_string()))?;
        if woken {
            self.shared.effects.hint(now);
        }
        Ok(woken)
    }
}

fn retry_after_ms(outcome: &Outcome) -> Option<u64> {
    match outcome {
        Outcome::Done(_) => None,
        Outcome::Failed { retry_after, .. } => {
            retry_after.map(|time| u64::try_from(time.as_millis()).unwrap_or(u64::MAX))
        }
    }
}

fn read_outcome(outcome: Outcome) -> Result<Object, Failure> {
    match outcome {
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
            retry_after: _,
        } => Err(Failure {
            code,
            message,
            retryable,
            reason: None,
        }),
    }
}
