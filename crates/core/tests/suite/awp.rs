//! Runs of Agent Workflow documents: what their nodes do, and what the log says of it.

use std::sync::Arc;

use expect_test::expect;
use serde_json::{Value, json};
use wopr_core::{AgentReach, Call, DialectId, Failure, ForkMode, NodeTypes, Plan};
use wopr_testkit::Script;

/// A document of these nodes, between a start and an end, with these edges besides `__start__`.
pub(crate) fn document(name: &str, state: Value, nodes: &[Value], edges: &[(&str, &str)]) -> Value {
    let mut all = vec![json!({ "id": "start", "type": "start" })];
    all.extend_from_slice(nodes);
    if !nodes.iter().any(|node| node["type"] == "end") {
        all.push(json!({ "id": "end", "type": "end" }));
    }
    let edges = [("__start__", "start")].iter().chain(edges);
    let edges: Vec<_> = edges
        .map(|(source, target)| json!({ "source": source, "target": target }))
        .collect();
    json!({
        "document": { "schema": "https://agent-workflow.dev/schemas/workflow-definition.json", "name": name, "version": "1" },
        "state_schema": { "type": "object", "properties": state },
        "nodes": all, "edges": edges,
    })
}

fn plan(document: Value) -> Arc<Plan> {
    let plan = Plan::admit(document, NodeTypes::default()).unwrap_or_else(|problems| panic!("{problems}"));
    assert_eq!(plan.dialect(), DialectId::Awp);
    Arc::new(plan)
}

fn problems(document: Value) -> String {
    let refused = Plan::admit(document, NodeTypes::default()).expect_err("refused");
    refused.to_string()
}

pub(crate) fn set(id: &str, assignments: Value) -> Value {
    json!({ "id": id, "type": "set_state", "config": { "assignments": assignments } })
}

pub(crate) fn tool(id: &str) -> Value {
    json!({ "id": id, "type": "tool_call", "config": { "server": "s", "tool": "t" } })
}

fn start(document: Value, inputs: Value) -> Script {
    Script::of_plans([plan(document)]).start(inputs)
}

/// The run's state, as faces and filters read it.
fn state(script: &Script) -> Value {
    Value::Object(script.run(0).variables().clone())
}

fn result(script: &Script) -> Value {
    let outputs = script.run(0).outputs.clone().expect("the run has completed");
    outputs["result"].clone()
}

fn failure(script: &Script) -> Failure {
    script.run(0).error.clone().expect("the run has failed").0
}

/// Forks of the run repeat it.
fn replays_equally(script: &mut Script) {
    let fork = script.fork(0, ForkMode::Replay, 0).expect("forked");
    assert_eq!(script.status_of(fork), script.status_of(0));
    assert_eq!(script.run(fork).outputs, script.run(0).outputs);
    assert_eq!(script.run(fork).variables(), script.run(0).variables());
    assert_eq!(
        script.run(fork).forked.and_then(|forked| forked.diverged_at),
        None
    );
}

