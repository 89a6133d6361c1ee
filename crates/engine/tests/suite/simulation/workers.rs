//! Workers: they lease activities from whichever process answers, and do them, or die, or take longer than their lease,
//! or end them twice.
//!
//! The [`super::witness`] sees every lease at the store and breaks a world in which an outcome counts under any other
//! than the newest. Here, workers hold the host to what it tells them: an activity has one key, however often it is
//! handed out, an outcome under a lease that somebody else has since got is refused, and no attempt is handed out more
//! often than leases may be lost. Each start of a process may add one: a lease that ended before it may not count.

use std::{collections::BTreeMap, sync::Arc, time::Duration};

use parking_lot::Mutex;
use serde_json::json;
use tokio::{task::JoinSet, time::timeout};
use wopr_core::{Failure, Object, RunKey, StepId};
use wopr_engine::{ActivityCall, Done, LeasedActivity, SideRows, WorkerLease};
use wopr_store::Fence;

use super::{client::TIMEOUT, cluster::Cluster};
use crate::harness::tenant;

/// The queues of the activities of documents.
const QUEUES: [&str; 2] = ["awp.tool_call", "awp.agent_delegate"];
/// Longer than any lease of a world.
const ASLEEP_MS: u64 = 12_000;

/// What workers were told of activities.
#[derive(Debug, Default)]
pub(crate) struct Ledger {
    /// The key of each step.
    keys: BTreeMap<(RunKey, StepId), String>,
    /// The newest lease of each attempt that a worker has got.
    newest: BTreeMap<(RunKey, StepId, u32), Fence>,
    /// How many leases of each attempt workers have got.
    n_leases: BTreeMap<(RunKey, StepId, u32), u64>,
    n_done: u64,
    n_stale: u64,
}

impl Ledger {
    /// An activity was handed out, which may happen `most` times.
    fn leased(&mut self, activity: &LeasedActivity, most: u64) -> Result<(), String> {
        let n_leases = self.n_leases.entry(attempt(activity)).or_default();
        *n_leases += 1;
        if *n_leases > most {
            return Err(format!(
                "{} of {} is handed out more than {most} times",
                activity.step.key(),
                activity.run
            ));
        }
        let step = (activity.run.clone(), activity.step.clone());
        let key = self
            .keys
            .entry(step)
            .or_insert_with(|| activity.idempotency_key.clone());
        if *key != activity.idempotency_key {
            return Err(format!(
                "{} has two keys in {}",
                activity.step.key(),
                activity.run
            ));
        }
        let newest = self.newest.entry(attempt(activity)).or_insert(activity.fence);
        *newest = (*newest).max(activity.fence);
        Ok(())
    }

    fn is_stale(&self, activity: &LeasedActivity) -> bool {
        let newest = self.newest.get(&attempt(activity));
        newest.is_some_and(|newest| *newest > activity.fence)
    }

    /// How many outcomes counted, and how many were refused because their lease was lost.
    pub(crate) fn counts(&self) -> (u64, u64) {
        (self.n_done, self.n_stale)
    }
}

fn attempt(activity: &LeasedActivity) -> (RunKey, StepId, u32) {
    (activity.run.clone(), activity.step.clone(), activity.attempt)
}

/// Works until the world ends.
pub(crate) async fn work(cluster: Cluster, name: String, ledger: Arc<Mutex<Ledger>>) {
    let fate = Arc::clone(&cluster.fate);
    let mut hands = JoinSet::new();
    loop {
        let (_, engine) = cluster.any().await;
        let call = ActivityCall {
            tenant: tenant(),
            queue: (*fate.one_of(&QUEUES)).to_owned(),
            worker: name.clone(),
            max: 1 + usize::try_from(fate.below(3)).expect("small"),
            wait: Duration::from_millis(fate.below(2_000)),
        };
        if let Ok(Ok(leased)) = timeout(TIMEOUT, engine.lease_activities(call)).await {
            for activity in leased {
                fate.tell(|| format!("{name} leases {} of {}", activity.step.key(), activity.run));
                let most = u64::from(cluster.options.workers.max_lost_leases) + cluster.server.n_processes();
                fate.holds(ledger.lock().leased(&activity, most));
                hands.spawn(perform(
                    cluster.clone(),
                    name.clone(),
                    Arc::clone(&ledger),
                    activity,
                ));
            }
        }
        while hands.try_join_next().is_some() {}
        fate.linger(500).await;
    }
}

/// Does an activity, more or less.
async fn perform(cluster: Cluster, name: String, ledger: Arc<Mutex<Ledger>>, activity: LeasedActivity) {
    let fate = Arc::clone(&cluster.fate);
    if fate.once_in(8) {
        return fate.tell(|| format!("{name} dies with {}", activity.step.key()));
    }
    let lease = WorkerLease {
        fence: activity.fence,
        queue: activity.activity.queue.clone(),
        worker: name.clone(),
    };
    fate.linger(2_000).await;
    if fate.once_in(3) {
        let (_, engine) = cluster.any().await;
        let was_stale = ledger.lock().is_stale(&activity);
        let renewing = engine.renew_activity(&activity.run, &activity.step, activity.attempt, &lease);
        let renewed = timeout(TIMEOUT, renewing).await;
        if was_stale && matches!(renewed, Ok(Ok(true))) {
            let what = format!("{name} renews a lease of {} that was lost", activity.step.key());
            return fate.breaks(what);
        }
    }
    if fate.once_in(6) {
        fate.linger(ASLEEP_MS).await;
    }
    let outcome = match fate.below(8) {
        0 => Err(Failure {
            retryable: true,
            ..Failure::new("BUSY", "simulated")
        }),
        1 => Err(Failure::new("BROKEN", "simulated")),
        _ => Ok(Object::from_iter([(
            "did".to_owned(),
            json!(activity.step.key()),
        )])),
    };
    for _ in 0..=fate.below(3) {
        let (number, engine) = cluster.any().await;
        let was_stale = ledger.lock().is_stale(&activity);
        let ending = engine.end_activity(
            &activity.run,
            (activity.step.clone(), activity.attempt),
            Some(&lease),
            outcome.clone(),
            SideRows::default(),
        );
        let ended = timeout(TIMEOUT, ending).await;
        fate.tell(|| {
            format!(
                "{name} ends {} at p{number}: {}",
                activity.step.key(),
                told(&ended)
            )
        });
        match ended {
            Ok(Ok(Done::Fresh(view))) => {
                cluster.server.witness.shown(&view);
                let mut ledger = ledger.lock();
                ledger.n_done += 1;
                if was_stale {
                    let what = format!("an outcome of {name} counts under a lease that was lost");
                    fate.breaks(what);
                }
            }
            Ok(Err(_)) if was_stale => ledger.lock().n_stale += 1,
            Ok(Ok(Done::Replayed(_)) | Err(_)) | Err(_) => {}
        }
        fate.linger(300).await;
    }
}

fn told<E: std::fmt::Display, T>(ended: &Result<Result<Done, E>, T>) -> String {
    match ended {
        Ok(Ok(Done::Fresh(_))) => "it counts".to_owned(),
        Ok(Ok(Done::Replayed(_))) => "it counted before".to_owned(),
        Ok(Err(error)) => error.to_string(),
        Err(_) => "no answer".to_owned(),
    }
}
