//! Who calls, and what they may do.
//!
//! A caller presents a bearer secret. Only its SHA-256 is kept: secrets are random and long, so a slow hash
//! would cost every request and protect nothing; a short one is warned about when it is loaded. Keys come
//! from the configuration and from the store, whose changes are followed. Where an issuer is configured, its signed
//! tokens are credentials too. Tenant and principal follow from the credential alone, never from a request.

mod certificates;
pub(crate) mod door;
mod issuer;
mod jwt;
mod keyring;
mod lasting;

use std::{fmt, sync::Arc, time::Duration};

use http::{HeaderMap, header};
use rustls::pki_types::CertificateDer;
use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};
use tokio::{sync::watch, time::Instant};
use wopr_connect::egress::Gate;
use wopr_core::{PrincipalId, TenantId, Timestamp};
use wopr_engine::Clock;
use wopr_store::{ReadError, Store};

use self::{
    certificates::Certificates,
    door::Certified,
    issuer::Issuer,
    keyring::{Keyring, Validity},
};
use crate::config;

pub(crate) use door::admit;
pub use door::caller;

/// Longer than a connection lasts.
const LONGEST: Duration = Duration::from_secs(10 * 365 * 24 * 3600);

macro_rules! scopes {
    ($($(#[$doc:meta])* $name:ident = $text:literal,)*) => {
        /// Something a key may do. There is no implication between scopes.
        #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
        #[repr(u8)]
        pub enum Scope {
            $($(#[$doc])* $name,)*
        }

        impl Scope {
            /// Every scope.
            pub const ALL: &'static [Self] = &[$(Self::$name,)*];

            /// The scope as a key names it.
            #[must_use]
            pub const fn as_str(self) -> &'static str {
                match self {
                    $(Self::$name => $text,)*
                }
            }
        }
    };
}

scopes! {
    /// Read workflow definitions.
    ManifestRead = "manifest:read",
    /// Start runs.
    RunsCreate = "runs:create",
    /// Read runs and their events.
    RunsRead = "runs:read",
    /// Cancel, pause and resume runs.
    RunsCancel = "runs:cancel",
    /// Read artifacts.
    ArtifactsRead = "artifacts:read",
    /// Manage webhooks.
    WebhooksManage = "webhooks:manage",
    /// Answer interrupts.
    ApprovalsRespond = "approvals:respond",
    /// Read the audit log.
    AuditRead = "audit:read",
    /// Register workflows (a scope of this host).
    WorkflowsWrite = "workflows:write",
    /// Manage keys (a scope of this host).
    KeysManage = "keys:manage",
}

impl Scope {
    /// Reads a scope.
    #[must_use]
    pub fn parse(text: &str) -> Option<Self> {
        Self::ALL.iter().copied().find(|scope| scope.as_str() == text)
    }
}

/// A set of scopes.
#[derive(Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(try_from = "Vec<String>", into = "Vec<String>")]
pub struct Scopes(u16);

impl Scopes {
    /// Every scope, written `*`.
    pub const ALL: Self = Self(u16::MAX);

    /// The set of one scope.
    #[must_use]
    pub const fn one(scope: Scope) -> Self {
        Self(1 << scope as u8)
    }

    /// The set with those of another.
    #[must_use]
    pub const fn with(self, other: Self) -> Self {
        Self(self.0 | other.0)
    }

    /// Whether the set holds a scope.
    #[must_use]
    pub const fn has(self, scope: Scope) -> bool {
        self.0 & (1 << scope as u8) != 0
    }

    /// Whether every scope of `other` is in this set.
    #[must_use]
    pub const fn covers(self, other: Self) -> bool {
        self.0 & other.0 == other.0
    }

    /// Reads scope names.
    ///
    /// # Errors
    /// Names the first text that is no scope.
    pub fn parse<T: AsRef<str>>(names: &[T]) -> Result<Self, String> {
        let mut set = Self(0);
        for name in names {
            match name.as_ref() {
                "*" => return Ok(Self::ALL),
                name => match Scope::parse(name) {
                    Some(scope) => set.0 |= 1 << scope as u8,
                    None => return Err(format!("'{name}' is not a scope")),
                },
            }
        }
        Ok(set)
    }

    /// The names of the scopes; `*` for all.
    #[must_use]
    pub fn names(self) -> Vec<String> {
        if self == Self::ALL {
            return vec!["*".to_owned()];
        }
        let held = Scope::ALL.iter().filter(|scope| self.has(**scope));
        held.map(|scope| scope.as_str().to_owned()).collect()
    }
}

impl fmt::Debug for Scopes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list().entries(self.names()).finish()
    }
}

impl TryFrom<Vec<String>> for Scopes {
    type Error = String;

    fn try_from(names: Vec<String>) -> Result<Self, String> {
        Self::parse(&names)
    }
}

impl From<Scopes> for Vec<String> {
    fn from(scopes: Scopes) -> Self {
        scopes.names()
    }
}

/// Who calls.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Caller {
    /// The key, for logs.
    pub key_id: Arc<str>,
    /// The tenant it opens.
    pub tenant: TenantId,
    /// Who uses it.
    pub principal: PrincipalId,
    /// What they may do.
    pub scopes: Scopes,
}

