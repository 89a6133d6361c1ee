//! One simulated world: faults for a while, then none, and everything must come to rest.

use std::{fmt, sync::Arc, time::Duration};

use parking_lot::Mutex;
use serde_json::json;
use tokio::task::JoinSet;
use wopr_core::{Command, InterruptKind, KernelEvent, Recorded, RunKey, RunStatus};
use wopr_engine::SideRows;
use wopr_store::{Log as _, Pushes as _};

use super::{
    aging,
    client::{Client, Report, TIMEOUT},
    cluster::{Cluster, Toll},
    fate::Fate,
    forks,
    witness::lines,
    workers::{Ledger, work},
};
use crate::harness::answer;

/// How long a world may take to come to rest once nothing fails any more: longer than the longest lease,
/// attempt, clock error and series of refusals together.
const PEACE: Duration = Duration::from_secs(600);

/// Counts of what happened in a world.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Lived {
    n_runs: u64,
    n_forks: u64,
    n_events: u64,
    n_calls: u64,
    n_parked: u64,
    n_told: u64,
    n_recalled: u64,
    n_asked: u64,
    n_answered: u64,
    n_worked: u64,
    n_stale: u64,
    n_lost: u64,
    n_deaths: u64,
    n_stops: u64,
    n_faults: u64,
}

impl Lived {
    /// Returns `true` if everything that can happen in a world has happened.
    pub(crate) fn is_eventful(self) -> bool {
        let Self {
            n_runs,
            n_forks,
            n_events,
            n_calls,
            n_parked,
            n_told,
            n_recalled,
            n_asked,
            n_answered,
            n_worked,
            n_stale,
            n_lost,
            n_deaths,
            n_stops,
            n_faults,
        } = self;
        [
            n_runs, n_forks, n_events, n_calls, n_parked, n_told, n_recalled, n_asked, n_answered, n_worked,
            n_stale, n_lost, n_deaths, n_stops, n_faults,
        ]
        .iter()
        .all(|n| *n > 0)
    }

    pub(crate) fn add(&mut self, other: Self) {
        self.n_runs += other.n_runs;
        self.n_forks += other.n_forks;
        self.n_events += other.n_events;
        self.n_calls += other.n_calls;
        self.n_parked += other.n_parked;
        self.n_told += other.n_told;
        self.n_recalled += other.n_recalled;
        self.n_asked += other.n_asked;
        self.n_answered += other.n_answered;
        self.n_worked += other.n_worked;
        self.n_stale += other.n_stale;
        self.n_lost += other.n_lost;
        self.n_deaths += other.n_deaths;
        self.n_stops += other.n_stops;
        self.n_faults += other.n_faults;
    }
}

impl fmt::Display for Lived {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{} runs, {} of them forks, {} events, {} calls, {} parked, {} told of a cancel, {} recalled, {} questions of peers, {} answered, {} ended by workers, {} outcomes refused as stale, {} attempts that lost their workers, {} faults, {} processes died, {} were replaced",
            self.n_runs,
            self.n_forks,
            self.n_events,
            self.n_calls,
            self.n_parked,
            self.n_told,
            self.n_recalled,
            self.n_asked,
            self.n_answered,
            self.n_worked,
            self.n_stale,
            self.n_lost,
            self.n_faults,
            self.n_deaths,
            self.n_stops
        )
    }
}

/// The result of a world.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Life {
    /// The counts, or the violated invariant.
    pub(crate) outcome: Result<Lived, String>,
    /// The events of the world, if they were written down.
    pub(crate) story: Vec<String>,
}

impl Life {
    /// The result of a world in which the simulator itself panicked.
    pub(crate) fn panicked() -> Self {
        Self {
            outcome: Err("it panicked, see above".to_owned()),
            story: Vec::new(),
        }
    }
}

