//! Supervisors and their workers: what is decided, handed over, merged and cancelled.

use expect_test::expect;
use proptest::{collection::vec, prelude::*, test_runner::Config};
use serde_json::{Value, json};
use wopr_core::{
    DialectEvent, Event, KernelEvent, NodeTypes, Plan, Recorded, RunId, RunStatus,
    openwop::{self, Orchestration},
};
use wopr_testkit::{Script, Workflow, kind};

fn next(workers: &[&str]) -> Value {
    json!({ "kind": "next-worker", "nextWorkerIds": workers })
}

fn done() -> Value {
    json!({ "kind": "terminate", "reason": "goal-reached" })
}

/// A supervisor and its dispatch, each leading to the other.
fn looped(supervisor: Value, dispatch: Value) -> Workflow {
    Workflow::new("parent")
        .node("supervisor", "core.orchestrator.supervisor", supervisor)
        .node("dispatch", "core.dispatch", dispatch)
        .edges("supervisor -> dispatch, dispatch -> supervisor")
}

/// Runs a loop that dispatches these workers once.
fn dispatched(workers: &[&str], dispatch: Value) -> Script {
    started(&looped(
        json!({ "rules": [
            { "when": "dispatch is not defined", "decision": next(workers) },
            { "decision": done() },
        ] }),
        dispatch,
    ))
}

fn workers() -> [Workflow; 4] {
    [
        Workflow::new("pure")
            .variable("out", "string", json!({ "defaultValue": "pure" }))
            .noops("a"),
        Workflow::new("gate")
            .variable("out", "string", json!({ "defaultValue": "gate" }))
            .gate("gate"),
        Workflow::new("delay")
            .variable("out", "string", json!({ "defaultValue": "delay" }))
            .delay("wait", 10),
        Workflow::new("failing").node("fail", "core.fail", json!({ "code": "broken" })),
    ]
}

fn started(workflow: &Workflow) -> Script {
    let workers = workers();
    let mut all = vec![workflow];
    all.extend(&workers);
    Script::of(&all).start(json!({}))
}

fn accept(script: &mut Script, run: usize) {
    script
        .answer_in(run, "gate", json!({ "action": "accept" }))
        .expect("open");
}

fn children(script: &Script) -> Vec<&'static str> {
    (1..script.n_runs()).map(|run| script.status_of(run)).collect()
}

fn count(script: &Script, name: &str) -> usize {
    let events = script.events(0).iter();
    events.filter(|recorded| kind(&recorded.event) == name).count()
}

/// The outputs of the first execution of the dispatch.
fn results(script: &Script) -> Value {
    let mut completed = script
        .events(0)
        .iter()
        .filter_map(|recorded| match recorded.event.kernel() {
            Some(KernelEvent::NodeCompleted { step, outputs, .. }) if step.key() == "dispatch:0" => {
                Some(outputs)
            }
            _ => None,
        });
    Value::Object(completed.next().expect("it completed").clone())
}

#[test]
fn rules_decide_anew_at_each_turn() {
    let workflow = looped(
        json!({
            "agentId": "planner",
            "rules": [
                { "when": "found | length < 2", "decision": {
                    "kind": "next-worker",
                    "nextWorkerIds": ["pure"],
                    "nextWorkerInputs": [{ "topic": "{{ found | length }}", "about": "{{ subject }}!" }],
                } },
                { "when": "supervisor.iteration >= 9", "decision": { "kind": "escalate", "prompt": "never" } },
            ],
            "decision": { "kind": "terminate", "reason": "{{ found | join('+') }}", "confidence": "{{ 0.5 + 0.4 }}" },
        }),
        json!({ "outputMapping": { "latest": "topic" } }),
    )
    .variable("found", "array", json!({ "defaultValue": [] }))
    .variable("subject", "string", json!({ "defaultValue": "tea" }))
    .variable("latest", "number", json!({}))
    .node(
        "collect",
        "core.setVariable",
        json!({ "name": "found", "expression": "found + [latest]" }),
    );
    let mut document = workflow.document();
    document["edges"] = json!([
        { "id": "a", "sourceNodeId": "supervisor", "targetNodeId": "dispatch" },
        { "id": "b", "sourceNodeId": "dispatch", "targetNodeId": "collect" },
        { "id": "c", "sourceNodeId": "collect", "targetNodeId": "supervisor" },
    ]);
    let plan = Plan::admit(document, NodeTypes::default()).expect("no mock is needed");
    let plans = [std::sync::Arc::new(plan)].into_iter();
    let script = Script::of_plans(plans.chain(workers().iter().map(Workflow::plan))).start(json!({}));
    assert_eq!(script.status(), "completed", "{}", script.log(0));
    assert_eq!(script.variable("found"), json!([0, 1]));
    assert_eq!(
        Value::Object(script.run(2).variables().clone())["about"],
        json!("tea!")
    );
    let outputs = script.run(0).outputs.clone().expect("completed");
    assert_eq!(outputs["reason"], "0+1");
    assert_eq!(script.run(0).supervision().expect("decided").n_decisions, 3);
}

