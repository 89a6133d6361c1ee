//! A run with many child runs: how long they take, what each costs the parent, and the cost of reading and
//! cancelling such a run.

use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, ensure};
use serde_json::json;

use super::context::Context;
use crate::{
    figure::{Bar, Figure, Figures, mebibytes},
    latency::Latencies,
    meter::Reading,
    process::Process,
    server::Server,
    workflow::{CROWD, WAITING_CROWD, crowd, waiting_crowd},
};

/// Timeout of each phase.
const LIMIT: Duration = Duration::from_secs(900);
/// Interval between two polls of the counters.
const PAUSE: Duration = Duration::from_millis(20);
/// A server without appends for this long is idle.
const REST: Duration = Duration::from_millis(500);
/// Number of reads of each kind.
const READS: usize = 20;

pub(super) async fn study(context: &Context<'_>) -> Result<Vec<Figure>> {
    let crowd = crowd(context.size);
    let waiting = waiting_crowd(context.size);
    let place = context.place().await?;
    let most = crowd.executions.max(1_000);
    let server = context
        .serve(&place, &[format!("limits.max_node_executions={most}")])
        .await?;
    server.register(&crowd.document).await?;
    server.register(&waiting.document).await?;
    let children = crowd.children as f64;
    let mut figures = Figures::default();
    figures.add("children", children, "");

    let before = Reading::take(&server, Some(&place)).await?;
    let start = Instant::now();
    let parent = begin(&server, CROWD).await?;
    reach(&server, "openwop_run_completed_total", children + 1.0).await?;
    let took = start.elapsed().as_secs_f64();
    let used = Reading::take(&server, Some(&place)).await?.since(&before);
    figures.add("until the parent completed", took, "s");
    figures.hold(
        "children per second",
        Some(children / took),
        "",
        Bar::AtLeast(20_000.0),
    );
    figures.add_known("appends", used.appends, "");
    figures.add_known(
        "appends per child",
        used.appends.map(|appends| appends / children),
        "",
    );
    figures.add_known(
        "fsyncs per child",
        used.fsyncs.map(|fsyncs| fsyncs / children),
        "",
    );
    figures.add_known(
        "KiB written per child",
        used.bytes.map(|bytes| bytes / 1_024.0 / children),
        "",
    );
    let cpu = used.cpu().map(|cpu| cpu.as_secs_f64() * 1e6 / children);
    figures.add_known("CPU per child", cpu, "us");
    let resident = || server.process().and_then(Process::resident).map(mebibytes);
    figures.add_known("RSS afterwards", resident(), "MiB");

    let mut caller = server.caller();
    caller.get(&format!("/v1/runs/{parent}")).await?;
    let document = caller.document()?;
    ensure!(
        document["status"] == "completed",
        "complete the parent: it is {}, {}",
        document["status"],
        document["error"]
    );
    for (name, path) in [
        ("the parent read", format!("/v1/runs/{parent}")),
        (
            "a page of its children",
            format!("/v1/runs?limit=50&parentRunId={parent}"),
        ),
    ] {
        let mut took = Latencies::default();
        for _ in 0..READS {
            let start = Instant::now();
            caller.get(&path).await?;
            took.add(start.elapsed());
        }
        figures.add_latencies(name, took.summarize());
    }
    let start = Instant::now();
    let path = format!("/v1/runs/{parent}/events");
    let status = caller
        .ask("GET", &path, "accept: text/event-stream\r\n", None)
        .await?;
    caller.expect(status, 200, b"event: run.completed\n")?;
    figures.add("its events read", start.elapsed().as_secs_f64(), "s");

    // Cancels a tree whose children all wait. A slow disk can look like a server at rest, and a parent that is
    // cancelled before it has all its children never gets the others.
    let at_once = waiting.children as f64;
    let parent = begin(&server, WAITING_CROWD).await?;
    let n_runs = children + 1.0 + at_once + 1.0;
    reach(&server, "openwop_run_created_total", n_runs).await?;
    rest(&server).await?;
    let start = Instant::now();
    caller
        .post(&format!("/v1/runs/{parent}/cancel"), &json!({}))
        .await?;
    figures.add("children that wait", at_once, "");
    figures.add(
        "cancel of their parent answered",
        start.elapsed().as_secs_f64(),
        "s",
    );
    reach(&server, "openwop_run_completed_total", n_runs).await?;
    figures.add(
        "until all of them were cancelled",
        start.elapsed().as_secs_f64(),
        "s",
    );
    figures.add_known("RSS in the end", resident(), "MiB");
    Ok(figures.0)
}

async fn begin(server: &Server, workflow: &str) -> Result<String> {
    let mut caller = server.caller();
    caller.post("/v1/runs", &json!({"workflowId": workflow})).await?;
    let document = caller.document()?;
    let id = document["runId"].as_str().context("find the id of the run")?;
    Ok(id.to_owned())
}

/// Waits until a counter of runs reaches `n`.
async fn reach(server: &Server, counter: &str, n: f64) -> Result<()> {
    let start = Instant::now();
    loop {
        let reached = server.counters().await?.get(counter).unwrap_or_default();
        if reached >= n {
            return Ok(());
        }
        ensure!(
            start.elapsed() < LIMIT,
            "wait for {counter} to reach {n}: it is {reached} after {LIMIT:?}"
        );
        tokio::time::sleep(PAUSE).await;
    }
}

/// Waits until the server makes no more appends.
async fn rest(server: &Server) -> Result<()> {
    let start = Instant::now();
    let mut appends = None;
    loop {
        let now = server.counters().await?.get("wopr_store_appends_total");
        if now == appends {
            return Ok(());
        }
        appends = now;
        ensure!(
            start.elapsed() < LIMIT,
            "wait for the server to rest: it appends after {LIMIT:?}"
        );
        tokio::time::sleep(REST).await;
    }
}
