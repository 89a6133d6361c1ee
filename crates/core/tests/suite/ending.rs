//! Early ends: cancellation, failure, limits.

use expect_test::expect;
use serde_json::json;
use wopr_core::{Failure, Refusal, RunStatus, Timer};
use wopr_testkit::{Script, Workflow};

/// One node of each kind of waiting, in parallel.
fn busy() -> Workflow {
    Workflow::new("busy")
        .delay("delay", 1_000)
        .effect("effect")
        .raw_node(json!({
            "id": "retry", "typeId": "core.fail", "name": "retry", "config": { "retryable": true }, "inputs": {},
            "settings": { "maxRetries": 5, "retryDelayMs": 500 },
        }))
        .node("gate", "core.approvalGate", json!({ "timeoutMs": 2_000 }))
        .noops("done never")
        .edges("delay -> never")
}

#[test]
fn cancel_stops_all_active_work() {
    let mut script = Script::started(&busy());
    script.news();
    assert_eq!(
        script.timers(0),
        "delay:0:delay in 1000, interrupt:0:gate in 2000, retry:0:1:retry in 500"
    );
    script.cancel().expect("running");
    expect![[r#"
        12 node.cancelled delay run-cancelled
        13 node.cancelled effect run-cancelled
        14 node.cancelled retry run-cancelled
        15 node.cancelled gate run-cancelled
        16 run.cancelled by ada"#]]
    .assert_eq(&script.news());
    assert_eq!(script.timers(0), "");
    assert_eq!(
        script.cancel(),
        Err(Refusal::Terminal(RunStatus::Cancelled)),
        "twice"
    );
    assert_eq!(script.outcome("effect", Ok(json!({}))), Err(Refusal::Stale));
}

#[test]
fn failure_stops_all_active_work() {
    let mut script = Script::started(&busy());
    script.news();
    script
        .outcome("effect", Err(Failure::new("bad", "worse")))
        .expect("under way");
    expect![[r#"
        12 node.failed effect bad: worse
        13 node.cancelled delay run-failed
        14 node.cancelled retry run-failed
        15 node.cancelled gate run-failed
        16 run.failed bad: worse in effect"#]]
    .assert_eq(&script.news());
    assert_eq!(script.timers(0), "");
    assert_eq!(script.cancel(), Err(Refusal::Terminal(RunStatus::Failed)));
    let n_events = script.events(0).len();
    assert_eq!(
        script.fire(Timer::Continue),
        Ok(()),
        "a leftover timer is cleared"
    );
    assert_eq!(script.events(0).len(), n_events);
}

/// An effect scheduled by the failing decision itself never starts.
#[test]
fn effect_of_a_failing_decision_is_not_started() {
    let workflow = Workflow::new("w")
        .effect("effect")
        .delay("delay", 5)
        .node("fail", "core.fail", json!({}));
    let script = Script::started(&workflow);
    assert_eq!(
        (script.status(), script.effects().len(), script.timers(0).as_str()),
        ("failed", 0, "")
    );
}

#[test]
fn handled_failure_does_not_end_the_run() {
    let workflow = Workflow::new("w")
        .effect("effect")
        .noops("catch rest")
        .edges("effect -> catch any_failed, effect -> rest");
    let mut script = Script::started(&workflow);
    script
        .outcome("effect", Err(Failure::new("bad", "worse")))
        .expect("under way");
    expect![[r#"
        0 run.started
        1 node.started effect
        2 effect.scheduled effect core.conformance.side-effect
        3 node.failed effect bad: worse
        4 node.started catch
        5 node.completed catch
        6 node.skipped rest trigger-not-met
        7 run.completed"#]]
    .assert_eq(&script.news());
}

#[test]
fn pending_run_can_be_cancelled() {
    let mut script = Script::of(&[&Workflow::new("w").noops("a")]);
    script.add_pending();
    script.cancel().expect("pending");
    expect!["0 run.cancelled by ada"].assert_eq(&script.news());
    let start = wopr_core::Command::Start(Box::new(Script::start_run(json!({}))));
    assert_eq!(script.tell(0, start), Err(Refusal::WrongState));
}

#[test]
fn pending_run_accepts_only_start_and_cancel() {
    let mut script = Script::of(&[&Workflow::new("w").noops("a")]);
    script.add_pending();
    assert_eq!(script.pause(), Err(Refusal::WrongState));
    let not_paused = Refusal::NotPaused(RunStatus::Pending);
    assert_eq!(script.resume(), Err(not_paused));
    assert_eq!(script.fire(Timer::Continue), Err(Refusal::WrongState));
    assert_eq!(
        script.tell(0, wopr_core::Command::RunMessages(Vec::new())),
        Ok(())
    );
    assert!(script.events(0).is_empty());
}

#[test]
fn run_starts_once() {
    let mut script = Script::started(&Workflow::new("w").gate("gate"));
    let start = wopr_core::Command::Start(Box::new(Script::start_run(json!({}))));
    assert_eq!(script.tell(0, start), Err(Refusal::WrongState));
}

fn bounded(workflow: &Workflow, ms: u64) -> Script {
    Script::of(&[workflow]).start_configured(json!({}), json!({ "runTimeoutMs": ms }))
}

#[test]
fn run_that_takes_too_long_fails() {
    let mut script = bounded(&Workflow::new("w").delay("wait", 30_000), 1_000);
    assert_eq!(script.timers(0), "delay:0:wait in 30000, run-duration in 1000");
    script.wait(1_000);
    expect![[r#"
        0 run.started
        1 node.started wait
        2 cap.breached run-duration 1001 > 1000 at wait
        3 node.cancelled wait run-failed
        4 run.failed run_timeout: the run reached its limit of 1000 ms in wait"#]]
    .assert_eq(&script.news());
    assert_eq!(script.timers(0), "");
}

#[test]
fn tightest_of_three_limits_applies() {
    let workflow = Workflow::new("w")
        .delay("wait", 30_000)
        .set("settings", json!({ "timeout": 700 }));
    assert_eq!(
        bounded(&workflow, 1_000).timers(0),
        "delay:0:wait in 30000, run-duration in 700"
    );
    let mut start = Script::start_run(json!({}));
    start.bounds.run_duration_ms = Some(600);
    let mut script = Script::of(&[&workflow]);
    script.try_start(start).expect("within bounds");
    assert_eq!(script.timers(0), "delay:0:wait in 30000, run-duration in 600");
}

#[test]
fn waiting_for_an_answer_does_not_count() {
    let workflow = Workflow::new("w")
        .delay("before", 400)
        .gate("gate")
        .delay("after", 400)
        .edges("before -> gate, gate -> after");
    let mut script = bounded(&workflow, 1_000);
    script.wait(400);
    assert_eq!(
        (script.status(), script.timers(0).as_str()),
        ("waiting-approval", "")
    );
    script.wait(100_000);
    script.answer("gate", json!({ "approve": true })).expect("open");
    assert_eq!(script.timers(0), "delay:0:after in 400, run-duration in 600");
    script.wait(400);
    assert_eq!((script.status(), script.next_timer()), ("completed", None));
}

#[test]
fn paused_time_does_not_count() {
    let mut script = bounded(&Workflow::new("w").effect("work"), 1_000);
    script.wait(900);
    script.pause().expect("running");
    assert_eq!(script.timers(0), "");
    script.wait(100_000);
    script.resume().expect("paused");
    assert_eq!(script.timers(0), "run-duration in 100");
    script.wait(100);
    assert!(
        script
            .log(0)
            .contains("cap.breached run-duration 1001 > 1000 at work"),
        "{}",
        script.log(0)
    );
}

#[test]
fn early_duration_timer_is_set_again() {
    let mut script = bounded(&Workflow::new("w").effect("work"), 1_000);
    script.skip(10);
    script.fire(Timer::RunDuration).expect("dropped");
    assert_eq!(
        (script.status(), script.timers(0).as_str()),
        ("running", "run-duration in 990")
    );
}

#[test]
fn stale_timers_change_nothing() {
    let mut script = Script::started(&busy());
    let n_events = script.events(0).len();
    let step = |node: &str, ordinal| wopr_core::StepId {
        node: wopr_core::NodeId::parse(node).expect("id"),
        ordinal,
    };
    for timer in [
        Timer::Delay(step("delay", 1)),
        Timer::Delay(step("gate", 0)),
        Timer::Delay(step("nowhere", 0)),
        Timer::Retry(step("retry", 0), 2),
        Timer::Retry(step("delay", 0), 1),
        Timer::Interrupt(step("gate", 1)),
        Timer::Interrupt(step("delay", 0)),
        Timer::RunDuration,
        Timer::Continue,
    ] {
        script.fire(timer).expect("dropped");
    }
    assert_eq!(script.events(0).len(), n_events);
}
