//! A gRPC client by hand: HTTP/2 from a library, messages from our tables, so that tests can send invalid ones.

use std::{collections::VecDeque, future::Future, time::Duration};

use base64::{Engine as _, prelude::BASE64_STANDARD_NO_PAD};
use bytes::Bytes;
use h2::{client, client::SendRequest};
use http::{HeaderMap, Request};
use serde_json::{Map, Value, json};
use tokio::{net::TcpStream, task::JoinHandle};
use wopr_server::auth::hash_hex;
use wopr_store::KeyRow;
use wopr_wire::a2a::{
    error::Kind,
    method::{Operation, Version},
    protobuf,
};

use crate::{client::Client, support::Server};

/// Timeout after which a test has failed.
const LONG: Duration = Duration::from_secs(20);

async fn soon<T>(future: impl Future<Output = T>) -> T {
    tokio::time::timeout(LONG, future)
        .await
        .expect("it happens in time")
}

/// How a call ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Ended {
    pub(crate) code: i32,
    pub(crate) message: String,
    /// The encoded `google.rpc.Status`.
    details: Vec<u8>,
}

impl Ended {
    fn read(trailers: &HeaderMap) -> Self {
        let text = |name: &str| trailers.get(name).map(|value| value.to_str().unwrap());
        Self {
            code: text("grpc-status").expect("a status").parse().unwrap(),
            message: text("grpc-message").unwrap_or_default().to_owned(),
            details: text("grpc-status-details-bin")
                .map(|text| BASE64_STANDARD_NO_PAD.decode(text.trim_end_matches('=')).unwrap())
                .unwrap_or_default(),
        }
    }

    /// The reason, as in the table of errors.
    pub(crate) fn reason(&self) -> &'static str {
        let text = String::from_utf8_lossy(&self.details);
        if text.contains("google.rpc.BadRequest") {
            return Kind::InvalidParams.reason();
        }
        assert!(
            text.contains("google.rpc.ErrorInfo") && text.contains("a2a-protocol.org"),
            "{self:?}"
        );
        text.split(|c: char| c != '_' && !c.is_ascii_uppercase())
            .find_map(Kind::from_reason)
            .unwrap_or_else(|| panic!("{self:?}"))
            .reason()
    }
}

/// A streaming call.
pub(crate) struct Messages {
    body: h2::RecvStream,
    /// Received bytes that are not a complete message yet.
    rest: Vec<u8>,
    ready: VecDeque<Vec<u8>>,
    headers: HeaderMap,
    ended: Option<Ended>,
    /// Kept alive for the duration of the call.
    _connection: JoinHandle<Result<(), h2::Error>>,
    _requests: SendRequest<Bytes>,
}

impl Messages {
    /// Returns the next message; `None` at the end.
    pub(crate) async fn next(&mut self) -> Option<Vec<u8>> {
        loop {
            if let Some(message) = self.ready.pop_front() {
                return Some(message);
            }
            if self.ended.is_some() {
                return None;
            }
            match soon(self.body.data()).await {
                Some(data) => {
                    let data = data.unwrap();
                    self.body.flow_control().release_capacity(data.len()).unwrap();
                    self.rest.extend_from_slice(&data);
                    while let Some((head, rest)) = self.rest.split_first_chunk::<5>() {
                        assert_eq!(head[0], 0, "not compressed");
                        let length = u32::from_be_bytes([head[1], head[2], head[3], head[4]]) as usize;
                        let Some(message) = rest.get(..length) else { break };
                        self.ready.push_back(message.to_vec());
                        self.rest.drain(..5 + length);
                    }
                }
                None => {
                    assert!(self.rest.is_empty(), "half a message");
                    let trailers = soon(self.body.trailers()).await.unwrap();
                    // A refused call has everything in its head.
                    let trailers = trailers.unwrap_or_else(|| self.headers.clone());
                    self.ended = Some(Ended::read(&trailers));
                }
            }
        }
    }

    pub(crate) fn header(&self, name: &str) -> Option<&str> {
        self.headers.get(name).map(|value| value.to_str().unwrap())
    }

    /// How the call ended, once there are no more messages.
    pub(crate) fn ended(&self) -> &Ended {
        self.ended.as_ref().expect("the call has ended")
    }
}

