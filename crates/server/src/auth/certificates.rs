//! Callers known by their client certificates.
//!
//! That a certificate is valid and of an accepted authority was settled in the handshake; here it gets a name, and an
//! end. The names are the alternative ones, compared exactly: the common name of a subject has no defined meaning.

use std::sync::Arc;

use rustls::pki_types::CertificateDer;
use sha2::{Digest, Sha256};
use webpki::EndEntityCert;
use wopr_core::Timestamp;
use x509_cert::der::Decode as _;

use super::{Caller, hex};
use crate::config;

/// The certificates of a configuration.
#[derive(Debug, Default)]
pub(super) struct Certificates(Vec<Entry>);

#[derive(Debug)]
struct Entry {
    san: Option<String>,
    fingerprint: Option<String>,
    caller: Caller,
}

impl Certificates {
    pub(super) fn new(configured: &[config::Certificate]) -> Self {
        let entry = |one: &config::Certificate| {
            let principal = one.principal.clone();
            let principal = principal.or_else(|| wopr_core::PrincipalId::parse(&one.id).ok())?;
            Some(Entry {
                san: one.san.clone(),
                fingerprint: one.fingerprint.clone(),
                caller: Caller {
                    key_id: Arc::from(one.id.as_str()),
                    tenant: one.tenant.clone(),
                    principal,
                    scopes: one.scopes,
                },
            })
        };
        Self(configured.iter().filter_map(entry).collect())
    }

    pub(super) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Whose certificate it is: by its fingerprint, else by the first name of it that is listed.
    pub(super) fn caller(&self, certificate: &CertificateDer<'_>) -> Option<Caller> {
        let print = hex(&Sha256::digest(certificate));
        let by_print = self
            .0
            .iter()
            .find(|entry| entry.fingerprint.as_deref() == Some(print.as_str()));
        if let Some(entry) = by_print {
            return Some(entry.caller.clone());
        }
        let read = EndEntityCert::try_from(certificate).ok()?;
        let mut names = read.valid_dns_names().chain(read.valid_uri_names());
        let found = names.find_map(|name| self.0.iter().find(|entry| entry.san.as_deref() == Some(name)));
        found.map(|entry| entry.caller.clone())
    }
}

/// When a certificate expires; none if it cannot be read.
pub(super) fn expiry(certificate: &CertificateDer<'_>) -> Option<Timestamp> {
    let read = x509_cert::Certificate::from_der(certificate).ok()?;
    let since_epoch = read.tbs_certificate.validity.not_after.to_unix_duration();
    let millis = i64::try_from(since_epoch.as_millis()).ok()?;
    Some(Timestamp::from_millis(millis))
}
