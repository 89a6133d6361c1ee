//! Parsing and deciding stay within limits on memory and time for any definition and input.
//!
//! Each case is a worst-case document of 64 KiB with inputs of 1 MiB. The document is registered or rejected,
//! and its run is decided for several rounds. Each step may use 64 MiB in addition to what the caller holds.
//! In a release build it may take 100 ms of CPU time, in a debug build the work units of one decision. Inputs
//! are those that a host accepts within its 1 MiB body limit, which measures parsed size. This is a single
//! test, because the counters are per process. Run it in release mode:
//!
//! ```text
//! CARGO_PROFILE_RELEASE_LTO=off cargo test --release -p wopr-core --test hostile -- --nocapture
//! ```
//!
//! That takes hours on a small machine. `WOPR_HOSTILE_CASES=TEXT` selects the cases whose name contains the
//! text, and `WOPR_HOSTILE_EVERY=N` every Nth case.

#![expect(
    clippy::unwrap_used,
    clippy::needless_pass_by_value,
    clippy::print_stdout,
    reason = "a test, which shows what it measured"
)]

#[path = "suite/hostile_documents.rs"]
mod hostile_documents;

use std::{env, sync::Arc};

use mimalloc::MiMalloc;
use peakmem_alloc::{PeakMemAlloc, PeakMemAllocTrait as _};
use rustix::time::{ClockId, clock_gettime};
use serde_json::{Map, Value, json};
use wopr_core::{
    AwpHistory, Catalog, Command, DialectId, Entropy, Input, MAX_DECISION_WORK, NodeTypes, Object, Plan,
    Recorded, Run, RunId, RunMessage, RunStatus, Startable, Timer, Timestamp, WorkflowId, awp,
    decide_counted, import_awp, parsed_limit, parsed_size,
};
use wopr_testkit::{Script, Workflow};

#[global_allocator]
static MEMORY: PeakMemAlloc<MiMalloc> = PeakMemAlloc::new(MiMalloc);

const MAX_DOCUMENT: usize = 64 * 1024;
const MAX_INPUT: usize = 1024 * 1024;
const MAX_MEMORY: usize = 64 * 1024 * 1024;
const MAX_MILLIS: f64 = 100.0;
/// The most of a history that is imported, in bytes: about as much as a request may have.
const MAX_HISTORY: usize = 8 * 1024 * 1024;
/// An import decides as much as sixteen decisions may, and holds the log besides.
const MAX_IMPORT_MILLIS: f64 = 17.0 * MAX_MILLIS;
const MAX_IMPORT_MEMORY: usize = 3 * MAX_MEMORY;
/// A decision takes further run messages until a tenth of its budget is spent.
const MAX_MESSAGES_WORK: u64 = MAX_DECISION_WORK + MAX_DECISION_WORK / 10;
/// Number of children that end at the same time.
const CHILDREN: usize = 12;
/// Number of decisions after the first one.
const ROUNDS: usize = 6;
/// Number of attempts before a case that takes too long fails.
const TRIES: usize = 3;

#[derive(Debug)]
struct Nothing;

impl Catalog for Nothing {
    fn current(&self, _: &WorkflowId) -> Option<Arc<dyn Startable>> {
        None
    }
}

/// Contains one workflow under every name.
#[derive(Debug)]
struct Only(Arc<Plan>);

impl Catalog for Only {
    fn current(&self, _: &WorkflowId) -> Option<Arc<dyn Startable>> {
        Some(Arc::clone(&self.0) as Arc<dyn Startable>)
    }
}

#[derive(Debug, Default)]
struct Worst {
    memory: usize,
    millis: f64,
    work: u64,
    /// The limits that were exceeded.
    exceeded: Vec<String>,
}

fn millis() -> f64 {
    let now = clock_gettime(ClockId::ThreadCPUTime);
    #[expect(clippy::cast_precision_loss, reason = "a few seconds")]
    let (seconds, nanos) = (now.tv_sec as f64, now.tv_nsec as f64);
    seconds * 1e3 + nanos / 1e6
}

