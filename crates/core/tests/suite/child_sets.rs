//! Steps that wait for several children, in the language for tests: no node of OpenWOP has several yet.

use std::sync::Arc;

use expect_test::expect;
use serde_json::{Value, json};
use wopr_core::{NodeTypes, Plan, RunMessage, RunStatus};
use wopr_testkit::{Script, Workflow};

/// Starts a list that runs one set, and then says how many of its children completed.
fn run(set: Value) -> Script {
    let list = json!({ "id": "list", "templates": [set, "{completed} completed"] });
    let list = Plan::admit(list, NodeTypes::default()).expect("valid");
    let workflows = [
        Workflow::new("pure").noops("a"),
        Workflow::new("gate").gate("gate"),
        Workflow::new("delay").delay("wait", 10),
        Workflow::new("failing").node("fail", "core.fail", json!({})),
        Workflow::new("parent").node("call", "core.subWorkflow", json!({ "workflowId": "gate" })),
    ];
    let plans = workflows.iter().map(Workflow::plan);
    Script::of_plans([Arc::new(list)].into_iter().chain(plans)).start(json!({}))
}

fn open(script: &Script) -> Vec<String> {
    let open = script.run(0).interrupts(script.plan(0));
    open.map(|open| open.id()).collect()
}

fn accept(script: &mut Script, run: usize) {
    script
        .answer_in(run, "gate", json!({ "action": "accept" }))
        .expect("open");
}

/// The status of each child.
fn children(script: &Script) -> Vec<&'static str> {
    (1..script.n_runs()).map(|run| script.status_of(run)).collect()
}

