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
    let node = &next.plan.nodes[position];
    let mut ports = node.inputs.iter();
    ports.any(|(_, port)| is_untrusted_port(next, port))
        || match &node.kind {
            NodeKind::Template(_)
            | NodeKind::Stream { .. }
            | NodeKind::Reject { .. }
            | NodeKind::Model(_)
            // A dispatch follows what the supervisor made of everything.
            | NodeKind::Supervisor(_)
            | NodeKind::Dispatch(_) => true,
            NodeKind::Memory(node) => node.has_templates(),
            NodeKind::Conversation(node) => node.title.is_some() || node.prompt.is_some(),
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
            | NodeKind::Tool(_)
            | NodeKind::GivenTool
            | NodeKind::MockAgent(_)
            | NodeKind::Duplicates
            | NodeKind::SideEffect
            | NodeKind::ArtifactEmit { .. }
            | NodeKind::Requires { .. } => false,
        }
}

/// Whether a port brings untrusted content.
pub(super) fn is_untrusted_port(next: &Builder<'_>, port: &Port) -> bool {
    let known = &next.state.untrusted;
    match port {
        Port::Static(_) => false,
        Port::Expression(_) => next.state.holds_untrusted(&next.run),
        Port::Connection { node, .. } => known.nodes.contains(&next.plan.nodes[*node].id),
        Port::Variable { name, .. } => known.variables.contains(name),
    }
}

/// Whether a path of an expression reads untrusted content. A name that the run does not know may be anything.
pub(super) fn is_untrusted_read(next: &Builder<'_>, path: &[String]) -> bool {
    let known = &next.state.untrusted;
    let is_given = || {
        next.run
            .started
            .as_deref()
            .is_some_and(wopr_kernel::RunStarted::is_untrusted)
    };
    let is_among = |names: &std::collections::BTreeSet<String>| {
        path.get(1).map_or(!names.is_empty(), |name| names.contains(name))
    };
    match path.first().map(String::as_str) {
        None => false,
        Some("variables") => is_among(&known.variables),
        Some("channels") => is_among(&known.channels),
        Some("nodes") => path.get(1).map_or(!known.nodes.is_empty(), |name| {
            known.nodes.iter().any(|node| node.as_str() == name)
        }),
        Some("inputs" | "configurable") => is_given(),
        Some(name) if next.state.variables.contains_key(name) => known.variables.contains(name),
        Some(_) => true,
    }
}

/// Whether the node calls another agent, a model or a tool, whose words are untrusted.
fn calls_agent(next: &Builder<'_>, node: &NodeId) -> bool {
    let position = next.plan.position(node);
    position.is_some_and(|position| {
        let kind = &next.plan.nodes[position].kind;
        matches!(kind, NodeKind::Agent(_) | NodeKind::Tool(_) | NodeKind::GivenTool) || kind.model().is_some()
    })
}

/// Whether a gate's texts are rendered while the run holds untrusted content.
fn asks_untrusted(next: &Builder<'_>, node: &NodeId) -> bool {
    if calls_agent(next, node) {
        return true;
    }
    let position = next.plan.position(node);
    let is_conversation = |at: usize| matches!(next.plan.nodes[at].kind, NodeKind::Conversation(_));
    if let Some(at) = position.filter(|at| is_conversation(*at)) {
        return reads_untrusted(next, at);
    }
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
