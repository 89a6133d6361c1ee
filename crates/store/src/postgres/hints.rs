//! Hints between processes: LISTEN and NOTIFY, beside the appends and never part of them.
//!
//! ```text
//! append ──(run)──> bounded queue ──> one connection ──NOTIFY──> server ──> the others' connections ──> engines
//! ```
//!
//! A notification inside an append would hold a lock of the whole database through its commit and line all appends
//! up behind one disk. So runs that changed are told afterwards, many at a time, by a connection of its own whose
//! commits wait for no disk. What is lost on the way (a full queue, a lost connection) costs a poll.

use std::{future::poll_fn, sync::Arc, time::Duration};

use tokio::{
    sync::{broadcast, mpsc},
    task::JoinHandle,
    time::{sleep, timeout},
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

/// One name for every database: a payload says which schema it is about.
const CHANNEL: &str = "wopr";
/// Hints that wait to be told; beyond it they are not.
const WAITING: usize = 8_192;
/// Hints a slow receiver may lag behind before it loses some and is told so.
const KEPT: usize = 4_096;
/// The server takes payloads below 8,000 bytes.
const PAYLOAD: usize = 7_900;
/// The line of a changed registry. One without a space cannot be a run's.
const REGISTRY: &str = "registry";
/// The line that says nothing in particular.
const ANY: &str = "any";
/// How long changes are gathered before they are told together.
const GATHER: Duration = Duration::from_millis(3);
/// Pause before a lost connection is made again.
const AWAY: Duration = Duration::from_secs(1);
/// How long nothing may be told before the server is asked whether it is there: one that is stopped keeps its
/// connections, and hints go by another server meanwhile.
const QUIET: Duration = Duration::from_secs(30);

/// Why hints are neither told nor heard for now.
#[derive(Debug, thiserror::Error)]
enum Lost {
    #[error("connect: {0}")]
    Unreached(#[from] Unreached),
    #[error("{}", fault::text(.0))]
    Failed(#[from] Error),
    #[error("the database does not answer")]
    Silent,
}

/// Both ends of the hints.
#[derive(Debug, Clone)]
pub(super) struct Hints {
    outgoing: mpsc::Sender<Hint>,
    incoming: broadcast::Sender<Hint>,
}

/// What tells and hears, until it is stopped.
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

    /// Lets other processes know that something changed, sooner or later or not at all.
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
        stop.run_until_cancelled(async {
            loop {
                if let Err(error) = self.carry().await {
                    tracing::warn!(%error, "hints of other processes are not heard, polling goes on");
                }
                sleep(AWAY).await;
            }
        })
        .await;
    }

    /// Tells and hears as long as the connection lasts.
    async fn carry(&mut self) -> Result<(), Lost> {
        let (client, mut hearing) = self.hear().await?;
        let first = format!("SET synchronous_commit = off; LISTEN {CHANNEL}");
        self.answer(client.batch_execute(&first)).await?;
        let notify = self.answer(client.prepare("SELECT pg_notify($1, $2)")).await?;
        // Whatever changed while nobody listened.
        drop(self.incoming.send(Hint::Any));
        let mut hints = Vec::new();
        loop {
            tokio::select! {
                n = self.outgoing.recv_many(&mut hints, WAITING) => {
                    if n == 0 {
                        // The store is gone; whoever dropped it stops this task too.
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

    /// Waits for an answer as long as a server may take that is there.
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

/// Ends with what it belongs to.
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

/// A line each, every hint once. A hint that is read nevertheless as something else costs a look.
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

/// Lines in few payloads, each below who tells and the schema.
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

/// The hints of a payload that another process told about this schema. What is not understood hints at nothing.
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
    fn payloads_read_back_and_stay_below_the_servers_bound() {
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
