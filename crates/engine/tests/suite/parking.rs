//! Calls that a peer has accepted: parked without slot and lease, looked at again, woken, and cancelled.

use std::{sync::Arc, time::Duration};

use async_trait::async_trait;
use serde_json::json;
use tokio::sync::{Mutex, mpsc, oneshot};
use wopr_core::{Command, NodeId, NodeTypes, RunKey, RunStatus, StepId};
use wopr_engine::{
    Attempt, CancelError, Cancellation, Engine, Executor, Options, Outcome, Report, SideRows, SystemClock,
};
use wopr_store::{MemoryStore, SqliteStore, Store};

use crate::harness::{create, fresh, log, node, reaches, workflow};

type Asked<Question, Answer> = Mutex<mpsc::Receiver<(Question, oneshot::Sender<Answer>)>>;

/// A peer that takes calls and ends them later. The test speaks for it.
#[derive(Debug)]
struct Peer {
    attempts: mpsc::Sender<(Attempt, oneshot::Sender<Report>)>,
    cancels: mpsc::Sender<(Cancellation, oneshot::Sender<Result<(), CancelError>>)>,
}

struct Spoken {
    attempts: Asked<Attempt, Report>,
    cancels: Asked<Cancellation, Result<(), CancelError>>,
}

fn peer() -> (Arc<Peer>, Spoken) {
    let ((attempts, taken), (cancels, cancelled)) = (mpsc::channel(64), mpsc::channel(64));
    let spoken = Spoken {
        attempts: Mutex::new(taken),
        cancels: Mutex::new(cancelled),
    };
    (Arc::new(Peer { attempts, cancels }), spoken)
}

impl Spoken {
    async fn attempt(&self) -> (Attempt, oneshot::Sender<Report>) {
        self.attempts.lock().await.recv().await.expect("an attempt")
    }

    async fn cancel(&self) -> (Cancellation, oneshot::Sender<Result<(), CancelError>>) {
        self.cancels.lock().await.recv().await.expect("a cancel")
    }

    /// Takes the next call and leaves it with the peer.
    async fn accept(&self, handle: &str, check_after: Option<Duration>) -> Attempt {
        let (attempt, reply) = self.attempt().await;
        let handle = json!(handle);
        let report = Report::Accepted { handle, check_after };
        reply.send(report).expect("the engine waits");
        attempt
    }
}

#[async_trait]
impl Executor for Peer {
    async fn run(&self, attempt: Attempt) -> Report {
        let (reply, report) = oneshot::channel();
        self.attempts
            .send((attempt, reply))
            .await
            .expect("the test listens");
        match report.await {
            Ok(report) => report,
            Err(_) => std::future::pending().await,
        }
    }

    async fn cancel(&self, call: Cancellation) -> Result<(), CancelError> {
        let (reply, told) = oneshot::channel();
        self.cancels.send((call, reply)).await.expect("the test listens");
        match told.await {
            Ok(told) => told,
            Err(_) => std::future::pending().await,
        }
    }
}

/// An engine that makes one attempt at a time.
async fn engine(store: Arc<dyn Store>, executor: Arc<Peer>) -> Engine {
    let options = Options {
        node_types: NodeTypes { conformance: true },
        max_effects: 1,
        poll: Duration::from_millis(20),
        lease: Duration::from_millis(300),
        ..Options::default()
    };
    let engine = Engine::start(store, executor, Arc::new(SystemClock), options);
    let engine = engine.await.expect("starts");
    let call = node("call", "core.conformance.side-effect", json!({}));
    let registered = engine.register(None, workflow("w", &[call], &[])).await;
    registered.expect("registers");
    engine
}

async fn started(engine: &Engine) -> RunKey {
    fresh(create(engine, "w", json!({}), SideRows::default()).await).key
}

fn step() -> StepId {
    StepId {
        node: NodeId::parse("call").expect("valid"),
        ordinal: 0,
    }
}

/// Waits until the log of a run has an event.
async fn has(engine: &Engine, key: &RunKey, event: &str) {
    let mut tail = engine.tail(key);
    while !log(engine, key).await.iter().any(|kind| kind.contains(event)) {
        tail.changed().await;
    }
}

