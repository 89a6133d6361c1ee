//! Which values of a run are the contents of artifacts, so that views can leave them to readers of artifacts.
//!
//! An artifact is made of the output `text` of its node, or of all outputs of a node without one; those are found under
//! the node's name, under a declared variable of the port's name, and in what a run ended with. What a reviewer put in
//! the place of an artifact is content too, whichever gate asked. Like a mark for sensitive values, this goes by names
//! and does not travel with the value.

use crate::{Node, NodeId, Object, Plan};

/// The output of a gate that takes the place of an artifact.
const EDITED: &str = "editedArtifactData";
/// The output that is an artifact by itself.
const TEXT: &str = "text";
/// Types whose only output is a text.
const TEXTS: [&str; 2] = ["core.template", "core.stream"];
/// Types whose outputs are their inputs.
const PASSES: [&str; 6] = [
    "core.noop",
    "core.identity",
    "core.start",
    "core.end",
    "core.merge",
    "core.conditional",
];

/// What the other types give that may make an artifact.
const GIVEN: [&str; 16] = [
    TEXT,
    "action",
    "answers",
    "approved",
    "artifacts",
    "body",
    "childRunId",
    "childStatus",
    "data",
    "decidedBy",
    "event",
    "feedback",
    "headers",
    "result",
    "resumeValue",
    "status",
];

impl Plan {
    /// Whether an output is the content of an artifact, among these outputs of its node.
    #[must_use]
    pub fn is_content(&self, node: &NodeId, port: &str, outputs: &Object) -> bool {
        port == EDITED || (self.artifact_of(node).is_some() && is_shown(port, outputs))
    }

    /// Whether a piece of an output, or an output whose siblings are not known, is the content of an artifact.
    #[must_use]
    pub fn is_content_alone(&self, node: &NodeId, port: &str) -> bool {
        port == EDITED || self.artifact_of(node).is_some()
    }

    /// The node whose artifact a variable has the content of, because an output of it becomes that variable.
    #[must_use]
    pub fn content_of_variable(&self, name: &str) -> Option<&NodeId> {
        let is_declared = self.variables().iter().any(|variable| variable.name == name);
        let mut nodes = self.definition.nodes.iter();
        let made = nodes.find(|node| is_declared && node.artifact_type.is_some() && may_output(node, name));
        made.map(|node| &node.id)
    }

    /// The node whose artifact is among what a run ended with under this name, where one node ended it.
    #[must_use]
    pub fn content_of_result(&self, port: &str, outputs: &Object) -> Option<&NodeId> {
        let ends = self.definition.nodes.iter().zip(&self.nodes);
        let ends = ends.filter(|(_, node)| node.out.iter().all(|&edge| self.edges[edge].slot.is_none()));
        let made = ends
            .map(|(node, _)| node)
            .find(|node| node.artifact_type.is_some() && is_shown(port, outputs));
        made.map(|node| &node.id)
    }
}

/// A text is an artifact by itself; without one, everything is.
fn is_shown(port: &str, outputs: &Object) -> bool {
    port == TEXT || !outputs.contains_key(TEXT)
}

/// Whether a node may have an output of this name that its artifact is made of.
fn may_output(node: &Node, port: &str) -> bool {
    let type_id = node.type_id.as_str();
    if TEXTS.contains(&type_id) {
        return port == TEXT;
    }
    if PASSES.contains(&type_id) {
        return node.inputs.contains_key(port) && (port == TEXT || !node.inputs.contains_key(TEXT));
    }
    GIVEN.contains(&port)
}