/// Calls a method with raw bytes as its body.
async fn call(client: &Client, path: &str, headers: &[(&str, &str)], body: Vec<u8>) -> Messages {
    let stream = TcpStream::connect(&client.address).await.unwrap();
    let (mut requests, connection) = client::handshake(stream).await.unwrap();
    let connection = tokio::spawn(connection);
    let mut request = Request::post(format!("http://{}{path}", client.address))
        .header("te", "trailers")
        .header("content-type", "application/grpc");
    if !client.version.is_empty() {
        request = request.header("a2a-version", client.version);
    }
    if let Some(key) = &client.key {
        request = request.header("authorization", format!("Bearer secret-of-{key}-0123456789"));
    }
    for (name, value) in headers {
        request = request.header(*name, *value);
    }
    let (response, mut sends) = requests.send_request(request.body(()).unwrap(), false).unwrap();
    // A refusal may come before everything was sent.
    let _ = sends.send_data(body.into(), true);
    let response = soon(response).await.unwrap();
    assert_eq!(response.status(), 200);
    assert_eq!(response.headers()["content-type"], "application/grpc");
    let (head, body) = response.into_parts();
    Messages {
        body,
        rest: Vec::new(),
        ready: VecDeque::new(),
        headers: head.headers,
        ended: None,
        _connection: connection,
        _requests: requests,
    }
}

fn framed(message: &[u8]) -> Vec<u8> {
    let length = u32::try_from(message.len()).unwrap();
    [&[0], &length.to_be_bytes()[..], message].concat()
}

fn path_of(version: Version, method: &str) -> String {
    format!("/{}.{}/{method}", version.package(), protobuf::SERVICE)
}

/// Calls an operation with a document in the field names of the version's messages.
pub(crate) async fn ask(
    client: &Client,
    version: Version,
    operation: Operation,
    document: &Value,
) -> Messages {
    let method = protobuf::method(version, operation).unwrap();
    let bytes = protobuf::write(method.request, document.as_object().unwrap()).unwrap();
    call(client, &path_of(version, method.name), &[], framed(&bytes)).await
}

/// Decodes a message to a document.
pub(crate) fn document(version: Version, operation: Operation, message: &[u8]) -> Value {
    let method = protobuf::method(version, operation).unwrap();
    Value::Object(protobuf::read(method.response, message).unwrap())
}

/// Renames the fields of a 1.0 request to those of 0.3.
pub(crate) fn old_names(request: &Value) -> Map<String, Value> {
    let mut old = Map::new();
    for (name, value) in request.as_object().unwrap() {
        let (name, value) = match name.as_str() {
            "id" => ("name", json!(format!("tasks/{}", value.as_str().unwrap()))),
            "taskId" => ("parent", json!(format!("tasks/{}", value.as_str().unwrap()))),
            other => (other, value.clone()),
        };
        old.insert(name.to_owned(), value);
    }
    old
}

async fn refused(client: &Client, path: &str, headers: &[(&str, &str)], body: Vec<u8>) -> (i32, String) {
    let mut messages = call(client, path, headers, body).await;
    assert_eq!(messages.next().await, None);
    let ended = messages.ended();
    (ended.code, ended.message.clone())
}

const GET: &str = "/lf.a2a.v1.A2AService/GetTask";

#[tokio::test]
async fn malformed_requests_are_refused_without_harm() {
    let server = Server::start().await;
    let client = server.v1();
    for (body, code) in [
        (Vec::new(), 3),
        (vec![0, 0, 0, 0], 3),
        (vec![0, 0, 0, 0, 9], 3),
        (vec![1, 0, 0, 0, 0], 12),
        (framed(&[0xff; 40]), 3),
        (framed(&[0x0a, 0x7f]), 3),
        ([framed(b""), framed(b"")].concat(), 3),
        (vec![0; (10 << 20) + 6], 8),
    ] {
        let length = body.len();
        assert_eq!(refused(&client, GET, &[], body).await.0, code, "{length} bytes");
    }
    // Nested beyond any limit: a struct in a list in a struct, and so on.
    let mut deep = json!("x");
    for _ in 0..90 {
        deep = json!({ "a": [deep] });
    }
    let method = protobuf::method(Version::V1_0, Operation::SendMessage).unwrap();
    let message = json!({"message": {"messageId": "m", "role": "ROLE_USER", "parts": [{"data": deep}]}});
    let bytes = protobuf::write(method.request, message.as_object().unwrap()).unwrap();
    assert_eq!(
        refused(&client, "/lf.a2a.v1.A2AService/SendMessage", &[], framed(&bytes))
            .await
            .0,
        3
    );
    for (path, code) in [
        ("/lf.a2a.v1.A2AService/Nothing", 12),
        ("/lf.a2a.v2.A2AService/GetTask", 12),
        ("/GetTask", 12),
        ("/", 12),
    ] {
        assert_eq!(refused(&client, path, &[], framed(b"")).await.0, code, "{path}");
    }
    // The same host handled all of it and still answers.
    let found = refused(&client, GET, &[], framed(b"\x12\x01x")).await;
    assert_eq!(found.0, 5, "{found:?}");
}

