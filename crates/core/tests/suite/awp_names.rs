//! Names of Agent Workflow runs: what carries a run's name, and what a fork does with the name of its source.

use std::sync::Arc;

use serde_json::{Value, json};
use wopr_core::{
    AwpHistory, Call, Event, Failure, ForkMode, KernelEvent, NodeTypes, Plan, Recorded, TenantId, awp::Wanted,
};
use wopr_testkit::Script;

use crate::awp::document;

fn plan(document: Value) -> Arc<Plan> {
    Arc::new(Plan::admit(document, NodeTypes::default()).unwrap_or_else(|problems| panic!("{problems}")))
}

/// A delegate, then a child, which asks a delegate of its own.
fn plans() -> [Arc<Plan>; 2] {
    let ask = |agent: &str| {
        json!({ "id": "ask", "type": "agent_delegate", "config": {
            "agent_id": agent, "protocol": "a2a", "input_mapping": {},
        } })
    };
    let sub = json!({ "id": "sub", "type": "subworkflow", "config": { "workflow_ref": "child", "input_mapping": {} } });
    let parent = [ask("coder"), sub];
    [
        plan(document(
            "parent",
            json!({ "n": {} }),
            &parent,
            &[("start", "ask"), ("ask", "sub"), ("sub", "end")],
        )),
        plan(document(
            "child",
            json!({ "n": {} }),
            &[ask("reviewer")],
            &[("start", "ask"), ("ask", "end")],
        )),
    ]
}

fn start(tenant: &str) -> Script {
    let mut start = Script::start_run(json!({}));
    start.tenant = TenantId::parse(tenant).expect("valid");
    let options = json!({ "executionId": "nightly", "activityExecutionMode": "in_process" });
    start.configurable = options.as_object().expect("an object").clone();
    let mut script = Script::of_plans(plans());
    script.try_start(start).expect("started");
    script
}

/// The correlation id of the last agent that a run has called.
fn correlation(script: &Script, run: usize) -> String {
    match &script.effects_of(run).last().expect("a call").call {
        Call::Agent(call) => call.correlation.clone().expect("the call has a name"),
        other => panic!("{other:?}"),
    }
}

/// The different ids of executions in the rows of a run, in their order.
fn names_in_history(script: &Script, run: usize) -> Vec<String> {
    let wanted = Wanted::Rows {
        numbers: 1..u64::MAX,
        most_bytes: usize::MAX,
    };
    let mut history = AwpHistory::new(script.plan(run), script.id(run), wanted).expect("of this language");
    script.events(run).iter().for_each(|event| history.record(event));
    let mut names = Vec::new();
    for row in history.finish().rows {
        for member in ["executionId", "childExecutionId"] {
            if let Some(name) = row.payload.get(member).and_then(Value::as_str)
                && !names.iter().any(|known| known == name)
            {
                names.push(name.to_owned());
            }
        }
    }
    names
}

#[test]
fn branch_has_a_name_of_its_own_and_so_have_its_children_and_tasks() {
    let mut script = start("default");
    assert_eq!(correlation(&script, 0), "nightly:delegate:ask");
    let failed = Failure::new("remote_failed", "it failed");
    script.outcome("ask", Err(failed)).expect("asked");
    assert_eq!(script.status(), "failed");

    // A retry is a branch at the event that failed the step. Its agent must not take it for the task that failed.
    let events = script.events(0);
    let is_failure = |event: &Recorded| matches!(event.event, Event::Kernel(KernelEvent::NodeFailed { .. }));
    let from = events.iter().position(is_failure);
    let branch = script
        .fork(0, ForkMode::Branch, from.expect("it failed") as u64)
        .expect("forked");
    let id = script.id(branch).to_string();
    assert_eq!(correlation(&script, branch), format!("{id}:delegate:ask"));

    let mut script = start("default");
    script
        .outcome("ask", Ok(json!({ "data": { "n": 1 } })))
        .expect("asked");
    assert_eq!(correlation(&script, 1), "nightly:sub:sub:delegate:ask");
    assert_eq!(names_in_history(&script, 0), ["nightly", "nightly:sub:sub"]);
    let branch = script.fork(0, ForkMode::Branch, 1).expect("forked");
    let id = script.id(branch).to_string();
    assert_eq!(correlation(&script, branch), format!("{id}:delegate:ask"));
    assert_eq!(names_in_history(&script, branch), [id.as_str()]);
    let options = &script.run(branch).started.as_ref().unwrap().configurable;
    assert_eq!(
        *options,
        *json!({ "activityExecutionMode": "in_process" })
            .as_object()
            .unwrap()
    );

    // What a child of a named run does again is no longer that child.
    let again = script.fork(1, ForkMode::Branch, 1).expect("forked");
    assert_eq!(
        correlation(&script, again),
        format!("{}:delegate:ask", script.id(again))
    );
}

#[test]
fn replay_keeps_the_name_of_its_source_and_calls_nobody() {
    let mut script = start("default");
    script
        .outcome("ask", Ok(json!({ "data": { "n": 1 } })))
        .expect("asked");
    let replay = script.fork(0, ForkMode::Replay, 0).expect("forked");
    assert!(script.effects_of(replay).is_empty());
    assert_eq!(names_in_history(&script, replay), names_in_history(&script, 0));
    assert_eq!(
        script.run(replay).forked.and_then(|forked| forked.diverged_at),
        None
    );
}

#[test]
fn agents_tell_the_executions_of_tenants_apart() {
    let of = |tenant: &str| {
        let script = start(tenant);
        // What the run's own tenant reads has the name that it chose.
        assert_eq!(names_in_history(&script, 0), ["nightly"]);
        (script.id(0).to_string(), correlation(&script, 0))
    };
    for tenant in ["acme", "rival"] {
        let (run, correlation) = of(tenant);
        assert_eq!(correlation, format!("{run}:delegate:ask"));
    }
    assert_eq!(of("default").1, "nightly:delegate:ask");
}
