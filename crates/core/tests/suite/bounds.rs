//! One decision does a bounded amount of work, whatever the definition and the run.

use serde_json::{Value, json};
use wopr_testkit::{Script, Workflow};

fn started(workflow: &Workflow, inputs: Value) -> Script {
    let mut script = Script::of(&[workflow]).start(inputs);
    for _ in 0..100 {
        if script.run(0).status.is_terminal() {
            return script;
        }
        script.wait(0);
    }
    script
}

fn objects(n: usize) -> Value {
    (0..n)
        .map(|n| json!({ "k": format!("key {}", n * 7919 % 10_000), "n": n }))
        .collect()
}

#[test]
fn a_template_of_240_sorts_fails_its_node() {
    let template = "{{ x|sort|length }}".repeat(240);
    let workflow = Workflow::new("w").node("n", "core.template", json!({ "template": template }));
    let script = started(&workflow, json!({ "x": objects(10_000) }));
    assert_eq!(script.status(), "failed");
    assert!(
        script.log(0).contains("node.failed n work_limit_exceeded"),
        "{}",
        script.log(0)
    );
}

#[test]
fn sorts_in_many_nodes_go_on_in_other_decisions() {
    let mut workflow = Workflow::new("w");
    for n in 0..80 {
        workflow = workflow.node(
            &format!("n{n}"),
            "core.setVariable",
            json!({ "name": "y", "expression": "x|sort(attribute='k')|length" }),
        );
    }
    let script = started(&workflow, json!({ "x": objects(1_000) }));
    assert_eq!(script.status(), "completed");
}

#[test]
fn a_thousand_edges_that_compare_large_lists_fail_the_node() {
    let list: Value = (0..40_000).collect();
    let mut workflow = Workflow::new("w").noops("a b");
    for _ in 0..50 {
        workflow = workflow.raw_edge(json!({
            "sourceNodeId": "a", "targetNodeId": "b",
            "condition": { "type": "notEquals", "left": "inputs.x", "right": list.as_array().map(|l| &l[..1_000]) },
        }));
    }
    // A list of another length is told apart at once.
    let script = started(&workflow, json!({ "x": list }));
    assert_eq!(script.status(), "completed");
    let mut workflow = Workflow::new("w").noops("a b");
    for _ in 0..1_000 {
        workflow = workflow.raw_edge(json!({
            "sourceNodeId": "a", "targetNodeId": "b", "triggerRule": "any_success",
            "condition": { "type": "expression", "expression": "inputs.x == inputs.y" },
        }));
    }
    let script = started(&workflow, json!({ "x": list, "y": list }));
    assert_eq!(script.status(), "failed");
    assert!(script.log(0).contains("work_limit_exceeded"), "{}", script.log(0));
}

#[test]
fn a_node_that_copies_a_large_variable_often_fails() {
    let ports: serde_json::Map<_, _> = (0..1_000)
        .map(|n| {
            (
                format!("p{n}"),
                json!({ "type": "variable", "variableName": "x" }),
            )
        })
        .collect();
    let workflow = Workflow::new("w").wired("n", "core.noop", json!({}), Value::Object(ports));
    let script = started(&workflow, json!({ "x": "x".repeat(900_000) }));
    assert_eq!(script.status(), "failed");
    assert!(
        script.log(0).contains("node.failed n work_limit_exceeded"),
        "{}",
        script.log(0)
    );
}

#[test]
fn a_condition_that_is_too_much_work_is_handled_by_an_edge_without_one() {
    let list: Value = (0..40_000).collect();
    let heavy =
        json!({ "type": "expression", "expression": vec!["inputs.x == inputs.y"; 100].join(" and ") });
    let workflow = Workflow::new("w")
        .noops("a b c")
        .raw_edge(json!({ "sourceNodeId": "a", "targetNodeId": "b", "condition": heavy }))
        .raw_edge(json!({ "sourceNodeId": "a", "targetNodeId": "c", "triggerRule": "any_failed" }));
    let script = started(&workflow, json!({ "x": list, "y": list }));
    assert_eq!(script.status(), "completed");
    let log = script.log(0);
    assert!(
        log.contains("node.failed a work_limit_exceeded") && log.contains("node.started c"),
        "{log}"
    );
}