/// Measures the time and the peak of additional memory.
fn measured<T>(what: &str, worst: &mut Worst, work: impl FnOnce() -> T) -> T {
    MEMORY.reset_peak_memory();
    let began = millis();
    let done = work();
    let took = millis() - began;
    let memory = MEMORY.get_peak_memory();
    if memory > worst.memory || took > worst.millis {
        println!("{what}: {} KiB, {took:.1} ms", memory / 1024);
    }
    if memory > MAX_MEMORY || (!cfg!(debug_assertions) && took > MAX_MILLIS) {
        let exceeded = format!("{what} took {} KiB, {took:.1} ms", memory / 1024);
        println!("EXCEEDED {exceeded}");
        worst.exceeded.push(exceeded);
    }
    worst.memory = worst.memory.max(memory);
    worst.millis = worst.millis.max(took);
    done
}

fn attack(name: &str, document: &Value, inputs: &Value, worst: &mut Worst) {
    tried(worst, |worst| attack_once(name, document, inputs, worst));
}

/// Runs an attack. Repeats one that takes too long, because other processes may have slowed it down.
fn tried(worst: &mut Worst, attack: impl Fn(&mut Worst)) {
    let mut last = Vec::new();
    for _ in 0..TRIES {
        let mut this = Worst {
            exceeded: Vec::new(),
            ..*worst
        };
        attack(&mut this);
        last = std::mem::take(&mut this.exceeded);
        if last.is_empty() {
            let exceeded = std::mem::take(&mut worst.exceeded);
            *worst = Worst { exceeded, ..this };
            return;
        }
    }
    worst.exceeded.append(&mut last);
}

/// Returns `true` if the environment selects this case.
fn is_wanted(name: &str) -> bool {
    env::var("WOPR_HOSTILE_CASES").map_or(true, |wanted| name.contains(&wanted))
}

fn attack_once(name: &str, document: &Value, inputs: &Value, worst: &mut Worst) {
    let text = document.to_string();
    if !is_wanted(name) {
        return;
    }
    assert!(text.len() <= MAX_DOCUMENT, "{name}: {} bytes", text.len());
    let inputs_text = inputs.to_string();
    if inputs_text.len() > MAX_INPUT + 1024 || parsed_size(inputs_text.as_bytes()) > parsed_limit(MAX_INPUT) {
        return;
    }
    let document: Value = serde_json::from_str(&text).unwrap();
    let plan = measured(&format!("{name}, registered"), worst, || {
        Plan::admit(document, NodeTypes { conformance: true })
    });
    let Ok(plan) = plan else { return };
    measured(&format!("{name}, warnings"), worst, || drop(plan.warnings()));
    let id = RunId::from_parts(Timestamp::from_millis(0), [7; 10]);
    let input = Input {
        now: Timestamp::from_millis(1_000),
        entropy: Entropy([7; 16]),
        run: &id,
        catalog: &Nothing,
    };
    let mut command = Command::Start(Box::new(Script::start_run(inputs.clone())));
    let mut run = Run::default();
    let mut log = Vec::new();
    for round in 0..ROUNDS {
        let what = format!("{name}, decision {round}");
        let decided = measured(&what, worst, || decide_counted(run, &plan, command, &input));
        let Ok((decision, work)) = decided else { return };
        assert!(work <= MAX_DECISION_WORK, "{what} cost {work}");
        worst.work = worst.work.max(work);
        log.extend(decision.events.iter().cloned());
        project(&what, &plan, &id, &log, worst);
        if !decision
            .work
            .timers_set
            .iter()
            .any(|(timer, _)| *timer == Timer::Continue)
        {
            break;
        }
        run = decision.run;
        command = Command::Timer(Timer::Continue);
    }
    decide_again(name, &plan, &id, &log, worst);
}

/// Imports the history of a document's run, as far as a request may hold it.
fn decide_again(name: &str, plan: &Plan, id: &RunId, log: &[Recorded], worst: &mut Worst) {
    if plan.dialect() != DialectId::Awp {
        return;
    }
    let wanted = awp::Wanted::Rows {
        numbers: 1..u64::MAX,
        most_bytes: MAX_HISTORY,
    };
    let mut history = AwpHistory::new(plan, id, wanted).unwrap();
    log.iter().for_each(|recorded| history.record(recorded));
    let rows = history.finish().rows;
    let rows = rows.iter().map(|row| {
        json!({ "seq": row.seq, "kind": row.kind.as_str(), "name": row.name, "payload": row.payload,
            "created_at": row.created_at.to_text() })
    });
    let rows = awp::GivenRows::read(rows.collect()).unwrap();
    let import = awp::Import {
        mode: Some(awp::ActivityMode::HostMediated),
        ..Script::import_terms(id.clone(), Timestamp::from_millis(2_000))
    };
    MEMORY.reset_peak_memory();
    let began = millis();
    let imported = import_awp(plan, &rows, &[], &import).unwrap();
    let (took, memory) = (millis() - began, MEMORY.get_peak_memory());
    if memory > MAX_IMPORT_MEMORY || (!cfg!(debug_assertions) && took > MAX_IMPORT_MILLIS) {
        let exceeded = format!("{name}, imported, took {} KiB, {took:.1} ms", memory / 1024);
        println!("EXCEEDED {exceeded}");
        worst.exceeded.push(exceeded);
    }
    if let Err(error) = imported {
        assert!(
            error.to_string().contains("more work than an import may do"),
            "{name}: {error}"
        );
    }
}

