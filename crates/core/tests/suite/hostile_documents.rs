//! Agent Workflow documents that make as much work as they can: filters, reducers, schemas, loops and forks.

use serde_json::{Value, json};

/// A document of these nodes in a line.
fn document(state: &Value, nodes: &[Value]) -> Value {
    let mut edges = vec![json!({ "source": "__start__", "target": "start" })];
    let mut last = "start".to_owned();
    let mut all = vec![json!({ "id": "start", "type": "start" })];
    for (n, node) in nodes.iter().enumerate() {
        let id = format!("n{n}");
        let mut node = node.clone();
        node["id"] = id.clone().into();
        edges.push(json!({ "source": last, "target": id }));
        all.push(node);
        last = id;
    }
    edges.push(json!({ "source": last, "target": "end" }));
    all.push(json!({ "id": "end", "type": "end" }));
    whole(state, &all, &edges)
}

fn whole(state: &Value, nodes: &[Value], edges: &[Value]) -> Value {
    json!({
        "document": { "schema": "https://agent-workflow.dev/schemas/workflow-definition.json", "name": "w", "version": "1" },
        "state_schema": state, "nodes": nodes, "edges": edges,
    })
}

fn open() -> Value {
    json!({ "type": "object", "properties": { "x": {} } })
}

fn sets(jq: &str) -> Value {
    json!({ "type": "set_state", "config": { "assignments": { "y": { "jq": jq } } } })
}

/// Filters over the input `.x`.
const FILTERS: [&str; 34] = [
    ".x",
    "[.x, .x, .x, .x]",
    "[..]",
    "[paths]",
    "[.. | tojson]",
    "[limit(1000000; repeat(.x))]",
    "reduce range(1e9) as $n (0; . + 1)",
    "[range(1e9)]",
    "last(range(1e9))",
    "[recurse(if . == null then empty else . end)]",
    "def f: [., .]; .x | f | f | f | f | f | f | f | f",
    "(.x | tojson) * 1e9",
    "\"ab\" * 1e12",
    ".x * .x",
    ".x | tojson | fromjson",
    ".x | tojson | explode | implode",
    ".x | tojson | [splits(\"\")] // split(\"\")",
    ".x | tojson | split(\"\") | join(\",\")",
    ".x | tojson | test(\"(a+)+$\")",
    ".x | tojson | test(\"(.*)(.*)(.*)(.*)(.*)[0-9]\")",
    ".x | [.[]?] | sort | unique | group_by(.)",
    ".x | [.[]?] | sort_by(tojson) | reverse",
    ".x | to_entries? | from_entries?",
    ".x | [.[]?] | flatten",
    ".x == .x and .x < [.x]",
    "[.x] | contains([.x])",
    "[.x] | indices([.x])",
    "setpath([1e9]; .x)",
    ".x[1e9]? = 1",
    ".y[100000000] |= .x",
    "[.x] | del(.[0]) | tojson | @base64 | @uri",
    "try error(.x) catch [., ., .]",
    "label $out | foreach range(1e9) as $n (.x; [.]; if $n > 1e6 then ., break $out else empty end)",
    "[limit(3; .x, .x, .x)] as [$a, $b, $c] | [$a, $b, $c] | map([$a, .])",
];

/// The documents by what is hostile about them.
pub(crate) fn documents() -> Vec<(String, Value)> {
    let mut all = Vec::new();
    for filter in FILTERS {
        all.push((format!("awp filter {filter}"), document(&open(), &[sets(filter)])));
        let many: Vec<_> = (0..60).map(|_| sets(filter)).collect();
        all.push((format!("awp filters {filter}"), document(&open(), &many)));
        let switch = json!({ "id": "n0", "type": "switch", "config": {
            "cases": (0..40).map(|_| json!({ "when": format!("({filter}) == 0"), "target": "end" })).collect::<Vec<_>>(),
            "default": "end",
        } });
        let nodes = [
            json!({ "id": "start", "type": "start" }),
            switch,
            json!({ "id": "end", "type": "end", "config": { "output_mapping": filter } }),
        ];
        let edges = [
            json!({ "source": "__start__", "target": "start" }),
            json!({ "source": "start", "target": "n0" }),
        ];
        all.push((format!("awp cases {filter}"), whole(&open(), &nodes, &edges)));
        let delegate = json!({ "type": "agent_delegate", "config": {
            "agent_id": "a", "protocol": "a2a", "input_mapping": { "a": { "jq": filter }, "b": format!("${{ {filter} }}") },
        } });
        all.push((format!("awp input {filter}"), document(&open(), &[delegate])));
    }
    for reducer in ["append", "merge", "overwrite"] {
        let state = json!({ "type": "object", "properties": { "y": { "reducer": reducer } } });
        let many: Vec<_> = (0..200).map(|_| sets(".x")).collect();
        all.push((format!("awp reducer {reducer}"), document(&state, &many)));
    }
    all.push(("awp loop".to_owned(), looped(&json!({ "y": { "jq": ".x" } }))));
    all.push((
        "awp growing loop".to_owned(),
        looped(&json!({ "y": { "jq": "[.y, .y]" } })),
    ));
    all.extend(schemas());
    all.push(("awp forks".to_owned(), forks()));
    all
}

