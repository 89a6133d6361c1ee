//! The workflows of a world's runs.

use serde_json::{Value, json};
use wopr_testkit::Workflow;

use super::documents;

/// Workflows that exist from the start, each with its weight in a client's choice.
pub(crate) const KINDS: [(&str, u64); 22] = [
    ("pure", 4),
    ("delay", 6),
    ("gate", 8),
    ("timed-gate", 4),
    ("quorum", 6),
    ("effect", 14),
    ("both", 10),
    ("calls", 8),
    ("review", 6),
    ("parent", 10),
    ("tolerant", 6),
    ("family", 10),
    ("unknown-child", 3),
    ("list", 5),
    ("all", 5),
    ("most", 6),
    ("first", 5),
    ("race", 4),
    ("crew", 6),
    ("crowd", 6),
    ("rivals", 5),
    ("long", 1),
];

/// A workflow that one process registers while the world is running.
pub(crate) const LATE: &str = "late";

/// The workflows that processes register when they start. A later edition has new versions of some.
pub(crate) fn all(edition: u64) -> Vec<Value> {
    let sub = |child: &str| json!({ "workflowId": child });
    let tolerant = |child: &str| json!({ "workflowId": child, "onChildFailure": "absorb", "propagateCancellation": false });
    let retries = json!({ "maxRetries": 3, "retryDelayMs": 100 });
    let timed = json!({ "timeoutMs": 900 });
    let quorum = json!({ "requiredApprovals": 2 });
    let said = json!({ "chunks": ["one ", "two ", "three"], "intervalMs": 100 });
    let revision = Workflow::new("gate")
        .gate("gate")
        .set("version", json!(format!("{edition}")));
    let gate = if edition == 0 {
        revision
    } else {
        revision.delay("after", 50 * edition).edges("gate -> after")
    };
    [
        Workflow::new("pure").noops("a b").edges("a -> b"),
        Workflow::new("delay")
            .delay("wait", 1_500)
            .node("say", "core.stream", said)
            .edges("wait -> say"),
        gate,
        Workflow::new("timed-gate").node("gate", "core.approvalGate", timed),
        Workflow::new("quorum").node("gate", "core.approvalGate", quorum),
        Workflow::new("effect")
            .effect("call")
            .set("settings", retries.clone()),
        Workflow::new("both")
            .gate("gate")
            .effect("call")
            .set("settings", retries.clone()),
        Workflow::new("calls")
            .effect("one")
            .effect("two")
            .effect("three")
            .delay("wait", 300)
            .edges("one -> two any_success, one -> three any_failed, one -> wait all_complete")
            .set("settings", retries),
        Workflow::new("review")
            .gate("gate")
            .delay("revise", 200)
            .edges("gate -> revise any_failed, revise -> gate"),
        Workflow::new("parent").node("child", "core.subWorkflow", sub("gate")),
        Workflow::new("tolerant")
            .node("child", "core.subWorkflow", tolerant("quorum"))
            .effect("call")
            .edges("child -> call all_complete"),
        Workflow::new("family")
            .node("one", "core.subWorkflow", sub("parent"))
            .node("two", "core.subWorkflow", sub("effect"))
            .node("three", "core.subWorkflow", sub("delay"))
            .node("four", "core.subWorkflow", sub("list"))
            .delay("wait", 400)
            .edges("one -> wait, two -> wait any_success, three -> wait, four -> wait any_success"),
        Workflow::new("unknown-child").node("child", "core.subWorkflow", tolerant(LATE)),
        // More events than one decision may have, and than lie between two snapshots.
        Workflow::new("long")
            .variable("n", "number", json!({ "defaultValue": 0 }))
            .node(
                "count",
                "core.setVariable",
                json!({ "name": "n", "expression": "n + 1" }),
            )
            .edge_if("count", "count", json!({ "expression": "n < 190" })),
    ]
    .iter()
    .map(Workflow::document)
    .chain([list(edition)])
    .chain(sets())
    .chain(crews())
    .chain(documents::all())
    .collect()
}

/// A workflow in another language.
fn list(edition: u64) -> Value {
    let ask = json!({ "ask": "Which colour?", "as": "colour" });
    let call = json!({ "call": { "for": "the list" } });
    json!({ "id": "list", "edition": edition, "templates": ["one", ask, call, "{text}, {colour}", call, ask, "{colour}"] })
}

/// Steps with several children, which ask, fail and take their time.
fn sets() -> [Value; 4] {
    let set = |id: &str, step: Value| json!({ "id": id, "templates": [step, "{completed}"] });
    [
        set(
            "all",
            json!({ "of": ["gate", "effect", "list", "delay"], "absorb": true }),
        ),
        set(
            "most",
            json!({ "of": ["gate", "effect", "delay", "quorum"], "quorum": 2 }),
        ),
        set(
            "first",
            json!({ "of": ["review", "parent", "gate"], "join": "first" }),
        ),
        set(
            "race",
            json!({ "of": ["delay", "gate", "most"], "join": "race", "absorb": true }),
        ),
    ]
}

/// Supervisors whose workers ask, fail, take their time and do not exist, in sequence and at the same time.
fn crews() -> [Value; 3] {
    let next = |workers: &[&str]| json!({ "kind": "next-worker", "nextWorkerIds": workers });
    let crew = |id: &str, first: &[&str], second: &[&str], dispatch: Value| {
        let supervisor = json!({
            "rules": [
                { "when": "supervisor is not defined", "decision": next(first) },
                { "when": "supervisor.iteration < 3", "decision": next(second) },
            ],
            "decision": { "kind": "terminate" },
        });
        let crew = Workflow::new(id)
            .node("supervisor", "core.orchestrator.supervisor", supervisor)
            .node("dispatch", "core.dispatch", dispatch)
            .edges("supervisor -> dispatch, dispatch -> supervisor");
        crew.document()
    };
    [
        crew("crew", &["effect", "gate"], &["delay", LATE], json!({})),
        crew(
            "crowd",
            &["delay", "effect", "quorum", "gate"],
            &["pure", "parent"],
            json!({ "fanOutPolicy": "parallel", "maxConcurrency": 2 }),
        ),
        crew(
            "rivals",
            &["gate", "delay", "effect"],
            &["review", "most"],
            json!({ "fanOutPolicy": "parallel", "joinPolicy": { "mode": "first" } }),
        ),
    ]
}

pub(crate) fn late() -> Value {
    Workflow::new(LATE).delay("wait", 20).document()
}

/// Two workflows of one id would replace each other's versions at each registration.
#[test]
fn workflows_have_ids_of_their_own() {
    let mut ids: Vec<_> = all(0).iter().map(id_of).collect();
    ids.sort_unstable();
    let n = ids.len();
    ids.dedup();
    assert_eq!(ids.len(), n, "{ids:?}");
}

fn id_of(document: &Value) -> String {
    let id = match &document["document"] {
        Value::Null => &document["id"],
        of_document => &of_document["name"],
    };
    id.as_str().expect("every workflow has an id").to_owned()
}