/// Counts the rows of a document's history, and makes the newest one, which may hold the whole state.
fn project(what: &str, plan: &Plan, id: &RunId, log: &[Recorded], worst: &mut Worst) {
    if plan.dialect() != DialectId::Awp {
        return;
    }
    let history = |numbers| {
        let wanted = awp::Wanted::Rows {
            numbers,
            most_bytes: usize::MAX,
        };
        let mut history = AwpHistory::new(plan, id, wanted).unwrap();
        log.iter().for_each(|recorded| history.record(recorded));
        history.finish()
    };
    let counted = measured(&format!("{what}, rows counted"), worst, || history(1..2));
    let n_rows = counted.n_rows;
    let newest = measured(&format!("{what}, newest row"), worst, || {
        history(n_rows..n_rows + 1)
    });
    assert_eq!(newest.rows.len(), 1, "{what}");
}

/// Sends a run the outcomes of all its children in one batch, each with these outputs; resends the messages
/// that the decision did not take.
fn tell_of_children(name: &str, document: &Value, outputs: &Object, worst: &mut Worst) {
    let child = Plan::admit(
        Workflow::new("child").noops("a").document(),
        NodeTypes { conformance: true },
    );
    let catalog = Only(Arc::new(child.unwrap()));
    let plan = Plan::admit(document.clone(), NodeTypes { conformance: true }).unwrap();
    let id = RunId::from_parts(Timestamp::from_millis(0), [7; 10]);
    let input = Input {
        now: Timestamp::from_millis(1_000),
        entropy: Entropy([7; 16]),
        run: &id,
        catalog: &catalog,
    };
    let mut start = Script::start_run(json!({}));
    start.inputs = outputs.clone();
    let started = Command::Start(Box::new(start));
    let what = format!("{name}, start");
    let (mut decision, _) = measured(&what, worst, || {
        decide_counted(Run::default(), &plan, started, &input).unwrap()
    });
    while decision
        .work
        .timers_set
        .iter()
        .any(|(timer, _)| *timer == Timer::Continue)
    {
        let command = Command::Timer(Timer::Continue);
        (decision, _) = decide_counted(decision.run, &plan, command, &input).unwrap();
    }
    let children = decision.run.children.iter();
    let mut steps: Vec<_> = children
        .map(|child| (child.step.clone(), child.run.clone()))
        .collect();
    assert_eq!(steps.len(), CHILDREN, "{name}");
    let mut run = decision.run;
    // A host loads as many messages as fit in its memory.
    let each = 2 * parsed_size(serde_json::to_string(outputs).unwrap().as_bytes());
    let at_once = (MAX_MEMORY / each).clamp(1, CHILDREN);
    while !steps.is_empty() {
        let ended = steps
            .iter()
            .take(at_once)
            .map(|(step, child)| RunMessage::ChildEnded {
                step: step.clone(),
                child: child.clone(),
                status: RunStatus::Completed,
                outputs: outputs.clone(),
                report: outputs.clone(),
                error: None,
                is_untrusted: false,
            });
        let command = Command::RunMessages(ended.collect());
        let what = format!("{name}, {} children", steps.len());
        let (decision, work) = measured(&what, worst, || {
            decide_counted(run, &plan, command, &input).unwrap()
        });
        assert!(work <= MAX_MESSAGES_WORK, "{what} cost {work}");
        assert!(decision.heard > 0, "{what}");
        steps.drain(..decision.heard.min(steps.len()));
        run = decision.run;
    }
}

