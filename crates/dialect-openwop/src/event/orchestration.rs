//! What happens between a supervisor and its workers.
//!
//! A handoff is a small state machine. It begins with a decision, creates a child run, and ends when the child has;
//! what the child gives back is then harvested. Each transition is one event. The end of the child itself is the
//! kernel's event, because every step with several children has it.

use serde::{Deserialize, Serialize};
use wopr_kernel::{Seq, StepId};

use crate::{Decision, Failure, RunId};

/// Variant names are stored and must never change.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Orchestration {
    /// A supervisor has decided.
    Decided {
        step: StepId,
        agent: String,
        decision: Decision,
        /// 1 for the first decision of the run.
        iteration: u32,
    },
    /// A decision needs an approval, because its agent has too little confidence.
    ConfidenceEscalated {
        step: StepId,
        confidence: f64,
        floor: f64,
        /// The first worker, if there is one.
        worker: Option<String>,
        decision: Decision,
    },
    HandoffBegan {
        step: StepId,
        /// As the decision names it.
        worker: String,
    },
    /// The child run exists.
    HandoffSucceeded {
        step: StepId,
        worker: String,
        child: RunId,
    },
    /// The child run could not be created.
    HandoffFailed {
        step: StepId,
        worker: String,
        error: Failure,
    },
    /// What the child gave back is in the variables.
    Harvested {
        step: StepId,
        worker: String,
        child: RunId,
        /// The variables that the mapping names.
        keys: Vec<String>,
        /// The SHA-256 of the child's outputs, as lower-case hex, if the node asks for it.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        checksum: Option<String>,
    },
    /// Several workers are to work at the same time.
    FannedOut {
        step: StepId,
        n_children: u32,
        max_concurrency: u32,
        mode: JoinMode,
    },
    /// Workers that worked at the same time have all ended.
    Joined {
        step: StepId,
        outcome: JoinOutcome,
        n_completed: u32,
        n_failed: u32,
        n_cancelled: u32,
        /// The children that count, the first to end first.
        order: Vec<RunId>,
    },
    /// From now on a summary stands for turns that no longer fit into the context of the model that leads.
    ContextSummarized {
        step: StepId,
        /// The turn that needed the room.
        iteration: u32,
        /// The events of those turns, and that of the summary which stood for those before.
        replaces: Vec<Seq>,
        /// The artifact that is the summary.
        artifact: String,
        /// The size of the transcript with all turns, in characters.
        before: u64,
        /// Its size with the summary.
        after: u64,
    },
}

/// How many workers have to complete.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum JoinMode {
    WaitAll,
    Quorum(u32),
    /// The first to complete.
    First,
    /// The first to end.
    Race,
}

impl JoinMode {
    /// Whether this many workers can satisfy it.
    #[must_use]
    pub const fn is_possible(self, n_workers: usize) -> bool {
        match self {
            Self::WaitAll | Self::First | Self::Race => true,
            Self::Quorum(n) => n as usize <= n_workers,
        }
    }

    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::WaitAll => "wait-all",
            Self::Quorum(_) => "quorum",
            Self::First => "first",
            Self::Race => "race",
        }
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum JoinOutcome {
    Satisfied,
    /// Some workers failed that should have completed.
    Partial,
    Failed,
}

impl JoinOutcome {
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Satisfied => "satisfied",
            Self::Partial => "partial",
            Self::Failed => "failed",
        }
    }
}

impl Orchestration {
    /// The execution that it belongs to.
    #[must_use]
    pub const fn step(&self) -> &StepId {
        match self {
            Self::Decided { step, .. }
            | Self::ConfidenceEscalated { step, .. }
            | Self::HandoffBegan { step, .. }
            | Self::HandoffSucceeded { step, .. }
            | Self::HandoffFailed { step, .. }
            | Self::Harvested { step, .. }
            | Self::FannedOut { step, .. }
            | Self::Joined { step, .. }
            | Self::ContextSummarized { step, .. } => step,
        }
    }
}
