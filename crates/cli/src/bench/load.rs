//! Closed-loop load: so many clients, each starting its next run when its last one completed.
//!
//! A measurement is cut into rounds, with the raw cost of the disk taken in between while every client rests: both
//! see the same moments of a disk that swings. All clients share one thread, which keeps the generator small
//! beside the server.

use std::{
    path::Path,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering::Relaxed},
    },
    time::{Duration, Instant},
};

use anyhow::{Context as _, Result, bail};
use tokio::task::JoinSet;

use super::{
    disk::Probe,
    latency::Latencies,
    metrics::Metrics,
    scenario::{Client, Scenario, once},
    server::{Process, Server},
};

/// The disk is probed so many times per second of load.
const PROBES_PER_SECOND: f64 = 30.0;
/// A client that fails so often in a row gives up: the server is gone, not busy.
const FAILURES_IN_A_ROW: u32 = 5;

/// One measurement.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Plan {
    pub(crate) scenario: Scenario,
    pub(crate) concurrency: usize,
    /// How long clients start new runs.
    pub(crate) time: Duration,
    /// The most runs.
    pub(crate) runs: u64,
    /// How long clients start runs that do not count.
    pub(crate) warm_up: Duration,
}

impl Plan {
    /// How long a round is. One client alone ends a round without a rest, so its rounds may be short.
    fn round(&self) -> Duration {
        Duration::from_millis(if self.concurrency == 1 { 250 } else { 1_000 })
    }
}

/// What was measured.
#[derive(Debug, Default)]
pub(crate) struct Outcome {
    pub(crate) latencies: Latencies,
    pub(crate) raw: Latencies,
    pub(crate) failures: u64,
    pub(crate) first_failure: Option<String>,
    /// From the start of each round to its last answer, added up.
    pub(crate) elapsed: Duration,
    pub(crate) server: Option<Duration>,
    pub(crate) client: Option<Duration>,
    pub(crate) appends: Option<f64>,
    pub(crate) commits: Option<f64>,
    pub(crate) resident: Option<u64>,
}

/// Where a measurement takes place.
#[derive(Debug)]
pub(crate) struct Target {
    address: std::net::SocketAddr,
    key: String,
    process: Option<Process>,
    probe: Probe,
    /// Keeps the ids of messages of all clients apart.
    next_client: u64,
}

impl Target {
    /// Prepares measurements of a server, with the raw cost of the disk that `folder` is on.
    pub(crate) fn new(server: &Server, folder: &Path) -> Result<Self> {
        let since_epoch = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH);
        let nanos = since_epoch.context("read the clock")?.as_nanos();
        Ok(Self {
            address: server.address,
            key: server.key.clone(),
            process: server.process(),
            probe: Probe::create(folder).context("probe the disk")?,
            next_client: u64::try_from(nanos & u128::from(u64::MAX)).expect("the mask is 64 bits"),
        })
    }

    /// Measures.
    pub(crate) async fn measure(&mut self, plan: Plan) -> Result<Outcome> {
        let mut outcome = Outcome::default();
        let mut clients = Vec::with_capacity(plan.concurrency);
        for _ in 0..plan.concurrency {
            self.next_client = self.next_client.wrapping_add(1);
            let mut client = Client::new(self.address, &self.key, plan.scenario, self.next_client);
            client.connect().await?;
            clients.push(client);
        }
        let mut warm_up = Outcome::default();
        let runs = Arc::new(AtomicU64::new(plan.runs.min(10_000)));
        clients = round(clients, plan.warm_up, &runs, &mut warm_up).await;
        if let Some(failure) = warm_up.first_failure {
            bail!("complete a run: {failure}");
        }

        let runs = Arc::new(AtomicU64::new(plan.runs));
        let before = self.counters().await?;
        let mut left = plan.time;
        let mut resources = (Duration::ZERO, Duration::ZERO);
        while !left.is_zero() && runs.load(Relaxed) > 0 && !clients.is_empty() {
            let time = left.min(plan.round());
            left -= time;
            let start = (self.process.and_then(Process::cpu), Process::current().cpu());
            clients = round(clients, time, &runs, &mut outcome).await;
            let end = (self.process.and_then(Process::cpu), Process::current().cpu());
            for (sum, start, end) in [
                (&mut resources.0, start.0, end.0),
                (&mut resources.1, start.1, end.1),
            ] {
                *sum += end.unwrap_or_default().saturating_sub(start.unwrap_or_default());
            }
            let n_probes = (time.as_secs_f64() * PROBES_PER_SECOND).ceil();
            for _ in 0..n_probes as u32 {
                outcome.raw.add(self.probe.take().context("probe the disk")?);
            }
        }
        let after = self.counters().await?;
        outcome.appends = after.since(&before, "wopr_store_appends_total");
        outcome.commits = after.since(&before, "wopr_store_groups_total");
        outcome.server = self.process.map(|_| resources.0);
        outcome.client = Some(resources.1);
        outcome.resident = self.process.and_then(Process::resident);
        Ok(outcome)
    }

    async fn counters(&self) -> Result<Metrics> {
        let (status, text) = once(self.address, &self.key, "GET", "/metrics", None).await?;
        // A server may keep its metrics to itself; then the figures from them are left out.
        Ok(Metrics::parse(if status == 200 { &text } else { "" }))
    }
}

/// One round. A client that gave up does not come back.
async fn round(
    clients: Vec<Client>,
    time: Duration,
    runs: &Arc<AtomicU64>,
    outcome: &mut Outcome,
) -> Vec<Client> {
    let start = Instant::now();
    let mut tasks = JoinSet::new();
    for client in clients {
        tasks.spawn(keep_going(client, start + time, Arc::clone(runs)));
    }
    let mut clients = Vec::with_capacity(tasks.len());
    while let Some(work) = tasks.join_next().await {
        let work = work.expect("a client does not panic");
        outcome.latencies.append(work.latencies);
        outcome.failures += work.failures;
        outcome.first_failure = outcome.first_failure.take().or(work.first_failure);
        clients.extend(work.client);
    }
    outcome.elapsed += start.elapsed();
    clients
}

struct Work {
    client: Option<Client>,
    latencies: Latencies,
    failures: u64,
    first_failure: Option<String>,
}

async fn keep_going(mut client: Client, until: Instant, runs: Arc<AtomicU64>) -> Work {
    let mut latencies = Latencies::default();
    let mut failures = 0;
    let mut first_failure = None;
    let mut in_a_row = 0;
    let take = || {
        runs.fetch_update(Relaxed, Relaxed, |left| left.checked_sub(1))
            .is_ok()
    };
    while in_a_row < FAILURES_IN_A_ROW && Instant::now() < until && take() {
        let start = Instant::now();
        match client.run().await {
            Ok(()) => {
                latencies.add(start.elapsed());
                in_a_row = 0;
            }
            Err(error) => {
                failures += 1;
                in_a_row += 1;
                first_failure.get_or_insert_with(|| format!("{error:#}"));
            }
        }
    }
    Work {
        client: (in_a_row < FAILURES_IN_A_ROW).then_some(client),
        latencies,
        failures,
        first_failure,
    }
}
