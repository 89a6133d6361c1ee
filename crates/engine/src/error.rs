//! Why a command did not take effect. Every face maps this to its own shape.

use wopr_core::Refusal;
use wopr_store::{ReadError, WriteError};

/// Why a command did not take effect.
#[derive(Debug, thiserror::Error)]
pub enum CommandError {
    /// No such run in the tenant.
    #[error("find the run")]
    NotFound,
    /// The run does not follow the command; it is unchanged.
    #[error(transparent)]
    Refused(#[from] Refusal),
    /// The idempotency key was used for a different request.
    #[error("reuse an idempotency key for another request")]
    KeyReused,
    /// The receiver that comes along would be one too many for its run; nothing happened.
    #[error("register more than {most} receivers with a run")]
    TooManyReceivers {
        /// How many it may have.
        most: usize,
    },
    /// Too many writers at one run; try again.
    #[error("append against too many other writers")]
    Busy {
        /// When to try again.
        retry_after_ms: u64,
    },
    /// The store does not take writes now.
    #[error("write: {0}")]
    Unavailable(String),
    /// A broken promise of ours; details are for the log.
    #[error("keep a promise of our own: {0}")]
    Internal(String),
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
