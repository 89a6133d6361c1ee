//! Lines that clients can cause as often as they send requests: a few a minute, with how many were left out.

use std::{fmt::Display, time::Instant};

use wopr_app::Caller;
use wopr_core::{RunKey, TenantId, WorkflowId};
use wopr_engine::{Throttle, Throttles};

use crate::tokens::Claims;

/// Lines a minute about requests that failed.
const MOST_FAULTS: u32 = 60;

/// Lines a minute about changes that a tenant makes and that an operator may want to trace: more than people make, and
/// fewer than fill the log.
const MOST_CHANGES: u32 = 600;

static UNAVAILABLE: Throttle = Throttle::new(1);
static NOT_READY: Throttle = Throttle::new(1);
static NOT_ACCEPTED: Throttle = Throttle::new(1);
static INTERNAL: Throttle = Throttle::new(MOST_FAULTS);
static KEYS_NOT_READ: Throttle = Throttle::new(1);
static SECRET_NOT_READ: Throttle = Throttle::new(1);
static SECRET_NOT_OPENED: Throttles = Throttles::new(1);
static CUT_OFF: Throttle = Throttle::new(60);
static BROKEN_OFF: Throttles = Throttles::new(1);
static NOT_LISTED: Throttles = Throttles::new(1);
static KEYS: Throttles = Throttles::new(MOST_CHANGES);
static SECRETS: Throttles = Throttles::new(MOST_CHANGES);
static WORKFLOWS: Throttles = Throttles::new(MOST_CHANGES);
static TOKENS: Throttles = Throttles::new(MOST_CHANGES);

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

/// A request failed for a fault of this host or of what it has stored.
pub(crate) fn failed_inside(error: &dyn Display) {
    if let Some(left_out) = INTERNAL.admit(Instant::now()) {
        tracing::error!(%error, left_out, "request failed on our side");
    }
}

/// The host could not read the keys from the store to look up an unknown credential. Anybody may send such credentials, any
/// number of them.
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

/// A secret was sealed with another master key, or was changed.
pub(crate) fn secret_not_opened(tenant: &TenantId, name: &str, error: &dyn Display) {
    if let Some(left_out) = SECRET_NOT_OPENED.admit(tenant, Instant::now()) {
        tracing::error!(%error, secret = name, %tenant, left_out, "a stored secret cannot be decrypted");
    }
}

/// A response ended with the credential of its request.
pub(crate) fn cut_off() {
    if let Some(left_out) = CUT_OFF.admit(Instant::now()) {
        tracing::info!(left_out, "answer cut off, its key opens nothing any more");
    }
}

/// A stream ended early, and its client comes back at once.
pub(crate) fn broken_off(run: &RunKey, error: &dyn Display) {
    if let Some(left_out) = BROKEN_OFF.admit(&run.tenant, Instant::now()) {
        tracing::warn!(%error, %run, left_out, "event stream broken off");
    }
}

/// A run is left out of a list, because it cannot be read now.
pub(crate) fn not_listed(run: &RunKey, message: &str) {
    if let Some(left_out) = NOT_LISTED.admit(&run.tenant, Instant::now()) {
        tracing::warn!(%run, message, left_out, "a run is left out of a list");
    }
}

pub(crate) fn key_created(id: &str, by: &Caller) {
    if let Some(left_out) = KEYS.admit(&by.tenant, Instant::now()) {
        tracing::info!(key = id, tenant = %by.tenant, by = %by.key_id, left_out, "api key created");
    }
}

pub(crate) fn key_revoked(id: &str, by: &Caller) {
    if let Some(left_out) = KEYS.admit(&by.tenant, Instant::now()) {
        tracing::info!(key = id, tenant = %by.tenant, by = %by.key_id, left_out, "api key revoked");
    }
}

pub(crate) fn secret_set(name: &str, by: &Caller) {
    if let Some(left_out) = SECRETS.admit(&by.tenant, Instant::now()) {
        tracing::info!(secret = name, tenant = %by.tenant, by = %by.key_id, left_out, "secret set");
    }
}

pub(crate) fn secret_removed(name: &str, by: &Caller) {
    if let Some(left_out) = SECRETS.admit(&by.tenant, Instant::now()) {
        tracing::info!(secret = name, tenant = %by.tenant, by = %by.key_id, left_out, "secret removed");
    }
}

pub(crate) fn workflow_removed(id: &WorkflowId, by: &Caller) {
    if let Some(left_out) = WORKFLOWS.admit(&by.tenant, Instant::now()) {
        tracing::info!(workflow = %id, tenant = %by.tenant, by = %by.key_id, left_out, "workflow removed");
    }
}

pub(crate) fn token_minted(claims: &Claims, by: &Caller) {
    if let Some(left_out) = TOKENS.admit(&by.tenant, Instant::now()) {
        tracing::info!(
            run = %claims.key.run, node = %claims.node, principal = %claims.holder.principal, by = %by.key_id, left_out,
            "interrupt token minted"
        );
    }
}
