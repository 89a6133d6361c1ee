//! One connection: HTTP/1.1, or HTTP/2 if the client starts with its preface.
//!
//! ```text
//!   first bytes -> protocol -> requests -> the faces
//!        |             |
//!        |             '-- stop: requests in flight finish, no new ones begin
//!        '-- silent for too long: closed
//! ```
//!
//! No client can hold more than its share. The connection is closed if the client does not show its protocol,
//! keeps an HTTP/2 connection without a request, or does not read its responses. The constants below limit what
//! one connection may have open, unread or unfinished. This module does not know whether there is TLS.
//!
//! The client gets a response even if it is ready before the request has been read. Over HTTP/1.1 the rest of
//! the request is read and dropped, or the connection drains and closes after the response; HTTP/2 resets the
//! stream without an error.

/// Forwards writes to the wrapped stream: all of [`AsyncWrite`] except shutdown.
macro_rules! hand_on_writes {
    () => {
        fn poll_write(self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &[u8]) -> Poll<io::Result<usize>> {
            Pin::new(&mut self.get_mut().stream).poll_write(cx, buf)
        }

        fn poll_flush(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
            Pin::new(&mut self.get_mut().stream).poll_flush(cx)
        }

        fn poll_write_vectored(
            self: Pin<&mut Self>,
            cx: &mut Context<'_>,
            bufs: &[io::IoSlice<'_>],
        ) -> Poll<io::Result<usize>> {
            Pin::new(&mut self.get_mut().stream).poll_write_vectored(cx, bufs)
        }

        fn is_write_vectored(&self) -> bool {
            self.stream.is_write_vectored()
        }
    };
}

/// Forwards shutdown as well.
macro_rules! hand_on_shutdown {
    () => {
        fn poll_shutdown(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
            Pin::new(&mut self.get_mut().stream).poll_shutdown(cx)
        }
    };
}

mod activity;
mod charged;
mod crowd;
mod drain;
mod first;
mod frames;
mod pace;
mod rest;
mod stall;

use std::{convert::Infallible, pin::pin, sync::Arc, time::Duration};

use http::{HeaderMap, HeaderValue, Method, Request, Response, Version, header, uri::Authority};
use http_body::Body as _;
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
    time::Instant,
};

use crate::{
    Faces, a2a,
    admission::{NoRoom, Slot, refusal},
    auth::Certified,
    message::Body,
    openwop::Problem,
};

use self::{
    activity::Activity,
    charged::Charged,
    drain::{Draining, Unread},
    first::{Protocol, recognize},
    frames::Frames,
    pace::Paced,
    stall::{STALL, Stalling, Written},
};

pub(crate) use self::crowd::{Bounds, Crowd, Line};

/// Read buffer of an HTTP/1.1 connection, which also limits the size of a request's head.
const MAX_BUFFER: usize = 32 << 10;
/// Maximum number of concurrent requests per HTTP/2 connection.
const MAX_STREAMS: u32 = 256;
/// Unread request bytes, per stream and per connection.
const STREAM_WINDOW: u32 = 256 << 10;
const CONNECTION_WINDOW: u32 = 1 << 20;
/// Maximum size of all header fields of an HTTP/2 request.
const MAX_HEADER_LIST: u32 = 32 << 10;
/// Response bytes buffered per stream. A slow reader delays only its own response.
const MAX_SEND_BUFFER: usize = 64 << 10;
/// Streams a client may open and reset before they are accepted; more close its connection.
const MAX_PENDING_RESETS: usize = 20;
/// Streams a client may make this host reset; more close its connection.
const MAX_ERROR_RESETS: usize = 64;
/// A client that does not answer a ping in time is considered gone.
const PING_INTERVAL: Duration = Duration::from_secs(20);
const PING_TIMEOUT: Duration = Duration::from_secs(20);
/// How long a host that stops waits for a connection on which no authenticated request is under way. Nobody without a
/// credential delays a stop for longer.
const LAST_WORDS: Duration = Duration::from_secs(2);
/// Bytes that the client of an HTTP/2 connection without requests must read per [`STALL`]; more than pings take
/// up.
const MIN_TAKEN: u64 = 4 << 10;

