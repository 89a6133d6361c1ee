//! The conversations that are open, as the fold of their turns. A conversation is gone when its gate's execution
//! ends.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use wopr_kernel::{EventRef, KernelEvent, NodeId, RecordedRef};

use crate::{Event, Turn, cost};

#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(transparent)]
pub(crate) struct Conversing(BTreeMap<NodeId, Conversation>);

/// A conversation that waits for its next turn.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct Conversation {
    pub turns: Vec<Turn>,
    /// Whether somebody outside this host took a turn.
    #[serde(default)]
    pub is_untrusted: bool,
}

impl Conversing {
    pub(crate) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    pub(crate) fn at(&self, node: &NodeId) -> Option<&Conversation> {
        self.0.get(node)
    }

    /// The units of work that copying it takes.
    pub(crate) fn weight(&self) -> u64 {
        let turns = self.0.values().flat_map(|conversation| &conversation.turns);
        turns.map(|turn| cost::of_value(&turn.content) + 4).sum()
    }

    /// Updates it for an event that has been applied.
    pub(crate) fn follow(&mut self, recorded: RecordedRef<'_, Event>) {
        match recorded.event {
            EventRef::Dialect(Event::Conversation(event)) => {
                let conversation = self.0.entry(event.step.node.clone()).or_default();
                conversation.turns.push(event.turn.clone());
                conversation.is_untrusted |= recorded.is_untrusted;
            }
            EventRef::Kernel(
                KernelEvent::NodeStarted { step, .. }
                | KernelEvent::NodeCompleted { step, .. }
                | KernelEvent::NodeFailed { step, .. }
                | KernelEvent::NodeCancelled { step, .. },
            ) => drop(self.0.remove(&step.node)),
            EventRef::Kernel(_) | EventRef::Dialect(_) => {}
        }
    }
}
