//! Receives hints from other processes that share the store.
//!
//! A hint only brings forward what polling would find anyway: it makes followers read, effect attempts check
//! their lease, and the loops look for work. So a hint may be wrong, late or missing.

use std::{future::pending, time::Duration};

use tokio::{
    sync::{
        Notify,
        broadcast::{Receiver, error::RecvError},
    },
    time::{Instant, sleep_until},
};
use wopr_store::Hint;

use crate::Engine;

/// How long another process has to do the work that its hint announces before this process looks for it. Also
/// the minimum interval between two such looks, however many hints arrive.
const GATHER: Duration = Duration::from_millis(100);

/// Wakes the loops that look for work.
#[derive(Debug, Default)]
pub(crate) struct WakeHints {
    pub(crate) timers: Notify,
    pub(crate) effects: Notify,
    pub(crate) inboxes: Notify,
    pub(crate) registry: Notify,
    pub(crate) pushes: Notify,
}

impl WakeHints {
    pub(crate) fn all(&self) {
        self.timers.notify_one();
        self.effects.notify_one();
        self.inboxes.notify_one();
        self.pushes.notify_one();
    }
}

impl Engine {
    /// Handles hints until the engine stops or the store closes the stream.
    pub(crate) async fn run_hints(self, mut hints: Receiver<Hint>) {
        let shared = &self.shared;
        let mut look_at = None;
        loop {
            let hint = tokio::select! {
                biased;
                () = shared.stop.cancelled() => return,
                () = until(look_at) => {
                    look_at = None;
                    shared.wake_hints.all();
                    continue;
                }
                hint = hints.recv() => hint,
            };
            match hint {
                Ok(Hint::Run(run)) => {
                    shared.tails.wake(&run);
                    shared.effects.look(&run);
                }
                Ok(Hint::Registry) => {
                    shared.wake_hints.registry.notify_one();
                    continue;
                }
                Ok(Hint::Any) | Err(RecvError::Lagged(_)) => {
                    shared.tails.wake_all();
                    shared.effects.look_all();
                    shared.wake_hints.registry.notify_one();
                }
                Err(RecvError::Closed) => return,
            }
            look_at.get_or_insert_with(|| Instant::now() + GATHER);
        }
    }
}

async fn until(time: Option<Instant>) {
    match time {
        Some(time) => sleep_until(time).await,
        None => pending().await,
    }
}
