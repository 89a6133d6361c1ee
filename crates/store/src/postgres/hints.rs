//! Hints between processes: LISTEN and NOTIFY, separate from appends.
//!
//! ```text
//! append ──(run)──> bounded queue ──> one connection ──NOTIFY──> server ──> the others' connections ──> engines
//! ```
//!
//! A notification within an append would hold a database-wide lock through its commit and serialize all
//! appends. Instead a separate connection announces changed runs afterwards, in bulk, with commits that do
//! not wait for the disk. Lost hints (a full queue, a lost connection) are made up for by polling.

use std::{future::poll_fn, sync::Arc, time::Duration};

use tokio::{
    sync::{broadcast, mpsc},
    task::JoinHandle,
    time::{Instant, sleep, timeout},
};
use tokio_postgres::{AsyncMessage, Client, Error};
use tokio_util::sync::CancellationToken;
use wopr_core::{RunId, RunKey, TenantId};

use super::{
    connect::{Connector, Unreached},
    fault,
    stats::Counters,
};
use crate::Hint;

/// One channel for all schemas: each payload names its schema.
const CHANNEL: &str = "wopr";
/// Maximum number of queued outgoing hints; more are dropped.
const WAITING: usize = 8_192;
/// Maximum number of hints a slow receiver may lag behind before it loses some, of which it is notified.
const KEPT: usize = 4_096;
/// Maximum payload size in bytes; the server accepts less than 8,000.
const PAYLOAD: usize = 7_900;
/// The line for a changed registry. It has no space, so it cannot be mistaken for a run.
const REGISTRY: &str = "registry";
/// The line for [`Hint::Any`].
const ANY: &str = "any";
/// How long changes are gathered before they are announced together.
const GATHER: Duration = Duration::from_millis(3);
/// Pause before reconnecting.
const AWAY: Duration = Duration::from_secs(1);
/// Minimum interval between log lines about failures to connect.
const TOLD_AGAIN: Duration = Duration::from_secs(60);
/// Idle time after which the server is probed. A stopped server keeps its connections open, while hints may
/// go through another server.
const QUIET: Duration = Duration::from_secs(30);

