//! Wake-ups for readers that follow a log.
//!
//! A tail is a hint: it says that a log may have grown. Readers always read the store by cursor, so a missed or a
//! spurious wake-up costs a poll and nothing else. A run nobody follows has no entry here.

use std::{collections::HashMap, sync::Arc, time::Duration};

use parking_lot::Mutex;
use tokio::sync::watch;
use wopr_core::RunKey;

/// Follows one run's log.
#[derive(Debug)]
pub struct Tail {
    key: RunKey,
    receiver: watch::Receiver<()>,
    poll: Duration,
    tails: Arc<Tails>,
}

#[derive(Debug, Default)]
pub(crate) struct Tails {
    senders: Mutex<HashMap<RunKey, watch::Sender<()>>>,
}

impl Tails {
    pub(crate) fn follow(self: &Arc<Self>, key: &RunKey, poll: Duration) -> Tail {
        let mut senders = self.senders.lock();
        let receiver = match senders.get(key) {
            Some(sender) => sender.subscribe(),
            None => senders
                .entry(key.clone())
                .or_insert_with(|| watch::channel(()).0)
                .subscribe(),
        };
        Tail {
            key: key.clone(),
            receiver,
            poll,
            tails: Arc::clone(self),
        }
    }

    pub(crate) fn wake(&self, key: &RunKey) {
        if let Some(sender) = self.senders.lock().get(key) {
            sender.send_replace(());
        }
    }

    pub(crate) fn wake_all(&self) {
        for sender in self.senders.lock().values() {
            sender.send_replace(());
        }
    }
}

impl Tail {
    /// Returns after the next append since this tail was made or last returned, or when it is time to poll.
    ///
    /// # Cancel safety
    /// A dropped call misses nothing: the next one returns at once if there was an append.
    pub async fn changed(&mut self) {
        // A closed channel cannot be: the entry lives as long as this tail.
        let _ = tokio::time::timeout(self.poll, self.receiver.changed()).await;
    }
}

impl Drop for Tail {
    fn drop(&mut self) {
        let mut senders = self.tails.senders.lock();
        // This receiver still counts.
        if senders
            .get(&self.key)
            .is_some_and(|sender| sender.receiver_count() <= 1)
        {
            senders.remove(&self.key);
        }
    }
}
