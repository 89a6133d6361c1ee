//! What a decision, a fold and a stored body cost.

use std::sync::Arc;

use divan::{Bencher, counter::ItemsCount};
use serde_json::json;
use wopr_core::{
    Catalog, Command, DialectId, Entropy, Fork, ForkMode, Input, Recorded, Run, RunId, Seq, StartFork,
    Startable, Timestamp, WorkflowId, decide, decide_fork, format,
};
use wopr_testkit::{Script, Workflow};

#[global_allocator]
static ALLOCATIONS: divan::AllocProfiler = divan::AllocProfiler::system();

fn main() {
    divan::main();
}

#[derive(Debug)]
struct Nothing;

impl Catalog for Nothing {
    fn current(&self, _: &WorkflowId) -> Option<Arc<dyn Startable>> {
        None
    }
}

fn chain(n: usize) -> Workflow {
    let ids: Vec<_> = (0..n).map(|n| format!("n{n}")).collect();
    let edges: Vec<_> = ids.windows(2).map(|pair| pair.join(" -> ")).collect();
    Workflow::new("chain")
        .noops(&ids.join(" "))
        .edges(&edges.join(","))
}

fn decide_start(bencher: Bencher<'_, '_>, workflow: &Workflow) {
    let plan = workflow.plan();
    let id = RunId::from_parts(Timestamp::from_millis(0), [7; 10]);
    let input = Input {
        now: Timestamp::from_millis(1_000),
        entropy: Entropy([7; 16]),
        run: &id,
        catalog: &Nothing,
    };
    let command = Command::Start(Box::new(Script::start_run(json!({ "prompt": "hello" }))));
    bencher
        .with_inputs(|| command.clone())
        .bench_values(|command| decide(Run::default(), &plan, command, &input));
}

fn log_of(workflow: &Workflow) -> Vec<Recorded> {
    Script::started(workflow).events(0).to_vec()
}

#[divan::bench]
fn decide_noop(bencher: Bencher<'_, '_>) {
    decide_start(bencher, &chain(1));
}

#[divan::bench]
fn decide_chain_of_10(bencher: Bencher<'_, '_>) {
    decide_start(bencher, &chain(10));
}

#[divan::bench]
fn decide_two_conditions(bencher: Bencher<'_, '_>) {
    let routed = Workflow::new("routed")
        .variable("n", "number", json!({ "defaultValue": 3 }))
        .noops("a b c")
        .edge_if("a", "b", json!({ "expression": "n > 2" }))
        .edge_if("a", "c", json!({ "type": "equals", "left": "n", "right": 4 }));
    decide_start(bencher, &routed);
}

#[divan::bench]
fn decide_a_loop_of_100(bencher: Bencher<'_, '_>) {
    let count = Workflow::new("count")
        .variable("n", "number", json!({ "defaultValue": 0 }))
        .node(
            "add",
            "core.setVariable",
            json!({ "name": "n", "expression": "n + 1" }),
        )
        .edge_if("add", "add", json!({ "expression": "n < 100" }));
    decide_start(bencher.counter(ItemsCount::new(100_usize)), &count);
}

/// A replay from the first event: decoding the source's log, and deciding all of it again.
#[divan::bench]
fn replay_a_thousand_events(bencher: Bencher<'_, '_>) {
    let count = Workflow::new("count")
        .variable("n", "number", json!({ "defaultValue": 0 }))
        .node(
            "add",
            "core.setVariable",
            json!({ "name": "n", "expression": "n + 1" }),
        )
        .edge_if("add", "add", json!({ "expression": "n < 332" }));
    let plan = count.plan();
    let mut script = Script::started(&count);
    script.wait(0);
    let log = script.events(0);
    let bodies: Vec<_> = log
        .iter()
        .map(|event| (event.seq, format::encode_event(event)))
        .collect();
    let start = StartFork {
        fork: Fork {
            source: script.id(0).clone(),
            mode: ForkMode::Replay,
            from: Seq(0),
            since: Seq(0),
            until: Seq(log.len() as u64),
            depth: 1,
            recorders: Vec::new(),
            refusal: None,
        },
        overlay: None,
        bounds: Script::start_run(json!({})).bounds,
    };
    let id = RunId::from_parts(Timestamp::from_millis(0), [7; 10]);
    let input = Input {
        now: Timestamp::from_millis(2_000_000),
        entropy: Entropy([7; 16]),
        run: &id,
        catalog: &Nothing,
    };
    bencher.counter(ItemsCount::new(log.len())).bench(|| {
        let source: Vec<_> = bodies
            .iter()
            .map(|(seq, body)| format::decode_event(*seq, body).expect("written above"))
            .collect();
        let command = Command::Fork(Box::new(start.clone()));
        let decision = decide_fork(Run::default(), &plan, command, &input, &source).expect("a fork");
        assert!(
            decision.run.status.is_terminal(),
            "the log is short enough for one decision"
        );
        decision
    });
}

#[divan::bench]
fn apply_a_chain_of_10(bencher: Bencher<'_, '_>) {
    let (plan, log) = (chain(10).plan(), log_of(&chain(10)));
    bencher
        .counter(ItemsCount::new(log.len()))
        .bench(|| Run::default().fold(&plan, &log));
}

#[divan::bench]
fn encode_a_chain_of_10(bencher: Bencher<'_, '_>) {
    let log = log_of(&chain(10));
    bencher.counter(ItemsCount::new(log.len())).bench(|| {
        log.iter()
            .map(|event| format::encode_event(event).len())
            .sum::<usize>()
    });
}

#[divan::bench]
fn decode_a_chain_of_10(bencher: Bencher<'_, '_>) {
    let log = log_of(&chain(10));
    let bodies: Vec<_> = log
        .iter()
        .map(|event| (event.seq, format::encode_event(event)))
        .collect();
    bencher.counter(ItemsCount::new(bodies.len())).bench(|| {
        bodies
            .iter()
            .filter(|(seq, body)| format::decode_event(*seq, body).is_ok())
            .count()
    });
}

#[divan::bench]
fn encode_the_snapshot_of_a_chain_of_10(bencher: Bencher<'_, '_>) {
    let run = Script::started(&chain(10)).run(0).clone();
    bencher.bench(|| format::encode_run(DialectId::Openwop, &run).len());
}

#[divan::bench]
fn decode_the_snapshot_of_a_chain_of_10(bencher: Bencher<'_, '_>) {
    let body = format::encode_run(DialectId::Openwop, Script::started(&chain(10)).run(0));
    bencher.bench(|| format::decode_run(DialectId::Openwop, &body).is_ok());
}

#[divan::bench]
fn compile_a_chain_of_10(bencher: Bencher<'_, '_>) {
    let workflow = chain(10);
    bencher.bench(|| workflow.compile());
}
