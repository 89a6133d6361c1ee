//! The status of a run (OpenWOP v1 §8.1) and the kinds of interrupt that make it wait.

use serde::{Deserialize, Serialize};

/// Where a run stands. Names are OpenWOP's.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum RunStatus {
    /// Accepted, not started.
    Pending,
    /// Nodes run, or wait for a timer, an effect or a child.
    Running,
    /// Stopped by hand; nothing new starts until it is resumed.
    Paused,
    /// An approval is open, here or in a child.
    WaitingApproval,
    /// A clarification or another answer is open, here or in a child.
    WaitingInput,
    /// An external event is awaited.
    WaitingExternal,
    /// Ended as its workflow says.
    Completed,
    /// Ended by an error.
    Failed,
    /// Cancel was accepted; children are still ending.
    Cancelling,
    /// Ended by a cancel.
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

    /// The status as OpenWOP spells it.
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

    /// Reads OpenWOP's spelling.
    #[must_use]
    pub fn parse(text: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|status| status.as_str() == text)
    }

    /// Whether nothing can follow.
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

    /// Whether the run waits for somebody's answer.
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
    /// A message of another system that matches a correlation.
    ExternalEvent,
    /// Anything; the workflow says what.
    Custom,
}

impl InterruptKind {
    /// The kind as OpenWOP spells it.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Approval => "approval",
            Self::Clarification => "clarification",
            Self::ExternalEvent => "external-event",
            Self::Custom => "custom",
        }
    }

    /// The status of a run that waits for this kind.
    #[must_use]
    pub const fn waiting_status(self) -> RunStatus {
        match self {
            Self::Approval => RunStatus::WaitingApproval,
            Self::Clarification | Self::Custom => RunStatus::WaitingInput,
            Self::ExternalEvent => RunStatus::WaitingExternal,
        }
    }
}
