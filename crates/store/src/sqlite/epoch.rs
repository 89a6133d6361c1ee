//! Beginning an epoch, even on a full disk.
//!
//! A start writes a new epoch, which ends the leases of every earlier one. If the disk is full, the host
//! should still serve reads. It then uses the next epoch number unwritten, which is safe because the lock
//! excludes other processes, and the writer begins the epoch before its first write once there is space.

use std::sync::Arc;

use parking_lot::Mutex;
use tokio::sync::oneshot;
use wopr_core::Timestamp;

use super::{
    SqliteStore,
    fault::{Failure, FailureKind, Fault},
    job::Job,
    lanes::Lane,
    queue::SMALL,
    session::Session,
    work,
};
use crate::{Epoch, WriteError};

/// An epoch that is in use but not yet written, by the time it began.
pub(super) type Owed = Arc<Mutex<Option<Timestamp>>>;

pub(super) struct Begin {
    now: Timestamp,
    begun: Option<Epoch>,
    reply: Option<oneshot::Sender<Result<Epoch, Failure>>>,
    owed: Owed,
}

impl Begin {
    /// Returns the job that writes the owed epoch, if there is one.
    pub(super) fn owed(owed: &Owed) -> Option<Self> {
        let now = (*owed.lock())?;
        Some(Self {
            now,
            begun: None,
            reply: None,
            owed: Arc::clone(owed),
        })
    }
}

impl Job for Begin {
    fn run(&mut self, conn: &Session<'_>) -> Result<bool, Fault> {
        self.begun = Some(work::begin_epoch(conn, self.now)?);
        Ok(true)
    }

    fn settle(self: Box<Self>, outcome: Result<(), Failure>) {
        let Self {
            begun, reply, owed, ..
        } = *self;
        let answer = outcome.map(|()| begun.expect("a committed transaction has run every job of its group"));
        if let Ok(epoch) = &answer
            && owed.lock().take().is_some()
        {
            tracing::info!(epoch = epoch.0, "there is room again, writes are taken");
        }
        if let Some(reply) = reply {
            // The write stands even if the caller is gone.
            drop(reply.send(answer));
        }
    }
}

impl SqliteStore {
    /// Begins an epoch. On a full disk, returns its number and leaves it to the writer to record it.
    pub(super) async fn begin_epoch_or_owe_it(&self, now: Timestamp) -> Result<Epoch, WriteError> {
        let (reply, answer) = oneshot::channel();
        let begin = Begin {
            now,
            begun: None,
            reply: Some(reply),
            owed: Arc::clone(&self.owed),
        };
        self.enqueue(Box::new(begin), SMALL)
            .map_err(WriteError::Unavailable)?;
        let failure = match answer.await {
            Ok(Ok(epoch)) => return Ok(epoch),
            Ok(Err(failure)) => failure,
            Err(_) => return Err(WriteError::Unavailable("the writer stopped".into())),
        };
        match failure.kind {
            FailureKind::Full => {}
            FailureKind::NotWritten | FailureKind::InDoubt | FailureKind::Damaged => {
                return Err(failure.into());
            }
        }
        let next = self.read(Lane::Work, work::next_epoch).await;
        let next = next.map_err(|_| WriteError::from(failure.clone()))?;
        *self.owed.lock() = Some(now);
        tracing::error!(
            failure = %failure.cause,
            "writes are refused until there is room, reads are served"
        );
        Ok(next)
    }

    /// Returns `true` if nothing could be written since the start for lack of space.
    #[must_use]
    pub fn is_full(&self) -> bool {
        self.owed.lock().is_some()
    }
}
