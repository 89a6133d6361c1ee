//! The work of one decision is limited, whatever the definition and the run.

use std::sync::Arc;

use serde_json::{Value, json};
use wopr_core::{
    Catalog, Command, Decision, Entropy, Input, MAX_EDGES, MAX_EVENTS, Refusal, Run, RunId, Startable, Timer,
    Timestamp, TooMuchWork, WorkflowId, decide, decide_counted, decide_within,
};
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
fn template_of_240_sorts_fails_its_node() {
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

#[derive(Debug)]
struct Nothing;

impl Catalog for Nothing {
    fn current(&self, _: &WorkflowId) -> Option<Arc<dyn Startable>> {
        None
    }
}

/// Fires `continue` timers until the run stops. Returns the number of events of each decision.
fn decisions(workflow: &Workflow) -> (Script, Vec<usize>) {
    let mut script = Script::started(workflow);
    let mut recorded = vec![script.events(0).len()];
    while script.next_timer().is_some() {
        let before = script.events(0).len();
        script.fire(Timer::Continue).expect("stands");
        recorded.push(script.events(0).len() - before);
    }
    (script, recorded)
}

#[test]
fn parallel_edges_are_evaluated_once_and_charged() {
    let edge = |n: usize, source: &str, target: &str| json!({ "id": format!("e{n}"), "sourceNodeId": source, "targetNodeId": target });
    let mut workflow = Workflow::new("w").noops("a b");
    for n in 0..MAX_EDGES - 1 {
        workflow = workflow.raw_edge(edge(n, "a", "b"));
    }
    workflow = workflow.raw_edge(edge(MAX_EDGES, "b", "a"));
    let plan = workflow.plan();
    let id = RunId::from_parts(Timestamp::from_millis(0), [7; 10]);
    let input = Input {
        now: Timestamp::from_millis(1_000),
        entropy: Entropy([7; 16]),
        run: &id,
        catalog: &Nothing,
    };
    let start = Command::Start(Box::new(Script::start_run(json!({}))));
    let (decision, work) = decide_counted(Run::default(), &plan, start, &input).expect("a start");
    // Each turn evaluates all edges, so only a few turns fit in a decision.
    let n_events = decision.events.len();
    assert!((100..400).contains(&n_events), "{n_events} events");
    assert!(work > 1_000_000, "{work} units");
    let goes_on = |(timer, _): &(Timer, Timestamp)| *timer == Timer::Continue;
    assert!(decision.work.timers_set.iter().any(goes_on));
}

#[test]
fn skipped_and_disabled_nodes_count_as_events_of_a_decision() {
    let n = 1_500;
    let mut skips = Workflow::new("w").noops("a");
    let mut disabled = Workflow::new("w");
    for n in 0..n {
        let id = format!("n{n}");
        skips = skips.noops(&id).edges(&format!("a -> {id} any_failed"));
        disabled = disabled.raw_node(json!({
            "id": id, "typeId": "core.noop", "name": "n", "config": {}, "disabled": true,
        }));
    }
    for (workflow, others) in [(skips, 4), (disabled, 2)] {
        let (script, recorded) = decisions(&workflow);
        assert_eq!(script.status(), "completed");
        assert_eq!(recorded.iter().sum::<usize>(), n + others);
        assert!(recorded.iter().all(|n| *n <= MAX_EVENTS + 3), "{recorded:?}");
    }
}

#[test]
fn sorts_in_many_nodes_continue_in_further_decisions() {
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
fn thousand_edges_that_compare_large_lists_fail_the_node() {
    let list: Value = (0..40_000).collect();
    let mut workflow = Workflow::new("w").noops("a b");
    for _ in 0..50 {
        workflow = workflow.raw_edge(json!({
            "sourceNodeId": "a", "targetNodeId": "b",
            "condition": { "type": "notEquals", "left": "inputs.x", "right": list.as_array().map(|l| &l[..1_000]) },
        }));
    }
    // Lists of different length compare as unequal immediately.
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
fn node_that_repeatedly_copies_a_large_variable_fails() {
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
fn too_expensive_condition_is_handled_by_an_unconditional_edge() {
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

/// Each child's defaults are validated against its schema before it is created.
#[test]
fn checks_of_many_children_continue_in_further_decisions() {
    const CHILDREN: usize = 100;
    let mut branches = vec![json!({ "required": ["x"] }); 3_000];
    branches.push(json!({}));
    let child = Workflow::new("child")
        .noops("a")
        .set("configurableSchema", json!({ "anyOf": branches }));
    let mut parent = Workflow::new("parent");
    for n in 0..CHILDREN {
        parent = parent.node(
            &format!("call{n}"),
            "core.subWorkflow",
            json!({ "workflowId": "child" }),
        );
    }
    let mut script = Script::of(&[&parent, &child]);
    script.hold_mail();
    script.try_start(Script::start_run(json!({}))).expect("it starts");
    let n_children = script.run(0).children.len();
    assert!((1..CHILDREN).contains(&n_children), "{n_children}");
    script.deliver();
    while script.next_timer().is_some() {
        script.wait(0);
    }
    assert_eq!((script.status(), script.n_runs()), ("completed", CHILDREN + 1));
}

/// Starts a run with a limit on work, and without one.
fn started_within(
    units: u64,
    workflow: &Workflow,
) -> (Option<Result<Decision, Refusal>>, Result<Decision, Refusal>) {
    let id = RunId::from_parts(Timestamp::from_millis(0), [7; 10]);
    let input = Input {
        now: Timestamp::from_millis(1_000),
        entropy: Entropy([7; 16]),
        run: &id,
        catalog: &Nothing,
    };
    let plan = workflow.plan();
    let list: Value = (0..5_000).collect();
    let start = Box::new(Script::start_run(json!({ "x": list, "y": list })));
    let command = Command::Start(start.clone());
    let within = decide_within(units, Run::default(), &plan, command.clone(), &input);
    if let Err(TooMuchWork { start: given_back }) = &within {
        assert_eq!(given_back.as_ref(), Some(&start), "for another attempt");
    }
    (within.ok(), decide(Run::default(), &plan, command, &input))
}

/// An evaluation, conditions, a node that copies, a handled failure, a loop, and a rejected start.
fn of_all_kinds() -> Vec<(&'static str, Workflow)> {
    let compare = ["inputs.x == inputs.y"; 3].join(" and ");
    let condition = json!({ "type": "expression", "expression": compare });
    let set = json!({ "name": "z", "expression": compare });
    let port = json!({ "type": "variable", "variableName": "x" });
    let mut schema = vec![json!({ "required": ["a"] }); 2_000];
    schema.push(json!({ "required": ["b"] }));
    vec![
        (
            "an evaluation",
            Workflow::new("w").node("a", "core.setVariable", set.clone()),
        ),
        (
            "a condition",
            Workflow::new("w").noops("a b").edge_if("a", "b", condition),
        ),
        (
            "copies",
            Workflow::new("w").wired("a", "core.noop", json!({}), json!({ "p": port, "q": port })),
        ),
        (
            "a failure that is handled",
            Workflow::new("w")
                .node("a", "core.setVariable", set)
                .noops("b")
                .raw_edge(json!({ "sourceNodeId": "a", "targetNodeId": "b", "triggerRule": "all_complete" })),
        ),
        ("a loop", Workflow::new("w").noops("a b").edges("a -> b, b -> a")),
        (
            "a refusal",
            Workflow::new("w")
                .noops("a")
                .set("configurableSchema", json!({ "anyOf": schema })),
        ),
    ]
}

#[test]
fn bounded_decision_equals_the_unbounded_one_or_is_not_made() {
    for (what, workflow) in of_all_kinds() {
        let mut n_made = 0;
        for units in (0..30).map(|n| n * 10_000) {
            let (within, without) = started_within(units, &workflow);
            if let Some(within) = within {
                assert_eq!(within, without, "{what} within {units}");
                n_made += 1;
            }
        }
        assert!((1..30).contains(&n_made), "{what}: {n_made}");
    }
}
