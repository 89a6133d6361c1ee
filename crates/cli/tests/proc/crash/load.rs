//! What clients do, each one thing after another until told to stop. Nothing is given up: a lost request is
//! repeated, under the same key, until it is answered.

use std::sync::{
    Arc,
    atomic::{AtomicBool, Ordering::Relaxed},
};

use rand::{Rng as _, SeedableRng as _, rngs::StdRng};
use serde_json::{Value, json};

use super::caller::{Answer, Caller, Lost, Request};

/// How many clients there are; which is what depends on its number.
pub(super) const CLIENTS: usize = WORK.len();

/// The most a client begins in one life of the host, so that a fast machine does not check for minutes what it did
/// in seconds, and every kill finds work to interrupt.
const MOST: u32 = 50;

/// One kind of work.
#[derive(Debug, Clone, Copy)]
enum Work {
    Pure,
    Delay,
    Approval,
    Clarify,
    Parent,
    ParentGate,
    Effects,
    Cancel,
    Race,
    Pause,
    Stream,
    A2a,
    A2aApproval,
}

const WORK: [Work; 17] = [
    Work::Pure,
    Work::Pure,
    Work::Delay,
    Work::Approval,
    Work::Approval,
    Work::Clarify,
    Work::Parent,
    Work::ParentGate,
    Work::Effects,
    Work::Effects,
    Work::Cancel,
    Work::Race,
    Work::Pause,
    Work::Stream,
    Work::Stream,
    Work::A2a,
    Work::A2aApproval,
];

/// The two versions of A2A, in what a client sends and reads.
#[derive(Debug, Clone, Copy)]
enum Version {
    V03,
    V1,
}

