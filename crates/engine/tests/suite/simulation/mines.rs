//! Runs at which every step panics, as with a bug in deciding or applying: they do not delay other runs and
//! are retried ever less often. Also executors that panic.

use std::{collections::BTreeSet, panic::resume_unwind, sync::Arc, time::Duration};

use async_trait::async_trait;
use serde_json::{Value, json};
use tokio::sync::mpsc;
use wopr_core::{NodeTypes, RunKey, RunStatus};
use wopr_engine::{Attempt, Engine, Executor, Options, Report, SideRows};
use wopr_testkit::Workflow;

use super::{
    executor::Fickle,
    fate::Fate,
    process::{Process, WallClock},
    store::Server,
};
use crate::harness::{answer, create, fresh, reaches};

const HOUR: Duration = Duration::from_secs(3_600);
/// More tries than fit into an hour when pauses double up to five minutes, and far fewer than a loop at full
/// speed makes.
const TRIES_IN_AN_HOUR: u64 = 25;
/// More than one round of the loops.
const MANY: usize = 300;
/// More runs than the backoff remembers, by more than a round.
const UNCOUNTED: usize = 4_096 + 2 * MANY;

/// One process in a world without faults, except for the mines of a test.
pub(super) struct Calm {
    fate: Arc<Fate>,
    pub(super) server: Arc<Server>,
    pub(super) engine: Engine,
    pub(super) process: Arc<Process>,
    options: Options,
    deaths: mpsc::UnboundedSender<u64>,
    /// Kept open, so that the process may die.
    _died: mpsc::UnboundedReceiver<u64>,
}

impl Calm {
    pub(super) async fn new(executor: Option<Arc<dyn Executor>>) -> Self {
        Self::with(executor, true, Options::default()).await
    }

    pub(super) async fn with(
        executor: Option<Arc<dyn Executor>>,
        is_embedded: bool,
        options: Options,
    ) -> Self {
        let fate = Arc::new(Fate::new(1, false));
        let (deaths, died) = mpsc::unbounded_channel();
        let server = Server::new(Arc::clone(&fate), is_embedded);
        let (engine, process) = start(&fate, &server, &deaths, executor, options.clone()).await;
        Self {
            fate,
            server,
            engine,
            process,
            options,
            deaths,
            _died: died,
        }
    }

    /// Starts another process over the same store.
    pub(super) async fn another(&self) -> Engine {
        let (fate, server, deaths) = (&self.fate, &self.server, &self.deaths);
        start(fate, server, deaths, None, self.options.clone()).await.0
    }

    pub(super) async fn register(&self, workflow: Workflow) {
        let document: Value = workflow.document();
        self.engine.register(None, document).await.expect("registers");
    }

    pub(super) async fn create(&self, workflow: &str) -> RunKey {
        fresh(create(&self.engine, workflow, json!({}), SideRows::default()).await).key
    }

    async fn create_many(&self, workflow: &str, n: usize) -> BTreeSet<RunKey> {
        let mut runs = BTreeSet::new();
        for _ in 0..n {
            runs.insert(self.create(workflow).await);
        }
        runs
    }

    /// Lets an hour pass and returns how often each run panicked in it, on average.
    async fn hour_of_panics(&self, n_runs: usize) -> u64 {
        let before = self.server.n_struck();
        tokio::time::sleep(HOUR).await; // sleep: virtual time
        assert_eq!(
            self.engine.stats().panics,
            self.server.n_struck(),
            "each is counted"
        );
        (self.server.n_struck() - before) / n_runs as u64
    }

    pub(super) async fn end(self) {
        self.engine.stop().await;
        assert_eq!(self.fate.verdict(), None);
    }
}

async fn start(
    fate: &Arc<Fate>,
    server: &Arc<Server>,
    deaths: &mpsc::UnboundedSender<u64>,
    executor: Option<Arc<dyn Executor>>,
    options: Options,
) -> (Engine, Arc<Process>) {
    let process = Process::new(server.next_epoch(), Arc::clone(fate), deaths.clone());
    let usual = Fickle {
        server: Arc::clone(server),
        process: Arc::clone(&process),
        fate: Arc::clone(fate),
    };
    let options = Options {
        node_types: NodeTypes { conformance: true },
        seed: Some(process.number),
        ..options
    };
    let connection = server.connect(&process);
    let executor = executor.unwrap_or_else(|| Arc::new(usual));
    let clock = Arc::new(WallClock(Arc::clone(&process)));
    let engine = Engine::start(connection, executor, clock, options).await;
    (engine.expect("starts"), process)
}

#[tokio::test(start_paused = true)]
async fn timers_of_runs_that_panic_hold_up_no_others() {
    let calm = Calm::new(None).await;
    calm.register(Workflow::new("delay").delay("wait", 60_000)).await;
    let mined = calm.create_many("delay", MANY).await;
    let sound = calm.create("delay").await;
    calm.server.mine(mined.clone());
    let created = tokio::time::Instant::now();
    reaches(&calm.engine, &sound, RunStatus::Completed).await;
    assert!(
        created.elapsed() < Duration::from_secs(62),
        "{:?}",
        created.elapsed()
    );

    let tries = calm.hour_of_panics(MANY).await;
    assert!((10..TRIES_IN_AN_HOUR).contains(&tries), "{tries}");
    // Other runs are not affected.
    let created = tokio::time::Instant::now();
    let sound = calm.create("delay").await;
    reaches(&calm.engine, &sound, RunStatus::Completed).await;
    assert!(
        created.elapsed() < Duration::from_secs(62),
        "{:?}",
        created.elapsed()
    );

    // A repaired run continues by itself.
    calm.server.mine(BTreeSet::new());
    tokio::time::sleep(HOUR).await; // sleep: virtual time
    for run in &mined {
        let view = calm.engine.view(run).await.expect("reads").expect("exists");
        assert_eq!(view.run.status, RunStatus::Completed);
    }
    calm.end().await;
}

