//! The port that delivers updates of a run to its subscriptions.
//!
//! The implementation decides content, format and transport. The engine decides when, how often and in
//! which order to send.

use std::{fmt, time::Duration};

use async_trait::async_trait;
use wopr_core::{Recorded, RunKey, Seq};
use wopr_store::Update;

use crate::View;

#[derive(Clone, PartialEq, Eq)]
pub struct Delivery {
    pub run: RunKey,
    /// The id of the subscription.
    pub push: String,
    /// The subscription as registered.
    pub receiver: Vec<u8>,
    /// An update to deliver to a subscription.
    pub seq: Seq,
    /// The content, as returned by [`Notifier::updates`].
    pub body: Vec<u8>,
}

impl fmt::Debug for Delivery {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Delivery")
            .field("run", &self.run)
            .field("push", &self.push)
            .field("seq", &self.seq)
            .finish_non_exhaustive()
    }
}

/// A failed delivery attempt.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Undelivered {
    /// A short reason for operators. Contains nothing that was sent or received.
    pub reason: String,
    /// The backoff that the receiving server requested.
    pub retry_after: Option<Duration>,
}

#[async_trait]
pub trait Notifier: Send + Sync + fmt::Debug + 'static {
    /// Returns the updates for these events, at most one per event. `before` is the run without them. The
    /// result depends only on the arguments, so every process computes the same updates.
    fn updates(&self, before: &View, events: &[Recorded]) -> Vec<Update>;

    /// Delivers an update once. It may have been delivered before.
    ///
    /// # Errors
    /// The attempt failed; the engine retries later.
    ///
    /// # Cancel safety
    /// The engine drops the future when it takes too long or the engine stops.
    async fn deliver(&self, delivery: &Delivery) -> Result<(), Undelivered>;
}
