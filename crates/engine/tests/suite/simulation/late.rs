//! Uncertain commits that are written after the log was checked without finding them: the command takes
//! effect once, its caller gets success, and the follow-up is done. Simulated worlds meet this by chance;
//! these tests force it.

use serde_json::json;
use wopr_core::RunStatus;
use wopr_engine::{CommandError, NewSubscription, SideRows};
use wopr_store::{PushRow, Pushes as _};
use wopr_testkit::Workflow;

use super::{mines::Calm, postman::receiver};
use crate::harness::{answer, create, fresh, log, reaches};

#[tokio::test(start_paused = true)]
async fn a_run_whose_creation_happens_late_is_created_once_and_calls_once() {
    let calm = Calm::new(None).await;
    calm.register(Workflow::new("effect").effect("call")).await;
    calm.server.doubt_next();
    let view = fresh(create(&calm.engine, "effect", json!({}), SideRows::default()).await);
    assert!(calm.server.has_doubt_passed());
    reaches(&calm.engine, &view.key, RunStatus::Completed).await;
    let stats = calm.engine.stats();
    assert_eq!((stats.runs_created, stats.effects_started), (1, 1));
    let events = log(&calm.engine, &view.key).await;
    assert_eq!(
        events.iter().filter(|event| *event == "RunStarted").count(),
        1,
        "{events:?}"
    );
    calm.end().await;
}

#[tokio::test(start_paused = true)]
async fn an_answer_that_is_written_late_is_given_once_and_its_caller_is_told_so() {
    let calm = Calm::new(None).await;
    let both = Workflow::new("both")
        .gate("gate")
        .effect("call")
        .edges("gate -> call");
    calm.register(both).await;
    let run = calm.create("both").await;
    calm.server.doubt_next();
    let command = answer("gate", json!({ "action": "accept" }));
    let done = calm.engine.command(&run, command, SideRows::default()).await;
    // Decided again on top of itself, it would be refused as already answered.
    fresh(done.expect("it took effect"));
    assert!(calm.server.has_doubt_passed());
    reaches(&calm.engine, &run, RunStatus::Completed).await;
    assert_eq!(
        calm.engine.stats().effects_started,
        1,
        "what follows is done at once, and once"
    );
    calm.end().await;
}

#[tokio::test(start_paused = true)]
async fn a_receiver_that_came_with_an_answer_in_doubt_is_there_once() {
    let calm = Calm::new(None).await;
    calm.register(Workflow::new("gate").gate("gate")).await;
    let run = calm.create("gate").await;
    calm.server.doubt_next();
    let side_rows = SideRows {
        push: Some(receiver(&run.run)),
        ..SideRows::default()
    };
    let command = answer("gate", json!({ "action": "accept" }));
    let done = calm.engine.command(&run, command, side_rows).await;
    fresh(done.expect("it took effect"));
    assert!(calm.server.has_doubt_passed());
    let there = calm.server.store.pushes(&run).await.expect("pushes");
    assert_eq!(there, [receiver(&run.run).row]);

    // A refused answer registers no subscription.
    let side_rows = SideRows {
        push: Some(NewSubscription {
            row: PushRow {
                body: b"elsewhere".to_vec(),
                ..receiver(&run.run).row
            },
            ..receiver(&run.run)
        }),
        ..SideRows::default()
    };
    let command = answer("gate", json!({ "action": "reject" }));
    let refused = calm.engine.command(&run, command, side_rows).await;
    assert!(
        matches!(refused, Err(CommandError::Refused(_))),
        "the run has ended"
    );
    assert_eq!(calm.server.store.pushes(&run).await.expect("pushes"), there);
    calm.end().await;
}

#[tokio::test(start_paused = true)]
async fn a_timer_and_an_outcome_that_are_written_late_count_once() {
    let calm = Calm::new(None).await;
    let flow = Workflow::new("flow")
        .delay("wait", 5_000)
        .effect("call")
        .edges("wait -> call");
    calm.register(flow).await;
    let run = calm.create("flow").await;
    calm.server.doubt_next();
    let mut tail = calm.engine.tail(&run);
    while calm.engine.stats().effects_started == 0 {
        tail.changed().await;
    }
    assert!(calm.server.has_doubt_passed(), "the timer fired late");
    calm.server.doubt_next();
    reaches(&calm.engine, &run, RunStatus::Completed).await;
    assert!(calm.server.has_doubt_passed(), "the outcome was recorded late");
    assert_eq!(calm.engine.stats().effects_started, 1);
    let events = log(&calm.engine, &run).await;
    assert_eq!(
        events.iter().filter(|event| *event == "NodeCompleted").count(),
        2,
        "{events:?}"
    );
    calm.end().await;
}
