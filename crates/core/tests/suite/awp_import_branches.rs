//! Histories of Agent Workflow runs whose branches were under way at once become equal runs again.

use std::sync::Arc;

use serde_json::{Value, json};
use wopr_core::{
    Call, Command, Failure, InProcess, Refusal,
    awp::{ActivityMode, Import, ImportError},
};
use wopr_testkit::Script;

use crate::{
    awp::{document, set, tool},
    awp_import::{export_run, id, import, import_all, object, plan, rows, terms, unnamed},
};

/// Branches with an activity that is repeated, one that is followed by a timer, a signal, and a fork of their own.
fn branched(join: &Value) -> Value {
    let branch = |name: &str| json!({ "name": name, "entry": name });
    let entries = ["a", "b", "go", "inner"].map(branch);
    let mut config = json!({ "branches": entries });
    let more = object(join.clone());
    config.as_object_mut().expect("an object").extend(more);
    let retry = json!({ "max_attempts": 2, "initial_interval": "1s" });
    let mut a = tool("a");
    a["retry"] = retry;
    let nodes = [
        json!({ "id": "fork", "type": "parallel", "config": config }),
        a,
        tool("b"),
        json!({ "id": "nap", "type": "wait", "config": { "kind": "duration", "duration_ms": 500 } }),
        json!({ "id": "go", "type": "wait", "config": { "kind": "signal", "signal": "go" } }),
        json!({ "id": "inner", "type": "parallel", "config": { "join": "any", "branches": [branch("c"), branch("d")] } }),
        tool("c"),
        json!({ "id": "d", "type": "agent_delegate", "config": {
            "agent_id": "coder", "protocol": "a2a", "input_mapping": { "log": "${ .log }" },
        } }),
        set("joined", json!({ "log": { "jq": "[\"inner\"]" } })),
        set("join", json!({ "log": { "jq": "[.log | length]" } })),
    ];
    let edges = [
        ("start", "fork"),
        ("fork", "join"),
        ("a", "join"),
        ("b", "nap"),
        ("nap", "join"),
        ("go", "join"),
        ("inner", "joined"),
        ("c", "joined"),
        ("d", "joined"),
        ("joined", "join"),
        ("join", "end"),
    ];
    document(
        "branched",
        json!({ "log": { "reducer": "append" } }),
        &nodes,
        &edges,
    )
}

pub(crate) fn started(join: &Value) -> Script {
    started_with(join, json!({ "activityExecutionMode": "host_mediated" }))
}

fn started_in_process(join: &Value) -> Script {
    let options = json!({ "activityExecutionMode": "in_process", "inProcess": { "tools": true } });
    started_with(join, options)
}

fn started_with(join: &Value, mut options: Value) -> Script {
    options["executionId"] = "first".into();
    options["parallelActivities"] = true.into();
    Script::of_plans([plan(branched(join))]).start_configured(json!({}), options)
}

/// What happens to a run, in different orders.
const ORDERS: [[&str; 6]; 6] = [
    ["a!", "b", "go", "c", "time", "a"],
    ["d", "go", "a", "b", "time", "-"],
    ["b", "time", "a!", "time", "go", "c"],
    ["go", "c", "b", "a", "time", "-"],
    ["a!", "time", "d", "a", "b", "go"],
    ["b", "a", "-", "time", "c", "go"],
];

