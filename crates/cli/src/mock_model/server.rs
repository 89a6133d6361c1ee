//! The server of a scripted model: one request, one answer, whole or in pieces.

use std::{
    convert::Infallible,
    fs::OpenOptions,
    io::{self, Write as _},
    net::SocketAddr,
    path::PathBuf,
    sync::Arc,
    time::Duration,
};

use bytes::Bytes;
use futures_util::{StreamExt as _, stream};
use http::{HeaderValue, Method, Request, Response, StatusCode, header};
use http_body_util::{BodyExt, Full, Limited, StreamBody, combinators::BoxBody};
use hyper::{
    body::{Frame, Incoming},
    server::conn::http1,
    service::service_fn,
};
use hyper_util::rt::{TokioIo, TokioTimer};
use serde_json::{Value, json};
use tokio::{
    net::TcpListener,
    sync::{Mutex, Semaphore},
    time::sleep,
};

use super::{
    Heard, anthropic, openai,
    script::{Entry, Play, Script},
};

/// Largest request body, in bytes.
const MAX_BODY: usize = 8 << 20;
/// Connections served at once.
const MAX_CONNECTIONS: usize = 1_000;
/// How long a request may take to arrive.
const HEAD_TIMEOUT: Duration = Duration::from_secs(30);

type Body = BoxBody<Bytes, Infallible>;

/// A wire by its path.
#[derive(Debug, Clone, Copy)]
enum Wire {
    OpenAi,
    Anthropic,
}

pub(crate) struct Server {
    listener: TcpListener,
    shared: Arc<Shared>,
}

struct Shared {
    play: Mutex<Play>,
    /// Where requests are noted, each as a line.
    record: Option<PathBuf>,
}

impl Server {
    /// Listens; nothing is answered yet.
    pub(crate) async fn bind(script: Script, at: SocketAddr, record: Option<PathBuf>) -> io::Result<Self> {
        let shared = Shared {
            play: Mutex::new(Play::new(script)),
            record,
        };
        Ok(Self {
            listener: TcpListener::bind(at).await?,
            shared: Arc::new(shared),
        })
    }

    pub(crate) fn address(&self) -> io::Result<SocketAddr> {
        self.listener.local_addr()
    }
}

/// Answers until it is dropped.
pub(crate) async fn serve(server: Server) {
    let connections = Arc::new(Semaphore::new(MAX_CONNECTIONS));
    loop {
        let Ok(permit) = Arc::clone(&connections).acquire_owned().await else {
            return;
        };
        let Ok((socket, _)) = server.listener.accept().await else {
            // Out of sockets for a moment.
            sleep(Duration::from_millis(50)).await;
            continue;
        };
        let shared = Arc::clone(&server.shared);
        tokio::spawn(async move {
            let service = service_fn(move |request| {
                let shared = Arc::clone(&shared);
                async move { Ok::<_, Infallible>(answer(&shared, request).await) }
            });
            // A client that breaks off is of no interest.
            let _ = http1::Builder::new()
                .timer(TokioTimer::new())
                .header_read_timeout(HEAD_TIMEOUT)
                .serve_connection(TokioIo::new(socket), service)
                .await;
            drop(permit);
        });
    }
}

