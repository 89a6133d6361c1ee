//! Many open SSE streams on one process: their memory, their idle cost, and the effect of readers that stop
//! reading on other streams and on memory.

use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, ensure};
use serde_json::json;
use tokio::net::TcpStream;

use super::context::Context;
use crate::{
    client::{park, resume},
    figure::{Bar, Figure, Figures, mebibytes},
    latency::{Latencies, Summary},
    process::Process,
    server::Server,
    subscriber::{Subscriber, idle_reader},
    workflow::ONE,
};

/// Memory target of the server, in mebibytes.
const MOST_MEMORY: Bar = Bar::AtMost(512.0);
/// One stream in this many is answered, twice, while the others keep waiting.
const ANSWERED_SHARE: usize = 10;
/// Runs with a large event each, for readers that stop reading.
const LARGE_RUNS: usize = 10;
/// Number of such readers per run.
const IDLE_READERS: usize = 10;
/// Size of the large event in bytes: far more than the buffers of a connection.
const LARGE: usize = 4 << 20;

pub(super) async fn study(context: &Context<'_>) -> Result<Vec<Figure>> {
    context.check_files(context.size + LARGE_RUNS * IDLE_READERS)?;
    let place = context.place().await?;
    let server = context.serve(&place, &[]).await?;
    let resident = || server.process().and_then(Process::resident);
    let runs = park(server.address, &server.key, context.size).await?;
    let mut figures = Figures::default();
    figures.add("streams", context.size as f64, "");
    let before = resident();
    figures.add_known("RSS before", before.map(mebibytes), "MiB");

    let start = Instant::now();
    let streams = Subscriber::open_all(&server, &runs).await?;
    figures.add(
        "opened per second",
        context.size as f64 / start.elapsed().as_secs_f64(),
        "",
    );
    let open = resident();
    figures.hold(
        "RSS with all of them open",
        open.map(mebibytes),
        "MiB",
        MOST_MEMORY,
    );
    let each = open
        .zip(before)
        .map(|(open, before)| open.saturating_sub(before) as f64);
    let each = each.map(|bytes| bytes / 1_024.0 / context.size as f64);
    figures.add_known("KiB per stream", each, "");
    let counted = server.counters().await?.get("wopr_open_streams");
    ensure!(
        counted.is_none_or(|counted| counted >= context.size as f64),
        "keep {} streams open: the server counts {counted:?}",
        context.size
    );
    figures.add_known(
        "CPU while nothing happens",
        idle_cpu(&server, context.seconds).await,
        "%",
    );

    let mut pairs = runs.into_iter().zip(streams);
    let share = (context.size / ANSWERED_SHARE).max(1);
    let alone = deliver(&server, pairs.by_ref().take(share)).await?;
    figures.add_latencies("from an answer to its stream", alone);

    let idle = idle_readers(&server).await?;
    let beside = deliver(&server, pairs.by_ref().take(share)).await?;
    figures.add("readers that do not read", idle.len() as f64, "");
    figures.add_latencies("the same beside them", beside);
    let by = alone.zip(beside).map(|(alone, beside)| beside.p50 / alone.p50);
    figures.add_known("p50 beside by alone", by, "");
    let grown = resident()
        .zip(open)
        .map(|(now, open)| mebibytes(now.saturating_sub(open)));
    figures.add_known("RSS they added", grown, "MiB");
    figures.hold("RSS in the end", resident().map(mebibytes), "MiB", MOST_MEMORY);
    drop(idle);
    // Keeps the unanswered streams open until here.
    drop(pairs);
    Ok(figures.0)
}

/// Returns the share of one core that the idle server uses.
async fn idle_cpu(server: &Server, time: Duration) -> Option<f64> {
    let process = server.process()?;
    let (start, before) = (Instant::now(), process.cpu()?);
    tokio::time::sleep(time).await;
    let used = process.cpu()?.saturating_sub(before);
    Some(100.0 * used.as_secs_f64() / start.elapsed().as_secs_f64())
}

/// Answers runs one after another, each once the previous stream has ended.
async fn deliver(
    server: &Server,
    pairs: impl Iterator<Item = (String, Subscriber)>,
) -> Result<Option<Summary>> {
    let mut caller = server.caller();
    caller.connect().await?;
    let mut latencies = Latencies::default();
    for (run, subscriber) in pairs {
        let start = Instant::now();
        let (resumed, read) = tokio::join!(resume(&mut caller, &run), subscriber.end());
        resumed?;
        read?;
        latencies.add(start.elapsed());
    }
    Ok(latencies.summarize())
}

/// Opens readers of large events that never read.
async fn idle_readers(server: &Server) -> Result<Vec<TcpStream>> {
    let text = "x".repeat(LARGE);
    let mut caller = server.caller();
    let mut readers = Vec::new();
    for _ in 0..LARGE_RUNS {
        caller
            .post("/v1/runs", &json!({"workflowId": ONE, "inputs": {"text": text}}))
            .await?;
        let document = caller.document()?;
        let run = document["runId"].as_str().context("find the id of the run")?;
        for _ in 0..IDLE_READERS {
            readers.push(idle_reader(server, run).await?);
        }
    }
    Ok(readers)
}
