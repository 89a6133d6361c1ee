//! Pausing and resuming.

use expect_test::expect;
use serde_json::json;
use wopr_core::{Command, Failure, ForkMode, NodeId, Refusal, RunStatus, StepId};
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

fn busy() -> Failure {
    Failure {
        retryable: true,
        reason: None,
        ..Failure::new("busy", "later")
    }
}

fn first(node: &str) -> StepId {
    StepId {
        node: NodeId::parse(node).expect("valid"),
        ordinal: 0,
    }
}

#[test]
fn immediate_pause_cuts_a_call_which_the_resume_makes_again() {
    let mut script = Script::started(&Workflow::new("w").effect("work"));
    script.stop().expect("running");
    assert_eq!(script.outcome("work", Ok(json!({ "n": 1 }))), Err(Refusal::Stale));
    script.wait(50);
    assert_eq!((script.status(), script.timers(0).as_str()), ("paused", ""));
    script.resume().expect("paused");
    script.wait(0);
    script.outcome("work", Ok(json!({ "n": 2 }))).expect("under way");
    expect![[r#"
        0 run.started
        1 node.started work
        2 effect.scheduled work core.conformance.side-effect
        3 run.paused immediate cut work
        4 run.resumed
        5 node.started work attempt 1
        6 effect.scheduled work core.conformance.side-effect
        7 node.completed work {"n":2}
        8 run.completed {"n":2}"#]]
    .assert_eq(&script.news());
    let replay = script.fork(0, ForkMode::Replay, 0).expect("forked");
    let forked = script.run(replay).forked.expect("a fork");
    assert_eq!(
        (script.status_of(replay), forked.diverged_at),
        ("completed", None)
    );
}

#[test]
fn cut_attempts_take_none_of_the_retries_and_executions() {
    let workflow = Workflow::new("w")
        .effect("work")
        .set("settings", json!({ "maxRetries": 1, "retryDelayMs": 10 }));
    let mut script = Script::of(&[&workflow]).start_configured(json!({}), json!({ "recursionLimit": 2 }));
    for _ in 0..3 {
        script.stop().expect("running");
        script.resume().expect("paused");
        script.wait(0);
    }
    script.outcome("work", Err(busy())).expect("under way");
    script.wait(10);
    script.outcome("work", Err(busy())).expect("under way");
    expect![[r#"
        0 run.started
        1 node.started work
        2 effect.scheduled work core.conformance.side-effect
        3 run.paused immediate cut work
        4 run.resumed
        5 node.started work attempt 1
        6 effect.scheduled work core.conformance.side-effect
        7 run.paused immediate cut work
        8 run.resumed
        9 node.started work attempt 2
        10 effect.scheduled work core.conformance.side-effect
        11 run.paused immediate cut work
        12 run.resumed
        13 node.started work attempt 3
        14 effect.scheduled work core.conformance.side-effect
        15 node.retried work attempt 4 in 10 busy: later
        16 node.started work attempt 4
        17 effect.scheduled work core.conformance.side-effect
        18 node.failed work busy: later after 2 attempts
        19 run.failed busy: later in work"#]]
    .assert_eq(&script.news());
}

#[test]
fn cut_delay_goes_on_to_its_due_time() {
    let workflow = Workflow::new("w").delay("wait", 100);
    let mut script = Script::started(&workflow);
    script.wait(40);
    script.stop().expect("running");
    assert_eq!(script.timers(0), "");
    script.wait(30);
    script.resume().expect("paused");
    script.wait(0);
    assert_eq!(script.timers(0), "delay:0:wait in 30");
    script.stop().expect("running");
    script.wait(500);
    script.resume().expect("paused");
    script.wait(0);
    script.wait(0);
    expect![[r#"
        0 run.started
        1 node.started wait
        2 run.paused immediate cut wait
        3 run.resumed
        4 node.started wait attempt 1
        5 run.paused immediate cut wait
        6 run.resumed
        7 node.started wait attempt 2
        8 node.completed wait {"waitedMs":100}
        9 run.completed {"waitedMs":100}"#]]
    .assert_eq(&script.news());
}

#[test]
fn immediate_pause_leaves_the_work_of_others_under_way() {
    let tool = json!({ "server": "files", "tool": "read" });
    let workflow = Workflow::new("w")
        .node("letter", "core.activity", json!({ "queue": "letters" }))
        .node("tool", "core.mcp.toolCall", tool)
        .effect("known")
        .delay("wait", 100);
    let mut script = Script::started(&workflow);
    let accepted = Command::Accepted {
        step: first("known"),
        attempt: 0,
        handle: json!({ "task": 1 }),
        check_at: None,
    };
    script.tell(0, accepted).expect("under way");
    script.stop().expect("running");
    for node in ["letter", "tool", "known"] {
        script.outcome(node, Ok(json!({}))).expect("under way");
    }
    assert_eq!((script.status(), script.cancelled().len()), ("paused", 0));
    expect![[r#"
        0 run.started
        1 node.started letter
        2 effect.scheduled letter core.activity for letters
        3 node.started tool
        4 agent.tool.called tool:0 host:tool:tool tool:0:0 read {}
        5 effect.scheduled tool tool
        6 node.started known
        7 effect.scheduled known core.conformance.side-effect
        8 node.started wait
        9 effect.accepted known {"task":1}
        10 run.paused immediate cut wait
        11 node.completed letter
        12 agent.tool.returned tool:0 host:tool:tool tool:0:0 ok {}
        13 node.completed tool
        14 node.completed known"#]]
    .assert_eq(&script.news());
    script.resume().expect("paused");
    script.wait(0);
    script.wait(100);
    assert_eq!(script.status(), "completed");
}

#[test]
fn a_stopped_run_begins_no_call() {
    let reply = |text: &str, calls| {
        json!({
            "provider": "p", "model": "m", "text": text, "stop": "end", "toolCalls": calls,
            "usage": { "inputTokens": 1, "outputTokens": 1 },
        })
    };
    let config = json!({ "prompt": "?", "tools": [{ "workflow": "gated" }] });
    let asks = Workflow::new("w").node("n", "core.ai.callPrompt", config);
    let gated = Workflow::new("gated").effect("gate");
    let mut script = Script::of(&[&asks, &gated]).start(json!({}));
    let call = json!([{ "id": "a", "name": "gated", "arguments": {} }]);
    script.outcome("n", Ok(reply("", call))).expect("under way");
    script.stop().expect("running");
    let ended = Command::Effect {
        step: first("gate"),
        attempt: 0,
        outcome: Ok(serde_json::Map::new()),
        retry_after_ms: None,
    };
    script.tell(1, ended).expect("under way");
    script.deliver();
    let n_calls = script.effects().len();
    assert_eq!((script.status(), n_calls), ("paused", 1));
    script.resume().expect("paused");
    assert_eq!(script.effects().len(), 2);
    script
        .outcome("n", Ok(reply("so", json!([]))))
        .expect("under way");
    assert_eq!(script.status(), "completed");
    let replay = script.fork(0, ForkMode::Replay, 0).expect("forked");
    let forked = script.run(replay).forked.expect("a fork");
    assert_eq!(
        (script.status_of(replay), forked.diverged_at),
        ("completed", None)
    );
}

#[test]
fn a_stopped_run_can_be_cancelled_and_forked() {
    let workflow = Workflow::new("w").effect("work").delay("wait", 10);
    let mut script = Script::started(&workflow);
    script.stop().expect("running");
    let n = script.events(0).len() as u64;
    let branch = script.fork(0, ForkMode::Branch, n).expect("forked");
    assert_eq!(script.status_of(branch), "running");
    script.cancel().expect("paused");
    assert_eq!(script.status(), "cancelled");
}