/// Runs one world to its end.
pub(crate) async fn live(seed: u64, has_story: bool) -> Life {
    let fate = Arc::new(Fate::new(seed, has_story));
    fate.tell(|| format!("{:?}", fate.odds));
    let lived = tokio::select! {
        biased;
        what = fate.broken() => Err(what),
        lived = pass(&fate) => Ok(lived),
    };
    Life {
        outcome: fate.verdict().map_or(lived, Err),
        story: fate.story(),
    }
}

async fn pass(fate: &Arc<Fate>) -> Lived {
    let n_replicas = 1 + fate.below(4);
    let (cluster, died) = Cluster::start(fate, n_replicas).await;
    let toll = Arc::new(Mutex::new(Toll::default()));
    let mut keepers = JoinSet::new();
    {
        let (cluster, toll) = (cluster.clone(), Arc::clone(&toll));
        keepers.spawn(async move { cluster.keep_up(died, &toll).await });
    }
    let ledger = Arc::new(Mutex::new(Ledger::default()));
    for index in 0..1 + fate.below(3) {
        let name = format!("worker {index}");
        keepers.spawn(work(cluster.clone(), name, Arc::clone(&ledger)));
    }
    fate.set_cruel(true);
    let mut clients = JoinSet::new();
    for index in 0..8 + fate.below(12) {
        let name = format!("client {index}");
        let cluster = cluster.clone();
        clients.spawn(Client { cluster, name }.run());
    }
    // Operator actions, in addition to the faults at the steps of processes.
    for _ in 0..fate.below(6) {
        fate.linger(4_000).await;
        match fate.below(4) {
            0 => cluster.replace_one(&toll).await,
            1 => cluster.register_late().await,
            _ => cluster.kill_one(),
        }
    }
    fate.linger(10_000).await;
    fate.set_cruel(false);
    fate.tell(|| "peace".to_owned());
    cluster.mend();
    cluster.register_late().await;
    {
        let cluster = cluster.clone();
        keepers.spawn(async move { release(&cluster).await });
    }
    let Ok(reports) = tokio::time::timeout(PEACE, clients.join_all()).await else {
        return stuck(&cluster);
    };
    if tokio::time::timeout(PEACE, rest(&cluster)).await.is_err() {
        return stuck(&cluster);
    }
    for report in &reports {
        check(&cluster, report);
        report.fork.iter().for_each(|fork| forks::check(&cluster, fork));
    }
    for key in cluster.server.witness.keys() {
        let head = cluster.server.witness.head(&key);
        let store = &cluster.server.store;
        cluster.taken.check(fate, store, &key, head).await;
    }
    if fate.once_in(8) {
        aging::age(&cluster).await;
    }
    keepers.shutdown().await;
    let toll = *toll.lock();
    let witness = &cluster.server.witness;
    let (n_worked, n_stale) = ledger.lock().counts();
    let (n_events, n_lost) = witness.count(has_lost_workers);
    Lived {
        n_runs: witness.keys().len() as u64,
        n_forks: reports.iter().filter(|report| report.fork.is_some()).count() as u64,
        n_events,
        n_calls: witness.n_calls() as u64,
        n_parked: witness.n_parked(),
        n_told: witness.n_told(),
        n_recalled: witness.n_recalled(),
        n_asked: witness.n_asked(),
        n_answered: witness.n_answered(),
        n_worked,
        n_stale,
        n_lost,
        n_deaths: toll.n_deaths,
        n_stops: toll.n_stops,
        n_faults: fate.n_strikes(),
    }
}

/// Whether an attempt failed because too many leases had no outcome.
fn has_lost_workers(recorded: &Recorded) -> bool {
    let error = match recorded.event.kernel() {
        Some(KernelEvent::NodeFailed { error, .. } | KernelEvent::NodeRetried { error, .. }) => Some(error),
        Some(_) | None => None,
    };
    error.is_some_and(|error| error.code == "worker_lost")
}

