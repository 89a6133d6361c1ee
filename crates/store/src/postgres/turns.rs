//! Turns: who may use a connection, and how many may wait for that.
//!
//! There is a turn for each connection. What clients look at may have most of them at a time and never all, and lists,
//! which may read very much, a part of those: however slow reads are, there are connections left for what is written
//! and for what goes on by itself, and however slow lists are, for the reads that this needs. Where there is one
//! connection only, all share it. Those that wait are bounded for each of the three by themselves, for the same reason.

use std::{sync::Arc, time::Duration};

use tokio::sync::{AcquireError, OwnedSemaphorePermit, Semaphore};

use super::Options;
use crate::patiently;

/// What a connection is wanted for.
#[derive(Debug, Clone, Copy)]
pub(super) enum Purpose {
    /// To find runs, tasks or deliveries among many.
    List,
    /// To look at what is stored about a few runs.
    Read,
    /// To write, and for what the process has to know to do its work.
    Work,
}

/// The turns of a pool.
pub(super) struct Turns {
    lists: Lane,
    reads: Lane,
    all: Lane,
    patience: Duration,
}

/// Some of the turns.
struct Lane {
    turns: Arc<Semaphore>,
    /// One permit per caller that waits for its turn, so that no more than these do.
    waiting: Semaphore,
}

impl Lane {
    fn new(n_turns: usize, n_waiting: usize) -> Self {
        let n_waiting = n_waiting.saturating_add(n_turns).min(Semaphore::MAX_PERMITS);
        Self {
            turns: Arc::new(Semaphore::new(n_turns)),
            waiting: Semaphore::new(n_waiting),
        }
    }
}

/// The right to use a connection.
pub(super) struct Turn {
    _of: Vec<OwnedSemaphorePermit>,
}

impl Turns {
    /// So many turns.
    pub(super) fn new(n_turns: usize, options: &Options) -> Self {
        let n_reads = n_turns.saturating_sub(options.share()).max(1);
        let n_lists = (n_turns / 2).max(1);
        Self {
            lists: Lane::new(n_lists, options.waiting),
            reads: Lane::new(n_reads, options.waiting),
            all: Lane::new(n_turns, options.waiting),
            patience: options.patience,
        }
    }

    /// Gives a turn, or says soon that there is none.
    pub(super) async fn take(&self, purpose: Purpose) -> Result<Turn, &'static str> {
        let (lanes, waiting): (&[_], _) = match purpose {
            Purpose::List => (&[&self.lists, &self.reads, &self.all], &self.lists.waiting),
            Purpose::Read => (&[&self.reads, &self.all], &self.reads.waiting),
            Purpose::Work => (&[&self.all], &self.all.waiting),
        };
        let Ok(_waiting) = waiting.try_acquire() else {
            return Err("too many requests wait for the database");
        };
        // From the narrow to the wide, so that who waits in one keeps nobody from his turn in another.
        let turn = async {
            let mut of = Vec::with_capacity(lanes.len());
            for lane in lanes {
                of.push(Arc::clone(&lane.turns).acquire_owned().await?);
            }
            Ok::<_, AcquireError>(Turn { _of: of })
        };
        match patiently(self.patience, turn).await {
            Some(Ok(turn)) => Ok(turn),
            // They are never closed.
            Some(Err(_)) | None => Err("every connection to the database is busy"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Takes as many as there are.
    async fn take_all(turns: &Turns, purpose: Purpose) -> Vec<Turn> {
        let mut taken = Vec::new();
        while let Ok(turn) = turns.take(purpose).await {
            taken.push(turn);
        }
        taken
    }

    #[tokio::test(start_paused = true)]
    async fn lists_leave_turns_to_reads_and_these_to_what_writes() {
        for (connections, n_lists, n_reads) in [(1, 1, 1), (2, 1, 1), (3, 1, 2), (4, 2, 3), (16, 8, 12)] {
            let options = Options {
                connections,
                ..Options::default()
            };
            let turns = Turns::new(connections, &options);
            let lists = take_all(&turns, Purpose::List).await;
            assert_eq!(lists.len(), n_lists, "of {connections}");
            let reads = take_all(&turns, Purpose::Read).await;
            assert_eq!(lists.len() + reads.len(), n_reads, "of {connections}");
            let work = take_all(&turns, Purpose::Work).await;
            assert_eq!(lists.len() + reads.len() + work.len(), connections);
            drop(lists);
            assert!(turns.take(Purpose::Work).await.is_ok(), "of {connections}");
        }
    }
}