/// Runs that call children and do a lot of work once one has ended.
fn parents() -> Vec<(&'static str, Value)> {
    let calling = |then: &dyn Fn(usize, Workflow) -> Workflow| {
        let mut parent = Workflow::new("parent").noops("end");
        for n in 0..CHILDREN {
            let config = json!({
                "workflowId": "child",
                "outputMapping": (0..4).map(|k| (format!("v{k}"), json!("x"))).collect::<Map<_, _>>(),
            });
            parent = then(n, parent.node(&format!("call{n}"), "core.subWorkflow", config));
        }
        parent.document()
    };
    let compares = |n: usize, mut parent: Workflow| {
        for _ in 0..20 {
            parent = parent.raw_edge(json!({
                "sourceNodeId": format!("call{n}"), "targetNodeId": "end", "triggerRule": "any_success",
                "condition": { "type": "expression", "expression": "inputs.x == variables.x" },
            }));
        }
        parent
    };
    let copies = |n: usize, parent: Workflow| {
        let port = json!({ "type": "variable", "variableName": "x" });
        let ports = (0..20).map(|at| (format!("p{at}"), port.clone()));
        parent
            .wired(
                &format!("copy{n}"),
                "core.noop",
                json!({}),
                Value::Object(ports.collect()),
            )
            .edges(&format!("call{n} -> copy{n} all_complete"))
    };
    vec![
        ("children", calling(&|_, parent| parent)),
        ("children, compared after", calling(&compares)),
        ("children, copied after", calling(&copies)),
    ]
}

fn definition(nodes: Vec<Value>, edges: Vec<Value>, more: Value) -> Value {
    let mut document = json!({
        "id": "w", "name": "w", "version": "1", "nodes": nodes, "edges": edges, "triggers": [], "variables": [],
        "metadata": {}, "settings": {},
    });
    document
        .as_object_mut()
        .unwrap()
        .extend(more.as_object().unwrap().clone());
    document
}

fn node(id: usize, type_id: &str, config: Value) -> Value {
    json!({ "id": format!("n{id}"), "typeId": type_id, "name": "n", "config": config })
}

/// Repeats `piece` as often as it fits.
fn filled(piece: &str, between: &str, room: usize) -> String {
    let n = (room / (piece.len() + between.len())).max(1);
    vec![piece; n].join(between)
}

fn inputs() -> Vec<(&'static str, Value)> {
    let fill = |item: &dyn Fn(usize) -> Value| {
        let mut items = Vec::new();
        let mut room = MAX_INPUT - 100;
        loop {
            let item = item(items.len());
            let size = item.to_string().len() + 1;
            if size > room {
                return Value::Array(items);
            }
            room -= size;
            items.push(item);
        }
    };
    let short = |n: usize, item: &dyn Fn(usize) -> Value| -> Value { (0..n).map(item).collect() };
    let deep = |levels: usize, leaf: Value| (0..levels).fold(leaf, |inner, _| json!([inner]));
    vec![
        ("one text", json!("x y\n".repeat(262_000))),
        ("zeros", json!("0".repeat(1_048_000))),
        (
            "long names",
            Value::Object(
                (0..10)
                    .map(|n| (format!("{}{n}", "k".repeat(100_000)), json!(n)))
                    .collect::<Map<_, _>>(),
            ),
        ),
        ("spaces", json!(" ".repeat(1_048_000))),
        ("ones", short(520_000, &|_| json!(1))),
        ("numbers", short(120_000, &|n| json!(n * 7919 % 100_003))),
        ("texts", fill(&|n| json!(format!("{:0>100}", n * 7919 % 10_007)))),
        (
            "ten thousand objects",
            short(
                10_000,
                &|n| json!({ "k": format!("{:0>60}", n * 7919 % 10_007), "n": n }),
            ),
        ),
        ("empty lists", short(180_000, &|_| json!([]))),
        ("lists", short(1_500, &|_| json!(vec![1; 100]))),
        (
            "long texts",
            short(10, &|n| json!(format!("{n}{}", "ab".repeat(50_000)))),
        ),
        ("deep", deep(58, json!(vec![0; 100_000]))),
        ("small maps", {
            let small = |n: usize| (0..12).map(|field| (format!("k{field}"), json!(n))).collect();
            short(8_000, &|n| Value::Object(small(n)))
        }),
        (
            "a map of short names",
            Value::Object((0..90_000).map(|n| (format!("{n:x}"), json!(1))).collect()),
        ),
        (
            "a map",
            Value::Object(
                (0..11_000)
                    .map(|n| (format!("key{n:0>50}"), json!(n)))
                    .collect::<Map<_, _>>(),
            ),
        ),
    ]
}