#[tokio::test(start_paused = true)]
async fn more_timers_that_cannot_fire_than_are_left_alone_hold_up_no_others() {
    let calm = Calm::new(None).await;
    calm.register(Workflow::new("delay").delay("wait", 60_000)).await;
    let mined = calm.create_many("delay", UNCOUNTED).await;
    let sound = calm.create("delay").await;
    calm.server.mine(mined);
    let created = tokio::time::Instant::now();
    reaches(&calm.engine, &sound, RunStatus::Completed).await;
    assert!(
        created.elapsed() < Duration::from_secs(75),
        "{:?}",
        created.elapsed()
    );
    calm.end().await;
}

#[tokio::test(start_paused = true)]
async fn parents_that_panic_when_they_hear_hold_up_no_others() {
    let calm = Calm::new(None).await;
    let sub = json!({ "workflowId": "gate" });
    calm.register(Workflow::new("gate").gate("gate")).await;
    calm.register(Workflow::new("parent").node("child", "core.subWorkflow", sub))
        .await;
    let mined = calm.create_many("parent", MANY).await;
    let sound = calm.create("parent").await;
    let children = calm.children(mined.iter()).await;
    calm.server.mine(mined.clone());
    for child in &children {
        let answered = calm.engine.command(
            child,
            answer("gate", json!({"action": "accept"})),
            SideRows::default(),
        );
        answered.await.expect("answers");
    }
    for child in calm.children([&sound].into_iter()).await {
        let answered = calm.engine.command(
            &child,
            answer("gate", json!({"action": "accept"})),
            SideRows::default(),
        );
        answered.await.expect("answers");
    }
    let told = tokio::time::Instant::now();
    reaches(&calm.engine, &sound, RunStatus::Completed).await;
    assert!(told.elapsed() < Duration::from_secs(2), "{:?}", told.elapsed());

    let tries = calm.hour_of_panics(MANY).await;
    assert!((10..TRIES_IN_AN_HOUR).contains(&tries), "{tries}");
    calm.server.mine(BTreeSet::new());
    tokio::time::sleep(HOUR).await; // sleep: virtual time
    for run in &mined {
        let view = calm.engine.view(run).await.expect("reads").expect("exists");
        assert_eq!(view.run.status, RunStatus::Completed);
    }
    calm.end().await;
}

impl Calm {
    async fn children(&self, parents: impl Iterator<Item = &RunKey>) -> Vec<RunKey> {
        let mut children = Vec::new();
        for parent in parents {
            let view = self.engine.view(parent).await.expect("reads").expect("exists");
            children.extend(
                view.run
                    .children
                    .iter()
                    .map(|child| parent.sibling(child.run.clone())),
            );
        }
        children
    }
}

#[tokio::test(start_paused = true)]
async fn a_call_whose_outcome_panics_is_made_ever_less_often() {
    // Over a shared store each outcome loads its run, which is where the mine is.
    let calm = Calm::with(None, false, Options::default()).await;
    calm.register(Workflow::new("effect").effect("call")).await;
    let mined = calm.create("effect").await;
    calm.server.mine(BTreeSet::from([mined.clone()]));
    let sound = calm.create("effect").await;
    reaches(&calm.engine, &sound, RunStatus::Completed).await;
    let tries = calm.hour_of_panics(1).await;
    // Each attempt is made under a lease, which has to expire first.
    assert!((5..TRIES_IN_AN_HOUR).contains(&tries), "{tries}");
    let started = calm.engine.stats().effects_started;
    assert!(started <= TRIES_IN_AN_HOUR, "{started} calls");
    assert_eq!(calm.engine.stats().effects_active, 0);

    calm.server.mine(BTreeSet::new());
    reaches(&calm.engine, &mined, RunStatus::Completed).await;
    calm.end().await;
}

/// Panics at each attempt.
#[derive(Debug)]
struct Panicking;

#[async_trait]
impl Executor for Panicking {
    async fn run(&self, _: Attempt) -> Report {
        // Bypasses the panic hook, which would print it.
        resume_unwind(Box::new("simulated"))
    }
}

#[tokio::test(start_paused = true)]
async fn an_executor_that_panics_fails_the_node_as_its_policy_says() {
    let calm = Calm::new(Some(Arc::new(Panicking))).await;
    let retries = json!({ "maxRetries": 3, "retryDelayMs": 100 });
    calm.register(Workflow::new("effect").effect("call").set("settings", retries))
        .await;
    let run = calm.create("effect").await;
    let view = reaches(&calm.engine, &run, RunStatus::Failed).await;
    assert_eq!(
        view.run.error.as_ref().expect("says why").0.code,
        "internal_error"
    );
    assert_eq!(calm.engine.stats().effects_started, 4);
    assert_eq!(calm.engine.stats().panics, 4);
    calm.end().await;
}
