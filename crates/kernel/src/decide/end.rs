//! Ends what is active: a step, or all of them with a run that fails, completes early or is cancelled.

use crate::{
    CancelledCall, CascadeReason, Dialect, Failure, KernelEvent, NodeId, Object, Planned, PrincipalId,
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
        self.cancel_steps(Some(cause), "run-completed", CascadeReason::Completed);
        self.record(Some(cause), KernelEvent::RunCompleted { outputs });
        self.work.timers_cleared.push(Timer::Continue);
    }

    /// Fails the run: stops all active work and notifies child runs; no event follows.
    pub fn fail_run(&mut self, cause: Option<Seq>, error: Failure, node: Option<NodeId>) {
        self.cancel_steps(cause, "run-failed", CascadeReason::Failed);
        self.record(cause, KernelEvent::RunFailed { error, node });
        self.work.timers_cleared.push(Timer::Continue);
    }

    /// Cancels a step, and nothing else: its timers are cleared, its call ends, its interrupt closes and its children are
    /// notified. Does nothing if the step is not active.
    pub fn cancel_step(&mut self, step: &StepId, cause: Option<Seq>, reason: &str) {
        self.cancel_step_with(step, cause, reason, CascadeReason::Cancelled);
    }

    fn cancel_step_with(&mut self, step: &StepId, cause: Option<Seq>, reason: &str, why: CascadeReason) {
        // A branch has none of the calls and children of its source.
        self.begin_branch();
        let Some((_, active)) = self.active(step) else {
            return;
        };
        if let Wait::Effect(pending) = &active.wait {
            let weight = pending.weight();
            self.held = self.held.saturating_sub(weight);
        }
        let children = self.stop_step(step);
        self.work.parked.retain(|parked| parked.step != *step);
        if self.propagates(step) {
            for child in children {
                self.notify_child(child, why);
            }
        }
        let (step, reason) = (step.clone(), reason.to_owned());
        self.record(cause, KernelEvent::NodeCancelled { step, reason });
    }

    /// Cancels all active steps.
    fn cancel_steps(&mut self, cause: Option<Seq>, reason: &str, why: CascadeReason) {
        for step in self.active_steps() {
            self.cancel_step_with(&step, cause, reason, why);
        }
        self.work
            .timers_set
            .retain(|(timer, _)| *timer != Timer::Continue);
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
            self.notify_child(child, CascadeReason::Cancelled);
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
        for step in self.active_steps() {
            let children = self.stop_step(&step);
            work.push((step, children));
        }
        self.work
            .timers_set
            .retain(|(timer, _)| *timer != Timer::Continue);
        work
    }

    /// Clears the timer and the effect of an active step, and returns its children.
    pub(super) fn stop_step(&mut self, step: &StepId) -> Vec<RunId> {
        let Some((_, active)) = self.active(step) else {
            return Vec::new();
        };
        let attempt = active.attempt;
        let (timer, call, children) = match &active.wait {
            Wait::Work => (Some(Timer::Delay(step.clone())), None, Vec::new()),
            Wait::Effect(pending) => {
                let is_watched = pending.deadline().is_some();
                let handle = pending.handle.clone();
                let call = (pending.provider.clone(), handle);
                let timer = is_watched.then(|| Timer::Overdue(step.clone(), attempt));
                (timer, Some(call), Vec::new())
            }
            Wait::Retry { .. } => (Some(Timer::Retry(step.clone(), attempt + 1)), None, Vec::new()),
            Wait::Interrupt(_) => {
                let timer = has_deadline(active).then(|| Timer::Interrupt(step.clone()));
                (timer, None, Vec::new())
            }
            Wait::Children(members) => {
                let running = members.iter().filter(|member| member.end.is_none());
                (None, None, running.map(|member| member.run.clone()).collect())
            }
        };
        if let Some(timer) = timer {
            self.work.timers_set.retain(|(set, _)| *set != timer);
            self.work.timers_cleared.push(timer);
        }
        if let Some((provider, handle)) = call {
            self.work.cancelled.extend(handle.map(|handle| CancelledCall {
                step: step.clone(),
                attempt,
                provider,
                handle,
            }));
            // An effect that this decision itself requested is simply not started.
            self.work
                .effects
                .retain(|new| (&new.step, new.attempt) != (step, attempt));
            self.work.settled.push((step.clone(), attempt));
        }
        children
    }

    pub(super) fn propagates(&self, step: &StepId) -> bool {
        let position = self.plan.position(&step.node);
        let policy = position.and_then(|position| self.plan.children(position));
        policy.is_none_or(|policy| policy.propagates_cancel)
    }

    pub(super) fn notify_child(&mut self, child: RunId, why: CascadeReason) {
        let parent = self.input.run.clone();
        let seq = self.last().unwrap_or_default();
        self.work
            .messages
            .push((child, seq, RunMessage::ParentEnded { parent, why }));
    }
}
