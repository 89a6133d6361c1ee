//! A small HTTP client that can also send invalid requests.

use std::{net::SocketAddr, time::Duration};

use serde_json::Value;
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::TcpStream,
};
use wopr_wire::sse;

/// Upper bound of any wait in these tests.
const TIMEOUT: Duration = Duration::from_secs(30);

/// A request under construction.
#[derive(Debug, Clone)]
pub(crate) struct Call {
    address: SocketAddr,
    method: String,
    path: String,
    headers: Vec<(String, String)>,
    body: Vec<u8>,
}

/// A fully read response.
#[derive(Debug)]
pub(crate) struct Reply {
    pub(crate) status: u16,
    pub(crate) headers: Vec<(String, String)>,
    pub(crate) body: Vec<u8>,
}

impl Call {
    pub(crate) fn new(address: SocketAddr, method: &str, path: &str) -> Self {
        Self {
            address,
            method: method.to_owned(),
            path: path.to_owned(),
            headers: Vec::new(),
            body: Vec::new(),
        }
    }

    pub(crate) fn header(mut self, name: &str, value: &str) -> Self {
        self.headers.push((name.to_owned(), value.to_owned()));
        self
    }

    pub(crate) fn key(self, secret: &str) -> Self {
        self.header("authorization", &format!("Bearer {secret}"))
    }

    pub(crate) fn json(self, body: &Value) -> Self {
        self.bytes(body.to_string().into_bytes())
    }

    pub(crate) fn bytes(mut self, body: impl Into<Vec<u8>>) -> Self {
        self.body = body.into();
        self.header("content-type", "application/json")
    }

    /// Sends a form as browsers encode it.
    pub(crate) fn form(mut self, body: impl Into<Vec<u8>>) -> Self {
        self.body = body.into();
        self.header("content-type", "application/x-www-form-urlencoded")
    }

    fn head(&self, length: usize) -> Vec<u8> {
        let mut head = format!("{} {} HTTP/1.1\r\nhost: test\r\n", self.method, self.path);
        for (name, value) in &self.headers {
            head.push_str(&format!("{name}: {value}\r\n"));
        }
        head.push_str(&format!("connection: close\r\ncontent-length: {length}\r\n\r\n"));
        head.into_bytes()
    }

    pub(crate) async fn send(&self) -> Reply {
        let mut stream = self.open().await;
        let mut bytes = Vec::new();
        let read = tokio::time::timeout(TIMEOUT, stream.read_to_end(&mut bytes)).await;
        read.expect("the server answers in time").unwrap();
        Reply::parse(&bytes)
    }

    /// Sends a body of `length` spaces while reading the response.
    pub(crate) async fn send_huge(&self, length: usize) -> Reply {
        let stream = TcpStream::connect(self.address).await.unwrap();
        let (mut reading, mut writing) = stream.into_split();
        writing.write_all(&self.head(length)).await.unwrap();
        let sending = tokio::spawn(async move {
            let chunk = vec![b' '; 1 << 16];
            let mut left = length;
            while left > 0 {
                let part = &chunk[..left.min(chunk.len())];
                if writing.write_all(part).await.is_err() {
                    break;
                }
                left -= part.len();
            }
            // Dropping it would close the write side, and the server would consider the client gone.
            writing
        });
        let mut bytes = Vec::new();
        let read = tokio::time::timeout(TIMEOUT, reading.read_to_end(&mut bytes)).await;
        read.expect("the server answers in time").unwrap();
        drop(sending.await.unwrap());
        Reply::parse(&bytes)
    }

    async fn open(&self) -> TcpStream {
        let mut stream = TcpStream::connect(self.address).await.unwrap();
        let mut bytes = self.head(self.body.len());
        bytes.extend_from_slice(&self.body);
        stream.write_all(&bytes).await.unwrap();
        stream
    }

    pub(crate) async fn events(self) -> Events {
        let mut events = Events {
            stream: self.header("accept", "text/event-stream").open().await,
            decoder: sse::Decoder::new(1 << 20),
            raw: Vec::new(),
            head: None,
            ready: Vec::new(),
            text: String::new(),
            is_closed: false,
        };
        while events.head.is_none() {
            events.read_more().await;
        }
        events
    }
}

impl Reply {
    pub(crate) fn parse(bytes: &[u8]) -> Self {
        let (mut reply, rest) = Self::parse_head(bytes).unwrap_or_else(|| {
            panic!("an answer has a head: {:?}", String::from_utf8_lossy(bytes));
        });
        reply.body = if reply.header("transfer-encoding") == Some("chunked") {
            unchunk(rest).0
        } else {
            rest.to_vec()
        };
        reply
    }

    fn parse_head(bytes: &[u8]) -> Option<(Self, &[u8])> {
        let end = bytes.windows(4).position(|window| window == b"\r\n\r\n")?;
        let head = String::from_utf8(bytes[..end].to_vec()).unwrap();
        let mut lines = head.split("\r\n");
        let status = lines.next().unwrap().split(' ').nth(1).unwrap().parse().unwrap();
        let headers = lines
            .map(|line| line.split_once(": ").unwrap_or((line, "")))
            .map(|(name, value)| (name.to_ascii_lowercase(), value.to_owned()))
            .collect();
        let reply = Self {
            status,
            headers,
            body: Vec::new(),
        };
        Some((reply, &bytes[end + 4..]))
    }

