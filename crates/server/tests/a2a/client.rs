//! A client that only knows HTTP and server-sent events.

use std::time::Duration;

use serde_json::{Value, json};
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::TcpStream,
};
use wopr_wire::sse::{Decoder, Event};

use crate::schema;

/// Timeout after which a test has failed.
const LONG: Duration = Duration::from_secs(20);

/// Speaks one version on behalf of one caller.
#[derive(Clone)]
pub(crate) struct Client {
    pub(crate) address: String,
    pub(crate) path: String,
    pub(crate) key: Option<String>,
    pub(crate) version: &'static str,
    pub(crate) headers: Vec<(String, String)>,
}

#[derive(Debug)]
pub(crate) struct Answer {
    pub(crate) status: u16,
    pub(crate) head: String,
    pub(crate) body: Vec<u8>,
}

impl Answer {
    pub(crate) fn json(&self) -> Value {
        serde_json::from_slice(&self.body)
            .unwrap_or_else(|error| panic!("{error}: {}", String::from_utf8_lossy(&self.body)))
    }

    pub(crate) fn header(&self, name: &str) -> Option<&str> {
        self.head.lines().find_map(|line| {
            let (key, value) = line.split_once(':')?;
            key.eq_ignore_ascii_case(name).then(|| value.trim())
        })
    }
}

impl Client {
    pub(crate) fn by(mut self, key: &str) -> Self {
        self.key = Some(key.to_owned());
        self
    }

    pub(crate) fn at(mut self, path: &str) -> Self {
        self.path = path.to_owned();
        self
    }

    pub(crate) fn with(mut self, name: &str, value: &str) -> Self {
        self.headers.push((name.to_owned(), value.to_owned()));
        self
    }

    fn is_new(&self) -> bool {
        self.version == "1.0"
    }

    async fn open(&self, method: &str, body: &[u8]) -> TcpStream {
        let mut stream = TcpStream::connect(&self.address).await.unwrap();
        let mut head = format!(
            "{method} {} HTTP/1.1\r\nhost: test\r\nconnection: close\r\n",
            self.path
        );
        if method != "GET" {
            head.push_str(&format!("content-length: {}\r\n", body.len()));
            if !self.headers.iter().any(|(name, _)| name == "content-type") {
                head.push_str("content-type: application/json\r\n");
            }
        }
        if let Some(key) = &self.key {
            head.push_str(&format!("authorization: Bearer secret-of-{key}-0123456789\r\n"));
        }
        if !self.version.is_empty() {
            head.push_str(&format!("A2A-Version: {}\r\n", self.version));
        }
        for (name, value) in &self.headers {
            head.push_str(&format!("{name}: {value}\r\n"));
        }
        head.push_str("\r\n");
        stream.write_all(head.as_bytes()).await.unwrap();
        // A server that refuses early may close before it has read everything.
        let _ = stream.write_all(body).await;
        stream
    }

    /// Sends raw bytes and reads the whole response.
    pub(crate) async fn raw(&self, method: &str, body: &[u8]) -> Answer {
        let mut stream = self.open(method, body).await;
        let mut bytes = Vec::new();
        tokio::time::timeout(LONG, async {
            // A reset after the response is as good as an end.
            let _ = stream.read_to_end(&mut bytes).await;
        })
        .await
        .expect("an answer in time");
        let end = find(&bytes, b"\r\n\r\n").expect("a head");
        let head = String::from_utf8(bytes[..end].to_vec()).unwrap();
        let status = head.split(' ').nth(1).unwrap().parse().unwrap();
        let mut body = bytes[end + 4..].to_vec();
        if head.to_lowercase().contains("transfer-encoding: chunked") {
            let mut decoder = Chunked::default();
            body = decoder.feed(&body);
        }
        Answer { status, head, body }
    }

    pub(crate) async fn get(&self, path: &str) -> Answer {
        self.clone().at(path).raw("GET", b"").await
    }

    /// Calls a method and returns the whole envelope.
    pub(crate) async fn call(&self, method: &str, params: Value) -> Value {
        let request = json!({"jsonrpc": "2.0", "id": 7, "method": method, "params": params});
        let answer = self.raw("POST", request.to_string().as_bytes()).await;
        assert_eq!(
            answer.status,
            200,
            "{} {}",
            answer.head,
            String::from_utf8_lossy(&answer.body)
        );
        let envelope = answer.json();
        assert_eq!(envelope["id"], 7, "{envelope}");
        if !self.is_new() {
            schema::check(schema::answer_of(method), &envelope);
        }
        envelope
    }

