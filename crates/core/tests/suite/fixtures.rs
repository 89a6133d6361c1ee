//! The fixtures of the OpenWOP conformance suite, if they are available.

use std::{fs, path::PathBuf, sync::Arc};

use serde_json::{Value, json};
use wopr_core::{NodeTypes, Plan};
use wopr_testkit::Script;

fn plans() -> Option<Vec<(Arc<Plan>, Value)>> {
    let folder = PathBuf::from(concat!(
        env!("CARGO_MANIFEST_DIR"),
        "/../../../shared/fixtures/openwop/workflows"
    ));
    let Ok(files) = fs::read_dir(&folder) else {
        println!("note: the conformance fixtures are not here; nothing was checked");
        return None;
    };
    let mut plans = Vec::new();
    for file in files {
        let path = file.expect("readable folder").path();
        let document: Value = serde_json::from_slice(&fs::read(&path).expect("readable")).expect("JSON");
        match Plan::admit(document.clone(), NodeTypes { conformance: true }) {
            Ok(plan) => plans.push((Arc::new(plan), document)),
            // Fixtures with node types of other profiles or release channels of agents are rejected.
            Err(problems) => assert!(
                problems.0.iter().all(|problem| {
                    problem.rule.contains("is not offered by this host")
                        || problem.rule.contains("agents.deployment")
                }),
                "{}: {problems}",
                path.display()
            ),
        }
    }
    Some(plans)
}

/// A host with all fixtures, about to start one.
fn script(plans: &[(Arc<Plan>, Value)], id: &str) -> Script {
    let first = plans.iter().filter(|(plan, _)| plan.id().as_str() == id);
    let rest = plans.iter().filter(|(plan, _)| plan.id().as_str() != id);
    Script::of_plans(first.chain(rest).map(|(plan, _)| plan.clone()))
}

#[test]
fn fixtures_of_supported_types_compile() {
    let Some(plans) = plans() else { return };
    assert!(plans.len() >= 40, "{}", plans.len());
}

#[test]
fn fixtures_run_to_their_documented_end() {
    let Some(plans) = plans() else { return };
    for (id, inputs, configurable, status) in [
        ("conformance-noop", json!({}), json!({}), "completed"),
        ("conformance-version-fold", json!({}), json!({}), "completed"),
        (
            "conformance-identity",
            json!({ "payload": { "a": [1] } }),
            json!({}),
            "completed",
        ),
        (
            "conformance-idempotent",
            json!({ "nonce": "n" }),
            json!({}),
            "completed",
        ),
        ("conformance-multi-node", json!({}), json!({}), "completed"),
        (
            "conformance-delay",
            json!({ "delayMs": 500 }),
            json!({}),
            "completed",
        ),
        ("conformance-failure", json!({}), json!({}), "failed"),
        (
            "conformance-cap-breach",
            json!({}),
            json!({ "recursionLimit": 3 }),
            "failed",
        ),
        ("conformance-cap-breach", json!({}), json!({}), "completed"),
        ("conformance-capability-missing", json!({}), json!({}), "failed"),
        ("conformance-channel-ttl", json!({}), json!({}), "completed"),
        (
            "conformance-configurable-schema",
            json!({}),
            json!({ "recursionLimit": 5 }),
            "completed",
        ),
        (
            "conformance-run-duration-breach",
            json!({}),
            json!({ "runTimeoutMs": 1_000 }),
            "failed",
        ),
        ("conformance-approval", json!({}), json!({}), "waiting-approval"),
        ("conformance-clarification", json!({}), json!({}), "waiting-input"),
        (
            "conformance-interrupt-external-event",
            json!({}),
            json!({}),
            "waiting-external",
        ),
        (
            "conformance-interrupt-quorum",
            json!({}),
            json!({}),
            "waiting-approval",
        ),
        (
            "conformance-interrupt-auth-required",
            json!({}),
            json!({}),
            "waiting-approval",
        ),
        (
            "conformance-interrupt-parent-child-cancel",
            json!({}),
            json!({}),
            "waiting-approval",
        ),
        (
            "conformance-subworkflow-parent",
            json!({}),
            json!({}),
            "completed",
        ),
        (
            "conformance-subworkflow-input-mapping",
            json!({}),
            json!({}),
            "completed",
        ),
        (
            "conformance-subworkflow-input-mapping-no-default",
            json!({}),
            json!({}),
            "completed",
        ),
        (
            "conformance-subworkflow-mid-run-mutation",
            json!({}),
            json!({}),
            "waiting-approval",
        ),
        (
            "conformance-dispatch-deterministic-fail-child",
            json!({}),
            json!({}),
            "failed",
        ),
        (
            "conformance-dispatch-output-mapping-child",
            json!({}),
            json!({}),
            "completed",
        ),
        ("conformance-agent-identity", json!({}), json!({}), "completed"),
        ("conformance-dispatch-loop", json!({}), json!({}), "completed"),
        (
            "conformance-dispatch-input-mapping",
            json!({}),
            json!({}),
            "completed",
        ),
        (
            "conformance-dispatch-input-mapping-no-default",
            json!({}),
            json!({}),
            "completed",
        ),
        (
            "conformance-dispatch-output-mapping",
            json!({}),
            json!({}),
            "completed",
        ),
        (
            "conformance-dispatch-cross-worker-handoff",
            json!({}),
            json!({}),
            "completed",
        ),
        (
            "conformance-dispatch-per-worker-override",
            json!({}),
            json!({}),
            "completed",
        ),
        (
            "conformance-orchestrator-dispatch",
            json!({}),
            json!({}),
            "completed",
        ),
        (
            "conformance-orchestrator-terminate",
            json!({}),
            json!({}),
            "completed",
        ),
        (
            "conformance-orchestrator-low-confidence",
            json!({}),
            json!({}),
            "waiting-approval",
        ),
        (
            "conformance-multi-agent-handoff",
            json!({}),
            json!({}),
            "completed",
        ),
        (
            "conformance-multi-agent-confidence-escalation",
            json!({}),
            json!({}),
            "waiting-approval",
        ),
    ] {
        let mut script = script(&plans, id).start_configured(inputs, configurable);
        script.wait(30_000);
        assert_eq!(script.status(), status, "{id}\n{}", script.log(0));
    }
}

