//! The keys of a token issuer: fetched at startup, renewed before they expire, and fetched when a token needs
//! others.
//!
//! Tokens with an unknown key, or with a signature that no known key made, cause at most one fetch per `refresh` period,
//! however many clients send them.
//! Keys are valid for an hour and renewed in the background before that, so that callers can be authenticated
//! without a fetch even if unauthenticated clients use up the requests that may wait for one. While an issuer
//! does not answer, the last good keys stay in use: its outage must not become ours.

use std::{sync::Arc, time::Duration};

use http::Method;
use parking_lot::RwLock;
use serde::Deserialize;
use tokio::sync::{Mutex, Notify, watch};
use url::Url;
use wopr_connect::egress::{EgressError, Gate, Request, Seam};
use wopr_core::Timestamp;
use wopr_engine::Clock;
use wopr_wire::jws::{Compact, JwkSet};

use super::{
    AuthError, Caller,
    jwt::{self, Rejected},
};
use crate::config::Oidc;

/// Older keys are fetched again before use.
const MAX_AGE: Duration = Duration::from_secs(3_600);
/// Older keys are renewed in the background.
const RENEWAL_AGE: Duration = Duration::from_secs(2_700);
/// How often the age of unused keys is checked.
const LOOK: Duration = Duration::from_secs(60);
/// Timeout for fetching a document of the issuer.
const TIMEOUT: Duration = Duration::from_secs(5);
/// Maximum size of an issuer's document in bytes.
const MAX_DOCUMENT: usize = 256 << 10;

#[derive(Debug)]
pub(super) struct Issuer {
    rules: Oidc,
    gate: Gate,
    clock: Arc<dyn Clock>,
    known: RwLock<Known>,
    /// Held during a fetch, so that only one is in flight.
    fetching: Mutex<()>,
    /// Notified when keys that are due for renewal were used.
    is_aging: Notify,
}

#[derive(Debug, Clone, Default)]
struct Known {
    keys: Arc<JwkSet>,
    fetched: Option<Timestamp>,
    tried: Option<Timestamp>,
    is_failing: bool,
}

#[derive(Debug, thiserror::Error)]
enum FetchError {
    #[error("read the address {0}")]
    Address(String),
    #[error("fetch a document of the issuer: {0}")]
    Egress(#[from] EgressError),
    #[error("fetch a document of the issuer: it answered {0}")]
    Status(u16),
    #[error("read the issuer's discovery document")]
    Discovery,
    #[error("accept the discovery document of another issuer")]
    OtherIssuer,
    #[error("read the issuer's keys")]
    Keys,
}

#[derive(Deserialize)]
struct Discovery {
    issuer: String,
    jwks_uri: String,
}

impl Issuer {
    pub(super) fn new(rules: Oidc, gate: Gate, clock: Arc<dyn Clock>) -> Self {
        Self {
            rules,
            gate,
            clock,
            known: RwLock::default(),
            fetching: Mutex::new(()),
            is_aging: Notify::new(),
        }
    }

    /// Renews the keys before they expire, until the host closes.
    pub(super) async fn follow(&self, mut closing: watch::Receiver<bool>) {
        let renewing = async {
            loop {
                let fetched = self.known.read().fetched;
                if self.is_within(RENEWAL_AGE, fetched) {
                    tokio::select! {
                        () = self.is_aging.notified() => {}
                        () = tokio::time::sleep(LOOK) => {}
                    }
                } else if !self.renew().await {
                    // Waits, so that background renewal asks a failing issuer no more often than tokens do.
                    tokio::time::sleep(self.rules.refresh.as_duration()).await;
                }
            }
        };
        tokio::select! {
            _ = closing.wait_for(|closing| *closing) => {}
            never = renewing => match never {},
        }
    }

    /// Fetches the keys unless they are fresh; returns `true` if they are fresh now. After a failure a token
    /// may still cause a fetch at once, as the issuer may be up again.
    async fn renew(&self) -> bool {
        let _fetching = self.fetching.lock().await;
        let fetched = self.known.read().fetched;
        if self.is_within(RENEWAL_AGE, fetched) {
            return true;
        }
        let fetched = self.fetch().await;
        self.take(fetched)
    }

    /// Stores fetched keys, or keeps the current ones after a failure.
    fn take(&self, fetched: Result<JwkSet, FetchError>) -> bool {
        let mut known = self.known.write();
        known.is_failing = fetched.is_err();
        match fetched {
            Ok(keys) => {
                let now = Some(self.clock.time_of_day());
                known.keys = Arc::new(keys);
                (known.fetched, known.tried) = (now, now);
                tracing::info!(issuer = %self.rules.issuer, "token keys fetched");
                true
            }
            Err(error) => {
                tracing::warn!(issuer = %self.rules.issuer, %error, "token keys not fetched, the last ones stay");
                false
            }
        }
    }