#[test]
fn handoff_is_recorded_step_by_step() {
    let workflow = looped(
        json!({ "mockDispatchPlan": [next(&["delay", "failing"]), done()] }),
        json!({ "outputMapping": { "got": "out" } }),
    )
    .variable("got", "string", json!({}));
    let mut script = started(&workflow);
    script.wait(10);
    expect![[r#"
        0 run.started
        1 node.started supervisor
        2 agent.decided supervisor:0 supervisor-supervisor {"kind":"next-worker","nextWorkerIds":["delay","failing"]}
        3 decided supervisor 1 by supervisor-supervisor {"kind":"next-worker","nextWorkerIds":["delay","failing"]}
        4 node.completed supervisor {"decision":{"kind":"next-worker","nextWorkerIds":["delay","failing"]},"iteration":1,"kind":"next-worker"}
        5 node.started dispatch
        6 handoff.began dispatch delay
        7 node.dispatched dispatch run1 delay
        8 handoff.succeeded dispatch delay run1
        9 agent.handed.off dispatch:0 supervisor-supervisor to delay
        10 child.ended dispatch run1 completed {"waitedMs":10}
        11 variable.changed got="delay"
        12 harvested dispatch run1 got
        13 handoff.began dispatch failing
        14 node.dispatched dispatch run2 failing
        15 handoff.succeeded dispatch failing run2
        16 agent.handed.off dispatch:0 supervisor-supervisor to failing
        17 child.ended dispatch run2 failed {}
        18 node.completed dispatch {"childRunId":"run2","childStatus":"failed","children":[{"childRunId":"run1","childStatus":"completed","result":{"waitedMs":10},"workflowId":"delay"},{"childRunId":"run2","childStatus":"failed","error":{"code":"broken","message":"Intentional conformance failure"},"workflowId":"failing"}],"error":{"code":"broken","message":"Intentional conformance failure"}}
        19 node.started supervisor#1
        20 agent.decided supervisor:1 supervisor-supervisor {"kind":"terminate","reason":"goal-reached"}
        21 decided supervisor#1 2 by supervisor-supervisor {"kind":"terminate","reason":"goal-reached"}
        22 node.completed supervisor#1 {"decision":{"kind":"terminate","reason":"goal-reached"},"iteration":2,"kind":"terminate"}
        23 node.started dispatch#1
        24 node.completed dispatch#1 {"reason":"goal-reached"}
        25 run.completed {"reason":"goal-reached"}"#]].assert_eq(&script.log(0));
}

#[test]
fn worker_that_does_not_exist_is_one_failed_handoff() {
    for worker in [
        "nobody",
        "No such id",
        "agent:nobody",
        "host-agent-nobody",
        "parent",
    ] {
        let script = dispatched(&[worker, "pure"], json!({}));
        assert_eq!(script.status(), "completed");
        assert_eq!(
            (count(&script, "handoff.began"), count(&script, "handoff.failed")),
            (2, 1)
        );
        assert_eq!(count(&script, "node.dispatched"), 1);
        let results = results(&script)["children"].clone();
        let code = match worker {
            "parent" => "subworkflow_cycle_detected",
            "agent:nobody" => "peer_unknown",
            _ => "unknown_child_workflow",
        };
        assert_eq!(results[0]["error"]["code"], code);
        if worker == "agent:nobody" {
            let message = "agent 'nobody' is not configured on this host";
            assert_eq!(results[0]["error"]["message"], message);
        }
        assert_eq!(results[1]["childStatus"], "completed");
    }
}

#[test]
fn joins_end_with_their_outcome_and_cancel_who_no_longer_counts() {
    let policy = |mode: &str, on_failure: &str| {
        let mut policy = json!({ "mode": mode, "onChildFailure": on_failure });
        if mode == "quorum" {
            policy["quorum"] = json!(2);
        }
        json!({ "fanOutPolicy": "parallel", "joinPolicy": policy, "outputMapping": { "got": "out" } })
    };
    for (workers, mode, on_failure, outcome, statuses) in [
        (
            vec!["pure", "delay", "pure"],
            "wait-all",
            "collect",
            "satisfied",
            ["completed", "completed", "completed"],
        ),
        (
            vec!["pure", "failing", "delay"],
            "wait-all",
            "collect",
            "partial",
            ["completed", "failed", "completed"],
        ),
        (
            vec!["failing", "failing", "failing"],
            "wait-all",
            "collect",
            "failed",
            ["failed", "failed", "failed"],
        ),
        (
            vec!["failing", "pure", "delay"],
            "wait-all",
            "absorb",
            "satisfied",
            ["failed", "completed", "completed"],
        ),
        (
            vec!["gate", "pure", "delay"],
            "quorum",
            "collect",
            "satisfied",
            ["cancelled", "completed", "completed"],
        ),
        (
            vec!["gate", "failing", "failing"],
            "quorum",
            "collect",
            "failed",
            ["cancelled", "failed", "failed"],
        ),
        (
            vec!["gate", "failing", "delay"],
            "first",
            "collect",
            "satisfied",
            ["cancelled", "failed", "completed"],
        ),
        (
            vec!["gate", "failing", "delay"],
            "race",
            "collect",
            "failed",
            ["cancelled", "failed", "cancelled"],
        ),
        (
            vec!["gate", "failing", "delay"],
            "race",
            "absorb",
            "partial",
            ["cancelled", "failed", "cancelled"],
        ),
    ] {
        let mut script = dispatched(&workers, policy(mode, on_failure));
        script.wait(10);
        let case = format!("{mode} {on_failure} {workers:?}\n{}", script.log(0));
        assert_eq!(script.status(), "completed", "{case}");
        assert_eq!(results(&script)["joinOutcome"], outcome, "{case}");
        assert_eq!(children(&script), statuses, "{case}");
        assert_eq!(
            (count(&script, "fanned.out"), count(&script, "joined")),
            (1, 1),
            "{case}"
        );
        assert_eq!(count(&script, "child.ended"), workers.len(), "{case}");
    }
}

#[test]
fn fail_fast_fails_the_node_with_the_first_worker_that_fails() {
    let dispatch = json!({
        "fanOutPolicy": "parallel",
        "joinPolicy": { "onChildFailure": "fail-fast" },
        "outputMapping": { "got": "out" },
    });
    let script = dispatched(&["pure", "gate", "failing"], dispatch);
    assert_eq!(script.status(), "failed");
    assert_eq!(children(&script), ["completed", "cancelled", "failed"]);
    let (failure, node) = script.run(0).error.clone().expect("failed");
    assert_eq!(
        (failure.code.as_str(), node.expect("a node").as_str()),
        ("child_failed", "dispatch")
    );
    assert!(failure.message.contains("broken"), "{}", failure.message);
    assert_eq!(script.variable("got"), Value::Null);
    assert_eq!(count(&script, "harvested"), 0);
}

#[test]
fn outputs_of_a_join_are_merged_in_the_order_in_which_workers_ended() {
    let workflow = looped(
        json!({ "mockDispatchPlan": [next(&["gate", "delay", "pure"]), done()] }),
        json!({ "fanOutPolicy": "parallel", "outputMapping": { "got": "out" } }),
    )
    .variable("got", "string", json!({}));
    let mut script = started(&workflow);
    assert_eq!(
        script.variable("got"),
        Value::Null,
        "nothing is merged before the join"
    );
    script.wait(10);
    accept(&mut script, 1);
    assert_eq!(script.status(), "completed");
    assert_eq!(script.variable("got"), json!("gate"));
    assert_eq!(count(&script, "harvested"), 3);
    assert!(
        script
            .log(0)
            .contains("joined dispatch satisfied 3/0/0 run3,run2,run1"),
        "{}",
        script.log(0)
    );
}

#[test]
fn workers_beyond_the_concurrency_wait_for_their_turn() {
    let dispatch = json!({ "fanOutPolicy": "parallel", "maxConcurrency": 2 });
    let mut script = dispatched(&["gate", "gate", "gate", "gate", "gate"], dispatch);
    for n_created in [2, 3, 4, 5] {
        assert_eq!(script.n_runs() - 1, n_created);
        let open = (1..script.n_runs())
            .rev()
            .find(|run| script.status_of(*run) == "waiting-approval");
        accept(&mut script, open.expect("one waits"));
    }
    assert_eq!(script.n_runs() - 1, 5, "none is dropped");
    for run in 1..=5 {
        let _ = script.answer_in(run, "gate", json!({ "action": "accept" }));
    }
    assert_eq!(script.status(), "completed");
    assert_eq!(children(&script), ["completed"; 5]);
}

#[test]
fn decisions_that_a_dispatch_cannot_follow_fail_it() {
    for (dispatch, workers, code) in [
        (
            json!({ "fanOutPolicy": "reject" }),
            vec!["pure", "pure"],
            "fan_out_unsupported",
        ),
        (
            json!({ "fanOutPolicy": "parallel", "joinPolicy": { "mode": "quorum", "quorum": 3 } }),
            vec!["pure", "pure"],
            "impossible_join",
        ),
    ] {
        let script = dispatched(&workers, dispatch);
        assert_eq!(script.status(), "failed");
        assert_eq!(script.run(0).error.as_ref().expect("failed").0.code, code);
        assert_eq!(script.n_runs(), 1);
    }
    // A dispatch that no decision precedes.
    let workflow = Workflow::new("parent")
        .node("dispatch", "core.dispatch", json!({}))
        .node("supervisor", "core.orchestrator.supervisor", json!({}))
        .edges("dispatch -> supervisor");
    let script = started(&workflow);
    assert_eq!(
        script.run(0).error.as_ref().expect("failed").0.code,
        "no_pending_decision"
    );
}

#[test]
fn loops_stop_at_their_caps() {
    let forever = json!({ "decision": next(&["pure"]) });
    let mut capped = forever.clone();
    capped["maxLoopIterations"] = json!(3);
    let mut aliased = forever.clone();
    aliased["iterationCap"] = json!(3);
    for (supervisor, dispatch, n_decisions) in [
        (capped, json!({}), 3),
        (aliased, json!({}), 3),
        (forever, json!({ "iterationCap": 3 }), 4),
    ] {
        let script = started(&looped(supervisor, dispatch));
        assert_eq!(script.status(), "failed");
        let error = &script.run(0).error.as_ref().expect("failed").0;
        assert_eq!(error.code, "loop_limit_exceeded");
        assert_eq!(
            (count(&script, "decided"), count(&script, "cap.breached")),
            (n_decisions, 1)
        );
        assert!(
            script.log(0).contains("cap.breached loop-iterations 4 > 3"),
            "{}",
            script.log(0)
        );
        assert_eq!(children(&script), ["completed"; 3]);
    }
}

#[test]
fn caller_of_a_run_may_lower_the_cap_of_its_loop() {
    for (own, asked, most) in [(None, 2, 2), (Some(3), 2, 2), (Some(2), 9, 2)] {
        let mut supervisor = json!({ "decision": next(&["pure"]) });
        supervisor["maxLoopIterations"] = json!(own);
        let workflow = looped(supervisor, json!({}));
        let workers = workers();
        let mut all = vec![&workflow];
        all.extend(&workers);
        let script = Script::of(&all).start_configured(json!({}), json!({ "maxLoopIterations": asked }));
        assert_eq!(count(&script, "decided"), most, "{own:?}, {asked}");
        assert!(
            script.log(0).contains("cap.breached loop-iterations 3 > 2"),
            "{}",
            script.log(0)
        );
    }
}

#[test]
fn only_one_agent_decides_in_a_run() {
    let workflow = Workflow::new("parent")
        .node(
            "first",
            "core.orchestrator.supervisor",
            json!({ "agentId": "ada" }),
        )
        .node(
            "second",
            "core.orchestrator.supervisor",
            json!({ "agentId": "bob" }),
        )
        .edges("first -> second");
    let script = started(&workflow);
    let (failure, node) = script.run(0).error.clone().expect("failed");
    assert_eq!(
        (failure.code.as_str(), node.expect("a node").as_str()),
        ("validation_error", "second")
    );
    assert_eq!(count(&script, "decided"), 1);
    assert_eq!(script.run(0).supervision().expect("decided").agent, "ada");
}

#[test]
fn person_is_asked_for_words_or_for_an_approval() {
    for (decision, answer, outputs) in [
        (
            json!({ "kind": "ask-user", "prompt": "Which?" }),
            json!({ "answers": { "answer": "the blue one" } }),
            json!({ "answer": "the blue one" }),
        ),
        (
            json!({ "kind": "clarify", "prompt": "Which?" }),
            json!({ "answers": [{ "id": "answer", "answer": "the red one" }] }),
            json!({ "answer": "the red one" }),
        ),
        (
            json!({ "kind": "escalate", "prompt": "Go on?" }),
            json!({ "action": "reject", "feedback": "no" }),
            json!({ "action": "reject", "approved": false, "feedback": "no", "decidedBy": "ada" }),
        ),
    ] {
        let workflow = looped(json!({ "mockDispatchPlan": [decision, done()] }), json!({}))
            .variable("answered", "object", json!({}))
            .node(
                "keep",
                "core.setVariable",
                json!({ "name": "answered", "expression": "nodes.dispatch" }),
            );
        let mut document = workflow.document();
        document["edges"] = json!([
            { "id": "a", "sourceNodeId": "supervisor", "targetNodeId": "dispatch" },
            { "id": "b", "sourceNodeId": "dispatch", "targetNodeId": "keep" },
            { "id": "c", "sourceNodeId": "keep", "targetNodeId": "supervisor" },
        ]);
        let plan = Plan::admit(document, NodeTypes { conformance: true }).expect("valid");
        let mut script = Script::of_plans([std::sync::Arc::new(plan)]).start(json!({}));
        assert!(script.status().starts_with("waiting-"), "{}", script.status());
        let edit = json!({ "action": "edit-accept", "editedArtifactData": done() });
        assert!(
            script.answer("dispatch", edit).is_err(),
            "there is nothing to edit"
        );
        script.answer("dispatch", answer).expect("open");
        assert_eq!(script.status(), "completed", "{}", script.log(0));
        assert_eq!(script.variable("answered"), outputs);
        assert!(script.log(0).contains("\"kind\":\"ask-user\""));
    }
}

#[test]
fn run_that_is_done_cancels_what_still_works() {
    let workflow = looped(json!({ "mockDispatchPlan": [done()] }), json!({}))
        .node("call", "core.subWorkflow", json!({ "workflowId": "gate" }))
        .delay("pause", 1)
        .delay("long", 1_000)
        .edges("pause -> supervisor");
    let mut script = started(&workflow);
    assert_eq!(script.status(), "waiting-approval");
    script.wait(1);
    assert_eq!(script.status(), "completed", "{}", script.log(0));
    assert_eq!(children(&script), ["cancelled"]);
    assert_eq!(count(&script, "node.cancelled"), 2);
}

#[test]
fn handoffs_under_way_end_before_a_run_that_ends_early() {
    let once = |workers: &[&str]| {
        json!({ "rules": [
            { "when": "dispatch is not defined", "decision": next(workers) },
            { "decision": done() },
        ] })
    };
    let parallel = json!({ "fanOutPolicy": "parallel" });
    let fails = looped(once(&["delay", "gate"]), parallel.clone())
        .delay("soon", 5)
        .node("boom", "core.fail", json!({}))
        .edges("soon -> boom");
    let late = looped(once(&["delay", "delay"]), parallel).set("settings", json!({ "timeout": 5 }));
    let completes = looped(once(&["delay"]), json!({}))
        .node("call", "core.subWorkflow", json!({ "workflowId": "gate" }))
        .edges("supervisor -> call");
    let detached = json!({ "workflowId": "gate", "propagateCancellation": false });
    let leaves = looped(once(&["delay"]), json!({}))
        .node("call", "core.subWorkflow", detached)
        .edges("supervisor -> call");
    for (workflow, status, n_ended, reason) in [
        (&fails, "failed", 2, "parent-failed"),
        (&late, "failed", 2, "parent-failed"),
        (&completes, "completed", 1, "parent-completed"),
        (&leaves, "completed", 0, ""),
    ] {
        let mut script = started(workflow);
        script.wait(5);
        if script.status() != "failed" {
            script.wait(5);
        }
        assert_eq!(script.status(), status, "{}", script.log(0));
        let log = script.events(0);
        let handed = |child: &RunId| {
            let mut succeeded = log.iter().filter(|recorded| handed_to(recorded) == Some(child));
            succeeded.next().map(|recorded| recorded.seq)
        };
        let cancelled: Vec<_> = log
            .iter()
            .filter_map(|recorded| match recorded.event.kernel() {
                Some(KernelEvent::ChildEnded {
                    child,
                    is_handoff: true,
                    status: RunStatus::Cancelled,
                    ..
                }) => Some((child, recorded.cause)),
                _ => None,
            })
            .collect();
        assert_eq!(cancelled.len(), n_ended, "{}", script.log(0));
        for (child, cause) in cancelled {
            assert_eq!(
                (cause, cause.is_some()),
                (handed(child), true),
                "{}",
                script.log(0)
            );
            let run = (1..script.n_runs())
                .find(|run| script.id(*run) == child)
                .expect("known");
            let last = script
                .log(run)
                .lines()
                .last()
                .map(str::to_owned)
                .unwrap_or_default();
            assert!(
                last.ends_with(&format!("run.cancelled {reason} with run0")),
                "{last}"
            );
        }
    }
}

/// The child to which an event hands work.
fn handed_to(recorded: &Recorded) -> Option<&RunId> {
    match &recorded.event {
        Event::Dialect(DialectEvent::Openwop(openwop::Event::Orchestration(
            Orchestration::HandoffSucceeded { child, .. },
        ))) => Some(child),
        Event::Kernel(_) | Event::Dialect(_) => None,
    }
}

#[test]
fn sub_workflow_of_a_supervised_run_is_a_handoff() {
    let workflow = Workflow::new("parent")
        .variable("got", "string", json!({}))
        .node("supervisor", "core.orchestrator.supervisor", json!({}))
        .node(
            "call",
            "core.subWorkflow",
            json!({ "workflowId": "delay", "outputMapping": { "got": "out" } }),
        )
        .edges("supervisor -> call");
    let mut script = started(&workflow);
    script.wait(10);
    assert_eq!(script.status(), "completed");
    assert_eq!(script.variable("got"), json!("delay"));
    for name in ["handoff.began", "handoff.succeeded", "child.ended", "harvested"] {
        assert_eq!(count(&script, name), 1, "{name}");
    }
    for (sub, status) in [
        (json!({ "workflowId": "failing" }), "failed"),
        (
            json!({ "workflowId": "failing", "onChildFailure": "absorb" }),
            "completed",
        ),
        (json!({ "workflowId": "nobody" }), "failed"),
    ] {
        let workflow = Workflow::new("parent")
            .node("supervisor", "core.orchestrator.supervisor", json!({}))
            .node("call", "core.subWorkflow", sub)
            .edges("supervisor -> call");
        let script = started(&workflow);
        assert_eq!(script.status(), status);
        assert_eq!(count(&script, "harvested"), 0);
    }
}

#[test]
fn outputs_that_need_an_approval_count_only_with_it() {
    let start = |on_failure: &str| {
        let workflow = Workflow::new("parent")
            .variable("got", "string", json!({ "defaultValue": "before" }))
            .node(
                "call",
                "core.subWorkflow",
                json!({
                    "workflowId": "pure", "outputMapping": { "got": "out" }, "onChildFailure": on_failure,
                    "outputAttestation": { "requireApproval": true, "principalScope": ["ada"] },
                }),
            );
        started(&workflow)
    };
    for (answer, on_failure, status, got) in [
        (json!({ "action": "accept" }), "fail-parent", "completed", "pure"),
        (
            json!({ "action": "edit-accept", "editedArtifactData": { "out": "edited" } }),
            "fail-parent",
            "completed",
            "edited",
        ),
        (json!({ "action": "reject" }), "fail-parent", "failed", "before"),
        (json!({ "action": "reject" }), "absorb", "completed", "before"),
    ] {
        let mut script = start(on_failure);
        assert_eq!(
            (script.status(), children(&script)),
            ("waiting-approval", vec!["completed"])
        );
        assert_eq!(
            (script.variable("got"), count(&script, "harvested")),
            (json!("before"), 0)
        );
        for wrong in [json!("text"), json!({ "got": "edited" })] {
            let wrong = json!({ "action": "edit-accept", "editedArtifactData": wrong });
            assert!(script.answer("call", wrong).is_err());
        }
        script.answer("call", answer).expect("open");
        assert_eq!(
            (script.status(), script.variable("got")),
            (status, json!(got)),
            "{}",
            script.log(0)
        );
        let merged = usize::from(got != "before");
        assert_eq!(count(&script, "harvested"), merged);
        assert_eq!(
            script.log(0).matches("harvested call run1 got sha256 ").count(),
            merged
        );
        assert_eq!(script.log(0).contains("\"attestation\""), merged == 1);
    }
    // Nobody decides: nothing is taken over.
    let mut script = start("absorb");
    script.cancel().expect("waiting");
    assert_eq!(
        (script.status(), script.variable("got")),
        ("cancelled", json!("before"))
    );
}

/// What is asked last.
fn question(script: &Script) -> Value {
    let asked = script
        .events(0)
        .iter()
        .rev()
        .find_map(|recorded| match recorded.event.kernel()? {
            KernelEvent::InterruptRequested { data, .. } => Some(data.clone()),
            _ => None,
        });
    asked.expect("a question")
}

#[test]
fn redacted_members_of_an_edit_stay_as_they_were() {
    let workflow = Workflow::new("parent")
        .variable(
            "got",
            "string",
            json!({ "defaultValue": "before", "sensitive": true }),
        )
        .node(
            "call",
            "core.subWorkflow",
            json!({
                "workflowId": "pure", "outputMapping": { "got": "out" },
                "outputAttestation": { "requireApproval": true },
            }),
        );
    let mut script = started(&workflow);
    // Views redact it, not the log.
    assert_eq!(question(&script)["artifactData"], json!({ "out": "pure" }));
    let edited = json!({ "action": "edit-accept", "editedArtifactData": { "out": "[REDACTED]" } });
    script.answer("call", edited).expect("open");
    assert_eq!(script.variable("got"), "pure");

    let mut decision = next(&["pure"]);
    decision["nextWorkerInputs"] = json!([{ "pin": "4711", "open": "yes" }]);
    decision["confidence"] = json!(0.3);
    let workflow = looped(json!({ "mockDispatchPlan": [decision, done()] }), json!({})).variable(
        "pin",
        "string",
        json!({ "sensitive": true }),
    );
    let mut script = started(&workflow);
    assert_eq!(script.status(), "waiting-approval", "{}", script.log(0));
    let mut edited = next(&["pure"]);
    edited["nextWorkerInputs"] = json!([{ "pin": "[REDACTED]", "open": "no" }]);
    script
        .answer(
            "dispatch",
            json!({ "action": "edit-accept", "editedArtifactData": edited }),
        )
        .expect("open");
    let started = script.run(1).started.clone().expect("started");
    assert_eq!(json!(started.inputs), json!({ "pin": "4711", "open": "no" }));
}

#[test]
fn checksum_is_that_of_the_canonical_form() {
    let workflow = Workflow::new("parent").node(
        "call",
        "core.subWorkflow",
        json!({ "workflowId": "pure", "outputMapping": { "got": "out" }, "outputAttestation": {} }),
    );
    let script = started(&workflow);
    let checksum = wopr_core::ContentHash::of(br#"{"out":"pure"}"#);
    assert!(
        script.log(0).contains(&format!("sha256 {checksum}")),
        "{}",
        script.log(0)
    );
}

#[test]
fn settings_of_a_loop_are_checked() {
    let supervisor = |config: Value| looped(config, json!({})).document();
    let dispatch = |config: Value| looped(json!({ "decision": done() }), config).document();
    let mut wrong = Vec::new();
    let alone = Workflow::new("parent").node("dispatch", "core.dispatch", json!({}));
    let parallel = |policy: Value| dispatch(json!({ "fanOutPolicy": "parallel", "joinPolicy": policy }));
    for (document, rule) in [
        (alone.document(), "and there is none"),
        (supervisor(json!({})), "neither decision, rules nor model"),
        (
            supervisor(json!({ "mockDecisions": [done()] })),
            "for the conformance mode",
        ),
        (
            supervisor(json!({ "decision": done(), "agentId": "x" })),
            "3 to 256 characters",
        ),
        (supervisor(json!({ "rules": [] })), "rules is empty"),
        (
            supervisor(json!({ "rules": [{ "when": "a b", "decision": done() }] })),
            "rules[0]",
        ),
        (
            supervisor(json!({ "decision": done(), "maxLoopIterations": 0 })),
            "within 1 to",
        ),
        (
            supervisor(json!({ "decision": done(), "prompt": "x" })),
            "is not known",
        ),
        (
            dispatch(json!({ "fanOutPolicy": "all" })),
            "is none of sequential",
        ),
        (
            dispatch(json!({ "askUserRouting": "letter" })),
            "is none of auto, clarification, conversation",
        ),
        (
            dispatch(json!({ "maxConcurrency": 2 })),
            "only for fanOutPolicy parallel",
        ),
        (dispatch(json!({ "iterationCap": 0 })), "within 1 to"),
        (
            dispatch(json!({ "outputMapping": { "_x": "y" } })),
            "leading underscore",
        ),
        (
            dispatch(json!({ "perWorkerInputMappings": { "w": 1 } })),
            "is not an object",
        ),
        (parallel(json!({ "mode": "most" })), "is none of wait-all"),
        (parallel(json!({ "mode": "quorum" })), "quorum is not within"),
        (parallel(json!({ "quorum": 2 })), "only for the mode quorum"),
        (
            parallel(json!({ "onChildFailure": "retry" })),
            "is none of collect",
        ),
        (parallel(json!({ "most": 1 })), "unknown field 'most'"),
    ] {
        let problems = Plan::admit(document, NodeTypes::default())
            .expect_err(rule)
            .to_string();
        if !problems.contains(rule) {
            wrong.push(format!("{rule}: {problems}"));
        }
    }
    assert!(wrong.is_empty(), "{wrong:#?}");
}

#[test]
fn decisions_are_checked() {
    for (decision, rule) in [
        (json!("done"), "not an object"),
        (json!({}), "kind is missing"),
        (json!({ "kind": "stop" }), "kind 'stop'"),
        (json!({ "kind": "next-worker" }), "nextWorkerIds is not an array"),
        (next(&[]), "1 to 200 entries"),
        (next(&["pure"; 201]), "1 to 200 entries"),
        (next(&[""]), "1 to 256 characters"),
        (
            json!({ "kind": "next-worker", "nextWorkerIds": ["a"], "nextWorkerInputs": [{}, {}] }),
            "an entry for each worker",
        ),
        (json!({ "kind": "terminate", "confidence": 1.5 }), "from 0 to 1"),
        (
            json!({ "kind": "terminate", "successCriteria": [{}] }),
            "successCriteria",
        ),
        (json!({ "kind": "terminate", "more": 1 }), "more is not known"),
        (json!({ "kind": "ask-user" }), "prompt is missing"),
    ] {
        let script = started(&looped(json!({ "decision": decision }), json!({})));
        let failure = &script.run(0).error.as_ref().expect("failed").0;
        assert_eq!(failure.code, "invalid_decision");
        assert!(failure.message.contains(rule), "{rule}: {}", failure.message);
        let document = looped(json!({ "mockDecisions": [decision] }), json!({})).document();
        let problems = Plan::admit(document, NodeTypes { conformance: true }).expect_err(rule);
        assert!(problems.to_string().contains(rule), "{rule}: {problems}");
    }
    let undecided = started(&looped(
        json!({ "rules": [{ "when": "false", "decision": done() }] }),
        json!({}),
    ));
    assert_eq!(
        undecided.run(0).error.as_ref().expect("failed").0.code,
        "no_decision"
    );
}

const KINDS: [&str; 6] = ["pure", "gate", "delay", "failing", "nobody", "gate"];
const MODES: [&str; 4] = ["wait-all", "quorum", "first", "race"];
const ON_FAILURE: [&str; 3] = ["collect", "fail-fast", "absorb"];

#[derive(Debug, Clone)]
enum Told {
    Answer(usize, bool),
    Wait(u64),
    CancelChild(usize),
    Cancel,
    Pause,
    Stop,
    Resume,
    HoldMail,
    Deliver,
}

fn told() -> impl Strategy<Value = Told> {
    prop_oneof![
        5 => (0..12_usize, any::<bool>()).prop_map(|(child, yes)| Told::Answer(child, yes)),
        4 => (0..20_u64).prop_map(Told::Wait),
        2 => (0..12_usize).prop_map(Told::CancelChild),
        1 => Just(Told::Cancel),
        1 => Just(Told::Pause),
        1 => Just(Told::Stop),
        1 => Just(Told::Resume),
        1 => Just(Told::HoldMail),
        2 => Just(Told::Deliver),
    ]
}

fn dispatch() -> impl Strategy<Value = Value> {
    let parallel = (0..MODES.len(), 0..ON_FAILURE.len(), 1..4_u32, 1..4_u32).prop_map(
        |(mode, on_failure, quorum, max_concurrency)| {
            let mut policy = json!({ "mode": MODES[mode], "onChildFailure": ON_FAILURE[on_failure] });
            if MODES[mode] == "quorum" {
                policy["quorum"] = json!(quorum);
            }
            json!({
                "fanOutPolicy": "parallel", "joinPolicy": policy, "maxConcurrency": max_concurrency,
                "outputMapping": { "got": "out" },
            })
        },
    );
    prop_oneof![
        3 => parallel,
        1 => Just(json!({ "outputMapping": { "got": "out" } })),
        1 => Just(json!({ "fanOutPolicy": "reject" })),
        1 => Just(json!({ "askUserRouting": "conversation" })),
    ]
}

fn decision() -> impl Strategy<Value = Value> {
    let workers = vec(0..KINDS.len(), 1..6).prop_map(|kinds| {
        let workers: Vec<_> = kinds.iter().map(|kind| KINDS[*kind]).collect();
        next(&workers)
    });
    prop_oneof![
        8 => workers.clone(),
        1 => workers.prop_map(|mut decision| {
            decision["confidence"] = json!(0.3);
            decision
        }),
        1 => Just(json!({ "kind": "ask-user", "prompt": "Which?" })),
        1 => Just(json!({ "kind": "escalate" })),
    ]
}

/// Refusals are allowed here; violated invariants fail inside `Script`.
fn tell(script: &mut Script, told: &Told) {
    match told {
        Told::Answer(child, yes) => {
            let answer = json!({ "action": if *yes { "accept" } else { "reject" } });
            let _ = script.answer_in(child % script.n_runs(), "gate", answer);
            let _ = script.answer("dispatch", json!({ "answers": { "answer": "x" } }));
            let _ = script.answer("dispatch", json!({ "operation": "close" }));
        }
        Told::Wait(ms) => script.wait(*ms),
        Told::CancelChild(child) => drop(script.cancel_run(child % script.n_runs())),
        Told::Cancel => drop(script.cancel()),
        Told::Pause => drop(script.pause()),
        Told::Stop => drop(script.stop()),
        Told::Resume => drop(script.resume()),
        Told::HoldMail => script.hold_mail(),
        Told::Deliver => script.deliver(),
    }
}

/// Supplies everything that the runs wait for until the first has ended.
fn bring_to_an_end(script: &mut Script) {
    script.deliver();
    for _ in 0..200 {
        if script.run(0).status.is_terminal() {
            script.deliver();
            return;
        }
        let _ = script.resume();
        let _ = script.answer("dispatch", json!({ "answers": { "answer": "x" } }));
        let _ = script.answer("dispatch", json!({ "action": "accept" }));
        let _ = script.answer("dispatch", json!({ "operation": "close" }));
        for run in 1..script.n_runs() {
            let _ = script.answer_in(run, "gate", json!({ "action": "accept" }));
        }
        script.deliver();
        script.wait(20);
    }
    panic!("the run is stuck in {}\n{}", script.status(), script.log(0));
}

proptest! {
    #![proptest_config(Config { failure_persistence: None, ..Config::default() })]

    #[test]
    fn no_worker_outlives_its_run_and_every_handoff_ends_once(
        plan in vec(decision(), 0..4),
        dispatch in dispatch(),
        told in vec(told(), 0..20),
    ) {
        let workflow = looped(json!({ "mockDispatchPlan": plan }), dispatch)
            .variable("got", "string", json!({}));
        let mut script = started(&workflow);
        for told in &told {
            tell(&mut script, told);
        }
        bring_to_an_end(&mut script);
        for run in 1..script.n_runs() {
            prop_assert!(script.run(run).status.is_terminal(), "{}\n{}", script.log(0), script.log(run));
        }
        let counted = |name: &str| count(&script, name);
        prop_assert_eq!(counted("node.dispatched"), script.n_runs() - 1);
        prop_assert_eq!(counted("handoff.succeeded"), script.n_runs() - 1);
        prop_assert_eq!(counted("handoff.began"), counted("handoff.succeeded") + counted("handoff.failed"));
        prop_assert!(counted("child.ended") <= counted("handoff.succeeded"));
        prop_assert!(counted("joined") <= counted("fanned.out"));
        let ends = ["run.completed", "run.failed", "run.cancelled"].map(counted);
        prop_assert_eq!(ends.iter().sum::<usize>(), 1);
        if script.status() == "completed" {
            // The run saw every worker end, and merged what the completed ones gave back.
            prop_assert_eq!(counted("child.ended"), counted("handoff.succeeded"));
        }
    }
}

#[test]
fn a_loop_that_a_worker_stops_says_why() {
    let supervisor = |worker: &str| json!({ "decision": next(&[worker]), "maxLoopIterations": 2 });
    for (worker, code, has_child) in [
        ("failing", "broken", true),
        ("nobody", "unknown_child_workflow", false),
    ] {
        let script = started(&looped(supervisor(worker), json!({})));
        let error = &script.run(0).error.as_ref().expect("failed").0;
        assert_eq!(error.code, "loop_limit_exceeded");
        let failed = error.worker.as_ref().expect("a worker failed");
        assert_eq!((failed.worker.as_str(), failed.code.as_str()), (worker, code));
        assert_eq!(failed.child.is_some(), has_child);
        assert!(error.told().contains(&failed.message), "{}", error.told());
    }
    // A worker that has completed since is no reason.
    let script = started(&looped(supervisor("pure"), json!({})));
    assert_eq!(script.run(0).error.as_ref().expect("failed").0.worker, None);
}
