//! Sizes of events, by which decisions and logs are bounded.
//!
//! A size estimates the bytes that an event takes in the store. Every fold computes it for every event, so it is cheap: it
//! counts the values that a workflow, a caller or a peer can make large, and one constant for names, ids and codes.

use serde_json::Value;

use crate::{
    Dialect, EventRef, Failure, KernelEvent, RunStarted,
    measure::{size_of, size_of_object},
};

/// Bytes of an event besides its values.
const ENVELOPE: usize = 128;
/// Bytes of the decision about one edge.
const EDGE: usize = 6;

/// The approximate size in bytes of an event in the store.
pub(crate) fn size_of_event<D: Dialect>(event: EventRef<'_, D::Event>) -> u64 {
    let n_bytes = match event {
        EventRef::Kernel(event) => event.size(),
        EventRef::Dialect(event) => D::size_of(event),
    };
    (ENVELOPE + n_bytes) as u64
}

impl KernelEvent {
    /// The approximate size in bytes of its values.
    fn size(&self) -> usize {
        match self {
            Self::RunStarted(started) => started.size(),
            Self::RunCompleted { outputs } => size_of_object(outputs),
            Self::RunFailed { error, .. } => of_failure(error),
            Self::NodeCompleted { outputs, routing, .. } => size_of_object(outputs) + EDGE * routing.len(),
            Self::NodeFailed { error, routing, .. } => of_failure(error) + EDGE * routing.len(),
            Self::NodeRetried { error, .. } => of_failure(error),
            Self::ChildEnded {
                outputs,
                report,
                error,
                ..
            } => size_of_object(outputs) + size_of_object(report) + error.as_deref().map_or(0, of_failure),
            Self::EffectScheduled { activity, .. } => {
                activity.as_ref().map_or(0, |activity| size_of(&activity.input))
            }
            Self::EffectAccepted { handle: value, .. } | Self::EffectProgressed { details: value, .. } => {
                size_of(value)
            }
            Self::EffectEnded { outcome, .. } => size_of_object(outcome),
            Self::InterruptRequested { data, .. } | Self::ApprovalRequested { data, .. } => size_of(data),
            Self::InterruptResolved { value, .. } => of_option(value.as_ref()),
            Self::ApprovalVoted { voter, feedback, .. } => voter.len() + of_text(feedback.as_ref()),
            Self::ApprovalReceived {
                feedback,
                refine,
                edited,
                ..
            } => of_text(feedback.as_ref()) + of_option(refine.as_ref()) + of_option(edited.as_ref()),
            Self::ClarificationRequested { questions, .. } => size_of(questions),
            Self::ClarificationResolved { answers, .. } => size_of_object(answers),
            Self::ArtifactCreated { content, .. } => size_of(content),
            Self::MemoryWritten(written) => written.content.len(),
            Self::MemoryCompacted { sources, .. } => sources.iter().map(String::len).sum(),
            Self::OutputChunk { chunk, .. } => chunk.len(),
            Self::RunPaused { reason, cut, .. } => {
                let nodes = cut.iter().map(|cut| cut.step.node.as_str().len());
                of_text(reason.as_ref()) + nodes.sum::<usize>()
            }
            Self::RunCancelled { reason, .. }
            | Self::CancelRequested { reason, .. }
            | Self::RunResumed { reason } => of_text(reason.as_ref()),
            Self::NodeStarted { .. }
            | Self::NodeSkipped { .. }
            | Self::NodeCancelled { .. }
            | Self::NodeSuspended { .. }
            | Self::NodeResumed { .. }
            | Self::NodeDispatched { .. }
            | Self::CapBreached { .. }
            | Self::ReplayDiverged { .. }
            | Self::RefusalDiverged { .. }
            | Self::ForkResumed { .. } => 0,
        }
    }
}

impl RunStarted {
    fn size(&self) -> usize {
        let objects = [&self.inputs, &self.configurable, &self.metadata];
        let tags = self.tags.iter().map(String::len);
        objects.map(size_of_object).iter().sum::<usize>() + tags.sum::<usize>()
    }
}

fn of_failure(failure: &Failure) -> usize {
    failure.message.len()
}

fn of_option(value: Option<&Value>) -> usize {
    value.map_or(0, size_of)
}

fn of_text(text: Option<&String>) -> usize {
    text.map_or(0, String::len)
}
