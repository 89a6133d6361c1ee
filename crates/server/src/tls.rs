//! TLS for incoming connections: rustls on `ring`, as for outbound calls.
//!
//! The files are read at startup, where an error names its file, and again when they change, where an error
//! leaves the last good files in use. A connection keeps the server certificate of its handshake, but its
//! client certificate is verified again after each reload. Client certificates are requested if authorities are
//! configured and never required: an API key or token is as good, and the agent card is public. A certificate that does
//! not verify ends the handshake.

use std::{
    fs,
    path::{Path, PathBuf},
    sync::Arc,
    time::Duration,
};

use parking_lot::Mutex;
use rustls::{
    RootCertStore, ServerConfig, ServerConnection,
    crypto::ring,
    pki_types::{
        CertificateDer, PrivateKeyDer, UnixTime,
        pem::{self, PemObject as _},
    },
    server::{VerifierBuilderError, WebPkiClientVerifier, danger::ClientCertVerifier},
};
use sha2::{Digest, Sha256};
use tokio::{net::TcpStream, sync::watch, time::timeout};
use tokio_rustls::{TlsAcceptor, server::TlsStream};

use crate::{config, connection::Line};

/// Buffer limit per connection for unsent and unread data, in bytes.
const MAX_BUFFER: usize = 16 << 10;
/// Timeout of a handshake. The connection limit bounds the number of handshakes.
const HANDSHAKE: Duration = Duration::from_secs(10);
/// How often the files are checked for changes.
pub(crate) const RELOAD: Duration = Duration::from_secs(30);
/// ALPN protocols, preferred one first.
const H2: &[u8] = b"h2";
const HTTP1: &[u8] = b"http/1.1";

#[derive(Debug, thiserror::Error)]
pub enum TlsError {
    #[error("read the {what} in {}", path.display())]
    Read {
        /// What the file should contain.
        what: &'static str,
        path: PathBuf,
        source: pem::Error,
    },
    #[error("find a certificate in {}", .0.display())]
    NoCertificate(PathBuf),
    /// The certificate and the key do not match, or one of them is unusable.
    #[error("use the certificate in {} with its key", path.display())]
    Pair {
        /// The certificate's file.
        path: PathBuf,
        source: rustls::Error,
    },
    #[error("use the client authorities in {}", path.display())]
    Authorities {
        path: PathBuf,
        source: VerifierBuilderError,
    },
    /// rustls refused its own defaults.
    #[error("set up tls")]
    Library(#[source] rustls::Error),
}

#[derive(Debug)]
pub struct Tls {
    files: config::Tls,
    current: Mutex<Current>,
    /// Incremented whenever changed files were loaded.
    changes: watch::Sender<u64>,
}

#[derive(Debug)]
struct Current {
    config: Arc<ServerConfig>,
    /// Verifies client certificates, if any are requested.
    clients: Option<Arc<dyn ClientCertVerifier>>,
    /// Of the files as they were read.
    digest: [u8; 32],
}

impl Tls {
    /// Reads the files.
    pub fn load(files: &config::Tls) -> Result<Self, TlsError> {
        // Before reading the files: one that changes in between is read again.
        let digest = digest(files);
        let (config, clients) = server_config(files)?;
        Ok(Self {
            files: files.clone(),
            current: Mutex::new(Current {
                config: Arc::new(config),
                clients,
                digest,
            }),
            changes: watch::Sender::new(0),
        })
    }

    /// Reloads the files if they changed; returns `true` if so. Blocks on the disk.
    ///
    /// # Errors
    /// If the changed files are unusable; the last good ones stay in use.
    pub fn reload(&self) -> Result<bool, TlsError> {
        let digest = digest(&self.files);
        if self.current.lock().digest == digest {
            return Ok(false);
        }
        let read = server_config(&self.files);
        let mut current = self.current.lock();
        // An error is reported once, not on every check.
        current.digest = digest;
        let (config, clients) = read?;
        current.config = Arc::new(config);
        current.clients = clients;
        drop(current);
        self.changes.send_modify(|changes| *changes += 1);
        Ok(true)
    }