/// Lets one thing happen, if the run waits for it.
pub(crate) fn happen(script: &mut Script, what: &str) {
    if script.run(0).status.is_terminal() {
        return;
    }
    match what {
        "-" => {}
        "time" => script.wait(1_500),
        "go" => drop(script.answer("go", json!({ "log": "go" }))),
        _ => {
            let (node, fails) = match what.strip_suffix('!') {
                Some(node) => (node, true),
                None => (what, false),
            };
            // Those that have ended are stale.
            let mut begun = script.effects().iter().rev();
            let Some(effect) = begun.find(|effect| effect.step.node.as_str() == node) else {
                return;
            };
            let (step, attempt) = (effect.step.clone(), effect.attempt);
            let output = json!({ "log": node });
            let output = match effect.call {
                Call::Tool(_) => json!({ "content": [], "structuredContent": output }),
                Call::Agent(_) => json!({ "data": output, "taskId": "task-1" }),
                _ => output,
            };
            let outcome = match fails {
                true => Err(Failure {
                    retryable: true,
                    ..Failure::new("BUSY", "not now")
                }),
                false => Ok(object(output)),
            };
            let command = Command::Effect {
                step,
                attempt,
                outcome,
                retry_after_ms: None,
            };
            let told = script.tell(0, command);
            assert!(matches!(told, Ok(()) | Err(Refusal::Stale)), "{told:?}");
        }
    }
}

fn joins() -> [Value; 3] {
    [
        json!({ "join": "all" }),
        json!({ "join": "any" }),
        json!({ "join": "n_of_m", "n": 3 }),
    ]
}

#[test]
fn runs_with_branches_under_way_at_once_are_imported_wherever_they_are() {
    are_imported_wherever_they_are(started, &terms());
}

#[test]
fn runs_whose_host_did_several_activities_at_once_are_imported_wherever_they_are() {
    let in_process = InProcess {
        tools: true,
        ..InProcess::default()
    };
    let terms = Import {
        mode: Some(ActivityMode::InProcess),
        in_process: Some(Arc::new(in_process)),
        ..terms()
    };
    are_imported_wherever_they_are(started_in_process, &terms);
}

fn are_imported_wherever_they_are(started: impl Fn(&Value) -> Script, terms: &Import) {
    let mut n_open = 0;
    for join in joins() {
        for order in ORDERS {
            let mut script = started(&join);
            let mut left = order.iter();
            loop {
                let plan = script.plan(0).clone();
                let given = export_run(&script, 0);
                let decision = import(&plan, given.clone(), terms);
                let decision = decision.unwrap_or_else(|error| panic!("{join} {order:?} {left:?}: {error}"));
                assert_eq!(
                    unnamed(&rows(&plan, &decision)),
                    unnamed(&given),
                    "{join} {order:?} {left:?}"
                );
                let times = |rows: &[Value]| {
                    rows.iter()
                        .map(|row| row["created_at"].clone())
                        .collect::<Vec<_>>()
                };
                assert_eq!(times(&rows(&plan, &decision)), times(&given), "{join} {order:?}");
                assert_eq!(
                    decision.run.started.as_ref().expect("started").configurable["parallelActivities"],
                    true
                );
                n_open += usize::from(!decision.run.status.is_terminal());
                // It goes on alike, too.
                let mut copy = Script::of_plans([plan]);
                copy.skip(u64::try_from(script.now().millis() - copy.now().millis()).expect("later"));
                copy.adopt(id(), &decision);
                let mut twin = script.clone();
                for what in left.clone() {
                    happen(&mut copy, what);
                    happen(&mut twin, what);
                }
                assert_eq!(
                    unnamed(&export_run(&copy, 0)),
                    unnamed(&export_run(&twin, 0)),
                    "{join} {order:?}"
                );
                let Some(what) = left.next() else { break };
                happen(&mut script, what);
            }
        }
    }
    assert!(n_open > 50, "{n_open}");
}

