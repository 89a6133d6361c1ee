//! What a decision was given from outside.
//!
//! It is stored with the first event that followed from it. The log of a run thereby holds all that is needed to
//! decide again what was decided: a replay gives a run what its source was given, and compares what follows.
//! Only what no event says is in here.

use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::{
    Authority, Command, Failure, Object, PrincipalId, Resolve, RunId, RunMessage, RunStatus, StepId,
    measure::object_too_deep,
};

/// What a decision was given. The start of a run needs none: its first event says everything.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Given {
    Cancel,
    Pause,
    Resume,
    /// An answer, or a vote.
    Answer(Box<GivenAnswer>),
    /// Variables set from outside.
    Set(Object),
    /// A timer fired, by its key.
    Timer(String),
    /// An attempt of an effect ended.
    Effect {
        step: StepId,
        attempt: u32,
        #[serde(default, skip_serializing_if = "Option::is_none")]
        retry_after_ms: Option<u64>,
        /// Absent if the events say it: the outputs with which the step completed, or its failure.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        outcome: Option<Box<GivenOutcome>>,
    },
    /// The peer of a call cancelled it, and with it the run.
    EffectCancelled {
        step: StepId,
        attempt: u32,
        reason: String,
    },
    /// News of a call, which the events repeat in full.
    News,
    /// A child waits or goes on.
    Child(Box<RunMessage>),
    /// A child ended.
    ChildEnded(Box<GivenEnd>),
    /// A fork goes on by itself: its source has nothing more to give.
    Live,
    /// The children that a step waits for are unknown to the source of this replay.
    Abandoned(StepId),
}

/// The outcome of an effect.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum GivenOutcome {
    Ok(Object),
    Failed(Failure),
}

impl From<GivenOutcome> for Result<Object, Failure> {
    fn from(outcome: GivenOutcome) -> Self {
        match outcome {
            GivenOutcome::Ok(outputs) => Ok(outputs),
            GivenOutcome::Failed(failure) => Err(failure),
        }
    }
}

impl From<Result<Object, Failure>> for GivenOutcome {
    fn from(outcome: Result<Object, Failure>) -> Self {
        match outcome {
            Ok(outputs) => Self::Ok(outputs),
            Err(failure) => Self::Failed(failure),
        }
    }
}

/// An answer to an interrupt, as it was given.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct GivenAnswer {
    pub node: crate::NodeId,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ordinal: Option<u32>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub interrupt: Option<String>,
    pub value: Value,
    pub by: PrincipalId,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub voter: Option<String>,
    pub authority: Authority,
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub is_untrusted: bool,
}

impl From<&Resolve> for GivenAnswer {
    fn from(resolve: &Resolve) -> Self {
        let Resolve {
            node,
            ordinal,
            interrupt,
            value,
            by,
            voter,
            authority,
            is_untrusted,
        } = resolve.clone();
        Self {
            node,
            ordinal,
            interrupt,
            value,
            by,
            voter,
            authority,
            is_untrusted,
        }
    }
}

impl From<GivenAnswer> for Resolve {
    fn from(answer: GivenAnswer) -> Self {
        let GivenAnswer {
            node,
            ordinal,
            interrupt,
            value,
            by,
            voter,
            authority,
            is_untrusted,
        } = answer;
        Self {
            node,
            ordinal,
            interrupt,
            value,
            by,
            voter,
            authority,
            is_untrusted,
        }
    }
}

/// How a child ended.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct GivenEnd {
    pub step: StepId,
    pub child: RunId,
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub is_untrusted: bool,
    /// Absent if an event says it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub end: Option<Box<GivenResult>>,
}

/// The results of a child.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct GivenResult {
    pub status: RunStatus,
    #[serde(default, skip_serializing_if = "Object::is_empty")]
    pub outputs: Object,
    #[serde(default, skip_serializing_if = "Object::is_empty")]
    pub report: Object,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub error: Option<Failure>,
}

impl Given {
    /// What a command gives a run. `None` for a start, whose event says everything.
    pub(crate) fn of(command: &Command) -> Option<Self> {
        Some(match command {
            Command::Start(_) | Command::Fork(_) => return None,
            Command::Cancel { .. } => Self::Cancel,
            Command::Pause { .. } => Self::Pause,
            Command::Resume { .. } => Self::Resume,
            Command::Resolve(resolve) => Self::Answer(Box::new(resolve.into())),
            Command::SetVariables(variables) => Self::Set(variables.clone()),
            Command::Timer(timer) => Self::Timer(timer.key()),
            Command::Effect {
                step,
                attempt,
                outcome,
                retry_after_ms,
            } => Self::Effect {
                step: step.clone(),
                attempt: *attempt,
                retry_after_ms: *retry_after_ms,
                // Outputs that nest too deep fail their step, and could not be read back: the failure says it.
                outcome: (!outcome.as_ref().is_ok_and(object_too_deep))
                    .then(|| Box::new(outcome.clone().into())),
            },
            Command::EffectGivenUp {
                step,
                attempt,
                failure,
                handle: _,
            } => Self::Effect {
                step: step.clone(),
                attempt: *attempt,
                retry_after_ms: None,
                outcome: Some(Box::new(GivenOutcome::Failed(Failure {
                    retryable: false,
                    ..failure.clone()
                }))),
            },
            Command::EffectCancelled {
                step,
                attempt,
                reason,
            } => Self::EffectCancelled {
                step: step.clone(),
                attempt: *attempt,
                reason: reason.clone(),
            },
            Command::Accepted { .. }
            | Command::Interrupted { .. }
            | Command::Progressed { .. }
            | Command::Produced { .. } => Self::News,
            // Each message is given by itself.
            Command::RunMessages(_) => return None,
        })
    }

    /// What a message of another run gives a run.
    pub(crate) fn of_message(message: &RunMessage) -> Option<Self> {
        Some(match message {
            RunMessage::Start(_) => return None,
            RunMessage::ParentEnded { .. } => Self::Cancel,
            RunMessage::ChildWaiting { .. } | RunMessage::ChildResumed { .. } => {
                Self::Child(Box::new(message.clone()))
            }
            RunMessage::ChildEnded {
                step,
                child,
                status,
                outputs,
                report,
                error,
                is_untrusted,
            } => Self::ChildEnded(Box::new(GivenEnd {
                step: step.clone(),
                child: child.clone(),
                is_untrusted: *is_untrusted,
                end: Some(Box::new(GivenResult {
                    status: *status,
                    outputs: outputs.clone(),
                    report: report.clone(),
                    error: error.clone(),
                })),
            })),
        })
    }
}
