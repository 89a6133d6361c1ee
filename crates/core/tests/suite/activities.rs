//! Steps whose outcome comes from outside the engine: workers, and calls that a peer has accepted.

use expect_test::expect;
use serde_json::{Value, json};
use wopr_core::{Command, Failure, NodeId, Refusal, StepId, Timer};
use wopr_testkit::{Script, Workflow};

fn worked(config: Value) -> Script {
    let workflow = Workflow::new("w")
        .variable("who", "string", json!({ "defaultValue": "Ann" }))
        .wired("n", "core.activity", config, json!({}))
        .set("settings", json!({ "maxRetries": 1, "retryDelayMs": 10 }));
    Script::started(&workflow)
}

fn step() -> StepId {
    StepId {
        node: NodeId::parse("n").expect("valid"),
        ordinal: 0,
    }
}

fn beat(script: &mut Script, attempt: u32, details: Value) -> Result<(), Refusal> {
    let command = Command::Progressed {
        step: step(),
        attempt,
        details,
        then: None,
    };
    script.tell(0, command)
}

fn accept(script: &mut Script, handle: Value) -> Result<(), Refusal> {
    let command = Command::Accepted {
        step: step(),
        attempt: 0,
        handle,
        check_at: None,
    };
    script.tell(0, command)
}

