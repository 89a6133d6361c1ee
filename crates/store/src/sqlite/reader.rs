//! The readers: a few threads, each with a read-only connection.
//!
//! Every read is one transaction and sees one moment, which is never before the last acknowledged append. No
//! transaction outlives its call: an old one would keep the write-ahead log from restarting.

use std::sync::Arc;

use rusqlite::Connection;

use super::queue::Queue;

/// A read that replies to its caller itself.
pub(super) type Read = Box<dyn FnOnce(&Connection) + Send>;

/// Serves reads until the queue is closed and empty.
pub(super) fn run(conn: &Connection, queue: &Arc<Queue<Read>>) {
    while let Some(read) = queue.pop() {
        // A panic in one read must not end the thread; its caller sees the dropped reply.
        let outcome = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| read(conn)));
        if outcome.is_err() {
            tracing::error!("read panicked");
        }
    }
}

/// Runs a read as of one moment.
pub(super) fn as_of_one_moment<T, E>(
    conn: &Connection,
    read: impl FnOnce(&Connection) -> Result<T, E>,
) -> Result<T, E>
where
    E: From<rusqlite::Error>,
{
    let moment = Moment::begin(conn)?;
    let answer = read(conn);
    drop(moment);
    answer
}

/// An open read transaction.
struct Moment<'c>(&'c Connection);

impl<'c> Moment<'c> {
    fn begin(conn: &'c Connection) -> rusqlite::Result<Self> {
        conn.prepare_cached("BEGIN DEFERRED")?.execute([])?;
        Ok(Self(conn))
    }
}

impl Drop for Moment<'_> {
    fn drop(&mut self) {
        let ended = self
            .0
            .prepare_cached("COMMIT")
            .and_then(|mut end| end.execute([]));
        if let Err(error) = ended
            && !self.0.is_autocommit()
        {
            tracing::error!(%error, "read transaction could not be ended");
        }
    }
}
