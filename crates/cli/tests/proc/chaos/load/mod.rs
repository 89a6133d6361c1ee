//! The clients: each performs one action after another until stopped. A lost request is repeated with the
//! same key until it is answered.

mod pushes;
mod rest;
mod tasks;

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering::Relaxed},
    },
    time::Duration,
};

use rand::{Rng as _, SeedableRng as _, rngs::StdRng};
use serde_json::{Value, json};
use tokio::{task::JoinSet, time};

use super::{
    a2a::Version,
    caller::{Answer, Caller, Request},
    clocks::Clocks,
    ledger::Ledger,
    observe::{Begin, View, observe},
};

/// Number of clients. A client's number determines its kind of work.
pub(super) const CLIENTS: usize = WORK.len();

/// Maximum pause between two actions, so that fast machines do not create more runs than can be checked.
/// Sometimes there is no pause, so that kills hit work in progress.
const PAUSE: Duration = Duration::from_millis(100);

#[derive(Debug, Clone, Copy)]
enum Work {
    Pure,
    Delay,
    Approval,
    Duel,
    Clarify,
    Parent,
    ParentGate,
    Effects,
    Cancel,
    Race,
    Pause,
    Stream,
    Task,
    TaskApproval,
    TaskStream,
    TaskCancel,
    PushAlong,
    PushLater,
}

const WORK: [Work; 25] = [
    Work::Pure,
    Work::Pure,
    Work::Delay,
    Work::Delay,
    Work::Approval,
    Work::Approval,
    Work::Duel,
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
    Work::Task,
    Work::TaskApproval,
    Work::TaskStream,
    Work::TaskStream,
    Work::TaskCancel,
    Work::PushAlong,
    Work::PushLater,
    Work::PushLater,
];

/// State shared by all clients.
#[derive(Debug, Clone)]
pub(super) struct World {
    /// The URL for effects.
    pub(super) peer: String,
    /// The URL for pushes.
    pub(super) receiver: String,
    pub(super) clocks: Arc<Clocks>,
    /// Set when clients must not start anything new.
    pub(super) stop: Arc<AtomicBool>,
}

#[derive(Debug)]
pub(super) struct Client {
    number: usize,
    work: Work,
    random: StdRng,
    caller: Caller,
    world: World,
    serial: u32,
    /// Messages that will be sent again, each with the task that it returned.
    sent: Vec<(Request, String)>,
}

impl Client {
    pub(super) fn new(number: usize, seed: u64, caller: Caller, world: World) -> Self {
        Self {
            number,
            work: WORK[number],
            random: StdRng::seed_from_u64(seed),
            caller: caller.impatient(),
            world,
            serial: 0,
            sent: Vec::new(),
        }
    }

    pub(super) async fn run(mut self) {
        while !self.world.stop.load(Relaxed) {
            self.serial += 1;
            let marker = format!("{:?}-{}-{}", self.work, self.number, self.serial).to_lowercase();
            match self.work {
                Work::Pure => self.pure(&marker).await,
                Work::Delay => self.delay(&marker).await,
                Work::Approval => self.approval(&marker).await,
                Work::Duel => self.duel(&marker).await,
                Work::Clarify => self.clarify(&marker).await,
                Work::Parent => self.parent(&marker).await,
                Work::ParentGate => self.parent_gate(&marker).await,
                Work::Effects => self.effects(&marker).await,
                Work::Cancel => self.cancel(&marker).await,
                Work::Race => self.race(&marker).await,
                Work::Pause => self.pause(&marker).await,
                Work::Stream => self.stream(&marker).await,
                Work::Task => self.task(&marker).await,
                Work::TaskApproval => self.task_approval(&marker).await,
                Work::TaskStream => self.task_stream(&marker).await,
                Work::TaskCancel => self.task_cancel(&marker).await,
                Work::PushAlong => self.push_along(&marker).await,
                Work::PushLater => self.push_later(&marker).await,
            }
            if self.random.random_bool(0.7) {
                // sleep: the pace of the load
                time::sleep(self.random.random_range(Duration::ZERO..PAUSE)).await;
            }
        }
    }

    fn ledger(&self) -> &Ledger {
        self.caller.ledger()
    }

    fn expect(&self, is_expected: bool, what: &str, answer: &Answer) {
        self.ledger().hold(is_expected, || {
            format!("{what} was answered by {} {}", answer.status, answer.body)
        });
    }

    fn version(&mut self) -> Version {
        if self.random.random_bool(0.5) {
            Version::V1
        } else {
            Version::V03
        }
    }

    fn view(&mut self) -> View {
        match self.random.random_range(0..4) {
            0 => View::Updates,
            1 => View::Task(Version::V1),
            2 => View::Task(Version::V03),
            _ => View::Debug,
        }
    }

    /// Lets several observers watch a run until all have seen enough.
    async fn watch(&mut self, run: &str, observers: usize) {
        let mut watching = JoinSet::new();
        for _ in 0..observers {
            let mut caller = self.caller.another();
            let view = self.view();
            let run = run.to_owned();
            // Only events that every run has in its first append, because an observer cannot know later ones
            // yet.
            let after = self
                .random
                .random_bool(0.3)
                .then(|| self.random.random_range(0..2));
            watching.spawn(async move {
                let begin = after.map_or(Begin::Now, Begin::After);
                if let Some(sighting) = observe(&mut caller, view, Some(&run), begin).await {
                    caller.ledger().saw(sighting);
                }
            });
        }
        while let Some(ended) = watching.join_next().await {
            ended.unwrap();
        }
    }

    /// Creates a run with an idempotency key, sometimes twice.
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
            self.ledger().acknowledged(marker, &id);
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
}
