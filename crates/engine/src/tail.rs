//! Wake-ups for readers that follow a log.
//!
//! A tail is a hint: it says that a log may have grown. Readers always read the store by position, so a
//! missed or a spurious wake-up does no harm. A run without followers has no entry here.
//!
//! Appends of this process and hints from others wake followers at once. For the rest, a loop polls the
//! lengths of all followed logs in one read, so the cost does not depend on the number of readers.

use std::{collections::HashMap, sync::Arc};

use parking_lot::Mutex;
use tokio::sync::watch;
use wopr_core::{RunKey, Seq};

use crate::{Engine, logs::store_failed};

/// Logs polled by one read.
const PAGE: usize = 1_024;
/// How much longer the poll interval is if no other process appends. All that polling can find then is an
/// uncertain append that committed after its command gave up.
const ALONE: u32 = 10;

#[derive(Debug)]
pub struct Tail {
    key: RunKey,
    receiver: watch::Receiver<()>,
    tails: Arc<Tails>,
}

#[derive(Debug, Default)]
pub(crate) struct Tails {
    followed: Mutex<HashMap<RunKey, Followed>>,
}

#[derive(Debug)]
struct Followed {
    sender: watch::Sender<()>,
    /// The length of the log when its followers were last woken, or known to be up to date; `None` before the
    /// first poll.
    seen: Option<Option<Seq>>,
}

impl Tails {
    pub(crate) fn follow(self: &Arc<Self>, key: &RunKey) -> Tail {
        let mut followed = self.followed.lock();
        let receiver = match followed.get(key) {
            Some(followed) => followed.sender.subscribe(),
            None => {
                let (sender, receiver) = watch::channel(());
                followed.insert(key.clone(), Followed { sender, seen: None });
                receiver
            }
        };
        Tail {
            key: key.clone(),
            receiver,
            tails: Arc::clone(self),
        }
    }

    /// Wakes the followers of a log that may have grown.
    pub(crate) fn wake(&self, key: &RunKey) {
        if let Some(followed) = self.followed.lock().get(key) {
            followed.sender.send_replace(());
        }
    }

    /// Wakes the followers of a log that has at least `head` events now.
    pub(crate) fn grew(&self, key: &RunKey, head: Seq) {
        if let Some(followed) = self.followed.lock().get_mut(key) {
            followed.seen = Some(followed.seen.flatten().max(Some(head)));
            followed.sender.send_replace(());
        }
    }

    pub(crate) fn wake_all(&self) {
        for key in self.keys() {
            self.wake(&key);
        }
    }

    /// The followed runs in key order, so that a simulation wakes readers in the same order each time.
    fn keys(&self) -> Vec<RunKey> {
        let mut keys: Vec<_> = self.followed.lock().keys().cloned().collect();
        keys.sort_unstable();
        keys
    }

    /// Wakes the followers of those logs whose length has changed.
    fn look(&self, logs: impl Iterator<Item = (RunKey, Option<Seq>)>) {
        let mut followed = self.followed.lock();
        for (key, head) in logs {
            if let Some(followed) = followed.get_mut(&key)
                && followed.seen != Some(head)
            {
                followed.seen = Some(head);
                followed.sender.send_replace(());
            }
        }
    }
}

impl Tail {
    /// Returns after the next append since the tail was created or this last returned. May also return
    /// without one.
    ///
    /// # Cancel safety
    /// A dropped call misses nothing: the next one returns at once if there was an append.
    pub async fn changed(&mut self) {
        // The channel is never closed: the entry lives as long as this tail.
        let _ = self.receiver.changed().await;
    }
}

impl Drop for Tail {
    fn drop(&mut self) {
        let mut followed = self.tails.followed.lock();
        // This tail's own receiver still counts.
        if followed
            .get(&self.key)
            .is_some_and(|followed| followed.sender.receiver_count() <= 1)
        {
            followed.remove(&self.key);
        }
    }
}

impl Engine {
    /// Polls the lengths of the followed logs.
    pub(crate) async fn run_tails(self) {
        let shared = &self.shared;
        let every = if shared.store.is_shared() {
            shared.options.poll
        } else {
            shared.options.poll * ALONE
        };
        while !self.paused_for(every).await {
            let keys = shared.tails.keys();
            for keys in keys.chunks(PAGE) {
                match shared.store.heads(keys).await {
                    Ok(heads) => shared.tails.look(keys.iter().cloned().zip(heads)),
                    Err(error) => {
                        store_failed("cannot read how long followed logs are", &error);
                        break;
                    }
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use wopr_core::{RunId, TenantId, Timestamp};

    use super::*;

    #[tokio::test]
    async fn readers_wake_in_the_order_of_their_runs() {
        let tails = Arc::new(Tails::default());
        let (saw, mut woken) = tokio::sync::mpsc::unbounded_channel();
        for n in (0_u8..32).rev() {
            let run = RunId::from_parts(Timestamp::from_millis(n.into()), [0; 10]);
            let mut tail = tails.follow(&RunKey::new(TenantId::parse("acme").expect("valid"), run));
            let saw = saw.clone();
            tokio::spawn(async move {
                tail.changed().await;
                saw.send(n).expect("the test listens");
            });
        }
        drop(saw);
        tokio::task::yield_now().await;
        tails.wake_all();
        for n in 0..32 {
            assert_eq!(woken.recv().await, Some(n));
        }
    }
}
