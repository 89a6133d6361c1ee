//! HTTP/2 without TLS on the same port as HTTP/1.1, with well-behaved and hostile clients.

use std::{
    future::{Future, poll_fn},
    time::Duration,
};

use bytes::Bytes;
use h2::{Reason, client};
use http::{HeaderMap, HeaderValue, Method, Request, StatusCode};
use serde_json::{Value, json};
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::TcpStream,
    task::JoinHandle,
};
use wopr_server::config::Period;

use crate::support::{Server, config};

/// Timeout after which a test has failed.
const LONG: Duration = Duration::from_secs(20);

pub(crate) async fn soon<T>(future: impl Future<Output = T>) -> T {
    tokio::time::timeout(LONG, future)
        .await
        .expect("it happens in time")
}

/// A connection driven by its own task.
pub(crate) struct Connection {
    requests: client::SendRequest<Bytes>,
    driver: JoinHandle<Result<(), h2::Error>>,
    last: HeaderMap,
}

impl Connection {
    pub(crate) async fn open(server: &Server) -> Self {
        let stream = TcpStream::connect(&server.address).await.unwrap();
        let (requests, connection) = client::handshake(stream).await.unwrap();
        let driver = tokio::spawn(connection);
        Self {
            requests,
            driver,
            last: HeaderMap::new(),
        }
    }

    /// Sends requests over the same connection.
    pub(crate) fn requests(&self) -> client::SendRequest<Bytes> {
        self.requests.clone()
    }

    /// A header field of the last response.
    pub(crate) fn last_head(&self, name: &str) -> Option<String> {
        Some(self.last.get(name)?.to_str().unwrap().to_owned())
    }

    pub(crate) async fn send(&mut self, request: Request<()>, body: &[u8]) -> (StatusCode, h2::RecvStream) {
        let mut ready = self.requests.clone().ready().await.unwrap();
        let (response, mut sends) = ready.send_request(request, body.is_empty()).unwrap();
        if !body.is_empty() {
            // A refusal may come before everything was sent.
            let _ = sends.send_data(Bytes::copy_from_slice(body), true);
        }
        let response = soon(response).await.unwrap();
        assert!(response.headers().get("connection").is_none());
        self.last = response.headers().clone();
        (response.status(), response.into_body())
    }

    async fn json(&mut self, request: Request<()>, body: &[u8]) -> (StatusCode, Value) {
        let (status, mut stream) = self.send(request, body).await;
        let mut bytes = Vec::new();
        while let Some(data) = soon(stream.data()).await {
            let data = data.unwrap();
            let _ = stream.flow_control().release_capacity(data.len());
            bytes.extend_from_slice(&data);
        }
        (status, serde_json::from_slice(&bytes).unwrap())
    }
}

pub(crate) fn request(method: Method, path: &str) -> Request<()> {
    Request::builder()
        .method(method)
        .uri(format!("http://test{path}"))
        .header("authorization", "Bearer secret-of-alice-0123456789")
        .header("a2a-version", "1.0")
        .header("content-type", "application/json")
        .body(())
        .unwrap()
}

fn message(id: &str, skill: &str) -> Vec<u8> {
    let message = json!({"message": {"messageId": id, "role": "ROLE_USER", "parts": [{"text": "x"}],
        "metadata": {"skillId": skill}}});
    message.to_string().into_bytes()
}

#[tokio::test]
async fn a_connection_carries_many_requests() {
    let server = Server::start().await;
    let mut connection = Connection::open(&server).await;
    let (status, list) = connection.json(request(Method::GET, "/a2a/tasks"), b"").await;
    assert_eq!((status, &list["totalSize"]), (StatusCode::OK, &json!(0)));
    // A stream stays open while other requests are served.
    let (status, mut stream) = connection
        .send(
            request(Method::POST, "/a2a/message:stream"),
            &message("s", "slow"),
        )
        .await;
    assert_eq!(status, StatusCode::OK);
    let first = soon(stream.data()).await.unwrap().unwrap();
    assert!(first.starts_with(b"data: {\"task\""), "{first:?}");
    for n in 0..20 {
        let (status, sent) = connection
            .json(
                request(Method::POST, "/a2a/message:send"),
                &message(&format!("m{n}"), "hello"),
            )
            .await;
        assert_eq!(status, StatusCode::OK);
        assert_eq!(sent["task"]["status"]["state"], "TASK_STATE_COMPLETED");
    }
    let huge = vec![b' '; (10 << 20) + 1];
    let (status, refused) = connection
        .json(request(Method::POST, "/a2a/message:send"), &huge)
        .await;
    assert_eq!(
        (status, &refused["error"]["code"]),
        (StatusCode::PAYLOAD_TOO_LARGE, &json!(413))
    );
    // The other face is served too.
    let (status, _) = connection.json(request(Method::GET, "/v1/runs"), b"").await;
    assert_eq!(status, StatusCode::OK);
}

