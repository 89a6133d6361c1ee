//! What one client does for one run: from the first byte of the request that starts it until the client has read
//! that it completed.

use std::{fmt::Write as _, net::SocketAddr, time::Duration};

use anyhow::{Context as _, Result, bail, ensure};
use clap::ValueEnum;
use serde::Serialize;
use serde_json::{Value, json};

use super::http::{Connection, write_request};

/// The workflow that is run.
pub(crate) const WORKFLOW: &str = "wopr-bench-one-node";

/// How long one exchange may take before it counts as failed.
const EXCHANGE_LIMIT: Duration = Duration::from_secs(30);

/// How a run is started and followed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum, Serialize)]
pub(crate) enum Scenario {
    /// `POST /v1/runs`, then its events as SSE until `run.completed`.
    #[value(name = "rest")]
    #[serde(rename = "rest")]
    Rest,
    /// A blocking `SendMessage` of A2A 1.0.
    #[value(name = "a2a-1.0")]
    #[serde(rename = "a2a-1.0")]
    A2a1,
    /// A blocking `message/send` of A2A 0.3.
    #[value(name = "a2a-0.3")]
    #[serde(rename = "a2a-0.3")]
    A2a03,
}

impl Scenario {
    /// The name on the command line and in reports.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Rest => "rest",
            Self::A2a1 => "a2a-1.0",
            Self::A2a03 => "a2a-0.3",
        }
    }
}

/// The workflow: one node that does nothing, so that what is measured is ours.
pub(crate) fn workflow() -> Value {
    json!({
        "id": WORKFLOW,
        "name": "One node",
        "version": "1",
        "nodes": [{
            "id": "only", "typeId": "core.noop", "name": "Only", "position": {"x": 0, "y": 0},
            "config": {}, "inputs": {},
        }],
        "edges": [],
        "triggers": [{"id": "manual", "type": "manual"}],
        "variables": [],
        "metadata": {},
        "settings": {},
    })
}

/// A client that does one run after another on one connection.
#[derive(Debug)]
pub(crate) struct Client {
    address: SocketAddr,
    scenario: Scenario,
    fields: String,
    connection: Option<Connection>,
    /// The request that starts a run; of A2A, with a place for the message's id.
    start: Vec<u8>,
    /// Where the id of a message goes, and what is in it besides the number.
    message: Option<Message>,
    request: Vec<u8>,
    answer: Vec<u8>,
}

#[derive(Debug)]
struct Message {
    at: usize,
    prefix: u64,
    serial: u64,
}

/// As long as the ids that take its place, so that the length of a request never changes.
const PLACE: &str = "bench-0000000000000000-0000000000000000";

impl Client {
    /// Prepares a client. `number` keeps the ids of messages of several clients apart, across runs of the bench too.
    pub(crate) fn new(address: SocketAddr, key: &str, scenario: Scenario, number: u64) -> Self {
        let fields = format!("authorization: Bearer {key}\r\n");
        let mut start = Vec::new();
        let mut message = None;
        match scenario {
            Scenario::Rest => {
                let body = json!({"workflowId": WORKFLOW}).to_string();
                write_request(&mut start, "POST", "/v1/runs", &fields, Some(body.as_bytes()));
            }
            Scenario::A2a1 | Scenario::A2a03 => {
                let (version, body) = send(scenario);
                let fields = format!("{fields}{version}");
                write_request(
                    &mut start,
                    "POST",
                    "/a2a",
                    &fields,
                    Some(body.to_string().as_bytes()),
                );
                let at = start
                    .windows(PLACE.len())
                    .position(|window| window == PLACE.as_bytes())
                    .expect("the body has the place for the id");
                message = Some(Message {
                    at,
                    prefix: number,
                    serial: 0,
                });
            }
        }
        Self {
            address,
            scenario,
            fields,
            connection: None,
            start,
            message,
            request: Vec::new(),
            answer: Vec::new(),
        }
    }

    /// Connects if there is no connection to go on with.
    pub(crate) async fn connect(&mut self) -> Result<()> {
        if self.connection.is_none() {
            self.connection = Some(Connection::open(self.address).await.context("connect")?);
        }
        Ok(())
    }

    /// Does one run. After a failure the connection is gone.
    pub(crate) async fn run(&mut self) -> Result<()> {
        self.connect().await?;
        let mut connection = self.connection.take().expect("it was just connected");
        let done = tokio::time::timeout(EXCHANGE_LIMIT, self.exchange(&mut connection)).await;
        done.with_context(|| format!("complete a run within {EXCHANGE_LIMIT:?}"))??;
        if connection.is_reusable() {
            self.connection = Some(connection);
        }
        Ok(())
    }

