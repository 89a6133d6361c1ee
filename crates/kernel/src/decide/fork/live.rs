//! Forks that go on by themselves: steps that begin again, timers that are set again, and calls that a replay fails.

use crate::{
    Command, Dialect, ForkMode, Given, KernelEvent, Phase, Refusal, Seq, StepId, Timer, Trigger, Wait, Work,
};

use super::{DecisionBuilder, missing};

impl<'a, D: Dialect> DecisionBuilder<'a, D> {
    /// Whether the next event is the first of a branch.
    pub(super) fn is_at_branch(&self) -> bool {
        self.following.as_ref().is_some_and(|following| {
            let fork = &following.fork;
            fork.mode == ForkMode::Branch && self.run.head == fork.from && fork.from > Seq(0)
        }) && self.run.is_catching_up()
    }

    /// Lets a branch go its own way if its next event is its own. What it is given now still counts.
    pub(in crate::decide) fn go_live_if_at_branch(&mut self) -> bool {
        let is_at_branch = self.is_at_branch();
        if is_at_branch {
            let given = self.given.take();
            self.note_live();
            self.given = given;
        }
        is_at_branch
    }

    /// Lets a branch begin here if this is its place, before a dialect looks at what its steps have begun: a branch has none
    /// of the children of its source.
    pub fn begin_branch(&mut self) {
        self.repeat_notes();
        self.go_live_if_at_branch();
    }

    /// The same for a step that then goes on by itself, and so does not have to begin again.
    pub fn begin_branch_with(&mut self, step: &StepId) {
        self.begin_branch();
        self.begin_again.retain(|again| again != step);
    }

    /// Lets the fork go on by itself.
    pub(super) fn go_live(&mut self) -> Result<(), Refusal> {
        self.given = Some(Box::new(Given::Live));
        self.note_live();
        self.begin_again()
    }

    /// Records that the fork goes on by itself.
    pub(super) fn note_live(&mut self) {
        let Some(following) = &mut self.following else {
            return;
        };
        let fork = following.fork.clone();
        let again = following.begin_again.take().unwrap_or_default();
        self.following = None;
        (self.is_live_again, self.went_live) = (true, true);
        self.work = Work::default();
        self.cut = false;
        self.input.now = self.live_now.max(self.run.updated_at);
        let resumed = KernelEvent::ForkResumed {
            depth: fork.depth,
            calls_again: fork.mode == ForkMode::Branch,
            from: self.run.status,
        };
        self.record(self.last(), resumed);
        self.begin_again = again;
        self.begin_again.extend(self.idle_steps());
    }

    /// Notes which steps begin again after a copied [`KernelEvent::ForkResumed`].
    pub(super) fn note_begin_again(&mut self) {
        let steps = self.idle_steps();
        if let Some(following) = &mut self.following {
            following.begin_again.get_or_insert_default().extend(steps);
        }
    }

    /// The steps that wait for nothing that is written down.
    pub(in crate::decide) fn idle_steps(&self) -> Vec<StepId> {
        let nodes = self.run.nodes.iter().enumerate();
        let idle = nodes.filter_map(|(position, node)| match &node.phase {
            Phase::Active(active) if active.waits_for_nothing() => Some(self.step(position, active.ordinal)),
            Phase::Active(_)
            | Phase::Idle
            | Phase::Completed
            | Phase::Failed(_)
            | Phase::Skipped
            | Phase::Cancelled => None,
        });
        idle.collect()
    }

