//! Follow-up of a durable append: wakes followers, notifies receivers and other runs, starts effects.

use wopr_core::{NodeId, Recorded, RunId, RunKey, RunStatus, Timestamp};
use wopr_store::{EffectKey, Fence};

use crate::{Decided, Engine, View, commit, recent_runs::Change, stats::Counters};

/// What to do once an append is durable.
pub(crate) struct FollowUp {
    pub(crate) was_terminal: bool,
    pub(crate) settled: Vec<EffectKey>,
    /// What was appended.
    pub(crate) events: Vec<Recorded>,
    /// Its size as stored.
    pub(crate) n_bytes: usize,
    /// Whether nobody is likely to read the run at once if this was its end.
    pub(crate) is_log_unread: bool,
    /// Whether a receiver came along, for which something may have waited under its id.
    pub(crate) is_heard: bool,
    pub(crate) effects: Vec<(EffectKey, commit::StoredEffect)>,
    pub(crate) told: Vec<RunId>,
    pub(crate) next_timer: Option<Timestamp>,
    /// Whether work of the run is handed out again.
    pub(crate) is_released: bool,
    pub(crate) children: usize,
}

impl Engine {
    /// Does what follows from an append, now that it is durable. The change is there where what was appended is the end
    /// of the log.
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
            // Before anybody is woken who would look for it.
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

/// Keeps a run as an append left it.
fn keep(change: Change, after: &View, events: Vec<Recorded>, n_bytes: usize) {
    let is_whole = after.run.head.0 == events.len() as u64;
    // Where the events are not the whole log the fold is kept beside them, which holds what was there before.
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
