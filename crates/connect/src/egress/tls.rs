//! TLS configuration of all clients of this host: rustls with `ring` and the root certificates of the platform.
//!
//! `ring` only needs the C compiler that SQLite needs anyway, and builds in seconds; aws-lc-rs would add
//! cmake and minutes. The platform's root certificates, unlike a compiled-in bundle, let an operator install
//! a private CA (or set `SSL_CERT_FILE`), and revocations arrive with system updates instead of our releases.

use std::sync::Arc;

use rustls::{ClientConfig, crypto::ring};
use rustls_platform_verifier::BuilderVerifierExt as _;

/// TLS is not available, usually because the machine has no root certificates.
#[derive(Debug, Clone, thiserror::Error)]
#[error("load the platform's tls roots")]
pub struct TlsError(#[source] rustls::Error);

/// Creates a client configuration with freshly loaded root certificates. The gate adds the protocols to offer.
///
/// # Errors
/// Returns an error if the platform has no usable root certificate.
pub fn client_config() -> Result<ClientConfig, TlsError> {
    let config = ClientConfig::builder_with_provider(Arc::new(ring::default_provider()))
        .with_safe_default_protocol_versions()
        .map_err(TlsError)?
        .with_platform_verifier()
        .map_err(TlsError)?
        .with_no_client_auth();
    Ok(config)
}