    /// Calls a method that must succeed.
    pub(crate) async fn ok(&self, method: &str, params: Value) -> Value {
        let envelope = self.call(method, params).await;
        assert!(envelope.get("error").is_none(), "{envelope}");
        envelope["result"].clone()
    }

    /// Calls a method that must fail; returns the code and the message.
    pub(crate) async fn err(&self, method: &str, params: Value) -> (i64, String) {
        let envelope = self.call(method, params).await;
        let error = &envelope["error"];
        (
            error["code"].as_i64().unwrap_or_else(|| panic!("{envelope}")),
            error["message"].as_str().unwrap().to_owned(),
        )
    }

    /// The parameters of a send in this version.
    pub(crate) fn message(&self, id: &str, parts: Value, more: Value) -> Value {
        let mut message = if self.is_new() {
            json!({"messageId": id, "role": "ROLE_USER", "parts": parts})
        } else {
            let parts = parts
                .as_array()
                .unwrap()
                .iter()
                .cloned()
                .map(old_part)
                .collect::<Vec<_>>();
            json!({"kind": "message", "messageId": id, "role": "user", "parts": parts})
        };
        let mut params = json!({});
        for (name, value) in more.as_object().unwrap() {
            if ["configuration", "request-metadata"].contains(&name.as_str()) {
                let name = name.trim_start_matches("request-");
                params[name] = value.clone();
            } else {
                message[name] = value.clone();
            }
        }
        params["message"] = message;
        params
    }

    pub(crate) fn text(&self, id: &str, text: &str, more: Value) -> Value {
        self.message(id, json!([{ "text": text }]), more)
    }

    /// Sends a message and returns the task.
    pub(crate) async fn send(&self, params: Value) -> Value {
        if self.is_new() {
            self.ok("SendMessage", params).await["task"].clone()
        } else {
            let task = self.ok("message/send", params).await;
            assert_eq!(task["kind"], "task");
            task
        }
    }

    pub(crate) async fn send_err(&self, params: Value) -> (i64, String) {
        let method = if self.is_new() {
            "SendMessage"
        } else {
            "message/send"
        };
        self.err(method, params).await
    }

    pub(crate) async fn task(&self, id: &str) -> Value {
        let method = if self.is_new() { "GetTask" } else { "tasks/get" };
        self.ok(method, json!({ "id": id })).await
    }

    /// Polls a task until it is in a state.
    pub(crate) async fn until(&self, id: &str, state: &str) -> Value {
        tokio::time::timeout(LONG, async {
            loop {
                let task = self.task(id).await;
                if state_of(&task) == state {
                    return task;
                }
                tokio::task::yield_now().await;
            }
        })
        .await
        .unwrap_or_else(|_| panic!("never {state}"))
    }

    pub(crate) async fn stream(&self, params: Value) -> Stream {
        let method = if self.is_new() {
            "SendStreamingMessage"
        } else {
            "message/stream"
        };
        self.open_stream(method, params).await
    }

    pub(crate) async fn subscribe(&self, id: &str) -> Stream {
        let method = if self.is_new() {
            "SubscribeToTask"
        } else {
            "tasks/resubscribe"
        };
        self.open_stream(method, json!({ "id": id })).await
    }

    async fn open_stream(&self, method: &str, params: Value) -> Stream {
        let request = json!({"jsonrpc": "2.0", "id": 7, "method": method, "params": params});
        let shape = if self.is_new() { Shape::Rpc } else { Shape::OldRpc };
        self.events("POST", request.to_string().as_bytes(), shape).await
    }

    /// Requests an event stream at the client's path, over HTTP+JSON.
    pub(crate) async fn bare_stream(&self, method: &str, body: &Value) -> Stream {
        let body = if body.is_null() {
            String::new()
        } else {
            body.to_string()
        };
        self.events(method, body.as_bytes(), Shape::Bare).await
    }

