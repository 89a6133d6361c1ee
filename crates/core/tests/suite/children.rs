//! Child runs.

use std::sync::Arc;

use expect_test::expect;
use serde_json::{Value, json};
use wopr_core::{
    CascadeReason, Catalog, Command, Entropy, Input, InterruptKind, MAX_DECISION_WORK, Object, Refusal,
    RunMessage, RunStatus, Startable, WorkflowId, decide_counted,
};
use wopr_testkit::{Script, Workflow};

fn parent(config: Value) -> Workflow {
    calling("parent", "child", config)
}

fn calling(id: &str, child: &str, config: Value) -> Workflow {
    let mut settings = json!({ "workflowId": child });
    for (field, value) in config.as_object().into_iter().flatten() {
        settings[field] = value.clone();
    }
    Workflow::new(id).node("call", "core.subWorkflow", settings)
}

fn child() -> Workflow {
    Workflow::new("child")
}

fn run(parent: &Workflow, child: &Workflow) -> Script {
    Script::of(&[parent, child]).start(json!({}))
}

#[test]
fn child_runs_and_its_parent_continues() {
    let child = child().wired(
        "echo",
        "core.identity",
        json!({}),
        json!({ "payload": { "type": "variable", "variableName": "payload" } }),
    );
    let parent = parent(json!({ "inputs": { "payload": { "fromParent": true } } }))
        .variable("result", "object", json!({}))
        .noops("end")
        .edges("call -> end");
    let mut script = run(&parent, &child);
    expect![[r#"
        0 run.started
        1 node.started call
        2 node.dispatched call run1 child
        3 node.completed call {"childRunId":"run1","childStatus":"completed","result":{"payload":{"fromParent":true}}}
        4 node.started end
        5 node.completed end
        6 run.completed
        [run1] 0 run.started {"payload":{"fromParent":true}}
        [run1] 1 node.started echo
        [run1] 2 node.completed echo {"payload":{"fromParent":true}}
        [run1] 3 run.completed {"payload":{"fromParent":true}}"#]].assert_eq(&script.news());
    assert_eq!(
        script.variable("result"),
        json!({ "payload": { "fromParent": true } })
    );
    let parent = script.run(1).parent().expect("a child");
    assert_eq!(
        (&parent.run, parent.node.as_str(), parent.ordinal),
        (script.id(0), "call", 0)
    );
    assert_eq!(
        script.run(1).started.as_ref().map(|s| s.tenant.clone()),
        script.run(0).started.as_ref().map(|s| s.tenant.clone())
    );
}

#[test]
fn inputs_are_mapped_once_and_override_defaults() {
    let child = child()
        .variable("got", "string", json!({ "defaultValue": "baked-in" }))
        .gate("gate");
    let parent = parent(json!({ "inputMapping": { "got": "mine" } })).variable(
        "mine",
        "string",
        json!({ "defaultValue": "mine" }),
    );
    let script = run(&parent, &child);
    assert_eq!(script.run(1).variables().get("got"), Some(&json!("mine")));
    assert_eq!(
        script.run(1).started.as_ref().map(|s| s.inputs.clone()),
        json!({ "got": "mine" }).as_object().cloned()
    );
}

#[test]
fn unset_variable_stays_unset_in_the_child_despite_its_default() {
    let child = child()
        .variable("got", "string", json!({ "defaultValue": "baked-in" }))
        .noops("a");
    let parent = parent(json!({ "inputMapping": { "got": "mine" }, "inputs": { "got": "static" } }))
        .variable("mine", "string", json!({}));
    let script = run(&parent, &child);
    assert_eq!(
        (script.status_of(1), script.run(1).variables().get("got")),
        ("completed", None)
    );
}

#[test]
fn required_variable_that_the_parent_leaves_unset_fails_the_call() {
    let child = child()
        .variable("got", "string", json!({ "required": true, "defaultValue": "x" }))
        .noops("a");
    let parent = parent(json!({ "inputMapping": { "got": "mine" } }));
    let mut script = run(&parent, &child);
    expect![[r#"
        0 run.started
        1 node.started call
        2 node.failed call invalid_child_inputs: inputs.got is required, and not set here
        3 run.failed invalid_child_inputs: inputs.got is required, and not set here in call"#]]
    .assert_eq(&script.news());
}

#[test]
fn child_outputs_are_copied_where_present() {
    let child = child()
        .variable("result", "string", json!({ "defaultValue": "done" }))
        .noops("a");
    let parent = parent(json!({ "outputMapping": { "mine": "result", "other": "missing" } }))
        .variable("mine", "string", json!({ "defaultValue": "before" }))
        .variable("other", "string", json!({ "defaultValue": "kept" }));
    let mut script = run(&parent, &child);
    expect![[r#"
        0 run.started
        1 node.started call
        2 node.dispatched call run1 child
        3 variable.changed mine="done" was "before"
        4 node.completed call {"childRunId":"run1","childStatus":"completed","result":{}}
        5 run.completed {"childRunId":"run1","childStatus":"completed","result":{}}
        [run1] 0 run.started
        [run1] 1 node.started a
        [run1] 2 node.completed a
        [run1] 3 run.completed"#]]
    .assert_eq(&script.news());
    assert_eq!(
        (script.variable("mine"), script.variable("other")),
        (json!("done"), json!("kept"))
    );
}

fn failing() -> Workflow {
    child()
        .variable("result", "string", json!({ "defaultValue": "no" }))
        .node(
            "a",
            "core.fail",
            json!({ "code": "broken", "message": "it broke" }),
        )
}

#[test]
fn failed_child_fails_its_parent() {
    let mut script = run(
        &parent(json!({ "outputMapping": { "mine": "result" } })),
        &failing(),
    );
    expect![[r#"
        0 run.started
        1 node.started call
        2 node.dispatched call run1 child
        3 node.failed call subworkflow_child_failed: the child run failed: broken: it broke
        4 run.failed subworkflow_child_failed: the child run failed: broken: it broke in call
        [run1] 0 run.started
        [run1] 1 node.started a
        [run1] 2 node.failed a broken: it broke
        [run1] 3 run.failed broken: it broke in a"#]]
    .assert_eq(&script.news());
    assert_eq!(script.variable("mine"), Value::Null);
}

#[test]
fn failed_child_can_be_absorbed() {
    for word in ["absorb", "continue"] {
        let parent = parent(json!({ "onChildFailure": word, "outputMapping": { "mine": "result" } }));
        let script = run(&parent, &failing());
        assert_eq!(
            (script.status(), script.variable("mine")),
            ("completed", Value::Null)
        );
        assert_eq!(script.variable("call")["childStatus"], json!("failed"));
    }
}

#[test]
fn failed_child_can_be_routed() {
    let parent = parent(json!({})).noops("catch").edges("call -> catch any_failed");
    assert_eq!(run(&parent, &failing()).status(), "completed");
}

#[test]
fn invalid_calls_fail() {
    let strict = child().noops("a").set(
        "configurableSchema",
        json!({ "type": "object", "required": ["x"] }),
    );
    let typed = child().variable("x", "number", json!({})).noops("a");
    for (script, code) in [
        (
            Script::of(&[&parent(json!({}))]).start(json!({})),
            "unknown_child_workflow",
        ),
        (run(&parent(json!({})), &strict), "invalid_child_inputs"),
        (
            run(&parent(json!({ "inputs": { "x": "text" } })), &typed),
            "invalid_child_inputs",
        ),
        (
            run(&parent(json!({})), &calling("child", "parent", json!({}))),
            "subworkflow_cycle_detected",
        ),
        (
            Script::of(&[&calling("self", "self", json!({}))]).start(json!({})),
            "subworkflow_cycle_detected",
        ),
    ] {
        let log = script.log(script.n_runs() - 1);
        assert!(log.contains(&format!("node.failed call {code}")), "{code}: {log}");
        assert_eq!(script.status(), "failed");
    }
}

#[test]
fn children_nest_up_to_a_limit() {
    let chain: Vec<_> = (0..40)
        .map(|n| calling(&format!("w{n}"), &format!("w{}", n + 1), json!({})))
        .collect();
    let script = Script::of(&chain.iter().collect::<Vec<_>>()).start(json!({}));
    assert_eq!(script.n_runs(), 33);
    assert!(script.log(32).contains("subworkflow_depth_exceeded"));
    assert!((0..33).all(|run| script.status_of(run) == "failed"));
}

#[test]
fn parent_mirrors_its_childs_interrupt() {
    let child = child()
        .node(
            "ask",
            "core.clarificationGate",
            json!({ "questions": [{ "id": "q", "question": "?" }] }),
        )
        .gate("gate")
        .delay("rest", 10)
        .edges("ask -> gate, gate -> rest");
    let mut script = run(&parent(json!({})), &child);
    let status = |script: &Script| {
        let open = script
            .run(0)
            .interrupt(script.plan(0))
            .map(|open| format!("{} {}", open.node, open.id()));
        (script.status(), open)
    };
    assert_eq!(
        status(&script),
        ("waiting-input", Some("call call:0/ask:0".to_owned()))
    );
    script
        .answer_in(1, "ask", json!({ "answers": { "q": 1 } }))
        .expect("open");
    assert_eq!(
        status(&script),
        ("waiting-approval", Some("call call:0/gate:0".to_owned()))
    );
    script
        .answer_in(1, "gate", json!({ "approve": true }))
        .expect("open");
    assert_eq!(status(&script), ("running", None));
    script.wait(10);
    assert_eq!(status(&script), ("completed", None));
    expect![[r#"
        0 run.started
        1 node.started call
        2 node.dispatched call run1 child
        3 node.suspended call clarification call:0/ask:0 of run1
        4 node.suspended call approval call:0/gate:0 of run1
        5 node.resumed call call:0/gate:0
        6 node.completed call {"childRunId":"run1","childStatus":"completed","result":{"waitedMs":10}}
        7 run.completed {"childRunId":"run1","childStatus":"completed","result":{"waitedMs":10}}"#]]
    .assert_eq(&script.log(0));
}

#[test]
fn grandparent_mirrors_the_interrupt_too() {
    let top = calling("top", "parent", json!({}));
    let mut script = Script::of(&[&top, &parent(json!({})), &child().gate("gate")]).start(json!({}));
    assert_eq!(
        (script.status(), script.status_of(1), script.status_of(2)),
        ("waiting-approval", "waiting-approval", "waiting-approval")
    );
    script
        .answer_in(2, "gate", json!({ "approve": true }))
        .expect("open");
    assert_eq!(
        (script.status(), script.status_of(1), script.status_of(2)),
        ("completed", "completed", "completed")
    );
}

/// The grandparent must also learn of an interrupt of another child of the same node.
#[test]
fn grandparent_mirrors_the_next_waiting_child() {
    let middle = Workflow::new("middle")
        .node("one", "core.subWorkflow", json!({ "workflowId": "asks" }))
        .node("two", "core.subWorkflow", json!({ "workflowId": "gates" }));
    let asks = Workflow::new("asks").node(
        "gate",
        "core.clarificationGate",
        json!({ "questions": [{ "id": "q", "question": "?" }] }),
    );
    let gates = Workflow::new("gates").gate("gate");
    let top = calling("top", "middle", json!({}));
    let mut script = Script::of(&[&top, &middle, &asks, &gates]).start(json!({}));
    assert_eq!(script.status(), "waiting-input");
    script
        .answer_in(2, "gate", json!({ "answers": { "q": 1 } }))
        .expect("open");
    assert_eq!(script.status(), "waiting-approval");
}

/// The parent never asked itself, but the question stood at its node.
#[test]
fn late_answer_at_the_node_of_a_child_is_late_and_not_unknown() {
    let accept = || json!({ "approve": true });
    let mut script = run(&parent(json!({})).noops("end"), &child().noops("no"));
    assert_eq!(script.answer("call", accept()), Err(Refusal::NoInterrupt));
    let script_of = || run(&parent(json!({})), &child().gate("gate"));
    script = script_of();
    script.answer_in(1, "gate", accept()).expect("open");
    assert_eq!(script.status(), "completed");
    assert_eq!(script.answer("call", accept()), Err(Refusal::AlreadyResolved));
    script = script_of();
    script.cancel().expect("waiting");
    assert_eq!(script.answer("call", accept()), Err(Refusal::InterruptCancelled));
    script = script_of();
    script.cancel_run(1).expect("waiting");
    assert_eq!(script.status(), "failed");
    assert_eq!(script.answer("call", accept()), Err(Refusal::AlreadyResolved));
}

#[test]
fn cancel_cascades_to_grandchildren() {
    let top = calling("top", "parent", json!({}));
    let mut script = Script::of(&[&top, &parent(json!({})), &child().gate("gate")]).start(json!({}));
    script.news();
    script.cancel().expect("waiting");
    expect![[r#"
        4 cancel.requested by ada
        5 node.cancelled call run-cancelled
        6 run.cancelled by ada
        [run1] 4 cancel.requested parent-cancelled with run0
        [run1] 5 node.cancelled call run-cancelled
        [run1] 6 run.cancelled parent-cancelled with run0
        [run2] 5 node.cancelled gate run-cancelled
        [run2] 6 run.cancelled parent-cancelled with run1"#]]
    .assert_eq(&script.news());
    assert_eq!(
        script.answer_in(2, "gate", json!({ "approve": true })),
        Err(Refusal::InterruptGone)
    );
}

#[test]
fn run_with_children_is_cancelling_until_they_have_ended() {
    let workflow = parent(json!({})).delay("wait", 5).gate("gate");
    let mut script = run(&workflow, &child().gate("gate"));
    script.hold_mail();
    script.cancel().expect("waiting");
    assert_eq!(script.status(), "cancelling");
    assert_eq!(script.cancel(), Ok(()), "twice");
    assert_eq!(script.pause(), Err(Refusal::NotPausable(RunStatus::Cancelling)));
    assert_eq!(
        script.answer("gate", json!({ "approve": true })),
        Err(Refusal::InterruptCancelled)
    );
    let n_events = script.events(0).len();
    script.wait(10);
    assert_eq!(script.events(0).len(), n_events);
    script.deliver();
    assert_eq!((script.status(), script.status_of(1)), ("cancelled", "cancelled"));
}

#[test]
fn outputs_of_a_child_that_completes_during_cancelling_are_ignored() {
    let child = child()
        .variable("result", "string", json!({ "defaultValue": "x" }))
        .gate("gate");
    let mut script = run(&parent(json!({ "outputMapping": { "mine": "result" } })), &child);
    script.hold_mail();
    script.cancel().expect("waiting");
    script
        .answer_in(1, "gate", json!({ "approve": true }))
        .expect("open");
    script.deliver();
    assert_eq!((script.status(), script.status_of(1)), ("cancelled", "completed"));
    assert_eq!(script.variable("mine"), Value::Null);
}

#[test]
fn detached_child_continues() {
    let mut script = run(
        &parent(json!({ "propagateCancellation": false })),
        &child().gate("gate"),
    );
    script.cancel().expect("waiting");
    assert_eq!(
        (script.status(), script.status_of(1)),
        ("cancelled", "waiting-approval")
    );
    script
        .answer_in(1, "gate", json!({ "approve": true }))
        .expect("open");
    assert_eq!((script.status(), script.status_of(1)), ("cancelled", "completed"));
}

#[test]
fn manually_cancelled_child_counts_as_failed() {
    let gate = child().gate("gate");
    let mut script = run(&parent(json!({})), &gate);
    script.news();
    script.cancel_run(1).expect("waiting");
    expect![[r#"
        4 node.failed call subworkflow_child_cancelled: the child run was cancelled
        5 run.failed subworkflow_child_cancelled: the child run was cancelled in call
        [run1] 5 node.cancelled gate run-cancelled
        [run1] 6 run.cancelled by ada"#]]
    .assert_eq(&script.news());
    assert_eq!(
        script.answer_in(1, "gate", json!({ "approve": true })),
        Err(Refusal::InterruptCancelled)
    );

    let mut absorbed = run(&parent(json!({ "onChildFailure": "absorb" })), &gate);
    absorbed.cancel_run(1).expect("waiting");
    assert_eq!(
        (absorbed.status(), &absorbed.variable("call")["childStatus"]),
        ("completed", &json!("cancelled"))
    );
}

#[test]
fn failing_parent_cancels_its_children() {
    let workflow = parent(json!({})).effect("work");
    let mut script = run(&workflow, &child().gate("gate"));
    script
        .outcome("work", Err(wopr_core::Failure::new("bad", "worse")))
        .expect("under way");
    assert_eq!((script.status(), script.status_of(1)), ("failed", "cancelled"));
}

/// The same decision creates the child and fails the parent.
#[test]
fn child_created_by_a_failing_decision_is_cancelled() {
    let workflow = parent(json!({})).node("fail", "core.fail", json!({}));
    let script = run(&workflow, &child().gate("gate"));
    assert_eq!((script.status(), script.status_of(1)), ("failed", "cancelled"));
}

#[test]
fn child_cancelled_before_it_started_is_reported() {
    let mut script = Script::of(&[&parent(json!({})), &child().gate("gate")]);
    script.hold_mail();
    script.try_start(Script::start_run(json!({}))).expect("valid");
    script.cancel_run(1).expect("pending");
    script.deliver();
    assert_eq!((script.status(), script.status_of(1)), ("failed", "cancelled"));
    assert!(script.log(0).contains("subworkflow_child_cancelled"));
}

#[test]
fn parent_cancelled_before_its_child_started_ends() {
    let mut script = Script::of(&[&parent(json!({})), &child().gate("gate")]);
    script.hold_mail();
    script.try_start(Script::start_run(json!({}))).expect("valid");
    script.cancel().expect("running");
    script.deliver();
    assert_eq!((script.status(), script.status_of(1)), ("cancelled", "cancelled"));
    expect![[r#"
        0 run.started
        1 node.started gate
        2 interrupt.requested gate approval
        3 approval.requested gate
        4 node.suspended gate approval gate:0
        5 node.cancelled gate run-cancelled
        6 run.cancelled parent-cancelled with run0"#]]
    .assert_eq(&script.log(1));
}

#[test]
fn two_children_run_concurrently() {
    let parent = Workflow::new("parent")
        .node("one", "core.subWorkflow", json!({ "workflowId": "child" }))
        .node("two", "core.subWorkflow", json!({ "workflowId": "child" }))
        .noops("end")
        .edges("one -> end, two -> end");
    let mut script = run(&parent, &child().gate("gate"));
    assert_eq!(script.n_runs(), 3);
    assert_ne!(script.id(1), script.id(2));
    script
        .answer_in(2, "gate", json!({ "approve": true }))
        .expect("open");
    assert_eq!(script.status(), "waiting-approval");
    script
        .answer_in(1, "gate", json!({ "approve": true }))
        .expect("open");
    assert_eq!(script.status(), "completed");
    assert!(script.run(0).children.iter().all(|child| child.ended));
}

#[test]
fn loop_calls_a_new_child_each_time() {
    let parent = Workflow::new("parent")
        .node("call", "core.subWorkflow", json!({ "workflowId": "child" }))
        .gate("gate")
        .edges("call -> gate, gate -> call any_failed");
    let mut script = run(&parent, &child().noops("a"));
    script.answer("gate", json!({ "approve": false })).expect("open");
    assert_eq!(
        (
            script.n_runs(),
            script.run(2).parent().map(|parent| parent.ordinal)
        ),
        (3, Some(1))
    );
    script.answer("gate", json!({ "approve": true })).expect("open");
    assert_eq!(script.status(), "completed");
}

#[test]
fn paused_parent_accepts_messages_of_its_children() {
    let mut script = run(
        &parent(json!({})).noops("end").edges("call -> end"),
        &child().delay("wait", 5),
    );
    script.pause().expect("running");
    script.wait(5);
    assert_eq!((script.status(), script.status_of(1)), ("paused", "completed"));
    script.resume().expect("paused");
    assert_eq!(script.status(), "completed");
}

#[test]
fn stale_messages_change_nothing() {
    let mut script = run(&parent(json!({})), &child().noops("a"));
    assert_eq!(script.status(), "completed");
    let step = script.run(0).children[0].step.clone();
    let child = script.id(1).clone();
    let n_events = script.events(0).len();
    let told = script.tell(
        0,
        Command::RunMessages(vec![
            RunMessage::ChildWaiting {
                step: step.clone(),
                child: child.clone(),
                kind: InterruptKind::Approval,
                interrupt: "x:0".to_owned(),
            },
            RunMessage::ChildResumed {
                step: step.clone(),
                child: child.clone(),
            },
            RunMessage::ParentEnded {
                parent: script.id(1).clone(),
                why: CascadeReason::Cancelled,
            },
            RunMessage::ChildEnded {
                is_untrusted: false,
                step,
                child,
                status: RunStatus::Failed,
                outputs: Object::new(),
                report: Object::new(),
                error: None,
            },
            RunMessage::Start(Box::new(Script::start_run(json!({})))),
        ]),
    );
    assert_eq!((told, script.events(0).len()), (Ok(()), n_events));
}

/// Ten thousand children end; their parent processes many messages in one decision.
#[test]
fn parent_processes_many_children_in_few_decisions() {
    let ids: Vec<_> = (0..400).map(|n| format!("call{n}")).collect();
    let mut parent = Workflow::new("parent");
    for id in &ids {
        parent = parent.node(id, "core.subWorkflow", json!({ "workflowId": "child" }));
    }
    let mut script = run(&parent, &child().noops("a"));
    while script.next_timer().is_some() {
        script.wait(0);
    }
    assert_eq!((script.status(), script.n_runs()), ("completed", 401));
}

#[test]
fn timed_out_child_is_distinguished_from_a_rejected_one() {
    let gate = Workflow::new("asks").node("gate", "core.approvalGate", json!({ "timeoutMs": 5 }));
    let parent = Workflow::new("parent")
        .node("call", "core.subWorkflow", json!({ "workflowId": "asks" }))
        .node(
            "tell",
            "core.template",
            json!({ "template": "{{ nodes.call.error.code }} {{ nodes.call.error.reason }}" }),
        )
        .edges("call -> tell any_failed");
    let mut script = run(&parent, &gate);
    script.wait(5);
    assert_eq!(
        script.variable("tell"),
        json!({ "text": "subworkflow_child_failed timeout" })
    );
}

#[derive(Debug)]
struct Nothing;

impl Catalog for Nothing {
    fn current(&self, _: &WorkflowId) -> Option<Arc<dyn Startable>> {
        None
    }
}

#[test]
fn decision_takes_as_many_child_messages_as_fit_its_work_limit() {
    const CHILDREN: usize = 10;
    let heavy = ["inputs.x == inputs.y"; 5].join(" and ");
    let heavy = json!({ "type": "expression", "expression": heavy });
    let mut parent = Workflow::new("parent").noops("end");
    for n in 0..CHILDREN {
        let id = format!("call{n}");
        parent = parent
            .node(&id, "core.subWorkflow", json!({ "workflowId": "child" }))
            .edge_if(&id, "end", heavy.clone());
    }
    let list: Value = (0..40_000).collect();
    let mut script = Script::of(&[&parent, &child().delay("wait", 5)]);
    script = script.start(json!({ "x": list, "y": list }));

    let children = script.run(0).children.iter();
    let ended: Vec<_> = children
        .map(|child| RunMessage::ChildEnded {
            step: child.step.clone(),
            child: child.run.clone(),
            status: RunStatus::Completed,
            outputs: Object::new(),
            report: Object::new(),
            error: None,
            is_untrusted: false,
        })
        .collect();
    assert_eq!(ended.len(), CHILDREN);
    let input = Input {
        now: script.now(),
        entropy: Entropy([7; 16]),
        run: script.id(0),
        catalog: &Nothing,
    };
    let (mut run, mut left, mut n_decisions) = (script.run(0).clone(), &ended[..], 0);
    while !left.is_empty() {
        let told = Command::RunMessages(left.to_vec());
        let (decision, work) = decide_counted(run, script.plan(0), told, &input).expect("children end");
        assert_eq!(decision.heard, 1, "each is more than a tenth of a budget");
        assert!(
            (300_000..MAX_DECISION_WORK / 2).contains(&work),
            "one decision cost {work}"
        );
        (run, left) = (decision.run, &left[decision.heard..]);
        n_decisions += 1;
    }
    assert_eq!((n_decisions, run.status), (CHILDREN, RunStatus::Completed));

    // Resending the messages that were not taken leads to the same result.
    script.hold_mail();
    script.wait(5);
    script.deliver();
    assert_eq!(script.status(), "completed");
    assert!(script.run(0).children.iter().all(|child| child.ended));
}