    /// Returns the caller of a token and the token's remaining lifetime.
    pub(super) async fn caller(&self, token: &str) -> Result<(Caller, Duration), AuthError> {
        let result = self.judge(token).await;
        result.map_err(|rejected| {
            // The client gets no details, but the operator may need them.
            tracing::debug!(reason = %rejected, "bearer token rejected");
            if rejected == Rejected::Expired {
                AuthError::Expired
            } else {
                AuthError::Unknown
            }
        })
    }

    /// Like [`Issuer::caller`], without waiting: uses fresh keys, or the last ones while the issuer does not
    /// answer. Returns `None` if other keys may be needed.
    pub(super) fn recognize(&self, token: &str) -> Option<(Caller, Duration)> {
        let token = jwt::parse(&self.rules, token).ok()?;
        let known = self.known.read().clone();
        if !self.is_within(RENEWAL_AGE, known.fetched) {
            self.is_aging.notify_one();
        }
        let is_fresh = known.is_failing || self.is_within(MAX_AGE, known.fetched);
        let caller = || jwt::caller(&self.rules, &known.keys, &token, self.clock.time_of_day()).ok();
        if is_fresh { caller() } else { None }
    }

    async fn judge(&self, token: &str) -> Result<(Caller, Duration), Rejected> {
        let token = jwt::parse(&self.rules, token)?;
        let keys = self.keys_for(&token, None).await;
        let caller = |keys: &JwkSet| jwt::caller(&self.rules, keys, &token, self.clock.time_of_day());
        let rejected = match caller(&keys) {
            Err(Rejected::Signature(rejected)) => rejected,
            judged => return judged,
        };
        // The issuer may have replaced a key under its old name, or one without a name.
        let others = self.keys_for(&token, Some(&keys)).await;
        if Arc::ptr_eq(&others, &keys) {
            return Err(rejected.into());
        }
        caller(&others)
    }

    /// Returns the best available keys for a token, fetching them if needed: if none of the known ones is for this token, or
    /// if they are the ones that did not verify it.
    async fn keys_for(&self, token: &Compact<'_>, unfit: Option<&Arc<JwkSet>>) -> Arc<JwkSet> {
        let known = self.known.read().clone();
        let has_key = |known: &Known| {
            let mut found = known
                .keys
                .candidates(token.header.kid.as_deref(), token.header.algorithm);
            let is_unfit = unfit.is_some_and(|unfit| Arc::ptr_eq(unfit, &known.keys));
            !is_unfit && found.next().is_some()
        };
        let is_fresh = |known: &Known| self.is_within(MAX_AGE, known.fetched);
        if has_key(&known) && is_fresh(&known) {
            return known.keys;
        }
        let _fetching = match self.fetching.try_lock() {
            Ok(guard) => guard,
            // Old keys are good enough while another task fetches new ones.
            Err(_) if has_key(&known) => return known.keys,
            Err(_) => self.fetching.lock().await,
        };
        let known = self.known.read().clone();
        let refresh = self.rules.refresh.as_duration();
        let is_enough = has_key(&known) && is_fresh(&known);
        if is_enough || self.is_within(refresh, known.tried) {
            return known.keys;
        }
        let fetched = self.fetch().await;
        self.take(fetched);
        let mut known = self.known.write();
        known.tried = Some(self.clock.time_of_day());
        Arc::clone(&known.keys)
    }

    /// Returns `true` if less than `period` has passed since `time`. If the clock was set back, returns
    /// `false`.
    fn is_within(&self, period: Duration, time: Option<Timestamp>) -> bool {
        let ago = time.and_then(|time| u64::try_from(self.clock.time_of_day().millis() - time.millis()).ok());
        ago.is_some_and(|ago| Duration::from_millis(ago) < period)
    }

    async fn fetch(&self) -> Result<JwkSet, FetchError> {
        let place = match &self.rules.jwks_url {
            Some(place) => place.clone(),
            None => self.discover().await?,
        };
        let keys = JwkSet::parse(&self.get(&place).await?).map_err(|_| FetchError::Keys)?;
        // An empty set would lock out everybody, as a broken one would.
        if keys.is_empty() {
            Err(FetchError::Keys)
        } else {
            Ok(keys)
        }
    }

    async fn discover(&self) -> Result<String, FetchError> {
        let document = self.get(&self.rules.discovery_url()).await?;
        let document: Discovery = serde_json::from_slice(&document).map_err(|_| FetchError::Discovery)?;
        if document.issuer == self.rules.issuer {
            Ok(document.jwks_uri)
        } else {
            Err(FetchError::OtherIssuer)
        }
    }

    async fn get(&self, place: &str) -> Result<Vec<u8>, FetchError> {
        let url = Url::parse(place).map_err(|_| FetchError::Address(place.to_owned()))?;
        let mut request = Request::new(Method::GET, url);
        request.timeout = Some(TIMEOUT);
        request.max_response = Some(MAX_DOCUMENT);
        request.expects_json = true;
        let response = self.gate.request(Seam::Jwks, request).await?;
        if response.status.is_success() {
            Ok(response.body.to_vec())
        } else {
            Err(FetchError::Status(response.status.as_u16()))
        }
    }
}
