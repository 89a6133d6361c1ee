//! What an append costs: a typical run that starts and completes in one batch, by how many are in flight.
//!
//! `fdatasync` writes as many bytes to a plain file and waits for the disk, which is what no store can undercut.
//! `sqlite` at 256 against it says what the database adds. Run with `cargo bench -p wopr-store`.

#![expect(clippy::print_stderr, reason = "a benchmark reports")]

use std::{
    fs::File,
    io::Write as _,
    sync::{
        Mutex,
        atomic::{AtomicU64, Ordering::Relaxed},
    },
};

use divan::{Bencher, counter::ItemsCount};
use tokio::{runtime::Runtime, task::JoinSet};
use wopr_core::{ContentHash, PrincipalId, RunId, RunKey, RunStatus, Seq, TenantId, Timestamp, WorkflowId};
use wopr_store::{
    Batch, Guard, IdempotencyKey, IdempotencyRecord, Log as _, SqliteStore, StoredEvent, Summary,
    sqlite::Options,
};

/// Appends in flight at a time.
const IN_FLIGHT: [usize; 3] = [1, 32, 256];

/// Bytes of one event, as a small workflow writes them.
const EVENT: usize = 320;

/// What the stores counted, told when the table is complete.
static COUNTED: Mutex<Vec<String>> = Mutex::new(Vec::new());

fn main() {
    divan::main();
    for line in COUNTED.lock().expect("no bench panicked").iter() {
        eprintln!("{line}");
    }
}

/// Whether a batch carries an idempotency record, as a request over HTTP with a key does.
#[derive(Clone, Copy)]
enum Request {
    Plain,
    Keyed,
}

#[divan::bench(args = IN_FLIGHT, sample_count = 40)]
fn sqlite(bencher: Bencher<'_, '_>, in_flight: usize) {
    run(bencher, in_flight, Request::Plain);
}

#[divan::bench(args = IN_FLIGHT, sample_count = 40)]
fn sqlite_with_idempotency(bencher: Bencher<'_, '_>, in_flight: usize) {
    run(bencher, in_flight, Request::Keyed);
}

fn run(bencher: Bencher<'_, '_>, in_flight: usize, request: Request) {
    let files = tempfile::tempdir_in(".").expect("a directory beside the sources, not one in memory");
    let store = SqliteStore::open(files.path().join("wopr.db"), Options::default()).expect("open");
    let store = std::sync::Arc::new(store);
    let runtime = Runtime::new().expect("a runtime");
    let next = AtomicU64::new(0);
    bencher
        .counter(ItemsCount::new(in_flight))
        .with_inputs(|| {
            (0..in_flight)
                .map(|_| batch(next.fetch_add(1, Relaxed), request))
                .collect::<Vec<_>>()
        })
        .bench_values(|batches| {
            runtime.block_on(async {
                let mut appends = JoinSet::new();
                for batch in batches {
                    let store = store.clone();
                    appends.spawn(async move { store.append(batch).await.expect("append") });
                }
                appends.join_all().await
            })
        });
    let stats = store.stats();
    COUNTED.lock().expect("no bench panicked").push(format!(
        "{} appends in {} groups, the largest {}; {} checkpoints, {} stalls of {} µs in all",
        stats.appends, stats.groups, stats.largest_group, stats.checkpoints, stats.stalls, stats.stall_micros
    ));
}

#[divan::bench(args = IN_FLIGHT, sample_count = 40)]
fn fdatasync(bencher: Bencher<'_, '_>, in_flight: usize) {
    let files = tempfile::tempdir_in(".").expect("a directory beside the sources, not one in memory");
    let mut file = File::create(files.path().join("raw")).expect("a file");
    let bytes = vec![7_u8; in_flight * (4 * (EVENT + 60) + 600)];
    bencher.counter(ItemsCount::new(in_flight)).bench_local(|| {
        file.write_all(&bytes).expect("write");
        file.sync_data().expect("sync");
    });
}

fn batch(n: u64, request: Request) -> Batch {
    let tenant = TenantId::parse("default").expect("a tenant");
    let principal = PrincipalId::parse("key-one").expect("a principal");
    let at = Timestamp::from_millis(1_700_000_000_000 + i64::try_from(n).expect("small"));
    let mut entropy = [0; 10];
    entropy[2..].copy_from_slice(&n.to_be_bytes());
    let run = RunKey::new(tenant.clone(), RunId::from_parts(at, entropy));
    let events = (0..4)
        .map(|seq| StoredEvent {
            seq: Seq(seq),
            body: vec![b'e'; EVENT],
        })
        .collect();
    let mut summary = Summary::new(
        WorkflowId::parse("campaign-brief").expect("a workflow id"),
        ContentHash::of(b"definition"),
        principal.clone(),
        at,
    );
    summary.status = RunStatus::Completed;
    let mut batch = Batch::new(run.clone(), Guard::Create, events, summary);
    if let Request::Keyed = request {
        batch.idempotency = Some(IdempotencyRecord {
            key: IdempotencyKey {
                tenant,
                principal,
                scope: "POST /v1/runs".to_owned(),
                key: ContentHash::of(&n.to_be_bytes()).as_str().to_owned(),
            },
            digest: ContentHash::of(b"request").as_str().to_owned(),
            run: Some(run.run),
            response: vec![b'r'; 256],
            expires_at: at.plus_millis(86_400_000),
        });
    }
    batch
}
