//! Errors of A2A operations, independent of the binding, and the mapping from application errors to them.

use wopr_app::{Error as AppError, Forbidden, Settled};
use wopr_core::Refusal;
use wopr_wire::a2a::error::A2aError;

use super::{projection::task_word, select};
use crate::{auth::Scope, telemetry};

#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub(super) enum Error {
    #[error(transparent)]
    A2a(#[from] A2aError),
    #[error("act without the scope {}", .0.as_str())]
    Forbidden(Scope),
    /// The host cannot serve the request now; a client may retry.
    #[error("reach the store")]
    Unavailable,
}

impl Error {
    /// The task has the maximum number of push configurations.
    pub(super) fn full(most: usize) -> Self {
        A2aError::unsupported(format!(
            "a task has at most {most} push configurations, half of them for whoever started it"
        ))
        .into()
    }
}

impl From<Forbidden> for Error {
    fn from(Forbidden(scope): Forbidden) -> Self {
        Self::Forbidden(scope)
    }
}

/// Reports an unknown run as an unknown task: by the id that the client sent, else by that of the run.
pub(super) fn of_task(task: &str, error: AppError) -> Error {
    match error {
        AppError::NoRun => A2aError::task_not_found(task).into(),
        error => error.into(),
    }
}

impl From<AppError> for Error {
    /// Internal details go to the log, not to the client. Where a task is known, use [`of_task`] instead: its error names
    /// the task.
    fn from(error: AppError) -> Self {
        match error {
            AppError::NoWorkflow => A2aError::invalid_param(select::FIELD, "is not the id of a skill").into(),
            AppError::NoRun => A2aError::task_not_found("").into(),
            AppError::Forbidden(forbidden) => forbidden.into(),
            AppError::Refused(refusal) => refused(refusal).into(),
            AppError::Settled(settled) => late(settled).into(),
            AppError::KeyReused => {
                A2aError::invalid_param("message.messageId", "was used for another message").into()
            }
            AppError::AliasTaken => {
                A2aError::invalid_param("message.parts", "give the task the name of another one").into()
            }
            AppError::TooManySubscriptions { most } => Self::full(most),
            AppError::Busy { .. } => Self::Unavailable,
            AppError::Unavailable(why) => {
                telemetry::not_served(&why);
                Self::Unavailable
            }
            AppError::Internal(why) => {
                telemetry::failed_inside(&why);
                A2aError::Internal.into()
            }
        }
    }
}

/// The error of a message that answers a question too late.
fn late(settled: Settled) -> A2aError {
    match settled {
        Settled::RunEnded(status) => A2aError::unsupported(format!("the task is {}", task_word(status))),
        Settled::Answered { .. } | Settled::TimedOut | Settled::Withdrawn | Settled::Closed => {
            A2aError::unsupported(format!("the question of the task {settled}"))
        }
    }
}

/// Maps a refusal of the run to its A2A error.
fn refused(refusal: Refusal) -> A2aError {
    match refusal {
        Refusal::InvalidInput { field, rule } => {
            A2aError::invalid_param("message.parts", format!("do not fit the skill: {field} {rule}"))
        }
        Refusal::OutOfBounds { key, min, max, .. } => A2aError::invalid_param(
            "message.parts",
            format!("do not fit the skill: {key} must be between {min} and {max}"),
        ),
        Refusal::InvalidAnswer(rule) | Refusal::NoMatch(rule) => {
            A2aError::invalid_param("message.parts", format!("do not answer the task: {rule}"))
        }
        Refusal::NotAllowed(rule) => A2aError::unsupported(rule),
        Refusal::NeedsCredential => {
            A2aError::unsupported("this gate needs an authenticated approver, a token is not enough")
        }
        Refusal::Terminal(status) => A2aError::unsupported(format!("the task is {}", task_word(status))),
        Refusal::NotPausable(_)
        | Refusal::NotPaused(_)
        | Refusal::LogFull { .. }
        | Refusal::NoInterrupt
        | Refusal::AlreadyResolved
        | Refusal::InterruptCancelled
        | Refusal::InterruptGone
        | Refusal::Stale
        | Refusal::WrongState
        | Refusal::CatchingUp
        | Refusal::TellsNobody
        | Refusal::NothingToRetry(_)
        | Refusal::BeyondLog { .. }
        | Refusal::MemoryGone(_)
        | Refusal::OtherDefinition(_)
        | Refusal::OtherHistory { .. } => A2aError::unsupported("the task does not wait for a message"),
    }
}
