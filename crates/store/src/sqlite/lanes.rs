//! Lanes: limits on concurrent reads by kind.
//!
//! The contract is the same as for PostgreSQL. Lists, which may read a lot, get at most half of the readers.
//! Lists and other reads for clients together get all but one; the last is reserved for the process's own
//! work. In each lane tenants take turns, each has a bounded number of waiting reads, and no read waits for
//! long.

use std::time::Duration;

use wopr_core::TenantId;

use crate::{
    turns::{Full, Turn, Turns},
    with_timeout,
};

/// How long a read waits for its turn before it is refused.
const TIMEOUT: Duration = Duration::from_secs(3);

/// The kind of a read.
#[derive(Debug, Clone)]
pub(super) enum Lane {
    /// A list of a tenant's runs, tasks, deliveries or keys.
    List(TenantId),
    /// A read of a few runs or one record of a tenant.
    Look(TenantId),
    /// A read that the process needs for its own work.
    Work,
}

#[derive(Debug)]
pub(super) struct Lanes {
    lists: Turns,
    looks: Turns,
}

/// The right to read, held until dropped. Reads in [`Lane::Work`] hold no turn.
#[derive(Debug, Default)]
pub(super) struct Place {
    _list: Option<Turn>,
    _look: Option<Turn>,
}

impl Lanes {
    /// Creates lanes for a number of readers. In each lane, `max_waiting` reads of each tenant may wait.
    pub(super) fn new(n_readers: usize, max_waiting: usize) -> Self {
        Self {
            lists: Turns::new((n_readers / 2).max(1), max_waiting),
            looks: Turns::new(n_readers.saturating_sub(1).max(1), max_waiting),
        }
    }

    /// Waits for a turn, and fails after a short time without one.
    pub(super) async fn take(&self, lane: &Lane) -> Result<Place, Full> {
        // Take the narrow lane first, so that a waiting list does not hold a turn that another read needs.
        let place = async {
            match lane {
                Lane::List(tenant) => {
                    let list = self.lists.take(tenant, 1).await?;
                    let look = self.looks.take(tenant, 1).await?;
                    Ok(Place {
                        _list: Some(list),
                        _look: Some(look),
                    })
                }
                Lane::Look(tenant) => {
                    let look = self.looks.take(tenant, 1).await?;
                    Ok(Place {
                        _list: None,
                        _look: Some(look),
                    })
                }
                Lane::Work => Ok(Place::default()),
            }
        };
        with_timeout(TIMEOUT, place).await.unwrap_or(Err(Full))
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;

    fn tenant(name: &str) -> TenantId {
        TenantId::parse(name).expect("valid")
    }

    async fn take_all(lanes: &Lanes, lane: Lane) -> Vec<Place> {
        let mut taken = Vec::new();
        while let Ok(place) = lanes.take(&lane).await {
            taken.push(place);
        }
        taken
    }

    #[tokio::test(start_paused = true)]
    async fn lists_leave_readers_for_looks_and_looks_for_work() {
        for (n_readers, n_lists, n_looks) in [(1, 1, 1), (2, 1, 1), (4, 2, 3), (8, 4, 7)] {
            let lanes = Lanes::new(n_readers, 9);
            let lists = take_all(&lanes, Lane::List(tenant("acme"))).await;
            assert_eq!(lists.len(), n_lists, "of {n_readers}");
            let looks = take_all(&lanes, Lane::Look(tenant("acme"))).await;
            assert_eq!(lists.len() + looks.len(), n_looks, "of {n_readers}");
            assert!(lanes.take(&Lane::Work).await.is_ok());
        }
    }

    #[tokio::test(start_paused = true)]
    async fn many_lists_of_one_tenant_do_not_delay_another() {
        let lanes = Arc::new(Lanes::new(4, 1_024));
        for _ in 0..100 {
            let lanes = Arc::clone(&lanes);
            tokio::spawn(async move {
                let _place = lanes.take(&Lane::List(tenant("busy"))).await;
                // sleep: how long a list takes, in virtual time
                tokio::time::sleep(TIMEOUT / 10).await;
            });
            tokio::task::yield_now().await;
        }
        assert!(lanes.take(&Lane::List(tenant("busy"))).await.is_err());
        assert!(lanes.take(&Lane::List(tenant("other"))).await.is_ok());
        assert!(lanes.take(&Lane::Look(tenant("busy"))).await.is_ok());
    }
}