    pub(crate) fn header(&self, name: &str) -> Option<&str> {
        self.headers
            .iter()
            .find(|(known, _)| known == name)
            .map(|(_, value)| value.as_str())
    }

    pub(crate) fn json(&self) -> Value {
        serde_json::from_slice(&self.body)
            .unwrap_or_else(|_| panic!("{}: {}", self.status, String::from_utf8_lossy(&self.body)))
    }

    /// Asserts the status and returns the document.
    pub(crate) fn ok(&self, status: u16) -> Value {
        assert_eq!(self.status, status, "{}", String::from_utf8_lossy(&self.body));
        self.json()
    }

    /// Asserts that the status is one of these.
    pub(crate) fn ok_either(&self, statuses: &[u16]) -> Value {
        assert!(
            statuses.contains(&self.status),
            "{}",
            String::from_utf8_lossy(&self.body)
        );
        self.json()
    }

    /// Asserts the error envelope and returns its details.
    pub(crate) fn error(&self, status: u16, code: &str) -> Value {
        let envelope = self.json();
        assert_eq!(
            (self.status, envelope["error"].as_str()),
            (status, Some(code)),
            "{envelope}"
        );
        assert!(envelope["message"].as_str().is_some_and(|text| !text.is_empty()));
        let members = envelope.as_object().unwrap();
        assert!(
            members
                .keys()
                .all(|name| ["error", "message", "details"].contains(&name.as_str())),
            "{envelope}"
        );
        envelope["details"].clone()
    }
}

/// Decodes complete chunks; returns the rest that is not a complete chunk yet.
fn unchunk(mut rest: &[u8]) -> (Vec<u8>, &[u8]) {
    let mut body = Vec::new();
    loop {
        let Some(end) = rest.windows(2).position(|window| window == b"\r\n") else {
            return (body, rest);
        };
        let size = usize::from_str_radix(std::str::from_utf8(&rest[..end]).unwrap(), 16).unwrap();
        if rest.len() < end + 2 + size + 2 {
            return (body, rest);
        }
        body.extend_from_slice(&rest[end + 2..end + 2 + size]);
        rest = &rest[end + 2 + size + 2..];
        if size == 0 {
            return (body, rest);
        }
    }
}

/// An event stream that is read incrementally.
#[derive(Debug)]
pub(crate) struct Events {
    stream: TcpStream,
    decoder: sse::Decoder,
    raw: Vec<u8>,
    pub(crate) head: Option<Reply>,
    ready: Vec<sse::Event>,
    /// All bytes received, comments included.
    pub(crate) text: String,
    pub(crate) is_closed: bool,
}

impl Events {
    async fn read_more(&mut self) {
        let mut buffer = vec![0; 1 << 16];
        let read = tokio::time::timeout(TIMEOUT, self.stream.read(&mut buffer)).await;
        let n = read.expect("the stream goes on or ends in time").unwrap();
        self.is_closed = n == 0;
        self.raw.extend_from_slice(&buffer[..n]);
        if self.head.is_none() {
            let Some((head, rest)) = Reply::parse_head(&self.raw) else {
                assert!(!self.is_closed, "an answer has a head");
                return;
            };
            self.raw = rest.to_vec();
            self.head = Some(head);
        }
        let (body, rest) = unchunk(&self.raw);
        let rest = rest.to_vec();
        self.text.push_str(&String::from_utf8_lossy(&body));
        self.decoder.feed(&body, &mut self.ready).unwrap();
        self.raw = rest;
    }

    /// Returns the next event; `None` once the server has closed the stream.
    pub(crate) async fn next(&mut self) -> Option<sse::Event> {
        while self.ready.is_empty() && !self.is_closed {
            self.read_more().await;
        }
        (!self.ready.is_empty()).then(|| self.ready.remove(0))
    }

    pub(crate) async fn all(mut self) -> Vec<sse::Event> {
        let mut events = Vec::new();
        while let Some(event) = self.next().await {
            events.push(event);
        }
        events
    }

    /// Reads until the received text contains `text`.
    pub(crate) async fn until(&mut self, text: &str) {
        while !self.text.contains(text) {
            assert!(!self.is_closed, "{text:?} came before the end: {}", self.text);
            self.read_more().await;
        }
    }
}

/// Sends raw bytes and reads the response to its end.
pub(crate) async fn raw(address: SocketAddr, bytes: &[u8]) -> Reply {
    let mut stream = TcpStream::connect(address).await.unwrap();
    stream.write_all(bytes).await.unwrap();
    let mut answer = Vec::new();
    let read = tokio::time::timeout(TIMEOUT, stream.read_to_end(&mut answer)).await;
    read.expect("the server answers in time").unwrap();
    Reply::parse(&answer)
}
