//! The load: clients that begin calling runs, answer what is asked and cancel some, and remember what they were told.
//! Each request is repeated until it is answered, as clients of hosts that may be away do.

use std::{
    collections::BTreeMap,
    io,
    net::SocketAddr,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicUsize, Ordering::Relaxed},
    },
    time::Duration,
};

use rand::{Rng as _, SeedableRng as _, rngs::StdRng};
use serde_json::{Value, json};
use tokio::time;

use super::parsed;
use crate::{
    host::KEY,
    http::{Connection, write_request},
};

/// Interval between two attempts of a request, and between two reads of a run.
const PAUSE: Duration = Duration::from_millis(40);
/// The longest exchange.
const LIMIT: Duration = Duration::from_secs(20);

/// What a client began, and what it was told of it.
#[derive(Debug)]
pub(super) struct Story {
    /// The calling run.
    pub(super) run: String,
    /// The text that the task begins with, unlike any other.
    pub(super) tag: String,
    pub(super) kind: Kind,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Kind {
    /// Is answered at once.
    Short,
    /// Asks twice. These are the acknowledged answers.
    Order(Vec<String>),
    /// Takes long, and is cancelled after the agent's acceptance was recorded.
    Cancelled,
    /// Takes long, and is cancelled while the message may be under way. A host that dies in that moment does not know
    /// of the task, and has to find it. There may be none.
    CancelledEarly,
}

impl Story {
    /// The workflows of the callee, each called by a workflow of the same name.
    pub(super) const SKILLS: [&str; 3] = ["short", "order", "long"];

    pub(super) fn count(stories: &[Self]) -> String {
        let mut counts = BTreeMap::new();
        for story in stories {
            let kind = match story.kind {
                Kind::Short => "short",
                Kind::Order(_) => "answered twice",
                Kind::Cancelled => "cancelled",
                Kind::CancelledEarly => "cancelled early",
            };
            *counts.entry(kind).or_insert(0) += 1;
        }
        format!("{} calls {counts:?}", stories.len())
    }
}

fn chain(id: &str, nodes: &[Value]) -> Value {
    let ids: Vec<_> = nodes.iter().map(|node| node["id"].as_str().unwrap()).collect();
    let edges = ids.windows(2).map(|pair| {
        json!({ "id": format!("{}-{}", pair[0], pair[1]), "sourceNodeId": pair[0], "targetNodeId": pair[1] })
    });
    json!({
        "id": id, "name": id, "version": "1", "nodes": nodes, "edges": edges.collect::<Vec<_>>(),
        "triggers": [{ "id": "manual", "type": "manual" }],
        "variables": [{ "name": "prompt", "type": "string" }], "metadata": { "public": true }, "settings": {},
    })
}

fn node(id: &str, kind: &str, config: &Value) -> Value {
    let mut node = json!({
        "id": id, "typeId": kind, "name": id, "position": { "x": 0, "y": 0 }, "config": config, "inputs": {},
    });
    if kind == "core.template" {
        node["artifactType"] = "text".into();
    }
    node
}

/// Asks twice, and says what it was told.
pub(crate) fn order() -> Value {
    let ask = |id: &str, question: &str| {
        let questions = json!([{ "id": "said", "question": question }]);
        node(id, "core.clarificationGate", &json!({ "questions": questions }))
    };
    let template = "{{ prompt }} {{ nodes.colour.answers }} {{ nodes.size.answers }}";
    let said = node("said", "core.template", &json!({ "template": template }));
    chain(
        "order",
        &[ask("colour", "Which colour?"), ask("size", "Which size?"), said],
    )
}

/// Takes longer than any test.
pub(crate) fn long() -> Value {
    chain(
        "long",
        &[node("wait", "core.delay", &json!({ "delayMs": 3_600_000 }))],
    )
}

pub(super) fn short() -> Value {
    chain(
        "short",
        &[node(
            "said",
            "core.template",
            &json!({ "template": "{{ prompt }}" }),
        )],
    )
}

/// A client of the calling host.
pub(super) struct Client {
    line: Line,
    number: u64,
    random: StdRng,
    stop: Arc<AtomicBool>,
}

/// Sends requests to a host until they are answered.
pub(super) struct Line {
    address: SocketAddr,
    lost: Arc<AtomicUsize>,
}

impl Line {
    pub(super) fn new(address: SocketAddr, lost: Arc<AtomicUsize>) -> Self {
        Self { address, lost }
    }

    pub(super) async fn get(&self, path: &str) -> (u16, Value) {
        self.ask("GET", path, "", None).await
    }

    pub(super) async fn post(&self, path: &str, fields: &str, body: &Value) -> (u16, Value) {
        self.ask("POST", path, fields, Some(body)).await
    }

    async fn ask(&self, method: &str, path: &str, fields: &str, body: Option<&Value>) -> (u16, Value) {
        let body = body.map(Value::to_string);
        let fields = format!("authorization: Bearer {KEY}\r\n{fields}");
        let mut request = Vec::new();
        write_request(
            &mut request,
            method,
            path,
            &fields,
            body.as_deref().map(str::as_bytes),
        );
        loop {
            match time::timeout(LIMIT, self.exchange(&request)).await {
                Ok(Ok((status, body))) if status != 503 => return (status, body),
                Ok(Ok(_) | Err(_)) => _ = self.lost.fetch_add(1, Relaxed),
                Err(_) => panic!("{method} {path} is not answered"),
            }
            // sleep: the host is away
            time::sleep(PAUSE).await;
        }
    }

