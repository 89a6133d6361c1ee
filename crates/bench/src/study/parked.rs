//! Many runs that wait for an approval: their disk and memory usage, the time to restart a server with them,
//! and the latency of resuming one.

use std::time::Instant;

use anyhow::{Context as _, Result};
use rand::seq::SliceRandom as _;

use super::context::Context;
use crate::{
    client::resume,
    disk::Probe,
    figure::{Bar, Figure, Figures, mebibytes},
    latency::Latencies,
    process::Process,
    seed,
    workflow::APPROVAL,
};

/// Maximum number of runs to resume.
const RESUMED: usize = 1_000;
/// Number of resumed runs between two disk probes.
const PROBE_EVERY: usize = 10;

pub(super) async fn study(context: &Context<'_>) -> Result<Vec<Figure>> {
    let place = context.place().await?;
    let start = Instant::now();
    let mut parked = seed::fill(&place, context.size, |_| APPROVAL, context.talk).await?;
    let mut figures = Figures::default();
    figures.add(
        "runs parked per second",
        context.size as f64 / start.elapsed().as_secs_f64(),
        "",
    );
    let bytes = place.size().await? as f64 / context.size as f64;
    figures.hold("bytes on disk per run", Some(bytes), "", Bar::AtMost(3_072.0));

    // The store was closed before, so this is a restart.
    let server = context.serve(&place, &[]).await?;
    let ready = server.ready_after.as_secs_f64();
    figures.hold("ready after a restart", Some(ready), "s", Bar::AtMost(3.0));
    let resident = || server.process().and_then(Process::resident).map(mebibytes);
    figures.hold("RSS when ready", resident(), "MiB", Bar::AtMost(256.0));

    parked.shuffle(&mut rand::rng());
    parked.truncate(RESUMED);
    let mut probe = Probe::create(place.folder()).context("probe the disk")?;
    let (mut latencies, mut raw) = (Latencies::default(), Latencies::default());
    let mut caller = server.caller();
    caller.connect().await?;
    for (n, run) in parked.iter().enumerate() {
        let start = Instant::now();
        resume(&mut caller, run.as_str()).await?;
        latencies.add(start.elapsed());
        if n % PROBE_EVERY == 0 {
            raw.add(probe.take().context("probe the disk")?);
        }
    }
    let (latencies, raw) = (latencies.summarize(), raw.summarize());
    figures.add("runs resumed", parked.len() as f64, "");
    figures.add_latencies("resumed, of random ones", latencies);
    figures.add_known("F, p50", raw.map(|raw| raw.p50 / 1_000.0), "ms");
    let slowest = latencies
        .zip(raw)
        .map(|(latencies, raw)| (latencies.max - raw.p50) / 1_000.0);
    figures.hold("slowest without F", slowest, "ms", Bar::AtMost(50.0));
    figures.hold("RSS afterwards", resident(), "MiB", Bar::AtMost(256.0));
    Ok(figures.0)
}
