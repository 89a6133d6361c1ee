//! The HTTP server: accepts connections, passes requests to the faces, and shuts down gracefully.
//!
//! Shutdown has four steps: stop accepting, and take up no work; end streams; let requests in flight and calls under
//! way finish, within a limit; close the engine and the store. Acknowledged writes are durable throughout, so all steps
//! together take no longer than the grace period, even if the database does not answer. [`Host::drain`] comes before
//! them.

use std::{convert::Infallible, io, net::SocketAddr, sync::Arc, time::Duration};

use futures_util::future::BoxFuture;
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
    connection::{Bounds, Connections, Crowd, Line},
    telemetry,
    tls::{self, Tls},
};

/// Length of the accept queue; the system may allow less (`net.core.somaxconn`).
const BACKLOG: u32 = 4_096;
/// Pause after the system ran out of file descriptors.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);
/// How long a client certificate is believed without a look at the time of day.
const JUDGED: Duration = Duration::from_secs(60);
/// Minimum interval between log lines about refused connections.
const LOG_INTERVAL: Duration = Duration::from_secs(60);

#[derive(Debug, thiserror::Error)]
pub enum ServeError {
    #[error("listen on {address}")]
    Bind { address: Listen, source: io::Error },
}

/// The sockets of a host that does not listen yet: connections are refused.
#[derive(Debug)]
pub struct Bound {
    all: Place,
    awp: Option<Place>,
}

#[derive(Debug)]
struct Place {
    socket: TcpSocket,
    address: Listen,
}

/// The sockets on which a host listens.
#[derive(Debug)]
pub struct Listeners {
    all: TcpListener,
    /// Of the Agent Workflow Protocol alone, if it has an address of its own.
    awp: Option<TcpListener>,
}

/// Takes the configured addresses and writes those that the system chose back into the configuration,
/// so that links are correct from the start.
///
/// # Errors
/// If an address is in use or not local.
pub fn bind(config: &mut Config) -> Result<Bound, ServeError> {
    let all = take(&mut config.server.listen)?;
    let awp = config.awp.listen.as_mut().map(take).transpose()?;
    Ok(Bound { all, awp })
}

impl Bound {
    /// Listens on the addresses. Until then, a client or a load balancer sees that there is no host.
    ///
    /// # Errors
    /// If another process has begun to listen on an address meanwhile.
    pub fn listen(self) -> Result<Listeners, ServeError> {
        let Self { all, awp } = self;
        Ok(Listeners {
            all: all.listen()?,
            awp: awp.map(Place::listen).transpose()?,
        })
    }
}

impl Place {
    /// Has a longer accept queue than [`TcpListener::bind`]: its 128 entries are too few for clients that reconnect
    /// after a restart, and the rest would be reset.
    fn listen(self) -> Result<TcpListener, ServeError> {
        let Self { socket, address } = self;
        let listening = socket.listen(BACKLOG);
        listening.map_err(|source| ServeError::Bind { address, source })
    }
}

fn take(listen: &mut Listen) -> Result<Place, ServeError> {
    let address = *listen;
    let failed = |source| ServeError::Bind { address, source };
    let socket = socket_at(address.0).map_err(failed)?;
    *listen = Listen(socket.local_addr().map_err(failed)?);
    Ok(Place {
        socket,
        address: *listen,
    })
}

fn socket_at(address: SocketAddr) -> io::Result<TcpSocket> {
    let socket = match address {
        SocketAddr::V4(_) => TcpSocket::new_v4()?,
        SocketAddr::V6(_) => TcpSocket::new_v6()?,
    };
    // A restart need not wait for sockets in TIME_WAIT.
    #[cfg(unix)]
    socket.set_reuseaddr(true)?;
    socket.bind(address)?;
    Ok(socket)
}

/// Serves until `shutdown` is ready, then shuts down gracefully.
pub fn serve<'s>(
    host: Arc<Host>,
    listeners: Listeners,
    shutdown: impl Future<Output = ()> + Send + 's,
) -> BoxFuture<'s, ()> {
    boxed(host, listeners, Box::pin(shutdown))
}

