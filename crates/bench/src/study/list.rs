//! Lists of a store with many runs: first pages, late pages, selective filters, and single runs.
//!
//! Of a hundred runs one waits, one has failed, and ten use another workflow; so each filter has something to
//! skip.

use std::time::Instant;

use anyhow::{Context as _, Result, ensure};
use base64::{Engine as _, engine::general_purpose::URL_SAFE_NO_PAD};
use rand::Rng as _;
use serde_json::{Value, json};
use wopr_core::RunId;

use super::context::Context;
use crate::{
    call::Caller,
    figure::{Figure, Figures, mebibytes},
    latency::Latencies,
    process::Process,
    seed,
    workflow::{APPROVAL, CHAIN, FAILURE, ONE},
};

/// Number of reads of each list.
const READS: usize = 100;

/// REST lists: label and query.
const LISTS: [(&str, &str); 6] = [
    ("first page", ""),
    ("completed", "&status=completed"),
    ("waiting", "&status=waiting-approval"),
    ("failed", "&status=failed"),
    ("a status that none has", "&status=paused"),
    ("of one workflow", "&workflowId=wopr-bench-chain"),
];

pub(super) async fn study(context: &Context<'_>) -> Result<Vec<Figure>> {
    let place = context.place().await?;
    let start = Instant::now();
    let some = seed::fill(&place, context.size, workflow, context.talk).await?;
    let mut figures = Figures::default();
    figures.add(
        "runs stored per second",
        context.size as f64 / start.elapsed().as_secs_f64(),
        "",
    );
    figures.add("store", mebibytes(place.size().await?), "MiB");
    let server = context.serve(&place, &[]).await?;
    figures.add("ready after a restart", server.ready_after.as_secs_f64(), "s");

    let mut caller = server.caller();
    for (name, query) in LISTS {
        let path = format!("/v1/runs?limit=50{query}");
        let took = read(&mut caller, || path.clone()).await?;
        figures.add_latencies(name, took.summarize());
    }
    // A cursor is the id of the last run on the previous page.
    let anywhere = || {
        let run = pick(&some);
        format!(
            "/v1/runs?limit=50&cursor={}",
            URL_SAFE_NO_PAD.encode(run.as_str())
        )
    };
    figures.add_latencies("a page anywhere", read(&mut caller, anywhere).await?.summarize());
    let one = || format!("/v1/runs/{}", pick(&some));
    figures.add_latencies("a run anywhere", read(&mut caller, one).await?.summarize());

    let (took, total) = list_tasks(&mut caller, json!({"pageSize": 50})).await?;
    ensure!(
        total == context.size as u64,
        "list all tasks: {total} were counted"
    );
    figures.add_latencies("A2A tasks, first page", took.summarize());
    let filter = json!({"pageSize": 50, "status": "TASK_STATE_INPUT_REQUIRED"});
    let (took, total) = list_tasks(&mut caller, filter).await?;
    figures.add_latencies("A2A tasks that wait", took.summarize());
    figures.add("tasks that wait", total as f64, "");
    let resident = server.process().and_then(Process::resident);
    figures.add_known("RSS afterwards", resident.map(mebibytes), "MiB");
    Ok(figures.0)
}

fn workflow(n: usize) -> &'static str {
    match n % 100 {
        0 => APPROVAL,
        1 => FAILURE,
        2..12 => CHAIN,
        _ => ONE,
    }
}

fn pick(some: &[RunId]) -> &RunId {
    &some[rand::rng().random_range(0..some.len())]
}

/// Reads pages. The first read warms up and does not count.
async fn read(caller: &mut Caller, path: impl Fn() -> String) -> Result<Latencies> {
    caller.get(&path()).await?;
    let mut took = Latencies::default();
    for _ in 0..READS {
        let path = path();
        let start = Instant::now();
        caller.get(&path).await?;
        took.add(start.elapsed());
    }
    Ok(took)
}

/// Reads a page of A2A tasks repeatedly. Returns the latencies and the total number of tasks.
async fn list_tasks(caller: &mut Caller, params: Value) -> Result<(Latencies, u64)> {
    let body = json!({"jsonrpc": "2.0", "id": 1, "method": "ListTasks", "params": params}).to_string();
    let mut took = Latencies::default();
    for _ in 0..READS {
        let start = Instant::now();
        let field = "a2a-version: 1.0\r\n";
        let status = caller.ask("POST", "/a2a", field, Some(body.as_bytes())).await?;
        took.add(start.elapsed());
        caller.expect(status, 200, b"\"result\"")?;
    }
    let total = caller.document()?["result"]["totalSize"].as_u64();
    Ok((took, total.context("find how many tasks there are")?))
}
