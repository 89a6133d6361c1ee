//! One connection: HTTP/1.1, or HTTP/2 for who begins with its preface.
//!
//! ```text
//!   first bytes -> protocol -> requests -> the faces
//!        |             |
//!        |             '-- stop: what is in flight finishes, nothing new begins
//!        '-- silent for too long: closed
//! ```
//!
//! Nothing a client does may hold more than its share. A connection that does not say what it speaks is closed, one of
//! HTTP/2 without a request as well, and what one connection may have open, unread or unfinished is bounded by the
//! constants below. Whether there is TLS around it is not known here.

mod activity;
mod first;

use std::{convert::Infallible, pin::pin, sync::Arc, time::Duration};

use axum::body::Body;
use http::{Request, Response, header};
use hyper::{
    body::Incoming,
    server::conn::{http1, http2},
    service::service_fn,
};
use hyper_util::{
    rt::{TokioExecutor, TokioIo, TokioTimer},
    server::graceful::GracefulConnection,
};
use tokio::{
    io::{AsyncRead, AsyncWrite},
    sync::watch,
};

use crate::{
    Faces,
    auth::{Caller, door::Certified},
};

use self::{
    activity::Activity,
    first::{Protocol, recognize},
};

/// Requests of one HTTP/2 connection at once.
const MAX_STREAMS: u32 = 256;
/// Bytes of a request that lie unread, of one stream and of all of a connection.
const STREAM_WINDOW: u32 = 256 << 10;
const CONNECTION_WINDOW: u32 = 1 << 20;
/// The largest header of an HTTP/2 request, all fields together.
const MAX_HEADER_LIST: u32 = 32 << 10;
/// Bytes of an answer that wait for a reader, of one stream: a slow one stops its own answer, and no other.
const MAX_SEND_BUFFER: usize = 64 << 10;
/// Streams a client may open and reset before they were looked at; more ends its connection.
const MAX_PENDING_RESETS: usize = 20;
/// A client that does not answer a ping is gone.
const PING_INTERVAL: Duration = Duration::from_secs(20);
const PING_TIMEOUT: Duration = Duration::from_secs(20);

/// How connections are served.
#[derive(Debug, Clone)]
pub(crate) struct Connections {
    faces: Faces,
    /// Who the client is, by its certificate.
    caller: Option<Caller>,
    /// How long a client may take for the head of a request, and be silent between two.
    patience: Duration,
}

impl Connections {
    pub(crate) const fn new(faces: Faces, patience: Duration) -> Self {
        Self {
            faces,
            caller: None,
            patience,
        }
    }

    /// The same for a connection whose client is known by its certificate.
    pub(crate) fn certified(self, caller: Caller) -> Self {
        Self {
            caller: Some(caller),
            ..self
        }
    }

    /// Serves a connection to its end. Once `stopping` is true no new request is taken.
    pub(crate) async fn serve<S>(&self, mut stream: S, stopping: watch::Receiver<bool>)
    where
        S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
    {
        let recognized = tokio::time::timeout(self.patience, recognize(&mut stream));
        let mut stop = stopping.clone();
        let (protocol, prefix) = tokio::select! {
            recognized = recognized => match recognized {
                Ok(Ok(recognized)) => recognized,
                Ok(Err(error)) => {
                    tracing::debug!(%error, "connection ended before its first request");
                    return;
                }
                Err(_) => {
                    tracing::debug!("connection without a request closed");
                    return;
                }
            },
            _ = stop.wait_for(|stopping| *stopping) => return,
        };
        let stream = TokioIo::new(first::Replayed::new(prefix, stream));
        let ended = match protocol {
            Protocol::Http1 => {
                let service = service_fn(|request| async {
                    let answer: Result<_, Infallible> = Ok(self.answer(request).await);
                    answer
                });
                let connection = http1::Builder::new()
                    .timer(TokioTimer::new())
                    .header_read_timeout(self.patience)
                    .serve_connection(stream, service);
                drive(connection, stopping, std::future::pending()).await
            }
            Protocol::Http2 => {
                let activity = Arc::new(Activity::default());
                let idle = Arc::clone(&activity);
                let serves = self.clone();
                let service = service_fn(move |request| {
                    let (serves, activity) = (serves.clone(), Arc::clone(&activity));
                    async move { serves.answer_held(&activity, request).await }
                });
                let connection = http2::Builder::new(TokioExecutor::new())
                    .timer(TokioTimer::new())
                    .max_concurrent_streams(MAX_STREAMS)
                    .initial_stream_window_size(STREAM_WINDOW)
                    .initial_connection_window_size(CONNECTION_WINDOW)
                    .max_header_list_size(MAX_HEADER_LIST)
                    .max_send_buf_size(MAX_SEND_BUFFER)
                    .max_pending_accept_reset_streams(MAX_PENDING_RESETS)
                    .keep_alive_interval(PING_INTERVAL)
                    .keep_alive_timeout(PING_TIMEOUT)
                    .serve_connection(stream, service);
                drive(connection, stopping, idle.rests(self.patience)).await
            }
        };
        if let Err(error) = ended {
            tracing::debug!(%error, "connection ended");
        }
    }

    /// Answers a request. Its state is a piece of memory of its own, which a connection without a request need not have.
    async fn answer(&self, request: Request<Incoming>) -> Response<Body> {
        let mut request = request.map(Body::new);
        if let Some(caller) = &self.caller {
            request.extensions_mut().insert(Certified(caller.clone()));
        }
        Box::pin(self.faces.answer(request)).await
    }

    /// Answers a request of HTTP/2, which counts for its connection until its answer has been read.
    async fn answer_held(
        &self,
        activity: &Arc<Activity>,
        request: Request<Incoming>,
    ) -> Result<Response<Body>, Infallible> {
        let held = activity.begin();
        let mut response = self.answer(request).await;
        // A connection of HTTP/2 is not closed by one of its answers.
        response.headers_mut().remove(header::CONNECTION);
        Ok(response.map(|body| Body::new(activity::Held::new(body, held))))
    }
}

/// Drives a connection to its end; what is in flight finishes once it is told to stop, or rests.
async fn drive<C: GracefulConnection>(
    connection: C,
    mut stopping: watch::Receiver<bool>,
    rests: impl Future<Output = ()>,
) -> Result<(), C::Error> {
    let mut connection = pin!(connection);
    tokio::select! {
        ended = connection.as_mut() => return ended,
        _ = stopping.wait_for(|stopping| *stopping) => {}
        () = rests => {}
    }
    connection.as_mut().graceful_shutdown();
    connection.await
}
