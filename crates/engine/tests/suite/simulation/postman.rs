//! What tells receivers: it succeeds, fails, takes longer than it may, and panics; and an account of what they took.
//!
//! Every event is an update, so a receiver that was there from the beginning has to take every place of the log, each
//! for the first time when all before it were taken.

use std::{collections::BTreeMap, panic::resume_unwind, sync::Arc, time::Duration};

use async_trait::async_trait;
use parking_lot::Mutex;
use wopr_core::{Recorded, RunId, RunKey, Timestamp};
use wopr_engine::{Courier, NewReceiver, Parcel, PushOptions, Undelivered, View};
use wopr_store::{DeliveryFilter, MemoryStore, PushRow, Pushes as _, Update};

use super::{fate::Fate, process::Process};
use crate::harness::tenant;

/// The one receiver of a run that has any.
const ID: &str = "receiver";
/// How long an attempt takes, if it is none of the slow ones.
const USUAL_MS: u64 = 1_000;
/// A receiver that does not answer.
const HANG: Duration = Duration::from_secs(25);

/// When and how often they are told: often enough that a world sees the end of it.
pub(crate) fn options() -> PushOptions {
    PushOptions {
        max_active: 3,
        timeout: Duration::from_secs(2),
        first_pause: Duration::from_millis(100),
        longest_pause: Duration::from_secs(5),
        ..PushOptions::default()
    }
}

/// A receiver to register.
pub(crate) fn receiver(run: &RunId) -> NewReceiver {
    let row = PushRow {
        id: ID.to_owned(),
        body: Vec::new(),
        created_at: Timestamp::from_millis(0),
    };
    NewReceiver {
        run: run.clone(),
        row,
        most: 1,
    }
}

/// What receivers took, by run: so many places of its log.
#[derive(Debug, Default)]
pub(crate) struct Taken(Mutex<BTreeMap<RunKey, u64>>);

impl Taken {
    fn take(&self, fate: &Fate, run: &RunKey, seq: u64) {
        let mut runs = self.0.lock();
        let n_taken = runs.entry(run.clone()).or_default();
        if seq == *n_taken {
            *n_taken += 1;
        } else if seq > *n_taken {
            fate.breaks(format!("{run}: event {seq} was told before event {n_taken}"));
        }
    }

    /// Claims that nothing is left to be told.
    pub(crate) async fn is_all(&self, store: &MemoryStore) -> bool {
        let filter = DeliveryFilter {
            tenant: tenant(),
            run: None,
            given_up: false,
        };
        let outbox = store.outbox(None, 1).await.expect("never fails");
        let deliveries = store.deliveries(&filter, None, 1).await.expect("never fails");
        outbox.is_empty() && deliveries.is_empty()
    }

    /// Holds what was told of a run against the length of its log.
    pub(crate) async fn check(&self, fate: &Fate, store: &MemoryStore, run: &RunKey, head: u64) {
        let has_receiver = !store.pushes(run).await.expect("never fails").is_empty();
        let n_taken = self.0.lock().get(run).copied();
        let wanted = has_receiver.then_some(head);
        if n_taken != wanted {
            fate.breaks(format!("{run}: {n_taken:?} of {wanted:?} events were told"));
        }
    }
}

/// Tells receivers for one process.
#[derive(Debug)]
pub(crate) struct Postman {
    pub(crate) taken: Arc<Taken>,
    pub(crate) process: Arc<Process>,
    pub(crate) fate: Arc<Fate>,
}

#[async_trait]
impl Courier for Postman {
    fn updates(&self, before: &View, events: &[Recorded]) -> Vec<Update> {
        if events.first().is_some_and(|first| first.seq != before.run.head) {
            self.fate
                .breaks(format!("{}: told from the wrong place", before.key));
        }
        let update = |recorded: &Recorded| Update {
            seq: recorded.seq,
            body: recorded.seq.0.to_string().into_bytes(),
        };
        events.iter().map(update).collect()
    }

    async fn deliver(&self, parcel: &Parcel) -> Result<(), Undelivered> {
        // What a dead process, or one that stands still, begins reaches nobody.
        self.process.live().await;
        let (fate, odds) = (&self.fate, &self.fate.odds);
        fate.linger(USUAL_MS).await;
        if fate.strikes(odds.attempt_hangs) {
            tokio::time::sleep(HANG).await; // sleep: virtual time
        }
        self.process.live().await;
        if fate.strikes(odds.attempt_panics) {
            // Without the hook that would print it.
            resume_unwind(Box::new("simulated"));
        }
        if fate.strikes(odds.attempt_fails) {
            return Err(Undelivered {
                reason: "simulated".to_owned(),
                retry_after: None,
            });
        }
        if parcel.body != parcel.seq.0.to_string().into_bytes() {
            fate.breaks(format!("{}: the update of another event was sent", parcel.run));
        }
        self.taken.take(fate, &parcel.run, parcel.seq.0);
        Ok(())
    }
}
