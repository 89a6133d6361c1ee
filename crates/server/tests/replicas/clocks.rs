//! Clocks that jump or disagree, and a replica that pauses: leases hold, and late outcomes are dropped.

use std::{
    sync::{
        Arc,
        atomic::{AtomicI64, Ordering},
        mpsc,
    },
    thread,
    time::Duration,
};

use serde_json::json;
use wopr_core::{RunStatus, Timestamp};
use wopr_engine::{Clock, Outcome, SystemClock};

use crate::harness::*;

const HOUR_MS: i64 = 3_600_000;

/// The system clock with an offset.
#[derive(Debug, Default)]
struct Wrong(AtomicI64);

impl Wrong {
    fn by(millis: i64) -> Arc<Self> {
        Arc::new(Self(AtomicI64::new(millis)))
    }

    fn set(&self, millis: i64) {
        self.0.store(millis, Ordering::SeqCst);
    }
}

impl Clock for Wrong {
    fn now(&self) -> Timestamp {
        Timestamp::from_millis(SystemClock.now().millis() + self.0.load(Ordering::SeqCst))
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn clock_jump_does_not_repeat_a_call() {
    let url = schema().await;
    let (executor, attempts) = steered();
    let (clock_of_a, clock_of_b) = (Wrong::by(0), Wrong::by(0));
    let a = replica_by(&url, News::Polling, executor.clone(), clock_of_a.clone()).await;
    let b = replica_by(&url, News::Polling, executor, clock_of_b.clone()).await;
    register(&[&a, &b]).await;
    for (of_a, of_b) in [(HOUR_MS, 0), (-HOUR_MS, 0), (0, HOUR_MS), (0, -HOUR_MS)] {
        clock_of_a.set(0);
        clock_of_b.set(0);
        let run = create(&a, "call").await.key;
        let (_, reply) = attempts.lock().await.recv().await.unwrap();
        clock_of_a.set(of_a);
        clock_of_b.set(of_b);
        // Longer than two lease periods: a takeover caused by a wrong clock would happen now.
        let again = tokio::time::timeout(Duration::from_millis(1_200), async {
            attempts.lock().await.recv().await
        });
        assert!(
            again.await.is_err(),
            "made again with clocks off by {of_a} and {of_b} ms"
        );
        reply.send(Outcome::Done(json!({ "status": 200 }))).unwrap();
        follow(&b, &run, RunStatus::Completed).await;
    }
    a.stop().await;
    b.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn call_of_a_dead_replica_is_taken_over_whatever_its_clock_said() {
    let url = schema().await;
    let (on_a, attempts_of_a) = steered();
    let (on_b, attempts_of_b) = steered();
    let b = replica(&url, News::Polling, on_b).await;
    register(&[&b]).await;
    let killed = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(1)
        .enable_all()
        .build()
        .unwrap();
    let calling = killed
        .spawn({
            let url = url.clone();
            async move {
                let a = replica_by(&url, News::Polling, on_a, Wrong::by(HOUR_MS)).await;
                let calling = create(&a, "call").await.key;
                // Dropping the engine's handle does not stop it; only the end of its runtime does.
                std::mem::forget(a);
                calling
            }
        })
        .await
        .unwrap();
    let (_, hanging) = attempts_of_a.lock().await.recv().await.unwrap();
    killed.shutdown_background();
    let (attempt, reply) = attempts_of_b.lock().await.recv().await.unwrap();
    assert_eq!(attempt.run, calling);
    reply.send(Outcome::Done(json!({ "status": 200 }))).unwrap();
    follow(&b, &calling, RunStatus::Completed).await;
    drop(hanging);
    b.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn delay_ends_by_the_clock() {
    let url = schema().await;
    let (executor, _attempts) = steered();
    let clock = Wrong::by(-HOUR_MS);
    let a = replica_by(&url, News::Polling, executor, clock.clone()).await;
    let delay = node("wait", "core.delay", json!({ "delayMs": HOUR_MS / 2 }));
    a.register(None, workflow("half-an-hour", &[delay]))
        .await
        .unwrap();
    let run = create(&a, "half-an-hour").await.key;
    clock.set(0);
    follow(&a, &run, RunStatus::Completed).await;
    a.stop().await;
}

/// A replica on its own thread. While the thread is blocked the replica is frozen, like a process after
/// SIGSTOP.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn outcome_of_a_paused_replica_is_dropped() {
    let url = schema().await;
    let (on_a, attempts_of_a) = steered();
    let (on_b, attempts_of_b) = steered();
    let b = replica(&url, News::Polling, on_b).await;
    register(&[&b]).await;

    let (freeze, mut frozen) = tokio::sync::mpsc::channel::<mpsc::Receiver<()>>(1);
    let (began, begins) = tokio::sync::oneshot::channel();
    let (stop, mut stops) = tokio::sync::oneshot::channel::<()>();
    let thread = thread::spawn(move || {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()
            .unwrap();
        runtime.block_on(async move {
            let a = replica(&url, News::Polling, on_a).await;
            let run = create(&a, "call").await.key;
            assert!(began.send((a.clone(), run)).is_ok());
            loop {
                tokio::select! {
                    held = frozen.recv() => {
                        // Blocks the only thread on purpose.
                        let _ = held.unwrap().recv();
                    }
                    _ = &mut stops => break,
                }
            }
            a.stop().await;
        });
    });
    let (a, run) = begins.await.unwrap();
    let (first, late) = attempts_of_a.lock().await.recv().await.unwrap();
    let (release, held) = mpsc::channel();
    freeze.send(held).await.unwrap();

    let (second, reply) = attempts_of_b.lock().await.recv().await.unwrap();
    assert_eq!(second.idempotency_key, first.idempotency_key);
    // A gets its outcome when it resumes, before it learns that the lease was lost.
    late.send(Outcome::Done(json!({ "status": 500 }))).unwrap();
    release.send(()).unwrap();
    while a.stats().effects_dropped == 0 {
        // sleep: between looks at a counter
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    assert_eq!(
        b.view(&run).await.unwrap().unwrap().run.status,
        RunStatus::Running
    );
    reply.send(Outcome::Done(json!({ "status": 200 }))).unwrap();
    let log = follow(&b, &run, RunStatus::Completed).await;
    assert_eq!(log.iter().filter(|event| *event == "NodeCompleted").count(), 1);
    let outputs = b.view(&run).await.unwrap().unwrap().run.outputs.clone().unwrap();
    assert_eq!(outputs["status"], 200, "{outputs:?}");
    stop.send(()).unwrap();
    tokio::task::spawn_blocking(move || thread.join().unwrap())
        .await
        .unwrap();
    b.stop().await;
}
