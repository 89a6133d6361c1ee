//! The HTTP server: accepting connections, handing requests to the faces, and stopping in order.
//!
//! A stop has four steps: no new connections; streams end; requests in flight finish, but not for ever; the
//! engine and the store close. Whatever was acknowledged is durable at every one of them.

use std::{convert::Infallible, io, net::SocketAddr, pin::pin, sync::Arc, time::Duration};

use rustls::pki_types::CertificateDer;
use tokio::{
    net::{TcpListener, TcpSocket, TcpStream},
    sync::{Semaphore, watch},
    task::JoinSet,
    time::Instant,
};

use crate::{
    Config, Faces, Host,
    config::Listen,
    connection::Connections,
    tls::{self, Tls},
};

/// Connections that may wait to be accepted; the system may allow fewer (`net.core.somaxconn`).
const BACKLOG: u32 = 4_096;
/// How long to wait after the system had no descriptor for another connection.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

/// Why serving ended in error.
#[derive(Debug, thiserror::Error)]
pub enum ServeError {
    /// The address cannot be listened on.
    #[error("listen on {address}")]
    Bind {
        /// The address.
        address: Listen,
        /// Why.
        source: io::Error,
    },
}

/// Listens on the configured address and writes the one the system chose back into the configuration, so that
/// links are right from the start.
///
/// # Errors
/// The address is taken or not ours.
pub async fn bind(config: &mut Config) -> Result<TcpListener, ServeError> {
    let address = config.server.listen;
    let failed = |source| ServeError::Bind { address, source };
    let listener = listen(address.0).map_err(failed)?;
    config.server.listen = Listen(listener.local_addr().map_err(failed)?);
    Ok(listener)
}

/// As [`TcpListener::bind`] does, with room for a crowd that comes at once: its 128 are fewer than clients after a
/// restart, and those beyond are reset.
fn listen(address: SocketAddr) -> io::Result<TcpListener> {
    let socket = match address {
        SocketAddr::V4(_) => TcpSocket::new_v4()?,
        SocketAddr::V6(_) => TcpSocket::new_v6()?,
    };
    // A restart need not wait until the last connections of the one before are forgotten.
    #[cfg(unix)]
    socket.set_reuseaddr(true)?;
    socket.bind(address)?;
    socket.listen(BACKLOG)
}

/// Serves until `shutdown` is ready, then stops in order.
///
/// # Errors
/// None today; what can go wrong with one connection is that connection's.
pub async fn serve(
    host: Arc<Host>,
    listener: TcpListener,
    shutdown: impl Future<Output = ()>,
) -> Result<(), ServeError> {
    let patience = host.config().server.request_timeout.as_duration();
    let serves = Connections::new(Faces::new(&host), patience);
    let tls = host.tls().cloned();
    // They were read just now.
    let mut looks = tokio::time::interval_at(Instant::now() + tls::RELOAD, tls::RELOAD);
    let slots = Arc::new(Semaphore::new(host.config().server.max_connections));
    let (stop, stopping) = watch::channel(false);
    let mut connections = JoinSet::new();
    let mut shutdown = pin!(shutdown);
    loop {
        let accepted = async {
            let slot = Arc::clone(&slots).acquire_owned().await;
            (listener.accept().await, slot)
        };
        let (accepted, slot) = tokio::select! {
            biased;
            () = &mut shutdown => break,
            _ = looks.tick(), if tls.is_some() => {
                look_again(tls.as_ref()).await;
                continue;
            }
            // Those that have ended are let go of while others begin.
            Some(_) = connections.join_next() => continue,
            accepted = accepted => accepted,
        };
        let stream = match accepted {
            Ok((stream, _)) => stream,
            Err(error) => {
                tracing::warn!(%error, "connection not accepted");
                tokio::time::sleep(ACCEPT_PAUSE).await;
                continue;
            }
        };
        prepare(&stream);
        let (serves, stopping) = (serves.clone(), stopping.clone());
        let (host, tls) = (Arc::clone(&host), tls.clone());
        connections.spawn(async move {
            match tls {
                None => serves.serve(stream, stopping).await,
                // Kept apart, as connections without TLS need none of its memory.
                Some(tls) => Box::pin(encrypted(&host, &tls, serves, stream, stopping)).await,
            }
            drop(slot);
        });
    }
    drop(listener);
    tracing::info!("stopping");
    host.begin_close();
    stop.send_replace(true);
    let grace = host.config().server.shutdown_grace.as_duration();
    let all_end = async { while connections.join_next().await.is_some() {} };
    if tokio::time::timeout(grace, all_end).await.is_err() {
        tracing::warn!("connections cut off after the grace period");
        connections.shutdown().await;
    }
    host.close().await;
    Ok(())
}

/// Makes the handshake of a connection and serves what is inside.
async fn encrypted(
    host: &Host,
    tls: &Tls,
    serves: Connections,
    stream: TcpStream,
    mut stopping: watch::Receiver<bool>,
) {
    let accepted = tokio::select! {
        accepted = tls.accept(stream) => accepted,
        _ = stopping.wait_for(|stopping| *stopping) => None,
    };
    let Some(stream) = accepted else { return };
    let chain = stream.get_ref().1.peer_certificates().unwrap_or_default();
    let chain: Vec<_> = chain.iter().map(|one| one.clone().into_owned()).collect();
    let refused = watch::Sender::new(false);
    let certified = chain.first().and_then(|certificate| {
        let now = host.engine().now();
        host.auth().certified(certificate, now, refused.subscribe())
    });
    let Some(certified) = certified else {
        return serves.serve(stream, stopping).await;
    };
    let changes = tls.changes();
    let serves = serves.certified(certified);
    tokio::select! {
        () = serves.serve(stream, stopping) => {}
        never = judge(tls, changes, &chain, &refused) => match never {},
    }
}

/// Judges a client certificate anew whenever the authorities may have changed.
async fn judge(
    tls: &Tls,
    mut changes: watch::Receiver<u64>,
    chain: &[CertificateDer<'_>],
    refused: &watch::Sender<bool>,
) -> Infallible {
    // Whatever changed between the handshake and now.
    changes.mark_changed();
    while changes.changed().await.is_ok() {
        refused.send_replace(!tls.accepts_client(chain));
    }
    std::future::pending().await
}

/// Looks whether the files of TLS changed.
async fn look_again(tls: Option<&Arc<Tls>>) {
    let Some(tls) = tls.map(Arc::clone) else { return };
    match tokio::task::spawn_blocking(move || tls.reload()).await {
        Ok(Ok(true)) => tracing::info!("tls files read again"),
        Ok(Ok(false)) => {}
        Ok(Err(error)) => {
            tracing::warn!(%error, cause = ?error, "tls files are of no use, the last ones stay");
        }
        Err(error) => tracing::error!(%error, "tls files not looked at"),
    }
}

/// Frames of a stream are small and must not wait for each other.
fn prepare(stream: &TcpStream) {
    if let Err(error) = stream.set_nodelay(true) {
        tracing::debug!(%error, "connection without nodelay");
    }
}
