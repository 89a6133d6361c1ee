//! Protocol-independent errors of use cases. Each protocol face maps them to its own.

use wopr_core::Refusal;
use wopr_engine::CommandError;
use wopr_store::{Cause, ReadError, WriteError};

use crate::{Forbidden, Settled};

#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The caller's tenant has no such run, or the caller may not see it.
    #[error("find the run")]
    NoRun,
    /// The caller's tenant has no such workflow, or it is not active.
    #[error("find the workflow")]
    NoWorkflow,
    #[error(transparent)]
    Forbidden(#[from] Forbidden),
    /// The run refused the command and is unchanged.
    #[error(transparent)]
    Refused(#[from] Refusal),
    /// The question takes no answer any more; the run is unchanged.
    #[error("answer a question: it {0}")]
    Settled(Settled),
    /// The idempotency key was used for another request.
    #[error("reuse an idempotency key for another request")]
    KeyReused,
    /// Another run of the tenant has the name that the new run was to get.
    #[error("start a run with the name of another run")]
    AliasTaken,
    /// The new subscription would exceed the limit of its run. Nothing was changed.
    #[error("register more than {most} subscriptions with a run")]
    TooManySubscriptions { most: usize },
    /// Too many concurrent writers, or too much work of the tenant waiting; try again.
    #[error("wait for other work of the tenant")]
    Busy { retry_after_ms: u64 },
    /// The store does not answer or does not accept writes. The text is for the log.
    #[error("reach the store: {0}")]
    Unavailable(#[source] Cause),
    /// A broken invariant of the host. The text is for the log.
    #[error("keep a promise of our own: {0}")]
    Internal(#[source] Cause),
}

impl From<CommandError> for Error {
    fn from(error: CommandError) -> Self {
        match error {
            CommandError::NotFound => Self::NoRun,
            CommandError::Refused(refusal) => Self::Refused(refusal),
            CommandError::KeyReused => Self::KeyReused,
            CommandError::AliasTaken => Self::AliasTaken,
            CommandError::TooManyReceivers { most } => Self::TooManySubscriptions { most },
            CommandError::Busy { retry_after_ms } => Self::Busy { retry_after_ms },
            CommandError::Unavailable(why) => Self::Unavailable(why),
            CommandError::Internal(why) => Self::Internal(why),
        }
    }
}

impl From<ReadError> for Error {
    fn from(error: ReadError) -> Self {
        CommandError::from(error).into()
    }
}

impl From<WriteError> for Error {
    fn from(error: WriteError) -> Self {
        CommandError::from(error).into()
    }
}
