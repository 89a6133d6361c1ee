//! A load client: executes one run at a time, from the first byte of the request that starts it until the
//! client has read the expected result.

use std::net::SocketAddr;

use anyhow::{Context as _, Result, bail};
use serde_json::{Value, json};
use tokio::task::JoinSet;

use super::{
    call::{Caller, contains},
    http::write_request,
    scenario::{Journey, Way},
    workflow::{APPROVAL, GATE},
};

/// Maximum number of polls before a run counts as stuck.
const POLLS: u32 = 10_000;
/// Number of connections used to park runs: enough to fill group commits.
const PARKING: usize = 32;

/// A client that executes runs one after another on one connection.
#[derive(Debug)]
pub(crate) struct Client {
    caller: Caller,
    way: Way,
    /// The request that starts a run. For A2A it contains a placeholder for the message id.
    start: Vec<u8>,
    /// The position of the placeholder, and the constant part of the ids.
    message: Option<Message>,
    /// Runs waiting to be resumed.
    parked: Vec<String>,
    /// The path that forks the run that is replayed.
    fork: Option<String>,
}

#[derive(Debug)]
struct Message {
    at: usize,
    prefix: u64,
    serial: u64,
}

/// Has the same length as the ids that replace it, so that the length of a request never changes.
const PLACE: &str = "bench-0000000000000000-0000000000000000";