fn expressions() -> Vec<String> {
    let filters = [
        "abs",
        "attr('k')",
        "bool",
        "capitalize",
        "count",
        "d('')",
        "default(x)",
        "dictsort",
        "dictsort(by='value')",
        "first",
        "float(0)",
        "indent",
        "indent(100, true, true)",
        "int(0)",
        "items",
        "join",
        "join(x|first|string)",
        "join(',', attribute='k')",
        "last",
        "length",
        "list",
        "lower",
        "map('upper')",
        "map('string')",
        "map(attribute='k')",
        "max",
        "min(attribute='k')",
        "reject",
        "rejectattr('k')",
        "replace('', 'yy')",
        "replace('x', 'yyyyyyyy')",
        "replace('ab', '')",
        "reverse",
        "round",
        "select('in', x)",
        "select('eq', x)",
        "selectattr('k', 'gt', 'a')",
        "sort",
        "sort(attribute='k')",
        "sort(attribute='k,n', reverse=true)",
        "split",
        "split('')",
        "split('b')",
        "string",
        "sum",
        "sum(attribute='n')",
        "title",
        "tojson",
        "trim",
        "trim('xyab \n')",
        "unique",
        "unique(attribute='k')",
        "upper",
    ];
    let mut all: Vec<_> = filters.iter().map(|filter| format!("x|{filter}")).collect();
    all.extend(
        filters
            .iter()
            .map(|filter| format!("x|list|{filter}|string|length")),
    );
    all.extend(
        [
            "x == y",
            "x != y",
            "x < y",
            "x >= y",
            "x in y",
            "[x] == [y]",
            "[x, x, x] < [y, y, y]",
            "{'a': x} == {'a': y}",
            "x ~ y ~ x",
            "[x, y, x]|tojson|length",
            "x + y",
            "x[1:] == y[1:]",
            "x[::2]|length",
            "x[-1]",
            "x is eq y",
            "x is in [y]",
            "x is lower",
            "variables",
            "inputs",
            "nodes|tojson|length",
            "variables == inputs",
            "[variables, variables]|string|upper",
            "nodes and inputs and not nodes",
            "[nodes, nodes, variables]|select|length",
            "range(1000)|map('string')|join(x|string)",
            "x|list|sort|map('string')|sort|join|upper|split('')|unique|sort",
            "'x'|replace('x', x|string)|replace('x', x|string)",
            "99999999999999999999 ** 3",
            "1e308 * 10",
            "x|round(400)",
            // Long arguments with short values.
            "range(1000)|map(attribute=x)|length",
            "range(1000)|selectattr(x)|length",
            "[[0], [0], [0]]|rejectattr(x|string)|length",
            "[1, 2]|sort(attribute=x)",
            "[1, 2]|sort(attribute=x|string|replace('0', ','))",
            "[1, 2]|sum(attribute=x) or [1]|max(attribute=x)",
            "[1, 2]|unique(attribute=x)|join('', attribute=x)",
            "''|trim(x)",
            "'a'|replace(x, 'b') ~ 'a'|replace('b', x)",
            "x|string|replace(x[1:], '')",
            "'a'|split(x)",
            "variables[x] or x in variables or x is in inputs",
            "variables|attr(x)",
            "{x: 1, x ~ '': 2, x ~ '1': 3}|length",
            "{x ~ '': 1}|first",
            "x|first in x and x|last in x",
            "'a' is startingwith x or 'a' is in x",
            "variables|length or variables|first",
            "variables == inputs or variables < inputs",
        ]
        .map(ToOwned::to_owned),
    );
    all
}

