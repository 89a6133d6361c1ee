//! Fairness: one tenant repeatedly runs the heaviest possible workflow. Another one starts fifty runs per
//! second, regardless of response times, and must wait no longer than the larger of [`FAIR`] and [`TIMES`]
//! times its idle latency.

use std::{fs, net::SocketAddr, sync::Arc, time::Duration};

use serde_json::{Value, json};
use tokio::{
    sync::{Mutex, mpsc},
    task::JoinSet,
    time::{self, Instant},
};

use super::{Count, KEY, MALLORY, Seen, definitions, mallory, seconds, tenant};
use crate::host::{Host, place};

/// Runs per second of the tenant.
const RATE: u32 = 50;
/// Always acceptable 99th percentile.
const FAIR: Duration = Duration::from_millis(25);
/// Acceptable multiple of the idle latency.
const TIMES: u32 = 3;
/// Clients of the heavy tenant, with one run each at a time.
const HEAVY: u64 = 8;
const CONNECTIONS: usize = 16;

/// Starts runs at a fixed rate; a late response delays no other run.
async fn open_loop(address: SocketAddr, lasts: Duration) -> Seen {
    let (begin, mut all) = (Instant::now(), Seen::default());
    let (turns, clients) = clients(address);
    let n = u32::try_from(lasts.as_secs())
        .unwrap_or(u32::MAX)
        .saturating_mul(RATE);
    for turn in 0..n {
        let due = begin + Duration::from_secs(1) * turn / RATE;
        // sleep: the rate of the tenant
        time::sleep_until(due).await;
        turns.send(due).await.expect("clients listen");
    }
    drop(turns);
    for seen in clients.join_all().await {
        all.add(seen);
    }
    all.sorted()
}

/// Clients that take turns from a shared queue.
fn clients(address: SocketAddr) -> (mpsc::Sender<Instant>, JoinSet<Seen>) {
    let (turns, taken) = mpsc::channel(4_096);
    let taken = Arc::new(Mutex::new(taken));
    let mut clients = JoinSet::new();
    for _ in 0..CONNECTIONS {
        clients.spawn(tenant::take_turns(address, KEY, Arc::clone(&taken)));
    }
    (turns, clients)
}

fn heavy(items: &Value) -> Value {
    json!({ "workflowId": "heavy", "inputs": { "items": items } })
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_tenant_waits_little_beside_the_heaviest_workflow() {
    let Some(lasts) = seconds() else {
        println!("skipped: WOPR_SIEGE_SECONDS does not say for how long; `cargo xtask siege` does");
        return;
    };
    let folder = tempfile::tempdir_in(place()).unwrap();
    let config = folder.path().join("fair.toml");
    let keys = format!(
        "[[auth.keys]]\nid = \"mallory\"\nsecret = \"{MALLORY}\"\ntenant = \"mallory\"\nscopes = [\"*\"]\n"
    );
    fs::write(&config, keys).unwrap();
    let store = crate::host::sqlite(folder.path());
    let mut host = Host::over(folder.path(), "host", store)
        .variable("WOPR_CONFIG", config.display().to_string())
        .variable("WOPR_LOG", "error");
    let address = host.start().await;
    let (status, said) = mallory::register(address, MALLORY, &definitions::heavy()).await;
    assert_eq!(status, 201, "{said}");

    let rest = open_loop(address, lasts / 4).await;
    println!("at rest: {rest}");
    let items: Value = (0..10_000).map(|n| json!({ "n": n })).collect();
    let mut others = JoinSet::new();
    let (runs, refused) = (Count::default(), Count::default());
    for _ in 0..HEAVY {
        let (body, runs, refused) = (heavy(&items), runs.clone(), refused.clone());
        others.spawn(async move {
            loop {
                match mallory::ask(address, "/v1/runs", &body).await {
                    Some(201) => runs.add(),
                    _ => refused.add(),
                }
            }
        });
    }
    let beside = open_loop(address, lasts).await;
    others.shutdown().await;
    println!(
        "beside {} heavy runs, and {} that were refused: {beside}",
        runs.get(),
        refused.get()
    );
    assert_eq!(beside.errors, [""; 0], "{}", host.said());
    assert!(runs.get() > 0, "nothing heavy ran");
    let bar = FAIR.max(rest.percentile(99) * TIMES);
    assert!(beside.percentile(99) <= bar, "{beside}, at rest {rest}");
    host.terminate().await;
}
