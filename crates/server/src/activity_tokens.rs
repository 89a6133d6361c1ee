//! Activity tokens: the name of one attempt of a step that a worker works at.
//!
//! Format: `base64url(payload) "." base64url(HMAC-SHA256(payload))`, both without padding. A token says which
//! attempt is meant, and that this host said so; the right to work is the caller's scope. It has no expiry: it is
//! good for as long as the attempt waits, across restarts. The token of a lease also holds the fence of the lease, and
//! is good until another worker has leased the attempt.

use base64::{Engine as _, engine::general_purpose::URL_SAFE_NO_PAD};
use serde::{Deserialize, Serialize};
use subtle::ConstantTimeEq;
use wopr_app::{ActivityAttempt, Fence, WorkerLease};
use wopr_core::{NodeId, RunId, RunKey, StepId, TenantId};

use crate::secrets::Subkey;

/// Longer input is not decoded, as no valid token is longer.
const MAX_TOKEN: usize = 4_096;

/// Mints and verifies tokens.
#[derive(Debug)]
pub(crate) struct ActivityTokens(Subkey);

#[derive(Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
struct Payload {
    tenant: TenantId,
    run_id: RunId,
    node_id: NodeId,
    ordinal: u32,
    attempt: u32,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    lease: Option<Lease>,
}

#[derive(Serialize, Deserialize)]
struct Lease {
    fence: u64,
    queue: String,
    worker: String,
}

impl ActivityTokens {
    pub(crate) const fn new(subkey: Subkey) -> Self {
        Self(subkey)
    }

    pub(crate) fn mint(
        &self,
        run: &RunKey,
        step: &StepId,
        attempt: u32,
        lease: Option<&WorkerLease>,
    ) -> String {
        let payload = Payload {
            tenant: run.tenant.clone(),
            run_id: run.run.clone(),
            node_id: step.node.clone(),
            ordinal: step.ordinal,
            attempt,
            lease: lease.map(|lease| Lease {
                fence: lease.fence.0,
                queue: lease.queue.clone(),
                worker: lease.worker.clone(),
            }),
        };
        let payload = serde_json::to_vec(&payload).expect("a payload of texts serialises");
        let mac = self.0.sign(&payload);
        let mut text = URL_SAFE_NO_PAD.encode(&payload);
        text.push('.');
        URL_SAFE_NO_PAD.encode_string(mac, &mut text);
        text
    }

    /// Verifies a token; `None` if it is none of this host.
    pub(crate) fn open(&self, text: &str) -> Option<(RunKey, ActivityAttempt)> {
        if text.len() > MAX_TOKEN {
            return None;
        }
        let (payload, mac) = text.split_once('.')?;
        let payload = URL_SAFE_NO_PAD.decode(payload).ok()?;
        let mac = URL_SAFE_NO_PAD.decode(mac).ok()?;
        if !bool::from(self.0.sign(&payload).ct_eq(mac.as_slice())) {
            return None;
        }
        let payload: Payload = serde_json::from_slice(&payload).ok()?;
        let step = StepId {
            node: payload.node_id,
            ordinal: payload.ordinal,
        };
        let attempt = ActivityAttempt {
            step,
            attempt: payload.attempt,
            lease: payload.lease.map(|lease| WorkerLease {
                fence: Fence(lease.fence),
                queue: lease.queue,
                worker: lease.worker,
            }),
        };
        Some((RunKey::new(payload.tenant, payload.run_id), attempt))
    }
}