#[tokio::test]
async fn response_to_head_has_no_body() {
    let server = Server::start().await;
    let mut connection = Connection::open(&server).await;
    for path in [
        "/healthz",
        "/.well-known/agent-card.json",
        "/v1/runs",
        "/v1/openapi.json",
        "/v1/nothing",
    ] {
        let (wanted, mut body) = connection.send(request(Method::GET, path), b"").await;
        let mut length = 0;
        while let Some(data) = soon(body.data()).await {
            let data = data.unwrap();
            let _ = body.flow_control().release_capacity(data.len());
            length += data.len();
        }
        let (status, mut body) = connection.send(request(Method::HEAD, path), b"").await;
        assert_eq!(status, wanted, "{path}");
        assert_eq!(
            connection.last_head("content-length"),
            Some(length.to_string()),
            "{path}"
        );
        assert!(
            body.is_end_stream() && soon(body.data()).await.is_none(),
            "{path}"
        );
    }
    // A stream would have no end.
    let (_, sent) = connection
        .json(request(Method::POST, "/a2a/message:send"), &message("m", "hello"))
        .await;
    let path = format!("/v1/runs/{}/events", sent["task"]["id"].as_str().unwrap());
    let (status, mut body) = connection.send(request(Method::HEAD, &path), b"").await;
    assert_eq!(status, StatusCode::OK);
    assert!(soon(body.data()).await.is_none());
}

#[tokio::test]
async fn refusal_waits_for_no_body_and_keeps_the_connection_open() {
    let server = Server::start().await;
    let mut connection = Connection::open(&server).await;
    for path in ["/a2a/message:send", "/v1/runs"] {
        let mut refused = request(Method::POST, path);
        let nobody = HeaderValue::from_static("Bearer nobody");
        refused.headers_mut().insert("authorization", nobody);
        let mut ready = connection.requests.clone().ready().await.unwrap();
        let (response, mut sends) = ready.send_request(refused, false).unwrap();
        let response = soon(response).await.unwrap();
        assert_eq!(response.status(), StatusCode::UNAUTHORIZED);
        let reset = soon(poll_fn(|cx| sends.poll_reset(cx))).await;
        assert_eq!(reset.unwrap(), Reason::NO_ERROR, "the answer stands");
    }
    let (status, _) = connection.json(request(Method::GET, "/v1/runs"), b"").await;
    assert_eq!(status, StatusCode::OK);
}

#[tokio::test]
async fn shutdown_lets_connections_finish() {
    let server = Server::start().await;
    let mut connection = Connection::open(&server).await;
    let (_, mut stream) = connection
        .send(
            request(Method::POST, "/a2a/message:stream"),
            &message("s", "slow"),
        )
        .await;
    soon(stream.data()).await.unwrap().unwrap();
    let idle = Connection::open(&server).await;
    let silent = TcpStream::connect(&server.address).await.unwrap();
    soon(server.stop()).await;
    while let Some(data) = soon(stream.data()).await {
        data.unwrap();
    }
    drop(connection.requests);
    soon(connection.driver).await.unwrap().unwrap();
    soon(idle.driver).await.unwrap().unwrap();
    drop(silent);
}

#[tokio::test]
async fn idle_connection_is_closed() {
    let mut config = config();
    config.server.request_timeout = "200ms".parse::<Period>().unwrap();
    let server = Server::open(config).await;
    for first in [
        &b""[..],
        b"P",
        b"PRI * HTTP/2.0\r\n",
        b"GET / HTTP/1.1\r\nhost: x\r\n",
    ] {
        let mut stream = TcpStream::connect(&server.address).await.unwrap();
        stream.write_all(first).await.unwrap();
        let mut rest = Vec::new();
        let _ = soon(stream.read_to_end(&mut rest)).await;
    }
    // An HTTP/2 connection without requests is shut down; one with an open stream is not.
    let mut busy = Connection::open(&server).await;
    let (_, mut stream) = busy
        .send(
            request(Method::POST, "/a2a/message:stream"),
            &message("s", "slow"),
        )
        .await;
    soon(stream.data()).await.unwrap().unwrap();
    let idle = Connection::open(&server).await;
    soon(idle.driver).await.unwrap().unwrap();
    assert!(!busy.driver.is_finished());
    let (status, _) = busy.json(request(Method::GET, "/a2a/tasks"), b"").await;
    assert_eq!(status, StatusCode::OK);
}