#[test]
fn quorum_goes_on_with_enough_children_and_cancels_the_rest() {
    let mut script = run(json!({ "of": ["gate", "gate", "gate", "delay"], "quorum": 2 }));
    assert_eq!(
        open(&script),
        ["step-0:0.0/gate:0", "step-0:0.1/gate:0", "step-0:0.2/gate:0"]
    );
    accept(&mut script, 3);
    assert_eq!(script.status(), "waiting-approval");
    script.wait(10);
    assert_eq!(script.status(), "completed");
    assert_eq!(
        children(&script),
        ["cancelled", "cancelled", "completed", "completed"]
    );
    expect![[r#"
        0 run.started
        1 node.started step-0
        2 node.dispatched step-0 run1 gate
        3 node.dispatched step-0 run2 gate
        4 node.dispatched step-0 run3 gate
        5 node.dispatched step-0 run4 delay
        6 node.suspended step-0 approval step-0:0.0/gate:0 of run1
        7 node.suspended step-0 approval step-0:0.1/gate:0 of run2
        8 node.suspended step-0 approval step-0:0.2/gate:0 of run3
        9 node.resumed step-0 step-0:0.2/gate:0
        10 child.ended step-0 run3 completed {"action":"accept","approved":true,"decidedBy":"ada"}
        11 child.ended step-0 run4 completed {"waitedMs":10}
        12 node.resumed step-0 step-0:0.0/gate:0
        13 node.resumed step-0 step-0:0.1/gate:0
        14 node.completed step-0 {"completed":2}
        15 node.started step-1
        16 node.completed step-1 {"text":"2 completed"}
        17 run.completed {"text":"2 completed"}"#]]
    .assert_eq(&script.log(0));
}

#[test]
fn all_children_are_awaited_and_their_ends_are_counted() {
    let mut script = run(json!({ "of": ["pure", "failing", "gate", "delay"], "absorb": true }));
    script.wait(10);
    assert_eq!(script.status(), "waiting-approval");
    assert!(script.run(0).children.iter().filter(|child| child.ended).count() == 3);
    accept(&mut script, 3);
    assert_eq!(script.status(), "completed");
    assert_eq!(script.variable("text"), "3 completed");
}

#[test]
fn child_that_fails_ends_a_step_that_needs_all() {
    let script = run(json!({ "of": ["gate", "failing", "delay"] }));
    assert_eq!(script.status(), "failed");
    assert_eq!(children(&script), ["cancelled", "failed", "cancelled"]);
    let (failure, _) = script.run(0).error.clone().expect("a failure");
    assert_eq!(failure.code, "subworkflow_child_failed");
}

#[test]
fn first_is_the_first_that_completes_and_race_the_first_that_ends() {
    let mut first = run(json!({ "of": ["failing", "delay", "gate"], "join": "first" }));
    assert_eq!(first.status(), "waiting-approval");
    first.wait(10);
    assert_eq!(children(&first), ["failed", "completed", "cancelled"]);
    assert_eq!(first.variable("text"), "1 completed");
    let race = run(json!({ "of": ["failing", "delay", "gate"], "join": "race", "absorb": true }));
    assert_eq!(children(&race), ["failed", "cancelled", "cancelled"]);
    assert_eq!(race.variable("text"), "0 completed");
}

#[test]
fn quorum_that_can_no_longer_be_reached_fails() {
    let script = run(json!({ "of": ["failing", "failing", "gate"], "quorum": 2 }));
    assert_eq!(script.status(), "failed");
    assert_eq!(children(&script), ["failed", "failed", "cancelled"]);
}

#[test]
fn cancel_waits_for_every_child_that_is_left() {
    let mut script = run(json!({ "of": ["pure", "gate", "parent"] }));
    script.hold_mail();
    script.cancel().expect("it waits");
    assert_eq!(script.status(), "cancelling");
    script.deliver();
    assert_eq!(script.status(), "cancelled");
    assert_eq!(
        children(&script),
        ["completed", "cancelled", "cancelled", "cancelled"]
    );
}

/// The mail of a child that lost comes late: it was cancelled, and may have completed before it heard of it.
#[test]
fn late_end_of_a_child_that_lost_changes_nothing() {
    let mut script = run(json!({ "of": ["gate", "gate"], "join": "first" }));
    script.hold_mail();
    accept(&mut script, 1);
    accept(&mut script, 2);
    script.deliver();
    assert_eq!(
        (script.status(), children(&script)),
        ("completed", vec!["completed", "completed"])
    );
    assert_eq!(script.variable("text"), "1 completed");
}

#[test]
fn set_that_cannot_start_creates_no_child() {
    for (set, code) in [
        (json!({ "of": [] }), "impossible_join"),
        (json!({ "of": ["pure"], "quorum": 2 }), "impossible_join"),
        (json!({ "of": ["pure", "nowhere"] }), "unknown_child_workflow"),
        (json!({ "of": vec!["pure"; 201] }), "child_set_limit_exceeded"),
    ] {
        let script = run(set);
        assert_eq!((script.status(), script.n_runs()), ("failed", 1), "{code}");
        let (failure, _) = script.run(0).error.clone().expect("a failure");
        assert_eq!(failure.code, code);
    }
    assert_eq!(run(json!({ "of": vec!["pure"; 200] })).status(), "completed");
}

#[test]
fn untrusted_end_of_one_child_marks_what_the_step_outputs() {
    let mut script = run(json!({ "of": ["gate", "gate"] }));
    script.hold_mail();
    let step = script.run(0).children[0].step.clone();
    for (n, is_untrusted) in [(0, true), (1, false)] {
        let ended = RunMessage::ChildEnded {
            step: step.clone(),
            child: script.run(0).children[n].run.clone(),
            status: RunStatus::Completed,
            outputs: wopr_core::Object::new(),
            report: wopr_core::Object::new(),
            error: None,
            is_untrusted,
        };
        script
            .tell(0, wopr_core::Command::RunMessages(vec![ended]))
            .expect("it waits");
    }
    let completed = script.events(0).iter().rev().find(|recorded| {
        matches!(
            &recorded.event,
            wopr_core::Event::Kernel(wopr_core::KernelEvent::NodeCompleted { .. })
        )
    });
    assert!(completed.expect("the set").is_untrusted);
}