/// Wakes a call, as soon as it is parked.
async fn wake(engine: &Engine, key: &RunKey) {
    while !engine.wake_effect(key, &step(), 0).await.expect("wakes") {
        tokio::task::yield_now().await;
    }
}

async fn accepted_calls_wait_without_a_slot(store: Arc<dyn Store>) {
    let (executor, peer) = peer();
    let engine = engine(store, executor).await;
    // Three calls are out at once, over one slot.
    let mut runs = Vec::new();
    for n in 0..3 {
        let run = started(&engine).await;
        let attempt = peer.accept(&format!("task-{n}"), None).await;
        assert_eq!((&attempt.run, attempt.handle), (&run, None));
        has(&engine, &run, "EffectAccepted").await;
        runs.push(run);
    }
    assert_eq!(engine.stats().effects_active, 0);
    for (n, run) in runs.iter().enumerate().rev() {
        wake(&engine, run).await;
        let (attempt, reply) = peer.attempt().await;
        assert_eq!(&attempt.run, run);
        assert_eq!(attempt.handle, Some(json!(format!("task-{n}"))));
        reply
            .send(Outcome::Done(json!({})).into())
            .expect("the engine waits");
        reaches(&engine, run, RunStatus::Completed).await;
    }
}

#[tokio::test]
async fn accepted_calls_wait_without_a_slot_in_memory() {
    accepted_calls_wait_without_a_slot(Arc::new(MemoryStore::new())).await;
}

#[tokio::test]
async fn accepted_calls_wait_without_a_slot_in_sqlite() {
    let dir = tempfile::tempdir().expect("temp dir");
    let options = wopr_store::sqlite::Options::default();
    let store = SqliteStore::open(dir.path().join("wopr.db"), options).expect("opens");
    accepted_calls_wait_without_a_slot(Arc::new(store)).await;
}

#[tokio::test]
async fn looking_at_an_accepted_call_writes_nothing() {
    let (executor, peer) = peer();
    let engine = engine(Arc::new(MemoryStore::new()), executor).await;
    let run = started(&engine).await;
    let soon = Some(Duration::from_millis(1));
    peer.accept("task", soon).await;
    let mut before = None;
    for n in 0..4 {
        let (attempt, reply) = peer.attempt().await;
        assert_eq!(
            attempt.handle,
            Some(json!("task")),
            "it is looked at without being woken"
        );
        let now = log(&engine, &run).await;
        assert_eq!(*before.get_or_insert(now.clone()), now);
        let report = match n {
            0 => Report::Unchanged { check_after: soon },
            // The same handle again says nothing new either.
            1 => Report::Accepted {
                handle: json!("task"),
                check_after: soon,
            },
            2 => Report::Unchanged { check_after: soon },
            _ => Outcome::Done(json!({ "x": 1 })).into(),
        };
        reply.send(report).expect("the engine waits");
    }
    reaches(&engine, &run, RunStatus::Completed).await;
}

/// Runs a process and then kills it without a clean shutdown.
fn live<T>(store: &Arc<dyn Store>, executor: &Arc<Peer>, work: impl AsyncFnOnce(&Engine) -> T) -> T {
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .enable_all()
        .build()
        .expect("a runtime");
    let done = runtime.block_on(async {
        let engine = engine(Arc::clone(store), Arc::clone(executor)).await;
        work(&engine).await
    });
    runtime.shutdown_background();
    done
}

