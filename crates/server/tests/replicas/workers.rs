//! Workers at several processes over one database.

use std::{sync::Arc, time::Duration};

use serde_json::json;
use wopr_core::{Object, Refusal, RunStatus};
use wopr_engine::{
    ActivityCall, CommandError, Engine, LeasedActivity, Options, SideRows, SystemClock, WorkerLease,
    WorkerOptions,
};
use wopr_store::{PostgresStore, postgres};

use crate::harness::*;

fn call(worker: &str, wait: Duration) -> ActivityCall {
    ActivityCall {
        tenant: tenant(),
        queue: "letters".to_owned(),
        worker: worker.to_owned(),
        max: 8,
        wait,
    }
}

async fn end(engine: &Engine, leased: &LeasedActivity) -> Result<(), CommandError> {
    let lease = WorkerLease {
        fence: leased.fence,
        queue: "letters".to_owned(),
        worker: "w".to_owned(),
    };
    let at = (leased.step.clone(), leased.attempt);
    let ended = engine.end_activity(
        &leased.run,
        at,
        Some(&lease),
        Ok(Object::new()),
        SideRows::default(),
    );
    ended.await.map(|_| ())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_worker_hears_by_hints_what_another_process_offers() {
    hears_of_another_process(News::Hints).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_worker_finds_by_polling_what_another_process_offers() {
    hears_of_another_process(News::Polling).await;
}

async fn hears_of_another_process(news: News) {
    let url = schema().await;
    let (executor, _attempts) = steered();
    let one = replica(&url, news, executor.clone()).await;
    let two = replica(&url, news, executor).await;
    let work = workflow(
        "work",
        &[node("work", "core.activity", json!({ "queue": "letters" }))],
    );
    for engine in [&one, &two] {
        engine.register(None, work.clone()).await.unwrap();
    }
    let waiting = tokio::spawn({
        let one = one.clone();
        async move { one.lease_activities(call("w", Duration::from_secs(20))).await }
    });
    while one.stats().workers_waiting == 0 {
        tokio::task::yield_now().await;
    }
    let run = create(&two, "work").await.key;
    let leased = waiting.await.unwrap().unwrap();
    assert_eq!(leased.len(), 1);
    assert_eq!(leased[0].run, run);
    // The other process hands out nothing of it, and takes the outcome.
    let nothing = two.lease_activities(call("v", Duration::ZERO)).await.unwrap();
    assert_eq!(nothing, []);
    end(&two, &leased[0]).await.unwrap();
    follow(&one, &run, RunStatus::Completed).await;
    let again = end(&one, &leased[0]).await;
    assert!(
        matches!(
            again,
            Err(CommandError::Refused(Refusal::Stale | Refusal::Terminal(_)))
        ),
        "{again:?}"
    );
    one.stop().await;
    two.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn processes_that_find_a_lost_activity_at_the_same_time_end_it_once() {
    let url = schema().await;
    let (one, two) = (impatient(&url).await, impatient(&url).await);
    let work = workflow(
        "work",
        &[node("work", "core.activity", json!({ "queue": "letters" }))],
    );
    for engine in [&one, &two] {
        engine.register(None, work.clone()).await.unwrap();
    }
    let mut runs = Vec::new();
    for _ in 0..8 {
        runs.push(create(&one, "work").await.key);
    }
    let leased = one.lease_activities(call("w", Duration::ZERO)).await.unwrap();
    assert_eq!(leased.len(), runs.len());
    let wait = |engine: &Engine| {
        let engine = engine.clone();
        tokio::spawn(async move {
            engine
                .lease_activities(call("v", Duration::from_secs(3_600)))
                .await
        })
    };
    let waiting = [wait(&one), wait(&two)];
    for run in &runs {
        let seen = follow(&two, run, RunStatus::Failed).await;
        let failed = seen.iter().filter(|event| *event == "NodeFailed");
        assert_eq!(failed.count(), 1, "{seen:?}");
    }
    one.stop().await;
    two.stop().await;
    for call in waiting {
        assert_eq!(call.await.unwrap().unwrap(), [], "no worker gets them again");
    }
    let n_ended = one.stats().activities_lost + two.stats().activities_lost;
    assert_eq!(n_ended, 8);
}

/// A replica that allows no lease to be lost.
async fn impatient(url: &str) -> Engine {
    let url = News::Polling.url(url);
    let store = PostgresStore::open(&url, postgres::Options::default())
        .await
        .unwrap();
    let (executor, _attempts) = steered();
    let options = Options {
        workers: WorkerOptions {
            lease: Duration::from_secs(1),
            max_lost_leases: 1,
            ..WorkerOptions::default()
        },
        ..News::Polling.options()
    };
    Engine::start(Arc::new(store), executor, Arc::new(SystemClock), options)
        .await
        .unwrap()
}
