//! Limits on unauthenticated clients: they can hold little of a host, and nothing that callers need.

use bytes::Bytes;
use futures_util::future::join_all;
use h2::{
    RecvStream,
    client::{self, SendRequest},
};
use http::{Method, Request, Response, StatusCode};
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::{TcpSocket, TcpStream},
};

use crate::{
    http2::{Connection, request, soon},
    support::{Server, config},
};

/// Unauthenticated requests that one HTTP/2 connection may have in flight.
const MAX_STRANGE: usize = 32;

fn anonymous(method: Method, path: &str, media: &str) -> Request<()> {
    Request::builder()
        .method(method)
        .uri(format!("http://test{path}"))
        .header("content-type", media)
        .body(())
        .unwrap()
}

/// Opens a connection whose client grants no flow-control window for any response.
async fn shut(server: &Server) -> SendRequest<Bytes> {
    shut_over(TcpStream::connect(&server.address).await.unwrap()).await
}

async fn shut_over(stream: TcpStream) -> SendRequest<Bytes> {
    let mut builder = client::Builder::new();
    builder.initial_window_size(0);
    let (requests, connection) = builder.handshake(stream).await.unwrap();
    tokio::spawn(connection);
    requests
}

async fn caller_is_answered(server: &Server) {
    let mut connection = Connection::open(server).await;
    let (status, _) = connection.send(request(Method::GET, "/a2a/tasks"), b"").await;
    assert_eq!(status, StatusCode::OK);
}

#[tokio::test]
async fn token_is_checked_before_the_body_is_read() {
    let server = Server::start().await;
    let connection = Connection::open(&server).await;
    // Only the head is sent, and over HTTP/1.1 the length of a body that never comes.
    let answers = (0..MAX_STRANGE).map(|_| async {
        let mut ready = connection.requests().ready().await.unwrap();
        let post = anonymous(Method::POST, "/v1/interrupts/x", "application/json");
        let (response, _sends) = ready.send_request(post, false).unwrap();
        soon(response).await.unwrap().status()
    });
    for status in join_all(answers).await {
        assert_eq!(status, StatusCode::NOT_FOUND);
    }
    let mut stream = TcpStream::connect(&server.address).await.unwrap();
    let head = b"POST /v1/interrupts/x HTTP/1.1\r\nhost: t\r\nexpect: 100-continue\r\ncontent-length: 100000\r\n\r\n";
    stream.write_all(head).await.unwrap();
    let mut line = [0; 12];
    soon(stream.read_exact(&mut line)).await.unwrap();
    assert_eq!(&line, b"HTTP/1.1 404");
}

#[tokio::test]
async fn connection_with_many_unread_responses_is_closed() {
    let server = Server::start().await;
    for path in ["/metrics", "/.well-known/agent-card.json", "/v1/openapi.json"] {
        let requests = shut(&server).await;
        let mut unread = Vec::new();
        let ended = soon(async {
            loop {
                let Ok(mut ready) = requests.clone().ready().await else {
                    return;
                };
                let Ok((response, _)) = ready.send_request(anonymous(Method::GET, path, "text/plain"), true)
                else {
                    return;
                };
                match response.await {
                    // The refusal that closes the connection may still be read.
                    Ok(response) if response.status() == StatusCode::SERVICE_UNAVAILABLE => {}
                    Ok(response) => unread.push(response),
                    Err(_) => return,
                }
            }
        });
        ended.await;
        assert_eq!(unread.len(), MAX_STRANGE, "{path}");
        caller_is_answered(&server).await;
    }
}

#[tokio::test]
async fn connection_of_a_caller_survives_an_unauthenticated_refusal() {
    let server = Server::start().await;
    let requests = shut(&server).await;
    let ask = async |request: Request<()>| {
        let mut ready = requests.clone().ready().await.unwrap();
        let (response, _) = ready.send_request(request, true).unwrap();
        soon(response).await.unwrap()
    };
    let mut unread = vec![ask(request(Method::GET, "/a2a/tasks")).await];
    for _ in 0..MAX_STRANGE {
        unread.push(ask(anonymous(Method::GET, "/metrics", "text/plain")).await);
    }
    let refused = ask(anonymous(Method::GET, "/metrics", "text/plain")).await;
    assert_eq!(refused.status(), StatusCode::SERVICE_UNAVAILABLE);
    assert_eq!(refused.headers()["retry-after"], "1");
    assert!(refused.body().is_end_stream(), "it is a head alone");
    let refused = ask(anonymous(
        Method::POST,
        "/grpc.health.v1.Health/Check",
        "application/grpc",
    ))
    .await;
    assert_eq!(refused.headers()["grpc-status"], "14");
    let answered = ask(request(Method::GET, "/a2a/tasks")).await;
    assert_eq!(answered.status(), StatusCode::OK);
}

