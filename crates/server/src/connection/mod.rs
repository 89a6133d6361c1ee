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
//! HTTP/2 without a request as well, and one whose client does not read what it asked for; what one connection may have
//! open, unread or unfinished is bounded by the constants below. Whether there is TLS around it is not known here.
//!
//! An answer reaches its client also if it is ready before the request has been read: over HTTP/1.1 the rest is read and
//! dropped, or the connection ends with the answer and lingers; HTTP/2 resets the stream after it, without an error.

/// Hands writes on to the stream that a wrapper of reads is around: all of [`AsyncWrite`] but the end.
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

/// Hands the end of writes on as well.
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
mod pace;
mod rest;
mod stall;

use std::{convert::Infallible, pin::pin, sync::Arc, time::Duration};

use axum::body::Body;
use http::{HeaderMap, HeaderValue, Request, Response, Version, header, uri::Authority};
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
    openwop::Problem,
};

use self::{
    activity::Activity,
    charged::Charged,
    drain::{Draining, Unread},
    first::{Protocol, recognize},
    pace::Paced,
    stall::{STALL, Stalling, Written},
};

pub(crate) use self::crowd::{Bounds, Crowd, Line};

/// What is read ahead of an HTTP/1.1 connection, and the largest head of a request.
const MAX_BUFFER: usize = 32 << 10;
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
/// Streams that a client makes this host reset; more ends its connection.
const MAX_ERROR_RESETS: usize = 64;
/// A client that does not answer a ping is gone.
const PING_INTERVAL: Duration = Duration::from_secs(20);
const PING_TIMEOUT: Duration = Duration::from_secs(20);
/// What a client of HTTP/2 without a request takes at least of what is left while [`STALL`] passes: more than pings are.
const MIN_TAKEN: u64 = 4 << 10;

/// How connections are served.
#[derive(Debug, Clone)]
pub(crate) struct Connections {
    faces: Faces,
    /// Who the client is, by its certificate.
    caller: Option<Certified>,
    /// How long a client may take for the head of a request, and be silent between two.
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

    /// The same for a connection whose client is known by its certificate.
    pub(crate) fn certified(self, caller: Certified) -> Self {
        Self {
            caller: Some(caller),
            ..self
        }
    }

