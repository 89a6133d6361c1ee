//! Identifies the values of a run that are artifact contents, so that views show them only to readers of
//! artifacts.
//!
//! An artifact is made of its node's output `text`, or of all outputs if there is none; of an agent's outputs,
//! `text`, `data` and `artifacts` contain its artifacts. The same values
//! appear under the node's name, under a declared variable with the port's name, and in the run's outputs. An
//! artifact as edited by a reviewer is content, too, whichever gate asked for the review. Like the mark for
//! sensitive values, this goes by name and does not follow the value.

use wopr_kernel::Planned as _;

use crate::{
    Node, NodeId, Object, Plan,
    node::{NodeKind, gives_artifacts},
    plan::PlanNode,
};

/// The gate output that replaces an artifact.
const EDITED: &str = "editedArtifactData";
/// Outputs that are artifacts, of nodes that give what an agent made.
const BY_AGENT: [&str; 3] = [TEXT, "data", "artifacts"];
/// The output that is an artifact by itself.
const TEXT: &str = "text";
/// Types whose only output is a text.
const TEXTS: [&str; 3] = ["core.template", "core.stream", "core.ai.callPrompt"];
/// Types whose outputs are their inputs.
const PASSES: [&str; 6] = [
    "core.noop",
    "core.identity",
    "core.start",
    "core.end",
    "core.merge",
    "core.conditional",
];

/// Outputs of all other types that may become part of an artifact.
const GIVEN: [&str; 43] = [
    TEXT,
    "action",
    "answer",
    "answers",
    "approved",
    "artifacts",
    "attestation",
    "body",
    "childRunId",
    "childStatus",
    "children",
    "confidence",
    "content",
    "conversationId",
    "criteria",
    "data",
    "decidedBy",
    "decision",
    "entries",
    "error",
    "event",
    "feedback",
    "hasMore",
    "headers",
    "iteration",
    "joinOutcome",
    "kind",
    "memoryRef",
    "merged",
    "outcome",
    "reason",
    "refineFeedback",
    "result",
    "resumeValue",
    "revision",
    "server",
    "status",
    "structuredContent",
    "successCriteria",
    "tool",
    "turns",
    "verdict",
    "written",
];

impl Plan {
    /// Whether an output is artifact content, given all outputs of its node.
    pub(crate) fn makes_content(&self, node: &NodeId, port: &str, outputs: &Object) -> bool {
        let by_agent = || BY_AGENT.contains(&port) && self.is_agent(node);
        port == EDITED || (self.artifact_of(node).is_some() && (is_shown(port, outputs) || by_agent()))
    }

    /// Whether a chunk of an output, or an output whose siblings are unknown, is artifact content.
    pub(crate) fn may_make_content(&self, node: &NodeId, port: &str) -> bool {
        port == EDITED || self.artifact_of(node).is_some()
    }

    fn is_agent(&self, node: &NodeId) -> bool {
        let position = self.position(node);
        position.is_some_and(|position| gives_artifacts(&self.nodes[position].type_id))
    }

    /// The node whose artifact content a variable contains, because an output of that node becomes the
    /// variable.
    pub(crate) fn maker_of_variable(&self, name: &str) -> Option<&NodeId> {
        let is_declared = self.variables().iter().any(|variable| variable.name == name);
        let is_gate =
            |node: &&PlanNode| matches!(node.kind, NodeKind::Approval(_) | NodeKind::Interrupt { .. });
        if name == EDITED
            && is_declared
            && let Some(gate) = self.nodes.iter().find(is_gate)
        {
            return Some(&gate.id);
        }
        let mut nodes = self.definition.nodes.iter();
        let made = nodes
            .find(|node| is_declared && makes_artifacts(node) && (name == EDITED || may_output(node, name)));
        made.map(|node| &node.id)
    }

    /// The node whose artifact content the run's outputs contain under this name, if a single node ended the
    /// run.
    pub(crate) fn maker_of_result(&self, port: &str, outputs: &Object) -> Option<&NodeId> {
        let ends = self.definition.nodes.iter().zip(&self.nodes);
        let ends = ends.filter(|(_, node)| node.out.iter().all(|&edge| self.edges[edge].slot.is_none()));
        let made = ends.map(|(node, _)| node).find(|node| {
            let by_agent = gives_artifacts(&node.type_id) && BY_AGENT.contains(&port);
            port == EDITED || (makes_artifacts(node) && (is_shown(port, outputs) || by_agent))
        });
        made.map(|node| &node.id)
    }
}

/// A `text` output is the artifact by itself; without one, all outputs are part of it.
fn is_shown(port: &str, outputs: &Object) -> bool {
    port == TEXT || !outputs.contains_key(TEXT)
}

/// What an agent makes are artifacts of the run, whatever its node says.
fn makes_artifacts(node: &Node) -> bool {
    node.artifact_type.is_some() || gives_artifacts(&node.type_id)
}

/// Whether a node may have an output of this name that becomes part of its artifact.
fn may_output(node: &Node, port: &str) -> bool {
    let type_id = node.type_id.as_str();
    if gives_artifacts(type_id) {
        return BY_AGENT.contains(&port);
    }
    if TEXTS.contains(&type_id) {
        return port == TEXT;
    }
    if PASSES.contains(&type_id) {
        return node.inputs.contains_key(port) && (port == TEXT || !node.inputs.contains_key(TEXT));
    }
    GIVEN.contains(&port)
}
