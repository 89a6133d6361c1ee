//! Checks that a catalog counts about as much memory for a compiled workflow as the workflow takes.
//!
//! The workflows here are those that take most for the length of their texts, and ordinary ones. The counters are
//! those of the process, of which nextest gives each test its own.

#![expect(clippy::needless_pass_by_value, reason = "a test, which makes documents")]

use std::hint::black_box;

use mimalloc::MiMalloc;
use peakmem_alloc::{PeakMemAlloc, PeakMemAllocTrait as _};
use serde_json::{Map, Value, json};
use wopr_core::{NodeTypes, Plan, parsed_size};

#[global_allocator]
static MEMORY: PeakMemAlloc<MiMalloc> = PeakMemAlloc::new(MiMalloc);

/// More than any workflow here takes.
const BLOCK: usize = 1 << 30;

fn workflow(nodes: Vec<Value>, edges: Vec<Value>) -> Value {
    json!({
        "id": "w", "name": "w", "version": "1", "nodes": nodes, "edges": edges, "triggers": [], "variables": [],
        "metadata": {}, "settings": {},
    })
}

fn node(n: usize, type_id: &str, config: Value) -> Value {
    json!({ "id": format!("n{n}"), "typeId": type_id, "name": "n", "config": config })
}

fn templates(source: &str) -> Value {
    let nodes = (0..4).map(|n| node(n, "core.template", json!({ "template": source })));
    workflow(nodes.collect(), Vec::new())
}

fn noops(n: usize, edges: Vec<Value>) -> Value {
    workflow((0..n).map(|n| node(n, "core.noop", json!({}))).collect(), edges)
}

fn cases() -> Vec<(&'static str, Value)> {
    let edge = |n: usize, condition: Option<Value>| {
        let (source, target) = (format!("n{}", n % 199), format!("n{}", n % 199 + 1));
        let mut edge = json!({ "id": format!("e{n}"), "sourceNodeId": source, "targetNodeId": target });
        if let Some(condition) = condition {
            edge["condition"] = condition;
        }
        edge
    };
    let condition = json!({ "type": "expression", "expression": "a and ".repeat(60) + "x" });
    let port = json!({ "type": "expression", "expression": vec!["a.b.c"; 640].join("+") });
    let ports = (0..20).map(|n| {
        let mut node = node(n, "core.noop", json!({}));
        node["inputs"] = json!({ "p": port });
        node
    });
    let properties: Map<_, _> = (0..1_300)
        .map(|n| (format!("p{n}"), json!({ "minLength": 1 })))
        .collect();
    let question =
        json!({ "id": "q", "question": "?", "schema": { "type": "object", "properties": properties } });
    let gate = node(0, "core.clarificationGate", json!({ "questions": [question] }));
    let texts = (0..200).map(|n| {
        let text = "Dear {{ inputs.name }}, your order {{ variables.order.id }} is on its way. ".repeat(3);
        node(n, "core.template", json!({ "template": text }))
    });
    let pattern = json!({ "type": "regex", "left": "a", "right": "[a-z]{2000}" });
    vec![
        (
            "blocks",
            templates(&format!(
                "{}x{}",
                "{% if a %}".repeat(49),
                "{% endif %}".repeat(49)
            )),
        ),
        ("operators", templates(&"{{ x.y.z and (a or b) }}".repeat(1_000))),
        ("names", templates(&"{{a}}".repeat(4_000))),
        ("paths", templates(&"{{a.b.c.d.e.f}}".repeat(1_100))),
        ("lists", templates(&"{{[a,b,c,d]}}".repeat(900))),
        ("numbers", templates(&"{{1}}".repeat(4_000))),
        ("filters", templates(&"{{a|d|d|d|d|d|d}}".repeat(1_000))),
        ("calls", templates(&"{{a|d(1)|d(b=1)}}".repeat(700))),
        ("slices", templates(&"{{a[1:2][:3]}}".repeat(700))),
        ("loops", templates(&"{% for a in b %}{% endfor %}".repeat(500))),
        ("ports", workflow(ports.collect(), Vec::new())),
        ("schema", workflow(vec![gate], Vec::new())),
        (
            "conditions",
            noops(200, (0..500).map(|n| edge(n, Some(condition.clone()))).collect()),
        ),
        (
            "patterns",
            noops(200, (0..9).map(|n| edge(n, Some(pattern.clone()))).collect()),
        ),
        ("edges", noops(200, (0..5_000).map(|n| edge(n, None)).collect())),
        ("nodes", noops(1_500, Vec::new())),
        ("static text", {
            let value = json!({ "name": "a", "value": "x".repeat(200_000) });
            workflow(vec![node(0, "core.setVariable", value)], Vec::new())
        }),
        ("ordinary", workflow(texts.collect(), Vec::new())),
    ]
}

/// Returns the number of bytes that dropping a value frees.
fn freed<T>(value: T) -> usize {
    MEMORY.reset_peak_memory();
    drop(value);
    // The counter is below zero by what was freed, and shows no such number.
    drop(black_box(Vec::<u8>::with_capacity(BLOCK)));
    BLOCK - MEMORY.get_peak_memory()
}

#[test]
fn compiled_workflows_are_counted_with_what_they_take() {
    let mut wrong = Vec::new();
    for (name, document) in cases() {
        let text = document.to_string();
        drop(document);
        let plan = Plan::admit(serde_json::from_str(&text).unwrap(), NodeTypes::default());
        let plan = plan.unwrap_or_else(|problems| panic!("{name}: {problems}"));
        let counted = parsed_size(text.as_bytes()) + plan.extra_bytes();
        let taken = freed(plan);
        println!(
            "{name}: {} bytes of text, {taken} taken, {counted} counted",
            text.len()
        );
        if counted < taken || counted > 3 * taken {
            wrong.push(format!("{name}: {taken} taken, {counted} counted"));
        }
        if name == "paths" {
            assert!(taken < 45 * text.len(), "{taken} bytes for {}", text.len());
        }
    }
    assert!(wrong.is_empty(), "{wrong:#?}");
}

#[test]
fn a_workflow_whose_templates_take_too_much_is_refused() {
    let nodes = (0..200).map(|n| node(n, "core.template", json!({ "template": "{{a}}".repeat(4_000) })));
    let refused = Plan::admit(workflow(nodes.collect(), Vec::new()), NodeTypes::default());
    let problems = refused.unwrap_err().to_string();
    assert!(
        problems.contains("expressions, templates and schemas"),
        "{problems}"
    );
}
