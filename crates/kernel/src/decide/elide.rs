//! Drops from what a decision was given whatever its events say as well, so that nothing is stored twice.

use crate::{Dialect, EventRef, Given, GivenOutcome, GivenResult, KernelEvent, RunId, StepId};

use super::DecisionBuilder;

impl<D: Dialect> DecisionBuilder<'_, D> {
    /// Drops from what was given last whatever the events that followed say as well.
    pub(super) fn elide(&mut self) {
        let Some(first) = self.events.iter().rposition(|event| event.given.is_some()) else {
            return;
        };
        let group = &self.events[first..];
        let Some(given) = group[0].given.as_deref() else {
            return;
        };
        let is_said = match given {
            Given::Effect {
                step,
                outcome: Some(outcome),
                ..
            } => {
                let mut said = group
                    .iter()
                    .filter_map(|event| outcome_of(event.event.as_ref(), step));
                said.next().is_some_and(|said| said == **outcome)
            }
            Given::ChildEnded(end) => {
                let mut said = group
                    .iter()
                    .filter_map(|event| end_of(event.event.as_ref(), &end.child));
                let said = said.next();
                said.is_some_and(|said| end.end.as_ref().is_some_and(|end| said == **end))
            }
            Given::Effect { outcome: None, .. }
            | Given::Cancel
            | Given::Pause
            | Given::Resume
            | Given::Answer(_)
            | Given::Set(_)
            | Given::Timer(_)
            | Given::EffectCancelled { .. }
            | Given::News
            | Given::Child(_)
            | Given::Live
            | Given::Abandoned(_) => false,
        };
        if !is_said {
            return;
        }
        match self.events[first].given.as_deref_mut() {
            Some(Given::Effect { outcome, .. }) => *outcome = None,
            Some(Given::ChildEnded(end)) => end.end = None,
            Some(
                Given::Cancel
                | Given::Pause
                | Given::Resume
                | Given::Answer(_)
                | Given::Set(_)
                | Given::Timer(_)
                | Given::EffectCancelled { .. }
                | Given::News
                | Given::Child(_)
                | Given::Live
                | Given::Abandoned(_),
            )
            | None => {}
        }
    }
}

/// The outcome of an effect, if the event says it.
pub(super) fn outcome_of<X>(event: EventRef<'_, X>, of: &StepId) -> Option<GivenOutcome> {
    match event {
        EventRef::Kernel(KernelEvent::NodeCompleted { step, outputs, .. }) if step == of => {
            Some(GivenOutcome::Ok(outputs.clone()))
        }
        EventRef::Kernel(
            KernelEvent::NodeFailed { step, error, .. } | KernelEvent::NodeRetried { step, error, .. },
        ) if step == of => Some(GivenOutcome::Failed(error.clone())),
        EventRef::Kernel(_) | EventRef::Dialect(_) => None,
    }
}

/// The results of a child, if the event says them.
pub(super) fn end_of<X>(event: EventRef<'_, X>, of: &RunId) -> Option<GivenResult> {
    match event {
        EventRef::Kernel(KernelEvent::ChildEnded {
            child,
            status,
            outputs,
            report,
            error,
            ..
        }) if child == of => Some(GivenResult {
            status: *status,
            outputs: outputs.clone(),
            report: report.clone(),
            error: error.as_deref().cloned(),
        }),
        EventRef::Kernel(_) | EventRef::Dialect(_) => None,
    }
}
