//! Errors of commands. Each protocol maps them to its own format.

use wopr_core::Refusal;
use wopr_store::{Cause, ReadError, WriteError};

#[derive(Debug, thiserror::Error)]
pub enum CommandError {
    /// The tenant has no such run.
    #[error("find the run")]
    NotFound,
    /// The run refused the command and is unchanged.
    #[error(transparent)]
    Refused(#[from] Refusal),
    /// The idempotency key was used for another request.
    #[error("reuse an idempotency key for another request")]
    KeyReused,
    /// Another run of the tenant has the alias that the new run was to get.
    #[error("start a run with the name of another run")]
    AliasTaken,
    /// The command's subscription would exceed the limit of its run. Nothing was changed.
    #[error("register more than {most} receivers with a run")]
    TooManyReceivers {
        /// Maximum subscriptions of the run.
        most: usize,
    },
    /// Too many concurrent writers, or too much work of the tenant waiting; try again.
    #[error("append against too many other writers")]
    Busy {
        /// How long to wait before trying again.
        retry_after_ms: u64,
    },
    /// The store does not accept writes now.
    #[error("write: {0}")]
    Unavailable(#[source] Cause),
    /// A broken invariant. The details belong in the log, not in a response.
    #[error("keep a promise of our own: {0}")]
    Internal(#[source] Cause),
}

impl From<ReadError> for CommandError {
    fn from(error: ReadError) -> Self {
        match error {
            ReadError::Unavailable(why) => Self::Unavailable(why),
            ReadError::Corrupt(why) => Self::Internal(why),
        }
    }
}

impl From<WriteError> for CommandError {
    fn from(error: WriteError) -> Self {
        match error {
            WriteError::Unavailable(why) => Self::Unavailable(why),
            WriteError::Corrupt(why) => Self::Internal(why),
        }
    }
}
