//! Pausing and resuming.

use expect_test::expect;
use serde_json::json;
use wopr_core::{Failure, Refusal, RunStatus};
use wopr_testkit::{Script, Workflow};

#[test]
fn delay_that_ends_during_a_pause_starts_nothing() {
    let mut script = Script::started(
        &Workflow::new("w")
            .delay("wait", 10)
            .noops("next")
            .edges("wait -> next"),
    );
    script.pause().expect("running");
    script.wait(10);
    assert_eq!(script.status(), "paused");
    script.resume().expect("paused");
    expect![[r#"
        0 run.started
        1 node.started wait
        2 run.paused drain-current-node
        3 node.completed wait {"waitedMs":10}
        4 run.resumed
        5 node.started next
        6 node.completed next
        7 run.completed"#]]
    .assert_eq(&script.news());
}

#[test]
fn effect_that_ends_during_a_pause_starts_nothing() {
    let mut script = Script::started(
        &Workflow::new("w")
            .effect("work")
            .noops("next")
            .edges("work -> next"),
    );
    script.pause().expect("running");
    script.outcome("work", Ok(json!({}))).expect("under way");
    assert_eq!(script.status(), "paused");
    script.resume().expect("paused");
    assert_eq!(script.status(), "completed");
}

#[test]
fn retry_due_during_a_pause_waits_for_the_resume() {
    let workflow = Workflow::new("w")
        .effect("work")
        .set("settings", json!({ "maxRetries": 1, "retryDelayMs": 10 }));
    let mut script = Script::started(&workflow);
    script
        .outcome(
            "work",
            Err(Failure {
                retryable: true,
                reason: None,
                ..Failure::new("busy", "later")
            }),
        )
        .expect("under way");
    script.pause().expect("running");
    script.wait(50);
    assert_eq!((script.status(), script.timers(0).as_str()), ("paused", ""));
    script.resume().expect("paused");
    assert_eq!(script.timers(0), "retry:0:1:work in 0");
    script.wait(0);
    script.outcome("work", Ok(json!({}))).expect("under way");
    expect![[r#"
        0 run.started
        1 node.started work
        2 effect.scheduled work core.conformance.side-effect
        3 node.retried work attempt 1 in 10 busy: later
        4 run.paused drain-current-node
        5 run.resumed
        6 node.started work attempt 1
        7 effect.scheduled work core.conformance.side-effect
        8 node.completed work
        9 run.completed"#]]
    .assert_eq(&script.news());
}

#[test]
fn retry_not_yet_due_keeps_its_time() {
    let workflow = Workflow::new("w")
        .effect("work")
        .set("settings", json!({ "maxRetries": 1, "retryDelayMs": 100 }));
    let mut script = Script::started(&workflow);
    script.pause().expect("running");
    script
        .outcome(
            "work",
            Err(Failure {
                retryable: true,
                reason: None,
                ..Failure::new("busy", "later")
            }),
        )
        .expect("under way");
    script.wait(40);
    script.resume().expect("paused");
    assert_eq!(script.timers(0), "retry:0:1:work in 60");
}

#[test]
fn failure_during_a_pause_ends_the_run() {
    let mut script = Script::started(&Workflow::new("w").effect("work"));
    script.pause().expect("running");
    script
        .outcome("work", Err(Failure::new("bad", "worse")))
        .expect("under way");
    assert_eq!(script.status(), "failed");
}

#[test]
fn handled_failure_during_a_pause_continues_after_it() {
    let mut script = Script::started(
        &Workflow::new("w")
            .effect("work")
            .noops("catch")
            .edges("work -> catch any_failed"),
    );
    script.pause().expect("running");
    script
        .outcome("work", Err(Failure::new("bad", "worse")))
        .expect("under way");
    assert_eq!(script.status(), "paused");
    script.resume().expect("paused");
    assert_eq!(script.status(), "completed");
}

#[test]
fn paused_run_can_be_cancelled() {
    let mut script = Script::started(&Workflow::new("w").effect("work"));
    script.pause().expect("running");
    script.cancel().expect("paused");
    assert_eq!(script.status(), "cancelled");
}

#[test]
fn split_loop_can_be_paused() {
    let workflow = Workflow::new("w")
        .variable("n", "number", json!({ "defaultValue": 0 }))
        .node(
            "add",
            "core.setVariable",
            json!({ "name": "n", "expression": "n + 1" }),
        )
        .edge_if("add", "add", json!({ "expression": "n < 1000" }));
    let mut script = Script::started(&workflow);
    script.pause().expect("running");
    let n_events = script.events(0).len();
    script.wait(10);
    assert_eq!(
        (script.events(0).len(), script.status(), script.next_timer()),
        (n_events, "paused", None)
    );
    script.resume().expect("paused");
    script.wait(0);
    script.wait(0);
    script.wait(0);
    script.wait(0);
    assert_eq!(
        (script.status(), script.variable("n")),
        ("completed", json!(1_000))
    );
}

#[test]
fn only_running_runs_are_paused_and_only_paused_runs_are_resumed() {
    let mut waiting = Script::started(&Workflow::new("w").gate("gate"));
    assert_eq!(
        waiting.pause(),
        Err(Refusal::NotPausable(RunStatus::WaitingApproval))
    );
    assert_eq!(
        waiting.resume(),
        Err(Refusal::NotPaused(RunStatus::WaitingApproval))
    );
    let mut ended = Script::started(&Workflow::new("w").noops("a"));
    assert_eq!(ended.pause(), Err(Refusal::NotPausable(RunStatus::Completed)));
    assert_eq!(ended.resume(), Err(Refusal::NotPaused(RunStatus::Completed)));
    let mut paused = Script::started(&Workflow::new("w").effect("a"));
    paused.pause().expect("running");
    assert_eq!(paused.pause(), Err(Refusal::NotPausable(RunStatus::Paused)));
}
