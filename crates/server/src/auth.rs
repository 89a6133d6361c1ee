//! Who calls, and what they may do.
//!
//! A caller presents a bearer secret. Only its SHA-256 is kept: secrets are random and long, so a slow hash
//! would cost every request and protect nothing; a short one is warned about when it is loaded. Keys come
//! from the configuration and from the store, whose changes are followed. Where an issuer is configured, its signed
//! tokens are credentials too. Tenant and principal follow from the credential alone, never from a request.

pub(crate) mod authenticate;
mod certificates;
mod issuer;
mod jwt;
mod keyring;
mod lasting;
mod verdict;

use std::{sync::Arc, time::Duration};

use futures_util::future::OptionFuture;
use http::{HeaderMap, header};
use rustls::pki_types::CertificateDer;
use tokio::{sync::watch, time::Instant};
use wopr_connect::egress::Gate;
use wopr_core::{Membership, PrincipalId, TenantId, Timestamp};
use wopr_engine::Clock;
use wopr_store::{ReadError, Store};

use self::{
    certificates::Certificates,
    issuer::Issuer,
    keyring::Keyring,
    verdict::{Admitted, Validity},
};
use crate::config;

pub(crate) use authenticate::admit;
pub use authenticate::caller;
pub(crate) use certificates::Certified;
pub use keyring::{hash, hash_hex};
pub use verdict::AuthError;
pub use wopr_app::{Caller, Forbidden, Scope, Scopes};

/// Longer than a connection lasts.
const LONGEST: Duration = Duration::from_secs(10 * 365 * 24 * 3600);

/// Finds out who calls.
#[derive(Debug)]
pub struct Auth {
    keyring: Keyring,
    issuer: Option<Issuer>,
    certificates: Certificates,
}

impl Auth {
    /// Takes the configured keys, and the stored ones once they are asked for.
    #[must_use]
    pub fn new(keys: &[config::Key]) -> Self {
        Self {
            keyring: Keyring::new(keys),
            issuer: None,
            certificates: Certificates::default(),
        }
    }

    /// Takes the keys of a store too, as they are now.
    ///
    /// # Errors
    /// The store does not answer.
    pub async fn with_store(mut self, store: &Arc<dyn Store>) -> Result<Self, ReadError> {
        self.keyring = self.keyring.with_store(store);
        self.keyring.catch_up().await?;
        Ok(self)
    }

    /// Takes the tokens of an issuer too, if one is configured.
    #[must_use]
    pub fn with_issuer(mut self, rules: Option<&config::Oidc>, gate: &Gate, clock: &Arc<dyn Clock>) -> Self {
        self.issuer = rules.map(|rules| Issuer::new(rules.clone(), gate.clone(), Arc::clone(clock)));
        self
    }

    /// Takes client certificates too.
    #[must_use]
    pub fn with_certificates(mut self, certificates: &[config::Certificate]) -> Self {
        self.certificates = Certificates::new(certificates);
        self
    }

    /// Whether callers may be known by their certificates.
    #[must_use]
    pub fn has_certificates(&self) -> bool {
        !self.certificates.is_empty()
    }

    /// Who has a client certificate that a handshake accepted, for as long as it lasts and is not refused.
    pub(crate) fn certified(
        &self,
        certificate: &CertificateDer<'_>,
        now: Timestamp,
        is_refused: watch::Receiver<bool>,
    ) -> Option<Certified> {
        let (caller, expires) = self.certificates.find(certificate)?;
        let lasts = u64::try_from(expires.millis().saturating_sub(now.millis())).unwrap_or(0);
        // Of what lasts longer than anybody waits nobody sees the end.
        let lasts = Duration::from_millis(lasts).min(LONGEST);
        Some(Certified::new(caller, Instant::now() + lasts, is_refused))
    }

    /// The roles and groups of a principal, as far as keys and certificates say. Those of an identity provider are known
    /// only while it shows a token.
    #[must_use]
    pub fn membership(&self, tenant: &TenantId, principal: &PrincipalId) -> Membership {
        let mut known = Membership::default();
        self.keyring.add_membership(tenant, principal, &mut known);
        self.certificates.add_membership(tenant, principal, &mut known);
        known
    }

    /// Whether no key opens anything.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.keyring.is_empty()
    }

    /// Takes what changed in the store, by whomever, since it was last looked at.
    ///
    /// # Errors
    /// The store does not answer; the keys are as before.
    pub async fn catch_up(&self) -> Result<(), ReadError> {
        self.keyring.catch_up().await
    }

    /// Catches up on hints and now and then, and renews the keys of the issuer, until the host closes.
    pub(crate) async fn follow(self: Arc<Self>, closing: watch::Receiver<bool>) {
        let issuer = OptionFuture::from(self.issuer.as_ref().map(|issuer| issuer.follow(closing.clone())));
        tokio::join!(self.keyring.follow(closing), issuer);
    }

    /// Finds the caller of a request by what is known here and now; `None` where the store or the issuer may know more.
    pub(crate) fn recognize(&self, headers: &HeaderMap) -> Option<Result<Admitted, AuthError>> {
        let secret = match bearer(headers) {
            Ok(secret) => secret,
            Err(error) => return Some(Err(error)),
        };
        match self.keyring.lookup(secret) {
            Err(AuthError::Unknown) => {
                let (caller, valid_for) = self.issuer.as_ref()?.recognize(secret)?;
                Some(Ok(until(caller, valid_for)))
            }
            found => Some(found),
        }
    }

    /// Finds the caller of a request, asking the issuer for its keys if they are needed, and the store for a key that
    /// another process may just have made.
    pub(crate) async fn identify(&self, headers: &HeaderMap) -> Result<Admitted, AuthError> {
        let secret = bearer(headers)?;
        let found = self.keyring.lookup(secret);
        let (Err(AuthError::Unknown), Some(issuer)) = (&found, &self.issuer) else {
            return match found {
                // Seldom needed, so no request carries its state; as below.
                Err(AuthError::Unknown) => Box::pin(self.keyring.look_again(secret)).await,
                found => found,
            };
        };
        match Box::pin(issuer.caller(secret)).await {
            Err(AuthError::Unknown) => Box::pin(self.keyring.look_again(secret)).await,
            judged => judged.map(|(caller, valid_for)| until(caller, valid_for)),
        }
    }
}

/// A caller for as long as a token is valid.
fn until(caller: Caller, valid_for: Duration) -> Admitted {
    Admitted {
        caller,
        validity: Some(Validity::Until(Instant::now() + valid_for)),
    }
}

/// The one bearer credential of a request.
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
    fn a_credential_is_one_bearer_secret() {
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
