//! Marks events that contain untrusted content or anything derived from it.

use wopr_kernel::{DecisionBuilder, EventRef, Planned as _, says_untrusted};

use crate::{
    Event, NodeId,
    node::{Assigned, NodeKind},
    plan::Port,
    trust::Content,
};

use super::{Openwop, schedule};

type Builder<'a> = DecisionBuilder<'a, Openwop>;

/// Whether an event that is about to be recorded contains untrusted content.
pub(super) fn is_untrusted(next: &Builder<'_>, event: EventRef<'_, Event>) -> bool {
    match Content::of(event) {
        Content::Inputs(started) => started.is_untrusted(),
        Content::Answer { node } => is_answered_from_outside(next, node),
        Content::Question { node } => asks_untrusted(next, node),
        Content::Outputs { node, outputs } => says_untrusted(outputs) || is_untrusted_work(next, node),
        Content::Artifact { node, content } => {
            content.as_object().is_some_and(says_untrusted) || is_untrusted_work(next, node)
        }
        Content::Words { node } | Content::Failure { node } | Content::Channel { node, .. } => {
            is_untrusted_work(next, node)
        }
        Content::Variable { name, node } => {
            // Exchanges are appended to earlier ones, so the mark stays.
            let grows = name.starts_with(crate::event::EXCHANGES);
            (grows && next.state.untrusted.variables.contains(name))
                || node.is_some_and(|node| is_untrusted_work(next, node))
        }
        Content::Results => schedule::ends(next.plan, &next.run, &next.state)
            .any(|(node, _)| next.state.untrusted.nodes.contains(node)),
        Content::RunFailure { error, node } => {
            next.state.is_untrusted_failure(&next.run, next.plan, error, node)
        }
        Content::None => false,
    }
}

/// Whether the command brings the node untrusted content: an answer, or the outputs of an untrusted
/// child.
fn is_answered_from_outside(next: &Builder<'_>, node: &NodeId) -> bool {
    next.outside.as_ref() == Some(node)
}

/// Whether the node's results contain untrusted content.
fn is_untrusted_work(next: &Builder<'_>, node: &NodeId) -> bool {
    is_answered_from_outside(next, node)
        || calls_agent(next, node)
        || next
            .plan
            .position(node)
            .is_some_and(|position| reads_untrusted(next, position))
}

/// Whether a node reads untrusted content: through a port, or because it evaluates an expression while
/// the run holds any.
pub(super) fn reads_untrusted(next: &Builder<'_>, position: usize) -> bool {
    if !next.state.holds_untrusted(&next.run) {
        return false;
    }
    let known = &next.state.untrusted;
    let node = &next.plan.nodes[position];
    let mut ports = node.inputs.iter();
    let by_port = ports.any(|(_, port)| match port {
        Port::Static(_) => false,
        Port::Expression(_) => true,
        Port::Connection { node, .. } => known.nodes.contains(&next.plan.nodes[*node].id),
        Port::Variable { name, .. } => known.variables.contains(name),
    });
    by_port
        || match &node.kind {
            NodeKind::Template(_)
            | NodeKind::Stream { .. }
            | NodeKind::Reject { .. }
            // A dispatch follows what the supervisor made of everything.
            | NodeKind::Supervisor(_)
            | NodeKind::Dispatch(_) => true,
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
            | NodeKind::Activity(_)
            | NodeKind::Agent(_)
            | NodeKind::SideEffect
            | NodeKind::ArtifactEmit { .. }
            | NodeKind::Requires { .. } => false,
        }
}

/// Whether the node calls another agent, whose words are untrusted.
fn calls_agent(next: &Builder<'_>, node: &NodeId) -> bool {
    let position = next.plan.position(node);
    position.is_some_and(|position| matches!(next.plan.nodes[position].kind, NodeKind::Agent(_)))
}

/// Whether a gate's texts are rendered while the run holds untrusted content.
fn asks_untrusted(next: &Builder<'_>, node: &NodeId) -> bool {
    if calls_agent(next, node) {
        return true;
    }
    let position = next.plan.position(node);
    let asks_by_decision = |position: usize| {
        let kind = &next.plan.nodes[position].kind;
        matches!(kind, NodeKind::Supervisor(_) | NodeKind::Dispatch(_))
    };
    if position.is_some_and(asks_by_decision) {
        return next.state.holds_untrusted(&next.run);
    }
    let dispatching = position.and_then(|position| next.state.nodes.get(position)?.dispatching.as_ref());
    let pending = dispatching.and_then(|dispatching| dispatching.pending.as_ref());
    if pending.is_some_and(|pending| pending.is_untrusted) {
        return true;
    }
    let gate = position.and_then(|position| next.plan.nodes[position].kind.gate());
    gate.is_some_and(|(about, _)| !about.templates.is_empty()) && next.state.holds_untrusted(&next.run)
}