/// A loop without an end.
fn looped(assignments: &Value) -> Value {
    let nodes = [
        json!({ "id": "start", "type": "start" }),
        json!({ "id": "set", "type": "set_state", "config": { "assignments": assignments } }),
        json!({ "id": "again", "type": "switch", "config": { "cases": [{ "when": "true", "target": "set" }], "default": "end" } }),
        json!({ "id": "end", "type": "end" }),
    ];
    let edges = [
        json!({ "source": "__start__", "target": "start" }),
        json!({ "source": "start", "target": "set" }),
        json!({ "source": "set", "target": "again" }),
    ];
    whole(&open(), &nodes, &edges)
}

/// Schemas that have to look at everything, again and again.
fn schemas() -> Vec<(String, Value)> {
    let with = |x: Value| {
        let state = json!({ "type": "object", "properties": { "x": x } });
        let many: Vec<_> = (0..20).map(|_| sets("1")).collect();
        document(&state, &many)
    };
    let recursive = json!({
        "type": "object", "properties": { "x": { "$ref": "#/$defs/any" } },
        "$defs": { "any": { "anyOf": [
            { "type": "array", "items": { "$ref": "#/$defs/any" } },
            { "type": "object", "additionalProperties": { "$ref": "#/$defs/any" } },
            { "type": ["string", "number", "boolean", "null"] },
        ] } },
    });
    let alternatives: Vec<_> = (0..300).map(|n| json!({ "const": { "n": n } })).collect();
    vec![
        (
            "awp schema of unique items".to_owned(),
            with(json!({ "uniqueItems": true })),
        ),
        (
            "awp schema of a pattern".to_owned(),
            with(json!({ "pattern": "^(a+)+$" })),
        ),
        (
            "awp schema of names".to_owned(),
            with(json!({ "patternProperties": { "^(.*)(.*)(.*)$": { "type": "number" } } })),
        ),
        (
            "awp schema of alternatives".to_owned(),
            with(json!({ "oneOf": alternatives, "items": { "oneOf": alternatives } })),
        ),
        (
            "awp recursive schema".to_owned(),
            document(&recursive, &[sets("1"), sets("2")]),
        ),
    ]
}

/// Forks in forks, with many branches.
fn forks() -> Value {
    let mut nodes = vec![json!({ "id": "start", "type": "start" })];
    let mut edges = vec![
        json!({ "source": "__start__", "target": "start" }),
        json!({ "source": "start", "target": "f0" }),
    ];
    let mut edge = |source: String, target: String| edges.push(json!({ "source": source, "target": target }));
    for level in 0..8 {
        let join = format!("j{level}");
        let mut branches = Vec::new();
        for branch in 0..30 {
            let id = format!("b{level}-{branch}");
            nodes.push(json!({ "id": id, "type": "set_state", "config": { "assignments": { "y": { "jq": ".x" } } } }));
            edge(id.clone(), join.clone());
            branches.push(json!({ "name": id, "entry": id }));
        }
        nodes.push(json!({ "id": format!("f{level}"), "type": "parallel", "config": { "join": "all", "branches": branches } }));
        nodes.push(json!({ "id": join, "type": "set_state", "config": { "assignments": { "z": { "jq": "[.y]" } } } }));
        edge(format!("f{level}"), join.clone());
        edge(
            join,
            if level == 7 {
                "end".to_owned()
            } else {
                format!("f{}", level + 1)
            },
        );
    }
    nodes.push(json!({ "id": "end", "type": "end" }));
    whole(&open(), &nodes, &edges)
}
