//! The open interrupts of a run, as a fold of its log that is small enough to keep for each stream.

use wopr_core::{Asked, Event, InterruptKind, OpenInterrupt, Plan, Run, RunId, StepId};

/// An interrupt that a run waits for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Waiting {
    /// The step of this run that waits.
    pub step: StepId,
    pub kind: InterruptKind,
    /// The child run that asks and its interrupt's id, if the step mirrors a child.
    pub child: Option<(RunId, String)>,
}

impl Waiting {
    /// The interrupt's id, unique within the run and its children.
    #[must_use]
    pub fn id(&self) -> String {
        match &self.child {
            None => self.step.key(),
            Some((_, id)) => id.clone(),
        }
    }
}

impl From<&OpenInterrupt<'_>> for Waiting {
    fn from(open: &OpenInterrupt<'_>) -> Self {
        Self {
            step: StepId {
                node: open.node.clone(),
                ordinal: open.ordinal,
            },
            kind: open.kind(),
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

    /// Applies an event. Returns `true` if it opened, replaced or closed an interrupt.
    pub fn apply(&mut self, event: &Event) -> bool {
        match event {
            Event::RunCompleted { .. } | Event::RunFailed { .. } | Event::RunCancelled { .. } => {
                let was_open = !self.0.is_empty();
                self.0.clear();
                was_open
            }
            Event::InterruptRequested { step, kind, .. } => {
                self.0.push(Waiting {
                    step: step.clone(),
                    kind: *kind,
                    child: None,
                });
                true
            }
            Event::NodeSuspended {
                step,
                interrupt,
                kind,
                child: Some(child),
            } => {
                let asks = Waiting {
                    step: step.clone(),
                    kind: *kind,
                    child: Some((child.clone(), interrupt.clone())),
                };
                match self.0.iter_mut().find(|known| known.step == *step) {
                    Some(known) => *known = asks,
                    None => self.0.push(asks),
                }
                true
            }
            // A node's own interrupt is resolved before the node continues; a mirrored one closes together
            // with its node.
            Event::InterruptResolved { step, .. }
            | Event::NodeResumed { step, .. }
            | Event::NodeCompleted { step, .. }
            | Event::NodeFailed { step, .. }
            | Event::NodeCancelled { step, .. } => {
                let n_before = self.0.len();
                self.0.retain(|open| open.step != *step);
                self.0.len() < n_before
            }
            Event::RunStarted(_)
            | Event::CancelRequested { .. }
            | Event::RunPaused { .. }
            | Event::RunResumed { .. }
            | Event::ArtifactCreated { .. }
            | Event::OutputChunk { .. }
            | Event::NodeSuspended { child: None, .. }
            | Event::NodeStarted { .. }
            | Event::NodeRetried { .. }
            | Event::NodeSkipped { .. }
            | Event::NodeDispatched { .. }
            | Event::ApprovalRequested { .. }
            | Event::ApprovalVoted { .. }
            | Event::ApprovalReceived { .. }
            | Event::ClarificationRequested { .. }
            | Event::ClarificationResolved { .. }
            | Event::VariableChanged { .. }
            | Event::ChannelWritten { .. }
            | Event::CapBreached { .. } => false,
        }
    }
}