#[tokio::test]
async fn oversized_header_is_refused() {
    let server = Server::start().await;
    let connection = Connection::open(&server).await;
    let mut large = request(Method::GET, "/a2a/tasks");
    large
        .headers_mut()
        .insert("x-large", "x".repeat(64 << 10).parse().unwrap());
    let mut ready = connection.requests.clone().ready().await.unwrap();
    let refused = match ready.send_request(large, true) {
        Ok((response, _)) => soon(response)
            .await
            .map_or(true, |response| !response.status().is_success()),
        Err(_) => true,
    };
    assert!(refused);
    let mut another = Connection::open(&server).await;
    assert_eq!(
        another.json(request(Method::GET, "/a2a/tasks"), b"").await.0,
        StatusCode::OK
    );
}

#[tokio::test]
async fn rapid_resets_do_not_harm_other_clients() {
    let server = Server::start().await;
    let connection = Connection::open(&server).await;
    let mut n = 0;
    // The client reads nothing, so the host keeps getting requests whose responses nobody wants.
    let ended = soon(async {
        loop {
            let Ok(mut ready) = connection.requests.clone().ready().await else {
                break;
            };
            for _ in 0..50 {
                let Ok((_, mut sends)) = ready.send_request(request(Method::GET, "/a2a/tasks"), false) else {
                    return n;
                };
                sends.send_reset(Reason::CANCEL);
                n += 1;
            }
            tokio::task::yield_now().await;
            if n >= 20_000 {
                break;
            }
        }
        n
    })
    .await;
    // Whether or not the connection was closed, other clients are not affected.
    assert!(ended > 0);
    let mut another = Connection::open(&server).await;
    assert_eq!(
        another.json(request(Method::GET, "/a2a/tasks"), b"").await.0,
        StatusCode::OK
    );
}

fn frame(kind: u8, flags: u8, stream: u32, payload: &[u8]) -> Vec<u8> {
    let length = u32::try_from(payload.len()).unwrap().to_be_bytes();
    let mut frame = length[1..].to_vec();
    frame.extend([kind, flags]);
    frame.extend(stream.to_be_bytes());
    frame.extend(payload);
    frame
}

#[tokio::test]
async fn frame_floods_do_not_harm_other_clients() {
    const PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";
    let server = Server::start().await;
    let settings = frame(4, 0, 0, b"");
    for (what, flood) in [
        ("pings", frame(6, 0, 0, &[7; 8]).repeat(20_000)),
        ("settings", settings.repeat(20_000)),
        ("empty data", frame(0, 0, 1, b"").repeat(20_000)),
        (
            "headers without end",
            [
                frame(1, 0, 1, &[0x82]),
                frame(9, 0, 1, &[0x82; 8_000]).repeat(200),
            ]
            .concat(),
        ),
        (
            "window updates",
            frame(8, 0, 0, &0x7fff_ffff_u32.to_be_bytes()).repeat(10),
        ),
        (
            "noise",
            (0..200_000_u32)
                .map(|n| (n.wrapping_mul(2_654_435_761) >> 24) as u8)
                .collect(),
        ),
    ] {
        let mut stream = TcpStream::connect(&server.address).await.unwrap();
        let bytes = [PREFACE, &settings, &flood].concat();
        // The client reads nothing meanwhile, so responses pile up or the host stops reading; either is fine.
        let _ = tokio::time::timeout(Duration::from_secs(2), stream.write_all(&bytes)).await;
        let mut another = Connection::open(&server).await;
        let (status, _) = another.json(request(Method::GET, "/a2a/tasks"), b"").await;
        assert_eq!(status, StatusCode::OK, "{what}");
    }
}

#[tokio::test]
async fn stalled_reader_blocks_only_itself() {
    let server = Server::start().await;
    let mut connection = Connection::open(&server).await;
    let large = "x".repeat(2 << 20);
    let body = json!({"message": {"messageId": "large", "role": "ROLE_USER", "parts": [{"text": large}],
        "metadata": {"skillId": "hello"}}});
    // The response contains the text twice, and the client does not read it.
    let (status, unread) = connection
        .send(
            request(Method::POST, "/a2a/message:send"),
            body.to_string().as_bytes(),
        )
        .await;
    assert_eq!(status, StatusCode::OK);
    let mut another = Connection::open(&server).await;
    for _ in 0..20 {
        assert_eq!(
            another.json(request(Method::GET, "/a2a/tasks"), b"").await.0,
            StatusCode::OK
        );
    }
    drop(unread);
}