    async fn exchange(&self, request: &[u8]) -> io::Result<(u16, Value)> {
        let mut connection = Connection::open(self.address).await?;
        let status = connection.send(request).await?;
        let mut body = Vec::new();
        connection.body(&mut body).await?;
        Ok((status, parsed(&body)))
    }
}

impl Client {
    pub(super) fn new(
        address: SocketAddr,
        number: u64,
        seed: u64,
        stop: Arc<AtomicBool>,
        lost: Arc<AtomicUsize>,
    ) -> Self {
        Self {
            line: Line::new(address, lost),
            number,
            random: StdRng::seed_from_u64(seed),
            stop,
        }
    }

    pub(super) async fn run(mut self) -> Vec<Story> {
        let mut stories = Vec::new();
        while !self.stop.load(Relaxed) {
            let tag = format!("call-{}-{}", self.number, stories.len());
            let story = match self.random.random_range(0..10) {
                0..=2 => self.short(tag).await,
                3..=6 => self.order(tag).await,
                _ => self.cancelled(tag).await,
            };
            stories.push(story);
        }
        stories
    }

    async fn begin(&self, skill: &str, tag: &str) -> String {
        let body = json!({ "workflowId": skill, "inputs": { "prompt": tag } });
        let key = format!("idempotency-key: {tag}\r\n");
        let (status, run) = self.line.post("/v1/runs", &key, &body).await;
        assert!(matches!(status, 200 | 201), "{status}: {run}");
        run["runId"].as_str().unwrap().to_owned()
    }

    async fn short(&self, tag: String) -> Story {
        let run = self.begin("short", &tag).await;
        // Goes on as soon as the run has ended, or without waiting for it.
        self.until(&run, |found| found["status"] == "completed").await;
        let kind = Kind::Short;
        Story { run, tag, kind }
    }

    async fn order(&mut self, tag: String) -> Story {
        let run = self.begin("order", &tag).await;
        let mut answers = Vec::new();
        for interrupt in ["ask:0", "ask:0:1"] {
            self.until(&run, |found| found["interrupt"]["interruptId"] == interrupt)
                .await;
            let text = format!("{tag}-{}-{}", answers.len(), self.random.random::<u32>());
            let body = json!({ "interruptId": interrupt, "resumeValue": { "answers": { "answer": text } } });
            let path = format!("/v1/runs/{run}/interrupts/ask");
            let key = format!("idempotency-key: {text}\r\n");
            let (status, said) = self.line.post(&path, &key, &body).await;
            assert_eq!(status, 200, "{run}: {interrupt}: {said}");
            answers.push(text);
        }
        let kind = Kind::Order(answers);
        Story { run, tag, kind }
    }

    async fn cancelled(&mut self, tag: String) -> Story {
        let run = self.begin("long", &tag).await;
        let kind = match self.random.random_bool(0.7) {
            true => Kind::Cancelled,
            false => Kind::CancelledEarly,
        };
        if kind == Kind::Cancelled {
            self.accepted(&run).await;
        }
        let after = Duration::from_millis(self.random.random_range(0..400));
        // sleep: fault schedule
        time::sleep(after).await;
        let path = format!("/v1/runs/{run}/cancel");
        let key = format!("idempotency-key: {tag}-cancel\r\n");
        let (status, said) = self.line.post(&path, &key, &json!({})).await;
        assert_eq!(status, 200, "{run}: {said}");
        Story { run, tag, kind }
    }

    /// Waits until the agent's acceptance of the message is recorded.
    async fn accepted(&self, run: &str) {
        let path = format!("/v1/runs/{run}/events/poll?timeout=1");
        loop {
            let (status, poll) = self.line.get(&path).await;
            assert_eq!(status, 200, "{run}: {poll}");
            let mut events = poll["events"].as_array().unwrap().iter();
            if events.any(|event| event["type"] == "vendor.wopr.effect.accepted") {
                return;
            }
            self.until(run, |found| found["status"] == "running").await;
        }
    }

    /// Reads a run until something holds, or it can no longer.
    async fn until(&self, run: &str, holds: impl Fn(&Value) -> bool) {
        loop {
            let (status, found) = self.line.get(&format!("/v1/runs/{run}")).await;
            assert_eq!(status, 200, "{run}: {found}");
            if holds(&found) {
                return;
            }
            match found["status"].as_str().unwrap() {
                // A run that was active at three kills is held for an operator.
                "paused" => resume(&self.line, run).await,
                "failed" | "completed" | "cancelled" => panic!("{run} has ended too soon: {found:#}"),
                _ => {}
            }
            // sleep: the pace of asking
            time::sleep(PAUSE).await;
        }
    }
}

/// Resumes a run that was held because it was active at three kills.
pub(super) async fn resume(line: &Line, run: &str) {
    let (status, said) = line.post(&format!("/v1/runs/{run}:resume"), "", &json!({})).await;
    assert!(matches!(status, 200 | 202 | 409), "{run}: {status}: {said}");
}