async fn answer(shared: &Shared, request: Request<Incoming>) -> Response<Body> {
    let wire = match request.uri().path().trim_end_matches('/') {
        "/chat/completions" | "/v1/chat/completions" => Wire::OpenAi,
        "/messages" | "/v1/messages" => Wire::Anthropic,
        path => {
            return whole(
                StatusCode::NOT_FOUND,
                &openai::error(&format!("there is no {path}")),
            );
        }
    };
    if request.method() != Method::POST {
        return failed(wire, StatusCode::METHOD_NOT_ALLOWED, "only POST is answered");
    }
    let key = request.headers().get("idempotency-key");
    let key = key.and_then(|key| key.to_str().ok()).map(str::to_owned);
    let Ok(body) = Limited::new(request.into_body(), MAX_BODY).collect().await else {
        return failed(wire, StatusCode::PAYLOAD_TOO_LARGE, "the request is too large");
    };
    let document: Option<Value> = serde_json::from_slice(&body.to_bytes()).ok();
    let heard = document.as_ref().and_then(|document| match wire {
        Wire::OpenAi => openai::hear(document),
        Wire::Anthropic => anthropic::hear(document),
    });
    let (Some(document), Some(heard)) = (document, heard) else {
        return failed(wire, StatusCode::BAD_REQUEST, "the request is malformed");
    };
    let (index, entry) = {
        let mut play = shared.play.lock().await;
        let found = play.answer(&heard, key.as_deref());
        let index = found.as_ref().map(|(index, _)| *index);
        if let Err(error) = shared.note(wire, index, &document) {
            return failed(
                wire,
                StatusCode::INTERNAL_SERVER_ERROR,
                &format!("record the request: {error}"),
            );
        }
        match found {
            Some(found) => found,
            None => {
                let message = format!(
                    "no entry of the script fits: turn {}, user: {}",
                    heard.turn, heard.user
                );
                return failed(wire, StatusCode::BAD_REQUEST, &message);
            }
        }
    };
    let pause = Duration::from_millis(entry.delay_ms);
    if let Some(status) = entry.status {
        sleep(pause).await;
        let status = StatusCode::from_u16(status).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
        let mut response = failed(wire, status, "the script says so");
        if let Some(seconds) = entry.retry_after {
            response.headers_mut().insert(header::RETRY_AFTER, seconds.into());
        }
        return response;
    }
    match heard.streams {
        true => streamed(wire, &heard, index, &entry, pause),
        false => {
            sleep(pause).await;
            let answer = match wire {
                Wire::OpenAi => openai::answer(&heard, index, &entry),
                Wire::Anthropic => anthropic::answer(&heard, index, &entry),
            };
            whole(StatusCode::OK, &answer)
        }
    }
}

impl Shared {
    fn note(&self, wire: Wire, index: Option<usize>, request: &Value) -> io::Result<()> {
        let Some(path) = &self.record else { return Ok(()) };
        let wire = match wire {
            Wire::OpenAi => "openai",
            Wire::Anthropic => "anthropic",
        };
        let line = json!({ "wire": wire, "reply": index, "request": request });
        let mut file = OpenOptions::new().append(true).create(true).open(path)?;
        file.write_all(format!("{line}\n").as_bytes())
    }
}

/// A frame of a stream.
#[derive(Debug)]
pub(super) struct StreamFrame {
    /// It has a part of the answer, before which the script may pause.
    pub(super) is_piece: bool,
    pub(super) text: String,
}

fn streamed(wire: Wire, heard: &Heard, index: usize, entry: &Entry, pause: Duration) -> Response<Body> {
    let frames = match wire {
        Wire::OpenAi => openai::events(heard, index, entry),
        Wire::Anthropic => anthropic::events(heard, index, entry),
    };
    let body = StreamBody::new(stream::iter(frames).then(move |frame| async move {
        if frame.is_piece && !pause.is_zero() {
            sleep(pause).await;
        }
        Ok::<_, Infallible>(Frame::data(Bytes::from(frame.text)))
    }));
    let mut response = Response::new(BodyExt::boxed(body));
    response.headers_mut().insert(
        header::CONTENT_TYPE,
        HeaderValue::from_static("text/event-stream"),
    );
    response
}

fn failed(wire: Wire, status: StatusCode, message: &str) -> Response<Body> {
    let error = match wire {
        Wire::OpenAi => openai::error(message),
        Wire::Anthropic => anthropic::error(message),
    };
    whole(status, &error)
}

fn whole(status: StatusCode, document: &Value) -> Response<Body> {
    let body = Full::new(Bytes::from(document.to_string()));
    let mut response = Response::new(BodyExt::boxed(body));
    *response.status_mut() = status;
    response
        .headers_mut()
        .insert(header::CONTENT_TYPE, HeaderValue::from_static("application/json"));
    response
}
