//! Closed-loop load: N clients, each of which starts its next run when the previous one has completed.
//!
//! A measurement is divided into rounds. Between rounds all clients pause and the raw cost of the disk is
//! measured, so that both see the same variations in disk speed. All clients share one thread, to keep the
//! load generator small compared to the server.

use std::{
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering::Relaxed},
    },
    time::{Duration, Instant, SystemTime, UNIX_EPOCH},
};

use anyhow::{Context as _, Result, bail};
use tokio::task::JoinSet;

use super::{
    client::Client,
    disk::Probe,
    latency::Latencies,
    meter::{Reading, Used},
    place::Place,
    process::Process,
    scenario::{Journey, Scenario, Way},
    server::Server,
};

/// Disk probes per second of load.
const PROBES_PER_SECOND: f64 = 30.0;
/// A client gives up after this many failures in a row: the server is gone, not busy.
const FAILURES_IN_A_ROW: u32 = 5;
/// Maximum number of runs that warm up the server.
const WARM_UP_RUNS: u64 = 10_000;
/// Number of runs that each client can resume during warm-up.
const WARM_UP_PARKED: usize = 64;

/// The parameters of one measurement.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Plan {
    pub(crate) scenario: Scenario,
    pub(crate) journey: Journey,
    pub(crate) concurrency: usize,
    /// Time during which clients start new runs.
    pub(crate) time: Duration,
    /// Maximum number of runs.
    pub(crate) runs: u64,
    /// Warm-up time, whose runs do not count.
    pub(crate) warm_up: Duration,
}

impl Plan {
    /// Duration of a round. A single client ends a round without idle time, so its rounds may be short.
    fn round(&self) -> Duration {
        Duration::from_millis(if self.concurrency == 1 { 250 } else { 1_000 })
    }

    /// Number of runs to park for each client, given the total number of runs completed in `elapsed`.
    fn parked(&self, runs: usize, elapsed: Duration) -> usize {
        if self.journey.way != Way::Resume {
            return 0;
        }
        let per_second = runs as f64 / elapsed.as_secs_f64().max(0.001);
        // Twice the expected number, so that clients rarely run out of parked runs.
        let likely = 2.0 * per_second * self.time.as_secs_f64() / self.concurrency as f64;
        let most = usize::try_from(self.runs).unwrap_or(usize::MAX);
        (likely as usize).max(WARM_UP_PARKED).min(most)
    }
}

/// The results of a measurement.
#[derive(Debug, Default)]
pub(crate) struct Outcome {
    pub(crate) latencies: Latencies,
    pub(crate) raw: Latencies,
    pub(crate) failures: u64,
    pub(crate) first_failure: Option<String>,
    /// Total time from the start of each round to its last response.
    pub(crate) elapsed: Duration,
    pub(crate) used: Used,
    pub(crate) client: Option<Duration>,
    pub(crate) resident: Option<u64>,
}

/// The server under test, and the disk to probe.
#[derive(Debug)]
pub(crate) struct Target<'a> {
    server: &'a Server,
    /// Absent if the store is not ours.
    place: Option<&'a Place>,
    probe: &'a mut Probe,
    /// Number of the next client, which makes its message ids unique.
    next_client: u64,
}

impl<'a> Target<'a> {
    /// Prepares measurements of a server and of the raw disk cost.
    pub(crate) fn new(server: &'a Server, place: Option<&'a Place>, probe: &'a mut Probe) -> Result<Self> {
        let since_epoch = SystemTime::now().duration_since(UNIX_EPOCH);
        let nanos = since_epoch.context("read the clock")?.as_nanos();
        Ok(Self {
            server,
            place,
            probe,
            next_client: u64::try_from(nanos & u128::from(u64::MAX)).expect("the mask is 64 bits"),
        })
    }

    /// Runs one measurement.
    pub(crate) async fn measure(&mut self, plan: Plan) -> Result<Outcome> {
        let mut clients = Vec::with_capacity(plan.concurrency);
        for _ in 0..plan.concurrency {
            self.next_client = self.next_client.wrapping_add(1);
            let Server { address, key, .. } = self.server;
            let mut client = Client::new(*address, key, plan.journey, self.next_client);
            client.connect().await?;
            clients.push(client);
        }
        let mut warm_up = Outcome::default();
        if !plan.warm_up.is_zero() {
            let runs = Arc::new(AtomicU64::new(plan.runs.min(WARM_UP_RUNS)));
            clients = prepare(clients, plan.parked(0, plan.time)).await?;
            clients = round(clients, plan.warm_up, &runs, &mut warm_up).await;
            if let Some(failure) = warm_up.first_failure {
                bail!("complete a run: {failure}");
            }
        }
        let parked = plan.parked(warm_up.latencies.len(), warm_up.elapsed);
        clients = prepare(clients, parked).await?;

        let mut outcome = Outcome::default();
        let runs = Arc::new(AtomicU64::new(plan.runs));
        let before = Reading::take(self.server, self.place).await?;
        let process = self.server.process();
        let mut left = plan.time;
        let mut spent = (Duration::ZERO, Duration::ZERO);
        while !left.is_zero() && runs.load(Relaxed) > 0 && clients.iter().any(Client::is_ready) {
            let time = left.min(plan.round());
            left -= time;
            let start = (process.and_then(Process::cpu), Process::current().cpu());
            clients = round(clients, time, &runs, &mut outcome).await;
            let end = (process.and_then(Process::cpu), Process::current().cpu());
            for (sum, start, end) in [(&mut spent.0, start.0, end.0), (&mut spent.1, start.1, end.1)] {
                *sum += end.unwrap_or_default().saturating_sub(start.unwrap_or_default());
            }
            let n_probes = (time.as_secs_f64() * PROBES_PER_SECOND).ceil();
            for _ in 0..n_probes as u32 {
                outcome.raw.add(self.probe.take().context("probe the disk")?);
            }
        }
        outcome.used = Reading::take(self.server, self.place).await?.since(&before);
        // Excludes what the server does while clients are idle.
        outcome.used.server = process.map(|_| spent.0);
        outcome.client = Some(spent.1);
        outcome.resident = process.and_then(Process::resident);
        Ok(outcome)
    }
}

/// Lets every client park `parked` runs.
async fn prepare(clients: Vec<Client>, parked: usize) -> Result<Vec<Client>> {
    let mut tasks = JoinSet::new();
    for mut client in clients {
        tasks.spawn(async move {
            client.prepare(parked).await.context("park a run")?;
            anyhow::Ok(client)
        });
    }
    tasks.join_all().await.into_iter().collect()
}

/// Runs one round. Clients that gave up are not returned.
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
    while in_a_row < FAILURES_IN_A_ROW && Instant::now() < until && client.is_ready() && take() {
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
