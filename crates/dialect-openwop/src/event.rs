//! The events that only this language has.

mod agent;
mod conversation;
mod orchestration;
mod summarizing;

use serde::{Deserialize, Serialize};
use serde_json::Value;

pub use orchestration::{JoinMode, JoinOutcome, Orchestration};
use wopr_kernel::{ModelMessage, ModelUsage, StepId};

use crate::{NodeId, Timestamp};

pub use agent::{
    Act, AgentEvent, CallError, CallStatus, Invocation, Outcome, Target, Transport, Verbosity, Verdict,
};

pub use conversation::{Change, ConversationEvent, Role, Turn};
pub use summarizing::Summarizing;

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
    /// An agent did something while its node ran.
    Agent(Box<AgentEvent>),
    /// Somebody took a turn at a gate.
    Conversation(Box<ConversationEvent>),
    /// A step composed what it asks a model.
    PromptComposed {
        step: StepId,
        messages: Vec<ModelMessage>,
        /// The hash of the messages.
        hash: String,
        /// What has to be summed up before the model reads the messages.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        summarizing: Option<Box<Summarizing>>,
    },
    /// A model answered, and this is what it took.
    ProviderUsage {
        step: StepId,
        provider: String,
        model: String,
        usage: ModelUsage,
    },
    /// What became of an answer that should be a document.
    Envelope { step: StepId, event: EnvelopeEvent },
}

/// What a step made of a model's answer.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum EnvelopeEvent {
    /// The model is asked again.
    RetryAttempted {
        /// The number of the next call, from 1.
        attempt: u64,
        reason: EnvelopeFault,
        error: String,
    },
    /// It is not asked again.
    RetryExhausted {
        total_attempts: u64,
        reason: EnvelopeFault,
        error: String,
    },
    Refusal {
        provider: String,
        model: String,
        /// The words of the refusal.
        text: Option<String>,
    },
    /// The answer ended at its limit of tokens.
    Truncated {
        provider: String,
        model: String,
        output_tokens: u64,
        /// Whether the model is asked again with more room.
        is_retried: bool,
    },
    /// The model wrote prose and is asked to put it into the form of the document.
    NlToFormat { envelope_type: String },
    /// The document was found in a code fence.
    FenceStripped,
    /// The document was found in a text, at this byte.
    BracesFound { offset: u64 },
}

/// What is wrong with an answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum EnvelopeFault {
    ParseError,
    SchemaViolation,
    Truncation,
}

impl EnvelopeFault {
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::ParseError => "parse-error",
            Self::SchemaViolation => "schema-violation",
            Self::Truncation => "truncation",
        }
    }
}

impl Event {
    /// What happened in a conversation, if the event says that.
    #[must_use]
    pub fn conversation(&self) -> Option<&ConversationEvent> {
        if let Self::Conversation(event) = self {
            Some(event)
        } else {
            None
        }
    }
}

impl From<Orchestration> for Event {
    fn from(event: Orchestration) -> Self {
        Self::Orchestration(event)
    }
}