#[tokio::test]
async fn callers_and_versions_are_checked() {
    let server = Server::start().await;
    let mut nobody = server.v1();
    nobody.key = None;
    assert_eq!(refused(&nobody, GET, &[], framed(b"")).await.0, 16);
    assert_eq!(
        refused(&server.v1().by("wrong"), GET, &[], framed(b"")).await.0,
        16
    );
    // The error names the missing scope.
    assert_eq!(
        refused(&server.v1().by("canceller"), GET, &[], framed(b"\x12\x01x"))
            .await
            .0,
        7
    );
    let method = protobuf::method(Version::V1_0, Operation::SendMessage).unwrap();
    let message = json!({"message": {"messageId": "m", "role": "ROLE_USER", "parts": [{"text": "x"}]}});
    let bytes = protobuf::write(method.request, message.as_object().unwrap()).unwrap();
    let send = path_of(Version::V1_0, method.name);
    assert_eq!(
        refused(&server.v1().by("reader"), &send, &[], framed(&bytes))
            .await
            .0,
        7
    );

    // The package names one version and the metadata another, or none, which means 0.3.
    for (client, path) in [(server.v03(), GET), (server.v1(), "/a2a.v1.A2AService/GetTask")] {
        let mut messages = call(&client, path, &[], framed(b"")).await;
        assert_eq!(messages.next().await, None);
        assert_eq!(messages.ended().reason(), "VERSION_NOT_SUPPORTED", "{path}");
        assert_eq!(messages.ended().code, 9, "{path}");
    }
}

#[tokio::test]
async fn old_client_gets_the_error_name() {
    let server = Server::start().await;
    for (client, version, name) in [
        (server.v1(), Version::V1_0, "id"),
        (server.v03(), Version::V0_3, "name"),
    ] {
        let id = "run_00000000000000000000000000000000";
        let (id, message) = match version {
            Version::V1_0 => (id.to_owned(), "task not found"),
            Version::V0_3 => (format!("tasks/{id}"), "TaskNotFoundError: task not found"),
        };
        let mut asked = ask(&client, version, Operation::GetTask, &json!({name: id})).await;
        assert_eq!(asked.next().await, None);
        let ended = asked.ended();
        assert_eq!(
            (ended.code, ended.message.replace("%20", " ").as_str()),
            (5, message)
        );
    }
}

#[tokio::test]
async fn deadline_ends_the_call_but_not_the_task() {
    let server = Server::start().await;
    let client = server.v1();
    for text in ["", "1", "x", "123456789S", "-1S"] {
        assert_eq!(
            refused(&client, GET, &[("grpc-timeout", text)], framed(b""))
                .await
                .0,
            3,
            "{text}"
        );
    }
    let method = protobuf::method(Version::V1_0, Operation::SendMessage).unwrap();
    let message = json!({"message": {"messageId": "late", "role": "ROLE_USER", "parts": [{"text": "x"}],
        "metadata": {"skillId": "slow"}}});
    let bytes = protobuf::write(method.request, message.as_object().unwrap()).unwrap();
    let send = path_of(Version::V1_0, method.name);
    assert_eq!(
        refused(&client, &send, &[("grpc-timeout", "200m")], framed(&bytes))
            .await
            .0,
        4
    );
    let tasks = client.ok("ListTasks", json!({})).await;
    assert_eq!(
        tasks["tasks"][0]["status"]["state"], "TASK_STATE_WORKING",
        "{tasks}"
    );
    // Sending the message again returns the task it created.
    let mut again = message.clone();
    again["configuration"] = json!({"returnImmediately": true});
    let id = tasks["tasks"][0]["id"].as_str().unwrap();
    let mut cancelled = ask(
        &client,
        Version::V1_0,
        Operation::CancelTask,
        &json!({ "id": id }),
    )
    .await;
    let task = document(
        Version::V1_0,
        Operation::CancelTask,
        &cancelled.next().await.unwrap(),
    );
    assert_eq!(task["status"]["state"], "TASK_STATE_CANCELED");
    assert_eq!(cancelled.next().await, None);
    assert_eq!(cancelled.ended().code, 0);
}

#[tokio::test]
async fn shutdown_ends_streams_with_a_status() {
    let server = Server::start().await;
    let client = server.v1();
    let message = json!({"message": {"messageId": "s", "role": "ROLE_USER", "parts": [{"text": "x"}],
        "metadata": {"skillId": "slow"}}});
    let mut stream = ask(&client, Version::V1_0, Operation::SendStreamingMessage, &message).await;
    assert!(stream.next().await.is_some());
    soon(server.stop()).await;
    while stream.next().await.is_some() {}
    // UNAVAILABLE: the task continues, and the client may subscribe again.
    assert_eq!(stream.ended().code, 14);
}