#[test]
fn worker_gets_the_rendered_input_and_ends_the_step() {
    let mut script = worked(json!({ "queue": "letters", "input": { "to": ["{{ who }}"], "n": 2 } }));
    let run = script.run(0).clone();
    let waiting: Vec<_> = run.activities(script.plan(0)).collect();
    let (at, attempt, activity) = &waiting[0];
    assert_eq!((at, *attempt, waiting.len()), (&step(), 0, 1));
    assert_eq!(activity.queue, "letters");
    assert_eq!(activity.input, json!({ "to": ["Ann"], "n": 2 }));
    assert_eq!(script.timers(0), "", "nothing ends it but its worker");
    script.outcome("n", Ok(json!({ "sent": true }))).expect("waits");
    expect![[r#"
        0 run.started
        1 node.started n
        2 effect.scheduled n core.activity for letters
        3 node.completed n {"sent":true}
        4 run.completed {"sent":true}"#]]
    .assert_eq(&script.news());
    assert_eq!(script.run(0).activities(script.plan(0)).count(), 0);
}

#[test]
fn attempt_without_an_outcome_times_out_and_is_repeated() {
    let mut script = worked(json!({ "queue": "q", "timeoutMs": 1_000 }));
    script.skip(500);
    beat(&mut script, 0, json!("half")).expect("waits");
    script.wait(500);
    // A heartbeat does not make it longer.
    expect![[r#"
        0 run.started
        1 node.started n
        2 effect.scheduled n core.activity for q
        3 effect.progressed n "half"
        4 node.retried n attempt 1 in 10 activity_timeout: nobody reported an outcome in time"#]]
    .assert_eq(&script.news());
    assert_eq!(beat(&mut script, 0, json!(1)), Err(Refusal::Stale));
    assert_eq!(script.outcome("n", Ok(json!({}))), Err(Refusal::Stale));
    script.wait(10_000);
    assert_eq!(script.status(), "failed");
}

#[test]
fn heartbeats_keep_an_attempt_alive() {
    let mut script = worked(json!({ "queue": "q", "heartbeatMs": 1_000 }));
    for _ in 0..5 {
        script.wait(900);
        beat(&mut script, 0, Value::Null).expect("waits");
    }
    assert_eq!(script.status(), "running");
    assert!(!script.news().contains("retried"));
    script.wait(1_000);
    assert!(script.news().contains("activity_silent"), "{}", script.log(0));
    script.wait(10);
    let settled = script.outcome("n", Ok(json!({})));
    settled.expect("the next attempt waits");
    assert_eq!(script.status(), "completed");
    assert_eq!(script.timers(0), "");
}

#[test]
fn overdue_timer_that_comes_early_does_nothing() {
    let mut script = worked(json!({ "queue": "q", "timeoutMs": 1_000 }));
    script.news();
    script.fire(Timer::Overdue(step(), 0)).expect("is set");
    assert_eq!(script.news(), "");
    assert_eq!(script.timers(0), "overdue:0:0:n in 1000", "it is set again");
}

#[test]
fn heartbeats_that_say_nothing_new_write_nothing() {
    let mut script = worked(json!({ "queue": "q", "heartbeatMs": 1_000 }));
    script.news();
    script.skip(249);
    beat(&mut script, 0, Value::Null).expect("waits");
    assert_eq!(script.news(), "");
    script.skip(1);
    beat(&mut script, 0, Value::Null).expect("waits");
    assert_eq!(script.news(), "3 effect.progressed n null");
}

#[test]
fn details_of_an_attempt_are_bounded() {
    let mut script = worked(json!({ "queue": "q" }));
    let deep = (0..70).fold(json!(1), |inner, _| json!([inner]));
    assert!(matches!(
        beat(&mut script, 0, deep),
        Err(Refusal::InvalidAnswer(_))
    ));
    for n in 0..1_000 {
        beat(&mut script, 0, json!(n)).expect("within the bound");
    }
    let more = beat(&mut script, 0, json!(1_000));
    assert!(matches!(more, Err(Refusal::InvalidAnswer(_))), "{more:?}");
    script.outcome("n", Ok(json!({}))).expect("it can still end");
}

#[test]
fn input_counts_as_state_for_as_long_as_the_step_waits() {
    // Each input is a third of the state that a run may hold.
    let input = json!({ "text": { "type": "variable", "variableName": "big" } });
    let mut workflow = Workflow::new("w").variable("big", "string", json!({}));
    for id in ["a", "b", "c", "d"] {
        workflow = workflow.wired(id, "core.activity", json!({ "queue": "q" }), input.clone());
    }
    let plans = Script::of(&[&workflow]);
    let mut script = plans.start(json!({ "big": "x".repeat(7 * 1024 * 1024) }));
    // It takes several decisions.
    script.wait(10);
    let log = script.log(0);
    let lines: Vec<_> = log.lines().map(|line| &line[..line.len().min(120)]).collect();
    assert!(log.contains("state_limit_exceeded"), "{lines:#?}");
}

#[test]
fn accepted_call_keeps_its_handle() {
    let mut script = Script::started(&Workflow::new("w").effect("n"));
    accept(&mut script, json!({ "task": 1 })).expect("under way");
    accept(&mut script, json!({ "task": 1 })).expect("the same again");
    accept(&mut script, json!({ "task": 2 })).expect("another handle");
    script.outcome("n", Ok(json!({}))).expect("waits");
    expect![[r#"
        0 run.started
        1 node.started n
        2 effect.scheduled n core.conformance.side-effect
        3 effect.accepted n {"task":1}
        4 effect.accepted n {"task":2}
        5 node.completed n
        6 run.completed"#]]
    .assert_eq(&script.news());
    assert!(accept(&mut script, json!({})).is_err(), "the run has ended");
}

#[test]
fn cancelled_run_takes_no_outcome_of_a_worker() {
    let mut script = worked(json!({ "queue": "q", "timeoutMs": 1_000 }));
    script.cancel().expect("running");
    assert_eq!(script.timers(0), "");
    assert!(beat(&mut script, 0, json!(1)).is_err());
    let late = script.outcome("n", Err(Failure::new("x", "y")));
    assert!(late.is_err(), "{late:?}");
}

#[test]
fn details_that_come_with_an_outcome_are_recorded_with_it() {
    let mut script = worked(json!({ "queue": "letters", "heartbeatMs": 50 }));
    let ending = |attempt, details| Command::Progressed {
        step: step(),
        attempt,
        details,
        then: Some(Box::new(Command::Effect {
            step: step(),
            attempt,
            outcome: Ok(json!({ "sent": true }).as_object().expect("an object").clone()),
            retry_after_ms: None,
        })),
    };
    script.news();
    let late = script.tell(0, ending(1, json!({ "task": "t" })));
    assert_eq!(late, Err(Refusal::Stale));
    script.tell(0, ending(0, json!({ "task": "t" }))).expect("waits");
    expect![[r#"
        3 effect.progressed n {"task":"t"}
        4 node.completed n {"sent":true}
        5 run.completed {"sent":true}"#]]
    .assert_eq(&script.news());
    assert_eq!(script.timers(0), "", "nobody watches it any more");
    let replay = script.fork(0, wopr_core::ForkMode::Replay, 0).expect("forked");
    assert_eq!(script.log(replay), script.log(0));

    // An attempt takes details only so often. Its outcome counts all the same.
    let mut script = worked(json!({ "queue": "letters" }));
    while beat(&mut script, 0, json!({ "n": 1 })).is_ok() {}
    script.tell(0, ending(0, json!({ "task": "t" }))).expect("waits");
    assert_eq!(script.status(), "completed");
}
