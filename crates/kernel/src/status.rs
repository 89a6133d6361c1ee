//! The status of a run and the kinds of interrupt that make it wait.

use serde::{Deserialize, Serialize};

/// The status of a run.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum RunStatus {
    /// Accepted, not started.
    Pending,
    /// Nodes run, or wait for a timer, an effect or a child.
    Running,
    /// A caller paused the run; no node starts until it is resumed.
    Paused,
    /// An approval is open, here or in a child.
    WaitingApproval,
    /// A clarification or another answer is open, here or in a child.
    WaitingInput,
    /// The run waits for an external event.
    WaitingExternal,
    Completed,
    Failed,
    /// The cancel was accepted, but child runs are still ending.
    Cancelling,
    Cancelled,
}

impl RunStatus {
    /// Every status, in the order of the specification.
    pub const ALL: [Self; 10] = [
        Self::Pending,
        Self::Running,
        Self::Paused,
        Self::WaitingApproval,
        Self::WaitingInput,
        Self::WaitingExternal,
        Self::Completed,
        Self::Failed,
        Self::Cancelling,
        Self::Cancelled,
    ];

    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Pending => "pending",
            Self::Running => "running",
            Self::Paused => "paused",
            Self::WaitingApproval => "waiting-approval",
            Self::WaitingInput => "waiting-input",
            Self::WaitingExternal => "waiting-external",
            Self::Completed => "completed",
            Self::Failed => "failed",
            Self::Cancelling => "cancelling",
            Self::Cancelled => "cancelled",
        }
    }

    /// Parses the spelling of [`Self::as_str`].
    #[must_use]
    pub fn parse(text: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|status| status.as_str() == text)
    }

    /// Returns `true` if the run has ended.
    #[must_use]
    pub const fn is_terminal(self) -> bool {
        match self {
            Self::Completed | Self::Failed | Self::Cancelled => true,
            Self::Pending
            | Self::Running
            | Self::Paused
            | Self::WaitingApproval
            | Self::WaitingInput
            | Self::WaitingExternal
            | Self::Cancelling => false,
        }
    }

    /// Returns `true` if the run goes on only with an answer, or not at all.
    #[must_use]
    pub const fn is_settled(self) -> bool {
        self.is_terminal() || self.is_waiting()
    }

    /// Returns `true` if the run waits for an answer.
    #[must_use]
    pub const fn is_waiting(self) -> bool {
        match self {
            Self::WaitingApproval | Self::WaitingInput | Self::WaitingExternal => true,
            Self::Pending
            | Self::Running
            | Self::Paused
            | Self::Completed
            | Self::Failed
            | Self::Cancelling
            | Self::Cancelled => false,
        }
    }
}

/// What an interrupt asks for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum InterruptKind {
    /// One of the five approval actions.
    Approval,
    /// Answers to questions.
    Clarification,
    /// An event from another system that matches a correlation.
    ExternalEvent,
    /// An answer that the workflow defines.
    Custom,
    /// Whether a decision counts in which an agent has too little confidence.
    LowConfidence,
}

impl InterruptKind {
    pub const ALL: [Self; 5] = [
        Self::Approval,
        Self::Clarification,
        Self::ExternalEvent,
        Self::Custom,
        Self::LowConfidence,
    ];

    #[must_use]
    pub fn parse(text: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|kind| kind.as_str() == text)
    }

    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Approval => "approval",
            Self::Clarification => "clarification",
            Self::ExternalEvent => "external-event",
            Self::Custom => "custom",
            Self::LowConfidence => "low-confidence",
        }
    }

    /// The status of a run that waits for this kind.
    #[must_use]
    pub const fn waiting_status(self) -> RunStatus {
        match self {
            Self::Approval | Self::LowConfidence => RunStatus::WaitingApproval,
            Self::Clarification | Self::Custom => RunStatus::WaitingInput,
            Self::ExternalEvent => RunStatus::WaitingExternal,
        }
    }
}
