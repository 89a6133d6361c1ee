//! Clients that fork runs which have ended, while processes die and leases move.
//!
//! A replay ends as its source did, and calls nobody: the [`super::witness`] breaks a world in which one stores an effect, a
//! child or a message. A branch has calls and children of its own, which the world waits for like those of any run.

use std::sync::Arc;

use wopr_core::{DialectId, Event, Fork, ForkMode, Given, KernelEvent, Recorded, RunId, RunKey, Seq};
use wopr_engine::{CommandError, Done, ForkRun};

use super::{
    client::{Client, TIMEOUT, once},
    cluster::Cluster,
    witness::lines,
};
use crate::harness::tenant;

/// The code of a replay that an operator resumed before it had caught up with its source.
const INTERRUPTED: &str = "fork_interrupted";

impl Client {
    /// Forks a run that has ended, and sees the fork through. Returns the fork.
    pub(super) async fn fork(&self, source: &RunKey) -> RunKey {
        let fate = Arc::clone(&self.cluster.fate);
        let heir = Self {
            name: format!("{} forks", self.name),
            ..self.clone()
        };
        let view = heir.view(source).await;
        let n_events = view.run.head.0;
        // The language of the lists is an example that begins no step again.
        let may_branch = view.plan.dialect() != DialectId::Toy;
        let mode = match may_branch && fate.once_in(2) {
            true => ForkMode::Branch,
            false => ForkMode::Replay,
        };
        let from = Seq(fate.below(n_events));
        let run = loop {
            match heir.try_fork(source, mode, from).await {
                Some(run) => break run,
                None => fate.linger(200).await,
            }
        };
        let key = RunKey::new(tenant(), run);
        heir.see_through(&key).await;
        key
    }

    async fn try_fork(&self, source: &RunKey, mode: ForkMode, from: Seq) -> Option<RunId> {
        let (number, engine) = self.cluster.any().await;
        let fork = ForkRun {
            run: engine.new_run_id(),
            source: source.clone(),
            mode,
            from,
            overlay: None,
            workflow: None,
            side_rows: once(&self.name, "fork"),
        };
        let told = |what: &str| {
            let (name, mode) = (&self.name, mode.as_str());
            let fate = &self.cluster.fate;
            fate.tell(|| format!("{name}: {mode} of {source} from {from} at p{number}: {what}"));
        };
        match tokio::time::timeout(TIMEOUT, engine.fork(fork)).await {
            Ok(Ok(Done::Fresh(view))) => {
                told(view.key.run.as_str());
                self.cluster.server.witness.shown(&view);
                Some(view.key.run)
            }
            Ok(Ok(Done::Replayed(record))) => {
                told("again");
                self.check_replay(&record);
                record.run
            }
            Ok(Err(error)) => {
                told(&error.to_string());
                self.check_error(&error);
                if let CommandError::Refused(_) | CommandError::NotFound = error {
                    self.cluster
                        .fate
                        .breaks(format!("{source} cannot be forked from {from}: {error}"));
                }
                None
            }
            Err(_) => {
                told("no answer");
                None
            }
        }
    }
}

/// Checks that a replay is its source over again. What follows a cancel, which is none of a replay's business, is its own.
pub(super) fn check(cluster: &Cluster, key: &RunKey) {
    let witness = &cluster.server.witness;
    let Some(replay) = witness.log(key) else {
        return cluster
            .fate
            .breaks(format!("{key}: an acknowledged fork is gone"));
    };
    let Some(fork) = fork_of(&replay).filter(|fork| fork.mode == ForkMode::Replay) else {
        return;
    };
    let Some(source) = witness.log(&key.sibling(fork.source.clone())) else {
        return cluster.fate.breaks(format!("{key}: its source is gone"));
    };
    let is_cancel =
        |event: &Recorded| event.given.as_deref() == Some(&Given::Cancel) && event.seq >= fork.from;
    if source.iter().any(is_cancel) || was_interrupted(&replay) {
        return;
    }
    if !events(&source).eq(events(&replay)) {
        let (log, again) = (lines(&source).join("\n  "), lines(&replay).join("\n  "));
        let what = format!(
            "{key}: the replay from {}\n  {again}\nis not its source\n  {log}",
            fork.from
        );
        cluster.fate.breaks(what);
    }
}

fn fork_of(log: &[Recorded]) -> Option<&Fork> {
    match &log.first()?.event {
        Event::Kernel(KernelEvent::RunStarted(started)) => started.fork.as_ref(),
        Event::Kernel(_) | Event::Dialect(_) => None,
    }
}

fn was_interrupted(log: &[Recorded]) -> bool {
    log.iter().any(|recorded| match &recorded.event {
        Event::Kernel(KernelEvent::RunFailed { error, .. }) => error.code == INTERRUPTED,
        Event::Kernel(_) | Event::Dialect(_) => false,
    })
}

/// All events but the first, which says where a fork comes from.
fn events(log: &[Recorded]) -> impl Iterator<Item = &Event> {
    log.iter().skip(1).map(|recorded| &recorded.event)
}