#[tokio::test]
async fn public_services_read_no_more_than_they_need() {
    let server = Server::start().await;
    let mut connection = Connection::open(&server).await;
    let message = |n_bytes: usize| {
        let text = vec![b'x'; n_bytes];
        let mut field = vec![0x0a];
        let mut left = n_bytes;
        while left >= 0x80 {
            field.push(u8::try_from(left & 0x7f).unwrap() | 0x80);
            left >>= 7;
        }
        field.push(u8::try_from(left).unwrap());
        field.extend(text);
        let mut framed = vec![0];
        framed.extend(u32::try_from(field.len()).unwrap().to_be_bytes());
        framed.extend(field);
        framed
    };
    for (n_bytes, wanted) in [(0, "0"), (1_000, "5"), (60 << 10, "8")] {
        let body = if n_bytes == 0 {
            vec![0; 5]
        } else {
            message(n_bytes)
        };
        let check = anonymous(Method::POST, "/grpc.health.v1.Health/Check", "application/grpc");
        let (status, mut stream) = connection.send(check, &body).await;
        assert_eq!(status, StatusCode::OK);
        let told = connection.last_head("grpc-status");
        let told = match told {
            Some(told) => told,
            None => {
                while let Some(data) = soon(stream.data()).await {
                    let n = data.unwrap().len();
                    stream.flow_control().release_capacity(n).unwrap();
                }
                let trailers = soon(stream.trailers()).await.unwrap().unwrap();
                trailers["grpc-status"].to_str().unwrap().to_owned()
            }
        };
        assert_eq!(told, wanted, "{n_bytes} bytes");
    }
}

#[tokio::test]
async fn silent_connections_of_an_address_do_not_lock_out_its_callers() {
    let mut config = config();
    config.server.max_unauthenticated_per_address = 4;
    let server = Server::open(config).await;
    let mut known = Connection::open(&server).await;
    let list = || request(Method::GET, "/a2a/tasks");
    assert_eq!(known.send(list(), b"").await.0, StatusCode::OK);

    let mut silent = Vec::new();
    for _ in 0..40 {
        silent.push(TcpStream::connect(&server.address).await.unwrap());
    }
    // Connections beyond the limit are closed at once, since none has been silent for long; the first four
    // stay.
    for stream in &mut silent[4..] {
        let n = soon(stream.read(&mut [0])).await.unwrap_or(0);
        assert_eq!(n, 0);
    }
    assert_eq!(known.send(list(), b"").await.0, StatusCode::OK);
    // A new connection is admitted as soon as one of them has been silent long enough.
    soon(async {
        loop {
            let mut stream = TcpStream::connect(&server.address).await.unwrap();
            let call = b"GET /a2a/tasks HTTP/1.1\r\nhost: t\r\na2a-version: 1.0\r\n\
                authorization: Bearer secret-of-bob-0123456789\r\n\r\n";
            let mut line = [0; 12];
            if stream.write_all(call).await.is_ok() && stream.read_exact(&mut line).await.is_ok() {
                assert_eq!(&line, b"HTTP/1.1 200");
                return;
            }
            // sleep: the server closes connections that come too early
            tokio::time::sleep(std::time::Duration::from_millis(20)).await;
        }
    })
    .await;
}

/// Connects from one of the loopback addresses.
async fn from(server: &Server, n: u8) -> TcpStream {
    let socket = TcpSocket::new_v4().unwrap();
    socket.bind(([127, 0, 1, n], 0).into()).unwrap();
    socket.connect(server.address.parse().unwrap()).await.unwrap()
}

/// The status of an unauthenticated HTTP/1.1 request.
async fn status_over(mut stream: TcpStream, path: &str) -> u16 {
    let head = format!("GET {path} HTTP/1.1\r\nhost: t\r\n\r\n");
    stream.write_all(head.as_bytes()).await.unwrap();
    let mut line = [0; 12];
    soon(stream.read_exact(&mut line)).await.unwrap();
    String::from_utf8_lossy(&line[9..]).parse().unwrap()
}

/// Leaves as many responses unread as an address may; returns `true` if there were any.
async fn leave_unread(server: &Server, n: u8, path: &str, held: &mut Vec<Response<RecvStream>>) -> bool {
    let mut has_any = false;
    loop {
        let requests = shut_over(from(server, n).await).await;
        for _ in 0..MAX_STRANGE {
            let mut ready = requests.clone().ready().await.unwrap();
            let (response, _) = ready
                .send_request(anonymous(Method::GET, path, "text/plain"), true)
                .unwrap();
            let response = soon(response).await.unwrap();
            if response.status() == StatusCode::SERVICE_UNAVAILABLE {
                return has_any;
            }
            has_any = true;
            held.push(response);
        }
    }
}

#[tokio::test]
async fn exhausted_unauthenticated_budget_spares_known_networks_and_probes() {
    const KNOWN: u8 = 250;
    let server = Server::start().await;
    let mut stream = from(&server, KNOWN).await;
    let call = b"GET /a2a/tasks HTTP/1.1\r\nhost: t\r\na2a-version: 1.0\r\n\
        authorization: Bearer secret-of-alice-0123456789\r\n\r\n";
    stream.write_all(call).await.unwrap();
    let mut line = [0; 12];
    soon(stream.read_exact(&mut line)).await.unwrap();
    assert_eq!(&line, b"HTTP/1.1 200");

    let mut held = Vec::new();
    let mut n = 1;
    for path in ["/v1/openapi.json", "/metrics", "/v1/interrupts/x"] {
        // Each time from an address that holds nothing yet.
        while leave_unread(&server, n, path, &mut held).await {
            n += 1;
        }
        n += 1;
    }
    for path in ["/metrics", "/v1/interrupts/x"] {
        assert_eq!(status_over(from(&server, 200).await, path).await, 503, "{path}");
    }
    for path in ["/healthz", "/readyz"] {
        assert_eq!(status_over(from(&server, 200).await, path).await, 200, "{path}");
    }
    assert_eq!(status_over(from(&server, KNOWN).await, "/metrics").await, 200);
    let interrupts = status_over(from(&server, KNOWN).await, "/v1/interrupts/x").await;
    assert_eq!(interrupts, 404);
}
