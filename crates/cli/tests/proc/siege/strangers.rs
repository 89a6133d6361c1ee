//! Strangers: connections without a credential, from several local addresses, each of which holds as many of
//! the host's resources as possible.

use std::{
    io,
    net::{IpAddr, SocketAddr},
    time::Duration,
};

use bytes::Bytes;
use h2::client::{self, SendRequest};
use http::{Method, Request};
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::{TcpSocket, TcpStream},
    time::{sleep, timeout},
};

use super::{Attacks, Count};

/// Number of source addresses.
const ADDRESSES: u64 = 16;
/// How long a stranger holds its resources before it starts over.
const HOLD: Duration = Duration::from_secs(3);
/// Pause of a stranger after it was rejected.
const AGAIN: Duration = Duration::from_millis(500);
/// Number of streams that a connection opens, if permitted.
const STREAMS: usize = 64;

pub(super) fn begin(attacks: &mut Attacks, n_connections: u64) {
    attacks.begin("silent sockets", n_connections / 2, silent);
    attacks.begin("half heads", n_connections / 8, half_heads);
    attacks.begin("streams without bodies", n_connections / 8, without_bodies);
    attacks.begin("shut windows", n_connections / 8, shut_windows);
    attacks.begin("endless bodies of gRPC", n_connections / 8, endless_bodies);
}

async fn connect(address: SocketAddr, n: u64) -> io::Result<TcpStream> {
    let last = u8::try_from(2 + n % ADDRESSES).unwrap_or(2);
    let socket = TcpSocket::new_v4()?;
    socket.bind(SocketAddr::new(IpAddr::from([127, 0, 0, last]), 0))?;
    socket.connect(address).await
}

/// Sends nothing, and reconnects when the connection is closed.
async fn silent(address: SocketAddr, n: u64, count: Count) {
    loop {
        if let Ok(mut stream) = connect(address, n).await {
            count.add();
            let _ = stream.read(&mut [0]).await;
        }
        // sleep: as long as a stranger waits
        sleep(AGAIN).await;
    }
}

/// Sends most of a large request head, but not its end.
async fn half_heads(address: SocketAddr, n: u64, count: Count) {
    let mut head = b"GET / HTTP/1.1\r\nhost: t\r\n".to_vec();
    for n in 0..60 {
        head.extend(format!("x-{n}: {}\r\n", "y".repeat(450)).bytes());
    }
    loop {
        if let Ok(mut stream) = connect(address, n).await
            && stream.write_all(&head).await.is_ok()
        {
            count.add();
            let _ = stream.read(&mut [0]).await;
        }
        // sleep: as long as a stranger waits
        sleep(AGAIN).await;
    }
}

/// Opens an HTTP/2 connection with this flow-control window per stream.
async fn open(address: SocketAddr, n: u64, window: u32) -> Option<SendRequest<Bytes>> {
    let stream = connect(address, n).await.ok()?;
    let mut builder = client::Builder::new();
    builder.initial_window_size(window);
    let (requests, connection) = builder.handshake(stream).await.ok()?;
    tokio::spawn(async move {
        // Ends with its requests.
        let _ = connection.await;
    });
    Some(requests)
}

fn request(method: Method, path: &str, media: &str) -> Request<()> {
    Request::builder()
        .method(method)
        .uri(format!("http://siege{path}"))
        .header("content-type", media)
        .body(())
        .unwrap()
}

/// Opens streams and holds their responses; `send` sends something on each.
async fn streams<T>(
    requests: &SendRequest<Bytes>,
    count: &Count,
    request: impl Fn() -> Request<()>,
    is_all: bool,
    send: impl Fn(h2::SendStream<Bytes>) -> T,
) {
    let mut kept = Vec::new();
    for _ in 0..STREAMS {
        let Ok(Ok(mut ready)) = timeout(HOLD, requests.clone().ready()).await else {
            break;
        };
        let Ok((response, body)) = ready.send_request(request(), is_all) else {
            break;
        };
        count.add();
        kept.push((response, send(body)));
    }
    // sleep: as long as a stranger holds what it has
    sleep(HOLD).await;
}

/// Sends request heads without bodies to a route that requires a token.
async fn without_bodies(address: SocketAddr, n: u64, count: Count) {
    loop {
        if let Some(requests) = open(address, n, 65_535).await {
            let post = || request(Method::POST, "/v1/interrupts/x", "application/json");
            streams(&requests, &count, post, false, |body| body).await;
        }
        // sleep: as long as a stranger waits
        sleep(AGAIN).await;
    }
}

/// Sends requests without opening a flow-control window for the responses.
async fn shut_windows(address: SocketAddr, n: u64, count: Count) {
    loop {
        if let Some(requests) = open(address, n, 0).await {
            let get = || request(Method::GET, "/metrics", "text/plain");
            streams(&requests, &count, get, true, |_| ()).await;
        }
        // sleep: as long as a stranger waits
        sleep(AGAIN).await;
    }
}

/// Calls a public gRPC service with a message of 4 MiB, of which the host accepts only a part.
async fn endless_bodies(address: SocketAddr, n: u64, count: Count) {
    let mut message = vec![0];
    message.extend((4_u32 << 20).to_be_bytes());
    message.resize(1 << 20, b'x');
    let message = Bytes::from(message);
    loop {
        if let Some(requests) = open(address, n, 65_535).await {
            let call = || request(Method::POST, "/grpc.health.v1.Health/Check", "application/grpc");
            let send = |mut body: h2::SendStream<Bytes>| {
                let _ = body.send_data(message.clone(), false);
                body
            };
            streams(&requests, &count, call, false, send).await;
        }
        // sleep: as long as a stranger waits
        sleep(AGAIN).await;
    }
}
