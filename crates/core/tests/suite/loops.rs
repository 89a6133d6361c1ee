//! Loops: back edges, joins that receive some sources again, limits.

use expect_test::expect;
use serde_json::json;
use wopr_core::{HostBounds, NodeId, Refusal, Timer, format};
use wopr_testkit::{Script, Workflow};

/// An approval that returns to a revision.
fn review() -> Workflow {
    Workflow::new("review")
        .noops("start")
        .gate("gate")
        .noops("revise publish")
        .edges(
            "start -> gate any_success, gate -> revise any_failed, revise -> gate any_success, gate -> publish",
        )
}

#[test]
fn rejected_gate_opens_again_after_the_revision() {
    let mut script = Script::started(&review());
    script
        .answer("gate", json!({ "action": "reject", "feedback": "longer" }))
        .expect("open");
    script
        .answer("gate", json!({ "action": "accept" }))
        .expect("open again");
    expect![[r#"
        0 run.started
        1 node.started start
        2 node.completed start
        3 node.started gate
        4 interrupt.requested gate approval
        5 approval.requested gate
        6 node.suspended gate approval gate:0
        7 interrupt.resolved gate reject by ada
        8 approval.received gate reject by ada longer
        9 node.failed gate approval_rejected: the approval was rejected: longer
        10 node.started revise
        11 node.completed revise
        12 node.skipped publish trigger-not-met
        13 node.started gate#1
        14 interrupt.requested gate#1 approval
        15 approval.requested gate#1
        16 node.suspended gate#1 approval gate:1
        17 interrupt.resolved gate#1 accept by ada
        18 approval.received gate#1 accept by ada
        19 node.resumed gate#1 gate:1 {"action":"accept"}
        20 node.completed gate#1 {"action":"accept","approved":true,"decidedBy":"ada"}
        21 node.skipped revise trigger-not-met
        22 node.started publish
        23 node.completed publish
        24 run.completed"#]]
    .assert_eq(&script.news());
}

#[test]
fn answer_to_an_earlier_visit_is_refused() {
    let mut script = Script::started(&review());
    script
        .answer("gate", json!({ "action": "reject" }))
        .expect("open");
    let mut stale = Script::resolve("gate", json!({ "action": "accept" }));
    for (ordinal, refusal) in [(0, Refusal::AlreadyResolved), (2, Refusal::NoInterrupt)] {
        stale.ordinal = Some(ordinal);
        assert_eq!(
            script.tell(0, wopr_core::Command::Resolve(stale.clone())),
            Err(refusal)
        );
    }
    stale.ordinal = Some(1);
    assert_eq!(script.tell(0, wopr_core::Command::Resolve(stale)), Ok(()));
    assert_eq!(script.status(), "completed");
}

/// `draft` runs again after each rejection, `research` runs once, and `merge` needs both.
#[test]
fn join_in_a_loop_keeps_sources_outside_it() {
    let workflow = Workflow::new("w")
        .noops("research draft merge")
        .gate("gate")
        .noops("publish")
        .edges("research -> merge, draft -> merge, merge -> gate, gate -> draft any_failed, gate -> publish");
    let mut script = Script::started(&workflow);
    script
        .answer("gate", json!({ "action": "reject" }))
        .expect("open");
    script
        .answer("gate", json!({ "action": "accept" }))
        .expect("open again");
    expect![[r#"
        0 run.started
        1 node.started research
        2 node.completed research
        3 node.started merge
        4 node.completed merge
        5 node.started gate
        6 interrupt.requested gate approval
        7 approval.requested gate
        8 node.suspended gate approval gate:0
        9 interrupt.resolved gate reject by ada
        10 approval.received gate reject by ada
        11 node.failed gate approval_rejected: the approval was rejected
        12 node.started draft
        13 node.completed draft
        14 node.skipped publish trigger-not-met
        15 node.started merge#1
        16 node.completed merge#1
        17 node.started gate#1
        18 interrupt.requested gate#1 approval
        19 approval.requested gate#1
        20 node.suspended gate#1 approval gate:1
        21 interrupt.resolved gate#1 accept by ada
        22 approval.received gate#1 accept by ada
        23 node.resumed gate#1 gate:1 {"action":"accept"}
        24 node.completed gate#1 {"action":"accept","approved":true,"decidedBy":"ada"}
        25 node.skipped draft trigger-not-met
        26 node.started publish
        27 node.completed publish
        28 run.completed"#]]
    .assert_eq(&script.news());
}

/// The tail needs the gate, and a branch that ended long before the gate was accepted.
#[test]
fn join_after_a_loop_keeps_parallel_sources() {
    let workflow = review()
        .noops("legal release")
        .edges("legal -> release, gate -> release");
    let mut script = Script::started(&workflow);
    script
        .answer("gate", json!({ "action": "reject" }))
        .expect("open");
    script
        .answer("gate", json!({ "action": "accept" }))
        .expect("open again");
    let log = script.log(0);
    assert!(log.contains("node.skipped release"), "{log}");
    assert!(log.contains("node.completed release"), "{log}");
    assert_eq!(script.status(), "completed");
}

/// Both branches of a diamond run in every round. The join must not combine the new result of one with the
/// old result of the other.
#[test]
fn diamond_in_a_loop_joins_once_per_round() {
    let workflow = Workflow::new("w")
        .noops("a fast")
        .delay("slow", 5)
        .noops("join")
        .gate("gate")
        .edges("a -> fast, a -> slow, fast -> join, slow -> join, join -> gate, gate -> a any_failed");
    let mut script = Script::started(&workflow);
    for _ in 0..3 {
        script.wait(5);
        script
            .answer("gate", json!({ "action": "reject" }))
            .expect("open");
    }
    script.wait(5);
    script
        .answer("gate", json!({ "action": "accept" }))
        .expect("open");
    let joins = script.log(0).matches("node.completed join").count();
    assert_eq!((joins, script.status()), (4, "completed"));
}

/// Two loops through one join: each rejection repeats one of its two sources.
#[test]
fn join_of_two_loops_starts_after_the_repeated_source() {
    let workflow = Workflow::new("w")
        .noops("text image layout")
        .gate("copy")
        .gate("art")
        .noops("print")
        .edges(
            "text -> layout, image -> layout, layout -> copy, copy -> text any_failed,
             copy -> art, art -> image any_failed, art -> print",
        );
    let mut script = Script::started(&workflow);
    script
        .answer("copy", json!({ "action": "reject" }))
        .expect("open");
    script
        .answer("copy", json!({ "action": "accept" }))
        .expect("open");
    script.answer("art", json!({ "action": "reject" })).expect("open");
    script
        .answer("copy", json!({ "action": "accept" }))
        .expect("open");
    script.answer("art", json!({ "action": "accept" })).expect("open");
    assert_eq!(script.status(), "completed");
    assert!(
        script.log(0).contains("node.completed print"),
        "{}",
        script.log(0)
    );
}

#[test]
fn loop_does_not_starve_parallel_nodes() {
    let mut script = Script::started(&counter_beside(Workflow::new("w"), 1_000).effect("effect"));
    assert_eq!(script.status(), "running");
    script
        .outcome("effect", Ok(json!({})))
        .expect("begun in the first decision");
}

/// A held join waits only while an active node can still lead back to its missing source.
#[test]
fn held_join_waits_only_for_reachable_sources() {
    let workflow = Workflow::new("w")
        .noops("x y join")
        .gate("gate")
        .gate("unrelated")
        .edges("x -> join, y -> join, join -> gate, gate -> x any_failed");
    let mut script = Script::started(&workflow);
    script
        .answer("gate", json!({ "action": "reject" }))
        .expect("open");
    let joins = script.log(0).matches("node.completed join").count();
    assert_eq!(joins, 2, "{}", script.log(0));
}

#[test]
fn or_join_in_a_loop_starts_every_round() {
    let workflow = Workflow::new("w")
        .noops("once first")
        .noops("join")
        .gate("gate")
        .edges("once -> join any_success, first -> join any_success, join -> gate, gate -> first any_failed");
    let mut script = Script::started(&workflow);
    for _ in 0..3 {
        script
            .answer("gate", json!({ "action": "reject" }))
            .expect("open");
    }
    script
        .answer("gate", json!({ "action": "accept" }))
        .expect("open");
    let joins = script.log(0).matches("node.completed join").count();
    assert_eq!((joins, script.status()), (4, "completed"));
}

/// Counts in a variable and exits after `rounds`.
fn counter(rounds: u32) -> Workflow {
    counter_beside(Workflow::new("count"), rounds)
}

fn counter_beside(workflow: Workflow, rounds: u32) -> Workflow {
    workflow
        .variable("n", "number", json!({ "defaultValue": 0 }))
        .node(
            "add",
            "core.setVariable",
            json!({ "name": "n", "expression": "n + 1" }),
        )
        .noops("done")
        .edge_if("add", "add", json!({ "expression": format!("n < {rounds}") }))
        .edge_if("add", "done", json!({ "expression": format!("n >= {rounds}") }))
}

#[test]
fn self_loop_counts() {
    let mut script = Script::started(&counter(3));
    expect![[r#"
        0 run.started
        1 node.started add
        2 variable.changed n=1 was 0
        3 node.completed add untaken [1]
        4 node.started add#1
        5 variable.changed n=2 was 1
        6 node.completed add#1 untaken [1]
        7 node.skipped done trigger-not-met
        8 node.started add#2
        9 variable.changed n=3 was 2
        10 node.completed add#2 untaken [0]
        11 node.started done
        12 node.completed done
        13 run.completed"#]]
    .assert_eq(&script.news());
}

#[test]
fn cycle_without_an_entry_starts_at_its_first_node() {
    let workflow = Workflow::new("w")
        .noops("lonely")
        .gate("ask")
        .noops("redo")
        .edges("ask -> redo any_failed, redo -> ask");
    let mut script = Script::started(&workflow);
    assert_eq!(script.status(), "waiting-approval");
    script.answer("ask", json!({ "action": "reject" })).expect("open");
    script.answer("ask", json!({ "action": "accept" })).expect("open");
    assert_eq!(script.status(), "completed");
}

#[test]
fn disabled_node_breaks_its_loop() {
    let workflow = Workflow::new("w")
        .noops("a")
        .raw_node(json!({ "id": "b", "typeId": "core.noop", "name": "b", "disabled": true }))
        .edges("a -> b, b -> a");
    let mut script = Script::started(&workflow);
    expect![[r#"
        0 run.started
        1 node.started a
        2 node.completed a
        3 node.skipped b disabled
        4 run.completed"#]]
    .assert_eq(&script.news());
}

#[test]
fn endless_loop_ends_at_the_recursion_limit() {
    let workflow = Workflow::new("w").noops("a b").edges("a -> b, b -> a");
    let mut script = Script::of(&[&workflow]).start_configured(json!({}), json!({ "recursionLimit": 5 }));
    expect![[r#"
        0 run.started
        1 node.started a
        2 node.completed a
        3 node.started b
        4 node.completed b
        5 node.started a#1
        6 node.completed a#1
        7 node.started b#1
        8 node.completed b#1
        9 node.started a#2
        10 node.completed a#2
        11 cap.breached node-executions 6 > 5 at b
        12 run.failed recursion_limit_exceeded: the run reached its limit of 5 node executions in b"#]]
    .assert_eq(&script.news());
}

#[test]
fn long_loop_is_split_into_decisions_and_can_be_cancelled_between_them() {
    let mut script = Script::started(&counter(10_000));
    let (_, _, timer) = script.next_timer().expect("cut");
    assert_eq!((timer, script.status()), (Timer::Continue, "running"));
    let mut finishing = script.clone();
    script.cancel().expect("running");
    assert_eq!((script.status(), script.next_timer()), ("cancelled", None));
    let mut decisions = 1;
    while finishing.next_timer().is_some() {
        finishing.wait(0);
        decisions += 1;
    }
    assert_eq!(
        (finishing.status(), finishing.variable("n")),
        ("completed", json!(10_000))
    );
    assert!(decisions > 1);
}

/// A command that arrives before the `continue` timer must not complete a split run.
#[test]
fn split_run_is_not_completed_by_another_command() {
    let loop_and_effect = counter_beside(Workflow::new("w").effect("effect"), 400);
    let mut script = Script::started(&loop_and_effect);
    script.outcome("effect", Ok(json!({}))).expect("under way");
    assert_eq!(script.status(), "running");
    assert_ne!(script.variable("n"), json!(400));
    script.wait(0);
    assert_eq!((script.status(), script.variable("n")), ("completed", json!(400)));

    let mut script = Script::started(&counter(400));
    let stray = Timer::Delay(wopr_core::StepId {
        node: NodeId::parse("add").expect("id"),
        ordinal: 9,
    });
    script.fire(stray).expect("dropped");
    script.wait(0);
    assert_eq!((script.status(), script.variable("n")), ("completed", json!(400)));
}

/// Nodes that a split decision has not started yet count as pending: a join waits for them too.
#[test]
fn split_round_is_joined_once() {
    const WIDTH: usize = 300;
    let mut crowd = Workflow::new("crowd")
        .variable("n", "number", json!({ "defaultValue": 0 }))
        .node(
            "count",
            "core.setVariable",
            json!({ "name": "n", "expression": "n + 1" }),
        )
        .noops("all");
    for n in 0..WIDTH {
        let call = format!("call{n}");
        crowd = crowd
            .node(&call, "core.subWorkflow", json!({ "workflowId": "child" }))
            .edges(&format!("count -> {call}, {call} -> all"));
    }
    let crowd = crowd.edge_if("all", "count", json!({ "expression": "n < 3" }));
    let child = Workflow::new("child").noops("only");
    let mut script = Script::of(&[&crowd, &child]).start(json!({}));
    let mut n_cuts = 0;
    while script.next_timer().is_some() {
        script.wait(0);
        n_cuts += 1;
    }
    assert_eq!(script.status(), "completed");
    assert!(n_cuts > 0);
    let log = script.log(0);
    let joined = log.lines().filter(|line| line.contains("node.completed all"));
    assert_eq!(joined.count(), 3);
}

#[test]
fn loop_cannot_exceed_a_tight_host_limit() {
    let mut start = Script::start_run(json!({}));
    start.bounds = HostBounds {
        node_executions: 10,
        log_bytes: 64 << 20,
        run_duration_ms: None,
    };
    start.configurable.insert("recursionLimit".to_owned(), json!(11));
    let refused = Script::of(&[&counter(3)]).try_start(start);
    expect!["start the run: configurable.recursionLimit must be between 1 and 10"]
        .assert_eq(&refused.expect_err("out of bounds").to_string());
}

#[test]
fn a_loop_that_writes_much_ends_at_the_limit_of_its_log() {
    const LIMIT: u64 = 4 << 20;
    let workflow = Workflow::new("w")
        .variable("t", "string", json!({ "defaultValue": "x".repeat(50_000) }))
        .node(
            "turn",
            "core.setVariable",
            json!({ "name": "t", "expression": "t[1:] ~ t[:1]" }),
        )
        .edges("turn -> turn");
    let mut start = Script::start_run(json!({}));
    start.bounds.log_bytes = LIMIT;
    let mut script = Script::of(&[&workflow]);
    script.try_start(start).expect("starts");
    while script.next_timer().is_some() {
        script.wait(0);
    }
    let run = script.run(0);
    let (error, node) = run.error.as_ref().expect("failed");
    assert_eq!(error.code, "log_limit_exceeded");
    assert_eq!(node.as_ref().map(NodeId::as_str), Some("turn"));
    // The last execution may exceed the limit, and no other one began.
    assert!(
        (LIMIT..LIMIT + 200_000).contains(&run.log_bytes),
        "{}",
        run.log_bytes
    );
    let stored: usize = script
        .events(0)
        .iter()
        .map(|event| format::encode_event(event).len())
        .sum();
    assert!(stored as u64 <= 2 * run.log_bytes, "{stored} {}", run.log_bytes);
    // A child has the limit of its parent.
    let parent = Workflow::new("parent").node("call", "core.subWorkflow", json!({ "workflowId": "w" }));
    let mut start = Script::start_run(json!({}));
    start.bounds.log_bytes = LIMIT;
    let mut script = Script::of(&[&parent, &workflow]);
    script.try_start(start).expect("starts");
    while script.next_timer().is_some() {
        script.wait(0);
    }
    let (error, _) = script.run(1).error.as_ref().expect("failed");
    assert_eq!(error.code, "log_limit_exceeded");
    assert_eq!(script.status(), "failed");
}

#[test]
fn doubling_a_text_fails_without_exhausting_memory() {
    let workflow = Workflow::new("w")
        .variable("t", "string", json!({ "defaultValue": "xxxxxxxxxxxxxxxx" }))
        .node(
            "grow",
            "core.setVariable",
            json!({ "name": "t", "expression": "t ~ t" }),
        )
        .edges("grow -> grow");
    let mut script = Script::started(&workflow);
    while script.next_timer().is_some() {
        script.wait(0);
    }
    let last = script.log(0).lines().last().map(ToOwned::to_owned);
    expect!["48 run.failed expression_failed: stay within 1048576 bytes in grow"]
        .assert_eq(&last.unwrap_or_default());
}

#[test]
fn nesting_a_value_in_itself_fails_and_keeps_the_log_readable() {
    let grow = |expression: &str| {
        let workflow = Workflow::new("w")
            .variable("t", "array", json!({ "defaultValue": [] }))
            .node(
                "grow",
                "core.setVariable",
                json!({ "name": "t", "expression": expression }),
            )
            .edges("grow -> grow");
        Script::started(&workflow)
    };
    let by_ports = Workflow::new("w")
        .wired(
            "grow",
            "core.identity",
            json!({}),
            json!({
                "s": { "type": "static", "value": 1 },
                "t": { "type": "variable", "variableName": "grow", "optional": true },
            }),
        )
        .edges("grow -> grow");
    for script in [grow("[t]"), grow("{'t': t}"), Script::started(&by_ports)] {
        assert_eq!(script.status(), "failed");
        assert!(script.log(0).contains("output_too_deep"));
    }
}
