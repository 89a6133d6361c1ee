//! A scripted HTTP peer, a scripted resolver, and constructors for gates.

use std::{
    collections::VecDeque,
    io,
    net::{IpAddr, SocketAddr},
    sync::{Arc, Mutex},
    time::Duration,
};

use async_trait::async_trait;
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::{TcpListener, TcpStream},
    sync::mpsc,
    task::JoinHandle,
};
use wopr_connect::egress::{Gate, Limits, Network, Request, Resolver};

/// How a peer treats each request.
#[derive(Debug, Clone)]
pub(crate) enum Script {
    /// Sends these bytes and keeps the connection open.
    Answer(String),
    /// Sends these bytes and closes the connection.
    AnswerAndClose(String),
    /// Reads the request and sends nothing.
    Silence,
    /// Sends these bytes, then single bytes forever.
    Drip(String),
    /// Sends these bytes, then full chunks as fast as the client reads.
    Flood(String),
}

/// An observation of a peer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Seen {
    Connection,
    /// The head and body of a request, or the first record of a TLS handshake.
    Request(String),
    /// A write failed because the client closed the connection.
    Cut,
}

#[derive(Debug)]
pub(crate) struct Peer {
    pub(crate) address: SocketAddr,
    seen: mpsc::UnboundedReceiver<Seen>,
    serving: JoinHandle<()>,
}

impl Peer {
    pub(crate) async fn start(script: Script) -> Self {
        Self::start_at("127.0.0.1:0", script).await.unwrap()
    }

    pub(crate) async fn start_at(address: &str, script: Script) -> io::Result<Self> {
        let listener = TcpListener::bind(address).await?;
        let address = listener.local_addr()?;
        let (tell, seen) = mpsc::unbounded_channel();
        let serving = tokio::spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                let _ = tell.send(Seen::Connection);
                tokio::spawn(serve(stream, script.clone(), tell.clone()));
            }
        });
        Ok(Self {
            address,
            seen,
            serving,
        })
    }

    pub(crate) fn url(&self, path: &str) -> String {
        format!("http://{}{path}", self.address)
    }

    pub(crate) fn named_url(&self, scheme: &str, name: &str) -> String {
        format!("{scheme}://{name}:{}/", self.address.port())
    }

    pub(crate) async fn next(&mut self) -> Seen {
        self.seen
            .recv()
            .await
            .expect("the peer lives as long as the test")
    }

    /// Returns the next request, skipping other observations.
    pub(crate) async fn next_request(&mut self) -> String {
        loop {
            if let Seen::Request(text) = self.next().await {
                return text;
            }
        }
    }

    /// Returns the remaining observations.
    pub(crate) fn rest(&mut self) -> Vec<Seen> {
        std::iter::from_fn(|| self.seen.try_recv().ok()).collect()
    }
}

impl Drop for Peer {
    fn drop(&mut self) {
        self.serving.abort();
    }
}

async fn serve(mut stream: TcpStream, script: Script, tell: mpsc::UnboundedSender<Seen>) {
    while let Some(request) = read_request(&mut stream).await {
        let _ = tell.send(Seen::Request(request));
        let done = match &script {
            Script::Answer(bytes) => stream.write_all(bytes.as_bytes()).await.is_err(),
            Script::AnswerAndClose(bytes) => {
                let _ = stream.write_all(bytes.as_bytes()).await;
                true
            }
            Script::Silence => {
                // Ends when the client closes the connection.
                let _ = stream.read(&mut [0; 1]).await;
                true
            }
            Script::Drip(head) => {
                let mut beat = tokio::time::interval(Duration::from_millis(2));
                let mut written = stream.write_all(head.as_bytes()).await;
                while written.is_ok() {
                    beat.tick().await;
                    written = stream.write_all(b"x").await;
                }
                let _ = tell.send(Seen::Cut);
                true
            }
            Script::Flood(head) => {
                let chunk = format!("1000\r\n{}\r\n", "x".repeat(0x1000));
                let mut written = stream.write_all(head.as_bytes()).await;
                while written.is_ok() {
                    written = stream.write_all(chunk.as_bytes()).await;
                }
                let _ = tell.send(Seen::Cut);
                true
            }
        };
        if done {
            return;
        }
    }
}

async fn read_request(stream: &mut TcpStream) -> Option<String> {
    let mut bytes = Vec::new();
    loop {
        let text = String::from_utf8_lossy(&bytes).into_owned();
        // The header of a TLS handshake record contains its length.
        if let [22, _, _, high, low, record @ ..] = &bytes[..] {
            if record.len() >= usize::from(u16::from_be_bytes([*high, *low])) {
                return Some(text);
            }
        } else if let Some((head, body)) = text.split_once("\r\n\r\n") {
            let length = head
                .lines()
                .find_map(|line| line.strip_prefix("content-length: "))
                .map_or(0, |n| n.parse().unwrap());
            if body.len() >= length {
                return Some(text);
            }
        }
        if stream.read_buf(&mut bytes).await.ok()? == 0 {
            return None;
        }
    }
}

pub(crate) fn answer(status: u16, headers: &[&str], body: &str) -> String {
    let lines: String = headers.iter().map(|line| format!("{line}\r\n")).collect();
    format!(
        "HTTP/1.1 {status} Whatever\r\n{lines}content-length: {}\r\n\r\n{body}",
        body.len()
    )
}

/// A resolver that returns its answers in turn and records the queries.
#[derive(Debug, Default)]
pub(crate) struct Answers {
    answers: Mutex<VecDeque<Vec<IpAddr>>>,
    asked: Mutex<Vec<String>>,
}

impl Answers {
    pub(crate) fn new(answers: &[&[&str]]) -> Arc<Self> {
        let parse = |one: &&[&str]| one.iter().map(|text| text.parse().unwrap()).collect();
        Arc::new(Self {
            answers: Mutex::new(answers.iter().map(parse).collect()),
            asked: Mutex::default(),
        })
    }

    pub(crate) fn asked(&self) -> Vec<String> {
        self.asked.lock().unwrap().clone()
    }
}

#[async_trait]
impl Resolver for Answers {
    async fn resolve(&self, name: &str) -> io::Result<Vec<IpAddr>> {
        self.asked.lock().unwrap().push(name.to_owned());
        let next = self.answers.lock().unwrap().pop_front();
        next.ok_or_else(|| io::Error::other("SECRET resolver detail"))
    }
}

/// A gate with an allow-list, and a resolver without answers.
pub(crate) fn gate(allow: &str) -> Gate {
    gate_with(allow, limits(), Answers::new(&[]))
}

pub(crate) fn gate_with(allow: &str, limits: Limits, resolver: Arc<dyn Resolver>) -> Gate {
    let network = Network {
        resolver,
        ..Network::default()
    };
    Gate::over(allow.parse().unwrap(), limits, network)
}

/// Long enough that only tests about timeouts hit them.
pub(crate) fn limits() -> Limits {
    Limits {
        connect: Duration::from_secs(20),
        total: Duration::from_secs(20),
        ..Limits::default()
    }
}

pub(crate) fn get(url: &str) -> Request {
    Request::new(http::Method::GET, url.parse().unwrap())
}

/// TLS that trusts no certificate, for tests that do not complete a handshake.
pub(crate) fn trusting_nobody() -> Arc<rustls::ClientConfig> {
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let config = rustls::ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_root_certificates(rustls::RootCertStore::empty())
        .with_no_client_auth();
    Arc::new(config)
}
