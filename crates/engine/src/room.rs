//! How much of runs is in memory at once.
//!
//! How large a run is, nobody knows before it is loaded. So loading goes by turns, of which there are few; a run that turns
//! out to be large needs room besides, for as long as it is in memory. If there is none it is let go of, waits without a
//! turn, and is loaded again. The last that were large are remembered, and wait for room before they are loaded: so small
//! runs are not behind large ones.
//!
//! Whoever reads a run may then command it, with the run in hand. Commands have room of their own, and wait for nobody
//! who waits for room; so neither is ever stuck.

use std::{collections::HashMap, sync::Arc, time::Duration};

use parking_lot::Mutex;
use tokio::sync::{OwnedSemaphorePermit, Semaphore, SemaphorePermit};
use wopr_core::RunKey;
use wopr_store::{ReadError, patiently};

/// Runs that are being loaded at once.
const TURNS: usize = 32;
/// The most bytes, as far as is known before it is decoded, of a run that needs no room.
const SMALL: usize = 256 << 10;
/// Bytes of larger ones for each purpose. While it is decided, a run takes a few times as many as decoded alone.
const BYTES: usize = 128 << 20;
/// Large runs remembered; when there are more, all are forgotten.
const MAX_KNOWN: usize = 1_024;
/// How long to wait for a turn or for room before whoever asks is refused.
const PATIENCE: Duration = Duration::from_secs(3);

/// What a run is loaded for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Purpose {
    /// To be shown.
    View,
    /// To decide a command.
    Command,
}

/// The room a run takes, until the last that has it is dropped; none if it is small.
#[derive(Debug, Clone, Default)]
pub(crate) struct Held {
    _share: Option<Arc<OwnedSemaphorePermit>>,
}

impl From<OwnedSemaphorePermit> for Held {
    fn from(share: OwnedSemaphorePermit) -> Self {
        Self {
            _share: Some(Arc::new(share)),
        }
    }
}

#[derive(Debug)]
pub(crate) struct Room {
    bytes: usize,
    turns: Semaphore,
    views: Arc<Semaphore>,
    commands: Arc<Semaphore>,
    /// Runs that were large, and how large.
    known: Mutex<HashMap<RunKey, usize>>,
}

impl Default for Room {
    fn default() -> Self {
        Self::new(BYTES)
    }
}

impl Room {
    fn new(bytes: usize) -> Self {
        let kilobytes = || Arc::new(Semaphore::new(bytes >> 10));
        Self {
            bytes,
            turns: Semaphore::new(TURNS),
            views: kilobytes(),
            commands: kilobytes(),
            known: Mutex::default(),
        }
    }

    /// Waits for room for a run that is known to be large; none otherwise.
    pub(crate) async fn expect(&self, purpose: Purpose, key: &RunKey) -> Result<Option<Held>, ReadError> {
        let known = self.known.lock().get(key).copied();
        match known {
            Some(n_bytes) => Box::pin(self.hold(purpose, n_bytes)).await.map(Some),
            None => Ok(None),
        }
    }

    /// Remembers how large a run is.
    pub(crate) fn note(&self, key: &RunKey, n_bytes: usize) {
        if n_bytes <= SMALL {
            return;
        }
        let mut known = self.known.lock();
        if known.len() >= MAX_KNOWN {
            known.clear();
        }
        known.insert(key.clone(), n_bytes);
    }

    /// Waits for a turn to load a run, which ends when it is decoded.
    pub(crate) async fn turn(&self) -> Result<SemaphorePermit<'_>, ReadError> {
        // The semaphore is never closed.
        match patiently(PATIENCE, self.turns.acquire()).await {
            Some(Ok(turn)) => Ok(turn),
            Some(Err(_)) | None => Err(ReadError::Unavailable("too many runs are being read".to_owned())),
        }
    }

    /// The room for what was loaded, if there is some at once.
    pub(crate) fn try_hold(&self, purpose: Purpose, n_bytes: usize) -> Option<Held> {
        if n_bytes <= SMALL {
            return Some(Held::default());
        }
        let room = Arc::clone(self.of(purpose));
        room.try_acquire_many_owned(self.share(n_bytes))
            .ok()
            .map(Held::from)
    }

    /// Waits for room for a run of so many bytes.
    pub(crate) async fn hold(&self, purpose: Purpose, n_bytes: usize) -> Result<Held, ReadError> {
        let room = Arc::clone(self.of(purpose));
        match patiently(PATIENCE, room.acquire_many_owned(self.share(n_bytes))).await {
            Some(Ok(permit)) => Ok(permit.into()),
            Some(Err(_)) | None => Err(ReadError::Unavailable(
                "too many large runs are being read".to_owned(),
            )),
        }
    }

    const fn of(&self, purpose: Purpose) -> &Arc<Semaphore> {
        match purpose {
            Purpose::View => &self.views,
            Purpose::Command => &self.commands,
        }
    }

    /// Kilobytes; a run that is larger than all of the room has all of it.
    fn share(&self, n_bytes: usize) -> u32 {
        u32::try_from(n_bytes.min(self.bytes).div_ceil(1 << 10)).unwrap_or(u32::MAX)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LARGE: usize = SMALL + 1;

    #[tokio::test(start_paused = true)]
    async fn large_runs_share_the_room_and_small_ones_need_none() {
        let room = Room::new(2 * SMALL);
        let first = room.try_hold(Purpose::View, LARGE).unwrap();
        assert!(room.try_hold(Purpose::View, LARGE).is_none());
        assert!(room.try_hold(Purpose::View, SMALL).is_some());
        let command = room.try_hold(Purpose::Command, usize::MAX).unwrap();
        assert!(room.hold(Purpose::Command, LARGE).await.is_err());
        let second = first.clone();
        drop(first);
        assert!(room.hold(Purpose::View, LARGE).await.is_err());
        drop(second);
        assert!(room.hold(Purpose::View, LARGE).await.is_ok());
        drop(command);
        assert!(room.hold(Purpose::Command, LARGE).await.is_ok());
    }

    #[tokio::test(start_paused = true)]
    async fn few_load_at_once_and_who_waits_is_told() {
        let room = Room::default();
        let mut turns = Vec::new();
        for _ in 0..TURNS {
            turns.push(room.turn().await.unwrap());
        }
        assert!(matches!(room.turn().await, Err(ReadError::Unavailable(_))));
        turns.pop();
        assert!(room.turn().await.is_ok());
    }
}