/// Definitions that contain one expression.
fn around(expression: &str) -> Vec<(&'static str, Value)> {
    let room = 60_000;
    let tag = format!("{{{{ {expression} }}}}");
    let condition = |source: &str| json!({ "type": "expression", "expression": source });
    let one = definition(
        vec![node(
            0,
            "core.template",
            json!({ "template": filled(&tag, "", room) }),
        )],
        vec![],
        json!({}),
    );
    let chain = filled(&format!("({expression})|string"), " ~ ", 8_000);
    let set = definition(
        vec![node(
            0,
            "core.setVariable",
            json!({ "name": "z", "expression": chain }),
        )],
        vec![],
        json!({}),
    );
    let each =
        format!("{{% for a in x %}}{{% for b in x %}}{{{{ {expression} }}}}{{% endfor %}}{{% endfor %}}");
    let looped = definition(
        vec![node(0, "core.template", json!({ "template": each }))],
        vec![],
        json!({}),
    );
    let n = (room / (expression.len() + 170)).min(400);
    let edges = (0..n).map(|n| {
        json!({ "id": n.to_string(), "sourceNodeId": "n0", "targetNodeId": "n1", "triggerRule": "any_success", "condition": condition(expression) })
    });
    let routed = definition(
        vec![node(0, "core.noop", json!({})), node(1, "core.noop", json!({}))],
        edges.collect(),
        json!({}),
    );
    let ports = (0..room / (expression.len() + 60)).map(|n| {
        (
            format!("p{n}"),
            json!({ "type": "expression", "expression": expression }),
        )
    });
    let mut ported = node(0, "core.noop", json!({}));
    ported["inputs"] = Value::Object(ports.collect());
    let many = (0..room / (expression.len() + 110)).map(|n| {
        node(
            n,
            "core.setVariable",
            json!({ "name": format!("v{n}"), "expression": expression }),
        )
    });
    vec![
        ("one template", one),
        ("one chain", set),
        ("nested loops", looped),
        ("edges", routed),
        ("ports", definition(vec![ported], vec![], json!({}))),
        ("many nodes", definition(many.collect(), vec![], json!({}))),
    ]
}

