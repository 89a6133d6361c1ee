//! Jobs for the writer: they write in a shared transaction and reply once it is durable.

use rusqlite::Connection;
use tokio::sync::oneshot;

use super::{
    fault::{Failure, Fault},
    queue::SMALL,
    session::Session,
};
use crate::WriteError;

/// A write that runs inside a transaction, perhaps more than once, and is settled afterwards.
pub(super) trait Job: Send {
    /// Writes; returns `true` if it did. May be called again after a rollback.
    fn run(&mut self, conn: &Session<'_>) -> Result<bool, Fault>;

    /// Approximate number of bytes written.
    fn bytes(&self) -> usize {
        SMALL
    }

    /// Number of runs written.
    fn runs(&self) -> usize {
        1
    }

    /// Replies to the caller. `Ok` means that the transaction is durable.
    fn settle(self: Box<Self>, outcome: Result<(), Failure>);
}

/// A write that returns a value.
pub(super) struct Task<T, F> {
    pub(super) work: F,
    /// Approximate number of bytes written.
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
        // The write stands even if the caller is gone.
        drop(reply.send(answer));
    }
}
