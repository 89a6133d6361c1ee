//! Authentication: which caller sends a request, and with which scopes.
//!
//! A client presents a bearer secret. Only its SHA-256 is stored: secrets are random and long, so a slow hash
//! would cost every request and protect nothing. A short secret causes a warning at load. Keys come from the
//! configuration and from the store, whose changes are followed. If an issuer is configured, its signed tokens
//! are accepted too. Tenant and principal follow from the credential alone, never from the request.

pub(crate) mod authenticate;
mod certificates;
mod issuer;
mod jwt;
mod keyring;
mod lasting;
mod verdict;
mod waiting;

use std::{sync::Arc, time::Duration};

use futures_util::future::OptionFuture;
use http::{HeaderMap, header};
use rustls::pki_types::CertificateDer;
use tokio::{sync::watch, time::Instant};
use wopr_app::Principals;
use wopr_connect::egress::Gate;
use wopr_core::{Membership, PrincipalId, TenantId, Timestamp};
use wopr_engine::Clock;
use wopr_store::{ReadError, Store};

use self::{certificates::Certificates, issuer::Issuer, keyring::Keyring};
use crate::config;

pub(crate) use authenticate::admit;
pub use authenticate::caller;
pub(crate) use certificates::Certified;
pub use keyring::{hash, hash_hex};
pub use verdict::AuthError;
pub(crate) use verdict::{Admitted, Validity};
pub(crate) use waiting::{wait, while_valid};
pub use wopr_app::{Caller, Forbidden, Scope, Scopes};

/// Upper bound for a certificate's remaining lifetime; no connection lasts longer.
const LONGEST: Duration = Duration::from_secs(10 * 365 * 24 * 3600);

/// Authenticates requests.
#[derive(Debug)]
pub struct Auth {
    keyring: Keyring,
    issuer: Option<Issuer>,
    certificates: Certificates,
}

impl Auth {
    /// Accepts the configured keys.
    #[must_use]
    pub fn new(keys: &[config::Key]) -> Self {
        Self {
            keyring: Keyring::new(keys),
            issuer: None,
            certificates: Certificates::default(),
        }
    }

    /// Also accepts the keys of a store, as of now.
    pub async fn with_store(mut self, store: &Arc<dyn Store>) -> Result<Self, ReadError> {
        self.keyring = self.keyring.with_store(store);
        self.keyring.catch_up().await?;
        Ok(self)
    }

    /// Also accepts tokens of an issuer, if one is configured.
    #[must_use]
    pub fn with_issuer(mut self, rules: Option<&config::Oidc>, gate: &Gate, clock: &Arc<dyn Clock>) -> Self {
        self.issuer = rules.map(|rules| Issuer::new(rules.clone(), gate.clone(), Arc::clone(clock)));
        self
    }

    /// Also accepts client certificates.
    #[must_use]
    pub fn with_certificates(mut self, certificates: &[config::Certificate]) -> Self {
        self.certificates = Certificates::new(certificates);
        self
    }

    /// Returns `true` if client certificates can authenticate callers.
    #[must_use]
    pub fn has_certificates(&self) -> bool {
        !self.certificates.is_empty()
    }

    /// Returns the caller of a client certificate that passed the handshake, until it expires or is refused.
    pub(crate) fn certified(
        &self,
        certificate: &CertificateDer<'_>,
        now: Timestamp,
        is_refused: watch::Receiver<bool>,
    ) -> Option<Certified> {
        let (caller, expires) = self.certificates.find(certificate)?;
        let lasts = u64::try_from(expires.millis().saturating_sub(now.millis())).unwrap_or(0);
        // A deadline must not overflow; nothing waits longer than this.
        let lasts = Duration::from_millis(lasts).min(LONGEST);
        Some(Certified::new(caller, Instant::now() + lasts, is_refused))
    }