    async fn events(&self, method: &str, body: &[u8], shape: Shape) -> Stream {
        let mut socket = self.open(method, body).await;
        let mut head = Vec::new();
        while !head.ends_with(b"\r\n\r\n") {
            head.push(socket.read_u8().await.expect("a head"));
        }
        let head = String::from_utf8(head).unwrap();
        assert!(head.starts_with("HTTP/1.1 200"), "{head}");
        assert!(head.contains("text/event-stream"), "{head}");
        Stream {
            socket,
            chunks: Chunked::default(),
            decoder: Decoder::new(1 << 20),
            ready: Vec::new(),
            shape,
        }
    }
}

fn old_part(part: Value) -> Value {
    let mut part = part;
    let kind = if part.get("text").is_some() {
        "text"
    } else if part.get("data").is_some() {
        "data"
    } else {
        "file"
    };
    if kind == "file" {
        let name = part.get("filename").cloned().unwrap_or_default();
        part = match (part.get("raw"), part.get("url")) {
            (Some(bytes), _) => json!({"file": {"bytes": bytes, "name": name}}),
            (_, url) => json!({"file": {"uri": url, "name": name}}),
        };
    }
    part["kind"] = json!(kind);
    part
}

/// The state of a task or update, in the spelling of 0.3.
pub(crate) fn state_of(value: &Value) -> String {
    let state = value["status"]["state"].as_str().unwrap_or_default();
    state
        .trim_start_matches("TASK_STATE_")
        .to_lowercase()
        .replace('_', "-")
}

/// An event stream that is read incrementally.
pub(crate) struct Stream {
    socket: TcpStream,
    chunks: Chunked,
    decoder: Decoder,
    ready: Vec<Event>,
    shape: Shape,
}

/// The format of a frame's data.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Shape {
    /// A JSON-RPC response around an item of 1.0.
    Rpc,
    /// A JSON-RPC response around an item of 0.3.
    OldRpc,
    /// A bare item, in either version.
    Bare,
}

/// One item of a stream, the same for both versions.
#[derive(Debug, Clone)]
pub(crate) struct Frame {
    /// The id of the SSE event.
    pub(crate) id: Option<u64>,
    pub(crate) kind: &'static str,
    pub(crate) value: Value,
}

impl Frame {
    /// An item whose kind is the name of its only member.
    pub(crate) fn bare(id: Option<u64>, item: &Value) -> Self {
        let members = item.as_object().unwrap();
        assert_eq!(members.len(), 1, "{item}");
        let (name, value) = members.iter().next().unwrap();
        Self::named(id, name, value.clone())
    }

    fn named(id: Option<u64>, name: &str, value: Value) -> Self {
        let kind = match name {
            "task" => "task",
            "statusUpdate" | "status-update" => "status",
            "artifactUpdate" | "artifact-update" => "artifact",
            "message" | "msg" => "message",
            other => panic!("{other}"),
        };
        Self { id, kind, value }
    }

    /// A short form: `task:submitted`, `status:working`, `artifact:brief-0`.
    pub(crate) fn short(&self) -> String {
        match self.kind {
            "artifact" => format!(
                "artifact:{}",
                self.value["artifact"]["artifactId"].as_str().unwrap()
            ),
            "message" => "message".to_owned(),
            kind => format!("{kind}:{}", state_of(&self.value)),
        }
    }
}

impl Stream {
    /// Returns the next frame; `None` at the end.
    pub(crate) async fn next(&mut self) -> Option<Frame> {
        let mut buffer = [0; 4096];
        while self.ready.is_empty() {
            let n = tokio::time::timeout(LONG, self.socket.read(&mut buffer))
                .await
                .expect("a frame in time")
                .unwrap_or(0);
            if n == 0 {
                return None;
            }
            let bytes = self.chunks.feed(&buffer[..n]);
            // Parses one event at a time, to tell an event's own id from the last one seen.
            for block in split_events(&bytes, &mut self.chunks.rest) {
                let has_id = block.windows(4).any(|window| window == b"id: ");
                let mut events = Vec::new();
                self.decoder.feed(&block, &mut events).unwrap();
                for mut event in events {
                    if !has_id {
                        event.id.clear();
                    }
                    self.ready.push(event);
                }
            }
        }
        let event = self.ready.remove(0);
        let document: Value = serde_json::from_str(&event.data).unwrap();
        let result = if self.shape == Shape::Bare {
            document
        } else {
            assert_eq!(document["jsonrpc"], "2.0", "{document}");
            assert_eq!(document["id"], 7, "{document}");
            if self.shape == Shape::OldRpc {
                schema::check("SendStreamingMessageResponse", &document);
            }
            document["result"].clone()
        };
        let id = event.id.parse().ok();
        if self.shape == Shape::OldRpc {
            let name = result["kind"].as_str().unwrap().to_owned();
            return Some(Frame::named(id, &name, result));
        }
        Some(Frame::bare(id, &result))
    }

