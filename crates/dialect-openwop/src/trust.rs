//! Tracks which content of a run is untrusted: written by somebody outside this host whom the host does not
//! vouch for.
//!
//! Untrusted content enters with a run that another agent started, and with an answer from another agent or
//! by a token. It is tracked by name: the variables, channels and nodes whose values contain some. Any result
//! of an expression or a template counts as untrusted as soon as the run holds untrusted content, because an
//! expression may read everything.

use std::collections::BTreeSet;

use serde::{Deserialize, Serialize};
use serde_json::Value;

use wopr_kernel::{EventRef, KernelEvent, Phase, Planned as _, RecordedRef, Run, RunStarted};

use crate::{Event, Failure, NodeId, Object, Orchestration, Plan, State};

/// The names under which a run holds untrusted content.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct Untrusted {
    #[serde(skip_serializing_if = "BTreeSet::is_empty")]
    pub variables: BTreeSet<String>,
    #[serde(skip_serializing_if = "BTreeSet::is_empty")]
    pub channels: BTreeSet<String>,
    /// Nodes whose outputs are untrusted.
    #[serde(skip_serializing_if = "BTreeSet::is_empty")]
    pub nodes: BTreeSet<NodeId>,
}

impl Untrusted {
    /// No names.
    pub const NONE: Self = Self {
        variables: BTreeSet::new(),
        channels: BTreeSet::new(),
        nodes: BTreeSet::new(),
    };

    /// Whether no name is marked. The run's inputs are not listed here once its variables have other values;
    /// see [`State::holds_untrusted`].
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.variables.is_empty() && self.channels.is_empty() && self.nodes.is_empty()
    }

    /// Updates the names for an event that has been applied.
    pub(crate) fn follow(&mut self, plan: &Plan, recorded: RecordedRef<'_, Event>) {
        let is_untrusted = recorded.is_untrusted;
        match Content::of(recorded.event) {
            Content::Inputs(started) if is_untrusted => {
                self.variables.extend(started.inputs.keys().cloned());
            }
            Content::Variable { name, .. } => mark(&mut self.variables, name, is_untrusted),
            // A channel keeps the values folded into it.
            Content::Channel { channel, .. } if is_untrusted => {
                self.channels.insert(channel.to_owned());
                self.variables.insert(channel.to_owned());
            }
            Content::Outputs { node, outputs } => {
                self.mark_node(node, is_untrusted);
                for port in outputs.keys() {
                    let name = if plan.declares(port) { port } else { node.as_str() };
                    mark(&mut self.variables, name, is_untrusted);
                }
            }
            // Expressions read a failure's message under the node's name.
            Content::Failure { node } => self.mark_node(node, is_untrusted),
            Content::Inputs(_)
            | Content::Channel { .. }
            | Content::Answer { .. }
            | Content::Question { .. }
            | Content::Artifact { .. }
            | Content::Words { .. }
            | Content::Results
            | Content::RunFailure { .. }
            | Content::None => {}
        }
    }

    fn mark_node(&mut self, node: &NodeId, is_untrusted: bool) {
        if is_untrusted {
            self.nodes.insert(node.clone());
        } else {
            self.nodes.remove(node);
        }
    }
}

/// The part of an event that can carry untrusted content into a run or out of it.
#[derive(Debug)]
pub(crate) enum Content<'e> {
    Inputs(&'e RunStarted),
    Answer {
        node: &'e NodeId,
    },
    Question {
        node: &'e NodeId,
    },
    Outputs {
        node: &'e NodeId,
        outputs: &'e Object,
    },
    Artifact {
        node: &'e NodeId,
        content: &'e Value,
    },
    /// A chunk of streamed text, or the reason why an attempt failed.
    Words {
        node: &'e NodeId,
    },
    /// A node's failure: an evaluation error, a reviewer's comment, or a child's failure.
    Failure {
        node: &'e NodeId,
    },
    /// A write to a channel.
    Channel {
        channel: &'e str,
        node: &'e NodeId,
    },
    Variable {
        name: &'e str,
        node: Option<&'e NodeId>,
    },
    /// The outputs of the run.
    Results,
    RunFailure {
        error: &'e Failure,
        node: Option<&'e NodeId>,
    },
    /// Only text of the host itself.
    None,
}

