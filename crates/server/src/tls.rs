//! TLS for incoming connections: rustls on `ring`, as for outbound calls.
//!
//! The files are read at the start, where a mistake is an error that names its file, and again when they change, where
//! a mistake leaves what was. A connection keeps what the server showed when it was made; what its client showed is judged
//! anew. Client certificates are asked for where there are authorities for them and never demanded: a key or a token is
//! as good, and the card is public.

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

/// What a connection keeps of what it cannot send or was not read yet.
const MAX_BUFFER: usize = 16 << 10;
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
    /// Grows when something was read that is of use.
    changes: watch::Sender<u64>,
}

#[derive(Debug)]
struct Current {
    config: Arc<ServerConfig>,
    /// Judges certificates of clients, if they are asked for any.
    clients: Option<Arc<dyn ClientCertVerifier>>,
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

    /// Reads the files again if they changed; gives whether they did. Blocks on the disk.
    ///
    /// # Errors
    /// What is in them now is of no use; what was in them before stays in use.
    pub fn reload(&self) -> Result<bool, TlsError> {
        let digest = digest(&self.files);
        if self.current.lock().digest == digest {
            return Ok(false);
        }
        let read = server_config(&self.files);
        let mut current = self.current.lock();
        // A mistake is told once, not each time the files are looked at.
        current.digest = digest;
        let (config, clients) = read?;
        current.config = Arc::new(config);
        current.clients = clients;
        drop(current);
        self.changes.send_modify(|changes| *changes += 1);
        Ok(true)
    }

    /// Tells whenever the files were read again.
    pub(crate) fn changes(&self) -> watch::Receiver<u64> {
        self.changes.subscribe()
    }

    /// Whether a client with this chain of certificates, its own first, would be let in now.
    pub(crate) fn accepts_client(&self, chain: &[CertificateDer<'_>]) -> bool {
        let clients = self.current.lock().clients.clone();
        let (Some(clients), Some((own, further))) = (clients, chain.split_first()) else {
            return false;
        };
        clients.verify_client_cert(own, further, UnixTime::now()).is_ok()
    }

    /// Makes a handshake; none if it fails or takes too long.
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
        // What cannot be read is an empty file here, and an error where it is used.
        let bytes = path.and_then(|path| fs::read(path).ok()).unwrap_or_default();
        hash.update((bytes.len() as u64).to_be_bytes());
        hash.update(bytes);
    }
    hash.finalize().into()
}

/// What a server shows, and what judges its clients.
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
    Ok((config, clients))
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