#[test]
fn accepted_call_survives_a_crash_and_is_not_made_again() {
    let dir = tempfile::tempdir().expect("temp dir");
    let options = wopr_store::sqlite::Options::default();
    let store = SqliteStore::open(dir.path().join("wopr.db"), options).expect("opens");
    let store: Arc<dyn Store> = Arc::new(store);
    let (executor, peer) = peer();
    let run = live(&store, &executor, async |engine| {
        let run = started(engine).await;
        peer.accept("task", None).await;
        has(engine, &run, "EffectAccepted").await;
        run
    });
    live(&store, &executor, async |engine| {
        // The next attempt is that of another run.
        let other = started(engine).await;
        let (attempt, reply) = peer.attempt().await;
        assert_eq!(attempt.run, other);
        reply
            .send(Outcome::Done(json!({})).into())
            .expect("the engine waits");
        reaches(engine, &other, RunStatus::Completed).await;

        wake(engine, &run).await;
        let (attempt, reply) = peer.attempt().await;
        assert_eq!((attempt.run, attempt.handle), (run.clone(), Some(json!("task"))));
        reply
            .send(Outcome::Done(json!({})).into())
            .expect("the engine waits");
        reaches(engine, &run, RunStatus::Completed).await;
    });
}

#[test]
fn attempt_after_a_crash_may_repeat_what_the_peer_knows() {
    let store: Arc<dyn Store> = Arc::new(MemoryStore::new());
    let (executor, peer) = peer();
    let run = live(&store, &executor, async |engine| {
        let run = started(engine).await;
        let (attempt, _) = peer.attempt().await;
        assert!(!attempt.is_repeat, "nobody has made it before");
        run
    });
    // The process died before the peer's acceptance was in the log.
    live(&store, &executor, async |engine| {
        let (attempt, reply) = peer.attempt().await;
        assert_eq!((&attempt.run, attempt.handle), (&run, None));
        assert!(attempt.is_repeat);
        reply
            .send(Outcome::Done(json!({})).into())
            .expect("the engine waits");
        reaches(engine, &run, RunStatus::Completed).await;
    });
}

#[test]
fn peer_of_a_cancelled_call_is_told_until_it_listens() {
    let store: Arc<dyn Store> = Arc::new(MemoryStore::new());
    let (executor, peer) = peer();
    let run = live(&store, &executor, async |engine| {
        let run = started(engine).await;
        let attempt = peer.accept("task", None).await;
        has(engine, &run, "EffectAccepted").await;
        let cancel = Command::Cancel {
            reason: None,
            by: None,
        };
        let cancelled = engine.command(&run, cancel, SideRows::default()).await;
        cancelled.expect("cancels");
        reaches(engine, &run, RunStatus::Cancelled).await;
        let (call, _) = peer.cancel().await;
        assert_eq!((&call.run, &call.handle), (&run, &json!("task")));
        assert_eq!(call.idempotency_key, attempt.idempotency_key);
        run
    });
    // The process died meanwhile.
    live(&store, &executor, async |engine| {
        let (call, reply) = peer.cancel().await;
        assert_eq!(call.run, run);
        reply
            .send(Err(CancelError::new("away".to_owned())))
            .expect("it waits");
        let (call, reply) = peer.cancel().await;
        assert_eq!(call.run, run);
        reply.send(Ok(())).expect("it waits");
        assert!(!engine.wake_effect(&run, &step(), 0).await.expect("reads"));
    });
}

#[tokio::test]
async fn peer_that_accepts_a_cancelled_call_is_told() {
    let (executor, peer) = peer();
    let engine = engine(Arc::new(MemoryStore::new()), executor).await;
    let run = started(&engine).await;
    let (attempt, reply) = peer.attempt().await;
    let cancel = Command::Cancel {
        reason: None,
        by: None,
    };
    let cancelled = engine.command(&run, cancel, SideRows::default()).await;
    cancelled.expect("cancels");
    reaches(&engine, &run, RunStatus::Cancelled).await;
    let report = Report::Accepted {
        handle: json!("late"),
        check_after: None,
    };
    reply.send(report).expect("the engine waits");
    let (call, reply) = peer.cancel().await;
    assert_eq!((&call.run, &call.handle), (&run, &json!("late")));
    assert_eq!(call.idempotency_key, attempt.idempotency_key);
    assert_eq!(call.provider, "core.conformance.side-effect");
    reply.send(Ok(())).expect("it waits");
    assert!(
        !log(&engine, &run)
            .await
            .iter()
            .any(|kind| kind.contains("EffectAccepted"))
    );
}
