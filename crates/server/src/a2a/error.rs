//! Why an operation did not happen, apart from any binding: what each refusal of the kernel is to a client.

use wopr_app::{Error as AppError, Forbidden};
use wopr_core::Refusal;
use wopr_wire::a2a::error::A2aError;

use super::{projection::task_word, select};
use crate::auth::Scope;

/// Why an operation did not happen.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub(super) enum Error {
    /// An error of the protocol.
    #[error(transparent)]
    A2a(#[from] A2aError),
    /// The caller lacks a scope.
    #[error("act without the scope {}", .0.as_str())]
    Forbidden(Scope),
    /// The store does not take this now.
    #[error("reach the store")]
    Unavailable,
}

impl Error {
    /// What a client is told whose task has as many configurations as it may have.
    pub(super) fn full(most: usize) -> Self {
        A2aError::unsupported(format!("a task has at most {most} push configurations")).into()
    }
}

impl From<AppError> for Error {
    /// What went wrong inside goes to the log, not to the client.
    fn from(error: AppError) -> Self {
        match error {
            AppError::NoWorkflow => A2aError::invalid_param(select::FIELD, "is not the id of a skill").into(),
            AppError::NoRun => A2aError::task_not_found("").into(),
            AppError::Forbidden(Forbidden(scope)) => Self::Forbidden(scope),
            AppError::Refused(refusal) => refused(refusal).into(),
            AppError::KeyReused => {
                A2aError::invalid_param("message.messageId", "was used for another message").into()
            }
            AppError::TooManySubscriptions { most } => Self::full(most),
            AppError::Busy { .. } => Self::Unavailable,
            AppError::Unavailable(why) => {
                tracing::warn!(error = %why, "store unavailable");
                Self::Unavailable
            }
            AppError::Internal(why) => {
                tracing::error!(error = %why, "a2a operation failed");
                A2aError::Internal.into()
            }
        }
    }
}

/// What a refusal of the kernel is to a client.
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
        Refusal::Terminal(status) => A2aError::unsupported(format!("the task is {}", task_word(status))),
        Refusal::NotPausable(_)
        | Refusal::NotPaused(_)
        | Refusal::NoInterrupt
        | Refusal::AlreadyResolved
        | Refusal::InterruptCancelled
        | Refusal::InterruptGone
        | Refusal::Stale
        | Refusal::WrongState => A2aError::unsupported("the task does not wait for a message"),
    }
}
