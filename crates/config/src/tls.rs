//! TLS of the server, and callers authenticated by client certificates.

use std::path::PathBuf;

use serde::{Deserialize, Serialize};
use wopr_core::{Membership, PrincipalId, TenantId};

use wopr_app::Scopes;

/// The server's TLS files. They are reloaded when they change.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Tls {
    /// The certificate chain in PEM, leaf first.
    pub cert: PathBuf,
    /// The private key in PEM.
    pub key: PathBuf,
    /// The authorities whose client certificates are accepted, in PEM. If absent, no client certificate is
    /// requested.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub client_ca: Option<PathBuf>,
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Certificate {
    /// Identifies the certificate in logs.
    pub id: String,
    /// A DNS or URI subject alternative name, compared exactly; exclusive with `fingerprint`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub san: Option<String>,
    /// SHA-256 of the certificate in lowercase hex.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub fingerprint: Option<String>,
    pub tenant: TenantId,
    /// Defaults to the id.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub principal: Option<PrincipalId>,
    pub scopes: Scopes,
    /// The principal's roles, for gates that require one.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub roles: Vec<String>,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub groups: Vec<String>,
}

impl Certificate {
    #[must_use]
    pub fn membership(&self) -> Membership {
        Membership {
            roles: self.roles.clone(),
            groups: self.groups.clone(),
        }
    }

    /// Returns the first invalid field with its rule.
    pub(crate) fn problem(&self) -> Option<(&'static str, &'static str)> {
        let is_hex = |b: u8| b.is_ascii_digit() || (b'a'..=b'f').contains(&b);
        if self.id.is_empty() || self.id.chars().any(|c| c.is_control() || c.is_whitespace()) {
            return Some(("id", "must not be empty or hold spaces or control characters"));
        }
        if self.principal.is_none() && PrincipalId::parse(&self.id).is_err() {
            return Some(("principal", "must be given where the id cannot be one"));
        }
        match (&self.san, &self.fingerprint) {
            (Some(san), None) if san.is_empty() => Some(("san", "must not be empty")),
            (Some(_), None) => None,
            (None, Some(print)) if print.len() == 64 && print.bytes().all(is_hex) => None,
            (None, Some(_)) => Some(("fingerprint", "must be 64 lowercase hexadecimal digits")),
            (None, None) | (Some(_), Some(_)) => Some(("san", "must be given, or else fingerprint")),
        }
    }
}
