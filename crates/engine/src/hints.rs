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

/// Wakes the loops that have no state of their own.
#[derive(Debug, Default)]
pub(crate) struct WakeHints {
    pub(crate) inboxes: Notify,
    pub(crate) registry: Notify,
}

impl Engine {
    /// Wakes the loops that look for work.
    pub(crate) fn stir_all(&self) {
        let shared = &self.shared;
        for pool in [&shared.timers, &shared.effects, &shared.deliveries] {
            pool.stir();
        }
        shared.wake_hints.inboxes.notify_one();
        shared.outboxes.stir();
        shared.workers.queues.stir_hinted();
    }

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
                    self.stir_all();
                    continue;
                }
                hint = hints.recv() => hint,
            };
            match hint {
                Ok(Hint::Run(run)) => {
                    shared.tails.wake(&run);
                    shared.effects.look(&run);
                    shared.workers.queues.hint(&run.tenant);
                }
                Ok(Hint::Registry) => {
                    shared.wake_hints.registry.notify_one();
                    continue;
                }
                Ok(Hint::Any) | Err(RecvError::Lagged(_)) => {
                    shared.tails.wake_all();
                    shared.effects.look_all();
                    shared.workers.queues.stir_all();
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
