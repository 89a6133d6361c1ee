//! TLS for those who connect: rustls on `ring`, as for calls out.
//!
//! The files are read at the start, where a mistake is an error that names its file, and again when they change, where
//! a mistake leaves what was. A connection keeps what it was made with. Client certificates are asked for where there
//! are authorities for them and never demanded: a key or a token is as good, and the card is public.

use std::{
    fs,
    path::{Path, PathBuf},
    sync::Arc,
    time::Duration,
};

use parking_lot::Mutex;
use rustls::{
    RootCertStore, ServerConfig,
    crypto::ring,
    pki_types::{
        CertificateDer, PrivateKeyDer,
        pem::{self, PemObject as _},
    },
    server::{VerifierBuilderError, WebPkiClientVerifier},
};
use sha2::{Digest, Sha256};
use tokio::{net::TcpStream, time::timeout};
use tokio_rustls::{TlsAcceptor, server::TlsStream};

use crate::config;

/// How long a handshake may take. How many there are at once is bounded by the connections.
const HANDSHAKE: Duration = Duration::from_secs(10);
/// How often the files are looked at.
pub(crate) const RELOAD: Duration = Duration::from_secs(30);
/// What is spoken inside, the preferred one first.
const H2: &[u8] = b"h2";
const HTTP1: &[u8] = b"http/1.1";

/// Why TLS cannot be served.
#[derive(Debug, thiserror::Error)]
pub enum TlsError {
    /// The file is not there, or no PEM.
    #[error("read the {what} in {}", path.display())]
    Read {
        /// What it should hold.
        what: &'static str,
        /// The file.
        path: PathBuf,
        /// Why.
        source: pem::Error,
    },
    /// The file holds no certificate.
    #[error("find a certificate in {}", .0.display())]
    NoCertificate(PathBuf),
    /// The certificate and the key do not go together, or one of them is of no use.
    #[error("use the certificate in {} with its key", path.display())]
    Pair {
        /// The certificate's file.
        path: PathBuf,
        /// Why.
        source: rustls::Error,
    },
    /// No authority of clients can be made of the file.
    #[error("use the client authorities in {}", path.display())]
    Authorities {
        /// The file.
        path: PathBuf,
        /// Why.
        source: VerifierBuilderError,
    },
    /// The library refuses its own defaults.
    #[error("set up tls")]
    Library(#[source] rustls::Error),
}

/// Accepts TLS.
#[derive(Debug)]
pub struct Tls {
    files: config::Tls,
    current: Mutex<Current>,
}

#[derive(Debug)]
struct Current {
    config: Arc<ServerConfig>,
    /// Of the files as they were read.
    digest: [u8; 32],
}

impl Tls {
    /// Reads the files.
    ///
    /// # Errors
    /// See [`TlsError`].
    pub fn load(files: &config::Tls) -> Result<Self, TlsError> {
        // Before the files: one that changes in between is read again.
        let digest = digest(files);
        Ok(Self {
            files: files.clone(),
            current: Mutex::new(Current {
                config: Arc::new(server_config(files)?),
                digest,
            }),
        })
    }

    /// Reads the files again if they changed; gives whether they did. Blocks on the disk.
    ///
    /// # Errors
    /// What is in them now is of no use; what was in them before stays in use.
    pub fn reload(&self) -> Result<bool, TlsError> {
        let digest = digest(&self.files);
        if self.current.lock().digest == digest {
            return Ok(false);
        }
        let config = server_config(&self.files).map(Arc::new);
        let mut current = self.current.lock();
        // A mistake is told once, not each time the files are looked at.
        current.digest = digest;
        current.config = config?;
        Ok(true)
    }

    /// Makes a handshake; none if it fails or takes too long.
    pub(crate) async fn accept(&self, stream: TcpStream) -> Option<TlsStream<TcpStream>> {
        let handshake = async {
            let config = Arc::clone(&self.current.lock().config);
            match TlsAcceptor::from(config).accept(stream).await {
                Ok(stream) => Some(stream),
                Err(error) => {
                    tracing::debug!(%error, "tls handshake failed");
                    None
                }
            }
        };
        timeout(HANDSHAKE, handshake).await.unwrap_or_else(|_| {
            tracing::debug!("tls handshake took too long");
            None
        })
    }
}

fn digest(files: &config::Tls) -> [u8; 32] {
    let mut hash = Sha256::new();
    for path in [Some(&files.cert), Some(&files.key), files.client_ca.as_ref()] {
        // What cannot be read is an empty file here, and an error where it is used.
        let bytes = path.and_then(|path| fs::read(path).ok()).unwrap_or_default();
        hash.update((bytes.len() as u64).to_be_bytes());
        hash.update(bytes);
    }
    hash.finalize().into()
}

fn server_config(files: &config::Tls) -> Result<ServerConfig, TlsError> {
    let provider = Arc::new(ring::default_provider());
    let builder = ServerConfig::builder_with_provider(Arc::clone(&provider))
        .with_safe_default_protocol_versions()
        .map_err(TlsError::Library)?;
    let builder = match &files.client_ca {
        None => builder.with_no_client_auth(),
        Some(path) => {
            let mut roots = RootCertStore::empty();
            roots.add_parsable_certificates(certificates("client authorities", path)?);
            let verifier = WebPkiClientVerifier::builder_with_provider(Arc::new(roots), provider)
                .allow_unauthenticated()
                .build()
                .map_err(|source| TlsError::Authorities {
                    path: path.clone(),
                    source,
                })?;
            builder.with_client_cert_verifier(verifier)
        }
    };
    let chain = certificates("certificate", &files.cert)?;
    let key = PrivateKeyDer::from_pem_file(&files.key).map_err(|source| TlsError::Read {
        what: "private key",
        path: files.key.clone(),
        source,
    })?;
    let mut config = builder
        .with_single_cert(chain, key)
        .map_err(|source| TlsError::Pair {
            path: files.cert.clone(),
            source,
        })?;
    config.alpn_protocols = vec![H2.to_vec(), HTTP1.to_vec()];
    Ok(config)
}

fn certificates(what: &'static str, path: &Path) -> Result<Vec<CertificateDer<'static>>, TlsError> {
    let failed = |source| TlsError::Read {
        what,
        path: path.to_owned(),
        source,
    };
    let read = CertificateDer::pem_file_iter(path).map_err(failed)?;
    let found = read.collect::<Result<Vec<_>, _>>().map_err(failed)?;
    if found.is_empty() {
        return Err(TlsError::NoCertificate(path.to_owned()));
    }
    Ok(found)
}
