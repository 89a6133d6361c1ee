//! Marks events that contain untrusted content or anything derived from it.

use crate::{
    Event, NodeId,
    node::{Assigned, NodeKind},
    plan::Port,
    run::{Content, says_untrusted},
};

use super::DecisionBuilder;

impl DecisionBuilder<'_> {
    /// Whether an event that is about to be recorded contains untrusted content.
    pub(super) fn is_untrusted(&self, event: &Event) -> bool {
        match Content::of(event) {
            Content::Inputs(started) => started.is_untrusted(),
            Content::Answer { node } => self.is_answered_from_outside(node),
            Content::Question { node } => self.asks_untrusted(node),
            Content::Outputs { node, outputs } => says_untrusted(outputs) || self.is_untrusted_work(node),
            Content::Artifact { node, content } => {
                content.as_object().is_some_and(says_untrusted) || self.is_untrusted_work(node)
            }
            Content::Words { node } | Content::Failure { node } | Content::Channel { node, .. } => {
                self.is_untrusted_work(node)
            }
            Content::Variable { name, node } => {
                // Exchanges are appended to earlier ones, so the mark stays.
                let grows = name.starts_with(super::answer::EXCHANGES);
                (grows && self.run.untrusted.variables.contains(name))
                    || node.is_some_and(|node| self.is_untrusted_work(node))
            }
            Content::Results => self
                .ends()
                .any(|(node, _)| self.run.untrusted.nodes.contains(node)),
            Content::RunFailure { error, node } => self.run.is_untrusted_failure(self.plan, error, node),
            Content::None => false,
        }
    }

    /// Whether the command brings the node untrusted content: an answer, or the outputs of an untrusted
    /// child.
    fn is_answered_from_outside(&self, node: &NodeId) -> bool {
        self.outside.as_ref() == Some(node)
    }

    /// Whether the node's results contain untrusted content.
    fn is_untrusted_work(&self, node: &NodeId) -> bool {
        self.is_answered_from_outside(node)
            || self
                .plan
                .position(node)
                .is_some_and(|position| self.reads_untrusted(position))
    }

    /// Whether a node reads untrusted content: through a port, or because it evaluates an expression while
    /// the run holds any.
    pub(super) fn reads_untrusted(&self, position: usize) -> bool {
        if !self.run.holds_untrusted() {
            return false;
        }
        let known = &self.run.untrusted;
        let node = &self.plan.nodes[position];
        let mut ports = node.inputs.iter();
        let by_port = ports.any(|(_, port)| match port {
            Port::Static(_) => false,
            Port::Expression(_) => true,
            Port::Connection { node, .. } => known.nodes.contains(&self.plan.nodes[*node].id),
            Port::Variable { name, .. } => known.variables.contains(name),
        });
        by_port
            || match &node.kind {
                NodeKind::Template(_) | NodeKind::Stream { .. } | NodeKind::Reject { .. } => true,
                NodeKind::SetVariable { value, .. } => match value {
                    Assigned::Expression(_) | Assigned::Template(_) => true,
                    Assigned::Static(_) | Assigned::Input => false,
                },
                NodeKind::Pass
                | NodeKind::Delay { .. }
                | NodeKind::Fail { .. }
                | NodeKind::Approval(_)
                | NodeKind::Clarification { .. }
                | NodeKind::Interrupt { .. }
                | NodeKind::ChannelWrite { .. }
                | NodeKind::SubWorkflow(_)
                | NodeKind::Http(_)
                | NodeKind::SideEffect
                | NodeKind::ArtifactEmit { .. }
                | NodeKind::Requires { .. } => false,
            }
    }

    /// Whether a gate's texts are rendered while the run holds untrusted content.
    fn asks_untrusted(&self, node: &NodeId) -> bool {
        let position = self.plan.position(node);
        let about = position.and_then(|position| self.plan.nodes[position].kind.about());
        about.is_some_and(|about| !about.templates.is_empty()) && self.run.holds_untrusted()
    }
}