    /// Returns `true` if there are no keys.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.keyring.is_empty()
    }

    /// Reads the changes in the store since the last read, including those of other processes.
    ///
    /// # Errors
    /// If the store does not answer; the keys stay as they were.
    pub async fn catch_up(&self) -> Result<(), ReadError> {
        self.keyring.catch_up().await
    }

    /// Follows the keys on hints and on a schedule, and refreshes the issuer's keys, until the host closes.
    pub(crate) async fn follow(self: Arc<Self>, closing: watch::Receiver<bool>) {
        let issuer = OptionFuture::from(self.issuer.as_ref().map(|issuer| issuer.follow(closing.clone())));
        tokio::join!(self.keyring.follow(closing), issuer);
    }

    /// Authenticates from memory; returns `None` if the store or the issuer may know the credential.
    pub(crate) fn recognize(&self, headers: &HeaderMap) -> Option<Result<Admitted, AuthError>> {
        let secret = match bearer(headers) {
            Ok(secret) => secret,
            Err(error) => return Some(Err(error)),
        };
        match self.keyring.lookup(secret) {
            Err(AuthError::Unknown) => {
                let (caller, valid_for) = self.issuer.as_ref()?.recognize(secret)?;
                Some(Ok(until(Arc::new(caller), valid_for)))
            }
            found => Some(found),
        }
    }

    /// Authenticates a request. Fetches the issuer's keys if needed, and asks the store for a key that another
    /// process may just have created.
    pub(crate) async fn identify(&self, headers: &HeaderMap) -> Result<Admitted, AuthError> {
        let secret = bearer(headers)?;
        let found = self.keyring.lookup(secret);
        let (Err(AuthError::Unknown), Some(issuer)) = (&found, &self.issuer) else {
            return match found {
                // Boxed here and below: it is rarely needed, and no request should carry its state.
                Err(AuthError::Unknown) => Box::pin(self.keyring.look_again(secret)).await,
                found => found,
            };
        };
        match Box::pin(issuer.caller(secret)).await {
            Err(AuthError::Unknown) => Box::pin(self.keyring.look_again(secret)).await,
            judged => judged.map(|(caller, valid_for)| until(Arc::new(caller), valid_for)),
        }
    }
}

impl Principals for Auth {
    /// The roles and groups of a principal according to keys and certificates. Those from an identity provider
    /// are known only while the principal presents a token.
    fn membership(&self, tenant: &TenantId, principal: &PrincipalId) -> Membership {
        let mut known = Membership::default();
        self.keyring.add_membership(tenant, principal, &mut known);
        self.certificates.add_membership(tenant, principal, &mut known);
        known
    }
}

/// Admits a caller for as long as its token is valid.
fn until(caller: Arc<Caller>, valid_for: Duration) -> Admitted {
    Admitted {
        caller,
        validity: Some(Validity::Until(Instant::now() + valid_for)),
    }
}

/// Extracts the bearer credential; a request must have exactly one.
fn bearer(headers: &HeaderMap) -> Result<&str, AuthError> {
    let mut values = headers.get_all(header::AUTHORIZATION).iter();
    let value = values.next().ok_or(AuthError::Missing)?;
    if values.next().is_some() {
        return Err(AuthError::Malformed);
    }
    let value = value.to_str().map_err(|_| AuthError::Malformed)?;
    let (scheme, secret) = value.split_once(' ').ok_or(AuthError::Malformed)?;
    let secret = secret.trim();
    if !scheme.eq_ignore_ascii_case("bearer") || secret.is_empty() {
        return Err(AuthError::Malformed);
    }
    Ok(secret)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_request_has_exactly_one_bearer_credential() {
        assert_eq!(bearer(&HeaderMap::new()), Err(AuthError::Missing));
        for (value, wanted) in [
            ("Bearer s1", Ok("s1")),
            ("bearer  s1 ", Ok("s1")),
            ("Bearer ", Err(AuthError::Malformed)),
            ("Bearer", Err(AuthError::Malformed)),
            ("Basic s1", Err(AuthError::Malformed)),
        ] {
            let mut headers = HeaderMap::new();
            headers.insert(header::AUTHORIZATION, value.parse().unwrap());
            assert_eq!(bearer(&headers), wanted, "{value}");
            headers.append(header::AUTHORIZATION, value.parse().unwrap());
            assert_eq!(bearer(&headers), Err(AuthError::Malformed), "two of {value}");
        }
    }
}
