//! Delivery latency of events: one run with many subscribers, and many runs with one subscriber each.

use std::{
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicUsize, Ordering::Relaxed},
    },
    time::{Duration, Instant},
};

use anyhow::{Context as _, Result};
use tokio::task::JoinSet;

use super::context::Context;
use crate::{
    client::{park, resume},
    figure::{Figure, Figures, mebibytes},
    latency::Latencies,
    process::Process,
    server::Server,
    subscriber::Subscriber,
};

/// Minimum number of rounds, however long they take.
const ROUNDS: usize = 3;
/// Number of connections that answer runs concurrently.
const ANSWERING: usize = 32;

/// One run with many subscribers: each round answers one run, and all subscribers receive its completion.
pub(super) async fn one_run(context: &Context<'_>) -> Result<Vec<Figure>> {
    context.check_files(context.size)?;
    let place = context.place().await?;
    let server = context.serve(&place, &[]).await?;
    let mut caller = server.caller();
    caller.connect().await?;
    let mut tally = Tally::default();
    while tally.has_time_left(context.seconds) {
        let run = park(server.address, &server.key, 1)
            .await?
            .pop()
            .context("park a run")?;
        let subscribers = Subscriber::open_all(&server, vec![&run; context.size]).await?;
        tally.opened(&server);
        let mut reading = JoinSet::new();
        for subscriber in subscribers {
            reading.spawn(async move {
                subscriber.end().await?;
                anyhow::Ok(Instant::now())
            });
        }
        let start = tally.begin(&server);
        resume(&mut caller, &run).await?;
        while let Some(read) = reading.join_next().await {
            tally.delivered(start, read.context("read a stream")??);
        }
        tally.end(&server, start);
    }
    Ok(tally.figures("subscribers", context.size))
}

/// Many runs with one subscriber each: each round answers all runs, and each subscriber receives its run's
/// completion.
pub(super) async fn many_runs(context: &Context<'_>) -> Result<Vec<Figure>> {
    context.check_files(context.size)?;
    let place = context.place().await?;
    let server = context.serve(&place, &[]).await?;
    let mut tally = Tally::default();
    while tally.has_time_left(context.seconds) {
        let runs = park(server.address, &server.key, context.size).await?;
        let subscribers = Subscriber::open_all(&server, &runs).await?;
        tally.opened(&server);
        let mut reading = JoinSet::new();
        for (n, subscriber) in subscribers.into_iter().enumerate() {
            reading.spawn(async move {
                subscriber.end().await?;
                anyhow::Ok((n, Instant::now()))
            });
        }
        let start = tally.begin(&server);
        let answered = answer_all(&server, runs).await?;
        while let Some(read) = reading.join_next().await {
            let (n, at) = read.context("read a stream")??;
            tally.delivered(answered[n], at);
        }
        tally.end(&server, start);
    }
    Ok(tally.figures("runs", context.size))
}

/// Answers runs on several connections. Returns the time at which each answer was sent.
pub(super) async fn answer_all(server: &Server, runs: Vec<String>) -> Result<Vec<Instant>> {
    let now = Instant::now();
    let sent = Arc::new(Mutex::new(vec![now; runs.len()]));
    let (runs, next) = (Arc::new(runs), Arc::new(AtomicUsize::new(0)));
    let mut answering = JoinSet::new();
    for _ in 0..ANSWERING.min(runs.len()) {
        let mut caller = server.caller();
        let (runs, next, sent) = (Arc::clone(&runs), Arc::clone(&next), Arc::clone(&sent));
        answering.spawn(async move {
            caller.connect().await?;
            loop {
                let n = next.fetch_add(1, Relaxed);
                let Some(run) = runs.get(n) else {
                    return anyhow::Ok(());
                };
                sent.lock().unwrap_or_else(PoisonError::into_inner)[n] = Instant::now();
                resume(&mut caller, run).await?;
            }
        });
    }
    while let Some(answered) = answering.join_next().await {
        answered.context("answer runs")??;
    }
    let sent = sent.lock().unwrap_or_else(PoisonError::into_inner).clone();
    Ok(sent)
}

/// Totals of all rounds.
#[derive(Debug, Default)]
struct Tally {
    begun: Option<Instant>,
    rounds: usize,
    latencies: Latencies,
    elapsed: Duration,
    cpu_before: Option<Duration>,
    cpu: Option<Duration>,
    resident: Option<u64>,
}

impl Tally {
    /// Returns `true` if there is time for another round.
    fn has_time_left(&mut self, time: Duration) -> bool {
        let begun = *self.begun.get_or_insert_with(Instant::now);
        self.rounds < ROUNDS || begun.elapsed() < time
    }

    fn opened(&mut self, server: &Server) {
        let resident = server.process().and_then(Process::resident);
        self.resident = self.resident.max(resident);
    }

    fn begin(&mut self, server: &Server) -> Instant {
        self.cpu_before = server.process().and_then(Process::cpu);
        Instant::now()
    }

    fn delivered(&mut self, start: Instant, at: Instant) {
        self.latencies.add(at.saturating_duration_since(start));
    }

    fn end(&mut self, server: &Server, start: Instant) {
        self.elapsed += start.elapsed();
        self.rounds += 1;
        let after = server.process().and_then(Process::cpu);
        if let Some((before, after)) = self.cpu_before.zip(after) {
            *self.cpu.get_or_insert_default() += after.saturating_sub(before);
        }
    }

    fn figures(self, what: &str, size: usize) -> Vec<Figure> {
        let mut figures = Figures::default();
        let n = self.latencies.len() as f64;
        figures.add(what, size as f64, "");
        figures.add("rounds", self.rounds as f64, "");
        figures.add("deliveries", n, "");
        figures.add("deliveries per second", n / self.elapsed.as_secs_f64(), "");
        figures.add_latencies("from the answer to a delivery", self.latencies.summarize());
        let cpu = self.cpu.map(|cpu| cpu.as_secs_f64() * 1e6 / n);
        figures.add_known("CPU per delivery", cpu, "us");
        figures.add_known("RSS with all streams open", self.resident.map(mebibytes), "MiB");
        figures.0
    }
}