/// Definitions without expressions.
fn others() -> Vec<(String, Value)> {
    let edge = |n: usize, condition: Value| json!({ "id": n.to_string(), "sourceNodeId": "n0", "targetNodeId": "n1", "condition": condition });
    let pair = || vec![node(0, "core.noop", json!({})), node(1, "core.noop", json!({}))];
    let mut all = Vec::new();
    for pattern in [
        "(?:.{100}){100}",
        "(a?){500}b",
        "[xy ]*y[xy ]{200}z",
        r"(\w+\s?)*$",
        r"\bx",
        "(x|y| )*z",
        "(?i)ß+x",
        r"(\pL|x){50}",
        r"(?i)[\Dx]{0}",
        r"(?i)[[^a]x]{0}",
        "(?i)[b[c[d[\u{1}-\u{10ffff}]]]]{0}",
        r"[\w&&a]",
        r"(?i)\pL{0}",
    ] {
        let regex = |n| {
            edge(
                n,
                json!({ "type": "regex", "left": "inputs.x", "right": pattern }),
            )
        };
        all.push((
            format!("pattern {pattern}"),
            definition(pair(), (0..400).map(regex).collect(), json!({})),
        ));
    }
    for operator in ["equals", "notEquals", "contains"] {
        for right in [json!(null), json!("ab".repeat(5_000)), json!(vec![1; 3_000])] {
            let n = (60_000 / (right.to_string().len() + 160)).max(1);
            let compare = |n| edge(n, json!({ "type": operator, "left": "inputs.x", "right": right }));
            all.push((
                format!("{operator} edges"),
                definition(pair(), (0..n).map(compare).collect(), json!({})),
            ));
        }
    }
    for (name, type_id, config) in [
        ("channels", "core.channelWrite", json!({ "channelName": "c" })),
        (
            "merged channels",
            "core.channelWrite",
            json!({ "channelName": "c", "reducer": "merge" }),
        ),
        (
            "votes",
            "core.channelWrite",
            json!({ "channelName": "c", "reducer": "votes" }),
        ),
        ("passes", "core.noop", json!({})),
        ("variables", "core.setVariable", json!({ "name": "x" })),
        ("side effects", "core.conformance.side-effect", json!({})),
        ("artifacts", "core.noop", json!({})),
    ] {
        let nodes = (0..180).map(|n| {
            let mut node = node(n, type_id, config.clone());
            node["inputs"] = json!({ "value": { "type": "variable", "variableName": "x" } });
            if name == "artifacts" {
                node["artifactType"] = json!("t");
            }
            node
        });
        all.push((name.to_owned(), definition(nodes.collect(), vec![], json!({}))));
    }
    // Each value contains all previous ones.
    let nested = (0..300).map(|n| {
        node(
            n,
            "core.setVariable",
            json!({ "name": format!("v{n}"), "expression": "[variables, nodes]" }),
        )
    });
    all.push((
        "nested copies".to_owned(),
        definition(nested.collect(), vec![], json!({})),
    ));
    // A loop that copies and appends.
    let mut appends = node(0, "core.channelWrite", json!({ "channelName": "c" }));
    appends["inputs"] = json!({ "value": { "type": "expression", "expression": "[x, channels]" } });
    let back = json!({ "id": "b", "sourceNodeId": "n0", "targetNodeId": "n0" });
    all.push((
        "a loop".to_owned(),
        definition(vec![appends], vec![back], json!({})),
    ));
    // As many nodes and edges as fit, most of them joined.
    let nodes: Vec<_> = (0..300).map(|n| node(n, "core.noop", json!({}))).collect();
    let edges = (0..600).map(|n| json!({ "id": n.to_string(), "sourceNodeId": format!("n{}", n % 300), "targetNodeId": format!("n{}", n * 7 % 300) }));
    all.push((
        "a graph".to_owned(),
        definition(nodes, edges.collect(), json!({})),
    ));
    // Two nodes in a loop, with as many edges between them as fit.
    for rule in ["all_success", "any_success", "all_complete"] {
        let pair = ["a", "b"].map(|id| json!({ "id": id, "typeId": "core.noop", "name": "n", "config": {} }));
        let mut edges: Vec<_> = (0..1_000)
            .map(|n| json!({ "id": n.to_string(), "sourceNodeId": "a", "targetNodeId": "b", "triggerRule": rule }))
            .collect();
        edges.truncate(60_000 / (edges[999].to_string().len() + 1));
        edges.push(json!({ "id": "b", "sourceNodeId": "b", "targetNodeId": "a" }));
        all.push((
            format!("parallel edges {rule}"),
            definition(pair.to_vec(), edges, json!({})),
        ));
    }
    // Input for the lints: constant conditions, and names that may be part of others.
    let heavy = "range(1000)|map('string')|join|length > 0";
    let constants = (0..350).map(|n| edge(n, json!({ "type": "expression", "expression": heavy })));
    all.push((
        "constant conditions".to_owned(),
        definition(pair(), constants.collect(), json!({})),
    ));
    for before in ["x".repeat(40_000), "nodes.".repeat(6_000)] {
        let template = format!("{before}{{{{ {}a }}}}", "a-".repeat(4_000));
        let mut nodes: Vec<_> = (0..100).map(|n| node(n, "core.noop", json!({}))).collect();
        nodes.push(json!({ "id": "a-a", "typeId": "core.template", "name": "n", "config": { "template": template } }));
        all.push(("names of parts".to_owned(), definition(nodes, vec![], json!({}))));
    }
    for (name, schema) in schemas() {
        all.push((
            format!("schema {name}"),
            definition(
                vec![node(0, "core.noop", json!({}))],
                vec![],
                json!({ "configurableSchema": schema }),
            ),
        ));
        let channel = json!({ "channels": { "c": { "reducer": "append", "schema": schema } } });
        let mut write = node(0, "core.channelWrite", json!({ "channelName": "c" }));
        write["inputs"] = json!({ "value": { "type": "variable", "variableName": "x" } });
        all.push((
            format!("channel schema {name}"),
            definition(vec![write], vec![], channel),
        ));
    }
    all
}