impl Client {
    /// Creates a client. `number` makes its message ids unique among all clients, including those of earlier
    /// benchmarks.
    pub(crate) fn new(address: SocketAddr, key: &str, journey: Journey, number: u64) -> Self {
        let Journey { workflow, way } = journey;
        let caller = Caller::new(address, key);
        let mut start = Vec::new();
        let mut message = None;
        match way {
            Way::Rest | Way::Poll | Way::Waiting | Way::Resume | Way::Fork => {
                let body = json!({"workflowId": workflow}).to_string();
                let body = Some(body.as_bytes());
                write_request(&mut start, "POST", "/v1/runs", caller.fields(), body);
            }
            Way::Document => {
                let path = format!("/awp/v1/workflows/{workflow}/executions");
                write_request(
                    &mut start,
                    "POST",
                    &path,
                    caller.fields(),
                    Some(br#"{"input":{"name":"Ada"}}"#),
                );
            }
            Way::A2a1 | Way::A2a03 => {
                let (version, body) = if way == Way::A2a1 {
                    ("a2a-version: 1.0\r\n", send_message(workflow))
                } else {
                    ("", message_send(workflow))
                };
                let fields = format!("{}{version}", caller.fields());
                let body = body.to_string();
                write_request(&mut start, "POST", "/a2a", &fields, Some(body.as_bytes()));
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
            caller,
            way,
            start,
            message,
            parked: Vec::new(),
            fork: None,
        }
    }

    /// Connects unless there is a reusable connection.
    pub(crate) async fn connect(&mut self) -> Result<()> {
        self.caller.connect().await
    }

    /// Returns `true` if the client can start: resuming requires a parked run.
    pub(crate) fn is_ready(&self) -> bool {
        self.way != Way::Resume || !self.parked.is_empty()
    }

    /// Parks runs until `n` are waiting to be resumed, or makes the run that is replayed. Does nothing for other journeys.
    pub(crate) async fn prepare(&mut self, n: usize) -> Result<()> {
        while self.way == Way::Resume && self.parked.len() < n {
            let run = self.begin().await.context("park a run")?;
            self.parked.push(run);
        }
        if self.way == Way::Fork && self.fork.is_none() {
            let run = self.begin().await.context("make the run to replay")?;
            self.poll(&run).await?;
            self.fork = Some(format!("/v1/runs/{run}:fork"));
        }
        Ok(())
    }

    /// Executes one run. The connection is dropped on failure.
    pub(crate) async fn run(&mut self) -> Result<()> {
        match self.way {
            Way::Rest => {
                let run = self.begin().await?;
                self.follow(&run).await
            }
            Way::Poll => {
                let run = self.begin().await?;
                self.poll(&run).await
            }
            Way::A2a1 => self.send(b"\"TASK_STATE_COMPLETED\"").await,
            Way::A2a03 => self.send(b"\"state\":\"completed\"").await,
            Way::Waiting => {
                let run = self.begin().await?;
                let status = self
                    .caller
                    .ask("GET", &format!("/v1/runs/{run}"), "", None)
                    .await?;
                self.caller
                    .expect(status, 200, b"\"status\":\"waiting-approval\"")
            }
            Way::Resume => {
                let run = self.parked.pop().context("find a run that waits")?;
                resume(&mut self.caller, &run).await
            }
            Way::Document => {
                let status = self
                    .caller
                    .exchange(&self.start)
                    .await
                    .context("start an execution")?;
                self.caller.expect(status, 200, b"\"status\":\"completed\"")
            }
            Way::Fork => {
                let path = self.fork.as_deref().context("find the run to replay")?;
                let status = self
                    .caller
                    .ask("POST", path, "", Some(br#"{"mode":"replay"}"#))
                    .await?;
                let run = self.made(status)?;
                self.poll(&run).await
            }
        }
    }

    /// Starts a run over REST and returns its id.
    async fn begin(&mut self) -> Result<String> {
        let status = self.caller.exchange(&self.start).await.context("start a run")?;
        self.made(status)
    }

    /// The id of the run that the server's answer tells of.
    fn made(&self, status: u16) -> Result<String> {
        self.caller.expect(status, 201, b"\"runId\":\"")?;
        run_id(&self.caller.answer)
            .map(ToOwned::to_owned)
            .context("find the id of the run in the answer")
    }

    /// Sends a blocking A2A message, which is answered when the run has ended.
    async fn send(&mut self, part: &[u8]) -> Result<()> {
        let message = self.message.as_mut().context("send a message")?;
        message.serial += 1;
        let id = format!("bench-{:016x}-{:016x}", message.prefix, message.serial);
        self.start[message.at..message.at + PLACE.len()].copy_from_slice(id.as_bytes());
        let status = self.caller.exchange(&self.start).await.context("start a run")?;
        self.caller.expect(status, 200, part)
    }

    /// Polls a run until it has completed.
    async fn poll(&mut self, run: &str) -> Result<()> {
        const COMPLETED: &[u8] = b"\"status\":\"completed\"";
        let path = format!("/v1/runs/{run}");
        for _ in 0..POLLS {
            let status = self.caller.ask("GET", &path, "", None).await?;
            self.caller.expect(status, 200, b"")?;
            if contains(&self.caller.answer, COMPLETED) {
                return Ok(());
            }
        }
        bail!("run {run} did not complete while it was read {POLLS} times")
    }

    /// Reads the events of a run until the stream ends.
    async fn follow(&mut self, run: &str) -> Result<()> {
        let path = format!("/v1/runs/{run}/events");
        let accept = "accept: text/event-stream\r\n";
        let status = self.caller.ask("GET", &path, accept, None).await?;
        self.caller.expect(status, 200, b"event: run.completed\n")
    }
}

/// Accepts the approval that a run of [`APPROVAL`] waits for. The response shows that the run has completed.
pub(crate) async fn resume(caller: &mut Caller, run: &str) -> Result<()> {
    const ACCEPT: &[u8] = br#"{"resumeValue":{"action":"accept"}}"#;
    let path = format!("/v1/runs/{run}/interrupts/{GATE}");
    let status = caller.ask("POST", &path, "", Some(ACCEPT)).await?;
    caller.expect(status, 200, b"\"status\":\"completed\"")
}

/// A blocking A2A 1.0 send.
fn send_message(workflow: &str) -> Value {
    let message = json!({
        "messageId": PLACE, "role": "ROLE_USER", "parts": [{"text": "go"}],
        "metadata": {"openwop.workflowId": workflow},
    });
    json!({"jsonrpc": "2.0", "id": 1, "method": "SendMessage", "params": {"message": message}})
}

/// A blocking A2A 0.3 send.
fn message_send(workflow: &str) -> Value {
    let message = json!({
        "kind": "message", "messageId": PLACE, "role": "user", "parts": [{"kind": "text", "text": "go"}],
        "metadata": {"openwop.workflowId": workflow},
    });
    let params = json!({"message": message, "configuration": {"blocking": true}});
    json!({"jsonrpc": "2.0", "id": 1, "method": "message/send", "params": params})
}

/// Extracts the first `runId`. A full JSON parser would take CPU time from the server.
fn run_id(answer: &[u8]) -> Option<&str> {
    const NAME: &[u8] = b"\"runId\":\"";
    let start = answer.windows(NAME.len()).position(|window| window == NAME)? + NAME.len();
    let length = answer[start..].iter().position(|byte| *byte == b'"')?;
    std::str::from_utf8(&answer[start..start + length]).ok()
}

/// Creates `n` runs that wait for an approval.
pub(crate) async fn park(address: SocketAddr, key: &str, n: usize) -> Result<Vec<String>> {
    start(address, key, APPROVAL, n).await
}

/// Starts `n` runs of a workflow, and returns their ids.
pub(crate) async fn start(
    address: SocketAddr,
    key: &str,
    workflow: &'static str,
    n: usize,
) -> Result<Vec<String>> {
    let journey = Journey {
        workflow,
        way: Way::Resume,
    };
    let mut parking = JoinSet::new();
    for place in 0..PARKING.min(n) {
        let mut client = Client::new(address, key, journey, 0);
        let share = n / PARKING + usize::from(place < n % PARKING);
        parking.spawn(async move {
            client.prepare(share).await?;
            anyhow::Ok(client.parked)
        });
    }
    let mut parked = Vec::with_capacity(n);
    while let Some(some) = parking.join_next().await {
        parked.extend(some.context("park runs")??);
    }
    Ok(parked)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn run_id_is_extracted() {
        assert_eq!(run_id(br#"{"runId":"abc","status":"pending"}"#), Some("abc"));
        assert_eq!(run_id(br#"{"status":"pending"}"#), None);
        assert_eq!(run_id(br#"{"runId":"abc"#), None);
    }

    #[test]
    fn message_ids_have_the_length_of_the_placeholder() {
        for (prefix, serial) in [(0, 1), (u64::MAX, u64::MAX)] {
            assert_eq!(format!("bench-{prefix:016x}-{serial:016x}").len(), PLACE.len());
        }
    }
}
