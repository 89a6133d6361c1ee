//! Ends a run early: fails or cancels it, and stops everything active.

use crate::{
    Event, Failure, NodeId, PrincipalId, Refusal, RunId, RunMessage, Seq, StepId, Timer,
    node::NodeKind,
    run::{Active, Phase, Wait},
};

use super::{DecisionBuilder, answer::has_deadline};

impl DecisionBuilder<'_> {
    /// Fails the run: stops all active work and notifies child runs; no event follows.
    pub(super) fn fail_run(&mut self, cause: Option<Seq>, error: Failure, node: Option<NodeId>) {
        for (step, child) in self.stop_work() {
            if let Some(child) = child.filter(|_| self.propagates(&step)) {
                self.notify_child(child);
            }
            self.record(
                cause,
                Event::NodeCancelled {
                    step,
                    reason: "run-failed".to_owned(),
                },
            );
        }
        self.record(cause, Event::RunFailed { error, node });
        self.timers_cleared.push(Timer::Continue);
        self.dirty.clear();
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
        self.dirty.clear();
        self.timers_cleared.push(Timer::Continue);
        let (with_child, alone): (Vec<_>, Vec<_>) = work
            .into_iter()
            .partition(|(step, child)| child.is_some() && self.propagates(step));
        let cause = self.last();
        let requested = if with_child.is_empty() {
            cause
        } else {
            Some(self.record(
                cause,
                Event::CancelRequested {
                    reason: reason.clone(),
                    by: by.clone(),
                    parent: parent.clone(),
                },
            ))
        };
        for (step, _) in alone {
            self.record(
                requested,
                Event::NodeCancelled {
                    step,
                    reason: "run-cancelled".to_owned(),
                },
            );
        }
        if with_child.is_empty() {
            self.record(cause, Event::RunCancelled { reason, by, parent });
        }
        for child in with_child.into_iter().filter_map(|(_, child)| child) {
            self.notify_child(child);
        }
        Ok(())
    }

    /// Completes a cancel after the last child has ended.
    pub(super) fn end_cancel_if_done(&mut self) {
        let waits = self
            .run
            .nodes
            .iter()
            .any(|state| matches!(state.phase, Phase::Active(_)));
        if let (false, Some(cancel)) = (waits, self.run.cancelling.clone()) {
            self.record(
                self.last(),
                Event::RunCancelled {
                    reason: cancel.reason,
                    by: cancel.by,
                    parent: cancel.parent,
                },
            );
        }
    }

    /// Clears the timers and effects of all active nodes, and returns each node's step with its child.
    fn stop_work(&mut self) -> Vec<(StepId, Option<RunId>)> {
        let mut work = Vec::new();
        for position in 0..self.run.nodes.len() {
            let Phase::Active(active) = &self.run.nodes[position].phase else {
                continue;
            };
            let Active {
                ordinal,
                attempt,
                wait,
                streamed: _,
            } = active;
            let step = self.step(position, *ordinal);
            let child = match wait {
                Wait::Work => {
                    if self.plan.nodes[position].kind.is_delay() {
                        self.timers_cleared.push(Timer::Delay(step.clone()));
                    }
                    if let Some(effect) = self.effect_under_way(position) {
                        // An effect that this decision itself requested is simply not started.
                        self.effects
                            .retain(|new| (&new.step, new.attempt) != (&effect.0, effect.1));
                        self.settled.push(effect);
                    }
                    None
                }
                Wait::Retry { .. } => {
                    self.timers_cleared.push(Timer::Retry(step.clone(), attempt + 1));
                    None
                }
                Wait::Interrupt(_) => {
                    if has_deadline(active) {
                        self.timers_cleared.push(Timer::Interrupt(step.clone()));
                    }
                    None
                }
                Wait::Child { run, .. } => Some(run.clone()),
            };
            work.push((step, child));
        }
        let cleared = self.timers_cleared.clone();
        self.timers_set
            .retain(|(timer, _)| !cleared.contains(timer) && *timer != Timer::Continue);
        work
    }

    fn propagates(&self, step: &StepId) -> bool {
        self.plan
            .position(&step.node)
            .is_none_or(|position| match &self.plan.nodes[position].kind {
                NodeKind::SubWorkflow(sub) => sub.propagate_cancel,
                _ => true,
            })
    }

    fn notify_child(&mut self, child: RunId) {
        let parent = self.input.run.clone();
        let seq = self.last().unwrap_or_default();
        self.messages
            .push((child, seq, RunMessage::ParentEnded { parent }));
    }
}
