//! What the kernel and the faces read of a plan.

use serde_json::Value;
use wopr_kernel::{ChildPolicy, Join, OnFailure, Planned, Retries, Rules};

use super::Plan;
use crate::{ContentHash, InterruptKind, NodeId, Object, WorkflowId, node::NodeKind};

impl Planned for Plan {
    fn id(&self) -> &WorkflowId {
        &self.definition.id
    }

    fn version(&self) -> &ContentHash {
        &self.definition.hash
    }

    fn n_nodes(&self) -> usize {
        self.nodes.len()
    }

    fn node(&self, position: usize) -> &NodeId {
        &self.nodes[position].id
    }

    fn position(&self, node: &NodeId) -> Option<usize> {
        self.index.get(node).copied()
    }

    fn type_id(&self, position: usize) -> &str {
        &self.nodes[position].type_id
    }

    fn has_timer(&self, position: usize) -> bool {
        self.nodes[position].kind.is_delay()
    }

    fn rules(&self, position: usize, kind: InterruptKind) -> Option<&Rules> {
        self.nodes[position].kind.rules(kind)
    }

    fn retries(&self, position: usize) -> Retries {
        let node = &self.nodes[position];
        Retries {
            most: node.max_retries,
            delay_ms: node.retry_delay_ms,
        }
    }

    fn never_waits(&self) -> bool {
        self.never_waits
    }

    fn runs_workflows(&self, position: usize) -> bool {
        match self.nodes[position].kind.model() {
            // Its other tools are workflows of the host.
            Some(model) => model.tools.runs_workflows(),
            None => self.children(position).is_some(),
        }
    }

    fn children(&self, position: usize) -> Option<ChildPolicy> {
        let sub = match &self.nodes[position].kind {
            NodeKind::SubWorkflow(sub) => sub,
            // A model with tools judges its children itself.
            NodeKind::Dispatch(_) | NodeKind::Model(_) => {
                return Some(ChildPolicy {
                    join: Join::Own,
                    on_failure: OnFailure::Absorb,
                    propagates_cancel: true,
                });
            }
            _ => return None,
        };
        Some(ChildPolicy {
            join: if self.hands_over(sub) {
                Join::Own
            } else {
                Join::Single
            },
            on_failure: if sub.fail_parent {
                OnFailure::Fail
            } else {
                OnFailure::Absorb
            },
            propagates_cancel: sub.propagate_cancel,
        })
    }

    fn isolates_memory(&self, position: usize) -> bool {
        match &self.nodes[position].kind {
            NodeKind::SubWorkflow(sub) => sub.isolates_memory,
            NodeKind::Dispatch(dispatch) => dispatch.isolates_memory,
            NodeKind::Pass
            | NodeKind::Delay { .. }
            | NodeKind::Fail { .. }
            | NodeKind::Reject { .. }
            | NodeKind::Stream { .. }
            | NodeKind::Approval(_)
            | NodeKind::Clarification { .. }
            | NodeKind::Interrupt { .. }
            | NodeKind::Conversation(_)
            | NodeKind::Duplicates
            | NodeKind::SetVariable { .. }
            | NodeKind::Template(_)
            | NodeKind::ChannelWrite { .. }
            | NodeKind::Http(_)
            | NodeKind::Activity(_)
            | NodeKind::Agent(_)
            | NodeKind::Memory(_)
            | NodeKind::Model(_)
            | NodeKind::Tool(_)
            | NodeKind::GivenTool
            | NodeKind::Supervisor(_)
            | NodeKind::MockAgent(_)
            | NodeKind::SideEffect
            | NodeKind::ArtifactEmit { .. }
            | NodeKind::Requires { .. } => false,
        }
    }

    fn artifact(&self, position: usize) -> Option<(&str, &str)> {
        self.nodes[position].artifact()
    }

    fn document(&self) -> &Value {
        &self.definition.document
    }

    fn redacted_document(&self, replacement: &Value) -> Value {
        self.with_redacted(replacement)
    }

    fn name(&self) -> &str {
        &self.definition.name
    }

    fn description(&self) -> Option<&str> {
        self.definition.description.as_deref()
    }

    fn version_label(&self) -> &str {
        &self.definition.version
    }

    fn metadata(&self, key: &str) -> Option<&Value> {
        self.definition.metadata.get(key)
    }

    fn is_active(&self) -> bool {
        self.definition.is_active
    }

