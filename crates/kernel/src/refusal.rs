//! Replies of models that a replay asks for again, and how they differ from those that its source recorded.

use serde::{Deserialize, Serialize};

use crate::{ModelStop, Seq, StepId};

/// What a reply is, whatever it says.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum ReplyKind {
    /// The model answered.
    Valid,
    /// The model, or its provider, refused.
    Refusal,
}

impl ReplyKind {
    #[must_use]
    pub const fn of(stop: ModelStop) -> Self {
        match stop {
            ModelStop::End | ModelStop::Length | ModelStop::Tools => Self::Valid,
            ModelStop::Refusal => Self::Refusal,
        }
    }

    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Valid => "valid",
            Self::Refusal => "refusal",
        }
    }

    #[must_use]
    pub const fn other(self) -> Self {
        match self {
            Self::Valid => Self::Refusal,
            Self::Refusal => Self::Valid,
        }
    }
}

/// The call of a replay whose model, asked again, refuses where it answered the source, or answers where it refused.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct RefusalDivergence {
    /// The event with which the source got its reply.
    pub at: Seq,
    pub step: StepId,
    /// What the source got. The replay got the other kind.
    pub original: ReplyKind,
    /// The words of the refusal, whichever of the two got it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
}
