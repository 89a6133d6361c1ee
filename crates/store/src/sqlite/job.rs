//! What the writer is given to do: to write in a transaction that others share, and to answer once it is durable.

use rusqlite::Connection;
use tokio::sync::oneshot;

use super::{
    fault::{Failure, Fault},
    queue::SMALL,
    session::Session,
};
use crate::WriteError;

/// A write: run inside a transaction, perhaps more than once, and settled after it.
pub(super) trait Job: Send {
    /// Writes; says whether it did. May be called again after a rollback.
    fn run(&mut self, conn: &Session<'_>) -> Result<bool, Fault>;

    /// About how many bytes it writes.
    fn bytes(&self) -> usize {
        SMALL
    }

    /// Answers the caller. `Ok` means that the transaction is durable.
    fn settle(self: Box<Self>, outcome: Result<(), Failure>);
}

/// A write that returns something.
pub(super) struct Task<T, F> {
    pub(super) work: F,
    /// About how many bytes it writes.
    pub(super) bytes: usize,
    pub(super) value: Option<T>,
    pub(super) reply: oneshot::Sender<Result<T, WriteError>>,
}

impl<T, F> Job for Task<T, F>
where
    T: Send,
    F: FnMut(&Connection) -> Result<T, Fault> + Send,
{
    fn run(&mut self, conn: &Session<'_>) -> Result<bool, Fault> {
        self.value = Some((self.work)(conn)?);
        Ok(true)
    }

    fn bytes(&self) -> usize {
        self.bytes
    }

    fn settle(self: Box<Self>, outcome: Result<(), Failure>) {
        let Self { value, reply, .. } = *self;
        let answer = outcome
            .map_err(WriteError::from)
            .map(|()| value.expect("a committed transaction has run every job of its group"));
        // A caller that went away does not take its write back.
        drop(reply.send(answer));
    }
}