    /// Begins the steps again that were under way when a fork went on by itself, and sets the timers of all others.
    pub(super) fn begin_again(&mut self) -> Result<(), Refusal> {
        let following = self.following.as_mut();
        let copied = following.and_then(|following| following.begin_again.take());
        let is_live = std::mem::take(&mut self.is_live_again);
        if !is_live && copied.is_none() {
            return Ok(());
        }
        let mut steps = copied.unwrap_or_default();
        steps.append(&mut self.begin_again);
        if self.run.status.is_terminal() {
            return Ok(());
        }
        if self.run.cancelling.is_some() {
            for step in self.active_steps() {
                let reason = "run-cancelled".to_owned();
                self.record(self.last(), KernelEvent::NodeCancelled { step, reason });
            }
            self.end_cancel_if_done();
            return Ok(());
        }
        for step in steps {
            let Some((position, active)) = self.active(&step) else {
                continue;
            };
            if !active.waits_for_nothing() || self.run.status.is_terminal() {
                continue;
            }
            let attempt = active.attempt;
            self.renew_budget(0);
            let started = self.last().unwrap_or_default();
            let due = Trigger::AttemptDue {
                position,
                step,
                attempt,
                started,
            };
            D::decide(due, self)?;
        }
        if is_live && !self.run.status.is_terminal() {
            self.set_timers();
        }
        if !self.run.status.is_terminal() && !self.cut {
            self.renew_budget(0);
            D::decide(Trigger::Resumed, self)?;
        }
        if is_live {
            self.follow_children()?;
        }
        self.fail_unrecorded()
    }

    /// The steps that are under way, in the order of the definition.
    pub(in crate::decide) fn active_steps(&self) -> Vec<StepId> {
        let nodes = self.run.nodes.iter().enumerate();
        let active = nodes.filter_map(|(position, node)| match &node.phase {
            Phase::Active(active) => Some(self.step(position, active.ordinal)),
            Phase::Idle | Phase::Completed | Phase::Failed(_) | Phase::Skipped | Phase::Cancelled => None,
        });
        active.collect()
    }

    /// Sets the timers of interrupts and retries, which the copied events did not set.
    pub(super) fn set_timers(&mut self) {
        for position in 0..self.run.nodes.len() {
            let Phase::Active(active) = &self.run.nodes[position].phase else {
                continue;
            };
            let step = self.step(position, active.ordinal);
            let timer = match &active.wait {
                Wait::Interrupt(open) => open.deadline.map(|due| (Timer::Interrupt(step), due)),
                Wait::Retry { due } => Some((Timer::Retry(step, active.attempt + 1), *due)),
                Wait::Work | Wait::Effect(_) | Wait::Children(_) => None,
            };
            self.work.timers_set.extend(timer);
        }
    }

    /// Fails what a replay that goes on by itself would have to call out for.
    pub(in crate::decide) fn fail_unrecorded(&mut self) -> Result<(), Refusal> {
        if !self.run.is_replay() || self.run.is_catching_up() {
            return Ok(());
        }
        while !self.run.status.is_terminal() {
            let steps = self.run.nodes.iter().enumerate();
            let waiting = steps.filter_map(|(position, node)| match &node.phase {
                Phase::Active(active) => match active.wait {
                    Wait::Effect(_) => Some((position, active.ordinal, Some(active.attempt))),
                    Wait::Children(_) => Some((position, active.ordinal, None)),
                    Wait::Work | Wait::Retry { .. } | Wait::Interrupt(_) => None,
                },
                Phase::Idle | Phase::Completed | Phase::Failed(_) | Phase::Skipped | Phase::Cancelled => None,
            });
            let Some((position, ordinal, attempt)) = { waiting }.next() else {
                return Ok(());
            };
            let step = self.step(position, ordinal);
            if self.must_pause() && !self.cut {
                self.pause();
            }
            self.renew_budget(0);
            match attempt {
                Some(attempt) => {
                    let command = Command::Effect {
                        step,
                        attempt,
                        outcome: Err(missing("what it answered")),
                        retry_after_ms: None,
                    };
                    let trigger = self.trigger(command)?;
                    D::decide(trigger, self)?;
                    self.elide();
                }
                None => self.abandon(&step)?,
            }
            if self.cut {
                return Ok(());
            }
        }
        Ok(())
    }

    /// Fails a step whose children are unknown.
    pub(super) fn abandon(&mut self, step: &StepId) -> Result<(), Refusal> {
        self.given = Some(Box::new(Given::Abandoned(step.clone())));
        let failed = Trigger::Failed {
            step: step.clone(),
            cause: self.last().unwrap_or_default(),
            failure: missing("how its children ended"),
        };
        D::decide(failed, self)
    }
}
