//! What follows from an append once it is durable: who is woken, told and begun.

use wopr_core::{NodeId, Recorded, RunId, RunKey, RunStatus, Timestamp};
use wopr_store::{EffectKey, Fence};

use crate::{Ended, Engine, View, commit, stats::Counters};

/// What to do once an append is durable.
pub(crate) struct FollowUp {
    pub(crate) was_terminal: bool,
    pub(crate) settled: Vec<EffectKey>,
    /// What was appended, and its size as stored, if somebody is likely to read it at once.
    pub(crate) log: Option<(Vec<Recorded>, usize)>,
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
    /// Does what follows from an append, now that it is durable.
    pub(crate) fn act(&self, after: &View, follow_up: FollowUp) {
        let FollowUp {
            was_terminal,
            settled,
            log,
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
        if after.run.status.is_terminal() && !was_terminal {
            shared.counters.ended(after.run.status);
            if let (RunStatus::Failed, Some((error, node))) = (after.run.status, &after.run.error) {
                let RunKey { tenant, run } = &after.key;
                let (node, code) = (node.as_ref().map(NodeId::as_str), &*error.code);
                tracing::warn!(%run, %tenant, node, code, "run failed");
            }
            if let Some((events, bytes)) = log {
                let ended = Ended {
                    summary: after.summary.clone(),
                    events,
                    head: after.run.head,
                };
                // Before anybody is woken who would look for it.
                shared.recent.keep(&after.key, ended, bytes);
            }
        }
        shared.tails.grew(&after.key, after.run.head);
        shared.pushes.stir();
        if is_heard {
            shared.nudges.pushes.notify_one();
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
            shared.setbacks.forget(&after.key);
            shared.inboxes.tell(after.key.clone());
            shared.nudges.all();
        }
        if let Some(due) = next_timer {
            shared.timers.hint(due);
        }
    }
}