    /// Returns `true` if the body ended regularly and was not cut off.
    pub(crate) const fn is_whole(&self) -> bool {
        self.chunks.is_over
    }

    /// Waits for some bytes of the body.
    pub(crate) async fn some(&mut self) {
        let mut buffer = [0; 4096];
        let n = tokio::time::timeout(LONG, self.socket.read(&mut buffer)).await;
        let bytes = self.chunks.feed(&buffer[..n.expect("bytes in time").unwrap()]);
        self.chunks.rest.extend(bytes);
    }

    /// Reads to the end; returns the text, comments included.
    pub(crate) async fn drain(mut self) -> String {
        self.drained().await
    }

    /// Like [`Stream::drain`], for a stream that is still needed.
    pub(crate) async fn drained(&mut self) -> String {
        let mut text = std::mem::take(&mut self.chunks.rest);
        let mut buffer = [0; 4096];
        loop {
            let n = tokio::time::timeout(LONG, self.socket.read(&mut buffer)).await;
            match n.expect("an end in time") {
                Ok(0) | Err(_) => return String::from_utf8(text).unwrap(),
                Ok(n) => text.extend(self.chunks.feed(&buffer[..n])),
            }
        }
    }

    /// Waits for a comment; returns it with the text around it.
    pub(crate) async fn comment(&mut self) -> String {
        let mut buffer = [0; 4096];
        loop {
            let n = tokio::time::timeout(LONG, self.socket.read(&mut buffer))
                .await
                .expect("a comment in time")
                .unwrap();
            let bytes = self.chunks.feed(&buffer[..n]);
            if find(&bytes, b":keepalive").is_some() {
                return String::from_utf8(bytes).unwrap();
            }
        }
    }

    pub(crate) async fn all(mut self) -> Vec<Frame> {
        let mut frames = Vec::new();
        while let Some(frame) = self.next().await {
            frames.push(frame);
        }
        frames
    }

    /// Reads up to and including the frame with this short form.
    pub(crate) async fn until(&mut self, short: &str) -> Vec<Frame> {
        let mut frames = Vec::new();
        loop {
            let frame = self
                .next()
                .await
                .unwrap_or_else(|| panic!("no {short} in {frames:?}"));
            let is_it = frame.short() == short;
            frames.push(frame);
            if is_it {
                return frames;
            }
        }
    }
}

pub(crate) fn shorts(frames: &[Frame]) -> Vec<String> {
    frames.iter().map(Frame::short).collect()
}

fn split_events(bytes: &[u8], rest: &mut Vec<u8>) -> Vec<Vec<u8>> {
    rest.extend_from_slice(bytes);
    let mut blocks = Vec::new();
    while let Some(end) = find(rest, b"\n\n") {
        blocks.push(rest.drain(..end + 2).collect());
    }
    blocks
}

fn find(haystack: &[u8], needle: &[u8]) -> Option<usize> {
    haystack.windows(needle.len()).position(|window| window == needle)
}

/// Decodes the chunked transfer coding.
#[derive(Default)]
struct Chunked {
    raw: Vec<u8>,
    rest: Vec<u8>,
    is_over: bool,
}

impl Chunked {
    fn feed(&mut self, bytes: &[u8]) -> Vec<u8> {
        self.raw.extend_from_slice(bytes);
        let mut out = Vec::new();
        while let Some(end) = find(&self.raw, b"\r\n") {
            let size = std::str::from_utf8(&self.raw[..end]).unwrap();
            let size = usize::from_str_radix(size.trim(), 16).unwrap();
            if self.raw.len() < end + 2 + size + 2 {
                break;
            }
            self.is_over |= size == 0;
            out.extend_from_slice(&self.raw[end + 2..end + 2 + size]);
            self.raw.drain(..end + 2 + size + 2);
        }
        out
    }
}
