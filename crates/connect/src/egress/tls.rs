//! TLS as every client of this host speaks it: rustls, `ring`, the platform's roots.
//!
//! `ring` builds with the C compiler SQLite needs anyway, in seconds; aws-lc-rs would bring cmake
//! and minutes. The roots are the platform's, not a bundle compiled in: an operator's own
//! authority works by installing it (or `SSL_CERT_FILE`), and distrust of one arrives with the
//! system's updates, not with our releases.

use std::sync::Arc;

use rustls::{ClientConfig, crypto::ring};
use rustls_platform_verifier::BuilderVerifierExt as _;

/// TLS cannot be set up; most often the machine has no root certificates.
#[derive(Debug, Clone, thiserror::Error)]
#[error("load the platform's tls roots")]
pub struct TlsError(#[source] rustls::Error);

/// Makes a client configuration with fresh roots.
///
/// Hand it to `tls_backend_preconfigured` of a client builder: the HTTP crate is built without a
/// default provider and panics when left to choose one.
///
/// # Errors
/// The platform has no usable root certificate.
pub fn client_config() -> Result<ClientConfig, TlsError> {
    let mut config = ClientConfig::builder_with_provider(Arc::new(ring::default_provider()))
        .with_safe_default_protocol_versions()
        .map_err(TlsError)?
        .with_platform_verifier()
        .map_err(TlsError)?
        .with_no_client_auth();
    config.alpn_protocols = vec![b"http/1.1".to_vec()];
    Ok(config)
}
