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
        match &recorded.event {
            Event::RunStarted(started) if is_untrusted => {
                self.variables.extend(started.inputs.keys().cloned());
            }
            Event::VariableChanged { name, .. } => mark(&mut self.variables, name, is_untrusted),
            // What a channel has folded in stays in it.
            Event::ChannelWritten { channel, .. } if is_untrusted => {
                self.channels.insert(channel.clone());
                self.variables.insert(channel.clone());
            }
            Event::NodeCompleted { visit, outputs, .. } => {
                if is_untrusted {
                    self.nodes.insert(visit.node.clone());
                } else {
                    self.nodes.remove(&visit.node);
                }
                for port in outputs.keys() {
                    let name = if plan.declares(port) {
                        port
                    } else {
                        visit.node.as_str()
                    };
                    mark(&mut self.variables, name, is_untrusted);
                }
            }
            // Expressions see what a failure says under the node's name.
            Event::NodeFailed { visit, .. } => {
                if is_untrusted {
                    self.nodes.insert(visit.node.clone());
                } else {
                    self.nodes.remove(&visit.node);
                }
            }
            Event::RunStarted(_)
            | Event::ChannelWritten { .. }
            | Event::RunCompleted { .. }
            | Event::RunFailed { .. }
            | Event::RunCancelled { .. }
            | Event::CancelRequested { .. }
            | Event::RunPaused { .. }
            | Event::RunResumed { .. }
            | Event::NodeStarted { .. }
            | Event::NodeRetried { .. }
            | Event::NodeSkipped { .. }
            | Event::NodeCancelled { .. }
            | Event::NodeSuspended { .. }
            | Event::NodeResumed { .. }
            | Event::NodeDispatched { .. }
            | Event::InterruptRequested { .. }
            | Event::InterruptResolved { .. }
            | Event::ApprovalRequested { .. }
            | Event::ApprovalVoted { .. }
            | Event::ApprovalReceived { .. }
            | Event::ClarificationRequested { .. }
            | Event::ClarificationResolved { .. }
            | Event::ArtifactCreated { .. }
            | Event::OutputChunk { .. }
            | Event::CapBreached { .. } => {}
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
