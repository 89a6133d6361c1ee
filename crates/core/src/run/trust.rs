//! Which content of a run comes from outside, from somebody nobody here vouches for.
//!
//! A run that another agent started, and an answer of another agent or by a token, bring such content. It is followed
//! by name: the variables, channels and nodes whose value has some in it. What an expression or a template makes counts
//! as such as soon as the run holds any, since an expression may read everything.

use std::collections::BTreeSet;

use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::{Event, Failure, NodeId, Object, Plan, Recorded, RunStarted};

use super::{Phase, Run};

/// What marks content in documents.
pub const CONTENT_TRUST: &str = "contentTrust";
/// The mark.
pub const UNTRUSTED: &str = "untrusted";

/// The names under which a run holds untrusted content.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct Untrusted {
    /// Variables.
    #[serde(skip_serializing_if = "BTreeSet::is_empty")]
    pub variables: BTreeSet<String>,
    /// Channels.
    #[serde(skip_serializing_if = "BTreeSet::is_empty")]
    pub channels: BTreeSet<String>,
    /// Nodes, for their outputs.
    #[serde(skip_serializing_if = "BTreeSet::is_empty")]
    pub nodes: BTreeSet<NodeId>,
}

impl Untrusted {
    /// Whether nothing is marked by name. What a run was given is not named here once its variables have other values:
    /// see [`Run::holds_untrusted`].
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.variables.is_empty() && self.channels.is_empty() && self.nodes.is_empty()
    }

    /// Follows an event that has been applied.
    pub(super) fn follow(&mut self, plan: &Plan, recorded: &Recorded) {
        let is_untrusted = recorded.is_untrusted;
        match Content::of(&recorded.event) {
            Content::Inputs(started) if is_untrusted => {
                self.variables.extend(started.inputs.keys().cloned());
            }
            Content::Variable { name, .. } => mark(&mut self.variables, name, is_untrusted),
            // What a channel has folded in stays in it.
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
            // Expressions see what a failure says under the node's name.
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

/// What an event brings into a run, or takes out of it, that somebody may have said.
#[derive(Debug)]
pub(crate) enum Content<'e> {
    /// What the run was begun with.
    Inputs(&'e RunStarted),
    /// An answer to a node.
    Answer { node: &'e NodeId },
    /// What a node asks.
    Question { node: &'e NodeId },
    /// What a node made.
    Outputs { node: &'e NodeId, outputs: &'e Object },
    /// A document that a node made.
    Artifact { node: &'e NodeId, content: &'e Value },
    /// A piece of a text that a node says, or why an attempt of it failed.
    Words { node: &'e NodeId },
    /// Why a node failed: what was evaluated, what a reviewer said, or what a child failed with.
    Failure { node: &'e NodeId },
    /// What a node adds to a channel.
    Channel { channel: &'e str, node: &'e NodeId },
    /// The value of a variable.
    Variable { name: &'e str, node: Option<&'e NodeId> },
    /// What the run ended with.
    Results,
    /// Why the run failed.
    RunFailure {
        error: &'e Failure,
        node: Option<&'e NodeId>,
    },
    /// Nothing but the host's own words.
    None,
}

impl<'e> Content<'e> {
    pub(crate) fn of(event: &'e Event) -> Self {
        match event {
            Event::RunStarted(started) => Self::Inputs(started),
            Event::InterruptResolved { step, .. }
            | Event::ApprovalVoted { step, .. }
            | Event::ApprovalReceived { step, .. }
            | Event::ClarificationResolved { step, .. }
            | Event::NodeResumed { step, .. } => Self::Answer { node: &step.node },
            Event::InterruptRequested { step, .. }
            | Event::ApprovalRequested { step, .. }
            | Event::ClarificationRequested { step, .. } => Self::Question { node: &step.node },
            Event::NodeCompleted { step, outputs, .. } => Self::Outputs {
                node: &step.node,
                outputs,
            },
            Event::ArtifactCreated { step, content, .. } => Self::Artifact {
                node: &step.node,
                content,
            },
            Event::OutputChunk { step, .. } | Event::NodeRetried { step, .. } => {
                Self::Words { node: &step.node }
            }
            Event::NodeFailed { step, .. } => Self::Failure { node: &step.node },
            Event::ChannelWritten { channel, node, .. } => Self::Channel { channel, node },
            Event::VariableChanged { name, node, .. } => Self::Variable {
                name,
                node: node.as_ref(),
            },
            Event::RunCompleted { .. } => Self::Results,
            Event::RunFailed { error, node } => Self::RunFailure {
                error,
                node: node.as_ref(),
            },
            Event::RunCancelled { .. }
            | Event::CancelRequested { .. }
            | Event::RunPaused { .. }
            | Event::RunResumed { .. }
            | Event::NodeStarted { .. }
            | Event::NodeSkipped { .. }
            | Event::NodeCancelled { .. }
            | Event::NodeSuspended { .. }
            | Event::NodeDispatched { .. }
            | Event::CapBreached { .. } => Self::None,
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

/// Whether fields say of themselves that they are untrusted.
pub(crate) fn says_untrusted(fields: &Object) -> bool {
    fields.get(CONTENT_TRUST).and_then(Value::as_str) == Some(UNTRUSTED)
}

impl Run {
    /// Whether anything that expressions and templates may read comes from outside. What the run was given stays
    /// readable as `inputs`, whatever becomes of the variables.
    #[must_use]
    pub fn holds_untrusted(&self) -> bool {
        let is_given = |started: &RunStarted| {
            started.is_untrusted() && !(started.inputs.is_empty() && started.configurable.is_empty())
        };
        !self.untrusted.is_empty() || self.started.as_deref().is_some_and(is_given)
    }

    /// Whether a failure is that of a node whose failure has untrusted content in it.
    #[must_use]
    pub fn is_untrusted_failure(&self, plan: &Plan, failure: &Failure, node: Option<&NodeId>) -> bool {
        let Some(node) = node.filter(|node| self.untrusted.nodes.contains(*node)) else {
            return false;
        };
        let state = plan.position(node).and_then(|position| self.nodes.get(position));
        state.is_some_and(|state| matches!(&state.phase, Phase::Failed(own) if own == failure))
    }
}

impl RunStarted {
    /// Whether the run was begun with content from outside.
    #[must_use]
    pub fn is_untrusted(&self) -> bool {
        says_untrusted(&self.metadata)
    }
}
