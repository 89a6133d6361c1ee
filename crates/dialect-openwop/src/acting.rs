//! What the agents of active nodes have begun, and which agent the run is at.
//!
//! Reasoning may come in pieces over several decisions, and so may the results of tools: the fold keeps what the
//! closing events need. It is gone when the node's execution ends.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use wopr_kernel::{EventRef, KernelEvent, NodeId, Planned as _, RecordedRef, Seq, Timestamp};

use crate::{Act, AgentRef, Event, Plan, State, cost};

#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub(crate) struct Acting {
    /// The node with an agent that started last.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    at: Option<NodeId>,
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    nodes: BTreeMap<NodeId, Begun>,
}

/// The acts that an agent has begun and not finished in one execution.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub(crate) struct Begun {
    /// The pieces of reasoning that no closing event contains yet.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub(crate) reasoning: String,
    /// How many pieces that are.
    #[serde(default)]
    pub(crate) n_pieces: u32,
    /// How many calls it made.
    #[serde(default)]
    pub(crate) n_calls: u32,
    /// The calls that have not returned, by id.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub(crate) calls: BTreeMap<String, Seq>,
    /// When they began, unless a fork began them again.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub(crate) called_at: BTreeMap<String, Timestamp>,
    /// Whether it has begun its work as an agent, and not finished it.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub(crate) is_invoked: bool,
}

impl Acting {
    pub(crate) fn is_empty(&self) -> bool {
        self.at.is_none() && self.nodes.is_empty()
    }

    pub(crate) fn begun(&self, node: &NodeId) -> Option<&Begun> {
        self.nodes.get(node)
    }

    /// The units of work that copying it takes.
    pub(crate) fn weight(&self) -> u64 {
        let units = |begun: &Begun| cost::bytes(begun.reasoning.len()) + 2 * begun.calls.len() as u64;
        self.nodes.values().map(units).sum()
    }

    /// Updates it for an event that has been applied.
    pub(crate) fn follow(&mut self, plan: &Plan, recorded: RecordedRef<'_, Event>) {
        match recorded.event {
            EventRef::Dialect(Event::Agent(event)) => {
                let begun = self.nodes.entry(event.step.node.clone()).or_default();
                begun.follow((recorded.seq, recorded.at), &event.act);
            }
            EventRef::Kernel(KernelEvent::NodeStarted { step, attempt, .. }) => {
                let begun = self.nodes.remove(&step.node);
                // The bracket around an agent's work spans the attempts at it.
                if *attempt > 0 && begun.is_some_and(|begun| begun.is_invoked) {
                    self.nodes.entry(step.node.clone()).or_default().is_invoked = true;
                }
                let position = plan.position(&step.node);
                if position.is_some_and(|position| plan.nodes[position].agent.is_some()) {
                    self.at = Some(step.node.clone());
                }
            }
            EventRef::Kernel(
                KernelEvent::NodeCompleted { step, .. }
                | KernelEvent::NodeFailed { step, .. }
                | KernelEvent::NodeCancelled { step, .. },
            ) => drop(self.nodes.remove(&step.node)),
            EventRef::Kernel(KernelEvent::ForkResumed {
                calls_again: true, ..
            }) => self.nodes.values_mut().for_each(|begun| begun.called_at.clear()),
            EventRef::Kernel(_) | EventRef::Dialect(_) => {}
        }
    }
}

impl Begun {
    fn follow(&mut self, (seq, at): (Seq, Timestamp), act: &Act) {
        match act {
            Act::ReasoningDelta { delta, .. } => {
                self.reasoning.push_str(delta);
                self.n_pieces += 1;
            }
            Act::Reasoned { .. } => {
                self.reasoning.clear();
                self.n_pieces = 0;
            }
            Act::ToolCalled { call, .. } => {
                self.calls.insert(call.clone(), seq);
                self.called_at.insert(call.clone(), at);
                self.n_calls += 1;
            }
            Act::ToolReturned { call, .. } => {
                self.calls.remove(call);
                self.called_at.remove(call);
            }
            Act::Invoked(_) => self.is_invoked = true,
            Act::Finished { .. } => self.is_invoked = false,
            Act::HandedOff { .. } | Act::Decided { .. } | Act::Verified { .. } => {}
        }
    }
}

impl State {
    /// The agent of the node with one that started last.
    #[must_use]
    pub fn agent<'p>(&self, plan: &'p Plan) -> Option<&'p AgentRef> {
        let position = plan.position(self.acting.at.as_ref()?)?;
        plan.nodes[position].agent.as_ref()
    }
}
