//! Control flow between nodes: trigger rules, conditions, joins.

use expect_test::{Expect, expect};
use serde_json::{Value, json};
use wopr_testkit::{Script, Workflow};

fn check(workflow: &Workflow, expected: &Expect) {
    expected.assert_eq(&Script::started(workflow).news());
}

#[test]
fn run_of_pure_nodes_completes_in_one_decision() {
    check(
        &Workflow::new("w").noops("a b c").edges("a -> b, b -> c"),
        &expect![[r#"
            0 run.started
            1 node.started a
            2 node.completed a
            3 node.started b
            4 node.completed b
            5 node.started c
            6 node.completed c
            7 run.completed"#]],
    );
}

const ENDS: [&str; 4] = ["success", "failed", "skipped", "untaken"];
const RULES: [&str; 5] = [
    "all_success",
    "any_success",
    "all_complete",
    "none_failed",
    "any_failed",
];

/// Adds a source that ends in one of [`ENDS`], and its edge to `target`.
fn with_source(workflow: Workflow, id: &str, end: &str, rule: &str) -> Workflow {
    let edge = json!({ "sourceNodeId": id, "targetNodeId": "target", "triggerRule": rule });
    let workflow = match end {
        "success" => workflow.noops(id),
        "failed" => {
            let catch = format!("catch-{id}");
            let workflow = workflow.node(id, "core.fail", json!({})).noops(&catch);
            workflow.edges(&format!("{id} -> {catch} any_failed"))
        }
        "skipped" => {
            workflow.raw_node(json!({ "id": id, "typeId": "core.noop", "name": id, "disabled": true }))
        }
        "untaken" => {
            let mut edge = edge;
            edge["condition"] = json!({ "type": "expression", "expression": "false" });
            return workflow.noops(id).raw_edge(edge);
        }
        other => panic!("{other}"),
    };
    workflow.raw_edge(edge)
}

/// `+` if the target runs, `-` if it is skipped, `!` if the run fails first.
fn outcome(workflow: &Workflow) -> char {
    let script = Script::started(workflow);
    let log = script.log(0);
    match (
        log.contains("node.completed target"),
        log.contains("node.skipped target trigger-not-met"),
    ) {
        (true, false) => '+',
        (false, true) => '-',
        (false, false) => '!',
        (true, true) => panic!("{log}"),
    }
}

#[test]
fn trigger_rules_over_one_source() {
    let mut table = String::new();
    for rule in RULES {
        let row = ENDS.map(|end| outcome(&with_source(Workflow::new("w").noops("target"), "a", end, rule)));
        table += &format!("{rule:13} {}\n", row.iter().collect::<String>());
    }
    expect![[r#"
        all_success   +---
        any_success   +---
        all_complete  +++-
        none_failed   +-+-
        any_failed    -+--
    "#]]
    .assert_eq(&table);
}

#[test]
fn trigger_rules_over_two_sources() {
    let mut table = String::new();
    for rule in RULES {
        table += rule;
        for first in ENDS {
            let row = ENDS.map(|second| {
                let workflow = with_source(Workflow::new("w").noops("target"), "a", first, rule);
                outcome(&with_source(workflow, "b", second, rule))
            });
            table += &format!("\n  {first:8} {}", row.iter().collect::<String>());
        }
        table += "\n";
    }
    expect![[r#"
        all_success
          success  +---
          failed   ----
          skipped  ----
          untaken  ----
        any_success
          success  ++++
          failed   +---
          skipped  +---
          untaken  +---
        all_complete
          success  ++++
          failed   ++++
          skipped  ++++
          untaken  +++-
        none_failed
          success  +-++
          failed   ----
          skipped  +-++
          untaken  +-+-
        any_failed
          success  -+--
          failed   ++++
          skipped  -+--
          untaken  -+--
    "#]]
    .assert_eq(&table);
}

#[test]
fn edge_rules_of_one_target_form_an_and_group_and_an_or_group() {
    let run = |ends: [&str; 3]| {
        let workflow = Workflow::new("w").noops("target");
        let workflow = with_source(workflow, "a", ends[0], "all_success");
        let workflow = with_source(workflow, "b", ends[1], "any_success");
        outcome(&with_source(workflow, "c", ends[2], "any_success"))
    };
    assert_eq!(run(["success", "success", "failed"]), '+');
    assert_eq!(run(["success", "failed", "success"]), '+');
    assert_eq!(run(["success", "failed", "skipped"]), '-');
    assert_eq!(run(["failed", "success", "success"]), '-');
}

#[test]
fn conditions_by_operator() {
    let taken = |condition: Value| {
        let workflow = Workflow::new("w")
            .wired(
                "a",
                "core.noop",
                json!({}),
                json!({
                    "n": { "type": "static", "value": 3 },
                    "text": { "type": "static", "value": "hello world" },
                    "list": { "type": "static", "value": [1, "two", { "three": 3 }] },
                    "empty": { "type": "static", "value": "" },
                    "flag": { "type": "static", "value": true },
                }),
            )
            .noops("target")
            .edge_if("a", "target", condition);
        outcome(&workflow) == '+'
    };
    let mut table = String::new();
    for (operator, left, right) in [
        ("equals", "output.n", json!(3)),
        ("equals", "output.n", json!(3.0)),
        ("equals", "output.n", json!("3")),
        ("equals", "status", json!("completed")),
        ("equals", "output.missing.deep", json!(null)),
        ("notEquals", "output.n", json!(4)),
        ("notEquals", "output.n", json!(3)),
        ("contains", "output.text", json!("lo wo")),
        ("contains", "output.text", json!(1)),
        ("contains", "output.list", json!("two")),
        ("contains", "output.list", json!({ "three": 3.0 })),
        ("contains", "output.list", json!({ "three": 3 })),
        ("contains", "output", json!("flag")),
        ("contains", "output.n", json!(3)),
        ("regex", "output.text", json!("^hello")),
        ("regex", "output.text", json!("^world")),
        ("regex", "output.n", json!("3")),
        ("truthy", "output.flag", Value::Null),
        ("truthy", "output.empty", Value::Null),
        ("truthy", "output.missing", Value::Null),
        ("falsy", "output.empty", Value::Null),
        ("falsy", "output.list", Value::Null),
    ] {
        let is_taken = taken(json!({ "type": operator, "left": left, "right": right }));
        table += &format!("{is_taken:5} {left} {operator} {right}\n");
    }
    for expression in [
        "output.n > 2 and output.flag",
        "{{ output.n > 3 }}",
        "outputs.text == 'hello world'",
        "nodes.a.n == 3",
        "variables.a.n == 3 and a.n == 3",
        "1 / 0",
        "output.missing",
    ] {
        let is_taken = taken(json!({ "expression": expression }));
        table += &format!("{is_taken:5} {expression}\n");
    }
    expect![[r#"
        true  output.n equals 3
        true  output.n equals 3.0
        false output.n equals "3"
        true  status equals "completed"
        true  output.missing.deep equals null
        true  output.n notEquals 4
        false output.n notEquals 3
        true  output.text contains "lo wo"
        false output.text contains 1
        true  output.list contains "two"
        false output.list contains {"three":3.0}
        true  output.list contains {"three":3}
        true  output contains "flag"
        false output.n contains 3
        true  output.text regex "^hello"
        false output.text regex "^world"
        false output.n regex "3"
        true  output.flag truthy null
        false output.empty truthy null
        false output.missing truthy null
        true  output.empty falsy null
        false output.list falsy null
        true  output.n > 2 and output.flag
        false {{ output.n > 3 }}
        true  outputs.text == 'hello world'
        true  nodes.a.n == 3
        true  variables.a.n == 3 and a.n == 3
        false 1 / 0
        false output.missing
    "#]]
    .assert_eq(&table);
}

#[test]
fn condition_can_read_a_failed_source() {
    let workflow = Workflow::new("w")
        .node("a", "core.fail", json!({ "code": "quota", "message": "no more" }))
        .noops("wait give-up")
        .raw_edge(json!({
            "sourceNodeId": "a", "targetNodeId": "wait", "triggerRule": "any_failed",
            "condition": { "type": "equals", "left": "output.error.code", "right": "quota" },
        }))
        .raw_edge(json!({
            "sourceNodeId": "a", "targetNodeId": "give-up", "triggerRule": "any_failed",
            "condition": { "type": "notEquals", "left": "output.error.code", "right": "quota" },
        }));
    check(
        &workflow,
        &expect![[r#"
            0 run.started
            1 node.started a
            2 node.failed a quota: no more untaken [1]
            3 node.started wait
            4 node.completed wait
            5 node.skipped give-up trigger-not-met
            6 run.completed"#]],
    );
}

#[test]
fn failure_with_an_untaken_handler_edge_fails_the_run() {
    let workflow = Workflow::new("w")
        .node("a", "core.fail", json!({}))
        .noops("catch")
        .raw_edge(json!({
            "sourceNodeId": "a", "targetNodeId": "catch", "triggerRule": "any_failed",
            "condition": { "expression": "false" },
        }));
    check(
        &workflow,
        &expect![[r#"
        0 run.started
        1 node.started a
        2 node.failed a conformance_test_failure: Intentional conformance failure untaken [0]
        3 run.failed conformance_test_failure: Intentional conformance failure in a"#]],
    );
}

#[test]
fn diamond_joins_once() {
    let workflow = Workflow::new("w")
        .noops("a b c d")
        .edges("a -> b, a -> c, b -> d, c -> d");
    check(
        &workflow,
        &expect![[r#"
        0 run.started
        1 node.started a
        2 node.completed a
        3 node.started b
        4 node.completed b
        5 node.started c
        6 node.completed c
        7 node.started d
        8 node.completed d
        9 run.completed"#]],
    );
}

#[test]
fn or_join_starts_once_for_all_its_sources() {
    let workflow = Workflow::new("w")
        .noops("a")
        .delay("slow", 10)
        .noops("join end")
        .edges("a -> join any_success, slow -> join any_success, join -> end");
    let mut script = Script::started(&workflow);
    script.wait(10);
    expect![[r#"
        0 run.started
        1 node.started a
        2 node.completed a
        3 node.started slow
        4 node.started join
        5 node.completed join
        6 node.started end
        7 node.completed end
        8 node.completed slow {"waitedMs":10}
        9 run.completed"#]]
    .assert_eq(&script.news());
}

#[test]
fn skips_propagate_until_a_live_path_joins() {
    let workflow = Workflow::new("w")
        .noops("a b c d e")
        .edge_if("a", "b", json!({ "expression": "false" }))
        .edges("b -> c, a -> d, c -> e none_failed, d -> e none_failed");
    check(
        &workflow,
        &expect![[r#"
        0 run.started
        1 node.started a
        2 node.completed a untaken [0]
        3 node.skipped b trigger-not-met
        4 node.started d
        5 node.completed d
        6 node.skipped c trigger-not-met
        7 node.started e
        8 node.completed e
        9 run.completed"#]],
    );
}

#[test]
fn disabled_node_is_skipped() {
    let workflow = Workflow::new("w")
        .raw_node(json!({ "id": "off", "typeId": "core.noop", "name": "off", "disabled": true }))
        .noops("after anyway")
        .edges("off -> after, off -> anyway all_complete");
    check(
        &workflow,
        &expect![[r#"
        0 run.started
        1 node.skipped off disabled
        2 node.skipped after trigger-not-met
        3 node.started anyway
        4 node.completed anyway
        5 run.completed"#]],
    );
}

#[test]
fn outputs_of_several_end_nodes_are_kept_apart() {
    let port = |value: &str| json!({ "x": { "type": "static", "value": value } });
    let workflow = Workflow::new("w")
        .wired("a", "core.identity", json!({}), port("one"))
        .wired("b", "core.identity", json!({}), port("two"));
    check(
        &workflow,
        &expect![[r#"
        0 run.started
        1 node.started a
        2 node.completed a {"x":"one"}
        3 node.started b
        4 node.completed b {"x":"two"}
        5 run.completed {"a":{"x":"one"},"b":{"x":"two"}}"#]],
    );
}

#[test]
fn parallel_edges_are_evaluated_separately() {
    let workflow = Workflow::new("w")
        .noops("a b")
        .edge_if("a", "b", json!({ "expression": "false" }))
        .edges("a -> b any_success");
    check(
        &workflow,
        &expect![[r#"
        0 run.started
        1 node.started a
        2 node.completed a untaken [0]
        3 node.skipped b trigger-not-met
        4 run.completed"#]],
    );
}

#[test]
fn long_chain_does_not_overflow_the_stack_or_a_decision() {
    let ids: Vec<_> = (0..2_000).map(|n| format!("n{n}")).collect();
    let edges: Vec<_> = ids
        .windows(2)
        .map(|pair| format!("{} -> {}", pair[0], pair[1]))
        .collect();
    let workflow = Workflow::new("w").noops(&ids.join(" ")).edges(&edges.join(","));
    let mut script = Script::started(&workflow);
    assert_eq!(script.status(), "running");
    let mut decisions = 1;
    while script.next_timer().is_some() {
        let at = script.events(0).len();
        script.fire(wopr_core::Timer::Continue).expect("stands");
        let n = script.events(0).len() - at;
        assert!(n <= wopr_core::MAX_EVENTS + 3, "{n} events");
        decisions += 1;
    }
    assert_eq!(
        (script.status(), script.events(0).len(), decisions),
        ("completed", 4_002, 8)
    );
}

#[test]
fn time_never_decreases_within_a_log() {
    let mut script = Script::started(&Workflow::new("w").gate("gate"));
    script.set_back(500);
    script.answer("gate", json!({ "approve": true })).expect("open");
    let times: Vec<_> = script
        .events(0)
        .iter()
        .map(|recorded| recorded.at.millis())
        .collect();
    assert!(times.is_sorted(), "{times:?}");
}

/// The failures of a run's nodes and of the run, as its log tells them.
fn failures(script: &Script) -> Vec<String> {
    let log = script.log(0);
    let failed = log.lines().filter(|line| line.contains(".failed"));
    failed
        .map(|line| line.split_once(' ').map_or(line, |(_, rest)| rest).to_owned())
        .collect()
}

fn expression(source: &str) -> Value {
    json!({ "type": "expression", "expression": source })
}

#[test]
fn a_condition_whose_evaluation_fails_fails_its_source() {
    let left = json!({ "type": "equals", "left": "n / z", "right": 1 });
    for condition in [
        expression("n / z > 100"),
        expression("s * 2"),
        expression("'a' in n"),
        expression("n % z"),
        expression("s | number"),
        expression("unset / 2 > 1"),
        left,
    ] {
        let workflow = Workflow::new("w")
            .noops("a b")
            .edge_if("a", "b", condition.clone());
        let script = Script::of(&[&workflow]).start(json!({ "n": 5, "s": "x", "z": 0 }));
        let failed = failures(&script);
        let named = "expression_failed: the condition of the edge from 'a' to 'b' failed: ";
        assert!(
            failed[0].contains(&format!("node.failed a {named}")),
            "{condition} {failed:?}"
        );
        assert_eq!(
            (failed.len(), script.status()),
            (2, "failed"),
            "{condition} {failed:?}"
        );
    }
    // A condition on something undefined does not hold.
    for condition in [
        expression("unset > 3"),
        expression("unset.deep.er == 'x'"),
        expression("'a' in unset"),
        json!({ "type": "equals", "left": "unset.deep", "right": 1 }),
        json!({ "type": "truthy", "left": "unset" }),
    ] {
        let workflow = Workflow::new("w")
            .noops("a b")
            .edge_if("a", "b", condition.clone());
        let script = Script::of(&[&workflow]).start(json!({}));
        let log = script.log(0);
        assert_eq!(script.status(), "completed", "{condition} {log}");
        assert!(log.contains("node.skipped b"), "{condition} {log}");
    }
}

#[test]
fn only_conditions_that_decide_about_an_edge_fail_its_source() {
    let broken = expression("output.total / 2 > 1");
    let edge = |to: &str, rule: &str, condition: Option<&Value>| {
        let mut edge = json!({ "sourceNodeId": "a", "targetNodeId": to, "triggerRule": rule });
        if let Some(condition) = condition {
            edge["condition"] = condition.clone();
        }
        edge
    };
    // An edge for failures does not matter where the node completes.
    let completes = Workflow::new("w")
        .noops("a b c")
        .raw_edge(edge("b", "any_failed", Some(&broken)))
        .raw_edge(edge("c", "all_success", None));
    let script = Script::started(&completes);
    assert_eq!(script.status(), "completed", "{}", script.log(0));
    // Nor does one for successes where it fails: the failure stays the node's own.
    let failing = Workflow::new("w")
        .node("a", "core.fail", json!({ "code": "own" }))
        .noops("b c");
    let own = failing.clone().raw_edge(edge("b", "all_success", Some(&broken)));
    let script = Script::started(&own);
    assert!(
        failures(&script)[0].contains("node.failed a own"),
        "{}",
        script.log(0)
    );
    // An edge for failures that cannot be decided about is named, and others handle the failure.
    let both = failing
        .raw_edge(edge("b", "any_failed", Some(&broken)))
        .raw_edge(edge("c", "all_complete", None));
    let script = Script::started(&both);
    let failed = failures(&script);
    assert_eq!(
        (script.status(), failed.len()),
        ("completed", 1),
        "{}",
        script.log(0)
    );
    assert!(
        failed[0].contains("from 'a' to 'b'") && failed[0].contains("had failed with own"),
        "{failed:?}"
    );
    // So they do if the condition itself is what failed.
    let rescued = Workflow::new("w")
        .noops("a b c")
        .raw_edge(edge("b", "all_success", Some(&broken)))
        .raw_edge(edge("c", "any_failed", None));
    let script = Script::started(&rescued);
    assert_eq!(script.status(), "completed", "{}", script.log(0));
    assert!(script.log(0).contains("node.started c"), "{}", script.log(0));
}
