//! Opens interrupts, and closes those whose time is up.

use serde_json::Value;

use crate::{
    Active, Answered, ApprovalAction, Dialect, InterruptKind, KernelEvent, Seq, StepId, Timer, Trigger, Wait,
};

use super::DecisionBuilder;

impl<D: Dialect> DecisionBuilder<'_, D> {
    /// Opens an interrupt, for whose answer the step then waits.
    pub fn interrupt(
        &mut self,
        step: &StepId,
        cause: Seq,
        (kind, data): (InterruptKind, Value),
        timeout_ms: Option<u64>,
    ) {
        let requested = self.record(
            Some(cause),
            KernelEvent::InterruptRequested {
                step: step.clone(),
                kind,
                data: data.clone(),
                timeout_ms,
            },
        );
        match kind {
            InterruptKind::Approval => {
                self.record(
                    Some(requested),
                    KernelEvent::ApprovalRequested {
                        step: step.clone(),
                        data,
                    },
                );
            }
            InterruptKind::Clarification => {
                let questions = data.get("questions").cloned().unwrap_or_default();
                self.record(
                    Some(requested),
                    KernelEvent::ClarificationRequested {
                        step: step.clone(),
                        questions,
                    },
                );
            }
            InterruptKind::ExternalEvent | InterruptKind::Custom => {}
        }
        let suspended = KernelEvent::NodeSuspended {
            step: step.clone(),
            interrupt: step.key(),
            kind,
            child: None,
        };
        self.record(Some(requested), suspended);
        if let Some(ms) = timeout_ms {
            self.work
                .timers_set
                .push((Timer::Interrupt(step.clone()), self.input.now.plus_millis(ms)));
        }
    }

    pub(super) fn close(
        &mut self,
        step: &StepId,
        kind: InterruptKind,
        value: Option<Value>,
        by: Option<String>,
        action: Option<ApprovalAction>,
    ) -> Seq {
        if self.active(step).is_some_and(|(_, active)| has_deadline(active)) {
            self.work.timers_cleared.push(Timer::Interrupt(step.clone()));
        }
        self.record(
            self.last(),
            KernelEvent::InterruptResolved {
                step: step.clone(),
                kind,
                value,
                by,
                action,
            },
        )
    }

    pub(super) fn resume_step(&mut self, step: &StepId, cause: Seq, value: Value) -> Seq {
        let event = KernelEvent::NodeResumed {
            step: step.clone(),
            interrupt: step.key(),
            value: Some(value),
        };
        self.record(Some(cause), event)
    }

    pub(super) fn interrupt_timed_out(&mut self, step: StepId) -> Trigger {
        let Some((
            position,
            Active {
                wait: Wait::Interrupt(open),
                ..
            },
        )) = self.active(&step)
        else {
            return Trigger::Advance;
        };
        let kind = open.kind;
        match kind {
            InterruptKind::Approval => {
                self.decide_gate(position, step, super::answer::timed_out(), None, None)
            }
            InterruptKind::Clarification | InterruptKind::ExternalEvent | InterruptKind::Custom => {
                let cause = self.close(&step, kind, None, None, None);
                Trigger::Answered {
                    position,
                    step,
                    cause,
                    answer: Answered::TimedOut,
                }
            }
        }
    }
}

pub(super) fn has_deadline(active: &Active) -> bool {
    matches!(&active.wait, Wait::Interrupt(open) if open.deadline.is_some())
}