#[tokio::test]
async fn sse_extension_is_not_acknowledged() {
    let server = Server::start().await;
    let extension = "urn:wopr:a2a:resume:1";
    let mut messages = call(
        &server.v1(),
        GET,
        &[("a2a-extensions", extension)],
        framed(b"\x12\x01x"),
    )
    .await;
    assert_eq!(messages.next().await, None);
    assert_eq!(messages.headers.get("a2a-extensions"), None);
}

#[tokio::test]
async fn a_revoked_key_ends_its_stream_with_a_status() {
    let server = Server::start().await;
    let guest = server.v1().by("guest");
    let row = KeyRow {
        id: "guest".to_owned(),
        secret_sha256: hash_hex("secret-of-guest-0123456789"),
        tenant: serde_json::from_value(json!("default")).unwrap(),
        principal: serde_json::from_value(json!("guest")).unwrap(),
        scopes: vec!["*".to_owned()],
        membership: wopr_core::Membership::default(),
        created_at: server.host.engine().now(),
        revoked_at: None,
    };
    server
        .host
        .engine()
        .store()
        .add_key(row, usize::MAX)
        .await
        .unwrap();
    let message = json!({"message": {"messageId": "s", "role": "ROLE_USER", "parts": [{"text": "x"}],
        "metadata": {"skillId": "slow"}}});
    let mut streams = Vec::new();
    for version in Version::ALL {
        let message = match version {
            Version::V1_0 => message.clone(),
            Version::V0_3 => json!({"message": {"messageId": "s3", "role": "ROLE_USER",
                "content": [{"text": "x"}], "metadata": {"skillId": "slow"}}}),
        };
        let speaks = match version {
            Version::V1_0 => guest.clone(),
            Version::V0_3 => Client {
                version: "",
                ..guest.clone()
            },
        };
        let stream = ask(&speaks, *version, Operation::SendStreamingMessage, &message).await;
        streams.push(stream);
    }
    for stream in &mut streams {
        assert!(stream.next().await.is_some());
    }
    let revoked = server
        .v1()
        .at("/v1/host/wopr/keys/guest")
        .raw("DELETE", b"")
        .await;
    assert_eq!(revoked.status, 204);
    for mut stream in streams {
        while stream.next().await.is_some() {}
        assert_eq!(stream.ended().code, 16);
    }
    // The client learns the reason when it reconnects.
    assert_eq!(refused(&guest, GET, &[], framed(b"\x12\x01x")).await.0, 16);
}

#[tokio::test]
async fn unauthenticated_watches_are_limited() {
    const WATCH: &str = "/grpc.health.v1.Health/Watch";
    let server = Server::start().await;
    let anonymous = Client {
        key: None,
        ..server.v1()
    };
    let watch = async |client: &Client| call(client, WATCH, &[], framed(b"")).await;
    let mut held = Vec::new();
    for _ in 0..64 {
        let mut watching = watch(&anonymous).await;
        assert!(watching.next().await.is_some());
        held.push(watching);
    }
    for client in [&anonymous, &server.v1().by("nobody")] {
        let (code, message) = refused(client, WATCH, &[], framed(b"")).await;
        assert_eq!(code, 8, "{message}");
    }
    // Authenticated callers get a watch, a check holds none, and everything else still works.
    assert!(watch(&server.v1()).await.next().await.is_some());
    let mut check = call(&anonymous, "/grpc.health.v1.Health/Check", &[], framed(b"")).await;
    assert!(check.next().await.is_some());
    // An ended watch makes room for another.
    drop(held.pop());
    soon(async {
        while watch(&anonymous).await.next().await.is_none() {
            tokio::task::yield_now().await;
        }
    })
    .await;
}

#[tokio::test]
async fn errors_quoting_long_input_fit_into_response_headers() {
    let server = Server::start().await;
    let client = server.v1();
    for id in ["x".repeat(100_000), "ä".repeat(100_000), "%".repeat(100_000)] {
        let document = json!({ "id": id });
        let mut answer = ask(&client, Version::V1_0, Operation::GetTask, &document).await;
        assert_eq!(answer.next().await, None);
        assert_eq!(answer.ended().reason(), "TASK_NOT_FOUND");
        let fields = answer.headers.iter();
        let size: usize = fields
            .map(|(name, value)| name.as_str().len() + value.len() + 32)
            .sum();
        assert!(size < 8 << 10, "{size}");
    }
    let long = "9".repeat(20_000);
    let mut answer = call(&client, GET, &[("a2a-version", &long)], framed(b"\x12\x01x")).await;
    assert_eq!(answer.next().await, None);
    assert_ne!(answer.ended().code, 0);
}
