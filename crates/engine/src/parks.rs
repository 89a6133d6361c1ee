//! Parks rows of effects together.
//!
//! Calls to one peer are looked at in rounds, and most looks find nothing new. What they write is one row each, and a
//! commit costs as much for one as for many. So the looks that end within some milliseconds of one another share a
//! write. A row is leased until then: a wake that comes meanwhile is noted in the row, and counts when it is parked.
//! Its holder keeps slot and bytes, which bounds how many wait here.

use std::{fmt, time::Duration};

use parking_lot::Mutex;
use tokio::sync::Notify;
use wopr_core::Timestamp;
use wopr_store::{Parking, Queue};

use crate::{Engine, logs::store_failed, pool::Lease};

/// How long the first row waits for others.
const GATHER: Duration = Duration::from_millis(10);
/// Rows that wait for no others.
const MANY: usize = 64;

/// The rows that wait to be parked.
#[derive(Default)]
pub(crate) struct Parks {
    waiting: Mutex<Vec<(Lease, Option<Timestamp>)>>,
    are_many: Notify,
}

impl fmt::Debug for Parks {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Parks")
            .field("waiting", &self.waiting.lock().len())
            .finish_non_exhaustive()
    }
}

impl Engine {
    /// Parks the row of a lease, together with others that end their work about now.
    pub(crate) fn park_soon(&self, lease: Lease, due: Option<Timestamp>) {
        let parks = &self.shared.parks;
        let n_waiting = {
            let mut waiting = parks.waiting.lock();
            waiting.push((lease, due));
            waiting.len()
        };
        if n_waiting == 1 {
            self.shared.tasks.spawn(self.clone().park_gathered());
        } else if n_waiting == MANY {
            parks.are_many.notify_one();
        }
    }

    async fn park_gathered(self) {
        let parks = &self.shared.parks;
        tokio::select! {
            biased;
            () = self.shared.stop.cancelled() => {}
            () = parks.are_many.notified() => {}
            () = tokio::time::sleep(GATHER) => {}
        }
        let leases = std::mem::take(&mut *parks.waiting.lock());
        let rows: Vec<_> = leases
            .iter()
            .map(|(lease, due)| Parking {
                run: lease.run.clone(),
                key: lease.key.clone(),
                fence: lease.fence,
                due: *due,
            })
            .collect();
        match self.shared.store.park_all(&rows).await {
            Ok(parked) => {
                let dues = rows.iter().zip(parked).filter(|(_, is_parked)| *is_parked);
                if let Some(next) = dues.filter_map(|(row, _)| row.due).min() {
                    self.shared.effects.hint(next);
                }
            }
            Err(error) => store_failed("rows not parked, their leases will run out", &error),
        }
        drop(leases);
        self.pool(Queue::Effects).freed.notify_one();
    }
}
