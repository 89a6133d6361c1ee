//! Responses that are ready before their request has arrived: they reach the client, and the connection stays
//! open or announces that it closes.

use std::{
    net::SocketAddr,
    time::{Duration, Instant},
};

use tokio::{
    io::{AsyncBufReadExt as _, AsyncReadExt as _, AsyncWriteExt as _, BufReader},
    net::TcpStream,
};

use crate::{
    client::Reply,
    server::{ALICE, READER, Server},
};

/// Upper bound of any wait in these tests.
const TIMEOUT: Duration = Duration::from_secs(20);

/// A connection for sequential requests that are written in arbitrary pieces.
struct Connection(BufReader<TcpStream>);

impl Connection {
    async fn open(address: SocketAddr) -> Self {
        Self(BufReader::new(TcpStream::connect(address).await.unwrap()))
    }

    async fn write(&mut self, bytes: impl AsRef<[u8]>) {
        self.0.write_all(bytes.as_ref()).await.unwrap();
    }

    /// Reads one response and leaves the bytes after it.
    async fn answer(&mut self) -> Reply {
        let reads = async {
            let mut head = String::new();
            while !head.ends_with("\r\n\r\n") {
                assert_ne!(self.0.read_line(&mut head).await.unwrap(), 0, "cut off: {head:?}");
            }
            let mut bytes = head.into_bytes();
            let length = Reply::parse(&bytes).header("content-length").map(str::to_owned);
            let mut body = vec![0; length.map_or(0, |length| length.parse().unwrap())];
            self.0.read_exact(&mut body).await.unwrap();
            bytes.extend(body);
            Reply::parse(&bytes)
        };
        tokio::time::timeout(TIMEOUT, reads)
            .await
            .expect("an answer in time")
    }

    /// Waits until the server closes its write side.
    async fn ended(&mut self) {
        let mut rest = Vec::new();
        let read = tokio::time::timeout(TIMEOUT, self.0.read_to_end(&mut rest)).await;
        assert_eq!(read.expect("an end in time").unwrap(), 0, "{rest:?}");
    }
}

fn head(target: &str, key: &str, fields: &str) -> String {
    format!(
        "{target} HTTP/1.1\r\nhost: t\r\nauthorization: Bearer {key}\r\n\
         content-type: application/json\r\n{fields}\r\n"
    )
}

/// Requests that are answered without reading their body.
const UNREAD: [(&str, &str, u16); 9] = [
    ("POST /v1/runs", "nobody", 401),
    ("POST /v1/runs", READER, 403),
    ("POST /v1/nothing", ALICE, 404),
    ("POST /nothing", "nobody", 404),
    ("PUT /v1/runs", ALICE, 405),
    ("POST /v1/webhooks", ALICE, 501),
    ("GET /v1/runs", ALICE, 200),
    ("GET /healthz", ALICE, 200),
    ("POST /a2a", "nobody", 401),
];

#[tokio::test]
async fn connection_stays_open_after_a_late_body() {
    let server = Server::start().await;
    for (target, key, status) in UNREAD {
        let mut connection = Connection::open(server.address).await;
        for (fields, body) in [
            ("content-length: 13\r\n", "{\"a\": \"body\"}"),
            ("transfer-encoding: chunked\r\n", "4\r\nbody\r\n0\r\n\r\n"),
        ] {
            connection.write(head(target, key, fields)).await;
            // sleep: the body comes later than a refusal takes
            tokio::time::sleep(Duration::from_millis(100)).await;
            connection.write(body).await;
            let next = head("GET /v1/workflows", ALICE, "");
            connection.write(next).await;
            let refused = connection.answer().await;
            assert_eq!(refused.status, status, "{target}");
            assert_eq!(refused.header("connection"), None, "{target}");
            assert_eq!(connection.answer().await.status, 200, "{target}");
        }
    }
}

