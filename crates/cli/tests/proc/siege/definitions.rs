//! Hostile definitions: expensive calls, many child runs, and documents that are expensive to parse or
//! decide.

use serde_json::{Value, json};

fn workflow(id: &str, nodes: &[Value], edges: &[Value]) -> Value {
    json!({
        "id": id, "name": id, "version": "1", "nodes": nodes, "edges": edges,
        "triggers": [{ "id": "manual", "type": "manual" }],
        "variables": [{ "name": "items", "type": "array" }, { "name": "text", "type": "string" }],
        "metadata": {}, "settings": {},
    })
}

fn node(id: &str, kind: &str, config: &Value) -> Value {
    json!({
        "id": id, "typeId": kind, "name": id, "position": { "x": 0, "y": 0 }, "config": config, "inputs": {},
    })
}

fn template(id: &str, text: impl Into<String>) -> Value {
    let text: String = text.into();
    workflow(
        id,
        &[node("one", "core.template", &json!({ "template": text }))],
        &[],
    )
}

/// Workflows that call a peer many times at once, which responds with large documents or slowly.
pub(super) fn callers(url: &str) -> Vec<Value> {
    ["weighty", "slow"]
        .map(|name| {
            let call = json!({ "method": "GET", "url": format!("{url}/{name}"), "timeoutMs": 60_000 });
            let nodes: Vec<_> = (0..8)
                .map(|n| node(&format!("n{n}"), "core.http.request", &call))
                .collect();
            workflow(name, &nodes, &[])
        })
        .to_vec()
}

/// Each workflow starts twelve child runs of the next one.
pub(super) fn bombs() -> Vec<Value> {
    (0..5)
        .map(|level: u32| {
            let nodes: Vec<_> = match level.checked_sub(1) {
                None => vec![node("end", "core.noop", &json!({}))],
                Some(below) => (0..12)
                    .map(|n| {
                        let config = json!({ "workflowId": format!("bomb-{below}") });
                        node(&format!("n{n}"), "core.subWorkflow", &config)
                    })
                    .collect(),
            };
            workflow(&format!("bomb-{level}"), &nodes, &[])
        })
        .collect()
}

/// The maximum work of a run: a long chain of nodes, each close to the limit of one evaluation.
pub(super) fn heavy() -> Value {
    let config =
        json!({ "template": "{{ items|sort(attribute='n', reverse=true)|map(attribute='n')|sum }}" });
    let ids: Vec<_> = (0..400).map(|n| format!("n{n}")).collect();
    let nodes: Vec<_> = ids.iter().map(|id| node(id, "core.template", &config)).collect();
    let edges: Vec<_> = ids
        .windows(2)
        .map(|pair| json!({ "id": pair[0], "sourceNodeId": pair[0], "targetNodeId": pair[1] }))
        .collect();
    workflow("heavy", &nodes, &edges)
}

/// Definitions that are expensive to parse, compile or decide.
pub(super) fn hostile() -> Vec<Value> {
    let mut all = vec![
        template("indent", "{{ '' | indent(1000000000000000) }}"),
        template("path", format!("{{{{ a{} }}}}", ".a".repeat(32_000))),
        template(
            "parens",
            format!("{{{{ {}1{} }}}}", "(".repeat(30_000), ")".repeat(30_000)),
        ),
        template(
            "lists",
            format!("{{{{ {}{} }}}}", "[".repeat(30_000), "]".repeat(30_000)),
        ),
        template("not", format!("{{{{ {} true }}}}", "not ".repeat(15_000))),
        template("filters", format!("{{{{ items{} }}}}", "|sort".repeat(240))),
        template(
            "arguments",
            format!(
                "{{{{ {} }}}}",
                ["items|selectattr(text)|list|length"; 20].join(" + ")
            ),
        ),
        template("divisible", "{{ 1 is divisibleby 0 }}"),
        template(
            "ranges",
            "{{ range(100000) | list | join(range(100000) | join) }}",
        ),
        template(
            "joins",
            "{% for a in items %}{% for b in items %}{{ a }}{% endfor %}{% endfor %}",
        ),
    ];
    let noop = |id: &str| node(id, "core.noop", &json!({}));
    let edge = |n: usize, condition: Value| json!({ "id": format!("e{n}"), "sourceNodeId": "one", "targetNodeId": "two", "condition": condition });
    let pair = [noop("one"), noop("two")];
    let minus = edge(
        0,
        json!({ "type": "expression", "expression": format!("{}1", "-".repeat(8_000)) }),
    );
    all.push(workflow("minus", &pair, &[minus]));
    let equals: Vec<_> = (0..1_000)
        .map(|n| {
            edge(
                n,
                json!({ "type": "expression", "expression": "variables.items == variables.items" }),
            )
        })
        .collect();
    all.push(workflow("equals", &pair, &equals));

    let mut parallel: Vec<_> = (0..9_999)
        .map(|n| json!({ "id": format!("e{n}"), "sourceNodeId": "one", "targetNodeId": "two" }))
        .collect();
    parallel.push(json!({ "id": "back", "sourceNodeId": "two", "targetNodeId": "one" }));
    all.push(workflow("parallel", &pair, &parallel));

    let with_schema = |id: &str, schema: Value| {
        let mut document = workflow(id, &[noop("one")], &[]);
        document["channels"] = json!({ "items": { "reducer": "append", "schema": schema } });
        document
    };
    let mut chain = serde_json::Map::new();
    for n in 0..10_000 {
        let next = json!({ "allOf": [{ "$ref": format!("#/$defs/d{}", n + 1) }] });
        chain.insert(format!("d{n}"), next);
    }
    chain.insert("d10000".to_owned(), json!(true));
    all.push(with_schema(
        "chain",
        json!({ "$defs": chain, "$ref": "#/$defs/d0" }),
    ));
    let mut doublings = serde_json::Map::new();
    for n in 0..40 {
        let next = json!({ "$ref": format!("#/$defs/d{}", n + 1) });
        doublings.insert(format!("d{n}"), json!({ "not": { "anyOf": [next, next] } }));
    }
    doublings.insert("d40".to_owned(), json!({ "type": "string" }));
    all.push(with_schema(
        "doublings",
        json!({ "$defs": doublings, "$ref": "#/$defs/d0" }),
    ));
    let patterns: Vec<_> = (0..50)
        .map(|n| json!({ "pattern": format!("(?:.{{100}}){{1{n:02}}}") }))
        .collect();
    all.push(with_schema("patterns", json!({ "items": { "anyOf": patterns } })));
    all
}
