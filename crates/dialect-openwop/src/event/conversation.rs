//! Conversations at gates: opened, continued turn by turn, and closed.

use serde::{Deserialize, Serialize};
use serde_json::Value;

use wopr_kernel::StepId;

use crate::{Timestamp, measure::size_of};

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct ConversationEvent {
    /// The execution of the gate, which also names the conversation.
    pub step: StepId,
    pub turn: Turn,
    pub change: Change,
}

/// Variant names are stored and must never change.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Change {
    /// With the gate's own turn.
    Opened,
    /// Somebody took a turn.
    Exchanged,
    /// With the last turn.
    Closed {
        /// What was agreed.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        outcome: Option<Value>,
        #[serde(default, skip_serializing_if = "Option::is_none")]
        reason: Option<String>,
    },
}

/// What one side said at once.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Turn {
    /// 0 for the gate's own.
    pub index: u32,
    /// Unique in the conversation.
    pub message: String,
    /// Who said it.
    pub from: String,
    pub role: Role,
    pub content: Value,
    pub at: Timestamp,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Role {
    User,
    Agent,
    System,
}

impl Role {
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::User => "user",
            Self::Agent => "agent",
            Self::System => "system",
        }
    }
}

impl ConversationEvent {
    /// The execution of the conversation, if this is a turn after which it goes on.
    #[must_use]
    pub fn exchanged_at(&self) -> Option<&StepId> {
        (self.change == Change::Exchanged).then_some(&self.step)
    }

    /// The approximate payload in bytes.
    pub(crate) fn size(&self) -> usize {
        let outcome = match &self.change {
            Change::Closed { outcome, .. } => outcome.as_ref().map_or(0, size_of),
            Change::Opened | Change::Exchanged => 0,
        };
        self.turn.message.len() + self.turn.from.len() + size_of(&self.turn.content) + outcome
    }
}

impl Turn {
    /// The turn as the channel, the gate's outputs and the open question contain it.
    #[must_use]
    pub fn shown(&self) -> Value {
        serde_json::json!({
            "messageId": self.message,
            "from": self.from,
            "role": self.role.as_str(),
            "content": self.content,
            "ts": self.at.millis(),
            "turnIndex": self.index,
        })
    }
}
