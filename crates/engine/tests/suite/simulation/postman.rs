//! The notifier of the simulation: deliveries succeed, fail, time out and panic. Also a record of what
//! arrived.
//!
//! Every event has an update, so a subscription registered with the run must receive every position of the
//! log, each for the first time after all before it. Later positions may come first only if deliveries were
//! dead-lettered and retried later.

use std::{
    collections::{BTreeMap, BTreeSet},
    panic::resume_unwind,
    sync::Arc,
    time::Duration,
};

use async_trait::async_trait;
use parking_lot::Mutex;
use wopr_core::{Recorded, RunId, RunKey, Timestamp};
use wopr_engine::{Delivery, NewSubscription, Notifier, PushOptions, Undelivered, View};
use wopr_store::{DeliveryFilter, Epoch, MemoryStore, PushRow, Pushes as _, Update, Work as _};

use super::{fate::Fate, process::Process};
use crate::harness::tenant;

/// The id of a run's only subscription.
const ID: &str = "receiver";
/// Maximum duration of an ordinary attempt.
const USUAL_MS: u64 = 1_000;
/// Duration of an attempt at an unresponsive server.
const HANG: Duration = Duration::from_secs(25);

/// Push options with short pauses, so that a world sees deliveries being dead-lettered.
pub(crate) fn options() -> PushOptions {
    PushOptions {
        max_active: 3,
        timeout: Duration::from_secs(2),
        first_pause: Duration::from_millis(100),
        longest_pause: Duration::from_secs(5),
        ..PushOptions::default()
    }
}

/// A subscription to register.
pub(crate) fn receiver(run: &RunId) -> NewSubscription {
    let row = PushRow {
        id: ID.to_owned(),
        body: Vec::new(),
        created_at: Timestamp::from_millis(0),
    };
    NewSubscription {
        run: run.clone(),
        row,
        most: 1,
    }
}

/// The updates that subscriptions received, by run.
#[derive(Debug, Default)]
pub(crate) struct Taken(Mutex<BTreeMap<RunKey, Told>>);

/// What the subscription of one run received.
#[derive(Debug, Default)]
struct Told {
    seqs: BTreeSet<u64>,
    /// The first event that arrived before an earlier one.
    early: Option<u64>,
    /// Deliveries were dead-lettered, so later events may arrive before them.
    has_gaps: bool,
}

impl Told {
    /// How many events arrived without a gap, from the first on.
    fn n_dense(&self) -> u64 {
        (0..).zip(&self.seqs).take_while(|(n, seq)| n == *seq).count() as u64
    }
}

impl Taken {
    fn take(&self, run: &RunKey, seq: u64) {
        let mut runs = self.0.lock();
        let told = runs.entry(run.clone()).or_default();
        if seq > told.n_dense() {
            told.early.get_or_insert(seq);
        }
        told.seqs.insert(seq);
    }

    /// Notes if deliveries of a run were dead-lettered, before they are retried.
    pub(crate) async fn look_for_gaps(&self, store: &MemoryStore, run: &RunKey) {
        let filter = DeliveryFilter {
            tenant: run.tenant.clone(),
            run: Some(run.run.clone()),
            principal: None,
            given_up: true,
        };
        let given_up = store.deliveries(&filter, None, 1).await.expect("never fails");
        if !given_up.is_empty() {
            self.0.lock().entry(run.clone()).or_default().has_gaps = true;
        }
    }

    /// Returns `true` if nothing is left to deliver.
    pub(crate) async fn is_all(&self, store: &MemoryStore) -> bool {
        let filter = DeliveryFilter {
            tenant: tenant(),
            run: None,
            principal: None,
            given_up: false,
        };
        let mut is_told = true;
        // Whichever epoch has claimed it.
        for epoch in 0..64 {
            let outbox = store.outbox(Epoch(epoch), None, 1).await.expect("never fails");
            is_told &= outbox.is_empty();
            // What is not quarantined is delivered, whether its run has ended or not.
            let inboxes = store
                .runs_with_inbox(Epoch(epoch), None, 1)
                .await
                .expect("never fails");
            is_told &= inboxes.is_empty();
        }
        let deliveries = store.deliveries(&filter, None, 1).await.expect("never fails");
        is_told && deliveries.is_empty()
    }

    /// Checks the deliveries of a run against the length of its log.
    pub(crate) async fn check(&self, fate: &Fate, store: &MemoryStore, run: &RunKey, head: u64) {
        let has_receiver = !store.pushes(run).await.expect("never fails").is_empty();
        let (n_taken, early) = match self.0.lock().get(run) {
            Some(told) if told.has_gaps => (Some(told.n_dense()), None),
            Some(told) => (Some(told.n_dense()), told.early),
            None => (None, None),
        };
        let wanted = has_receiver.then_some(head);
        if n_taken != wanted {
            fate.breaks(format!("{run}: {n_taken:?} of {wanted:?} events were told"));
        }
        if let Some(seq) = early {
            fate.breaks(format!("{run}: event {seq} was told before an earlier one"));
        }
    }
}

/// The notifier of one process.
#[derive(Debug)]
pub(crate) struct Postman {
    pub(crate) taken: Arc<Taken>,
    pub(crate) process: Arc<Process>,
    pub(crate) fate: Arc<Fate>,
}

#[async_trait]
impl Notifier for Postman {
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

    async fn deliver(&self, delivery: &Delivery) -> Result<(), Undelivered> {
        // Deliveries of a dead or frozen process reach nobody.
        self.process.live().await;
        let (fate, odds) = (&self.fate, &self.fate.odds);
        fate.linger(USUAL_MS).await;
        if fate.strikes(odds.attempt_hangs) {
            tokio::time::sleep(HANG).await; // sleep: virtual time
        }
        self.process.live().await;
        if fate.strikes(odds.attempt_panics) {
            // Bypasses the panic hook, which would print it.
            resume_unwind(Box::new("simulated"));
        }
        if fate.strikes(odds.attempt_fails) {
            return Err(Undelivered {
                reason: "simulated".to_owned(),
                retry_after: None,
            });
        }
        if delivery.body != delivery.seq.0.to_string().into_bytes() {
            fate.breaks(format!("{}: the update of another event was sent", delivery.run));
        }
        self.taken.take(&delivery.run, delivery.seq.0);
        Ok(())
    }
}