#[test]
fn linear_document_sets_and_maps_its_state() {
    let document = document(
        "Linear Document",
        json!({ "sum": { "type": "number" }, "log": { "type": "array", "reducer": "append" } }),
        &[
            set(
                "add",
                json!({ "sum": { "jq": ".a + .b" }, "log": { "literal": "added" }, "a": { "literal": 0 } }),
            ),
            set("again", json!({ "log": { "jq": "[\"sum \\(.sum)\", .a]" } })),
            json!({ "id": "end", "type": "end", "config": { "output_mapping": "{sum, log, n: (.log | length)}" } }),
        ],
        &[("start", "add"), ("add", "again"), ("again", "end")],
    );
    let mut script = start(document, json!({ "a": 2, "b": 3 }));
    assert_eq!(script.status(), "completed");
    assert_eq!(
        result(&script),
        json!({ "sum": 5, "log": ["added", "sum 5", 0], "n": 3 })
    );
    assert_eq!(state(&script)["b"], 3);
    expect![[r#"
        0 run.started {"a":2,"b":3}
        1 node.started start
        2 node.completed start
        3 node.started add
        4 node.completed add {"a":0,"log":"added","sum":5}
        5 node.started again
        6 node.completed again {"log":["sum 5",0]}
        7 node.started end
        8 artifact.created end end-0 result {"log":["added","sum 5",0],"n":3,"sum":5}
        9 node.completed end
        10 run.completed {"result":{"log":["added","sum 5",0],"n":3,"sum":5}}"#]]
    .assert_eq(&script.log(0));
    replays_equally(&mut script);
}

#[test]
fn inputs_and_states_are_held_against_the_schema() {
    let document = document(
        "checked",
        json!({ "n": { "type": "number" } }),
        &[set("bad", json!({ "n": { "literal": "text" } }))],
        &[("start", "bad"), ("bad", "end")],
    );
    let mut script = Script::of_plans([plan(document.clone())]);
    let refused = script.try_start(Script::start_run(json!({ "n": "text" })));
    let refused = refused.expect_err("refused").to_string();
    assert!(
        refused.contains("Initial state invalid vs state_schema"),
        "{refused}"
    );
    let script = start(document, json!({ "n": 1 }));
    let failed = failure(&script);
    assert_eq!(failed.reason.as_deref(), Some("orchestration_error"));
    assert!(
        failed.message.starts_with("State invalid after node \"bad\""),
        "{}",
        failed.message
    );
}

#[test]
fn switch_takes_the_first_case_that_holds_and_loops() {
    let nodes = [
        set("count", json!({ "n": { "jq": "(.n // 0) + 1" } })),
        json!({ "id": "more", "type": "switch", "config": {
            "cases": [{ "when": ".n < 3", "target": "count" }, { "when": "true", "target": "end" }], "default": "count",
        } }),
    ];
    let document = document(
        "loop",
        json!({ "n": { "type": "number" } }),
        &nodes,
        &[("start", "count"), ("count", "more")],
    );
    let mut script = start(document, json!({}));
    assert_eq!(script.status(), "completed");
    assert_eq!(state(&script), json!({ "n": 3 }));
    replays_equally(&mut script);
}

#[test]
fn endless_loop_ends_at_the_limit_of_node_executions() {
    let nodes = [
        set("count", json!({ "n": { "jq": ".n + 1" } })),
        json!({ "id": "more", "type": "switch", "config": { "cases": [{ "when": "true", "target": "count" }] } }),
    ];
    let document = document(
        "endless",
        json!({ "n": {} }),
        &nodes,
        &[("start", "count"), ("count", "more")],
    );
    let mut script = Script::of_plans([plan(document)])
        .start_configured(json!({ "n": 0 }), json!({ "recursionLimit": 900 }));
    while script.status() == "running" {
        script.wait(0);
    }
    assert_eq!(failure(&script).code, "recursion_limit_exceeded");
}

#[test]
fn a_loop_that_writes_much_ends_at_the_limit_of_its_log() {
    let nodes = [
        set("turn", json!({ "t": { "jq": ".t[1:] + .t[:1]" } })),
        json!({ "id": "more", "type": "switch", "config": { "cases": [{ "when": "true", "target": "turn" }] } }),
    ];
    let document = document(
        "endless",
        json!({ "t": {} }),
        &nodes,
        &[("start", "turn"), ("turn", "more")],
    );
    let mut start_run = Script::start_run(json!({ "t": "x".repeat(30_000) }));
    start_run.bounds.log_bytes = 2 << 20;
    let mut script = Script::of_plans([plan(document)]);
    script.try_start(start_run).unwrap();
    while script.status() == "running" {
        script.wait(0);
    }
    assert_eq!(failure(&script).code, "log_limit_exceeded");
    assert!(script.run(0).log_bytes < 3 << 20);
    replays_equally(&mut script);
}

#[test]
fn hostile_filter_fails_its_node_and_not_the_host() {
    for filter in [
        "[range(1e9)]",
        "try until(false; .) catch 1",
        "\"x\" * 1e9",
        "[recurse(., .)]",
    ] {
        let document = document(
            "hostile",
            json!({ "x": {} }),
            &[set("spin", json!({ "x": { "jq": filter } }))],
            &[("start", "spin"), ("spin", "end")],
        );
        let script = start(document, json!({}));
        assert_eq!(failure(&script).code, "work_limit_exceeded", "{filter}");
    }
}

fn forked(join: Value) -> Value {
    let mut config = json!({ "branches": [
        { "name": "a", "entry": "a" }, { "name": "b", "entry": "b" }, { "name": "c", "entry": "c" },
    ] });
    let fields = join.as_object().expect("an object").clone();
    config.as_object_mut().expect("an object").extend(fields);
    let nodes = [
        json!({ "id": "fork", "type": "parallel", "config": config }),
        tool("a"),
        tool("b"),
        tool("c"),
        set("join", json!({ "done": { "literal": true } })),
    ];
    let edges = [
        ("start", "fork"),
        ("fork", "join"),
        ("a", "join"),
        ("b", "join"),
        ("c", "join"),
        ("join", "end"),
    ];
    document(
        "forked",
        json!({ "log": { "reducer": "append" } }),
        &nodes,
        &edges,
    )
}

fn done(script: &mut Script, node: &str) {
    script
        .outcome(node, Ok(json!({ "log": node })))
        .expect("under way");
}

fn broken(script: &mut Script, node: &str) {
    script
        .outcome(node, Err(Failure::new("BROKEN", "it broke")))
        .expect("under way");
}

#[test]
fn join_of_all_walks_every_branch_in_order() {
    let mut script = start(forked(json!({ "join": "all" })), json!({}));
    for node in ["a", "b", "c"] {
        assert_eq!(script.status(), "running");
        done(&mut script, node);
    }
    assert_eq!(script.status(), "completed");
    assert_eq!(state(&script), json!({ "log": ["a", "b", "c"], "done": true }));
    replays_equally(&mut script);

    let mut script = start(forked(json!({ "join": "all" })), json!({}));
    done(&mut script, "a");
    broken(&mut script, "b");
    let failed = failure(&script);
    assert_eq!(
        (failed.code.as_str(), failed.reason.as_deref()),
        ("BROKEN", Some("activity_failed"))
    );
}

#[test]
fn join_of_any_starts_no_branch_after_the_first_that_completes() {
    let mut script = start(forked(json!({ "join": "any" })), json!({}));
    broken(&mut script, "a");
    done(&mut script, "b");
    assert_eq!(script.status(), "completed");
    assert_eq!(state(&script), json!({ "log": ["b"], "done": true }));
    assert!(!script.log(0).contains("node.started c"));
    replays_equally(&mut script);
}

#[test]
fn join_of_several_fails_once_too_few_branches_are_left() {
    let mut script = start(forked(json!({ "join": "n_of_m", "n": 2 })), json!({}));
    done(&mut script, "a");
    broken(&mut script, "b");
    done(&mut script, "c");
    assert_eq!(state(&script), json!({ "log": ["a", "c"], "done": true }));

    let mut script = start(forked(json!({ "join": "n_of_m", "n": 2 })), json!({}));
    broken(&mut script, "a");
    assert_eq!(script.status(), "running");
    broken(&mut script, "b");
    // One branch is left, and two are wanted.
    assert_eq!(failure(&script).code, "parallel_join_failed");
    assert!(!script.log(0).contains("node.started c"));
    replays_equally(&mut script);

    let mut script = start(forked(json!({ "join": "n_of_m", "n": 2 })), json!({}));
    done(&mut script, "a");
    broken(&mut script, "b");
    broken(&mut script, "c");
    assert_eq!(failure(&script).code, "parallel_join_failed");
    replays_equally(&mut script);
}

#[test]
fn answer_is_checked_and_replaces_what_is_there() {
    let ask = json!({ "id": "ask", "type": "interrupt", "config": { "prompt": "Approve?", "timeout": "1h", "resume_schema": {
        "type": "object", "properties": { "ok": { "type": "boolean" } }, "required": ["ok"],
    } } });
    let document = document(
        "asks",
        json!({ "log": { "reducer": "append" } }),
        &[ask],
        &[("start", "ask"), ("ask", "end")],
    );
    let mut script = start(document.clone(), json!({ "log": ["old"] }));
    assert_eq!(script.status(), "waiting-input");
    for bad in [json!({ "ok": 1 }), json!({}), json!("yes")] {
        script.answer("ask", bad).expect_err("refused");
        assert_eq!(script.status(), "waiting-input", "a bad answer changes nothing");
    }
    script
        .answer("ask", json!({ "ok": true, "log": ["new"] }))
        .expect("open");
    assert_eq!(script.status(), "completed");
    assert_eq!(state(&script), json!({ "ok": true, "log": ["new"] }));
    replays_equally(&mut script);

    let mut script = start(document, json!({}));
    script.wait(3_600_000);
    assert_eq!(failure(&script).code, "TIMEOUT");
}

#[test]
fn waits_for_times_and_signals_are_durable() {
    let nodes = [
        json!({ "id": "rest", "type": "wait", "config": { "kind": "duration", "duration": "2m" } }),
        json!({ "id": "past", "type": "wait", "config": { "kind": "until", "until": "1970-01-01T00:00:00Z" } }),
        json!({ "id": "signal", "type": "wait", "config": { "kind": "signal", "signal": "go" } }),
    ];
    let edges = [
        ("start", "rest"),
        ("rest", "past"),
        ("past", "signal"),
        ("signal", "end"),
    ];
    let document = document("waits", json!({ "log": { "reducer": "append" } }), &nodes, &edges);
    let mut script = start(document, json!({ "log": [1] }));
    script.wait(119_999);
    assert_eq!(script.status(), "running");
    script.wait(1);
    script.wait(0);
    assert_eq!(script.status(), "waiting-external");
    script.answer("signal", json!({ "log": 2 })).expect("open");
    assert_eq!(script.status(), "completed");
    assert_eq!(state(&script), json!({ "log": [1, 2] }));
    replays_equally(&mut script);
}

fn retried(retry: Value) -> Value {
    let mut node = tool("work");
    node["retry"] = retry;
    node["timeout"] = json!("10s");
    document(
        "retried",
        json!({ "x": {} }),
        &[node],
        &[("start", "work"), ("work", "end")],
    )
}

#[test]
fn failed_attempts_are_repeated_as_the_policy_says() {
    let policy = json!({
        "max_attempts": 4, "initial_interval": "1s", "backoff_coefficient": 3, "max_interval": "5s",
        "non_retryable_errors": ["FATAL"],
    });
    let mut script = start(retried(policy.clone()), json!({}));
    for delay in [1_000, 3_000, 5_000] {
        broken(&mut script, "work");
        script.wait(delay - 1);
        assert!(
            script.outcome("work", Ok(json!({}))).is_err(),
            "not before {delay} ms"
        );
        script.wait(1);
    }
    done(&mut script, "work");
    assert_eq!(script.status(), "completed");
    replays_equally(&mut script);

    let mut script = start(retried(policy.clone()), json!({}));
    let fatal = Failure::new("FATAL", "no use");
    script.outcome("work", Err(fatal)).expect("under way");
    assert_eq!(failure(&script).code, "FATAL");

    // Nobody finishes it in time.
    let mut policy = policy;
    policy["non_retryable_errors"] = json!(["TIMEOUT"]);
    let mut script = start(retried(policy), json!({}));
    script.wait(10_000);
    let failure = failure(&script);
    assert_eq!(
        (&*failure.code, &*failure.message),
        ("TIMEOUT", "Activity timed out")
    );
}

#[test]
fn worker_gets_the_node_and_the_state() {
    let mut script = start(retried(json!({ "max_attempts": 1 })), json!({ "x": 1 }));
    let plan = script.plan(0).clone();
    let waiting: Vec<_> = script.run(0).activities(&plan).collect();
    let [(step, 0, activity)] = waiting.as_slice() else {
        panic!("{waiting:?}");
    };
    assert_eq!(step.key(), "work:0");
    assert_eq!(activity.queue, "awp.tool_call");
    assert_eq!(
        activity.input,
        json!({
            "nodeId": "work", "nodeType": "tool_call", "config": { "server": "s", "tool": "t" }, "state": { "x": 1 },
        })
    );
    script.cancel().expect("running");
    assert_eq!(script.status(), "cancelled");
}

fn classified() -> Value {
    let node = json!({ "id": "classify", "type": "llm_call", "retry": { "max_attempts": 2 }, "config": {
        "model": "m", "output_schema": { "type": "object", "required": ["intent"] },
    } });
    document(
        "classified",
        json!({ "intent": {} }),
        &[node],
        &[("start", "classify"), ("classify", "end")],
    )
}

#[test]
fn output_of_a_model_is_held_against_its_schema() {
    let mut script = start(classified(), json!({}));
    script.outcome("classify", Ok(json!({}))).expect("under way");
    assert_eq!(script.status(), "running", "a bad output is a failed attempt");
    script.wait(0);
    script
        .outcome("classify", Ok(json!({ "intent": "buy" })))
        .expect("under way");
    assert_eq!(state(&script), json!({ "intent": "buy" }));
    replays_equally(&mut script);

    let mut script = start(classified(), json!({}));
    for _ in 0..2 {
        script.outcome("classify", Ok(json!({}))).expect("under way");
        script.wait(0);
    }
    let failed = failure(&script);
    assert_eq!(
        (failed.code.as_str(), failed.reason.as_deref()),
        ("OUTPUT_SCHEMA_VIOLATION", Some("activity_failed"))
    );
}

#[test]
fn activities_in_process_have_the_outputs_of_the_mock() {
    let options =
        json!({ "activityExecutionMode": "in_process", "mockOutputs": { "classify": { "intent": "sell" } } });
    let script = Script::of_plans([plan(classified())]).start_configured(json!({}), options);
    assert_eq!(state(&script), json!({ "intent": "sell" }));
    for options in [
        json!({ "activityExecutionMode": "elsewhere" }),
        json!({ "mockOutputs": { "classify": 1 } }),
        json!({ "unknown": 1 }),
    ] {
        let mut start = Script::start_run(json!({}));
        start.configurable = options.as_object().expect("an object").clone();
        let refused = Script::of_plans([plan(classified())]).try_start(start);
        assert!(
            refused
                .expect_err("refused")
                .to_string()
                .contains("configurable."),
            "{options}"
        );
    }
}

fn parent(reference: &str, pin: Option<&str>) -> Value {
    let mut config =
        json!({ "workflow_ref": reference, "input_mapping": { "x": "${ .x }", "y": { "literal": 2 } } });
    if let Some(pin) = pin {
        config["version_pin"] = json!(pin);
    }
    let node = json!({ "id": "sub", "type": "subworkflow", "config": config });
    document(
        "parent",
        json!({ "log": { "reducer": "append" } }),
        &[node],
        &[("start", "sub"), ("sub", "end")],
    )
}

fn child() -> Value {
    let nodes = [
        tool("work"),
        set("log", json!({ "log": { "jq": "\"x \\(.x)\"" } })),
    ];
    document(
        "child",
        json!({ "x": {} }),
        &nodes,
        &[("start", "work"), ("work", "log"), ("log", "end")],
    )
}

#[test]
fn child_waits_for_its_worker_and_its_state_is_merged() {
    let plans = [plan(parent("urn:awp:wf:child", None)), plan(child())];
    let mut script = Script::of_plans(plans).start(json!({ "x": 1, "log": ["before"] }));
    assert_eq!((script.n_runs(), script.status()), (2, "running"));
    let work = script.effects_of(1).to_vec();
    let outcome = wopr_core::Command::Effect {
        step: work[0].step.clone(),
        attempt: 0,
        outcome: Ok(json!({ "z": 3 }).as_object().expect("an object").clone()),
        retry_after_ms: None,
    };
    script.tell(1, outcome).expect("under way");
    assert_eq!(script.status(), "completed");
    assert_eq!(
        state(&script),
        json!({ "x": 1, "y": 2, "z": 3, "log": ["before", "x 1"] })
    );
    replays_equally(&mut script);
}

#[test]
fn child_that_is_unknown_or_another_version_fails_its_step() {
    let script = Script::of_plans([plan(parent("nowhere", None))]).start(json!({}));
    let failed = failure(&script);
    assert_eq!(failed.reason.as_deref(), Some("subworkflow_failed"));
    assert_eq!(
        failed.message,
        "Unknown workflow_ref \"nowhere\" (not registered and no built-in mapping)"
    );
    let pin = wopr_core::awp::definition_hash(&child()).to_string();
    let pinned = |pin: &str| {
        let plans = [plan(parent("child", Some(pin))), plan(child())];
        Script::of_plans(plans).start(json!({ "x": 1 }))
    };
    assert_eq!(pinned(&pin).status(), "running");
    let mut other = pinned(&pin.chars().rev().collect::<String>());
    assert_eq!(failure(&other).code, "child_version_mismatch");
    replays_equally(&mut other);
}

/// A workflow of the other language, which says who it is and has a secret.
fn foreign(id: &str) -> Arc<Plan> {
    let input = json!({ "type": "static", "value": id });
    let definition = json!({
        "id": id, "name": id, "version": "1",
        "nodes": [{ "id": "who", "typeId": "core.identity", "name": "Who", "inputs": { "ran": input } }],
        "edges": [], "triggers": [], "metadata": {}, "settings": {},
        "variables": [
            { "name": "x", "type": "number" },
            { "name": "greeting", "type": "string", "defaultValue": "hello" },
            { "name": "pin", "type": "string", "defaultValue": "1234", "sensitive": true },
        ],
    });
    let admitted = Plan::admit(definition, NodeTypes::default());
    Arc::new(admitted.unwrap_or_else(|problems| panic!("{problems}")))
}

#[test]
fn child_of_another_language_gives_its_outputs_and_its_variables() {
    let plans = [plan(parent("ow-child", None)), foreign("ow-child")];
    let mut script = Script::of_plans(plans).start(json!({ "x": 1 }));
    assert_eq!(script.status(), "completed");
    assert_eq!(
        state(&script),
        json!({ "x": 1, "ran": "ow-child", "greeting": "hello" })
    );
    replays_equally(&mut script);
}

#[test]
fn reference_to_a_child_is_an_id_before_it_is_a_name() {
    for (reference, ran) in [
        ("ow_child", "ow_child"),
        ("urn:awp:wf:ow_child", "ow_child"),
        ("ow-child", "ow-child"),
        ("OW Child", "ow-child"),
        ("ow.child", "ow-child"),
    ] {
        let plans = [
            plan(parent(reference, None)),
            foreign("ow_child"),
            foreign("ow-child"),
        ];
        let mut script = Script::of_plans(plans).start(json!({ "x": 1 }));
        assert_eq!(state(&script)["ran"], ran, "{reference}");
        replays_equally(&mut script);
    }
    // Without a workflow of this id, it is the name of a document.
    let plans = [plan(parent("ow_child", None)), foreign("ow-child")];
    let script = Script::of_plans(plans).start(json!({ "x": 1 }));
    assert_eq!(state(&script)["ran"], "ow-child");
}

#[test]
fn cancel_reaches_the_child() {
    let plans = [plan(parent("child", None)), plan(child())];
    let mut script = Script::of_plans(plans).start(json!({}));
    script.cancel().expect("running");
    assert_eq!((script.status(), script.status_of(1)), ("cancelled", "cancelled"));
}

fn delegated(protocol: &str) -> Value {
    let node = json!({ "id": "ask", "type": "agent_delegate", "config": {
        "agent_id": "coder", "protocol": protocol, "input_mapping": { "task": "${ .task }" },
    } });
    document(
        "delegated",
        json!({ "patch": {} }),
        &[node],
        &[("start", "ask"), ("ask", "end")],
    )
}

#[test]
fn delegate_is_parked_for_a_host_or_answered_by_the_mock() {
    let mut script = start(delegated("a2a"), json!({ "task": "mend it" }));
    let plan = script.plan(0).clone();
    let input = script
        .run(0)
        .activities(&plan)
        .next()
        .map(|(_, _, activity)| activity.input.clone());
    let input = input.expect("a worker is asked");
    assert_eq!(input["delegateInput"], json!({ "task": "mend it" }));
    script
        .outcome("ask", Ok(json!({ "patch": "p" })))
        .expect("under way");
    assert_eq!(state(&script)["patch"], "p");
    replays_equally(&mut script);

    let options = json!({ "activityExecutionMode": "in_process" });
    let plan = self::plan(delegated("a2a"));
    let mut script = Script::of_plans([plan]).start_configured(json!({ "task": "mend it" }), options.clone());
    crate::awp_history::unknown(&mut script, "ask");
    assert_eq!(state(&script)["patch"], "// mock A2A patch for: mend it");
    replays_equally(&mut script);
    for protocol in ["mcp", "sdk"] {
        let plans = [self::plan(delegated(protocol))];
        let mut script = Script::of_plans(plans).start_configured(json!({}), options.clone());
        let unknown = Failure::new("peer_unknown", "this host has none of them");
        script.outcome("ask", Err(unknown)).expect("asked");
        assert_eq!(state(&script)["protocol"], protocol);
        replays_equally(&mut script);
    }
}

#[test]
fn protocol_says_what_an_agent_is_and_its_failures_have_the_documented_codes() {
    let options = json!({ "activityExecutionMode": "in_process", "executionId": "nightly" });
    for (protocol, reach) in [
        ("a2a", AgentReach::Delegate),
        ("mcp", AgentReach::Tool),
        ("sdk", AgentReach::Embedded),
    ] {
        for (code, shown) in [
            ("remote_failed", "A2A_TASK_FAILED"),
            ("rejected_by_remote", "A2A_TASK_FAILED"),
            ("input_required_by_remote", "A2A_PROVIDER_ERROR"),
            ("external_call_failed", "A2A_PROVIDER_ERROR"),
            ("egress_refused", "A2A_PROVIDER_ERROR"),
            ("credential_missing", "A2A_CREDENTIALS_MISSING"),
            ("DELEGATE_AGENT_NOT_FOUND", "DELEGATE_AGENT_NOT_FOUND"),
            ("remote_timeout", "TIMEOUT"),
        ] {
            let plans = [plan(delegated(protocol))];
            let mut script =
                Script::of_plans(plans).start_configured(json!({ "task": "t" }), options.clone());
            let call = match &script.effects().last().expect("a call").call {
                Call::Agent(call) => (**call).clone(),
                other => panic!("{other:?}"),
            };
            // The tenant is not the default one. A tool is not told.
            let execution = match reach {
                AgentReach::Tool => "nightly",
                AgentReach::Peer | AgentReach::Delegate | AgentReach::Embedded => script.id(0).as_str(),
            };
            assert_eq!(
                (call.reach, call.correlation),
                (reach, Some(format!("{execution}:delegate:ask")))
            );
            // An agent that the host does not have is looked for under the name of the default one, too.
            let is_unknown = protocol == "a2a" && code == "DELEGATE_AGENT_NOT_FOUND";
            for _ in 0..=u8::from(is_unknown) {
                let failed = Failure::new(code, "it failed");
                script.outcome("ask", Err(failed)).expect("asked");
            }
            assert_eq!(failure(&script).code, shown, "{protocol} {code}");
            replays_equally(&mut script);
        }
    }
}

#[test]
fn non_retryable_codes_of_a_delegate_are_those_of_the_protocol() {
    let mut document = delegated("a2a");
    document["nodes"][1]["retry"] =
        json!({ "max_attempts": 2, "non_retryable_errors": ["A2A_PROVIDER_ERROR"] });
    let options = json!({ "activityExecutionMode": "in_process" });
    let mut script = Script::of_plans([plan(document)]).start_configured(json!({}), options);
    let busy = Failure {
        retryable: true,
        ..Failure::new("external_call_failed", "busy")
    };
    script.outcome("ask", Err(busy)).expect("asked");
    assert_eq!(script.status(), "failed");
}

#[test]
fn agent_is_asked_by_name_and_its_answer_is_untrusted() {
    let options = json!({ "activityExecutionMode": "in_process" });
    let plan = plan(delegated("a2a"));
    let mut script = Script::of_plans([plan]).start_configured(json!({ "task": "mend it" }), options);
    let asked = |script: &Script| match &script.effects().last().expect("a call").call {
        Call::Agent(call) => (**call).clone(),
        other => panic!("{other:?}"),
    };
    let call = asked(&script);
    assert_eq!((call.peer.as_str(), call.skill.as_deref()), ("coder", None));
    assert_eq!(call.data, Some(json!({ "task": "mend it" })));
    // The default agent is asked for the one that the host does not have.
    let unknown = Failure::new("peer_unknown", "there is no such agent");
    script.outcome("ask", Err(unknown)).expect("asked");
    let call = asked(&script);
    assert_eq!(
        (call.peer.as_str(), call.skill.as_deref()),
        ("default", Some("coder"))
    );
    let answer =
        json!({ "text": "done", "data": { "patch": "p" }, "taskId": "t1", "contentTrust": "untrusted" });
    script.outcome("ask", Ok(answer)).expect("asked");
    assert_eq!(state(&script), json!({ "task": "mend it", "patch": "p" }));
    assert!(script.run(0).holds_untrusted());
    replays_equally(&mut script);
}

#[test]
fn branch_of_a_run_goes_its_own_way_from_any_event() {
    let mut script = start(forked(json!({ "join": "all" })), json!({}));
    done(&mut script, "a");
    done(&mut script, "b");
    done(&mut script, "c");
    let n_events = script.events(0).len() as u64;
    for from in 1..=n_events {
        let branch = script.fork(0, ForkMode::Branch, from).expect("forked");
        let mut left = 10;
        while script.status_of(branch) == "running" && left > 0 {
            left -= 1;
            let plan = script.plan(branch).clone();
            let waiting = script.run(branch).activities(&plan).next();
            let Some((step, attempt, _)) = waiting else { break };
            let outcome = wopr_core::Command::Effect {
                outcome: Ok(json!({ "log": step.node })
                    .as_object()
                    .expect("an object")
                    .clone()),
                step,
                attempt,
                retry_after_ms: None,
            };
            script.tell(branch, outcome).expect("under way");
        }
        assert_eq!(script.status_of(branch), "completed", "from {from}");
        assert_eq!(
            script.run(branch).variables(),
            script.run(0).variables(),
            "from {from}"
        );
    }
}

#[test]
fn broken_documents_are_refused_with_their_problems() {
    let good = document(
        "good",
        json!({ "x": {} }),
        &[tool("work")],
        &[("start", "work"), ("work", "end")],
    );
    type Change = fn(&mut Value);
    let cases: [(&str, Change); 16] = [
        ("must NOT have additional properties", |d| {
            d["extensions"] = json!({});
        }),
        ("must have required property 'version'", |d| {
            d["document"] = json!({ "schema": "s", "name": "n" });
        }),
        // It is a document of this language all the same.
        ("must have required property 'state_schema'", |d| {
            d.as_object_mut().expect("an object").remove("state_schema");
        }),
        ("must NOT have fewer than 1 properties", |d| {
            d["state_schema"] = json!({});
        }),
        ("Unsupported reducer \"custom\"", |d| {
            d["state_schema"]["properties"]["x"]["reducer"] = json!("custom");
        }),
        ("must match exactly one schema in oneOf", |d| {
            d["nodes"][1]["type"] = json!("other");
        }),
        ("must NOT have additional properties: 'more'", |d| {
            d["nodes"][1]["more"] = json!(1);
        }),
        ("DUPLICATE_NODE_ID", |d| d["nodes"][2]["id"] = json!("work")),
        ("is no duration", |d| d["nodes"][1]["timeout"] = json!("PT1S")),
        ("must be >= 1", |d| {
            d["nodes"][1]["retry"] = json!({ "max_attempts": 0 });
        }),
        ("unknown node id \"nowhere\"", |d| {
            d["edges"][1]["target"] = json!("nowhere");
        }),
        ("exactly one outgoing edge, it has 2", |d| {
            let edges = d["edges"].as_array_mut().expect("a list");
            edges.push(json!({ "source": "work", "target": "start" }));
        }),
        ("exactly one edge from __start__", |d| {
            d["edges"][0]["source"] = json!("start");
        }),
        ("exactly one start node", |d| d["nodes"][0]["type"] = json!("end")),
        ("every_n_nodes needs n", |d| {
            d["checkpointing"] = json!({ "strategy": "every_n_nodes" });
        }),
        ("parse the filter", |d| {
            d["nodes"][2]["config"] = json!({ "output_mapping": ".a |" });
        }),
    ];
    for (expected, change) in cases {
        let mut document = good.clone();
        change(&mut document);
        let found = problems(document);
        assert!(found.contains(expected), "{expected}: {found}");
    }
    Plan::admit(good, NodeTypes::default()).expect("good");
}

#[test]
fn signature_is_no_part_of_the_definition() {
    let plain = document(
        "plain",
        json!({ "x": {} }),
        &[tool("work")],
        &[("start", "work"), ("work", "end")],
    );
    let mut signed = plain.clone();
    signed["document"]["signature"] = json!({ "alg": "EdDSA", "value": "x" });
    let stored = Plan::compile(DialectId::Awp, signed.clone(), NodeTypes::default()).expect("valid");
    assert_eq!((**plan(plain.clone())).version(), (*stored).version());

    // No keys can be configured, so no signature can be verified.
    let mut forged = plain;
    let header = "eyJhbGciOiJFZERTQSIsImtpZCI6InRlc3Qta2V5LTEifQ";
    forged["signature"] = json!({ "alg": "EdDSA", "value": format!("{header}.e30.AAAA") });
    let refused = problems(forged);
    assert!(
        refused.contains("no signing public keys are configured"),
        "{refused}"
    );
    let refused = problems(signed);
    assert!(
        refused.contains("signature.value is not a compact JWS"),
        "{refused}"
    );
}

#[test]
fn filters_of_a_document_are_bounded_together() {
    let filter = format!("[{}]", vec![".a.a.a.a.a.a.a.a.a.a"; 600].join(","));
    let names: Vec<_> = (0..20).map(|n| format!("x{n}")).collect();
    let assignments: Value = names
        .iter()
        .map(|name| (name.clone(), json!({ "jq": filter })))
        .collect::<serde_json::Map<_, _>>()
        .into();
    let document = document(
        "large",
        json!({ "x": {} }),
        &[set("many", assignments)],
        &[("start", "many"), ("many", "end")],
    );
    let refused = problems(document);
    assert!(
        refused.contains("the compiled filters of the document exceed 4194304 bytes"),
        "{refused}"
    );
    assert_eq!(refused.matches("compiled filters").count(), 1, "{refused}");
}

#[test]
fn child_whose_id_would_be_too_long_fails_its_step() {
    let started = |n_bytes: usize| {
        let options = json!({ "executionId": "e".repeat(n_bytes) });
        let plans = [plan(parent("child", None)), plan(child())];
        Script::of_plans(plans).start_configured(json!({ "x": 1 }), options)
    };
    assert_eq!(started(504).status(), "running");
    let mut script = started(505);
    let failed = failure(&script);
    assert_eq!(failed.code, "invalid_child_inputs");
    assert!(
        failed.message.contains("configurable.executionId"),
        "{}",
        failed.message
    );
    replays_equally(&mut script);
}

#[test]
fn filter_of_an_input_that_exceeds_its_work_says_so() {
    for kind in ["subworkflow", "agent_delegate"] {
        let config = match kind {
            "subworkflow" => {
                json!({ "workflow_ref": "child", "input_mapping": { "x": "${ [range(1e9)] }" } })
            }
            _ => json!({ "agent_id": "a", "protocol": "a2a", "input_mapping": { "x": "${ [range(1e9)] }" } }),
        };
        let node = json!({ "id": "sub", "type": kind, "config": config });
        let document = document(
            "spun",
            json!({ "x": {} }),
            &[node],
            &[("start", "sub"), ("sub", "end")],
        );
        let script = Script::of_plans([plan(document), plan(child())]).start(json!({}));
        assert_eq!(failure(&script).code, "work_limit_exceeded", "{kind}");
    }
}

#[test]
fn repeated_call_goes_to_the_default_agent_at_once() {
    let mut document = delegated("a2a");
    document["nodes"][1]["retry"] = json!({ "max_attempts": 2 });
    let options = json!({ "activityExecutionMode": "in_process" });
    let fail = |script: &mut Script, code: &str, retryable: bool| {
        let failure = Failure {
            retryable,
            ..Failure::new(code, "it failed")
        };
        script.outcome("ask", Err(failure)).expect("asked");
    };
    let asked = |script: &Script| match &script.effects().last().expect("a call").call {
        Call::Agent(call) => (call.peer.clone(), call.skill.clone()),
        other => panic!("{other:?}"),
    };
    let default = ("default".to_owned(), Some("coder".to_owned()));
    let retried = || {
        let plans = [plan(document.clone())];
        let mut script = Script::of_plans(plans).start_configured(json!({ "task": "t" }), options.clone());
        assert_eq!(asked(&script), ("coder".to_owned(), None));
        fail(&mut script, "peer_unknown", false);
        assert_eq!(asked(&script), default);
        fail(&mut script, "remote_unreachable", true);
        script.wait(0);
        assert_eq!(asked(&script), default);
        script
    };
    let mut script = retried();
    script
        .outcome("ask", Ok(json!({ "data": { "patch": "p" } })))
        .expect("asked");
    assert_eq!(state(&script)["patch"], "p");
    replays_equally(&mut script);

    let mut script = retried();
    fail(&mut script, "peer_unknown", false);
    assert_eq!(state(&script)["patch"], "// mock A2A patch for: t");
    replays_equally(&mut script);
}

#[test]
fn failure_of_a_worker_is_never_answered_by_the_mock() {
    let mut script = start(delegated("a2a"), json!({ "task": "t" }));
    let unknown = Failure::new("peer_unknown", "there is no such agent");
    script.outcome("ask", Err(unknown)).expect("asked");
    let failed = failure(&script);
    assert_eq!(
        (failed.code.as_str(), failed.reason.as_deref()),
        ("peer_unknown", Some("delegate_failed"))
    );
}
