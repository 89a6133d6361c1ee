//! Turns: who may use a connection, and how many may wait.
//!
//! There is one turn per connection. Reads for clients may hold most of them but never all, and lists, which
//! may read a lot, only a part of those. So however slow reads are, connections remain for writes and
//! background work, and however slow lists are, for other reads. If there is only one connection, all share
//! it. The number of waiting calls is limited separately for each of the three, for the same reason. In lists
//! and reads tenants take turns, and the number of waiting calls is limited per tenant, so that a busy tenant
//! does not delay another.

use std::{sync::Arc, time::Duration};

use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use wopr_core::TenantId;

use super::Options;
use crate::{turns, with_timeout};

/// What a connection is used for.
#[derive(Debug, Clone, Copy)]
pub(super) enum Purpose<'t> {
    /// A list of a tenant's runs, tasks or deliveries.
    List(&'t TenantId),
    /// A read of a few runs of a tenant.
    Read(&'t TenantId),
    /// A write, or a read that the process needs for its own work.
    Work,
}

pub(super) struct Turns {
    lists: turns::Turns,
    reads: turns::Turns,
    all: Arc<Semaphore>,
    /// One permit per call for [`Purpose::Work`] that has or waits for a turn, which limits their number.
    waiting: Semaphore,
    timeout: Duration,
}

/// The right to use a connection.
pub(super) struct Turn {
    _all: OwnedSemaphorePermit,
    _lanes: Lanes,
}

/// The turns that a call holds in its lanes.
#[derive(Default)]
struct Lanes {
    _list: Option<turns::Turn>,
    _read: Option<turns::Turn>,
}

const TOO_MANY: &str = "too many requests wait for the database";
const BUSY: &str = "every connection to the database is busy";

impl Turns {
    /// Creates one turn per connection.
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

    /// Waits for a turn, and fails after a short time without one.
    pub(super) async fn take(&self, purpose: Purpose<'_>) -> Result<Turn, &'static str> {
        let _waiting = match purpose {
            Purpose::Work => Some(self.waiting.try_acquire().map_err(|_| TOO_MANY)?),
            Purpose::List(_) | Purpose::Read(_) => None,
        };
        // Take the narrow lane first, so that a waiting call does not hold a turn that another one needs.
        let turn = async {
            let lanes = self.lanes(purpose).await.map_err(|turns::Full| TOO_MANY)?;
            // The semaphore is never closed.
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

    /// Takes turns until none is left.
    async fn take_all(turns: &Turns, purpose: Purpose<'_>) -> Vec<Turn> {
        let mut taken = Vec::new();
        while let Ok(turn) = turns.take(purpose).await {
            taken.push(turn);
        }
        taken
    }

    #[tokio::test(start_paused = true)]
    async fn lists_leave_turns_for_reads_and_reads_for_writes() {
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
    async fn many_lists_of_one_tenant_do_not_delay_another() {
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
