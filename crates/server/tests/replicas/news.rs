//! Changes by one replica reach the other: by hints without polling, and by polling without hints.

use std::sync::Arc;

use serde_json::json;
use wopr_core::{Command, DrainPolicy, RunKey, RunStatus};
use wopr_engine::{Done, Engine, Executor, Outcome, SideRows};

use crate::harness::*;

by_hints_and_by_polling!(
    a_stream_on_one_replica_sees_what_the_other_appends,
    a_run_is_paused_resumed_and_cancelled_on_either,
    a_cancel_on_one_replica_ends_the_attempt_on_the_other,
    a_parent_on_one_replica_goes_on_when_its_child_is_answered_on_the_other,
    work_that_one_replica_leaves_behind_is_taken_up_by_the_other,
);

async fn pair(news: News, executor: Arc<dyn Executor>) -> (Engine, Engine) {
    let url = schema().await;
    let a = replica(&url, news, Arc::clone(&executor)).await;
    let b = replica(&url, news, executor).await;
    register(&[&a, &b]).await;
    (a, b)
}

/// Follows in the background, like a stream opened before anything happened.
fn stream(engine: &Engine, run: &RunKey, status: RunStatus) -> tokio::task::JoinHandle<Vec<String>> {
    let (engine, run) = (engine.clone(), run.clone());
    tokio::spawn(async move { follow(&engine, &run, status).await })
}

async fn command(engine: &Engine, run: &RunKey, command: Command) -> RunStatus {
    match engine.command(run, command, SideRows::default()).await.unwrap() {
        Done::Fresh(view) => view.run.status,
        Done::Replayed(record) => panic!("replayed {record:?}"),
    }
}

fn cancel() -> Command {
    Command::Cancel {
        reason: None,
        by: None,
    }
}

async fn a_stream_on_one_replica_sees_what_the_other_appends(news: News) {
    let (executor, _attempts) = steered();
    let (a, b) = pair(news, executor).await;
    let run = create(&a, "approve").await.key;
    let streams = [&a, &b].map(|engine| stream(engine, &run, RunStatus::Completed));
    assert_eq!(command(&b, &run, accept()).await, RunStatus::Completed);
    let [on_a, on_b] = streams;
    let seen = on_a.await.unwrap();
    assert_eq!(seen.last().map(String::as_str), Some("RunCompleted"), "{seen:?}");
    assert_eq!(on_b.await.unwrap(), seen);
    a.stop().await;
    b.stop().await;
}

async fn a_run_is_paused_resumed_and_cancelled_on_either(news: News) {
    let (executor, attempts) = steered();
    let (a, b) = pair(news, executor).await;
    let run = create(&a, "call").await.key;
    let hanging = attempts.lock().await.recv().await.unwrap();
    let paused = stream(&a, &run, RunStatus::Paused);
    let pause = Command::Pause {
        reason: None,
        drain: DrainPolicy::DrainCurrentNode,
    };
    assert_eq!(command(&b, &run, pause).await, RunStatus::Paused);
    paused.await.unwrap();
    let resumed = stream(&b, &run, RunStatus::Running);
    let resume = Command::Resume { reason: None };
    assert_eq!(command(&a, &run, resume).await, RunStatus::Running);
    resumed.await.unwrap();
    let cancelled = stream(&a, &run, RunStatus::Cancelled);
    assert_eq!(command(&b, &run, cancel()).await, RunStatus::Cancelled);
    cancelled.await.unwrap();
    drop(hanging);
    a.stop().await;
    b.stop().await;
}

async fn a_cancel_on_one_replica_ends_the_attempt_on_the_other(news: News) {
    let (executor, attempts) = steered();
    let (a, b) = pair(news, executor).await;
    let run = create(&a, "call").await.key;
    let (_, mut reply) = attempts.lock().await.recv().await.unwrap();
    assert_eq!(command(&b, &run, cancel()).await, RunStatus::Cancelled);
    // A dropped the attempt, so no outcome is accepted.
    reply.closed().await;
    a.stop().await;
    b.stop().await;
}

async fn a_parent_on_one_replica_goes_on_when_its_child_is_answered_on_the_other(news: News) {
    let (executor, _attempts) = steered();
    let (a, b) = pair(news, executor).await;
    let parent = create(&a, "parent").await.key;
    follow(&a, &parent, RunStatus::WaitingApproval).await;
    let view = a.view(&parent).await.unwrap().unwrap();
    let child = parent.sibling(view.run.children[0].run.clone());
    let streams = [(&a, &parent), (&a, &child), (&b, &parent)]
        .map(|(engine, run)| stream(engine, run, RunStatus::Completed));
    let answer = accept();
    assert_eq!(command(&b, &child, answer).await, RunStatus::Completed);
    for stream in streams {
        stream.await.unwrap();
    }
    // The other way round: cancelled on B, which does not drive the parent.
    let parent = create(&a, "parent").await.key;
    follow(&b, &parent, RunStatus::WaitingApproval).await;
    let view = b.view(&parent).await.unwrap().unwrap();
    let child = parent.sibling(view.run.children[0].run.clone());
    let streams = [&parent, &child].map(|run| stream(&a, run, RunStatus::Cancelled));
    command(&b, &parent, cancel()).await;
    for stream in streams {
        stream.await.unwrap();
    }
    a.stop().await;
    b.stop().await;
}

async fn work_that_one_replica_leaves_behind_is_taken_up_by_the_other(news: News) {
    let (executor, attempts) = steered();
    let (a, b) = pair(news, executor).await;
    // Its commands still commit but are not followed up, as if the process died right after.
    b.stop().await;
    let timed = create(&b, "wait").await.key;
    follow(&a, &timed, RunStatus::Completed).await;
    let calling = create(&b, "call").await.key;
    let (attempt, reply) = attempts.lock().await.recv().await.unwrap();
    assert_eq!(attempt.run, calling);
    reply.send(Outcome::Done(json!({ "status": 200 }))).unwrap();
    follow(&a, &calling, RunStatus::Completed).await;
    let parent = create(&b, "parent").await.key;
    follow(&a, &parent, RunStatus::WaitingApproval).await;
    a.stop().await;
}