#[derive(Debug, Clone)]
pub(crate) struct Connections {
    faces: Faces,
    /// The caller of the client's certificate.
    caller: Option<Certified>,
    /// Timeout for the head of a request, and for silence between requests.
    timeout: Duration,
}

impl Connections {
    pub(crate) const fn new(faces: Faces, timeout: Duration) -> Self {
        Self {
            faces,
            caller: None,
            timeout,
        }
    }

    /// Returns a copy for a connection with an authenticated client certificate.
    pub(crate) fn certified(self, caller: Certified) -> Self {
        Self {
            caller: Some(caller),
            ..self
        }
    }

    /// Serves a connection until it ends. Once `stopping` is true, accepts no new request.
    pub(crate) async fn serve<S>(&self, mut stream: S, line: &Line, stopping: watch::Receiver<bool>)
    where
        S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
    {
        let recognized = tokio::time::timeout(line.timeout(self.timeout), recognize(&mut stream));
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
            () = line.told_to_leave() => {
                tracing::debug!("silent connection gives way to another");
                return;
            }
        };
        let frames = (protocol == Protocol::Http2).then(Frames::new);
        let stream = Paced::new(first::Replayed::new(prefix, stream), line.clone(), frames);
        let stream = Stalling::new(stream);
        let written = stream.written();
        let ended = match protocol {
            Protocol::Http1 => {
                let stream = Draining::new(stream);
                let unread = stream.unread();
                // Boxed: a connection without a request needs none of its memory.
                let service = service_fn(|request| {
                    let begun = self.begin(line, request, 0);
                    Box::pin(self.answer_in_turn(&unread, &written, begun))
                });
                let connection = http1::Builder::new()
                    .timer(TokioTimer::new())
                    .header_read_timeout(self.timeout)
                    .max_buf_size(MAX_BUFFER)
                    .serve_connection(TokioIo::new(stream), service);
                // Stalls of HTTP/1.1 are caught by the write-stall timeout.
                let never = std::future::pending::<()>;
                drive(connection, stopping, never(), never, line).await
            }
            Protocol::Http2 => {
                let activity = Arc::new(Activity::default());
                let idle = Arc::clone(&activity);
                let watched = Arc::clone(&activity);
                let (serves, progress, own) = (self.clone(), written.clone(), line.clone());
                let service = service_fn(move |request| {
                    // Before the request's task exists, so that a flood of requests cannot hold more than
                    // admitted.
                    let begun = serves.begin(&own, request, STREAM_WINDOW as usize);
                    let (serves, activity, progress) =
                        (serves.clone(), Arc::clone(&activity), progress.clone());
                    async move {
                        match begun {
                            Ok((request, slot)) => {
                                serves.answer_held(&activity, progress, request, slot).await
                            }
                            Err(refused) => Ok(*refused),
                        }
                    }
                });
                let connection = http2::Builder::new(TokioExecutor::new())
                    .timer(TokioTimer::new())
                    .max_concurrent_streams(MAX_STREAMS)
                    .initial_stream_window_size(STREAM_WINDOW)
                    .initial_connection_window_size(CONNECTION_WINDOW)
                    .max_header_list_size(MAX_HEADER_LIST)
                    .max_send_buf_size(MAX_SEND_BUFFER)
                    .max_pending_accept_reset_streams(MAX_PENDING_RESETS)
                    .max_local_error_reset_streams(MAX_ERROR_RESETS)
                    .keep_alive_interval(PING_INTERVAL)
                    .keep_alive_timeout(PING_TIMEOUT)
                    .serve_connection(TokioIo::new(stream), service);
                let stalls = || stalls(Arc::clone(&watched), written.clone(), self.timeout);
                drive(connection, stopping, idle.rests(self.timeout), stalls, line).await
            }
        };
        if let Err(error) = ended {
            tracing::debug!(%error, "connection ended");
        }
    }

    /// Admits a request whose head has been read, or returns the refusal.
    fn begin(
        &self,
        line: &Line,
        mut request: Request<Incoming>,
        window: usize,
    ) -> Result<(Request<Incoming>, Slot), Box<Response<Body>>> {
        if let Some(caller) = &self.caller {
            request.extensions_mut().insert(caller.clone());
        }
        let caller = self.faces.recognize(&mut request);
        match Slot::take(self.faces.admission(), line, caller.as_deref(), &request, window) {
            Ok(slot) => {
                request.extensions_mut().insert(slot.clone());
                Ok((request, slot))
            }
            Err(NoRoom) => {
                let is_http2 = request.version() >= Version::HTTP_2;
                Err(Box::new(refusal(is_http2, a2a::is_grpc(request.headers()))))
            }
        }
    }

    /// Answers an HTTP/1.1 request. Afterwards either the next one can follow, or the response closes the
    /// connection.
    async fn answer_in_turn(
        &self,
        unread: &Unread,
        written: &Written,
        begun: Result<(Request<Incoming>, Slot), Box<Response<Body>>>,
    ) -> Result<Response<Body>, Infallible> {
        let (request, slot) = match begun {
            Ok(begun) => begun,
            Err(refused) => return Ok(*refused),
        };
        let (parts, body) = request.into_parts();
        let awaits_go = parts.headers.contains_key(header::EXPECT);
        let (body, rest) = rest::lend(body);
        let mut response = match names_one_host(parts.version, &parts.headers) {
            true => self.faces.answer(Request::from_parts(parts, body)).await,
            false => {
                drop(body);
                Problem::invalid("the request must name its host, once").into()
            }
        };
        // If the face closes the connection, the rest need not be read.
        let is_last = response.headers().contains_key(header::CONNECTION);
        if !is_last && rest.finish(awaits_go).await {
            unread.clear();
        } else {
            let headers = response.headers_mut();
            headers.insert(header::CONNECTION, HeaderValue::from_static("close"));
        }
        Ok(response.map(|body| Body::new(Charged::new(body, slot, written.clone()))))
    }

    /// Answers an HTTP/2 request, which counts for its connection until its response has been read.
    async fn answer_held(
        &self,
        activity: &Arc<Activity>,
        written: Written,
        request: Request<Incoming>,
        slot: Slot,
    ) -> Result<Response<Body>, Infallible> {
        let held = activity.begin();
        let is_head = request.method() == Method::HEAD;
        let mut response = Box::pin(self.faces.answer(request.map(Body::new))).await;
        // A response must not close an HTTP/2 connection.
        response.headers_mut().remove(header::CONNECTION);
        if is_head {
            return Ok(without_body(response));
        }
        Ok(response.map(|body| {
            let body = Body::new(activity::Held::new(body, held));
            Body::new(Charged::new(body, slot, written))
        }))
    }
}

