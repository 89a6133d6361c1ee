//! Follow-up of a durable append: wakes followers, the outbox loop and other runs, and starts effects.

use std::time::Instant;

use wopr_core::{NodeId, Recorded, RunId, RunKey, RunStatus, Timestamp};
use wopr_store::WorkKey;

use crate::{Decided, Engine, Throttles, View, commit, recent_runs::Change, stats::Counters};

/// Runs fail as often as a tenant starts some, and only so many a minute have a line.
static FAILED: Throttles = Throttles::new(60);

/// What to do once an append is durable.
pub(crate) struct FollowUp {
    pub(crate) was_terminal: bool,
    pub(crate) settled: Vec<WorkKey>,
    pub(crate) events: Vec<Recorded>,
    /// Stored size of the events.
    pub(crate) n_bytes: usize,
    /// Stored size of the run before.
    pub(crate) n_run_bytes: usize,
    /// Stored size of all events after the last snapshot.
    pub(crate) n_tail_bytes: usize,
    /// If this append ended the run, its log is unlikely to be read soon.
    pub(crate) is_log_unread: bool,
    /// The append added a subscription, which may have replaced one that has pending deliveries.
    pub(crate) is_heard: bool,
    pub(crate) effects: Vec<(WorkKey, commit::StoredEffect)>,
    pub(crate) told: Vec<RunId>,
    /// Worker queues into which activities were put.
    pub(crate) offered: Vec<String>,
    pub(crate) next_timer: Option<Timestamp>,
    /// Peers are to be told of cancelled calls.
    pub(crate) has_told: bool,
    /// When a parked effect is due.
    pub(crate) next_check: Option<Timestamp>,
    /// The append releases the run's work rows.
    pub(crate) is_released: bool,
    pub(crate) children: usize,
    /// Children that ended in the append, with the codes of their errors.
    pub(crate) ended_children: Vec<(RunId, RunStatus, Option<String>)>,
}

impl Engine {
    /// Acts on an append that is durable. `change` is set if the appended events are the end of the log. Returns
    /// them if they end the run and are not cached.
    pub(crate) fn act(&self, after: &View, follow_up: FollowUp, change: Option<Change>) -> Vec<Recorded> {
        let FollowUp {
            was_terminal,
            settled,
            events,
            n_bytes,
            n_run_bytes,
            n_tail_bytes,
            is_log_unread,
            is_heard,
            effects,
            told,
            offered,
            next_timer,
            has_told,
            next_check,
            is_released,
            children,
            ended_children,
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
                if let Some(left_out) = FAILED.admit(tenant, Instant::now()) {
                    tracing::warn!(%run, %tenant, node, code, left_out, "run failed");
                }
            }
        }
        for (run, status, code) in ended_children {
            shared.counters.ended(status);
            if let (RunStatus::Failed, Some(code)) = (status, code) {
                let tenant = &after.key.tenant;
                if let Some(left_out) = FAILED.admit(tenant, Instant::now()) {
                    tracing::warn!(%run, %tenant, code, left_out, "run failed");
                }
            }
        }
        let mut last_events = Vec::new();
        match change {
            Some(_) if is_terminal && is_log_unread => last_events = events,
            // Before waking followers, which will look for it.
            Some(change) => {
                let is_whole = after.run.head.0 == events.len() as u64;
                // A partial log is cached together with the fold, which includes the earlier events.
                let n_bytes = match is_whole {
                    true => n_bytes,
                    false => n_run_bytes.saturating_add(2 * n_bytes),
                };
                if n_bytes <= Decided::MOST {
                    change.keep(Decided {
                        summary: after.summary.clone(),
                        events,
                        head: after.run.head,
                        run: (!is_whole).then(|| after.run.clone()),
                        n_tail_bytes,
                        n_bytes,
                    });
                }
            }
            None => {}
        }
        shared.tails.grew(&after.key, after.run.head);
        shared.outboxes.appended();
        if is_heard {
            shared.deliveries.stir();
        }
        if !settled.is_empty() {
            self.activities_settled(&after.key.tenant);
        }
        for key in settled {
            shared.effects.ended(&after.key, &key);
        }
        for queue in offered {
            let place = (after.key.tenant.clone(), queue);
            shared.workers.queues.offered(&place);
        }
        for (key, effect) in effects {
            self.begin_effect(after.key.clone(), key, effect);
        }
        for run in told {
            shared.inboxes.tell(after.key.sibling(run.clone()));
        }
        if is_released {
            shared.run_backoff.forget(&after.key);
            shared.inboxes.tell(after.key.clone());
            self.stir_all();
            shared.workers.queues.stir_tenant(&after.key.tenant);
        }
        if has_told {
            shared.effects.stir();
        }
        if let Some(due) = next_check {
            shared.effects.hint(due);
        }
        if let Some(due) = next_timer {
            shared.timers.hint(due);
        }
        last_events
    }
}
