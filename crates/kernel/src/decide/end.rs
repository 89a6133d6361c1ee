//! Ends a run early: fails or cancels it, and stops everything active.

use crate::{
    Active, CancelledCall, Dialect, Failure, KernelEvent, NodeId, Object, Phase, Planned, PrincipalId,
    Refusal, RunId, RunMessage, Seq, StepId, Timer, Wait,
};

use super::{DecisionBuilder, interrupt::has_deadline};

impl<D: Dialect> DecisionBuilder<'_, D> {
    /// Completes the run.
    pub fn complete_run(&mut self, outputs: Object) {
        self.record(self.last(), KernelEvent::RunCompleted { outputs });
    }

    /// Completes the run although steps are active: stops all of them and notifies child runs; no event follows.
    pub fn complete_early(&mut self, cause: Seq, outputs: Object) {
        for (step, children) in self.stop_work() {
            if self.propagates(&step) {
                children.into_iter().for_each(|child| self.notify_child(child));
            }
            let reason = "run-completed".to_owned();
            self.record(Some(cause), KernelEvent::NodeCancelled { step, reason });
        }
        self.record(Some(cause), KernelEvent::RunCompleted { outputs });
        self.work.timers_cleared.push(Timer::Continue);
    }

    /// Fails the run: stops all active work and notifies child runs; no event follows.
    pub fn fail_run(&mut self, cause: Option<Seq>, error: Failure, node: Option<NodeId>) {
        for (step, children) in self.stop_work() {
            if self.propagates(&step) {
                children.into_iter().for_each(|child| self.notify_child(child));
            }
            self.record(
                cause,
                KernelEvent::NodeCancelled {
                    step,
                    reason: "run-failed".to_owned(),
                },
            );
        }
        self.record(cause, KernelEvent::RunFailed { error, node });
        self.work.timers_cleared.push(Timer::Continue);
    }

    /// Cancels the run. Child runs that are cancelled with it end first; until then the run is `cancelling`.
    pub(super) fn cancel(
        &mut self,
        reason: Option<String>,
        by: Option<PrincipalId>,
        parent: Option<RunId>,
    ) -> Result<(), Refusal> {
        if self.run.status.is_terminal() {
            return Err(Refusal::Terminal(self.run.status));
        }
        if self.run.cancelling.is_some() {
            return Ok(());
        }
        let work = self.stop_work();
        self.work.timers_cleared.push(Timer::Continue);
        let (with_child, alone): (Vec<_>, Vec<_>) = work
            .into_iter()
            .partition(|(step, children)| !children.is_empty() && self.propagates(step));
        let cause = self.last();
        let requested = if with_child.is_empty() {
            cause
        } else {
            Some(self.record(
                cause,
                KernelEvent::CancelRequested {
                    reason: reason.clone(),
                    by: by.clone(),
                    parent: parent.clone(),
                },
            ))
        };
        for (step, _) in alone {
            self.record(
                requested,
                KernelEvent::NodeCancelled {
                    step,
                    reason: "run-cancelled".to_owned(),
                },
            );
        }
        if with_child.is_empty() {
            self.record(cause, KernelEvent::RunCancelled { reason, by, parent });
        }
        for child in with_child.into_iter().flat_map(|(_, children)| children) {
            self.notify_child(child);
        }
        Ok(())
    }

    /// Completes a cancel after the last child has ended.
    pub(super) fn end_cancel_if_done(&mut self) {
        if let (false, Some(cancel)) = (self.has_active(), self.run.cancelling.clone()) {
            self.record(
                self.last(),
                KernelEvent::RunCancelled {
                    reason: cancel.reason,
                    by: cancel.by,
                    parent: cancel.parent,
                },
            );
        }
    }

    /// Clears the timers and effects of all active nodes, and returns each node's step with its children.
    fn stop_work(&mut self) -> Vec<(StepId, Vec<RunId>)> {
        let mut work = Vec::new();
        for position in 0..self.run.nodes.len() {
            let Phase::Active(active) = &self.run.nodes[position].phase else {
                continue;
            };
            let Active {
                ordinal,
                attempt,
                wait,
                n_interrupts: _,
                called_at: _,
                streamed: _,
                n_artifacts: _,
                n_calls: _,
            } = active;
            let step = self.step(position, *ordinal);
            let children = match wait {
                Wait::Work => {
                    self.work.timers_cleared.push(Timer::Delay(step.clone()));
                    Vec::new()
                }
                Wait::Effect(pending) => {
                    if pending.deadline().is_some() {
                        self.work
                            .timers_cleared
                            .push(Timer::Overdue(step.clone(), *attempt));
                    }
                    if let Some(handle) = &pending.handle {
                        self.work.cancelled.push(CancelledCall {
                            step: step.clone(),
                            attempt: *attempt,
                            provider: pending.provider.clone(),
                            handle: handle.clone(),
                        });
                    }
                    let effect = (step.clone(), *attempt);
                    // An effect that this decision itself requested is simply not started.
                    self.work
                        .effects
                        .retain(|new| (&new.step, new.attempt) != (&effect.0, effect.1));
                    self.work.settled.push(effect);
                    Vec::new()
                }
                Wait::Retry { .. } => {
                    self.work
                        .timers_cleared
                        .push(Timer::Retry(step.clone(), attempt + 1));
                    Vec::new()
                }
                Wait::Interrupt(_) => {
                    if has_deadline(active) {
                        self.work.timers_cleared.push(Timer::Interrupt(step.clone()));
                    }
                    Vec::new()
                }
                Wait::Children(members) => {
                    let running = members.iter().filter(|member| member.end.is_none());
                    running.map(|member| member.run.clone()).collect()
                }
            };
            work.push((step, children));
        }
        let cleared = self.work.timers_cleared.clone();
        self.work
            .timers_set
            .retain(|(timer, _)| !cleared.contains(timer) && *timer != Timer::Continue);
        work
    }

    fn propagates(&self, step: &StepId) -> bool {
        let position = self.plan.position(&step.node);
        let policy = position.and_then(|position| self.plan.children(position));
        policy.is_none_or(|policy| policy.propagates_cancel)
    }

    pub(super) fn notify_child(&mut self, child: RunId) {
        let parent = self.input.run.clone();
        let seq = self.last().unwrap_or_default();
        self.work
            .messages
            .push((child, seq, RunMessage::ParentEnded { parent }));
    }
}
