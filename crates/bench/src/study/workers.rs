//! Many workers on one queue: how many activities per second they lease and end.
//!
//! Each worker leases up to 32 activities at a time and submits their outcomes in one request. All share one thread, as the
//! clients of journeys do.

use std::{
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    time::{Duration, Instant},
};

use anyhow::{Context as _, Result, ensure};
use serde_json::{Value, json};
use tokio::task::JoinSet;

use super::context::Context;
use crate::{
    call::Caller,
    figure::{Bar, Figure, Figures, mebibytes},
    latency::Latencies,
    meter::Reading,
    process::Process,
    seed,
    workflow::{ACTIVITY, QUEUE},
};

/// The most workers at the same time.
const WORKERS: usize = 256;
/// The most activities of one lease.
const MOST: usize = 32;
/// How long a call waits for activities, in milliseconds. Near the end most calls wait in vain.
const WAIT_MS: u64 = 200;
/// Timeout of the whole measurement.
const LIMIT: Duration = Duration::from_secs(900);

pub(super) async fn study(context: &Context<'_>) -> Result<Vec<Figure>> {
    let place = context.place().await?;
    seed::fill(&place, context.size, |_| ACTIVITY, context.talk).await?;
    let server = context.serve(&place, &[]).await?;
    let n_workers = WORKERS.min(context.size);
    let mut figures = Figures::default();
    figures.add("activities", context.size as f64, "");
    figures.add("workers", n_workers as f64, "");

    let mut callers = Vec::with_capacity(n_workers);
    for _ in 0..n_workers {
        let mut caller = server.caller();
        caller.connect().await?;
        callers.push(caller);
    }
    let left = Arc::new(AtomicUsize::new(context.size));
    let before = Reading::take(&server, Some(&place)).await?;
    let start = Instant::now();
    let mut workers = JoinSet::new();
    for (n, caller) in callers.into_iter().enumerate() {
        workers.spawn(work(caller, n, Arc::clone(&left)));
    }
    let mut leases = Latencies::default();
    let joining = async {
        while let Some(worked) = workers.join_next().await {
            for lease in worked.context("join a worker")?? {
                leases.add(lease);
            }
        }
        anyhow::Ok(())
    };
    let joined = tokio::time::timeout(LIMIT, joining).await;
    joined.context("end all activities in time")??;
    let took = start.elapsed().as_secs_f64();
    let used = Reading::take(&server, Some(&place)).await?.since(&before);
    let n = context.size as f64;
    figures.hold(
        "activities per second",
        Some(n / took),
        "",
        Bar::AtLeast(10_000.0),
    );
    figures.add_latencies("a lease that found activities", leases.summarize());
    figures.add_known("fsyncs per activity", used.fsyncs.map(|fsyncs| fsyncs / n), "");
    let cpu = used.cpu().map(|cpu| cpu.as_secs_f64() * 1e6 / n);
    figures.add_known("CPU per activity", cpu, "us");
    let resident = server.process().and_then(Process::resident).map(mebibytes);
    figures.add_known("RSS afterwards", resident, "MiB");

    let mut caller = server.caller();
    caller.get("/v1/host/wopr/workers").await?;
    let queues = &caller.document()?["queues"];
    ensure!(*queues == json!([]), "end all activities: {queues}");
    Ok(figures.0)
}

/// Leases and ends activities until none is left, and returns how long its leases took.
async fn work(mut caller: Caller, n: usize, left: Arc<AtomicUsize>) -> Result<Vec<Duration>> {
    let body = json!({"queue": QUEUE, "worker": format!("worker{n}"), "max": MOST, "waitMs": WAIT_MS});
    let mut leases = Vec::new();
    while left.load(Ordering::Relaxed) > 0 {
        let start = Instant::now();
        caller.post("/v1/activities:lease", &body).await?;
        let leased = caller.document()?;
        let activities = leased["activities"].as_array().context("read a lease")?;
        if !activities.is_empty() {
            leases.push(start.elapsed());
        }
        if activities.is_empty() {
            continue;
        }
        let outcome = |activity: &Value| json!({"token": activity["token"], "outcome": {"ok": true, "result": {"done": true}}});
        let outcomes: Vec<_> = activities.iter().map(outcome).collect();
        caller
            .post("/v1/activities:submit", &json!({ "outcomes": outcomes }))
            .await?;
        let ended = caller.document()?;
        let results = ended["results"].as_array().context("read the results")?;
        let n_ended = results.iter().filter(|result| result["ok"] == true).count();
        ensure!(n_ended == outcomes.len(), "end activities: {ended}");
        left.fetch_sub(n_ended, Ordering::Relaxed);
    }
    Ok(leases)
}
