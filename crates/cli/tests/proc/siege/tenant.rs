//! A tenant with an ordinary workload: runs at a steady rate over persistent connections, and occasionally
//! over a new one.

use std::{
    fmt,
    net::SocketAddr,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering::Relaxed},
    },
    thread,
    time::Duration,
};

use serde_json::{Value, json};
use tokio::{
    runtime::Builder,
    sync::{Mutex, mpsc::Receiver},
    task::JoinSet,
    time::{self, Instant, timeout},
};

use crate::http::{Connection, write_request};

/// Number of concurrent clients. Together they send twenty requests per second.
const CLIENTS: u32 = 4;
const PACE: Duration = Duration::from_millis(200);
/// Number of requests before a client opens a new connection.
const PER_CONNECTION: u32 = 10;
/// Maximum number of errors kept.
const SHOWN: usize = 20;

/// A slower response counts as an error. Only a siege has an optimized host.
fn limit() -> Duration {
    Duration::from_secs(if super::seconds().is_some() { 20 } else { 60 })
}

/// A running tenant. It has its own thread, so that the attackers' work in this process does not delay it.
#[derive(Debug)]
pub(super) struct Tenant {
    stops: Arc<AtomicBool>,
    clients: thread::JoinHandle<Seen>,
}

/// The measurements of a tenant.
#[derive(Debug, Default)]
pub(super) struct Seen {
    latencies: Vec<Duration>,
    pub(super) errors: Vec<String>,
}

impl Tenant {
    pub(super) fn begin(address: SocketAddr, key: &'static str) -> Self {
        let stops = Arc::new(AtomicBool::new(false));
        let stopped = Arc::clone(&stops);
        let clients = thread::spawn(move || {
            let runtime = Builder::new_current_thread().enable_all().build().unwrap();
            runtime.block_on(async {
                let mut clients = JoinSet::new();
                for n in 0..CLIENTS {
                    clients.spawn(work(address, key, PACE * n / CLIENTS, Arc::clone(&stopped)));
                }
                let mut all = Seen::default();
                for seen in clients.join_all().await {
                    all.add(seen);
                }
                all.sorted()
            })
        });
        Self { stops, clients }
    }

    /// Stops and waits for pending requests.
    pub(super) async fn end(self) -> Seen {
        self.stops.store(true, Relaxed);
        tokio::task::spawn_blocking(|| self.clients.join().unwrap())
            .await
            .unwrap()
    }
}

impl Seen {
    pub(super) fn percentile(&self, percent: usize) -> Duration {
        let index = (self.latencies.len() * percent / 100).min(self.latencies.len().saturating_sub(1));
        self.latencies.get(index).copied().unwrap_or_default()
    }
}

impl fmt::Display for Seen {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (n, n_errors) = (self.latencies.len(), self.errors.len());
        let longest = self.latencies.last().copied().unwrap_or_default();
        let (half, most) = (self.percentile(50), self.percentile(99));
        write!(
            f,
            "{n} requests, {n_errors} errors, p50 {half:?}, p99 {most:?}, max {longest:?}"
        )
    }
}

/// Sends requests at fixed times. A late response delays later requests, and the delay counts toward their
/// latency.
async fn work(address: SocketAddr, key: &str, offset: Duration, stops: Arc<AtomicBool>) -> Seen {
    let mut seen = Seen::default();
    let mut connection = None;
    let mut due = Instant::now() + offset;
    let mut n = 0;
    let fields = format!("authorization: Bearer {key}\r\naccept: application/json\r\na2a-version: 1.0\r\n");
    let body = br#"{"workflowId":"pure","inputs":{"prompt":"a day like any other"}}"#;
    let mut newest = None;
    while !stops.load(Relaxed) {
        // sleep: the pace of the tenant
        time::sleep_until(due).await;
        let turn = n;
        n += 1;
        let asked = timeout(limit(), async {
            let mut open = match connection.take() {
                Some(open) => open,
                None => Connection::open(address).await?,
            };
            let mut request = Vec::new();
            match (turn % 5, &newest) {
                (2, _) => write_request(&mut request, "GET", "/v1/runs?limit=5", &fields, None),
                (3, Some(run)) => {
                    let path = format!("/v1/runs/{run}/events/poll");
                    write_request(&mut request, "GET", &path, &fields, None);
                }
                (4, _) => {
                    let message = json!({
                        "message": {
                            "messageId": format!("{}-{turn}", offset.as_millis()), "role": "ROLE_USER",
                            "parts": [{ "text": "a day like any other" }], "metadata": { "skillId": "pure" },
                        },
                    });
                    let message = message.to_string();
                    write_request(
                        &mut request,
                        "POST",
                        "/a2a/message:send",
                        &fields,
                        Some(message.as_bytes()),
                    );
                }
                (_, _) => write_request(&mut request, "POST", "/v1/runs", &fields, Some(body)),
            }
            let status = open.send(&request).await?;
            let mut answer = Vec::new();
            open.body(&mut answer).await?;
            std::io::Result::Ok((open, status, answer))
        });
        match asked.await {
            Ok(Ok((open, status, answer))) => {
                if !matches!(status, 200 | 201) {
                    seen.fail(format!("{status}: {}", String::from_utf8_lossy(&answer)));
                }
                let answer: Value = serde_json::from_slice(&answer).unwrap_or_default();
                if let Some(run) = answer["runId"].as_str() {
                    newest = Some(run.to_owned());
                }
                if open.is_reusable() && n % PER_CONNECTION != 0 {
                    connection = Some(open);
                }
            }
            Ok(Err(error)) => seen.fail(error.to_string()),
            Err(_) => seen.fail(format!("no answer in {:?}", limit())),
        }
        seen.latencies.push(due.elapsed());
        due += PACE;
    }
    seen
}

/// Starts a run for each turn over a persistent connection. The latency of a turn starts when it was due.
pub(super) async fn take_turns(address: SocketAddr, key: &str, turns: Arc<Mutex<Receiver<Instant>>>) -> Seen {
    let mut seen = Seen::default();
    let mut connection = None;
    let fields = format!("authorization: Bearer {key}\r\n");
    let body = br#"{"workflowId":"pure","inputs":{"prompt":"a day like any other"}}"#;
    loop {
        let Some(due) = turns.lock().await.recv().await else {
            return seen;
        };
        let asked = timeout(limit(), async {
            let mut open = match connection.take() {
                Some(open) => open,
                None => Connection::open(address).await?,
            };
            let mut request = Vec::new();
            write_request(&mut request, "POST", "/v1/runs", &fields, Some(body));
            let status = open.send(&request).await?;
            open.body(&mut Vec::new()).await?;
            std::io::Result::Ok((open, status))
        });
        match asked.await {
            Ok(Ok((open, status))) => {
                if status != 201 {
                    seen.fail(status.to_string());
                }
                connection = open.is_reusable().then_some(open);
            }
            Ok(Err(error)) => seen.fail(error.to_string()),
            Err(_) => seen.fail(format!("no answer in {:?}", limit())),
        }
        seen.latencies.push(due.elapsed());
    }
}

impl Seen {
    pub(super) fn add(&mut self, mut other: Self) {
        self.latencies.append(&mut other.latencies);
        self.errors.append(&mut other.errors);
    }

    /// Sorts the latencies, for percentiles.
    pub(super) fn sorted(mut self) -> Self {
        self.latencies.sort_unstable();
        self
    }

    fn fail(&mut self, error: String) {
        if self.errors.len() < SHOWN {
            self.errors.push(error);
        }
    }
}