impl<'e> Content<'e> {
    pub(crate) fn of(event: EventRef<'e, Event>) -> Self {
        let event = match event {
            EventRef::Kernel(event) => event,
            EventRef::Dialect(Event::Orchestration(event)) => {
                return match event {
                    Orchestration::Decided { step, .. }
                    | Orchestration::ConfidenceEscalated { step, .. }
                    | Orchestration::HandoffFailed { step, .. } => Self::Words { node: &step.node },
                    Orchestration::HandoffBegan { .. }
                    | Orchestration::HandoffSucceeded { .. }
                    | Orchestration::Harvested { .. }
                    | Orchestration::FannedOut { .. }
                    | Orchestration::Joined { .. }
                    | Orchestration::ContextSummarized { .. } => Self::None,
                };
            }
            EventRef::Dialect(Event::ChannelWritten { channel, node, .. }) => {
                return Self::Channel { channel, node };
            }
            EventRef::Dialect(Event::PromptComposed { step, .. } | Event::Envelope { step, .. }) => {
                return Self::Words { node: &step.node };
            }
            EventRef::Dialect(Event::ProviderUsage { .. }) => return Self::None,
            EventRef::Dialect(Event::VariableChanged { name, node, .. }) => {
                return Self::Variable {
                    name,
                    node: node.as_ref(),
                };
            }
            EventRef::Dialect(Event::Conversation(event)) => {
                return Self::Words {
                    node: &event.step.node,
                };
            }
            EventRef::Dialect(Event::Agent(event)) => {
                return Self::Words {
                    node: &event.step.node,
                };
            }
        };
        match event {
            KernelEvent::RunStarted(started) => Self::Inputs(started),
            KernelEvent::InterruptResolved { step, .. }
            | KernelEvent::ApprovalVoted { step, .. }
            | KernelEvent::ApprovalReceived { step, .. }
            | KernelEvent::ClarificationResolved { step, .. }
            | KernelEvent::NodeResumed { step, .. }
            | KernelEvent::ChildEnded { step, .. } => Self::Answer { node: &step.node },
            KernelEvent::InterruptRequested { step, .. }
            | KernelEvent::ApprovalRequested { step, .. }
            | KernelEvent::ClarificationRequested { step, .. } => Self::Question { node: &step.node },
            KernelEvent::NodeCompleted { step, outputs, .. } => Self::Outputs {
                node: &step.node,
                outputs,
            },
            KernelEvent::ArtifactCreated { step, content, .. } => Self::Artifact {
                node: &step.node,
                content,
            },
            KernelEvent::OutputChunk { step, .. }
            | KernelEvent::NodeRetried { step, .. }
            | KernelEvent::EffectScheduled { step, .. }
            | KernelEvent::EffectProgressed { step, .. }
            | KernelEvent::EffectEnded { step, .. } => Self::Words { node: &step.node },
            KernelEvent::MemoryWritten(written) => Self::Words {
                node: &written.step.node,
            },
            KernelEvent::NodeFailed { step, .. } => Self::Failure { node: &step.node },
            KernelEvent::RunCompleted { .. } => Self::Results,
            KernelEvent::RunFailed { error, node } => Self::RunFailure {
                error,
                node: node.as_ref(),
            },
            KernelEvent::RunCancelled { .. }
            | KernelEvent::CancelRequested { .. }
            | KernelEvent::RunPaused { .. }
            | KernelEvent::RunResumed { .. }
            | KernelEvent::NodeStarted { .. }
            | KernelEvent::NodeSkipped { .. }
            | KernelEvent::NodeCancelled { .. }
            | KernelEvent::NodeSuspended { .. }
            | KernelEvent::NodeDispatched { .. }
            | KernelEvent::EffectAccepted { .. }
            | KernelEvent::MemoryCompacted { .. }
            | KernelEvent::CapBreached { .. }
            | KernelEvent::ReplayDiverged { .. }
            | KernelEvent::RefusalDiverged { .. }
            | KernelEvent::ForkResumed { .. } => Self::None,
        }
    }
}

fn mark(names: &mut BTreeSet<String>, name: &str, is_untrusted: bool) {
    if !is_untrusted {
        names.remove(name);
    } else if !names.contains(name) {
        names.insert(name.to_owned());
    }
}

impl State {
    /// Whether expressions and templates can read any untrusted content. The run's inputs stay readable as
    /// `inputs` whatever happens to the variables.
    #[must_use]
    pub fn holds_untrusted(&self, run: &Run) -> bool {
        let is_given = |started: &RunStarted| {
            started.is_untrusted() && !(started.inputs.is_empty() && started.configurable.is_empty())
        };
        !self.untrusted.is_empty() || run.started.as_deref().is_some_and(is_given)
    }

    /// Whether `failure` is the failure of a node whose failure contains untrusted content, or names the failure of
    /// an untrusted worker.
    #[must_use]
    pub fn is_untrusted_failure(
        &self,
        run: &Run,
        plan: &Plan,
        failure: &Failure,
        node: Option<&NodeId>,
    ) -> bool {
        if failure.worker.as_ref().is_some_and(|worker| worker.is_untrusted) {
            return true;
        }
        let Some(node) = node.filter(|node| self.untrusted.nodes.contains(*node)) else {
            return false;
        };
        let state = plan.position(node).and_then(|position| run.nodes.get(position));
        state.is_some_and(|state| matches!(&state.phase, Phase::Failed(own) if own == failure))
    }
}
