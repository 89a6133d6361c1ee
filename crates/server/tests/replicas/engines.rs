//! Two engines on one database: each can follow, answer and take over what the other began.

use std::time::Duration;

use serde_json::json;
use tokio_postgres::NoTls;
use wopr_core::{RunKey, RunStatus};
use wopr_engine::{CommandError, Done, Engine, Outcome, SideRows};

use crate::harness::*;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_run_of_one_replica_is_followed_and_answered_on_another() {
    let url = schema().await;
    let (executor, _attempts) = steered();
    let (a, b) = (
        replica(&url, News::Polling, executor.clone()).await,
        replica(&url, News::Polling, executor).await,
    );
    register(&[&a, &b]).await;

    let run = create(&a, "approve").await.key;
    // A stream opened on B first sees every event, whichever replica appends it.
    let stream = tokio::spawn({
        let (b, run) = (b.clone(), run.clone());
        async move { follow(&b, &run, RunStatus::Completed).await }
    });
    follow(&b, &run, RunStatus::WaitingApproval).await;
    let done = b.command(&run, accept(), SideRows::default()).await.unwrap();
    assert!(matches!(done, Done::Fresh(view) if view.run.status == RunStatus::Completed));
    let seen = stream.await.unwrap();
    assert_eq!(follow(&a, &run, RunStatus::Completed).await, seen);
    assert_eq!(seen.last().map(String::as_str), Some("RunCompleted"), "{seen:?}");

    a.stop().await;
    b.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn concurrent_answers_on_two_replicas_take_effect_once() {
    let url = schema().await;
    let (executor, _attempts) = steered();
    let (a, b) = (
        replica(&url, News::Polling, executor.clone()).await,
        replica(&url, News::Polling, executor).await,
    );
    register(&[&a, &b]).await;
    for _ in 0..10 {
        let run = create(&a, "approve").await.key;
        let answers = tokio::join!(
            a.command(&run, accept(), SideRows::default()),
            b.command(&run, accept(), SideRows::default())
        );
        let n_done = [&answers.0, &answers.1]
            .into_iter()
            .filter(|answer| matches!(answer, Ok(Done::Fresh(_))))
            .count();
        let n_refused = [&answers.0, &answers.1]
            .into_iter()
            .filter(|answer| matches!(answer, Err(CommandError::Refused(_))))
            .count();
        assert_eq!((n_done, n_refused), (1, 1), "{answers:?}");
        let log = follow(&b, &run, RunStatus::Completed).await;
        assert_eq!(
            log.iter().filter(|event| *event == "RunCompleted").count(),
            1,
            "{log:?}"
        );
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_effect_of_a_killed_replica_is_taken_over_and_its_timer_fires() {
    let url = schema().await;
    let (on_a, attempts_of_a) = steered();
    let (on_b, attempts_of_b) = steered();
    let b = replica(&url, News::Polling, on_b).await;
    register(&[&b]).await;

    // A runs on its own runtime, which is dropped as if the process were killed: no lease is released.
    let killed = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(1)
        .enable_all()
        .build()
        .unwrap();
    let (calling, waiting) = killed
        .spawn({
            let url = url.clone();
            async move {
                let a = replica(&url, News::Polling, on_a).await;
                let calling = create(&a, "call").await.key;
                let waiting = create(&a, "wait").await.key;
                // Dropping the engine's handle does not stop it; only the end of its runtime does.
                std::mem::forget(a);
                (calling, waiting)
            }
        })
        .await
        .unwrap();
    let (first, hanging) = attempts_of_a.lock().await.recv().await.unwrap();
    assert_eq!(first.run, calling);
    killed.shutdown_background();

    let (second, reply) = attempts_of_b.lock().await.recv().await.unwrap();
    assert_eq!(second.run, calling);
    assert_eq!(
        second.idempotency_key, first.idempotency_key,
        "one invocation, attempted again"
    );
    reply.send(Outcome::Done(json!({ "status": 200 }))).unwrap();
    follow(&b, &calling, RunStatus::Completed).await;
    follow(&b, &waiting, RunStatus::Completed).await;
    drop(hanging);
    b.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn locked_run_does_not_delay_other_timers() {
    let url = schema().await;
    let (executor, _attempts) = steered();
    let engine = replica(&url, News::Polling, executor).await;
    register(&[&engine]).await;
    let held = create(&engine, "wait").await.key;
    let holder = hold(&url, &held).await;

    // Their timers come due while the held run's timer is firing.
    let others = async {
        for _ in 0..4 {
            let other = create(&engine, "wait").await.key;
            follow(&engine, &other, RunStatus::Completed).await;
        }
    };
    tokio::time::timeout(Duration::from_secs(12), others)
        .await
        .expect("long before the held one is given up for now");
    let view = engine.view(&held).await.unwrap().unwrap();
    assert!(!view.run.status.is_terminal());
    holder.batch_execute("ROLLBACK").await.unwrap();
    follow(&engine, &held, RunStatus::Completed).await;
    engine.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn locked_parent_does_not_delay_other_notifications() {
    let url = schema().await;
    let (executor, _attempts) = steered();
    let engine = replica(&url, News::Polling, executor).await;
    register(&[&engine]).await;
    let (held, child) = parent(&engine).await;
    let holder = hold(&url, &held).await;
    engine
        .command(&child, accept(), SideRows::default())
        .await
        .unwrap();

    // Their children end while the held parent is being notified of its own.
    let others = async {
        for _ in 0..4 {
            let (other, child) = parent(&engine).await;
            engine
                .command(&child, accept(), SideRows::default())
                .await
                .unwrap();
            follow(&engine, &other, RunStatus::Completed).await;
        }
    };
    tokio::time::timeout(Duration::from_secs(12), others)
        .await
        .expect("long before the held one is given up for now");
    let view = engine.view(&held).await.unwrap().unwrap();
    assert!(!view.run.status.is_terminal());
    holder.batch_execute("ROLLBACK").await.unwrap();
    follow(&engine, &held, RunStatus::Completed).await;
    engine.stop().await;
}

/// Starts a parent whose child waits for an approval; returns both.
async fn parent(engine: &Engine) -> (RunKey, RunKey) {
    let parent = create(engine, "parent").await.key;
    follow(engine, &parent, RunStatus::WaitingApproval).await;
    let view = engine.view(&parent).await.unwrap().unwrap();
    let child = parent.sibling(view.run.children[0].run.clone());
    (parent, child)
}

/// Locks a run's row until the returned client rolls back, like a process that stops in the middle of an
/// append.
async fn hold(url: &str, run: &RunKey) -> tokio_postgres::Client {
    let (holder, connection) = tokio_postgres::connect(url, NoTls).await.unwrap();
    tokio::spawn(connection);
    let hold = format!("BEGIN; SELECT FROM runs WHERE run = '{}' FOR UPDATE", run.run);
    holder.batch_execute(&hold).await.unwrap();
    holder
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn cached_run_is_shown_only_while_the_store_confirms_its_head() {
    let url = schema().await;
    let (executor, _attempts) = steered();
    let (a, b) = (
        replica(&url, News::Looking, executor.clone()).await,
        replica(&url, News::Looking, executor).await,
    );
    register(&[&a, &b]).await;
    let seen = async |engine: &Engine, run: &RunKey| engine.view(run).await.unwrap().unwrap().run.status;

    // The log cannot be read, so the view came from memory.
    let (raw, connection) = tokio_postgres::connect(&url, NoTls).await.unwrap();
    tokio::spawn(connection);
    let locked = "BEGIN; LOCK TABLE events IN ACCESS EXCLUSIVE MODE";
    let run = create(&a, "approve").await.key;
    raw.batch_execute(locked).await.unwrap();
    assert_eq!(seen(&a, &run).await, RunStatus::WaitingApproval);
    raw.batch_execute("ROLLBACK").await.unwrap();

    for _ in 0..10 {
        let run = create(&a, "approve").await.key;
        assert_eq!(seen(&a, &run).await, RunStatus::WaitingApproval);
        // A gets no hint of it.
        b.command(&run, accept(), SideRows::default()).await.unwrap();
        assert_eq!(seen(&a, &run).await, RunStatus::Completed);
        assert_eq!(seen(&b, &run).await, RunStatus::Completed);
    }
    a.stop().await;
    b.stop().await;
}
