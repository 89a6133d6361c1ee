//! Callers authenticated by client certificates.
//!
//! The TLS handshake has already checked that a certificate is valid and issued by an accepted authority. This
//! module maps it to a caller and an expiry. Names are subject alternative names, compared exactly; the common
//! name is not used, as it has no defined meaning.

use std::sync::{
    Arc,
    atomic::{AtomicBool, Ordering},
};

use rustls::pki_types::CertificateDer;
use sha2::{Digest, Sha256};
use tokio::{sync::watch, time::Instant};
use webpki::EndEntityCert;
use wopr_core::{Membership, PrincipalId, TenantId, Timestamp};
use x509_cert::der::{self, Decode as _};

use super::{
    AuthError, Caller,
    verdict::{Admitted, Validity},
};
use crate::{config, hex};

/// The configured certificates.
#[derive(Debug, Default)]
pub(super) struct Certificates {
    entries: Vec<Entry>,
    /// Set once a certificate with an unreadable expiry was logged; its client will keep coming back.
    is_logged: AtomicBool,
}

#[derive(Debug)]
struct Entry {
    san: Option<String>,
    fingerprint: Option<String>,
    caller: Arc<Caller>,
}

/// The caller of a connection's certificate; attached to each request of the connection.
#[derive(Debug, Clone)]
pub(crate) struct Certified {
    caller: Arc<Caller>,
    expires: Instant,
    is_refused: watch::Receiver<bool>,
}

impl Certified {
    pub(super) const fn new(
        caller: Arc<Caller>,
        expires: Instant,
        is_refused: watch::Receiver<bool>,
    ) -> Self {
        Self {
            caller,
            expires,
            is_refused,
        }
    }

    /// Returns the caller if the certificate is still valid.
    pub(super) fn admitted(&self) -> Result<Admitted, AuthError> {
        if Instant::now() >= self.expires {
            return Err(AuthError::Expired);
        }
        if *self.is_refused.borrow() {
            return Err(AuthError::Unknown);
        }
        Ok(Admitted {
            caller: self.caller.clone(),
            validity: Some(Validity::Certificate {
                expires: self.expires,
                is_refused: self.is_refused.clone(),
            }),
        })
    }
}

impl Certificates {
    pub(super) fn new(configured: &[config::Certificate]) -> Self {
        let entry = |one: &config::Certificate| {
            let principal = one.principal.clone();
            let principal = principal.or_else(|| PrincipalId::parse(&one.id).ok())?;
            Some(Entry {
                san: one.san.clone(),
                fingerprint: one.fingerprint.clone(),
                caller: Arc::new(Caller {
                    key_id: Arc::from(one.id.as_str()),
                    tenant: one.tenant.clone(),
                    principal,
                    scopes: one.scopes,
                    membership: Arc::new(one.membership()),
                }),
            })
        };
        Self {
            entries: configured.iter().filter_map(entry).collect(),
            is_logged: AtomicBool::new(false),
        }
    }

    /// Adds the roles and groups that the certificates grant a principal.
    pub(super) fn add_membership(&self, tenant: &TenantId, principal: &PrincipalId, known: &mut Membership) {
        for Entry { caller, .. } in &self.entries {
            if caller.tenant == *tenant && caller.principal == *principal {
                known.extend(&caller.membership);
            }
        }
    }

    pub(super) fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    /// Returns the caller and expiry of a certificate; `None` if the expiry cannot be read.
    pub(super) fn find(&self, certificate: &CertificateDer<'_>) -> Option<(Arc<Caller>, Timestamp)> {
        let caller = self.caller(certificate)?;
        match expiry(certificate) {
            Ok(expires) => Some((caller, expires)),
            Err(error) => {
                if !self.is_logged.swap(true, Ordering::Relaxed) {
                    tracing::warn!(
                        %error,
                        certificate = %caller.key_id,
                        "client certificate is nobody's, when it expires cannot be read; others are not logged",
                    );
                }
                None
            }
        }
    }

    /// Finds the caller by fingerprint, then by the first configured alternative name.
    fn caller(&self, certificate: &CertificateDer<'_>) -> Option<Arc<Caller>> {
        let print = hex(&Sha256::digest(certificate));
        let by_print = self
            .entries
            .iter()
            .find(|entry| entry.fingerprint.as_deref() == Some(print.as_str()));
        if let Some(entry) = by_print {
            return Some(entry.caller.clone());
        }
        let read = EndEntityCert::try_from(certificate).ok()?;
        let mut names = read.valid_dns_names().chain(read.valid_uri_names());
        let by_name = |name| {
            self.entries
                .iter()
                .find(|entry| entry.san.as_deref() == Some(name))
        };
        names.find_map(by_name).map(|entry| entry.caller.clone())
    }
}

fn expiry(certificate: &CertificateDer<'_>) -> Result<Timestamp, der::Error> {
    let read = x509_cert::Certificate::from_der(certificate)?;
    let since_epoch = read.tbs_certificate.validity.not_after.to_unix_duration();
    let millis = i64::try_from(since_epoch.as_millis()).unwrap_or(i64::MAX);
    Ok(Timestamp::from_millis(millis))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::auth::Scopes;

    #[test]
    fn unreadable_expiry_is_rejected_and_logged_once() {
        let certificate = CertificateDer::from_slice(b"no certificate");
        let certificates = Certificates::new(&[config::Certificate {
            id: "ops".to_owned(),
            san: None,
            fingerprint: Some(hex(&Sha256::digest(&certificate))),
            tenant: TenantId::parse("default").unwrap(),
            principal: PrincipalId::parse("ops").ok(),
            scopes: Scopes::ALL,
            roles: Vec::new(),
            groups: Vec::new(),
        }]);
        assert!(certificates.caller(&certificate).is_some());
        let stranger = CertificateDer::from_slice(b"another");
        assert!(certificates.find(&stranger).is_none());
        assert!(!certificates.is_logged.load(Ordering::Relaxed));
        assert!(certificates.find(&certificate).is_none());
        assert!(certificates.is_logged.load(Ordering::Relaxed));
    }
}