    /// Serves a connection to its end. Once `stopping` is true no new request is taken.
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
        let stream = Paced::new(first::Replayed::new(prefix, stream), line.clone());
        let stream = Stalling::new(stream);
        let written = stream.written();
        let ended = match protocol {
            Protocol::Http1 => {
                let stream = Draining::new(stream);
                let unread = stream.unread();
                // The state of a request is a piece of memory of its own, which a connection without one need not have.
                let service = service_fn(|request| {
                    let begun = self.begin(line, request, 0);
                    Box::pin(self.answer_in_turn(&unread, &written, begun))
                });
                let connection = http1::Builder::new()
                    .timer(TokioTimer::new())
                    .header_read_timeout(self.timeout)
                    .max_buf_size(MAX_BUFFER)
                    .serve_connection(TokioIo::new(stream), service);
                // Its one answer is what is written, and waits there.
                let never = std::future::pending::<()>;
                drive(connection, stopping, never(), never, line).await
            }
            Protocol::Http2 => {
                let activity = Arc::new(Activity::default());
                let idle = Arc::clone(&activity);
                let watched = Arc::clone(&activity);
                let (serves, progress, own) = (self.clone(), written.clone(), line.clone());
                let service = service_fn(move |request| {
                    // Before the task of the request exists: a flood of them holds no more than it is given.
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

    /// Finds the place of a request whose head has been read; or what it is answered at once.
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
        match Slot::take(line, caller.as_ref(), &request, window) {
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

    /// Answers a request.
    async fn answer(&self, request: Request<Body>) -> Response<Body> {
        self.faces.answer(request).await
    }

    /// Answers a request of HTTP/1.1, and sees that the next one can follow, or that the answer says that none can.
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
            true => self.answer(Request::from_parts(parts, body)).await,
            false => {
                drop(body);
                Problem::invalid("the request must name its host, once").into()
            }
        };
        // Whoever ends the connection has their reason not to wait for the rest.
        let is_last = response.headers().contains_key(header::CONNECTION);
        if !is_last && rest.finish(awaits_go).await {
            unread.clear();
        } else {
            let headers = response.headers_mut();
            headers.insert(header::CONNECTION, HeaderValue::from_static("close"));
        }
        Ok(response.map(|body| Body::new(Charged::new(body, slot, written.clone()))))
    }

    /// Answers a request of HTTP/2, which counts for its connection until its answer has been read.
    async fn answer_held(
        &self,
        activity: &Arc<Activity>,
        written: Written,
        request: Request<Incoming>,
        slot: Slot,
    ) -> Result<Response<Body>, Infallible> {
        let held = activity.begin();
        let mut response = Box::pin(self.answer(request.map(Body::new))).await;
        // A connection of HTTP/2 is not closed by one of its answers.
        response.headers_mut().remove(header::CONNECTION);
        Ok(response.map(|body| {
            let body = Body::new(activity::Held::new(body, held));
            Body::new(Charged::new(body, slot, written))
        }))
    }
}

/// Claims that a request says which host it means, and no two (RFC 9112 section 3.2).
fn names_one_host(version: Version, headers: &HeaderMap) -> bool {
    let mut hosts = headers.get_all(header::HOST).iter();
    match (hosts.next(), hosts.next()) {
        // It was not required before.
        (None, _) => version < Version::HTTP_11,
        // Empty where the target has no authority.
        (Some(host), None) => {
            let host = host.as_bytes();
            host.is_empty() || (!host.contains(&b'@') && Authority::try_from(host).is_ok())
        }
        (Some(_), Some(_)) => false,
    }
}

/// Drives a connection to its end; what is in flight finishes once it is told to stop, rests or stalls. One that stalls
/// longer ends at once, and so does one that has to leave.
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
    // Its client opens another for what comes, if it can hear this.
    connection.as_mut().graceful_shutdown();
    tokio::select! {
        ended = connection => ended,
        () = line.told_to_leave() => Ok(()),
        () = stalls() => Ok(()),
    }
}

/// Waits until the client of an HTTP/2 connection has left an answer unread for long; or has asked for nothing, and has
/// taken next to nothing of what there was: each of its streams and the whole have windows that it opens, and one which
/// keeps them shut holds what waits behind them while it answers pings.
async fn stalls(activity: Arc<Activity>, written: Written, timeout: Duration) {
    // A connection at rest has its own time, and is told first.
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

    /// How long a client is borne that has an answer before it, or none, and takes so many bytes a second.
    async fn borne(has_answer: bool, bytes_a_second: u64) -> Option<Duration> {
        let activity = Arc::new(Activity::default());
        let _held = has_answer.then(|| activity::Held::new(Body::from("answer"), activity.begin()));
        let written = Written::default();
        let begun = Instant::now();
        let takes = written.clone();
        let reader = async move {
            loop {
                // sleep: the reader has a pace, in virtual time
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
    async fn who_takes_nothing_is_borne_for_a_while() {
        for (has_answer, bytes_a_second) in [(true, 1), (true, 10_000), (false, 1)] {
            let borne_for = borne(has_answer, bytes_a_second).await.expect("it ends");
            assert!(borne_for >= STALL && borne_for <= STALL * 2, "{borne_for:?}");
        }
        assert_eq!(
            borne(false, 1_000).await,
            None,
            "it takes what is left of its answers"
        );
    }

    #[tokio::test(start_paused = true)]
    async fn a_stream_in_which_nothing_happens_is_no_stall() {
        let activity = Arc::new(Activity::default());
        let stream = Body::from_stream(futures_util::stream::pending::<
            Result<axum::body::Bytes, std::io::Error>,
        >());
        let mut held = activity::Held::new(stream, activity.begin());
        let polled = futures_util::poll!(http_body_util::BodyExt::frame(&mut held));
        assert!(polled.is_pending());
        let stalls = stalls(activity, Written::default(), Duration::from_secs(5));
        assert!(tokio::time::timeout(STALL * 10, stalls).await.is_err());
    }
}