    /// Notifies whenever changed files were loaded.
    pub(crate) fn changes(&self) -> watch::Receiver<u64> {
        self.changes.subscribe()
    }

    /// Returns `true` if a client with this certificate chain, leaf first, would be accepted now.
    pub(crate) fn accepts_client(&self, chain: &[CertificateDer<'_>]) -> bool {
        let clients = self.current.lock().clients.clone();
        let (Some(clients), Some((own, further))) = (clients, chain.split_first()) else {
            return false;
        };
        clients.verify_client_cert(own, further, UnixTime::now()).is_ok()
    }

    /// Performs a handshake; returns `None` if it fails or times out.
    pub(crate) async fn accept(&self, stream: TcpStream, line: &Line) -> Option<TlsStream<TcpStream>> {
        let handshake = async {
            let config = Arc::clone(&self.current.lock().config);
            let bounded = |connection: &mut ServerConnection| connection.set_buffer_limit(Some(MAX_BUFFER));
            match TlsAcceptor::from(config).accept_with(stream, bounded).await {
                Ok(stream) => Some(stream),
                Err(error) => {
                    tracing::debug!(%error, "tls handshake failed");
                    None
                }
            }
        };
        timeout(line.timeout(HANDSHAKE), handshake)
            .await
            .unwrap_or_else(|_| {
                tracing::debug!("tls handshake took too long");
                None
            })
    }
}

fn digest(files: &config::Tls) -> [u8; 32] {
    let mut hash = Sha256::new();
    for path in [Some(&files.cert), Some(&files.key), files.client_ca.as_ref()] {
        // An unreadable file hashes as empty here, and fails where it is used.
        let bytes = path.and_then(|path| fs::read(path).ok()).unwrap_or_default();
        hash.update((bytes.len() as u64).to_be_bytes());
        hash.update(bytes);
    }
    hash.finalize().into()
}

/// The server's configuration, and the verifier of client certificates.
type Read = (ServerConfig, Option<Arc<dyn ClientCertVerifier>>);

fn server_config(files: &config::Tls) -> Result<Read, TlsError> {
    let provider = Arc::new(ring::default_provider());
    let builder = ServerConfig::builder_with_provider(Arc::clone(&provider))
        .with_safe_default_protocol_versions()
        .map_err(TlsError::Library)?;
    let clients = match &files.client_ca {
        None => None,
        Some(path) => {
            let mut roots = RootCertStore::empty();
            roots.add_parsable_certificates(certificates("client authorities", path)?);
            let verifier = WebPkiClientVerifier::builder_with_provider(Arc::new(roots), provider)
                .allow_unauthenticated()
                .build();
            Some(verifier.map_err(|source| TlsError::Authorities {
                path: path.clone(),
                source,
            })?)
        }
    };
    let builder = match &clients {
        None => builder.with_no_client_auth(),
        Some(verifier) => builder.with_client_cert_verifier(Arc::clone(verifier)),
    };
    let chain = certificates("certificate", &files.cert)?;
    let key = private_key(&files.key)?;
    let mut config = builder
        .with_single_cert(chain, key)
        .map_err(|source| TlsError::Pair {
            path: files.cert.clone(),
            source,
        })?;
    config.alpn_protocols = vec![H2.to_vec(), HTTP1.to_vec()];
    Ok((config, clients))
}

/// Reads the private key in a PEM file.
pub(crate) fn private_key(path: &Path) -> Result<PrivateKeyDer<'static>, TlsError> {
    PrivateKeyDer::from_pem_file(path).map_err(|source| TlsError::Read {
        what: "private key",
        path: path.to_owned(),
        source,
    })
}

/// Reads the certificates in a PEM file, which has at least one.
pub(crate) fn certificates(
    what: &'static str,
    path: &Path,
) -> Result<Vec<CertificateDer<'static>>, TlsError> {
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
