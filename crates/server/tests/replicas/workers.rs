//! Workers at several processes over one database.

use std::time::Duration;

use serde_json::json;
use wopr_core::{Object, Refusal, RunStatus};
use wopr_engine::{ActivityCall, CommandError, Engine, LeasedActivity, SideRows, WorkerLease};

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
