//! What a fork knows of its source, and how far it follows it.

use crate::{EventRef, Fork, KernelEvent, RecordedRef, Seq, StepId};

/// A stretch of the log of the run that a fork comes from.
#[derive(Debug)]
pub struct Source<'a, X> {
    pub(super) events: Vec<RecordedRef<'a, X>>,
}

impl<'a, X> Source<'a, X> {
    /// Takes events without gaps. They end with the source's log, or hold the whole of the next decision of the
    /// source.
    #[must_use]
    pub const fn new(events: Vec<RecordedRef<'a, X>>) -> Self {
        Self { events }
    }

    pub(super) fn at(&self, seq: Seq) -> Option<RecordedRef<'a, X>> {
        let first = self.events.first()?.seq;
        let index = usize::try_from(seq.0.checked_sub(first.0)?).ok()?;
        self.events.get(index).copied()
    }

    /// The events that followed from what was given at `seq`, including that one.
    pub(super) fn group(&self, seq: Seq) -> &[RecordedRef<'a, X>] {
        let first = self.events.first().map_or(seq, |event| event.seq);
        let index = seq
            .0
            .checked_sub(first.0)
            .and_then(|index| usize::try_from(index).ok());
        let Some(rest) = index.and_then(|index| self.events.get(index..)) else {
            return &[];
        };
        let next = rest.iter().skip(1).position(|event| event.given.is_some());
        next.map_or(rest, |n| &rest[..=n])
    }

    /// Whether all of the group at `seq` is known.
    pub(super) fn has_group(&self, seq: Seq, until: Seq) -> bool {
        let group = self.group(seq);
        let end = group.last().map(|last| last.seq.next());
        end.is_some_and(|end| end == until || self.at(end).is_some())
    }
}

/// How a fork follows its source within a decision.
#[derive(Debug)]
pub(in crate::decide) struct Following<'a, X> {
    pub(super) fork: Fork,
    pub(super) source: Source<'a, X>,
    /// Whether the events of the source say what comes next: those of the fork are the same so far.
    pub(super) is_aligned: bool,
    /// Whether no event has followed yet from what was given last.
    pub(super) is_first: bool,
    /// An event before `from` that the fork would not have had.
    pub(super) lost_at: Option<Seq>,
    /// The steps that have to begin again, because a fork went on by itself. Present, though empty, also if it had none:
    /// a paused run resumes with it.
    pub(super) begin_again: Option<Vec<StepId>>,
}

impl<X> Following<'_, X> {
    pub(in crate::decide) const fn lost_at(&self) -> Option<Seq> {
        self.lost_at
    }
}

impl<X> Default for Source<'_, X> {
    fn default() -> Self {
        Self { events: Vec::new() }
    }
}

/// Whether an event only says that a fork went on by itself or differs, in the middle of what followed from an input.
pub(super) fn is_note<X>(event: &RecordedRef<'_, X>) -> bool {
    let is_note = matches!(
        event.event,
        EventRef::Kernel(KernelEvent::ReplayDiverged { .. } | KernelEvent::ForkResumed { .. })
    );
    is_note && event.given.is_none()
}