/// Waits until all runs have ended. Children may end after their parent, and must do so without help. Only a
/// child that outlives its parent and asks is answered here.
async fn rest(cluster: &Cluster) {
    let witness = &cluster.server.witness;
    loop {
        let mut all_over = true;
        for key in witness.keys() {
            if !witness.is_done(&key) {
                all_over = false;
                answer_orphan(cluster, &key).await;
            }
        }
        let store = &cluster.server.store;
        if all_over && witness.all_is_heard() && cluster.taken.is_all(store).await {
            // Dead-lettered deliveries are not pending; once retried, they have to arrive, too.
            release_all(cluster).await;
            if cluster.taken.is_all(store).await {
                return;
            }
        }
        tokio::time::sleep(Duration::from_millis(500)).await; // sleep: virtual time
    }
}

/// Acts as an operator: keeps resuming quarantined runs and retrying dead-lettered deliveries.
async fn release(cluster: &Cluster) {
    loop {
        tokio::time::sleep(Duration::from_secs(5)).await; // sleep: virtual time
        release_all(cluster).await;
    }
}

async fn release_all(cluster: &Cluster) {
    for key in cluster.server.witness.keys() {
        let (_, engine) = cluster.any().await;
        let store = &cluster.server.store;
        cluster.taken.look_for_gaps(store, &key).await;
        for push in store.pushes(&key).await.expect("never fails") {
            let retried = engine.retry_push(&key, &push.id, None);
            let _ = tokio::time::timeout(TIMEOUT, retried).await;
        }
        let Ok(Some((summary, _))) = store.summary(&key).await else {
            continue;
        };
        // A run that was quarantined while it was being cancelled keeps that status.
        if matches!(summary.status, RunStatus::Paused | RunStatus::Cancelling) {
            let resume = Command::Resume { reason: None };
            let resumed = engine.command(&key, resume, SideRows::default());
            // Another process may have resumed it first.
            let _ = tokio::time::timeout(TIMEOUT, resumed).await;
        }
    }
}

async fn answer_orphan(cluster: &Cluster, key: &RunKey) {
    let (_, engine) = cluster.any().await;
    let asked = tokio::time::timeout(TIMEOUT, engine.view(key)).await;
    let Ok(Ok(Some(view))) = asked else {
        return;
    };
    for open in view.run.interrupts(&view.plan) {
        for voter in ["one", "two"] {
            let mut value = json!({ "action": "accept", "voter": voter });
            if open.kind() == InterruptKind::Clarification {
                value = json!({ "answers": [{ "id": "colour", "answer": "red" }] });
            }
            let Command::Resolve(mut resolve) = answer(open.node.as_str(), value) else {
                continue;
            };
            resolve.voter = Some(voter.to_owned());
            let told = engine.command(key, Command::Resolve(resolve), SideRows::default());
            // Refused if the first answer was enough.
            let _ = tokio::time::timeout(TIMEOUT, told).await;
        }
    }
}

fn stuck(cluster: &Cluster) -> Lived {
    let witness = &cluster.server.witness;
    for key in witness.keys() {
        if !witness.is_done(&key) {
            let log = lines(&witness.log(&key).unwrap_or_default()).join("\n  ");
            cluster.fate.breaks(format!("{key} is stuck\n  {log}"));
        }
    }
    cluster
        .fate
        .breaks("a client is stuck, or what a run was told is not heard, or what happened is not told");
    Lived::default()
}

/// Checks what a client was told, and what it was not, against the store.
fn check(cluster: &Cluster, report: &Report) {
    let (fate, witness) = (&cluster.fate, &cluster.server.witness);
    let Some(log) = witness.log(&report.run) else {
        return fate.breaks(format!("{}: an acknowledged run is gone", report.run));
    };
    if let Some(streamed) = &report.streamed
        && *streamed != log
    {
        let (got, log) = (lines(streamed).join("\n  "), lines(&log).join("\n  "));
        fate.breaks(format!("{}: streamed\n  {got}\nis not\n  {log}", report.run));
    }
    for (mark, _) in &report.sent {
        let n = witness.n_marked(mark);
        if n > 1 {
            fate.breaks(format!("{}: '{mark}' took effect {n} times", report.run));
        }
    }
}
