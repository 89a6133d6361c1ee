//! One decision at a time per run, and one look for room in its memory per tenant, within this process.
//!
//! Correctness rests on the store's sequence check; the lock only avoids decisions that would conflict. An
//! entry exists while somebody holds or awaits it.

use std::{
    collections::HashMap,
    hash::{BuildHasher, Hash, RandomState},
    sync::Arc,
};

use parking_lot::Mutex;
use tokio::sync::OwnedMutexGuard;
use wopr_core::RunKey;

/// Few enough to be cheap, and enough that commands of different runs rarely contend.
const SHARDS: usize = 64;

type Shard<K> = Mutex<HashMap<K, Arc<tokio::sync::Mutex<()>>>>;

#[derive(Debug)]
pub(crate) struct Locks<K = RunKey> {
    shards: Vec<Shard<K>>,
    hasher: RandomState,
}

impl<K> Default for Locks<K> {
    fn default() -> Self {
        Self {
            shards: (0..SHARDS).map(|_| Shard::default()).collect(),
            hasher: RandomState::new(),
        }
    }
}

/// The lock of a key, held until dropped.
#[derive(Debug)]
pub(crate) struct KeyLock<'a, K: Eq + Hash> {
    shard: &'a Shard<K>,
    key: K,
    guard: Option<OwnedMutexGuard<()>>,
}

impl<K: Clone + Eq + Hash> Locks<K> {
    /// Takes the lock of a key if it is free.
    pub(crate) fn try_hold(&self, key: &K) -> Option<KeyLock<'_, K>> {
        let (shard, mutex) = self.entry(key);
        let mut lock = KeyLock {
            shard,
            key: key.clone(),
            guard: None,
        };
        lock.guard = mutex.try_lock_owned().ok();
        lock.guard.is_some().then_some(lock)
    }

    pub(crate) async fn hold(&self, key: &K) -> KeyLock<'_, K> {
        let (shard, mutex) = self.entry(key);
        // Created before waiting, so that a caller dropped while it waits still cleans up.
        let mut lock = KeyLock {
            shard,
            key: key.clone(),
            guard: None,
        };
        lock.guard = Some(mutex.lock_owned().await);
        lock
    }

    fn entry(&self, key: &K) -> (&Shard<K>, Arc<tokio::sync::Mutex<()>>) {
        let index = usize::try_from(self.hasher.hash_one(key) % SHARDS as u64).unwrap_or(0);
        let shard = &self.shards[index];
        (shard, Arc::clone(shard.lock().entry(key.clone()).or_default()))
    }
}

impl<K: Eq + Hash> Drop for KeyLock<'_, K> {
    fn drop(&mut self) {
        self.guard = None;
        let mut entries = self.shard.lock();
        // Only the map's own reference is left: nobody holds or awaits the lock.
        if entries
            .get(&self.key)
            .is_some_and(|mutex| Arc::strong_count(mutex) == 1)
        {
            entries.remove(&self.key);
        }
    }
}
