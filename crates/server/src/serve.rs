//! The HTTP server: accepting connections, handing requests to the faces, and stopping in order.
//!
//! A stop has four steps: no new connections; streams end; requests in flight finish, but not for ever; the
//! engine and the store close. Whatever was acknowledged is durable at every one of them.

use std::{io, pin::pin, sync::Arc, time::Duration};

use axum::Router;
use hyper::server::conn::http1;
use hyper_util::{
    rt::{TokioIo, TokioTimer},
    server::graceful::GracefulShutdown,
    service::TowerToHyperService,
};
use tokio::{
    net::{TcpListener, TcpStream},
    sync::Semaphore,
};

use crate::{Config, Host, a2a, auth, config::Listen, openwop, telemetry};

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
    let listener = TcpListener::bind(address.0).await.map_err(failed)?;
    config.server.listen = Listen(listener.local_addr().map_err(failed)?);
    Ok(listener)
}

/// Every route of the host. What the A2A face does not take is the OpenWOP face's, which answers for unknown paths too.
pub fn router(host: &Arc<Host>) -> Router {
    let faces = a2a::before(openwop::router(Arc::clone(host)), Arc::clone(host));
    let door = axum::middleware::from_fn_with_state(Arc::clone(host), auth::door::identify);
    faces.layer(door).layer(axum::middleware::from_fn_with_state(
        Arc::clone(host),
        telemetry::observe,
    ))
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
    let service = TowerToHyperService::new(router(&host));
    let mut http = http1::Builder::new();
    http.timer(TokioTimer::new())
        .header_read_timeout(host.config().server.request_timeout.as_duration());
    let slots = Arc::new(Semaphore::new(host.config().server.max_connections));
    let graceful = GracefulShutdown::new();
    let mut shutdown = pin!(shutdown);
    loop {
        let accepted = async {
            let slot = Arc::clone(&slots).acquire_owned().await;
            (listener.accept().await, slot)
        };
        let (accepted, slot) = tokio::select! {
            biased;
            () = &mut shutdown => break,
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
        let connection = http.serve_connection(TokioIo::new(stream), service.clone());
        let connection = graceful.watch(connection);
        // Owned by `graceful`, which waits for it below; the slot comes back with its end.
        tokio::spawn(async move {
            if let Err(error) = connection.await {
                tracing::debug!(%error, "connection ended");
            }
            drop(slot);
        });
    }
    drop(listener);
    tracing::info!("stopping");
    host.begin_close();
    let grace = host.config().server.shutdown_grace.as_duration();
    if tokio::time::timeout(grace, graceful.shutdown()).await.is_err() {
        tracing::warn!("connections cut off after the grace period");
    }
    host.close().await;
    Ok(())
}

/// Frames of a stream are small and must not wait for each other.
fn prepare(stream: &TcpStream) {
    if let Err(error) = stream.set_nodelay(true) {
        tracing::debug!(%error, "connection without nodelay");
    }
}
