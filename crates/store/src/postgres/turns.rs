//! Turns: who may use a connection, and how many may wait for that.
//!
//! There is a turn for each connection. What clients look at may have most of them at a time and never all, and lists,
//! which may read very much, a part of those: however slow reads are, there are connections left for what is written
//! and for what goes on by itself, and however slow lists are, for the reads that this needs. Where there is one
//! connection only, all share it. Those that wait are bounded for each of the three by themselves, for the same reason.
//! Lists and reads take turns by tenant, and each tenant's that wait are bounded: one with many is not ahead of another.

use std::{sync::Arc, time::Duration};

use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use wopr_core::TenantId;

use super::Options;
use crate::{turns, with_timeout};

/// What a connection is wanted for.
#[derive(Debug, Clone, Copy)]
pub(super) enum Purpose<'t> {
    /// To find runs, tasks or deliveries of a tenant among many.
    List(&'t TenantId),
    /// To look at what is stored about a few runs of a tenant.
    Read(&'t TenantId),
    /// To write, and for what the process has to know to do its work.
    Work,
}

/// The turns of a pool.
pub(super) struct Turns {
    lists: turns::Turns,
    reads: turns::Turns,
    all: Arc<Semaphore>,
    /// One permit per call for work that waits for its turn, so that no more than these do.
    waiting: Semaphore,
    timeout: Duration,
}

/// The right to use a connection.
pub(super) struct Turn {
    _all: OwnedSemaphorePermit,
    _lanes: Lanes,
}

/// The turns among calls of its kind that a call has.
#[derive(Default)]
struct Lanes {
    _list: Option<turns::Turn>,
    _read: Option<turns::Turn>,
}

/// Why there is no turn.
const TOO_MANY: &str = "too many requests wait for the database";
const BUSY: &str = "every connection to the database is busy";

impl Turns {
    /// So many turns.
    pub(super) fn new(n_turns: usize, options: &Options) -> Self {
        let n_reads = n_turns.saturating_sub(options.share()).max(1);
        let n_lists = (n_turns / 2).max(1);
        let n_waiting = options.waiting.saturating_add(n_turns);
        Self {
            lists: turns::Turns::new(n_lists, options.waiting),
            reads: turns::Turns::new(n_reads, options.waiting),
            all: Arc::new(Semaphore::new(n_turns)),
            waiting: Semaphore::new(n_waiting.min(Semaphore::MAX_PERMITS)),
            timeout: options.timeout,
        }
    }

    /// Gives a turn, or says soon that there is none.
    pub(super) async fn take(&self, purpose: Purpose<'_>) -> Result<Turn, &'static str> {
        let _waiting = match purpose {
            Purpose::Work => Some(self.waiting.try_acquire().map_err(|_| TOO_MANY)?),
            Purpose::List(_) | Purpose::Read(_) => None,
        };
        // From the narrow to the wide, so that who waits in one keeps nobody from his turn in another.
        let turn = async {
            let lanes = self.lanes(purpose).await.map_err(|turns::Full| TOO_MANY)?;
            // They are never closed.
            let all = Arc::clone(&self.all).acquire_owned().await.map_err(|_| BUSY)?;
            Ok(Turn {
                _all: all,
                _lanes: lanes,
            })
        };
        with_timeout(self.timeout, turn).await.unwrap_or(Err(BUSY))
    }

    async fn lanes(&self, purpose: Purpose<'_>) -> Result<Lanes, turns::Full> {
        match purpose {
            Purpose::List(tenant) => {
                let list = self.lists.take(tenant, 1).await?;
                let read = self.reads.take(tenant, 1).await?;
                Ok(Lanes {
                    _list: Some(list),
                    _read: Some(read),
                })
            }
            Purpose::Read(tenant) => {
                let read = self.reads.take(tenant, 1).await?;
                Ok(Lanes {
                    _list: None,
                    _read: Some(read),
                })
            }
            Purpose::Work => Ok(Lanes::default()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Takes as many as there are.
    async fn take_all(turns: &Turns, purpose: Purpose<'_>) -> Vec<Turn> {
        let mut taken = Vec::new();
        while let Ok(turn) = turns.take(purpose).await {
            taken.push(turn);
        }
        taken
    }

    #[tokio::test(start_paused = true)]
    async fn lists_leave_turns_to_reads_and_these_to_what_writes() {
        let acme = TenantId::parse("acme").expect("valid");
        for (connections, n_lists, n_reads) in [(1, 1, 1), (2, 1, 1), (3, 1, 2), (4, 2, 3), (16, 8, 12)] {
            let options = Options {
                connections,
                ..Options::default()
            };
            let turns = Turns::new(connections, &options);
            let lists = take_all(&turns, Purpose::List(&acme)).await;
            assert_eq!(lists.len(), n_lists, "of {connections}");
            let reads = take_all(&turns, Purpose::Read(&acme)).await;
            assert_eq!(lists.len() + reads.len(), n_reads, "of {connections}");
            let work = take_all(&turns, Purpose::Work).await;
            assert_eq!(lists.len() + reads.len() + work.len(), connections);
            drop(lists);
            assert!(turns.take(Purpose::Work).await.is_ok(), "of {connections}");
        }
    }

    #[tokio::test(start_paused = true)]
    async fn many_lists_of_one_tenant_do_not_hold_up_another() {
        let [busy, other] = ["busy", "other"].map(|name| TenantId::parse(name).expect("valid"));
        let turns = Arc::new(Turns::new(2, &Options::default()));
        for _ in 0..50 {
            let (turns, busy) = (Arc::clone(&turns), busy.clone());
            tokio::spawn(async move {
                let _turn = turns.take(Purpose::List(&busy)).await;
                // sleep: how long a list takes, in virtual time
                tokio::time::sleep(turns.timeout / 10).await;
            });
            tokio::task::yield_now().await;
        }
        assert!(turns.take(Purpose::List(&busy)).await.is_err());
        assert!(turns.take(Purpose::List(&other)).await.is_ok());
    }
}
