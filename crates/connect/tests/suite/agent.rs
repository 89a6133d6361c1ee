//! A remote agent of a test: a server of HTTP/1.1 and HTTP/2, in plain text or over TLS, with one handler for all
//! requests.

use std::{convert::Infallible, io, net::SocketAddr, sync::Arc};

use bytes::Bytes;
use futures_util::{StreamExt as _, stream};
use http::{HeaderMap, HeaderValue, Response, StatusCode, Version};
use http_body_util::{BodyExt as _, Full, StreamBody, combinators::UnsyncBoxBody};
use hyper::{
    body::{Frame, Incoming},
    service::service_fn,
};
use hyper_util::{
    rt::{TokioExecutor, TokioIo},
    server::conn::auto,
};
use serde_json::{Value, json};
use tokio::{
    io::{AsyncRead, AsyncReadExt as _, AsyncWrite},
    net::TcpListener,
    sync::mpsc,
    task::{JoinHandle, JoinSet},
};
use tokio_rustls::TlsAcceptor;
use wopr_connect::{
    a2a::{Agent as Called, Call, Client, Error, Peer, Wanted},
    egress::{Gate, Limits},
};
use wopr_wire::{
    a2a::{
        method::{Operation, Version as Protocol},
        model::{Message, Part, Role, SendMessageConfiguration, SendMessageRequest},
        protobuf,
    },
    json::Object,
};

use crate::peer::{Answers, gate_with, limits};

pub(crate) type Reply = Response<UnsyncBoxBody<Bytes, io::Error>>;

/// A request that an agent received.
#[derive(Debug, Clone)]
pub(crate) struct Seen {
    pub(crate) path: String,
    pub(crate) version: Version,
    pub(crate) headers: HeaderMap,
    pub(crate) body: Bytes,
    /// The agent's own origin.
    pub(crate) origin: String,
    /// The other end of the connection.
    pub(crate) from: SocketAddr,
}

impl Seen {
    pub(crate) fn header(&self, name: &str) -> &str {
        let value = self.headers.get(name).map(|value| value.to_str().unwrap());
        value.unwrap_or_default()
    }

    pub(crate) fn json(&self) -> Value {
        serde_json::from_slice(&self.body).unwrap()
    }
}

pub(crate) struct Agent {
    pub(crate) address: SocketAddr,
    scheme: &'static str,
    seen: mpsc::UnboundedReceiver<Seen>,
    serving: JoinHandle<()>,
}

impl Agent {
    pub(crate) async fn start(handle: impl Fn(&Seen) -> Reply + Send + Sync + 'static) -> Self {
        Self::start_over(None, handle).await
    }

    /// An agent that speaks TLS if it has an acceptor.
    pub(crate) async fn start_over(
        tls: Option<TlsAcceptor>,
        handle: impl Fn(&Seen) -> Reply + Send + Sync + 'static,
    ) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let scheme = if tls.is_some() { "https" } else { "http" };
        let origin = format!("{scheme}://{address}");
        let (tell, seen) = mpsc::unbounded_channel();
        let handle: Handle = Arc::new(move |seen| {
            let _ = tell.send(seen.clone());
            handle(seen)
        });
        let serving = tokio::spawn(async move {
            let mut connections = JoinSet::new();
            while let Ok((stream, from)) = listener.accept().await {
                let (handle, origin, tls) = (Arc::clone(&handle), origin.clone(), tls.clone());
                connections.spawn(async move {
                    let Some(tls) = tls else {
                        return serve(stream, from, handle, origin).await;
                    };
                    match tls.accept(stream).into_fallible().await {
                        Ok(stream) => serve(stream, from, handle, origin).await,
                        // Until the client has read why and closed the connection.
                        Err((_, mut stream)) => while stream.read(&mut [0; 512]).await.unwrap_or(0) > 0 {},
                    }
                });
            }
        });
        Self {
            address,
            scheme,
            seen,
            serving,
        }
    }

    /// An agent that answers calls at these interfaces; the handler sees no requests of the card.
    pub(crate) async fn with_card(
        interfaces: &'static [(&'static str, &'static str, &'static str)],
        handle: impl Fn(&Seen) -> Reply + Send + Sync + 'static,
    ) -> Self {
        Self::start(move |seen| match seen.path.as_str() {
            "/.well-known/agent-card.json" => json_reply(&card(&seen.origin, interfaces)),
            _ => handle(seen),
        })
        .await
    }

    pub(crate) fn origin(&self) -> String {
        format!("{}://{}", self.scheme, self.address)
    }

    /// Closes the port and the connections.
    pub(crate) async fn stop(mut self) {
        self.serving.abort();
        let _ = (&mut self.serving).await;
    }

    pub(crate) fn peer(&self) -> Peer {
        Peer::new("planner", self.origin().parse().unwrap())
    }

    /// Finds the agent by its card.
    pub(crate) async fn call(&self, call: Call) -> Result<Called, Error> {
        let client = Client::new(open_gate(), [self.peer()]);
        client.agent("planner", Wanted::default(), call).await
    }

    /// Returns the requests so far.
    pub(crate) fn seen(&mut self) -> Vec<Seen> {
        std::iter::from_fn(|| self.seen.try_recv().ok()).collect()
    }

    /// Returns the requests so far, without those of the card.
    pub(crate) fn calls(&mut self) -> Vec<Seen> {
        let seen = self.seen().into_iter();
        seen.filter(|seen| !seen.path.starts_with("/.well-known"))
            .collect()
    }
}

