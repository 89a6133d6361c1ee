//! Children of forks: those that the source created, as far as it says.

use crate::{Dialect, EventRef, Failure, KernelEvent, RunId, StepId, decide::child::CREATION_CODES};

use super::{DecisionBuilder, missing, source::is_note};

impl<'a, D: Dialect> DecisionBuilder<'a, D> {
    /// What a step of a replay that creates a child gets: the child that its source created, or why it could not. `None` in a
    /// run that is no replay.
    pub(in crate::decide) fn recorded_child(&mut self, step: &StepId) -> Option<Result<RunId, Failure>> {
        self.begin_branch();
        if !self.run.is_catching_up() {
            return self.run.is_replay().then(|| Err(missing("its child")));
        }
        let following = self.following.as_ref()?;
        let original = match following.is_aligned {
            true => following.source.at(self.run.head).map(|event| event.event),
            false => {
                let n_known = self
                    .run
                    .children
                    .iter()
                    .filter(|child| child.step == *step)
                    .count();
                let events = following.source.events.iter().map(|event| event.event);
                let mut dispatched = events.filter(|event| {
                    matches!(event, EventRef::Kernel(KernelEvent::NodeDispatched { step: of, .. }) if of == step)
                });
                dispatched.nth(n_known)
            }
        };
        Some(match original {
            Some(EventRef::Kernel(KernelEvent::NodeDispatched { step: of, child, .. })) if of == step => {
                Ok(child.clone())
            }
            Some(EventRef::Kernel(KernelEvent::NodeFailed { step: of, error, .. })) if of == step => {
                Err(error.clone())
            }
            Some(EventRef::Dialect(event)) => {
                Err(D::refused_child(event, step).unwrap_or_else(|| missing("its child")))
            }
            Some(EventRef::Kernel(_)) | None => Err(missing("its child")),
        })
    }

    /// Whether a child of this workflow may be created, as far as the source says it.
    pub(in crate::decide) fn recorded_refusal(&self) -> Option<Result<(), Failure>> {
        if self.is_at_branch() {
            return None;
        }
        if !self.run.is_catching_up() {
            return self.run.is_replay().then_some(Ok(()));
        }
        let following = self.following.as_ref()?;
        let later = following
            .source
            .events
            .iter()
            .filter(|event| event.seq >= self.run.head);
        let original = later
            .filter(|event| !is_note(event))
            .find(|_| following.is_aligned);
        Some(match original.map(|original| original.event) {
            Some(EventRef::Kernel(KernelEvent::NodeFailed { error, .. }))
                if CREATION_CODES.contains(&error.code.as_str()) =>
            {
                Err(error.clone())
            }
            Some(_) | None => Ok(()),
        })
    }
}