/// The response to `HEAD`. Over HTTP/1.1 hyper leaves the body out itself.
fn without_body(response: Response<Body>) -> Response<Body> {
    let (mut head, body) = response.into_parts();
    if let Some(size) = body.size_hint().exact() {
        head.headers
            .entry(header::CONTENT_LENGTH)
            .or_insert_with(|| size.into());
    }
    Response::from_parts(head, Body::empty())
}

/// Returns `true` if a request names exactly one valid host (RFC 9112 section 3.2).
fn names_one_host(version: Version, headers: &HeaderMap) -> bool {
    let mut hosts = headers.get_all(header::HOST).iter();
    match (hosts.next(), hosts.next()) {
        // HTTP/1.0 does not require it.
        (None, _) => version < Version::HTTP_11,
        // Empty if the target has no authority.
        (Some(host), None) => {
            let host = host.as_bytes();
            host.is_empty() || (!host.contains(&b'@') && Authority::try_from(host).is_ok())
        }
        (Some(_), Some(_)) => false,
    }
}

/// Drives a connection to its end. It shuts down gracefully when the host stops or the connection idles or
/// stalls. It ends at once if it stalls again, or has to leave, and soon if the host stops and waits for nothing on it.
async fn drive<C: GracefulConnection, S: Future<Output = ()>>(
    connection: C,
    mut stopping: watch::Receiver<bool>,
    rests: impl Future<Output = ()>,
    stalls: impl Fn() -> S,
    line: &Line,
) -> Result<(), C::Error> {
    let mut connection = pin!(connection);
    tokio::select! {
        ended = connection.as_mut() => return ended,
        () = line.told_to_leave() => return Ok(()),
        _ = stopping.wait_for(|stopping| *stopping) => {}
        () = rests => {}
        () = stalls() => {}
    }
    let is_unneeded = async {
        // It never changes back.
        let _ = stopping.wait_for(|stopping| *stopping).await;
        loop {
            tokio::time::sleep(LAST_WORDS).await;
            if line.may_leave() {
                return;
            }
        }
    };
    // The client opens another connection for its next requests.
    connection.as_mut().graceful_shutdown();
    tokio::select! {
        ended = connection => ended,
        () = line.told_to_leave() => Ok(()),
        () = is_unneeded => Ok(()),
        () = stalls() => Ok(()),
    }
}

