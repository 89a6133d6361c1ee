//! TLS configuration of all clients of this host: rustls with `ring` and the root certificates of the platform.
//!
//! `ring` only needs the C compiler that SQLite needs anyway, and builds in seconds; aws-lc-rs would add
//! cmake and minutes. The platform's root certificates, unlike a compiled-in bundle, let an operator install
//! a private CA (or set `SSL_CERT_FILE`), and revocations arrive with system updates instead of our releases.
//! A peer may have authorities of its own and be shown a client certificate ([`ClientTls`]).

use std::{error::Error, fmt, io, sync::Arc};

use rustls::{
    AlertDescription, CertificateError, ClientConfig, ConfigBuilder, RootCertStore, WantsVerifier,
    client::WantsClientCert,
    crypto::{CryptoProvider, ring},
    pki_types::{CertificateDer, PrivateKeyDer},
};
use rustls_platform_verifier::{BuilderVerifierExt as _, Verifier};

/// TLS is not available, usually because the machine has no root certificates.
#[derive(Debug, Clone, thiserror::Error)]
#[error("load the platform's tls roots")]
pub struct TlsError(#[source] rustls::Error);

/// Creates a client configuration with freshly loaded root certificates. The gate adds the protocols to offer.
///
/// # Errors
/// Returns an error if the platform has no usable root certificate.
pub fn client_config() -> Result<ClientConfig, TlsError> {
    let config = builder(provider())
        .map_err(TlsError)?
        .with_platform_verifier()
        .map_err(TlsError)?
        .with_no_client_auth();
    Ok(config)
}

/// What the operator configured for TLS with one peer.
#[derive(Debug, Default)]
pub struct ClientTls {
    /// The authorities that sign the peer's certificate; if empty, those of the platform count.
    pub authorities: Vec<CertificateDer<'static>>,
    pub identity: Option<Identity>,
}

/// A certificate that authenticates this host, and its key.
#[derive(Debug)]
pub struct Identity {
    /// The leaf first.
    pub chain: Vec<CertificateDer<'static>>,
    pub key: PrivateKeyDer<'static>,
}

impl Clone for ClientTls {
    fn clone(&self) -> Self {
        Self {
            authorities: self.authorities.clone(),
            identity: self.identity.as_ref().map(|identity| Identity {
                chain: identity.chain.clone(),
                key: identity.key.clone_key(),
            }),
        }
    }
}

/// Why the TLS configuration of a peer is unusable.
#[derive(Debug, thiserror::Error)]
pub enum ClientTlsError {
    #[error("use the authorities: {0}")]
    Authorities(#[source] rustls::Error),
    /// The certificate and the key do not match, or one of them is unusable.
    #[error("use the certificate with its key: {0}")]
    Identity(#[source] rustls::Error),
    /// rustls refused its own defaults.
    #[error("set up tls")]
    Library(#[source] rustls::Error),
}

/// Which authorities count beside those that are configured for a peer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum OtherAuthorities {
    /// None: for the peer itself.
    Refused,
    /// Those of the platform: for another server that the operator names for the peer, such as an authorization
    /// server.
    OfPlatform,
}

impl ClientTls {
    /// Creates the client configuration. The gate adds the protocols to offer.
    ///
    /// # Errors
    /// Returns the first part that is unusable.
    pub fn config(&self, others: OtherAuthorities) -> Result<ClientConfig, ClientTlsError> {
        let provider = provider();
        let builder = builder(Arc::clone(&provider)).map_err(ClientTlsError::Library)?;
        let builder = match (self.authorities.is_empty(), others) {
            (true, _) => builder
                .with_platform_verifier()
                .map_err(ClientTlsError::Authorities)?,
            (false, OtherAuthorities::Refused) => {
                let mut roots = RootCertStore::empty();
                for authority in &self.authorities {
                    roots
                        .add(authority.clone())
                        .map_err(ClientTlsError::Authorities)?;
                }
                builder.with_root_certificates(roots)
            }
            (false, OtherAuthorities::OfPlatform) => {
                let verifier = Verifier::new_with_extra_roots(self.authorities.iter().cloned(), provider);
                let verifier = verifier.map_err(ClientTlsError::Authorities)?;
                builder
                    .dangerous()
                    .with_custom_certificate_verifier(Arc::new(verifier))
            }
        };
        self.identified(builder)
    }

    fn identified(
        &self,
        builder: ConfigBuilder<ClientConfig, WantsClientCert>,
    ) -> Result<ClientConfig, ClientTlsError> {
        match &self.identity {
            None => Ok(builder.with_no_client_auth()),
            Some(identity) => builder
                .with_client_auth_cert(identity.chain.clone(), identity.key.clone_key())
                .map_err(ClientTlsError::Identity),
        }
    }
}

fn provider() -> Arc<CryptoProvider> {
    Arc::new(ring::default_provider())
}

fn builder(
    provider: Arc<CryptoProvider>,
) -> Result<ConfigBuilder<ClientConfig, WantsVerifier>, rustls::Error> {
    ClientConfig::builder_with_provider(provider).with_safe_default_protocol_versions()
}

/// What is wrong with a certificate, ours or the peer's. It lasts until somebody renews or replaces one.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum CertificateProblem {
    /// No trusted authority signed the peer's certificate.
    UnknownIssuer,
    /// The peer's certificate has expired, or is not valid yet.
    NotInTime,
    /// The peer's certificate is for another name.
    OtherName,
    /// The peer's certificate is unusable in another way.
    Unusable,
    /// The peer requires a client certificate, and this host has none for it.
    Required,
    /// The peer does not accept this host's client certificate.
    Refused,
    /// The peer ended the handshake without a reason. Over TLS 1.2, a peer that requires a client certificate does.
    Handshake,
}

impl CertificateProblem {
    /// The alerts by which a peer says what it thinks of our certificate.
    const ALERTS: [(AlertDescription, Self); 10] = [
        (AlertDescription::CertificateRequired, Self::Required),
        (AlertDescription::HandshakeFailure, Self::Handshake),
        (AlertDescription::BadCertificate, Self::Refused),
        (AlertDescription::UnsupportedCertificate, Self::Refused),
        (AlertDescription::CertificateRevoked, Self::Refused),
        (AlertDescription::CertificateExpired, Self::Refused),
        (AlertDescription::CertificateUnknown, Self::Refused),
        (AlertDescription::UnknownCA, Self::Refused),
        (AlertDescription::AccessDenied, Self::Refused),
        (AlertDescription::DecryptError, Self::Refused),
    ];

    /// Finds the problem in the source chain of an error.
    pub(super) fn within(error: &(dyn Error + 'static)) -> Option<Self> {
        let mut next = Some(error);
        while let Some(error) = next {
            // The source of an `io::Error` is the source of what it holds, not what it holds.
            let held = error.downcast_ref::<io::Error>().and_then(io::Error::get_ref);
            let found = match held {
                None => error.downcast_ref().and_then(Self::of),
                Some(held) => match held.downcast_ref() {
                    Some(tls) => Self::of(tls),
                    None => Self::of_text(&held.to_string()),
                },
            };
            if found.is_some() {
                return found;
            }
            next = error.source();
        }
        None
    }

    fn of(error: &rustls::Error) -> Option<Self> {
        match error {
            rustls::Error::InvalidCertificate(error) => Some(match error {
                CertificateError::UnknownIssuer
                // An authority of the same name, with another key.
                | CertificateError::BadSignature => Self::UnknownIssuer,
                CertificateError::Expired
                | CertificateError::ExpiredContext { .. }
                | CertificateError::NotValidYet
                | CertificateError::NotValidYetContext { .. } => Self::NotInTime,
                CertificateError::NotValidForName | CertificateError::NotValidForNameContext { .. } => {
                    Self::OtherName
                }
                _ => Self::Unusable,
            }),
            rustls::Error::AlertReceived(received) => {
                let mut alerts = Self::ALERTS.into_iter();
                alerts.find_map(|(alert, problem)| (alert == *received).then_some(problem))
            }
            _ => None,
        }
    }

    /// The problem of an alert of which only the text is left: HTTP/2 shares an `io::Error` between the streams of a
    /// connection, and so copies its text.
    fn of_text(text: &str) -> Option<Self> {
        let mut alerts = Self::ALERTS.into_iter();
        alerts.find_map(|(alert, problem)| {
            let is_it = rustls::Error::AlertReceived(alert).to_string() == text;
            is_it.then_some(problem)
        })
    }
}

impl fmt::Display for CertificateProblem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::UnknownIssuer => "no trusted authority signed the peer's certificate",
            Self::NotInTime => "the peer's certificate has expired or is not valid yet",
            Self::OtherName => "the peer's certificate is for another name",
            Self::Unusable => "the peer's certificate is unusable",
            Self::Required => "the peer requires a client certificate",
            Self::Refused => "the peer does not accept the client certificate",
            Self::Handshake => "the peer refused the handshake; it may require a client certificate",
        })
    }
}