#[test]
fn error_fixtures_fail_with_their_error() {
    let Some(plans) = plans() else { return };
    for (id, configurable, line) in [
        (
            "conformance-failure",
            json!({}),
            "run.failed conformance_test_failure: Intentional conformance failure in fail",
        ),
        (
            "conformance-cap-breach",
            json!({ "recursionLimit": 3 }),
            "cap.breached node-executions 4 > 3 at n4",
        ),
        (
            "conformance-cap-breach",
            json!({ "recursionLimit": 3 }),
            "run.failed recursion_limit_exceeded: ",
        ),
        (
            "conformance-capability-missing",
            json!({}),
            "node.failed n1 capability_not_provided: ",
        ),
        (
            "conformance-run-duration-breach",
            json!({ "runTimeoutMs": 1_000 }),
            "run.failed run_timeout: ",
        ),
    ] {
        let mut script = script(&plans, id).start_configured(json!({}), configurable);
        script.wait(30_000);
        assert!(script.log(0).contains(line), "{id}\n{}", script.log(0));
    }
}

#[test]
fn fixtures_with_interrupts_accept_answers() {
    let Some(plans) = plans() else { return };
    for (id, node, answer, status) in [
        (
            "conformance-approval",
            "gate",
            json!({ "action": "accept" }),
            "completed",
        ),
        (
            "conformance-approval",
            "gate",
            json!({ "action": "reject" }),
            "failed",
        ),
        (
            "conformance-clarification",
            "ask",
            json!({ "answers": { "q1": "blue" } }),
            "completed",
        ),
        (
            "conformance-interrupt-auth-required",
            "gate",
            json!({ "action": "accept" }),
            "completed",
        ),
        (
            "conformance-interrupt-external-event",
            "wait-for-external",
            json!({ "orderId": "fixture-order-1", "status": "completed", "externalReference": "x" }),
            "completed",
        ),
    ] {
        let mut script = script(&plans, id).start(json!({}));
        script.answer(node, answer).expect("open");
        assert_eq!(script.status(), status, "{id}");
    }
}

#[test]
fn fixture_variables_have_their_documented_values() {
    let Some(plans) = plans() else { return };
    let ended = |id: &str| {
        let mut script = script(&plans, id).start(json!({}));
        script.wait(30_000);
        script
    };
    let ttl = ended("conformance-channel-ttl").variable("events");
    assert_eq!(
        (ttl.as_array().map(Vec::len), &ttl[0]["value"]),
        (Some(1), &json!("d"))
    );
    assert_eq!(
        ended("conformance-subworkflow-parent").variable("childOutcome"),
        json!("child-completed")
    );
    let got = |id: &str| ended(id).run(1).variables().get("receivedPrdId").cloned();
    assert_eq!(got("conformance-subworkflow-input-mapping"), Some(json!("prd-1")));
    assert_eq!(got("conformance-subworkflow-input-mapping-no-default"), None);
    assert_eq!(
        got("conformance-subworkflow-mid-run-mutation"),
        Some(json!("seeded-id"))
    );
}

#[test]
fn cancelling_fixtures_are_cancelled() {
    let Some(plans) = plans() else { return };
    let mut cancellable = script(&plans, "conformance-cancellable").start(json!({}));
    cancellable.wait(100);
    cancellable.cancel().expect("running");
    assert_eq!(cancellable.status(), "cancelled");

    let mut parent = script(&plans, "conformance-interrupt-parent-child-cancel").start(json!({}));
    parent.cancel().expect("waiting");
    assert_eq!((parent.status(), parent.status_of(1)), ("cancelled", "cancelled"));
    assert!(
        parent
            .log(1)
            .ends_with("run.cancelled parent-cancelled with run0")
    );
}