/// A trait object, and not generic: the code of the server is compiled in this crate, once, instead of in each program
/// that awaits it.
fn boxed(host: Arc<Host>, listeners: Listeners, shutdown: BoxFuture<'_, ()>) -> BoxFuture<'_, ()> {
    Box::pin(serve_until(host, listeners, shutdown))
}

async fn serve_until(host: Arc<Host>, listeners: Listeners, mut shutdown: BoxFuture<'_, ()>) {
    if let Some(awp) = host.config().awp.listen {
        tracing::info!(address = %awp, "listening for the Agent Workflow Protocol");
    }
    let timeout = host.config().server.request_timeout.as_duration();
    let serves = Connections::new(Faces::new(&host), timeout);
    let serves_awp = Connections::new(Faces::for_awp(&host), timeout);
    let tls = host.tls().cloned();
    // The files were read when the host opened.
    let mut reload_ticks = tokio::time::interval_at(Instant::now() + tls::RELOAD, tls::RELOAD);
    let max_connections = host.config().server.max_connections;
    let slots = Arc::new(Semaphore::new(max_connections));
    let crowd = Arc::new(Crowd::new(Bounds {
        each: host.config().server.max_unauthenticated_per_address,
        // The rest is reserved for authenticated connections.
        all: max_connections - max_connections / 4,
    }));
    let mut refused_connections = RefusedConnections::default();
    let (stop, stopping) = watch::channel(false);
    let mut connections = JoinSet::new();
    loop {
        let accepted = async {
            let slot = Arc::clone(&slots).acquire_owned().await;
            tokio::select! {
                accepted = listeners.all.accept() => (accepted, slot, &serves),
                accepted = accept(listeners.awp.as_ref()) => (accepted, slot, &serves_awp),
            }
        };
        let (accepted, slot, serves) = tokio::select! {
            biased;
            () = &mut shutdown => break,
            _ = reload_ticks.tick(), if tls.is_some() || host.has_peer_files() => {
                reload_tls(tls.as_ref()).await;
                reload_peers(&host).await;
                continue;
            }
            // Reaps connections that ended.
            Some(_) = connections.join_next() => continue,
            accepted = accepted => accepted,
        };
        let (stream, peer) = match accepted {
            Ok(accepted) => accepted,
            Err(error) => {
                telemetry::not_accepted(&error);
                tokio::time::sleep(ACCEPT_PAUSE).await;
                continue;
            }
        };
        let Some(seat) = crowd.arrive(peer.ip()) else {
            refused_connections.note();
            continue;
        };
        prepare(&stream);
        let (serves, stopping) = (serves.clone(), stopping.clone());
        let (host, tls) = (Arc::clone(&host), tls.clone());
        connections.spawn(async move {
            match tls {
                None => serves.serve(stream, seat.line(), stopping).await,
                // Boxed: connections without TLS need none of its memory.
                Some(tls) => Box::pin(encrypted(&host, &tls, serves, stream, seat.line(), stopping)).await,
            }
            drop((seat, slot));
        });
    }
    drop(listeners);
    tracing::info!("stopping");
    host.begin_close();
    stop.send_replace(true);
    let (until, end) = host.deadlines();
    let all_end = async { while connections.join_next().await.is_some() {} };
    let (is_cut_off, ()) = tokio::join!(tokio::time::timeout_at(until, all_end), host.finish_work(until));
    let closing = async {
        if is_cut_off.is_err() {
            tracing::warn!("connections cut off after the grace period");
            connections.shutdown().await;
        }
        host.close().await;
    };
    if tokio::time::timeout_at(end, closing).await.is_err() {
        tracing::warn!(
            "not closed in order within the grace period: what was under way goes on at the next start"
        );
    }
}

/// The next connection of a listener that there may not be.
async fn accept(listener: Option<&TcpListener>) -> io::Result<(TcpStream, SocketAddr)> {
    match listener {
        Some(listener) => listener.accept().await,
        None => std::future::pending().await,
    }
}

/// Counts refused connections and logs them once in a while.
#[derive(Debug, Default)]
struct RefusedConnections {
    since: Option<Instant>,
    count: u64,
}

impl RefusedConnections {
    fn note(&mut self) {
        self.count += 1;
        if self.since.is_none_or(|since| since.elapsed() >= LOG_INTERVAL) {
            tracing::warn!(
                count = self.count,
                "connections turned away, too many others are not authenticated; behind a reverse proxy set \
                 server.max_unauthenticated_per_address to 0"
            );
            *self = Self {
                since: Some(Instant::now()),
                count: 0,
            };
        }
    }
}

/// Performs the TLS handshake, then serves the connection.
async fn encrypted(
    host: &Host,
    tls: &Tls,
    serves: Connections,
    stream: TcpStream,
    line: &Line,
    mut stopping: watch::Receiver<bool>,
) {
    let accepted = tokio::select! {
        accepted = tls.accept(stream, line) => accepted,
        () = line.told_to_leave() => None,
        _ = stopping.wait_for(|stopping| *stopping) => None,
    };
    let Some(stream) = accepted else { return };
    let chain = stream.get_ref().1.peer_certificates().unwrap_or_default();
    let chain: Vec<_> = chain.iter().map(|one| one.clone().into_owned()).collect();
    let refused = watch::Sender::new(false);
    let certified = chain.first().and_then(|certificate| {
        let now = host.engine().time_of_day();
        host.auth().certified(certificate, now, refused.subscribe())
    });
    let Some(certified) = certified else {
        return serves.serve(stream, line, stopping).await;
    };
    let changes = tls.changes();
    let serves = serves.certified(certified);
    tokio::select! {
        () = serves.serve(stream, line, stopping) => {}
        never = judge(tls, changes, &chain, &refused) => match never {},
    }
}

/// Verifies a client certificate again whenever the trusted authorities may have changed, and once a minute: the machine's
/// clock may have been set, or the machine suspended.
async fn judge(
    tls: &Tls,
    mut changes: watch::Receiver<u64>,
    chain: &[CertificateDer<'_>],
    refused: &watch::Sender<bool>,
) -> Infallible {
    // Covers changes between the handshake and now.
    changes.mark_changed();
    while !matches!(tokio::time::timeout(JUDGED, changes.changed()).await, Ok(Err(_))) {
        refused.send_replace(!tls.accepts_client(chain));
    }
    std::future::pending().await
}

/// Reloads the TLS files if they changed.
async fn reload_tls(tls: Option<&Arc<Tls>>) {
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

/// Reads the files of called agents again if they changed.
async fn reload_peers(host: &Arc<Host>) {
    if !host.has_peer_files() {
        return;
    }
    let host = Arc::clone(host);
    if let Err(error) = tokio::task::spawn_blocking(move || host.reload_peers()).await {
        tracing::error!(%error, "files of a2a peers not looked at");
    }
}

/// Disables Nagle's algorithm: stream frames are small and must not wait for each other.
fn prepare(stream: &TcpStream) {
    if let Err(error) = stream.set_nodelay(true) {
        tracing::debug!(%error, "connection without nodelay");
    }
}