type Handle = Arc<dyn Fn(&Seen) -> Reply + Send + Sync>;

async fn serve(
    stream: impl AsyncRead + AsyncWrite + Unpin + Send + 'static,
    from: SocketAddr,
    handle: Handle,
    origin: String,
) {
    let service = service_fn(move |request: http::Request<Incoming>| {
        let (handle, origin) = (Arc::clone(&handle), origin.clone());
        async move {
            let (head, body) = request.into_parts();
            let seen = Seen {
                path: head.uri.path().to_owned(),
                version: head.version,
                headers: head.headers,
                body: body.collect().await.unwrap().to_bytes(),
                origin,
                from,
            };
            Ok::<_, Infallible>(handle(&seen))
        }
    });
    let server = auto::Builder::new(TokioExecutor::new());
    let _ = server.serve_connection(TokioIo::new(stream), service).await;
}

impl Drop for Agent {
    fn drop(&mut self) {
        self.serving.abort();
    }
}

/// A gate that allows loopback.
pub(crate) fn open_gate() -> Gate {
    gate_with("127.0.0.0/8", Limits { ..limits() }, Answers::new(&[]))
}

pub(crate) fn card(origin: &str, interfaces: &[(&str, &str, &str)]) -> Value {
    let interfaces: Vec<_> = interfaces
        .iter()
        .map(|(path, binding, version)| {
            let url = if path.contains("://") {
                (*path).to_owned()
            } else {
                format!("{origin}{path}")
            };
            json!({"url": url, "protocolBinding": binding, "protocolVersion": version})
        })
        .collect();
    json!({
        "name": "n", "description": "d", "version": "1", "capabilities": {"streaming": true}, "skills": [],
        "defaultInputModes": ["text/plain"], "defaultOutputModes": ["text/plain"],
        "supportedInterfaces": interfaces,
    })
}

pub(crate) fn reply(status: u16, media: &'static str, body: impl Into<Bytes>) -> Reply {
    let body = Full::new(body.into()).map_err(|never| match never {});
    let mut reply = Response::new(body.boxed_unsync());
    *reply.status_mut() = StatusCode::from_u16(status).unwrap();
    let media = HeaderValue::from_static(media);
    reply.headers_mut().insert("content-type", media);
    reply
}

pub(crate) fn json_reply(document: &Value) -> Reply {
    reply(200, "application/json", document.to_string())
}

pub(crate) fn with_header(mut reply: Reply, name: &'static str, value: &'static str) -> Reply {
    reply.headers_mut().insert(name, HeaderValue::from_static(value));
    reply
}

/// The result of a JSON-RPC call.
pub(crate) fn rpc_reply(result: &Value) -> Reply {
    json_reply(&json!({"jsonrpc": "2.0", "id": 1, "result": result}))
}

/// A body of these chunks, which then ends.
pub(crate) fn chunked(media: &'static str, chunks: Vec<Bytes>) -> Reply {
    streamed(media, stream::iter(chunks).map(|chunk| Ok(Frame::data(chunk))))
}

/// A body of these chunks, which then neither ends nor goes on.
pub(crate) fn stalled(media: &'static str, chunks: Vec<Bytes>) -> Reply {
    let chunks = stream::iter(chunks).map(|chunk| Ok(Frame::data(chunk)));
    streamed(media, chunks.chain(stream::pending()))
}

/// A body of this chunk again and again.
pub(crate) fn endless(media: &'static str, chunk: Bytes) -> Reply {
    streamed(media, stream::repeat_with(move || Ok(Frame::data(chunk.clone()))))
}

pub(crate) fn streamed(
    media: &'static str,
    frames: impl futures_util::Stream<Item = io::Result<Frame<Bytes>>> + Send + 'static,
) -> Reply {
    let mut reply = reply(200, media, "");
    *reply.body_mut() = StreamBody::new(frames).boxed_unsync();
    reply
}

/// A gRPC reply: the messages, and the status in the trailers.
pub(crate) fn grpc_reply(messages: &[Bytes], status: &'static str) -> Reply {
    let mut frames: Vec<io::Result<Frame<Bytes>>> = Vec::new();
    for message in messages {
        frames.push(Ok(Frame::data(message.clone())));
    }
    let mut trailers = HeaderMap::new();
    trailers.insert("grpc-status", HeaderValue::from_static(status));
    frames.push(Ok(Frame::trailers(trailers)));
    streamed("application/grpc", stream::iter(frames))
}

/// A message of a gRPC reply.
pub(crate) fn grpc_message(version: Protocol, operation: Operation, document: &Value) -> Bytes {
    let response = protobuf::method(version, operation).unwrap().response;
    let document: &Object = document.as_object().unwrap();
    let message = protobuf::write(response, document).unwrap();
    let mut framed = vec![0];
    framed.extend_from_slice(&u32::try_from(message.len()).unwrap().to_be_bytes());
    framed.extend_from_slice(&message);
    framed.into()
}

/// A task in the form of 1.0.
pub(crate) fn task() -> Value {
    json!({"id": "t", "contextId": "c", "status": {"state": "TASK_STATE_WORKING"}})
}

pub(crate) fn message() -> SendMessageRequest {
    SendMessageRequest {
        tenant: None,
        message: Message::new("m-1", Role::User, vec![Part::text("hi")]),
        configuration: SendMessageConfiguration {
            return_immediately: true,
            ..SendMessageConfiguration::default()
        },
        metadata: Object::new(),
    }
}
