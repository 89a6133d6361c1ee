//! How a store fails.

use wopr_core::Seq;

use crate::{EffectKey, IdempotencyRecord};

/// Why an append did not succeed. Only `Unknown` leaves the log in doubt.
#[derive(Debug, thiserror::Error)]
pub enum AppendError {
    /// Another writer advanced or created the run; reload and decide again. `actual` is `None` where the run is missing.
    #[error("append at {expected}, log is at {actual:?}")]
    Conflict {
        /// What the batch expected.
        expected: Seq,
        /// What the store holds.
        actual: Option<Seq>,
    },
    /// The attempt's lease was taken over or its effect is gone; drop its outcome.
    #[error("append with a stale lease on {0:?}")]
    Fenced(EffectKey),
    /// The request's idempotency key already has a record.
    #[error("append a request that already took effect")]
    Duplicate(Box<IdempotencyRecord>),
    /// The receiver that comes along would be one too many for its run.
    #[error("append with more than {0} receivers of a run")]
    Full(usize),
    /// The receiver that comes along is for another run, which is not there.
    #[error("append with a receiver of a run that is not there")]
    Missing,
    /// The store cannot take writes now: full disk, no connection, too many waiting. Nothing was written.
    #[error("append to an unavailable store: {0}")]
    Unavailable(String),
    /// The store went silent during commit: reread at the expected sequence before anything else.
    #[error("learn whether the append was committed: {0}")]
    Unknown(String),
    /// A stored row cannot be read back: a bug or a damaged file.
    #[error("append to damaged data: {0}")]
    Corrupt(String),
}

/// Why a read did not succeed.
#[derive(Debug, thiserror::Error)]
pub enum ReadError {
    /// The store cannot answer now.
    #[error("read from an unavailable store: {0}")]
    Unavailable(String),
    /// A stored row cannot be read back: a bug or a damaged file.
    #[error("read damaged data: {0}")]
    Corrupt(String),
}

/// Why a write outside the log did not succeed. Repeating such a write is harmless.
#[derive(Debug, thiserror::Error)]
pub enum WriteError {
    /// The store cannot take writes now; the write may or may not have happened.
    #[error("write to an unavailable store: {0}")]
    Unavailable(String),
    /// A stored row cannot be read back.
    #[error("write to damaged data: {0}")]
    Corrupt(String),
}

impl From<ReadError> for WriteError {
    fn from(error: ReadError) -> Self {
        match error {
            ReadError::Unavailable(why) => Self::Unavailable(why),
            ReadError::Corrupt(why) => Self::Corrupt(why),
        }
    }
}
