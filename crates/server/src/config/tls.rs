//! TLS of the server, and callers known by their certificates.

use std::path::PathBuf;

use serde::{Deserialize, Serialize};
use wopr_core::{Membership, PrincipalId, TenantId};

use crate::auth::Scopes;

/// What the server shows and asks for in a handshake. The files are read again when they change.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Tls {
    /// The certificate chain, PEM, the server's own first.
    pub cert: PathBuf,
    /// Its private key, PEM.
    pub key: PathBuf,
    /// The authorities whose client certificates are accepted, PEM; without them none is asked for.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub client_ca: Option<PathBuf>,
}

/// A caller known by a client certificate.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Certificate {
    /// Names the certificate in logs.
    pub id: String,
    /// A DNS or URI name among the certificate's alternative names, exactly; this or the fingerprint.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub san: Option<String>,
    /// SHA-256 of the certificate, lowercase hex.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub fingerprint: Option<String>,
    /// The tenant it opens.
    pub tenant: TenantId,
    /// Who uses it; the id where absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub principal: Option<PrincipalId>,
    /// What it may do.
    pub scopes: Scopes,
    /// Roles of who uses it, for gates that ask for one.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub roles: Vec<String>,
    /// Groups of who uses it.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub groups: Vec<String>,
}

impl Certificate {
    /// Roles and groups of who uses it.
    #[must_use]
    pub fn membership(&self) -> Membership {
        Membership {
            roles: self.roles.clone(),
            groups: self.groups.clone(),
        }
    }

    /// What does not hold: the member, with its rule.
    pub(super) fn problem(&self) -> Option<(&'static str, &'static str)> {
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