impl Caller {
    /// Whether the caller may do something.
    #[must_use]
    pub const fn may(&self, scope: Scope) -> bool {
        self.scopes.has(scope)
    }

    /// Demands a scope.
    ///
    /// # Errors
    /// The missing scope.
    pub const fn require(&self, scope: Scope) -> Result<(), Forbidden> {
        if self.may(scope) {
            Ok(())
        } else {
            Err(Forbidden(scope))
        }
    }
}

/// A known caller lacks a scope: 403 `forbidden`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("act without the scope {}", .0.as_str())]
pub struct Forbidden(pub Scope);

/// Why a request has no caller: always 401.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum AuthError {
    /// No `Authorization` header.
    #[error("find a credential in the request")]
    Missing,
    /// A header that is not one `Bearer` secret.
    #[error("read the credential")]
    Malformed,
    /// A secret of no key.
    #[error("recognise the credential")]
    Unknown,
    /// A secret of a revoked key.
    #[error("accept a revoked credential")]
    Revoked,
    /// A token or certificate whose time is over.
    #[error("accept an expired credential")]
    Expired,
}

impl AuthError {
    /// The stable code.
    #[must_use]
    pub const fn code(self) -> &'static str {
        match self {
            Self::Missing | Self::Malformed | Self::Unknown | Self::Expired => "unauthenticated",
            Self::Revoked => "key_revoked",
        }
    }
}

impl AuthError {
    /// What a client is told in `WWW-Authenticate` (RFC 6750).
    #[must_use]
    pub const fn challenge(self) -> &'static str {
        match self {
            Self::Missing => "Bearer realm=\"wopr\"",
            Self::Malformed => "Bearer realm=\"wopr\", error=\"invalid_request\"",
            Self::Unknown | Self::Revoked => "Bearer realm=\"wopr\", error=\"invalid_token\"",
            Self::Expired => {
                "Bearer realm=\"wopr\", error=\"invalid_token\", error_description=\"the token has expired\""
            }
        }
    }
}

/// Finds out who calls.
#[derive(Debug)]
pub struct Auth {
    keyring: Keyring,
    issuer: Option<Issuer>,
    certificates: Certificates,
}

/// A caller, and for how long.
#[derive(Debug, Clone)]
pub(crate) struct Admitted {
    pub(crate) caller: Caller,
    /// `None` if nothing ends it while the host runs.
    pub(crate) validity: Option<Validity>,
}

impl From<Caller> for Admitted {
    fn from(caller: Caller) -> Self {
        Self {
            caller,
            validity: None,
        }
    }
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

    /// Catches up on hints and now and then, until the host closes.
    pub(crate) async fn follow(self: Arc<Self>, closing: watch::Receiver<bool>) {
        self.keyring.follow(closing).await;
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
            judged => judged.map(|(caller, valid_for)| Admitted {
                caller,
                validity: Some(Validity::Until(Instant::now() + valid_for)),
            }),
        }
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

/// SHA-256 of a secret.
#[must_use]
pub fn hash(secret: &str) -> [u8; 32] {
    Sha256::digest(secret.as_bytes()).into()
}

/// SHA-256 of a secret as the store keeps it.
#[must_use]
pub fn hash_hex(secret: &str) -> String {
    hex(&hash(secret))
}

/// Bytes as lowercase hexadecimal digits.
pub(crate) fn hex(bytes: &[u8]) -> String {
    const DIGITS: &[u8; 16] = b"0123456789abcdef";
    let mut text = String::with_capacity(bytes.len() * 2);
    for byte in bytes {
        text.push(char::from(DIGITS[usize::from(byte >> 4)]));
        text.push(char::from(DIGITS[usize::from(byte & 15)]));
    }
    text
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

    #[test]
    fn scopes_do_not_imply_each_other() {
        let scopes = Scopes::parse(&["runs:cancel"]).unwrap();
        assert!(scopes.has(Scope::RunsCancel));
        assert!(!scopes.has(Scope::RunsRead));
        assert!(Scopes::ALL.covers(scopes) && !scopes.covers(Scopes::ALL));
        for scope in Scope::ALL {
            assert!(Scopes::ALL.has(*scope));
            assert_eq!(Scope::parse(scope.as_str()), Some(*scope));
        }
        assert_eq!(
            Scopes::parse(&["runs:fly"]).unwrap_err(),
            "'runs:fly' is not a scope"
        );
        assert_eq!(Scopes::parse(&["runs:read", "*"]).unwrap().names(), ["*"]);
    }
}
