//! Follow-up of a durable append: wakes followers, the push loop and other runs, and starts effects.

use wopr_core::{NodeId, Recorded, RunId, RunKey, RunStatus, Timestamp};
use wopr_store::{EffectKey, Fence};

use crate::{Decided, Engine, View, commit, recent_runs::Change, stats::Counters};

/// What to do once an append is durable.
pub(crate) struct FollowUp {
    pub(crate) was_terminal: bool,
    pub(crate) settled: Vec<EffectKey>,
    pub(crate) events: Vec<Recorded>,
    /// Stored size of the events.
    pub(crate) n_bytes: usize,
    /// If this append ended the run, its log is unlikely to be read soon.
    pub(crate) is_log_unread: bool,
    /// The append added a subscription, which may have replaced one that has pending deliveries.
    pub(crate) is_heard: bool,
    pub(crate) effects: Vec<(EffectKey, commit::StoredEffect)>,
    pub(crate) told: Vec<RunId>,
    pub(crate) next_timer: Option<Timestamp>,
    /// The append releases the run's work rows.
    pub(crate) is_released: bool,
    pub(crate) children: usize,
}

impl Engine {
    /// Acts on an append that is durable. `change` is set if the appended events are the end of the log.
    pub(crate) fn act(&self, after: &View, follow_up: FollowUp, change: Option<Change>) {
        let FollowUp {
            was_terminal,
            settled,
            events,
            n_bytes,
            is_log_unread,
            is_heard,
            effects,
            told,
            next_timer,
            is_released,
            children,
        } = follow_up;
        let shared = &self.shared;
        Counters::add(&shared.counters.appends, 1);
        Counters::add(&shared.counters.runs_created, children);
        let is_terminal = after.run.status.is_terminal();
        if is_terminal && !was_terminal {
            shared.counters.ended(after.run.status);
            if let (RunStatus::Failed, Some((error, node))) = (after.run.status, &after.run.error) {
                let RunKey { tenant, run } = &after.key;
                let (node, code) = (node.as_ref().map(NodeId::as_str), &*error.code);
                tracing::warn!(%run, %tenant, node, code, "run failed");
            }
        }
        if let Some(change) = change.filter(|_| !(is_terminal && is_log_unread)) {
            // Before waking followers, which will look for it.
            keep(change, after, events, n_bytes);
        }
        shared.tails.grew(&after.key, after.run.head);
        shared.pushes.stir();
        if is_heard {
            shared.wake_hints.pushes.notify_one();
        }
        for key in settled {
            shared.effects.settled(&after.key, &key);
        }
        for (key, effect) in effects {
            self.begin_effect(after.key.clone(), key, effect, Fence(1));
        }
        for run in told {
            shared.inboxes.tell(after.key.sibling(run.clone()));
        }
        if is_released {
            shared.run_backoff.forget(&after.key);
            shared.inboxes.tell(after.key.clone());
            shared.wake_hints.all();
        }
        if let Some(due) = next_timer {
            shared.timers.hint(due);
        }
    }
}

/// Caches the run as the append left it.
fn keep(change: Change, after: &View, events: Vec<Recorded>, n_bytes: usize) {
    let is_whole = after.run.head.0 == events.len() as u64;
    // A partial log is cached together with the fold, which includes the earlier events.
    let n_bytes = match is_whole {
        true => n_bytes,
        false => after.held.n_bytes().saturating_add(2 * n_bytes),
    };
    if n_bytes > Decided::MOST {
        return;
    }
    let decided = Decided {
        summary: after.summary.clone(),
        events,
        head: after.run.head,
        run: (!is_whole).then(|| after.run.clone()),
    };
    change.keep(decided, n_bytes);
}
