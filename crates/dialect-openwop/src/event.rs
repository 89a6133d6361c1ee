//! The events that only this language has.

mod orchestration;

use serde::{Deserialize, Serialize};
use serde_json::Value;

pub use orchestration::{JoinMode, JoinOutcome, Orchestration};

use crate::{NodeId, Timestamp};

/// Prefix of the variable that stores the questions asked at a gate.
pub(crate) const EXCHANGES: &str = "_askExchanges:";

/// Variant names are stored and must never change.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Event {
    /// A node or the report of a child run set a variable.
    VariableChanged {
        name: String,
        /// The previous value; `None` also for `null`, which deserializes as `None`.
        previous: Option<Value>,
        /// The new value, or the item appended to the list.
        next: Value,
        /// Whether `next` was appended to a list; `previous` is `None` then.
        #[serde(default, skip_serializing_if = "std::ops::Not::not")]
        appends: bool,
        node: Option<NodeId>,
    },
    ChannelWritten {
        channel: String,
        value: Value,
        /// The reducer that folds the value into the channel.
        reducer: String,
        /// The write drops entries older than this.
        ttl_ms: Option<u64>,
        /// Maximum number of entries kept.
        max_size: Option<u64>,
        node: NodeId,
        written_at: Timestamp,
    },
    /// Something between a supervisor and its workers.
    Orchestration(Orchestration),
}

impl From<Orchestration> for Event {
    fn from(event: Orchestration) -> Self {
        Self::Orchestration(event)
    }
}

impl Event {
    /// Whether the event records a question that somebody asked at a gate.
    #[must_use]
    pub fn is_question(&self) -> bool {
        matches!(self, Self::VariableChanged { name, .. } if name.starts_with(EXCHANGES))
    }
}
