//! Steps: their starts, attempts, effects and retries, and the limits on them.

use serde_json::Value;

use crate::{
    Active, Call, CancelledCall, Cap, Dialect, Effect, Failure, KernelEvent, Limits, NodeId, Object, Parked,
    Pending, Planned, Produced, Refusal, RemoteQuestion, Retries, Seq, StepId, Timer, Timestamp, Trigger,
    Wait, cost,
    measure::{MAX_NESTING, too_deep},
};

use super::DecisionBuilder;

/// Longest backoff that a peer may request.
const MAX_RETRY_AFTER_MS: u64 = 3_600_000;
/// How often one attempt takes details of its worker, each an event of the run.
const MAX_DETAILS: u32 = 1_000;
/// How often the peer of one attempt may change how it goes on, each an event of the run or several.
const MAX_ACCEPTED: u32 = 200;

/// The code of a run whose log is as long as it may be.
const LOG_LIMIT_EXCEEDED: &str = "log_limit_exceeded";

/// A failed attempt.
#[derive(Debug)]
pub struct Attempted {
    pub attempt: u32,
    /// The backoff that the peer requested.
    pub retry_after_ms: Option<u64>,
    pub failure: Failure,
}

impl<D: Dialect> DecisionBuilder<'_, D> {
    /// Starts a node. Returns its step and the position of the event, or `None` if the run's limit fails it.
    pub fn start_step(&mut self, position: usize) -> Option<(StepId, Seq)> {
        if !self.is_within_limits(position) {
            return None;
        }
        let step = self.step(position, self.run.nodes[position].next_ordinal);
        let cause = self.run.head.0.checked_sub(1).map(Seq);
        let started = self.record_start(cause, position, &step, 0);
        Some((step, started))
    }

    fn record_start(&mut self, cause: Option<Seq>, position: usize, step: &StepId, attempt: u32) -> Seq {
        let type_id = self.plan.type_id(position).to_owned();
        self.record(
            cause,
            KernelEvent::NodeStarted {
                step: step.clone(),
                type_id,
                attempt,
            },
        )
    }

    pub fn skip(&mut self, position: usize, reason: &str) {
        let node = self.plan.node(position).clone();
        self.record(
            None,
            KernelEvent::NodeSkipped {
                node,
                reason: reason.to_owned(),
            },
        );
    }

    /// Calls out: the step then waits for the outcome. If the run is stopped, the step does so in a later decision, which
    /// begins with its attempt again.
    pub fn call(&mut self, step: StepId, attempt: u32, cause: Seq, call: Call) {
        if self.run.is_stopped {
            return;
        }
        let activity = match &call {
            Call::Activity(activity) => Some(activity.clone()),
            Call::Http { .. }
            | Call::Agent(_)
            | Call::Memory(_)
            | Call::Model(_)
            | Call::Tool(_)
            | Call::ToolList(_)
            | Call::SideEffect { .. } => None,
        };
        let (timeout_ms, max_questions) = match &call {
            Call::Agent(call) => (call.timeout_ms, call.max_questions()),
            Call::Activity(_)
            | Call::Http { .. }
            | Call::Memory(_)
            | Call::Model(_)
            | Call::Tool(_)
            | Call::ToolList(_)
            | Call::SideEffect { .. } => (None, None),
        };
        let (called_at, number) = self
            .active(&step)
            .map_or((None, 0), |(_, active)| (active.called_at, active.n_calls));
        let deadline = timeout_ms.map(|ms| called_at.unwrap_or(self.input.now).plus_millis(ms));
        self.record(
            Some(cause),
            KernelEvent::EffectScheduled {
                step: step.clone(),
                attempt,
                call: number,
                provider: call.provider().to_owned(),
                activity,
                deadline,
                max_questions,
            },
        );
        self.watch(&step, attempt);
        self.work.effects.push(Effect {
            step,
            attempt,
            number,
            call,
        });
    }

    /// Records the outcome of a call whose step goes on, with another call or with something else.
    pub fn end_call(&mut self, step: &StepId, cause: Seq, outcome: Object) -> Seq {
        let (attempt, call, provider) = match self.active(step) {
            Some((
                _,
                Active {
                    attempt,
                    n_calls,
                    wait: Wait::Effect(pending),
                    ..
                },
            )) => (*attempt, *n_calls, pending.provider.clone()),
            Some(_) | None => return cause,
        };
        self.record(
            Some(cause),
            KernelEvent::EffectEnded {
                step: step.clone(),
                attempt,
                call,
                provider,
                outcome,
            },
        )
    }

    /// Sets the timer that fails a call of which nothing is heard.
    fn watch(&mut self, step: &StepId, attempt: u32) {
        if let Some(deadline) = self.pending(step, attempt).and_then(Pending::deadline) {
            self.work
                .timers_set
                .push((Timer::Overdue(step.clone(), attempt), deadline));
        }
    }

    /// The call of an attempt that is under way.
    fn pending(&self, step: &StepId, attempt: u32) -> Option<&Pending> {
        match self.active(step)? {
            (
                _,
                Active {
                    attempt: current,
                    wait: Wait::Effect(pending),
                    ..
                },
            ) if *current == attempt && !self.run.status.is_terminal() => Some(pending),
            _ => None,
        }
    }

    pub(super) fn effect_accepted(
        &mut self,
        step: StepId,
        attempt: u32,
        handle: Value,
        check_at: Option<Timestamp>,
    ) -> Result<Trigger, Refusal> {
        let pending = self.pending(&step, attempt).ok_or(Refusal::Stale)?;
        if pending.n_accepted >= MAX_ACCEPTED {
            return self.restless(step, attempt);
        }
        if pending.handle.as_ref() != Some(&handle) {
            let accepted = KernelEvent::EffectAccepted {
                step: step.clone(),
                attempt,
                handle: handle.clone(),
            };
            self.record(self.last(), accepted);
        }
        // The peer goes on without an answer.
        self.withdraw(&step);
        self.work.parked.push(Parked {
            step,
            attempt,
            handle,
            check_at,
        });
        Ok(Trigger::Advance)
    }

    pub(super) fn effect_interrupted(
        &mut self,
        step: StepId,
        attempt: u32,
        handle: Value,
        question: RemoteQuestion,
        check_at: Option<Timestamp>,
    ) -> Result<Trigger, Refusal> {
        let pending = self.pending(&step, attempt).ok_or(Refusal::Stale)?;
        if pending.n_accepted >= MAX_ACCEPTED {
            return self.restless(step, attempt);
        }
        if too_deep(&question.data) {
            self.cancel_call_by(&step, attempt, Some(handle));
            let message = format!("the question nests more than {MAX_NESTING} levels deep");
            let failure = Failure::new("remote_failed", message);
            return self.effect_ended(step, attempt, Err(failure), None);
        }
        let max_questions = pending.max_questions;
        let is_known = pending.asks(&question.key) || pending.has_answer(&question.key, self.input.now);
        if pending.handle.as_ref() != Some(&handle) {
            let accepted = KernelEvent::EffectAccepted {
                step: step.clone(),
                attempt,
                handle: handle.clone(),
            };
            self.record(self.last(), accepted);
        }
        if !is_known {
            if let Some(most) = max_questions
                && u64::from(self.n_interrupts(&step)) >= most
            {
                self.cancel_call(&step, attempt);
                let message = format!("the agent asked more than {most} questions");
                let failure = Failure::new("too_many_questions", message);
                return self.effect_ended(step, attempt, Err(failure), None);
            }
            self.withdraw(&step);
            let kept = cost::of_value(&question.data);
            let room = self.spend(2 * kept).and_then(|()| self.hold(kept, 0));
            if let Err(failure) = room {
                self.cancel_call(&step, attempt);
                return self.effect_ended(step, attempt, Err(failure), None);
            }
            self.lift(&step, question);
        }
        self.work.parked.push(Parked {
            step,
            attempt,
            handle,
            check_at,
        });
        Ok(Trigger::Advance)
    }

    /// Fails a call whose peer changes how it goes on without end.
    fn restless(&mut self, step: StepId, attempt: u32) -> Result<Trigger, Refusal> {
        self.cancel_call(&step, attempt);
        let message = format!("the agent changed how it goes on {MAX_ACCEPTED} times");
        let failure = Failure::new("remote_failed", message);
        self.effect_ended(step, attempt, Err(failure), None)
    }

    pub(super) fn effect_progressed(
        &mut self,
        step: &StepId,
        attempt: u32,
        details: Value,
    ) -> Result<Trigger, Refusal> {
        if self.note_progress(step, attempt, details)? {
            self.watch(step, attempt);
        }
        Ok(Trigger::Advance)
    }

    /// Records that a call is under way; `false` if that is not worth an event.
    pub(super) fn note_progress(
        &mut self,
        step: &StepId,
        attempt: u32,
        details: Value,
    ) -> Result<bool, Refusal> {
        let pending = self.pending(step, attempt).ok_or(Refusal::Stale)?;
        if details.is_null() && !pending.is_due_for_heartbeat(self.input.now) {
            return Ok(false);
        }
        if !details.is_null() && pending.n_details >= MAX_DETAILS {
            return Err(Refusal::InvalidAnswer(format!(
                "an attempt takes details {MAX_DETAILS} times at most"
            )));
        }
        if too_deep(&details) {
            return Err(Refusal::InvalidAnswer(format!(
                "it nests more than {MAX_NESTING} levels deep"
            )));
        }
        let progressed = KernelEvent::EffectProgressed {
            step: step.clone(),
            attempt,
            details,
        };
        self.record(self.last(), progressed);
        Ok(true)
    }

    /// Records what the peer of a call has made. Returns how the call ends if there is no room for it; `handle` is
    /// then what the peer is told to stop by, if it is newer than the log.
    pub(super) fn produce(
        &mut self,
        step: &StepId,
        attempt: u32,
        produced: Vec<Produced>,
        handle: Option<&Value>,
    ) -> Result<Option<Trigger>, Refusal> {
        self.pending(step, attempt).ok_or(Refusal::Stale)?;
        let is_nested =
            |made: &Produced| matches!(made, Produced::Artifact { content, .. } if too_deep(content));
        let n_bytes = produced.iter().map(Produced::size).sum();
        let failure = if produced.iter().any(is_nested) {
            let message = format!("an artifact nests more than {MAX_NESTING} levels deep");
            Some(Failure::new("remote_failed", message))
        } else {
            // It is stored, but is no part of the state.
            let kept = cost::bytes(n_bytes);
            let room = self.spend(2 * kept).and_then(|()| self.hold(kept, 0));
            if room.is_ok() {
                self.held -= kept;
            }
            room.err()
        };
        if let Some(failure) = failure {
            self.cancel_call_by(step, attempt, handle.cloned());
            return self
                .effect_ended(step.clone(), attempt, Err(failure), None)
                .map(Some);
        }
        let position = self.plan.position(&step.node).ok_or(Refusal::Stale)?;
        let (artifact_type, node) = self.plan.artifact(position).unwrap_or_default();
        let (artifact_type, node) = (artifact_type.to_owned(), node.to_owned());
        for made in produced {
            match made {
                Produced::Chunk {
                    text,
                    starts,
                    is_last,
                    end,
                } => {
                    let (number, before) = self.active(step).map_or((0, 0), |(_, active)| {
                        let streamed = active.streamed.as_ref();
                        (
                            active.n_artifacts,
                            streamed.map_or(0, |streamed| streamed.n_pieces),
                        )
                    });
                    let chunk = KernelEvent::OutputChunk {
                        step: step.clone(),
                        index: if starts { 0 } else { before },
                        chunk: text,
                        is_last,
                        number,
                        end,
                    };
                    self.record(self.last(), chunk);
                }
                Produced::Artifact { name, content } => {
                    let name = name.unwrap_or_else(|| node.clone());
                    let cause = self.last().unwrap_or_default();
                    self.artifact(step, cause, artifact_type.clone(), name, content);
                }
            }
        }
        Ok(None)
    }

    /// Fails an attempt whose call takes too long.
    pub(super) fn effect_overdue(&mut self, step: StepId, attempt: u32) -> Trigger {
        let Some(pending) = self.pending(&step, attempt) else {
            return Trigger::Advance;
        };
        let now = self.input.now;
        let is_late = |due: Option<Timestamp>| due.is_some_and(|due| due <= now);
        let failure = if is_late(pending.deadline) {
            // Another attempt would be late as well.
            self.cancel_call(&step, attempt);
            let failure = Failure::new("remote_timeout", "the agent did not finish in time");
            return self
                .effect_ended(step, attempt, Err(failure), None)
                .unwrap_or(Trigger::Advance);
        } else if is_late(pending.timeout()) {
            Failure::new("activity_timeout", "nobody reported an outcome in time")
        } else if is_late(pending.deadline()) {
            Failure::new("activity_silent", "the worker sent no heartbeat in time")
        } else {
            // A heartbeat has moved the deadline.
            self.watch(&step, attempt);
            return Trigger::Advance;
        };
        let failure = Failure {
            retryable: true,
            ..failure
        };
        self.effect_ended(step, attempt, Err(failure), None)
            .unwrap_or(Trigger::Advance)
    }

    /// Fails a call that its peer may go on with. Another attempt does not follow: the peer would take its
    /// message for the one that it knows.
    pub(super) fn effect_given_up(
        &mut self,
        step: StepId,
        attempt: u32,
        handle: Option<Value>,
        failure: Failure,
    ) -> Result<Trigger, Refusal> {
        self.pending(&step, attempt).ok_or(Refusal::Stale)?;
        self.cancel_call_by(&step, attempt, handle);
        let failure = Failure {
            retryable: false,
            ..failure
        };
        self.effect_ended(step, attempt, Err(failure), None)
    }

    /// Notes that the peer of an accepted call is to be told that nobody waits for it any more.
    pub(super) fn cancel_call(&mut self, step: &StepId, attempt: u32) {
        self.cancel_call_by(step, attempt, None);
    }

    /// Like [`Self::cancel_call`], by a handle that need not be in the log yet.
    fn cancel_call_by(&mut self, step: &StepId, attempt: u32, handle: Option<Value>) {
        let Some(pending) = self.pending(step, attempt) else {
            return;
        };
        let Some(handle) = handle.or_else(|| pending.handle.clone()) else {
            return;
        };
        let call = CancelledCall {
            step: step.clone(),
            attempt,
            provider: pending.provider.clone(),
            handle,
        };
        self.work.cancelled.push(call);
    }

    /// Cancels the run because the peer of a call has cancelled it.
    pub(super) fn effect_cancelled(
        &mut self,
        step: &StepId,
        attempt: u32,
        reason: String,
    ) -> Result<Trigger, Refusal> {
        self.pending(step, attempt).ok_or(Refusal::Stale)?;
        let n_before = self.work.cancelled.len();
        self.cancel(Some(reason), None, None)?;
        // This peer knows.
        let mut index = 0;
        self.work.cancelled.retain(|call| {
            index += 1;
            index <= n_before || (&call.step, call.attempt) != (step, attempt)
        });
        Ok(Trigger::Advance)
    }

    /// Fails an attempt. Another attempt follows if the failure and the node's settings allow it, after the
    /// configured delay or the one the peer requested, whichever is longer. Returns the failure if none does.
    pub fn retry(
        &mut self,
        position: usize,
        step: &StepId,
        cause: Seq,
        attempted: Attempted,
    ) -> Option<Failure> {
        let Attempted {
            attempt,
            retry_after_ms,
            failure,
        } = attempted;
        let Retries { most, .. } = self.plan.retries(position);
        // An attempt that a pause cut is followed by another one anyway.
        let n_cut = self.active(step).map_or(0, |(_, active)| active.n_cut);
        let n_retries = attempt.saturating_sub(n_cut);
        if !self.plan.may_retry(position, &failure) || n_retries >= most {
            return Some(failure);
        }
        let delay_ms = self
            .plan
            .retry_delay_ms(position, n_retries)
            .max(retry_after_ms.unwrap_or(0).min(MAX_RETRY_AFTER_MS));
        // The next attempt would be late.
        let deadline = self.pending(step, attempt).and_then(|pending| pending.deadline);
        if deadline.is_some_and(|deadline| self.input.now.plus_millis(delay_ms) >= deadline) {
            return Some(failure);
        }
        let next = attempt + 1;
        self.record(
            Some(cause),
            KernelEvent::NodeRetried {
                step: step.clone(),
                attempt: next,
                delay_ms,
                error: failure,
            },
        );
        self.work.timers_set.push((
            Timer::Retry(step.clone(), next),
            self.input.now.plus_millis(delay_ms),
        ));
        None
    }

    pub(super) fn retry_due(&mut self, step: StepId, attempt: u32) -> Trigger {
        let Some((
            position,
            Active {
                wait: Wait::Retry { .. },
                attempt: current,
                ..
            },
        )) = self.active(&step)
        else {
            return Trigger::Advance;
        };
        // A pause keeps the wait; resuming sets the timer again.
        if *current + 1 != attempt || self.run.paused || self.run.cancelling.is_some() {
            return Trigger::Advance;
        }
        if !self.is_within_limits(position) {
            return Trigger::Advance;
        }
        let started = self.record_start(self.last(), position, &step, attempt);
        Trigger::AttemptDue {
            position,
            step,
            attempt,
            started,
        }
    }

    pub(super) fn effect_ended(
        &mut self,
        step: StepId,
        attempt: u32,
        outcome: Result<Object, Failure>,
        retry_after_ms: Option<u64>,
    ) -> Result<Trigger, Refusal> {
        let pending = self.pending(&step, attempt).ok_or(Refusal::Stale)?;
        let (is_watched, weight) = (pending.deadline().is_some(), pending.weight());
        self.held = self.held.saturating_sub(weight);
        let position = self.plan.position(&step.node).ok_or(Refusal::Stale)?;
        if is_watched {
            self.work
                .timers_cleared
                .push(Timer::Overdue(step.clone(), attempt));
        }
        self.work.settled.push((step.clone(), attempt));
        self.withdraw(&step);
        let cause = self.last().unwrap_or_default();
        let outcome = match outcome {
            Ok(outputs) => Ok(outputs),
            Err(failure) => {
                let attempted = Attempted {
                    attempt,
                    retry_after_ms,
                    failure,
                };
                match self.retry(position, &step, cause, attempted) {
                    None => return Ok(Trigger::Advance),
                    Some(failure) => Err(failure),
                }
            }
        };
        Ok(Trigger::EffectEnded { step, cause, outcome })
    }

    /// Records the artifact of an execution.
    pub fn artifact(
        &mut self,
        step: &StepId,
        cause: Seq,
        artifact_type: String,
        name: String,
        content: Value,
    ) -> Seq {
        let number = self.active(step).map_or(0, |(_, active)| active.n_artifacts);
        let artifact = step.artifact(number);
        self.record(
            Some(cause),
            KernelEvent::ArtifactCreated {
                step: step.clone(),
                artifact,
                artifact_type,
                name,
                content,
            },
        )
    }

    /// Returns `true` if the limits allow one more node execution. Otherwise fails the run.
    fn is_within_limits(&mut self, position: usize) -> bool {
        let Some(Limits {
            node_executions,
            log_bytes,
            run_duration_ms: _,
        }) = self.run.started.as_ref().map(|started| started.limits)
        else {
            return false;
        };
        let node = || Some(self.plan.node(position).clone());
        if self.run.executions >= node_executions {
            let observed = u64::from(self.run.executions) + 1;
            self.breach(Cap::NodeExecutions, u64::from(node_executions), observed, node());
            return false;
        }
        if self.run.log_bytes >= log_bytes {
            // The protocol has no kind of `cap.breached` for this limit.
            let message = format!(
                "the log of the run has reached its limit of {log_bytes} bytes: its nodes write too much, or too often"
            );
            self.fail_run(self.last(), Failure::new(LOG_LIMIT_EXCEEDED, message), node());
            return false;
        }
        true
    }

    /// Fails the run because it exceeded a limit.
    pub fn breach(&mut self, kind: Cap, limit: u64, observed: u64, node: Option<NodeId>) {
        let message = match kind {
            Cap::NodeExecutions => format!("the run reached its limit of {limit} node executions"),
            Cap::RunDuration => format!("the run reached its limit of {limit} ms"),
            Cap::BudgetTokens => format!("the run reached its budget of {limit} tokens"),
            Cap::BudgetCost => format!("the run reached its budget of {limit} millionths of a US dollar"),
            Cap::BudgetDuration => format!("the run reached its budget of {limit} ms"),
            Cap::Schema => format!("the model gave no whole document with {limit} times more room"),
            Cap::LoopIterations => format!("the loop reached its limit of {limit} turns"),
        };
        self.breach_saying(kind, (limit, observed), node, message);
    }

    /// Like [`Self::breach`], with another message.
    pub fn breach_saying(
        &mut self,
        kind: Cap,
        (limit, observed): (u64, u64),
        node: Option<NodeId>,
        message: String,
    ) {
        let cause = self.record(
            None,
            KernelEvent::CapBreached {
                kind,
                limit,
                observed,
                node: node.clone(),
            },
        );
        let failure = Failure {
            worker: D::failed_worker(&self.state).cloned().map(Box::new),
            ..Failure::new(kind.error_code(), message)
        };
        self.fail_run(Some(cause), failure, node);
    }

    /// Records that a step exceeded a limit, which fails the step and not the run.
    pub fn breached(&mut self, kind: Cap, limit: u64, observed: u64, step: &StepId, cause: Seq) -> Seq {
        self.record(
            Some(cause),
            KernelEvent::CapBreached {
                kind,
                limit,
                observed,
                node: Some(step.node.clone()),
            },
        )
    }

    pub(super) fn breach_duration(&mut self) {
        let started = self.run.started.as_ref();
        let limit = started
            .and_then(|started| started.limits.run_duration_ms)
            .unwrap_or(0);
        let since = self.run.running_since.unwrap_or(self.input.now);
        let observed = (self.run.active_ms + self.input.now.millis_since(since)).max(limit + 1);
        let node = self.run.current_node(self.plan).cloned();
        self.breach(Cap::RunDuration, limit, observed, node);
    }
}
