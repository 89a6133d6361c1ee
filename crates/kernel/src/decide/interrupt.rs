//! Opens interrupts, and closes those whose time is up.

use serde_json::Value;

use crate::{
    Active, Answered, ApprovalAction, Dialect, InterruptKind, KernelEvent, Object, RemoteQuestion, Seq,
    StepId, Timer, Trigger, Wait,
};

use super::DecisionBuilder;

impl<D: Dialect> DecisionBuilder<'_, D> {
    /// Opens an interrupt, for whose answer the step then waits.
    pub fn interrupt(
        &mut self,
        step: &StepId,
        cause: Seq,
        question: (InterruptKind, Value),
        timeout_ms: Option<u64>,
    ) {
        self.interrupt_because(step, cause, question, timeout_ms, Object::new());
    }

    /// Like [`Self::interrupt`], with the reasons that readers of the log get.
    pub fn interrupt_because(
        &mut self,
        step: &StepId,
        cause: Seq,
        (kind, data): (InterruptKind, Value),
        timeout_ms: Option<u64>,
        details: Object,
    ) {
        let number = self.n_interrupts(step);
        let mut details = details;
        if let (InterruptKind::LowConfidence, true, Value::Object(data)) = (kind, details.is_empty(), &data) {
            details.extend(data.clone());
            // The decision is in the request.
            details.remove("decision");
            details.insert("reason".to_owned(), kind.as_str().into());
        }
        let requested = self.record(
            Some(cause),
            KernelEvent::InterruptRequested {
                step: step.clone(),
                kind,
                data: data.clone(),
                timeout_ms,
                number,
                remote: None,
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
            InterruptKind::ExternalEvent
            | InterruptKind::Custom
            | InterruptKind::LowConfidence
            | InterruptKind::Conversation => {}
        }
        let suspended = KernelEvent::NodeSuspended {
            step: step.clone(),
            interrupt: step.interrupt(number),
            kind,
            child: None,
            details,
        };
        self.record(Some(requested), suspended);
        if let Some(ms) = timeout_ms {
            self.work
                .timers_set
                .push((Timer::Interrupt(step.clone()), self.input.now.plus_millis(ms)));
        }
    }

    /// How many interrupts an execution has opened.
    pub(super) fn n_interrupts(&self, step: &StepId) -> u32 {
        self.active(step).map_or(0, |(_, active)| active.n_interrupts)
    }

    /// Asks what the peer of a call asks. The call goes on meanwhile.
    pub(super) fn lift(&mut self, step: &StepId, question: RemoteQuestion) {
        let RemoteQuestion { key, kind, data } = question;
        let number = self.n_interrupts(step);
        let requested = self.record(
            self.last(),
            KernelEvent::InterruptRequested {
                step: step.clone(),
                kind,
                data,
                timeout_ms: None,
                number,
                remote: Some(key),
            },
        );
        let suspended = KernelEvent::NodeSuspended {
            step: step.clone(),
            interrupt: step.interrupt(number),
            kind,
            child: None,
            details: Object::new(),
        };
        self.record(Some(requested), suspended);
    }

    /// Closes what the peer of a call asks, because it no longer does.
    pub(super) fn withdraw(&mut self, step: &StepId) {
        let Some((_, active)) = self.active(step) else {
            return;
        };
        let Wait::Effect(pending) = &active.wait else {
            return;
        };
        let Some(kind) = pending.question.as_ref().map(|open| open.kind) else {
            return;
        };
        let closed = self.close(step, kind, None, None, None);
        self.resume_step(step, closed, None);
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
        let number = self.n_interrupts(step).saturating_sub(1);
        self.record(
            self.last(),
            KernelEvent::InterruptResolved {
                step: step.clone(),
                kind,
                value,
                by,
                action,
                number,
            },
        )
    }

    /// Continues an execution whose latest interrupt was closed.
    pub fn resume_step(&mut self, step: &StepId, cause: Seq, value: Option<Value>) -> Seq {
        let event = KernelEvent::NodeResumed {
            step: step.clone(),
            interrupt: step.interrupt(self.n_interrupts(step).saturating_sub(1)),
            value,
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
            InterruptKind::Clarification
            | InterruptKind::ExternalEvent
            | InterruptKind::Custom
            | InterruptKind::LowConfidence
            | InterruptKind::Conversation => {
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
