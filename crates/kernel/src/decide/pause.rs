//! Pauses: what they cut, and how a run goes on after them.
//!
//! A pause that stops at once cuts the attempts that can be repeated. Each becomes a retry that is due when the run is
//! resumed, and that is none of those that the node's settings allow. What goes on elsewhere stays under way: with a worker,
//! an agent, a tool or a child run. The run then follows what comes of it, but begins no call. A step that would make one
//! does so once the run is resumed.

use crate::{
    Active, CutAttempt, Dialect, DrainPolicy, KernelEvent, Phase, Refusal, RunStatus, Timer, Trigger, Wait,
};

use super::DecisionBuilder;

impl<D: Dialect> DecisionBuilder<'_, D> {
    /// Pauses a run that is running.
    pub(super) fn pause_run(
        &mut self,
        reason: Option<String>,
        drain: DrainPolicy,
    ) -> Result<Trigger, Refusal> {
        match self.run.status {
            RunStatus::Running => {}
            status => return Err(Refusal::NotPausable(status)),
        }
        // Pauses and resumes in turn would make a log grow without end.
        if let Some(most) = self.run.full_log() {
            return Err(Refusal::LogFull { most });
        }
        let cut = match drain {
            DrainPolicy::Immediate => self.attempts_to_cut(),
            DrainPolicy::DrainCurrentNode => Vec::new(),
        };
        for CutAttempt { step, .. } in &cut {
            // Neither a timer nor a call has children.
            self.stop_step(step);
        }
        self.record(None, KernelEvent::RunPaused { reason, drain, cut });
        Ok(Trigger::Advance)
    }

    /// The attempts under way that can be repeated, in the order of the definition.
    fn attempts_to_cut(&self) -> Vec<CutAttempt> {
        let nodes = self.run.nodes.iter().enumerate();
        let cut = nodes.filter_map(|(position, node)| match &node.phase {
            Phase::Active(active) if active.may_be_cut() => Some(CutAttempt {
                step: self.step(position, active.ordinal),
                attempt: active.attempt,
            }),
            Phase::Active(_)
            | Phase::Idle
            | Phase::Completed
            | Phase::Failed(_)
            | Phase::Skipped
            | Phase::Cancelled => None,
        });
        cut.collect()
    }

    /// Resumes a paused run.
    pub(super) fn resume_run(&mut self, reason: Option<String>) -> Result<Trigger, Refusal> {
        // A run that was quarantined while it was being cancelled resumes the cancel.
        if !self.run.paused || self.run.status.is_terminal() {
            return Err(Refusal::NotPaused(self.run.status));
        }
        let was_stopped = self.run.is_stopped;
        self.record(None, KernelEvent::RunResumed { reason });
        if self.run.started.is_none() {
            return Ok(Trigger::Advance);
        }
        self.restart_retries();
        if was_stopped && self.run.cancelling.is_none() {
            self.go_on_with_calls()?;
        }
        Ok(Trigger::Resumed)
    }

    /// Retry delays are timers; those that fired during a pause are set again.
    fn restart_retries(&mut self) {
        for position in 0..self.run.nodes.len() {
            if let Phase::Active(Active {
                ordinal,
                attempt,
                wait: Wait::Retry { due },
                ..
            }) = &self.run.nodes[position].phase
            {
                let (ordinal, next, due) = (*ordinal, attempt + 1, *due);
                let step = self.step(position, ordinal);
                self.work
                    .timers_set
                    .push((Timer::Retry(step, next), due.max(self.input.now)));
            }
        }
    }

    /// Lets the steps go on that would have made a call while the run was stopped.
    fn go_on_with_calls(&mut self) -> Result<(), Refusal> {
        for step in self.idle_steps() {
            let Some((position, active)) = self.active(&step) else {
                continue;
            };
            // The decision for one step may have ended another step of this list.
            if !active.waits_for_nothing() || self.run.status.is_terminal() {
                continue;
            }
            let due = Trigger::AttemptDue {
                position,
                attempt: active.attempt,
                step,
                started: self.last().unwrap_or_default(),
            };
            self.renew_budget(0);
            D::decide(due, self)?;
        }
        Ok(())
    }
}
