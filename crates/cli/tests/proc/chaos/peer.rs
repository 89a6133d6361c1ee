//! The outside world of effects: an HTTP server that remembers who called with which idempotency key, is slow at
//! times and fails at times. It outlives every kill.

use std::{
    collections::{BTreeMap, BTreeSet},
    net::SocketAddr,
    sync::{Arc, Mutex},
    time::Duration,
};

use rand::{Rng as _, SeedableRng as _, rngs::StdRng};
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::{TcpListener, TcpStream},
    task::JoinSet,
    time,
};

/// Calls by path: the keys they carried, and how many were answered well.
pub(super) type Calls = BTreeMap<String, (BTreeSet<String>, u32)>;

#[derive(Debug)]
pub(super) struct Peer {
    address: SocketAddr,
    calls: Arc<Mutex<Calls>>,
    /// Ends with the handle.
    _server: JoinSet<()>,
}

impl Peer {
    pub(super) async fn start(seed: u64) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let calls = Arc::default();
        let mut server = JoinSet::new();
        server.spawn(serve(listener, Arc::clone(&calls), StdRng::seed_from_u64(seed)));
        Self {
            address,
            calls,
            _server: server,
        }
    }

    pub(super) fn url(&self) -> String {
        format!("http://{}", self.address)
    }

    pub(super) fn calls(&self) -> Calls {
        self.calls.lock().unwrap().clone()
    }
}

async fn serve(listener: TcpListener, calls: Arc<Mutex<Calls>>, mut random: StdRng) {
    let mut connections = JoinSet::new();
    loop {
        let (stream, _) = listener.accept().await.unwrap();
        let random = StdRng::seed_from_u64(random.random());
        let calls = Arc::clone(&calls);
        connections.spawn(async move {
            // A caller that is killed takes its connection with it.
            let _ = answer(stream, &calls, random).await;
        });
        while connections.try_join_next().is_some() {}
    }
}

async fn answer(mut stream: TcpStream, calls: &Mutex<Calls>, mut random: StdRng) -> std::io::Result<()> {
    let mut input = Vec::new();
    loop {
        let end = loop {
            if let Some(at) = input.windows(4).position(|window| window == b"\r\n\r\n") {
                break at + 4;
            }
            if stream.read_buf(&mut input).await? == 0 {
                return Ok(());
            }
        };
        let head = String::from_utf8_lossy(&input[..end]).to_ascii_lowercase();
        let field = |name: &str| {
            head.lines()
                .find_map(|line| line.strip_prefix(name)?.strip_prefix(": "))
        };
        let path = head.split(' ').nth(1).unwrap_or_default().to_owned();
        let key = field("idempotency-key").unwrap_or("none").to_owned();
        let length: usize = field("content-length").map_or(0, |text| text.parse().unwrap());
        while input.len() < end + length {
            if stream.read_buf(&mut input).await? == 0 {
                return Ok(());
            }
        }
        input.drain(..end + length);
        calls
            .lock()
            .unwrap()
            .entry(path.clone())
            .or_default()
            .0
            .insert(key);
        if random.random_bool(0.3) {
            // At times longer than a lease lasts, which has to be renewed then.
            let longest = if random.random_bool(0.1) { 2_500 } else { 150 };
            // sleep: fault schedule; the kill is to hit calls that are under way
            time::sleep(Duration::from_millis(random.random_range(0..longest))).await;
        }
        let is_well = random.random_bool(0.8);
        if is_well {
            calls.lock().unwrap().entry(path).or_default().1 += 1;
        }
        let status = if is_well {
            "200 OK"
        } else {
            "500 Internal Server Error"
        };
        let answer = format!(
            "HTTP/1.1 {status}\r\ncontent-type: application/json\r\ncontent-length: 11\r\n\r\n{{\"ok\":true}}"
        );
        stream.write_all(answer.as_bytes()).await?;
    }
}
