//! The port through which receivers get the updates of a run.
//!
//! The implementation decides content, format and transport. The engine decides when, how often and in
//! which order to send.

use std::{fmt, time::Duration};

use async_trait::async_trait;
use wopr_core::{Recorded, RunKey, Seq};
use wopr_store::Update;

use crate::View;

/// Something to tell a receiver.
#[derive(Clone, PartialEq, Eq)]
pub struct Delivery {
    /// The run.
    pub run: RunKey,
    /// The receiver's id.
    pub push: String,
    /// The receiver, as it was registered.
    pub receiver: Vec<u8>,
    /// The event it tells of.
    pub seq: Seq,
    /// What to tell, as [`Notifier::updates`] made it.
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

/// Why a receiver was not told.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Undelivered {
    /// A short reason that an operator may read and that holds nothing of what was sent or answered.
    pub reason: String,
    /// How long the receiver wants to be left alone.
    pub retry_after: Option<Duration>,
}

/// Tells receivers.
#[async_trait]
pub trait Notifier: Send + Sync + fmt::Debug + 'static {
    /// What receivers are told of some events of a run, at most one update of each; `before` is the run without them.
    /// The same events give the same updates, whoever asks.
    fn updates(&self, before: &View, events: &[Recorded]) -> Vec<Update>;

    /// Tells a receiver. It may have been told the same before.
    ///
    /// # Errors
    /// See [`Undelivered`]; the same is tried again later.
    ///
    /// # Cancel safety
    /// The engine drops this when it takes too long, or stops.
    async fn deliver(&self, delivery: &Delivery) -> Result<(), Undelivered>;
}
