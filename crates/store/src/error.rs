//! Errors of the store port.

use wopr_core::Seq;

use crate::{Cause, IdempotencyRecord, WorkKey};

/// Why an append failed. Only `Unknown` leaves the log in doubt.
#[derive(Debug, thiserror::Error)]
pub enum AppendError {
    /// Another writer advanced or created the run; reload and decide again. `actual` is `None` if the run is
    /// missing.
    #[error("append at {expected}, log is at {actual:?}")]
    Conflict {
        /// The head that the batch expected.
        expected: Seq,
        /// The head in the store.
        actual: Option<Seq>,
    },
    /// The lease was taken over or ended, or its row is gone; drop the outcome.
    #[error("append with a stale lease on {0:?}")]
    Fenced(WorkKey),
    /// The request's idempotency key already has a record.
    #[error("append a request that already took effect")]
    Duplicate(Box<IdempotencyRecord>),
    /// The run of the batch's subscription already has the maximum number of subscriptions.
    #[error("append with more than {0} receivers of a run")]
    Full(usize),
    /// The batch's subscription is for another run, which does not exist.
    #[error("append with a receiver of a run that is not there")]
    Missing,
    /// The store cannot accept writes now: full disk, no connection, or too many waiting appends. Nothing was
    /// written.
    #[error("append to an unavailable store: {0}")]
    Unavailable(#[source] Cause),
    /// The store went silent during commit: reread at the expected sequence before anything else.
    #[error("learn whether the append was committed: {0}")]
    Unknown(#[source] Cause),
    /// A stored row cannot be decoded: a bug or a damaged file.
    #[error("append to damaged data: {0}")]
    Corrupt(#[source] Cause),
}

#[derive(Debug, thiserror::Error)]
pub enum ReadError {
    /// The store cannot answer now.
    #[error("read from an unavailable store: {0}")]
    Unavailable(#[source] Cause),
    /// A stored row cannot be decoded: a bug or a damaged file.
    #[error("read damaged data: {0}")]
    Corrupt(#[source] Cause),
}

/// Why a write outside the log failed. Such writes can be retried safely.
#[derive(Debug, thiserror::Error)]
pub enum WriteError {
    /// The store cannot accept writes now; the write may or may not have happened.
    #[error("write to an unavailable store: {0}")]
    Unavailable(#[source] Cause),
    /// A stored row cannot be decoded.
    #[error("write to damaged data: {0}")]
    Corrupt(#[source] Cause),
}

impl From<ReadError> for AppendError {
    fn from(error: ReadError) -> Self {
        match error {
            ReadError::Unavailable(why) => Self::Unavailable(why),
            ReadError::Corrupt(why) => Self::Corrupt(why),
        }
    }
}

impl From<ReadError> for WriteError {
    fn from(error: ReadError) -> Self {
        match error {
            ReadError::Unavailable(why) => Self::Unavailable(why),
            ReadError::Corrupt(why) => Self::Corrupt(why),
        }
    }
}
