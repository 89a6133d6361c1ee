//! Compares what a fork decides with what its source decided. Before the event at which the fork begins, the source is
//! right; from there on, the first difference is recorded.

use crate::{Dialect, Divergence, Event, EventRef, KernelEvent, RecordedRef, Seq, StepId};

use super::{DecisionBuilder, owned, source::is_note};

impl<'a, D: Dialect> DecisionBuilder<'a, D> {
    /// The event that is recorded for one that the fork decided: compared with the source's, before which notes may
    /// be recorded.
    pub(in crate::decide) fn compared(&mut self, event: Event<D::Event>) -> Event<D::Event> {
        self.repeat_notes();
        if self.go_live_if_at_branch() {
            return event;
        }
        let head = self.run.head;
        let Some(following) = &mut self.following else {
            return event;
        };
        let is_first = std::mem::replace(&mut following.is_first, false);
        if !following.is_aligned || following.lost_at.is_some() {
            return event;
        }
        let Some(original) = following.source.at(head) else {
            return event;
        };
        let kind = if original.given.is_some() && !is_first {
            Divergence::Extra
        } else if is_same(event.as_ref(), original.event) {
            return event;
        } else if is_alike(event.as_ref(), original.event) {
            Divergence::Output
        } else {
            Divergence::TypeMismatch
        };
        match (head < following.fork.from, kind) {
            // History is what it is.
            (true, Divergence::Output) => owned::<D>(original.event),
            (true, Divergence::Extra | Divergence::TypeMismatch | Divergence::Missing) => {
                following.lost_at = Some(head);
                event
            }
            (false, kind) => {
                let point = point_of(event.as_ref());
                let given = self.given.take();
                self.diverge(head, kind, point);
                self.given = given;
                event
            }
        }
    }

    /// Whether a decision of the source ended after the last event, because the source was then given something else.
    pub(in crate::decide) fn source_paused(&self) -> Option<bool> {
        if self.is_at_branch() {
            return None;
        }
        let following = self.following.as_ref().filter(|following| following.is_aligned)?;
        let next = following.source.at(self.run.head)?;
        Some(next.given.is_some() && !following.is_first)
    }

    /// Records where the fork and its source part.
    pub(super) fn diverge(&mut self, at: Seq, kind: Divergence, point: Option<String>) {
        let Some(following) = &mut self.following else {
            return;
        };
        if !following.is_aligned {
            return;
        }
        if at < following.fork.from {
            following.lost_at = Some(at);
            return;
        }
        following.is_aligned = false;
        if self.run.status.is_terminal() {
            return;
        }
        let source = following.fork.source.clone();
        let following = self.following.take();
        let note = KernelEvent::ReplayDiverged {
            source,
            at,
            kind,
            point,
        };
        self.record(self.last(), note);
        self.following = following;
    }

    pub(super) fn note_of_source(&self) -> Option<RecordedRef<'a, D::Event>> {
        let following = self.following.as_ref().filter(|following| following.is_aligned)?;
        let next = following.source.at(self.run.head)?;
        let is_due = is_note(&next) && !self.is_at_branch() && !self.run.status.is_terminal();
        is_due.then_some(next)
    }

    /// Repeats the notes that the source, a fork itself, has in the middle of what followed from one input.
    pub(super) fn repeat_notes(&mut self) {
        while let Some(note) = self.note_of_source() {
            let (given, now) = (self.given.take(), self.input.now);
            self.repeat(note);
            if matches!(note.event, EventRef::Kernel(KernelEvent::ForkResumed { .. })) {
                self.note_begin_again();
            }
            self.given = given;
            self.input.now = now.max(self.run.updated_at);
        }
    }
}

fn is_same<X: PartialEq>(a: EventRef<'_, X>, b: EventRef<'_, X>) -> bool {
    match (a, b) {
        // A fork's own says where it comes from.
        (EventRef::Kernel(KernelEvent::RunStarted(_)), EventRef::Kernel(KernelEvent::RunStarted(_))) => true,
        (EventRef::Kernel(a), EventRef::Kernel(b)) => a == b,
        (EventRef::Dialect(a), EventRef::Dialect(b)) => a == b,
        (EventRef::Kernel(_), EventRef::Dialect(_)) | (EventRef::Dialect(_), EventRef::Kernel(_)) => false,
    }
}

/// Whether two events say the same of the same node, with whatever content.
fn is_alike<X>(a: EventRef<'_, X>, b: EventRef<'_, X>) -> bool {
    match (a, b) {
        (EventRef::Kernel(x), EventRef::Kernel(y)) => {
            std::mem::discriminant(x) == std::mem::discriminant(y) && point_of(a) == point_of(b)
        }
        (EventRef::Dialect(a), EventRef::Dialect(b)) => {
            std::mem::discriminant(a) == std::mem::discriminant(b)
        }
        (EventRef::Kernel(_), EventRef::Dialect(_)) | (EventRef::Dialect(_), EventRef::Kernel(_)) => false,
    }
}

/// The execution, or the node, that an event is about.
fn point_of<X>(event: EventRef<'_, X>) -> Option<String> {
    match event {
        EventRef::Kernel(KernelEvent::NodeSkipped { node, .. }) => Some(node.to_string()),
        EventRef::Kernel(event) => crate::invariant::step_of(event).map(StepId::key),
        EventRef::Dialect(_) => None,
    }
}