/// Waits until an HTTP/2 connection stalls: its client has left a response unread for long, or has no request
/// in flight and reads next to nothing of the remaining output. The client controls the flow-control windows of
/// each stream and of the connection, and one that keeps them shut blocks the output behind them while it still
/// answers pings.
async fn stalls(activity: Arc<Activity>, written: Written, timeout: Duration) {
    // An idle connection has its own timeout, which applies first.
    let span = STALL.max(timeout);
    let mut before = written.bytes();
    loop {
        let then = Instant::now();
        tokio::time::sleep(span).await;
        let now = written.bytes();
        if activity.is_unread_since(then) || (now - before < MIN_TAKEN && activity.is_idle_since(then)) {
            tracing::debug!("connection whose client does not read is ended");
            return;
        }
        before = now;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns the time until a connection stalls whose client reads at this rate, with or without a response.
    async fn stalls_after(has_answer: bool, bytes_a_second: u64) -> Option<Duration> {
        let activity = Arc::new(Activity::default());
        let _held = has_answer.then(|| activity::Held::new(Body::from("answer"), activity.begin()));
        let written = Written::default();
        let begun = Instant::now();
        let takes = written.clone();
        let reader = async move {
            loop {
                // sleep: the reader's pace, in virtual time
                tokio::time::sleep(Duration::from_secs(1)).await;
                takes.add(bytes_a_second);
            }
        };
        tokio::select! {
            () = reader => None,
            () = stalls(Arc::clone(&activity), written, Duration::from_secs(5)) => Some(begun.elapsed()),
            // sleep: longer than any stall, in virtual time
            () = tokio::time::sleep(STALL * 10) => None,
        }
    }

    #[tokio::test(start_paused = true)]
    async fn clients_that_read_nothing_stall_after_a_while() {
        for (has_answer, bytes_a_second) in [(true, 1), (true, 10_000), (false, 1)] {
            let after = stalls_after(has_answer, bytes_a_second).await.expect("it ends");
            assert!(after >= STALL && after <= STALL * 2, "{after:?}");
        }
        assert_eq!(
            stalls_after(false, 1_000).await,
            None,
            "it takes what is left of its answers"
        );
    }

    #[tokio::test(start_paused = true)]
    async fn idle_stream_is_no_stall() {
        let activity = Arc::new(Activity::default());
        let stream = Body::from_stream(futures_util::stream::pending::<
            Result<bytes::Bytes, std::io::Error>,
        >());
        let mut held = activity::Held::new(stream, activity.begin());
        let polled = futures_util::poll!(http_body_util::BodyExt::frame(&mut held));
        assert!(polled.is_pending());
        let stalls = stalls(activity, Written::default(), Duration::from_secs(5));
        assert!(tokio::time::timeout(STALL * 10, stalls).await.is_err());
    }
}
