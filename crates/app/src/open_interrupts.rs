//! The open interrupts of a run, as a fold of its log that is small enough to keep for each stream.

use wopr_core::{Asked, Event, InterruptKind, KernelEvent, OpenInterrupt, Plan, Run, RunId, StepId};

/// An interrupt that a run waits for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Waiting {
    /// The step of this run that waits.
    pub step: StepId,
    pub kind: InterruptKind,
    /// How many interrupts the step opened itself before this one.
    pub number: u32,
    /// The child run that asks and its interrupt's id, if the step mirrors a child.
    pub child: Option<(RunId, String)>,
}

impl Waiting {
    /// The interrupt's id, unique within the run and its children.
    #[must_use]
    pub fn id(&self) -> String {
        match &self.child {
            None => self.step.interrupt(self.number),
            Some((_, id)) => id.clone(),
        }
    }
}

impl Waiting {
    /// The interrupt that an event opens, or shows in the place of another one of its step.
    #[must_use]
    pub fn opened_by(event: &KernelEvent) -> Option<Self> {
        let (step, kind, number, child) = if let KernelEvent::InterruptRequested {
            step, kind, number, ..
        } = event
        {
            (step, kind, *number, None)
        } else if let KernelEvent::NodeSuspended {
            step,
            interrupt,
            kind,
            child: Some(child),
            details: _,
        } = event
        {
            (step, kind, 0, Some((child.clone(), interrupt.clone())))
        } else {
            return None;
        };
        Some(Self {
            step: step.clone(),
            kind: *kind,
            number,
            child,
        })
    }
}

impl From<&OpenInterrupt<'_>> for Waiting {
    fn from(open: &OpenInterrupt<'_>) -> Self {
        Self {
            step: open.step(),
            kind: open.kind(),
            number: match open.asked {
                Asked::Here(asked) => asked.number,
                Asked::Child(..) => 0,
            },
            child: match open.asked {
                Asked::Here(_) => None,
                Asked::Child(run, _, id) => Some((run.clone(), id.to_owned())),
            },
        }
    }
}

/// Open interrupts, in the order of their requests.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct OpenInterrupts(Vec<Waiting>);

impl OpenInterrupts {
    /// The open interrupts of a run as of its head.
    #[must_use]
    pub fn of(run: &Run, plan: &Plan) -> Self {
        Self(run.interrupts(plan).map(|open| Waiting::from(&open)).collect())
    }

    #[must_use]
    pub fn as_slice(&self) -> &[Waiting] {
        &self.0
    }

    fn remove(&mut self, is_over: impl Fn(&Waiting) -> bool) -> bool {
        let n_before = self.0.len();
        self.0.retain(|open| !is_over(open));
        self.0.len() < n_before
    }

    /// Applies an event. Returns `true` if it opened, replaced or closed an interrupt.
    pub fn apply(&mut self, event: &Event) -> bool {
        let Event::Kernel(event) = event else {
            return false;
        };
        match event {
            KernelEvent::RunCompleted { .. }
            | KernelEvent::RunFailed { .. }
            | KernelEvent::RunCancelled { .. } => {
                let was_open = !self.0.is_empty();
                self.0.clear();
                was_open
            }
            KernelEvent::InterruptRequested { .. } | KernelEvent::NodeSuspended { child: Some(_), .. } => {
                let Some(opened) = Waiting::opened_by(event) else {
                    return false;
                };
                // A child asks one thing at a time, as far as its parent knows.
                let child = opened.child.as_ref().map(|(child, _)| child);
                let is_same = |known: &&mut Waiting| {
                    known.step == opened.step && known.child.as_ref().map(|(child, _)| child) == child
                };
                match self.0.iter_mut().find(is_same) {
                    Some(known) => *known = opened,
                    None => self.0.push(opened),
                }
                true
            }
            // A node's own interrupt is resolved before the node continues.
            KernelEvent::InterruptResolved { step, number, .. } => {
                self.remove(|open| open.step == *step && open.child.is_none() && open.number == *number)
            }
            KernelEvent::NodeResumed { step, interrupt, .. } => {
                self.remove(|open| open.step == *step && open.id() == *interrupt)
            }
            // A mirrored interrupt closes together with its node.
            KernelEvent::NodeCompleted { step, .. }
            | KernelEvent::NodeFailed { step, .. }
            | KernelEvent::NodeCancelled { step, .. } => self.remove(|open| open.step == *step),
            KernelEvent::RunStarted(_)
            | KernelEvent::CancelRequested { .. }
            | KernelEvent::RunPaused { .. }
            | KernelEvent::RunResumed { .. }
            | KernelEvent::ArtifactCreated { .. }
            | KernelEvent::MemoryWritten(_)
            | KernelEvent::MemoryCompacted { .. }
            | KernelEvent::OutputChunk { .. }
            | KernelEvent::NodeSuspended { child: None, .. }
            | KernelEvent::NodeStarted { .. }
            | KernelEvent::NodeRetried { .. }
            | KernelEvent::NodeSkipped { .. }
            | KernelEvent::NodeDispatched { .. }
            | KernelEvent::ChildEnded { .. }
            | KernelEvent::EffectScheduled { .. }
            | KernelEvent::EffectAccepted { .. }
            | KernelEvent::EffectProgressed { .. }
            | KernelEvent::EffectEnded { .. }
            | KernelEvent::ApprovalRequested { .. }
            | KernelEvent::ApprovalVoted { .. }
            | KernelEvent::ApprovalReceived { .. }
            | KernelEvent::ClarificationRequested { .. }
            | KernelEvent::ClarificationResolved { .. }
            | KernelEvent::CapBreached { .. }
            | KernelEvent::ReplayDiverged { .. }
            | KernelEvent::RefusalDiverged { .. }
            | KernelEvent::ForkResumed { .. } => false,
        }
    }
}
