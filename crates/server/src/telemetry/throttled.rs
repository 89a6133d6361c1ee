//! Lines that clients can cause as often as they send requests: a few a minute, with how many were left out.

use std::{fmt::Display, time::Instant};

use wopr_engine::Throttle;

/// Lines a minute about requests that failed.
const MOST_FAULTS: u32 = 60;

static UNAVAILABLE: Throttle = Throttle::new(1);
static NOT_READY: Throttle = Throttle::new(1);
static NOT_ACCEPTED: Throttle = Throttle::new(1);
static KEYS_NOT_READ: Throttle = Throttle::new(1);
static SECRET_NOT_READ: Throttle = Throttle::new(1);

/// The lines of a host about answered requests.
#[derive(Debug)]
pub(super) struct Answers {
    /// Of refusals for load, one has a line.
    pub(super) refused: Throttle,
    pub(super) failed: Throttle,
}

impl Default for Answers {
    fn default() -> Self {
        Self {
            refused: Throttle::new(1),
            failed: Throttle::new(MOST_FAULTS),
        }
    }
}

/// A request was not served: the store is out, or the tenant has no room left for it.
pub(crate) fn not_served(error: &dyn Display) {
    if let Some(left_out) = UNAVAILABLE.admit(Instant::now()) {
        tracing::warn!(%error, left_out, "request not served, it may be repeated");
    }
}

/// A connection was not accepted, most likely for want of descriptors. The next attempt may fail as well.
pub(crate) fn not_accepted(error: &dyn Display) {
    if let Some(left_out) = NOT_ACCEPTED.admit(Instant::now()) {
        tracing::warn!(%error, left_out, "connection not accepted");
    }
}

/// A probe was told that the host is not ready.
pub(crate) fn not_ready(error: &dyn Display) {
    if let Some(left_out) = NOT_READY.admit(Instant::now()) {
        tracing::warn!(%error, left_out, "not ready");
    }
}

/// The keys were not read for a credential that nobody knows, which strangers send as often as they like.
pub(crate) fn keys_not_read(error: &dyn Display) {
    if let Some(left_out) = KEYS_NOT_READ.admit(Instant::now()) {
        tracing::warn!(%error, left_out, "cannot read keys");
    }
}

/// The store did not give a secret to a call.
pub(crate) fn secret_not_read(name: &str, error: &dyn Display) {
    if let Some(left_out) = SECRET_NOT_READ.admit(Instant::now()) {
        tracing::warn!(%error, secret = name, left_out, "a stored secret cannot be read");
    }
}