#[test]
fn the_order_of_branches_is_that_of_the_rows_or_of_the_caller() {
    let mut script = started(&json!({ "join": "all" }));
    for what in ["b", "a"] {
        happen(&mut script, what);
    }
    let plan = script.plan(0).clone();
    let given = export_run(&script, 0);
    let mut one_by_one = terms();
    one_by_one.configurable = object(json!({ "parallelActivities": false }));
    let error = import(&plan, given, &one_by_one).expect_err("refused");
    assert!(matches!(error, ImportError::Differs { .. }), "{error}");
    // A history that begins no branch does not say it.
    let nodes = [
        json!({ "id": "ask", "type": "interrupt", "config": { "prompt": "?", "resume_schema": { "type": "object" } } }),
        json!({ "id": "fork", "type": "parallel", "config": { "join": "all", "branches": [
            { "name": "x", "entry": "x" }, { "name": "y", "entry": "y" },
        ] } }),
        set("x", json!({ "x": { "literal": 1 } })),
        set("y", json!({ "y": { "literal": 1 } })),
    ];
    let edges = [
        ("start", "ask"),
        ("ask", "fork"),
        ("x", "end"),
        ("y", "end"),
        ("fork", "end"),
    ];
    let document = document("later", json!({ "x": {}, "y": {} }), &nodes, &edges);
    let script = Script::of_plans([crate::awp_import::plan(document)]).start(json!({}));
    for (chosen, expected) in [(None, None), (Some(true), Some(json!(true)))] {
        let mut terms = terms();
        if let Some(chosen) = chosen {
            terms.configurable = object(json!({ "parallelActivities": chosen }));
        }
        let decision = import(script.plan(0), export_run(&script, 0), &terms).expect("imported");
        let started = decision.run.started.clone().expect("started");
        assert_eq!(started.configurable.get("parallelActivities"), expected.as_ref());
    }
}

#[test]
fn branches_with_children_and_agents_are_imported_at_once() {
    let sub = |id: &str| json!({ "id": id, "type": "subworkflow", "config": { "workflow_ref": "small", "input_mapping": {} } });
    let entries = ["one", "two", "three"];
    let branches: Vec<_> = entries
        .iter()
        .map(|name| json!({ "name": name, "entry": name }))
        .collect();
    let nodes = [
        json!({ "id": "fork", "type": "parallel", "config": { "join": "n_of_m", "n": 2, "branches": branches } }),
        sub("one"),
        sub("two"),
        sub("three"),
    ];
    let edges = [
        ("start", "fork"),
        ("fork", "end"),
        ("one", "end"),
        ("two", "end"),
        ("three", "end"),
    ];
    let log = json!({ "log": { "reducer": "append" } });
    let parent = document("parent", log.clone(), &nodes, &edges);
    let small = document(
        "small",
        log,
        &[tool("work")],
        &[("start", "work"), ("work", "end")],
    );
    let plans = [plan(parent), plan(small)];
    let mut script = Script::of_plans(plans.clone()).start_configured(
        json!({}),
        json!({ "executionId": "first", "parallelActivities": true }),
    );
    for ends in [None, Some(3), Some(1)] {
        if let Some(run) = ends {
            let small = script.plan(run).clone();
            let (step, attempt, _) = script.run(run).activities(&small).next().expect("awaited");
            let outcome = Ok(object(json!({ "log": run })));
            let command = Command::Effect {
                step,
                attempt,
                outcome,
                retry_after_ms: None,
            };
            script.tell(run, command).expect("under way");
        }
        let children = (1..4).map(|run| (script.plan(run).clone(), export_run(&script, run)));
        let imported = import_all(
            script.plan(0),
            export_run(&script, 0),
            children.collect(),
            &terms(),
        );
        let imported = imported.unwrap_or_else(|error| panic!("{ends:?}: {error}"));
        let mut copy = Script::of_plans(plans.clone());
        copy.skip(u64::try_from(script.now().millis() - copy.now().millis()).expect("later"));
        copy.adopt_all(id(), &imported);
        for run in 0..4 {
            assert_eq!(
                unnamed(&export_run(&copy, run)),
                unnamed(&export_run(&script, run)),
                "{ends:?} {run}"
            );
            assert_eq!(copy.status_of(run), script.status_of(run), "{ends:?} {run}");
        }
    }
    assert_eq!(script.status(), "completed");
    assert_eq!(script.status_of(2), "cancelled");
}