#[tokio::test]
async fn client_that_sends_everything_first_gets_its_response() {
    let server = Server::start().await;
    let body = vec![b' '; 1 << 16];
    let n_pieces = 400;
    let fields = format!("content-length: {}\r\n", n_pieces * body.len());
    let chunked = "transfer-encoding: chunked\r\n".to_owned();
    for (target, key, status) in [
        ("POST /v1/runs", "nobody", 401),
        ("POST /v1/runs", ALICE, 413),
        ("POST /a2a", "nobody", 401),
        ("POST /a2a", ALICE, 413),
    ] {
        for fields in [&fields, &chunked] {
            let mut connection = Connection::open(server.address).await;
            connection.write(head(target, key, fields)).await;
            for _ in 0..n_pieces {
                if *fields == chunked {
                    connection.write("10000\r\n").await;
                }
                connection.write(&body).await;
                if *fields == chunked {
                    connection.write("\r\n").await;
                }
            }
            let refused = connection.answer().await;
            assert_eq!(refused.status, status, "{target} {fields}");
            assert_eq!(refused.header("connection"), Some("close"), "{target} {fields}");
            connection.ended().await;
        }
    }
}

#[tokio::test]
async fn missing_body_does_not_delay_the_refusal() {
    let server = Server::start().await;
    for (target, key, length, status) in [
        ("POST /v1/runs", ALICE, 1_u64 << 40, 413),
        ("POST /a2a", ALICE, 1 << 40, 413),
        ("POST /v1/runs", "nobody", 1 << 40, 401),
        ("POST /v1/runs", "nobody", 10, 401),
    ] {
        let begun = Instant::now();
        let mut connection = Connection::open(server.address).await;
        let fields = format!("content-length: {length}\r\n");
        connection.write(head(target, key, &fields)).await;
        let refused = connection.answer().await;
        assert_eq!(
            (refused.status, refused.header("connection")),
            (status, Some("close"))
        );
        connection.ended().await;
        // A large body is refused at once; a small one may still arrive within two seconds.
        assert!(begun.elapsed() < Duration::from_secs(4), "{target} {length}");
    }
}

#[tokio::test]
async fn slow_body_does_not_keep_the_connection_open() {
    let server = Server::start().await;
    let begun = Instant::now();
    let stream = TcpStream::connect(server.address).await.unwrap();
    let (reading, mut writing) = stream.into_split();
    let head = head("POST /v1/runs", "nobody", "content-length: 100000\r\n");
    writing.write_all(head.as_bytes()).await.unwrap();
    let drips = async {
        while writing.write_all(b" ").await.is_ok() {
            // sleep: the client is slow
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    };
    let reads = async {
        let mut lines = BufReader::new(reading).lines();
        let status = lines.next_line().await.unwrap().unwrap();
        assert!(status.starts_with("HTTP/1.1 401 "), "{status}");
    };
    let both = async { tokio::join!(drips, reads) };
    let ended = tokio::time::timeout(TIMEOUT, both).await;
    ended.expect("the connection ends");
    // Two seconds to read the rest, five for the drain.
    assert!(begun.elapsed() > Duration::from_secs(6));
}

#[tokio::test]
async fn sends_100_continue_only_if_body_is_read() {
    let server = Server::start().await;
    let fields = "content-length: 34\r\nexpect: 100-continue\r\n";
    for (target, key, status) in UNREAD {
        let mut connection = Connection::open(server.address).await;
        connection.write(head(target, key, fields)).await;
        let refused = connection.answer().await;
        assert_eq!(
            (refused.status, refused.header("connection")),
            (status, Some("close"))
        );
        connection.ended().await;
    }
    let mut connection = Connection::open(server.address).await;
    connection.write(head("POST /v1/runs", ALICE, fields)).await;
    assert_eq!(connection.answer().await.status, 100);
    connection.write("{\"workflowId\": \"conformance-noop\"}").await;
    assert_eq!(connection.answer().await.status, 201);
}

#[tokio::test]
async fn request_must_name_its_host_once() {
    let server = Server::start().await;
    for (fields, status) in [
        ("", 400),
        ("host: a\r\nhost: a\r\n", 400),
        ("host: a b\r\n", 400),
        ("host: a@b\r\n", 400),
        ("host: \r\n", 200),
        ("host: [::1]:8080\r\n", 200),
    ] {
        for target in ["/healthz", "/.well-known/agent-card.json"] {
            let mut connection = Connection::open(server.address).await;
            connection
                .write(format!(
                    "GET {target} HTTP/1.1\r\n{fields}connection: close\r\n\r\n"
                ))
                .await;
            assert_eq!(connection.answer().await.status, status, "{fields:?}");
        }
    }
    let before = server.raw(b"GET /healthz HTTP/1.0\r\n\r\n").await;
    assert_eq!(before.status, 200);
}
