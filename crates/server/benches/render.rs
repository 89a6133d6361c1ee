//! What it costs to show a log: events as documents, as frames of a stream, and a run as a snapshot.

use divan::{Bencher, counter::ItemsCount};
use serde_json::json;
use wopr_core::{Recorded, RunId, RunKey, TenantId, Timestamp};
use wopr_server::openwop::render::{self, Mask};
use wopr_testkit::{Script, Workflow};
use wopr_wire::sse;

#[global_allocator]
static ALLOCATIONS: divan::AllocProfiler = divan::AllocProfiler::system();

fn main() {
    divan::main();
}

/// The log of a run of ten nodes in a row.
fn log() -> (RunKey, Vec<Recorded>) {
    let ids: Vec<_> = (0..10).map(|n| format!("n{n}")).collect();
    let edges: Vec<_> = ids.windows(2).map(|pair| pair.join(" -> ")).collect();
    let chain = Workflow::new("chain")
        .noops(&ids.join(" "))
        .edges(&edges.join(","));
    let script = Script::of(&[&chain]).start(json!({ "prompt": "hello" }));
    let tenant = TenantId::parse("default").expect("a tenant");
    let run = RunId::from_parts(Timestamp::from_millis(0), [7; 10]);
    (RunKey::new(tenant, run), script.events(0).to_vec())
}

#[divan::bench]
fn events_of_a_chain_of_10_as_documents(bencher: Bencher<'_, '_>) {
    let (key, log) = log();
    let mask = Mask::default();
    bencher.counter(ItemsCount::new(log.len())).bench(|| {
        for recorded in &log {
            divan::black_box(render::Log::new(&key, &mask).event(recorded));
        }
    });
}

#[divan::bench]
fn events_of_a_chain_of_10_as_frames(bencher: Bencher<'_, '_>) {
    let (key, log) = log();
    let mask = Mask::default();
    let mut out = Vec::new();
    bencher.counter(ItemsCount::new(log.len())).bench_local(|| {
        out.clear();
        for recorded in &log {
            let head = sse::Head::new(recorded.seq.0, render::event_type(&recorded.event));
            sse::write_json(&mut out, head, &render::Log::new(&key, &mask).event(recorded))
                .expect("an event serialises");
        }
        out.len()
    });
}