/// Why hints are currently neither sent nor received.
#[derive(Debug, thiserror::Error)]
enum Lost {
    #[error("connect: {0}")]
    Unreached(#[from] Unreached),
    #[error("{}", fault::text(.0))]
    Failed(#[from] Error),
    #[error("the database does not answer")]
    Silent,
}

/// The channels for outgoing and incoming hints.
#[derive(Debug, Clone)]
pub(super) struct Hints {
    outgoing: mpsc::Sender<Hint>,
    incoming: broadcast::Sender<Hint>,
}

/// Sends and receives hints until it is stopped.
pub(super) struct Announcer {
    connector: Connector,
    schema: String,
    me: String,
    outgoing: mpsc::Receiver<Hint>,
    incoming: broadcast::Sender<Hint>,
    counters: Arc<Counters>,
    stop: CancellationToken,
}

impl Hints {
    pub(super) fn new(
        connector: Connector,
        schema: String,
        counters: Arc<Counters>,
        stop: CancellationToken,
    ) -> (Self, Announcer) {
        let (outgoing, told) = mpsc::channel(WAITING);
        let incoming = broadcast::Sender::new(KEPT);
        let announcer = Announcer {
            connector,
            schema,
            me: format!("{:016x}", rand::random::<u64>()),
            outgoing: told,
            incoming: incoming.clone(),
            counters,
            stop,
        };
        (Self { outgoing, incoming }, announcer)
    }

    /// Announces a change to other processes, on a best-effort basis.
    pub(super) fn tell(&self, hint: Hint) {
        drop(self.outgoing.try_send(hint));
    }

    pub(super) fn subscribe(&self) -> broadcast::Receiver<Hint> {
        self.incoming.subscribe()
    }
}

impl Announcer {
    pub(super) async fn run(mut self) {
        let stop = self.stop.clone();
        let mut told: Option<Instant> = None;
        stop.run_until_cancelled(async {
            loop {
                if let Err(error) = self.carry().await
                    && told.is_none_or(|told| told.elapsed() >= TOLD_AGAIN)
                {
                    told = Some(Instant::now());
                    tracing::warn!(%error, "hints of other processes are not heard, polling goes on");
                }
                sleep(AWAY).await;
            }
        })
        .await;
    }

    /// Sends and receives hints as long as the connection lasts.
    async fn carry(&mut self) -> Result<(), Lost> {
        let (client, mut hearing) = self.hear().await?;
        let first = format!("SET synchronous_commit = off; LISTEN {CHANNEL}");
        self.answer(client.batch_execute(&first)).await?;
        let notify = self.answer(client.prepare("SELECT pg_notify($1, $2)")).await?;
        // Changes may have been missed while disconnected.
        drop(self.incoming.send(Hint::Any));
        let mut hints = Vec::new();
        loop {
            tokio::select! {
                n = self.outgoing.recv_many(&mut hints, WAITING) => {
                    if n == 0 {
                        // The store was dropped, and its owner cancels this task too.
                        std::future::pending::<()>().await;
                    }
                }
                _ = &mut hearing => return Ok(()),
                () = sleep(QUIET) => self.answer(client.batch_execute("")).await?,
            }
            for payload in payloads(&self.me, &self.schema, &lines(&hints)) {
                self.answer(client.query(&notify, &[&CHANNEL, &payload])).await?;
            }
            hints.clear();
            sleep(GATHER).await;
        }
    }

    /// Waits for a response, with a time limit.
    async fn answer<T>(&self, answer: impl Future<Output = Result<T, Error>>) -> Result<T, Lost> {
        match timeout(self.connector.answering(), answer).await {
            Ok(answer) => Ok(answer?),
            Err(_) => Err(Lost::Silent),
        }
    }

    async fn hear(&self) -> Result<(Client, Hearing), Unreached> {
        let (client, mut connection) = self.connector.listen().await?;
        let (me, schema) = (self.me.clone(), self.schema.clone());
        let (incoming, counters) = (self.incoming.clone(), Arc::clone(&self.counters));
        let task = tokio::spawn(async move {
            loop {
                match poll_fn(|context| connection.poll_message(context)).await {
                    Some(Ok(AsyncMessage::Notification(notification))) => {
                        for hint in read(notification.payload(), &me, &schema) {
                            counters.hinted();
                            drop(incoming.send(hint));
                        }
                    }
                    Some(Ok(_)) => {}
                    Some(Err(error)) => {
                        tracing::warn!(error = fault::text(&error), "connection for hints lost");
                        return;
                    }
                    None => return,
                }
            }
        });
        Ok((client, Hearing(task)))
    }
}

/// The task that receives hints; aborted when dropped.
struct Hearing(JoinHandle<()>);

impl Future for Hearing {
    type Output = ();

    fn poll(
        mut self: std::pin::Pin<&mut Self>,
        context: &mut std::task::Context<'_>,
    ) -> std::task::Poll<Self::Output> {
        std::pin::Pin::new(&mut self.0).poll(context).map(|_| ())
    }
}

impl Drop for Hearing {
    fn drop(&mut self) {
        self.0.abort();
    }
}

/// Encodes each distinct hint as a line. A line decoded as another hint causes only a needless read.
fn lines(hints: &[Hint]) -> Vec<String> {
    let line = |hint: &Hint| match hint {
        Hint::Run(run) => format!("{} {}", run.tenant, run.run),
        Hint::Registry => REGISTRY.to_owned(),
        Hint::Any => ANY.to_owned(),
    };
    let mut lines: Vec<_> = hints.iter().map(line).collect();
    lines.sort_unstable();
    lines.dedup();
    lines
}

/// Packs lines into few payloads, each headed by the sender and the schema.
fn payloads(me: &str, schema: &str, lines: &[String]) -> Vec<String> {
    let head = format!("{me} {schema}");
    let mut payloads: Vec<String> = Vec::new();
    for line in lines {
        match payloads.last_mut() {
            Some(payload) if payload.len() + line.len() < PAYLOAD => {
                payload.push('\n');
                payload.push_str(line);
            }
            Some(_) | None => payloads.push(format!("{head}\n{line}")),
        }
    }
    payloads
}

/// Decodes a payload from another process about this schema. Unknown lines are ignored.
fn read(payload: &str, me: &str, schema: &str) -> Vec<Hint> {
    let mut lines = payload.lines();
    match lines.next().and_then(|head| head.split_once(' ')) {
        Some((teller, about)) if teller != me && about == schema => {}
        Some(_) | None => return Vec::new(),
    }
    let hint = |line: &str| match line {
        REGISTRY => Some(Hint::Registry),
        ANY => Some(Hint::Any),
        line => {
            let (tenant, run) = line.split_once(' ')?;
            let (tenant, run) = (TenantId::parse(tenant).ok()?, RunId::parse(run).ok()?);
            Some(Hint::Run(RunKey::new(tenant, run)))
        }
    };
    lines.filter_map(hint).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn payloads_round_trip_within_the_size_limit() {
        let runs: Vec<_> = (0..500)
            .map(|n| {
                let tenant = TenantId::parse(&"t".repeat(64)).expect("a tenant");
                RunKey::new(tenant, RunId::parse(&format!("{n:0128}")).expect("a run id"))
            })
            .collect();
        let mut hints: Vec<_> = runs.into_iter().map(Hint::Run).collect();
        hints.push(Hint::Registry);
        hints.push(Hint::Registry);
        let payloads = payloads("a", "s p", &lines(&hints));
        assert!(payloads.len() > 5);
        assert!(payloads.iter().all(|payload| payload.len() < 8_000));
        let heard: Vec<_> = payloads
            .iter()
            .flat_map(|payload| read(payload, "b", "s p"))
            .collect();
        assert_eq!(heard.len(), 501, "every hint once");
        assert!(hints.iter().all(|hint| heard.contains(hint)));
        assert_eq!(read(&payloads[0], "a", "s p"), [], "one's own");
        assert_eq!(read(&payloads[0], "b", "other"), [], "another schema's");
        assert_eq!(read("something else", "b", "s p"), []);
        assert_eq!(read("b s\nfrom-a-later-version", "a", "s"), []);
    }
}