/// Where a message goes.
#[derive(Debug, Clone, Copy)]
enum To<'a> {
    /// It starts a task of this workflow.
    Workflow(&'a str),
    /// It accepts what this task asks.
    Gate(&'a str),
}

#[derive(Debug)]
pub(super) struct Client {
    number: usize,
    work: Work,
    random: StdRng,
    caller: Caller,
    peer: String,
    stop: Arc<AtomicBool>,
    serial: u32,
}

impl Client {
    pub(super) fn new(number: usize, seed: u64, caller: Caller, peer: String, stop: Arc<AtomicBool>) -> Self {
        Self {
            number,
            work: WORK[number],
            random: StdRng::seed_from_u64(seed),
            caller,
            peer,
            stop,
            serial: 0,
        }
    }

    pub(super) async fn run(mut self) {
        let mut begun = (0, 0);
        while !self.stop.load(Relaxed) {
            let life = self
                .caller
                .life_after(if begun.1 < MOST { None } else { Some(begun.0) })
                .await;
            begun = (life, if life == begun.0 { begun.1 + 1 } else { 1 });
            self.serial += 1;
            let marker = format!("{:?}-{}-{}", self.work, self.number, self.serial).to_lowercase();
            match self.work {
                Work::Pure => self.pure(&marker).await,
                Work::Delay => self.delay(&marker).await,
                Work::Approval => self.approval(&marker).await,
                Work::Clarify => self.clarify(&marker).await,
                Work::Parent => self.parent(&marker).await,
                Work::ParentGate => self.parent_gate(&marker).await,
                Work::Effects => self.effects(&marker).await,
                Work::Cancel => self.cancel(&marker).await,
                Work::Race => self.race(&marker).await,
                Work::Pause => self.pause(&marker).await,
                Work::Stream => self.stream(&marker).await,
                Work::A2a => self.a2a(&marker).await,
                Work::A2aApproval => self.a2a_approval(&marker).await,
            }
        }
    }

    fn expect(&self, is_expected: bool, what: &str, answer: &Answer) {
        self.caller.ledger().hold(is_expected, || {
            format!("{what} was answered by {} {}", answer.status, answer.body)
        });
    }

    /// Creates a run under a key, at times twice, and returns it.
    async fn create(&mut self, workflow: &str, marker: &str, mut inputs: Value) -> Option<String> {
        inputs["marker"] = marker.into();
        let body = json!({"workflowId": workflow, "inputs": inputs});
        let request = Request::post("/v1/runs", body).with("idempotency-key", marker);
        let mut run = None;
        for _ in 0..=usize::from(self.random.random_bool(0.2)) {
            let answer = self.caller.ask(&request).await;
            let id = answer.text("/runId").unwrap_or_default().to_owned();
            let is_expected = matches!(answer.status, 200 | 201) && !id.is_empty();
            self.expect(is_expected, &format!("create {marker}"), &answer);
            if !is_expected {
                return None;
            }
            self.caller.ledger().acknowledged(marker, &id);
            if let Some(before) = run.replace(id.clone()) {
                self.expect(
                    before == id,
                    &format!("create {marker} again, {before} before,"),
                    &answer,
                );
            }
        }
        run
    }

    async fn pure(&mut self, marker: &str) {
        if self.create("pure", marker, json!({})).await.is_some() && self.random.random_bool(0.1) {
            let body = json!({"workflowId": "pure", "inputs": {"marker": "another"}});
            let request = Request::post("/v1/runs", body).with("idempotency-key", marker);
            let answer = self.caller.ask(&request).await;
            self.expect(
                answer.status == 409,
                &format!("another body under the key {marker}"),
                &answer,
            );
        }
    }

    async fn delay(&mut self, marker: &str) {
        let inputs = json!({"delayMs": self.random.random_range(0..1_500)});
        self.create("delay", marker, inputs).await;
    }

    async fn approval(&mut self, marker: &str) {
        let Some(run) = self.create("approval", marker, json!({})).await else {
            return;
        };
        let answer = self.caller.ask(&Request::get(format!("/v1/runs/{run}"))).await;
        // To the gate everything is pure, so the append that created the run got there.
        self.expect(
            answer.text("/status") == Some("waiting-approval"),
            &format!("run {run} just created"),
            &answer,
        );
        match self.random.random_range(0..10) {
            0..=2 => {}
            3..=5 => {
                self.decide(&run, &format!("/v1/runs/{run}/interrupts/gate"), true)
                    .await;
            }
            6 | 7 => {
                self.decide(&run, &format!("/v1/runs/{run}/interrupts/gate"), false)
                    .await;
            }
            _ => {
                let token = answer.text("/interrupt/interruptToken").map(str::to_owned);
                self.expect(token.is_some(), &format!("run {run} with a token"), &answer);
                let path = format!("/v1/interrupts/{}", token.unwrap_or_default());
                self.decide(&run, &path, true).await;
            }
        }
    }

    async fn decide(&mut self, run: &str, path: &str, accept: bool) {
        let action = if accept { "accept" } else { "reject" };
        let request = Request::post(path, json!({"resumeValue": {"action": action}}));
        let answer = self.caller.ask(&request).await;
        // Nobody else decides, so a repeated decision that comes too late came too late to itself.
        let is_expected = answer.status == 200 || !answer.is_first && matches!(answer.status, 404 | 409);
        self.expect(is_expected, &format!("{action} of run {run}"), &answer);
        if is_expected {
            self.caller
                .ledger()
                .learned(run, |run| run.is_accepted = Some(accept));
        }
    }

    async fn clarify(&mut self, marker: &str) {
        let Some(run) = self.create("clarify", marker, json!({})).await else {
            return;
        };
        let path = format!("/v1/runs/{run}/interrupts/ask");
        let answers =
            |colour: &str| json!({"resumeValue": {"answers": [{"id": "colour", "answer": colour}]}});
        if self.random.random_bool(0.1) {
            let answer = self
                .caller
                .ask(&Request::post(path.clone(), answers("green")))
                .await;
            self.expect(
                matches!(answer.status, 400 | 422),
                &format!("a wrong answer to run {run}"),
                &answer,
            );
        }
        if self.random.random_bool(0.7) {
            let answer = self.caller.ask(&Request::post(path, answers("blue"))).await;
            let is_expected = answer.status == 200 || !answer.is_first && matches!(answer.status, 404 | 409);
            self.expect(is_expected, &format!("the answer to run {run}"), &answer);
            if is_expected {
                self.caller
                    .ledger()
                    .learned(&run, |run| run.is_accepted = Some(true));
            }
        }
    }

    async fn parent(&mut self, marker: &str) {
        let inputs = json!({"delayMs": self.random.random_range(0..500)});
        self.create("parent", marker, inputs).await;
    }

    async fn parent_gate(&mut self, marker: &str) {
        let Some(run) = self.create("parent-gate", marker, json!({})).await else {
            return;
        };
        if self.random.random_bool(0.4) {
            self.cancel_run(&run).await;
        }
    }

    async fn effects(&mut self, marker: &str) {
        let inputs = json!({"url": format!("{}/{marker}", self.peer)});
        let Some(run) = self.create("effects", marker, inputs).await else {
            return;
        };
        // One at a time: the peer is slow.
        let path = format!("/v1/runs/{run}/events/poll?lastSequence=1&timeout=1");
        self.caller.ask(&Request::get(path)).await;
    }

    async fn cancel(&mut self, marker: &str) {
        let (workflow, inputs) = match self.random.random_range(0..3) {
            0 => ("approval", json!({})),
            1 => ("parent", json!({"delayMs": 600_000})),
            _ => ("delay", json!({"delayMs": 600_000})),
        };
        let Some(run) = self.create(workflow, marker, inputs).await else {
            return;
        };
        self.cancel_run(&run).await;
    }

    async fn cancel_run(&mut self, run: &str) {
        let request = Request::post(format!("/v1/runs/{run}/cancel"), json!({"reason": "test"}));
        let answer = self.caller.ask(&request).await;
        let status = answer.text("/status").unwrap_or_default();
        let is_expected = answer.status == 200 && matches!(status, "cancelling" | "cancelled");
        self.expect(is_expected, &format!("cancel of run {run}"), &answer);
        if is_expected {
            self.caller.ledger().learned(run, |run| run.is_cancelled = true);
        }
    }

    /// Accepts and cancels at once; one of both must win.
    async fn race(&mut self, marker: &str) {
        let Some(run) = self.create("approval", marker, json!({})).await else {
            return;
        };
        let path = format!("/v1/runs/{run}/interrupts/gate");
        let accept = Request::post(path, json!({"resumeValue": {"action": "accept"}}));
        let cancel = Request::post(format!("/v1/runs/{run}/cancel"), json!({}));
        let mut other = self.caller.another();
        let (accepted, cancelled) = tokio::join!(other.ask(&accept), self.caller.ask(&cancel));
        let won = cancelled.status == 200 && cancelled.text("/status") == Some("cancelled");
        self.expect(
            cancelled.status == 200,
            &format!("cancel of run {run} in a race"),
            &cancelled,
        );
        if accepted.is_first {
            self.expect(
                (accepted.status == 200) != won,
                &format!("accept of run {run}, cancel said {}, and", cancelled.body),
                &accepted,
            );
        }
        self.caller.ledger().learned(&run, |run| {
            run.is_cancelled = won;
            run.is_accepted = (!won).then_some(true);
        });
    }

    async fn pause(&mut self, marker: &str) {
        let inputs = json!({"delayMs": self.random.random_range(0..400)});
        let Some(run) = self.create("delay", marker, inputs).await else {
            return;
        };
        let pause = Request::post(format!("/v1/runs/{run}:pause"), json!({"reason": "test"}));
        let answer = self.caller.ask(&pause).await;
        // The run may be over, or the pause may have been heard before.
        self.expect(
            matches!(answer.status, 202 | 409),
            &format!("pause of run {run}"),
            &answer,
        );
        let is_paused = answer.status == 202 || answer.text("/details/runStatus") == Some("paused");
        if is_paused && self.random.random_bool(0.7) {
            let resume = Request::post(format!("/v1/runs/{run}:resume"), json!({}));
            let answer = self.caller.ask(&resume).await;
            let is_expected = answer.status == 202 || !answer.is_first && answer.status == 409;
            self.expect(is_expected, &format!("resume of run {run}"), &answer);
        }
    }

    /// Follows a run over every kill; each event must come once, in order.
    async fn stream(&mut self, marker: &str) {
        let inputs = json!({"delayMs": self.random.random_range(0..1_000)});
        let Some(run) = self.create("parent", marker, inputs).await else {
            return;
        };
        let mut last: Option<u64> = None;
        let mut is_over = false;
        while !is_over {
            let mut request = Request::events(format!("/v1/runs/{run}/events?streamMode=debug"));
            if let Some(last) = last {
                request = request.with("last-event-id", last);
            }
            let ledger = self.caller.shared_ledger();
            let ended = self.caller.follow(&request, |event| {
                let document: Value = serde_json::from_str(&event.data).unwrap_or_default();
                let sequence = document["sequence"].as_u64();
                let next = last.map_or(0, |last| last + 1);
                ledger.hold(sequence == Some(next) && event.id == next.to_string(), || {
                    format!("the stream of run {run} showed {event:?}, not {next}")
                });
                last = sequence.or(last);
                let kind = document["type"].as_str().unwrap_or_default();
                ledger.saw(&run, next, document["eventId"].as_str().unwrap_or_default(), kind);
                is_over = matches!(kind, "run.completed" | "run.failed" | "run.cancelled");
            });
            match ended.await {
                Ok(200 | 503) | Err(Lost) => {}
                Ok(status) => {
                    ledger.violated(format!("the stream of run {run} was answered by {status}"));
                    return;
                }
            }
        }
    }

    async fn a2a(&mut self, marker: &str) {
        let version = self.version();
        let send = version.send(marker, To::Workflow("pure"));
        let mut task = None;
        for _ in 0..=usize::from(self.random.random_bool(0.3)) {
            let answer = self.caller.ask(&send).await;
            let Some(found) = self.task(version, &answer, "completed", marker) else {
                return;
            };
            self.caller.ledger().acknowledged(marker, &found);
            let before = task.replace(found.clone());
            let is_same = before.is_none_or(|before| before == found);
            self.expect(is_same, &format!("message {marker} again"), &answer);
        }
    }

    async fn a2a_approval(&mut self, marker: &str) {
        let version = self.version();
        let answer = self
            .caller
            .ask(&version.send(marker, To::Workflow("approval")))
            .await;
        let Some(task) = self.task(version, &answer, "input-required", marker) else {
            return;
        };
        self.caller.ledger().acknowledged(marker, &task);
        if self.random.random_bool(0.7) {
            let reply = version.send(&format!("{marker}-reply"), To::Gate(&task));
            let answer = self.caller.ask(&reply).await;
            if self.task(version, &answer, "completed", marker).is_some() {
                self.caller
                    .ledger()
                    .learned(&task, |run| run.is_accepted = Some(true));
            }
        }
    }

    fn version(&mut self) -> Version {
        if self.random.random_bool(0.5) {
            Version::V1
        } else {
            Version::V03
        }
    }

    /// The task in the answer to a send, in this state.
    fn task(&self, version: Version, answer: &Answer, state: &str, marker: &str) -> Option<String> {
        let (prefix, state) = match version {
            Version::V03 => ("/result", state.to_owned()),
            Version::V1 => (
                "/result/task",
                format!("TASK_STATE_{}", state.to_uppercase().replace('-', "_")),
            ),
        };
        let id = answer.text(&format!("{prefix}/id"));
        let is_expected = answer.status == 200
            && id.is_some()
            && answer.text(&format!("{prefix}/status/state")) == Some(&state);
        self.expect(
            is_expected,
            &format!("message {marker} ({version:?}, {state})"),
            answer,
        );
        id.filter(|_| is_expected).map(str::to_owned)
    }
}

impl Version {
    /// A blocking send of a message with this id, which is its text too.
    fn send(self, id: &str, to: To<'_>) -> Request {
        let mut message = json!({"messageId": id});
        let (method, text) = match self {
            Self::V03 => ("message/send", json!({"kind": "text", "text": id})),
            Self::V1 => ("SendMessage", json!({"text": id})),
        };
        match to {
            To::Workflow(workflow) => {
                message["metadata"] = json!({"openwop.workflowId": workflow});
                message["parts"] = json!([text]);
            }
            To::Gate(task) => {
                let mut part = json!({"data": {"approve": true}});
                if matches!(self, Self::V03) {
                    part["kind"] = "data".into();
                }
                message["taskId"] = task.into();
                message["parts"] = json!([part]);
            }
        }
        match self {
            Self::V03 => {
                message["kind"] = "message".into();
                message["role"] = "user".into();
            }
            Self::V1 => message["role"] = "ROLE_USER".into(),
        }
        let body = json!({"jsonrpc": "2.0", "id": 1, "method": method, "params": {"message": message}});
        let request = Request::post("/a2a", body);
        match self {
            Self::V03 => request,
            Self::V1 => request.with("a2a-version", "1.0"),
        }
    }
}
