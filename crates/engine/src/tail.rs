//! Wake-ups for readers that follow a log.
//!
//! A tail is a hint: it says that a log may have grown. Readers always read the store by cursor, so a missed or a
//! spurious wake-up costs a look and nothing else. A run nobody follows has no entry here.
//!
//! Appends of this process wake at once, and so do hints of others. What neither told of is found by looking at how
//! long the followed logs are, all of them in one read, so what it costs does not depend on how many readers wait.

use std::{collections::HashMap, sync::Arc};

use parking_lot::Mutex;
use tokio::sync::watch;
use wopr_core::{RunKey, Seq};

use crate::Engine;

/// Logs looked at by one read.
const PAGE: usize = 1_024;
/// How much more seldom to look where no other process appends. What there is to find is then an append that was in
/// doubt, happened after all, and whose command had given up by then.
const ALONE: u32 = 10;

/// Follows one run's log.
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

/// A log that somebody follows.
#[derive(Debug)]
struct Followed {
    sender: watch::Sender<()>,
    /// How long it was when its followers were last woken, or were found to know; `None` before the first look.
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

    /// Wakes who follows a log that may have grown.
    pub(crate) fn wake(&self, key: &RunKey) {
        if let Some(followed) = self.followed.lock().get(key) {
            followed.sender.send_replace(());
        }
    }

    /// Wakes who follows a log that is at least so long now.
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

    /// What is followed, in the order of keys: a simulation wakes readers in the same order each time.
    fn keys(&self) -> Vec<RunKey> {
        let mut keys: Vec<_> = self.followed.lock().keys().cloned().collect();
        keys.sort_unstable();
        keys
    }

    /// Wakes who follows one of these logs and may not know how long it is.
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
    /// Returns after the next append since this tail was made or last returned, and now and then without one.
    ///
    /// # Cancel safety
    /// A dropped call misses nothing: the next one returns at once if there was an append.
    pub async fn changed(&mut self) {
        // A closed channel cannot be: the entry lives as long as this tail.
        let _ = self.receiver.changed().await;
    }
}

impl Drop for Tail {
    fn drop(&mut self) {
        let mut followed = self.tails.followed.lock();
        // This receiver still counts.
        if followed
            .get(&self.key)
            .is_some_and(|followed| followed.sender.receiver_count() <= 1)
        {
            followed.remove(&self.key);
        }
    }
}

impl Engine {
    /// Looks now and then how long the followed logs are.
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
                        tracing::warn!(%error, "cannot read how long followed logs are");
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