    async fn exchange(&mut self, connection: &mut Connection) -> Result<()> {
        if let Some(message) = &mut self.message {
            message.serial += 1;
            let id = format!("bench-{:016x}-{:016x}", message.prefix, message.serial);
            self.start[message.at..message.at + PLACE.len()].copy_from_slice(id.as_bytes());
        }
        self.answer.clear();
        let status = connection.send(&self.start).await.context("start a run")?;
        connection.body(&mut self.answer).await.context("start a run")?;
        match self.scenario {
            Scenario::Rest => {
                self.expect(status, 201, b"\"runId\":\"")?;
                self.follow(connection).await
            }
            Scenario::A2a1 => self.expect(status, 200, b"\"TASK_STATE_COMPLETED\""),
            Scenario::A2a03 => self.expect(status, 200, b"\"state\":\"completed\""),
        }
    }

    /// Reads the events of the run just started, to the end of the stream.
    async fn follow(&mut self, connection: &mut Connection) -> Result<()> {
        let id = run_id(&self.answer).context("find the id of the run in the answer")?;
        let mut path = String::with_capacity(64);
        write!(path, "/v1/runs/{id}/events").expect("a string takes every write");
        let fields = format!("{}accept: text/event-stream\r\n", self.fields);
        self.request.clear();
        write_request(&mut self.request, "GET", &path, &fields, None);
        self.answer.clear();
        let status = connection.send(&self.request).await.context("follow a run")?;
        connection.body(&mut self.answer).await.context("follow a run")?;
        self.expect(status, 200, b"event: run.completed\n")
    }

    fn expect(&self, status: u16, expected: u16, part: &[u8]) -> Result<()> {
        if status == expected && contains(&self.answer, part) {
            return Ok(());
        }
        let text = String::from_utf8_lossy(&self.answer);
        let text: String = text.chars().take(400).collect();
        bail!(
            "expected {expected} with {:?}, got {status}: {text}",
            String::from_utf8_lossy(part)
        );
    }
}

/// The version field, if any, and the body of a blocking send.
fn send(scenario: Scenario) -> (&'static str, Value) {
    let metadata = json!({"openwop.workflowId": WORKFLOW});
    if scenario == Scenario::A2a03 {
        let message = json!({
            "kind": "message", "messageId": PLACE, "role": "user", "parts": [{"kind": "text", "text": "go"}],
            "metadata": metadata,
        });
        let params = json!({"message": message, "configuration": {"blocking": true}});
        (
            "",
            json!({"jsonrpc": "2.0", "id": 1, "method": "message/send", "params": params}),
        )
    } else {
        let message = json!({
            "messageId": PLACE, "role": "ROLE_USER", "parts": [{"text": "go"}], "metadata": metadata,
        });
        let body =
            json!({"jsonrpc": "2.0", "id": 1, "method": "SendMessage", "params": {"message": message}});
        ("a2a-version: 1.0\r\n", body)
    }
}

fn contains(text: &[u8], part: &[u8]) -> bool {
    text.windows(part.len()).any(|window| window == part)
}

/// The value of the first `runId`. A whole JSON parser would cost the server's time.
fn run_id(answer: &[u8]) -> Option<&str> {
    const NAME: &[u8] = b"\"runId\":\"";
    let start = answer.windows(NAME.len()).position(|window| window == NAME)? + NAME.len();
    let length = answer[start..].iter().position(|byte| *byte == b'"')?;
    std::str::from_utf8(&answer[start..start + length]).ok()
}

/// One exchange outside of the measurement.
pub(crate) async fn once(
    address: SocketAddr,
    key: &str,
    method: &str,
    path: &str,
    body: Option<&Value>,
) -> Result<(u16, String)> {
    let work = async {
        let mut request = Vec::new();
        let fields = format!("authorization: Bearer {key}\r\nconnection: close\r\n");
        let body = body.map(Value::to_string);
        write_request(
            &mut request,
            method,
            path,
            &fields,
            body.as_deref().map(str::as_bytes),
        );
        let mut connection = Connection::open(address).await?;
        let status = connection.send(&request).await?;
        let mut answer = Vec::new();
        connection.body(&mut answer).await?;
        anyhow::Ok((status, String::from_utf8_lossy(&answer).into_owned()))
    };
    let done = tokio::time::timeout(EXCHANGE_LIMIT, work).await;
    done.map_err(Into::into)
        .flatten()
        .with_context(|| format!("ask the server: {method} {path}"))
}

/// Makes the workflow known to the server.
pub(crate) async fn register(address: SocketAddr, key: &str) -> Result<()> {
    let (status, answer) = once(address, key, "POST", "/v1/workflows", Some(&workflow())).await?;
    ensure!(
        (200..300).contains(&status),
        "register the workflow: the server answered {status}: {answer}"
    );
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_id_of_a_run_is_found() {
        assert_eq!(run_id(br#"{"runId":"abc","status":"pending"}"#), Some("abc"));
        assert_eq!(run_id(br#"{"status":"pending"}"#), None);
        assert_eq!(run_id(br#"{"runId":"abc"#), None);
    }

    #[test]
    fn ids_of_messages_have_the_length_of_their_place() {
        for (prefix, serial) in [(0, 1), (u64::MAX, u64::MAX)] {
            assert_eq!(format!("bench-{prefix:016x}-{serial:016x}").len(), PLACE.len());
        }
    }
}