fn schemas() -> Vec<(String, Value)> {
    let chain = |n: usize, link: &dyn Fn(Value) -> Value| {
        let mut defs: Map<_, _> = (0..n)
            .map(|at| {
                (
                    format!("d{at}"),
                    link(json!({ "$ref": format!("#/$defs/d{}", at + 1) })),
                )
            })
            .collect();
        defs.insert(format!("d{n}"), json!({ "type": "string" }));
        json!({ "$ref": "#/$defs/d0", "$defs": defs })
    };
    let mut all = vec![
        ("a long chain".to_owned(), chain(1_000, &|next| next)),
        (
            "a chain of allOf".to_owned(),
            chain(1_000, &|next| json!({ "allOf": [next] })),
        ),
        (
            "subschemas".to_owned(),
            json!({ "anyOf": vec![json!({}); 15_000] }),
        ),
        (
            "properties".to_owned(),
            json!({ "properties": (0..2_500).map(|n| (format!("p{n}"), json!({ "type": "string" }))).collect::<Map<_, _>>() }),
        ),
        (
            "patterns".to_owned(),
            json!({ "anyOf": (0..50).map(|n| json!({ "pattern": format!("{n}(?:.{{100}}){{100}}") })).collect::<Vec<_>>() }),
        ),
        (
            "large patterns".to_owned(),
            json!({ "anyOf": (0..500).map(|n| json!({ "pattern": format!("{n}[a-z]{{500}}") })).collect::<Vec<_>>() }),
        ),
        (
            "enum".to_owned(),
            json!({ "items": { "items": { "enum": (0..5_000).collect::<Vec<_>>() } } }),
        ),
        (
            "unique".to_owned(),
            json!({ "allOf": vec![json!({ "items": { "uniqueItems": true } }); 500] }),
        ),
        (
            "a tree".to_owned(),
            json!({ "anyOf": [{ "items": { "$ref": "#" } }, { "items": { "anyOf": [{ "$ref": "#" }, { "$ref": "#" }] } }], "const": 1 }),
        ),
        (
            "unevaluated".to_owned(),
            json!({ "items": { "anyOf": vec![json!({ "contains": true }); 500], "unevaluatedItems": false } }),
        ),
    ];
    for keyword in ["anyOf", "allOf", "oneOf"] {
        for n in [5, 8, 11, 14, 30] {
            all.push((
                format!("doubled {keyword} {n}"),
                chain(n, &|next| json!({ keyword: [next, next] })),
            ));
            all.push((
                format!("negated {keyword} {n}"),
                chain(n, &|next| json!({ "not": { keyword: [next, next] } })),
            ));
        }
    }
    all
}

#[test]
fn any_document_and_input_stay_within_memory_and_time() {
    let mut worst = Worst::default();
    // Debug builds are too slow for all combinations.
    let every = match env::var("WOPR_HOSTILE_EVERY") {
        Ok(every) => every.parse().unwrap(),
        Err(_) if cfg!(debug_assertions) && env::var("WOPR_HOSTILE_CASES").is_err() => 41,
        Err(_) => 1,
    };
    let inputs = inputs();
    let mut n = 0_usize;
    for (name, document) in others().into_iter().chain(hostile_documents::documents()) {
        for (shape, x) in &inputs {
            n += 1;
            if n.is_multiple_of(every) {
                attack(
                    &format!("{name} over {shape}"),
                    &document,
                    &json!({ "x": x }),
                    &mut worst,
                );
            }
        }
    }
    for (name, document) in parents() {
        for (shape, x) in &inputs {
            n += 1;
            if n.is_multiple_of(every) {
                // Outputs of a child that runs a similar workflow.
                let outputs = Object::from_iter([("x".to_owned(), x.clone())]);
                let name = format!("{name} over {shape}");
                tried(&mut worst, |worst| {
                    tell_of_children(&name, &document, &outputs, worst);
                });
            }
        }
    }
    for expression in expressions() {
        for (name, document) in around(&expression) {
            for (shape, x) in &inputs {
                n += 1;
                if !n.is_multiple_of(every * every) {
                    continue;
                }
                attack(
                    &format!("{expression}, {name} over {shape}"),
                    &document,
                    &json!({ "x": x }),
                    &mut worst,
                );
                // Its keys as variable names.
                if let Value::Object(fields) = x {
                    let mut fields = fields.clone();
                    fields.insert("x".to_owned(), json!(1));
                    attack(
                        &format!("{expression}, {name} over variables of {shape}"),
                        &document,
                        &Value::Object(fields),
                        &mut worst,
                    );
                }
                // Two equal halves, so that a comparison reads all of them.
                let half = match x {
                    Value::String(text) => json!(text[..text.len() / 2]),
                    Value::Array(items) => json!(items[..items.len() / 2]),
                    other => other.clone(),
                };
                attack(
                    &format!("{expression}, {name} over half of {shape} twice"),
                    &document,
                    &json!({ "x": half, "y": half }),
                    &mut worst,
                );
            }
        }
    }
    println!(
        "{n} cases: at most {} KiB, {:.1} ms, {} units",
        worst.memory / 1024,
        worst.millis,
        worst.work
    );
    assert!(worst.exceeded.is_empty(), "{:#?}", worst.exceeded);
}
