//! What was said in a conversation that waits for its next turn, as the question for that turn shows it.
//!
//! The log has asked only once, when the gate opened. Whoever is asked later sees the latest turns as well, as far as
//! the workflow lets them.

use std::sync::Arc;

use serde_json::{Value, json};
use wopr_core::{
    CONTENT_TRUST, InterruptKind, NodeId, OpenInterrupt, Plan, Timestamp, Turn, UNTRUSTED, json_size,
};
use wopr_engine::View;

use crate::Mask;

/// Maximum size in bytes of the turns that a question shows. The newest are kept, and always the last one. All of them are
/// in the log.
pub(crate) const MAX_SHOWN_BYTES: usize = 64 << 10;

/// An open conversation.
#[derive(Debug, Clone)]
pub struct Conversation {
    plan: Arc<Plan>,
    node: NodeId,
    /// The latest turns, oldest first.
    turns: Vec<Turn>,
    n_turns: usize,
    is_untrusted: bool,
}

impl Conversation {
    /// `None` if the interrupt is no turn of a conversation.
    #[must_use]
    pub fn of(view: &View, open: &OpenInterrupt<'_>) -> Option<Self> {
        if open.kind() != InterruptKind::Conversation {
            return None;
        }
        let known = view.run.conversation(open.node)?;
        Some(Self {
            plan: Arc::clone(&view.plan),
            node: open.node.clone(),
            turns: latest(&known.turns).to_vec(),
            n_turns: known.turns.len(),
            is_untrusted: known.is_untrusted,
        })
    }

    /// The conversation as a turn left it. `turns` are those up to it, oldest first; without the oldest if they are too many.
    pub(crate) fn at_turn(plan: Arc<Plan>, node: NodeId, turns: &[Turn], is_untrusted: bool) -> Self {
        let n_turns = turns.last().map_or(0, |turn| turn.index as usize + 1);
        Self {
            plan,
            node,
            turns: latest(turns).to_vec(),
            n_turns,
            is_untrusted,
        }
    }

    /// How many turns were taken, with that of the gate: the index of the next one.
    #[must_use]
    pub const fn n_turns(&self) -> usize {
        self.n_turns
    }

    pub(crate) fn last_turn_at(&self) -> Option<Timestamp> {
        self.turns.last().map(|turn| turn.at)
    }

    /// Whether somebody outside this host took a turn.
    #[must_use]
    pub const fn is_untrusted(&self) -> bool {
        self.is_untrusted
    }

    /// The latest turns as a reader sees them, oldest first. Those before them are left out if they are too large.
    pub fn turns(&self, reads_artifacts: bool) -> impl Iterator<Item = Turn> {
        let mask = Mask::for_reader(&self.plan, reads_artifacts);
        self.turns.iter().map(move |turn| Turn {
            content: mask.said(&self.node, "turns", &turn.content),
            ..turn.clone()
        })
    }

    /// Completes the data of the question: with the index of the next turn and the turns before it.
    pub(crate) fn complete(&self, data: &mut Value, reads_artifacts: bool) {
        data["turnIndex"] = json!(self.n_turns);
        data["turns"] = self.turns(reads_artifacts).map(|turn| turn.shown()).collect();
        if self.is_untrusted {
            data[CONTENT_TRUST] = UNTRUSTED.into();
        }
    }
}

/// The newest turns that a question shows.
fn latest(turns: &[Turn]) -> &[Turn] {
    let mut left = MAX_SHOWN_BYTES;
    let newest = turns.iter().rev().enumerate();
    let newest = newest.take_while(|(n_newer, turn)| {
        let size = json_size(&turn.content);
        let fits = size <= left;
        left = left.saturating_sub(size);
        fits || *n_newer == 0
    });
    &turns[turns.len() - newest.count()..]
}