    fn is_public(&self) -> bool {
        self.definition.is_public()
    }

    fn is_expressly_public(&self) -> bool {
        self.definition.is_expressly_public()
    }

    fn extra_bytes(&self) -> usize {
        self.extra_bytes
    }

    /// Returns `true` if views redact any value of the run.
    fn has_sensitive(&self) -> bool {
        self.has_sensitive_output || !self.sensitive.is_empty()
    }

    /// Returns `true` if views redact this variable or channel: it is marked sensitive itself, or a sensitive
    /// output becomes it.
    fn is_sensitive(&self, name: &str) -> bool {
        self.sensitive.contains(name)
    }

    /// Returns `true` if views redact an output of a node: it is marked sensitive, or its name is that of a sensitive
    /// variable.
    fn is_sensitive_output(&self, node: &NodeId, port: &str) -> bool {
        match self.position(node) {
            Some(at) => self.redacts(at, port),
            None => self.is_sensitive(port),
        }
    }

    /// Returns `true` if the node marks an output, or its results become a sensitive variable.
    fn has_sensitive_output(&self, node: &NodeId) -> bool {
        let marked = self.position(node).map(|at| self.definition.nodes[at].marked());
        self.is_sensitive(node.as_str()) || marked.is_some_and(|mut marked| marked.next().is_some())
    }

    fn outputs_of_answer(&self, node: &NodeId) -> &'static [&'static str] {
        let kind = self.position(node).map(|at| &self.nodes[at].kind);
        kind.map_or(&[], NodeKind::outputs_of_answer)
    }

    /// Of a node that converses, or that calls an agent with questions of its own, any sensitive output hides all that is
    /// said to it.
    fn is_sensitive_answer(&self, node: &NodeId) -> bool {
        let kind = self.position(node).map(|at| &self.nodes[at].kind);
        let is_told =
            kind.is_some_and(|kind| kind.conversation().is_some() || matches!(kind, NodeKind::Agent(_)));
        let mut outputs = self.outputs_of_answer(node).iter();
        (is_told && self.has_sensitive_output(node))
            || outputs.any(|port| self.is_sensitive_output(node, port))
    }

    /// Returns `true` if views redact the decision that the node takes, holds or follows.
    fn is_sensitive_subject(&self, node: &NodeId) -> bool {
        self.position(node).is_some_and(|at| self.redacts_decision(at))
    }

    /// Returns `true` if the node is to take this over from a child, and it is sensitive or becomes a sensitive variable.
    fn is_sensitive_part(&self, node: &NodeId, name: &str) -> bool {
        let Some(at) = self.position(node) else {
            return false;
        };
        let NodeKind::SubWorkflow(sub) = &self.nodes[at].kind else {
            return false;
        };
        let mut outputs = sub.outputs.iter();
        self.is_sensitive(name)
            || outputs.any(|(variable, from)| from == name && self.is_sensitive(variable))
            // Without a mapping, the node's result is taken over.
            || (sub.outputs.is_empty() && (self.is_sensitive(node.as_str()) || self.redacts(at, "result")))
    }

    fn sums_up(&self, node: &NodeId) -> bool {
        let kind = self.position(node).map(|at| &self.nodes[at].kind);
        matches!(kind, Some(NodeKind::Supervisor(supervisor)) if supervisor.decider.sums_up())
    }

    /// Returns `true` if views redact this output of the run: a node with which it can end has a redacted output of this name.
    fn is_sensitive_result(&self, port: &str) -> bool {
        let ends = self.nodes.iter().enumerate();
        let mut ends = ends.filter(|(_, node)| {
            matches!(node.kind, NodeKind::Dispatch(_))
                || node.out.iter().all(|&edge| self.edges[edge].slot.is_none())
        });
        ends.any(|(at, _)| self.redacts(at, port)) || self.is_sensitive(port)
    }

    fn is_content(&self, node: &NodeId, port: &str, outputs: &Object) -> bool {
        self.makes_content(node, port, outputs)
    }

    fn is_content_alone(&self, node: &NodeId, port: &str) -> bool {
        self.may_make_content(node, port)
    }

    fn content_of_variable(&self, name: &str) -> Option<&NodeId> {
        self.maker_of_variable(name)
    }

    fn content_of_result(&self, port: &str, outputs: &Object) -> Option<&NodeId> {
        self.maker_of_result(port, outputs)
    }
}
