//! Counters of the engine's activity since it started.

use std::sync::atomic::{AtomicU64, Ordering};

use wopr_core::{BudgetScope, ModelUsage, RunStatus, micros};
use wopr_store::MOST_ADDED;

use crate::Steps;

#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Stats {
    /// Includes children.
    pub runs_created: u64,
    pub runs_completed: u64,
    pub runs_failed: u64,
    pub runs_cancelled: u64,
    pub appends: u64,
    /// Appends refused because another writer was first; the engine decides those commands again.
    pub conflicts: u64,
    pub timers_fired: u64,
    pub effects_started: u64,
    /// Outcomes of effects dropped because the lease was lost or the execution was over.
    pub effects_dropped: u64,
    pub effects_active: u64,
    /// Activities that workers leased, each lease counted.
    pub activities_leased: u64,
    /// Outcomes of workers that were recorded.
    pub activities_ended: u64,
    /// Attempts of activities that ended because too many of their leases had no outcome.
    pub activities_lost: u64,
    /// Calls of workers that wait for activities.
    pub workers_waiting: u64,
    /// Runs quarantined because processes died while working on them, or because their rows cannot be read.
    pub runs_quarantined: u64,
    /// Runs removed after their retention period.
    pub runs_removed: u64,
    /// Updates expanded into deliveries. An update counts once, however many subscriptions the run has.
    pub pushes_made: u64,
    /// Delivery attempts that succeeded.
    pub pushes_delivered: u64,
    /// Delivery attempts that failed and are retried.
    pub pushes_failed: u64,
    /// Deliveries that were dead-lettered.
    pub pushes_given_up: u64,
    /// Delivery attempts in progress.
    pub pushes_active: u64,
    /// Tokens of the answers that models gave.
    pub model_tokens: u64,
    /// What they cost, in millionths of a US dollar.
    pub model_cost_micros: u64,
    /// Calls to models that were not made because a budget of their tenant was used up.
    pub over_tenant_budget: u64,
    /// The same, because one of their workflow was.
    pub over_workflow_budget: u64,
    /// Panics caught in background work and loops, not in requests.
    pub panics: u64,
    /// How often and how far the system clock was set.
    pub clock: Steps,
}

#[derive(Debug, Default)]
pub(crate) struct Counters {
    pub(crate) runs_created: AtomicU64,
    completed: AtomicU64,
    failed: AtomicU64,
    cancelled: AtomicU64,
    pub(crate) appends: AtomicU64,
    pub(crate) conflicts: AtomicU64,
    pub(crate) timers_fired: AtomicU64,
    pub(crate) effects_started: AtomicU64,
    pub(crate) effects_dropped: AtomicU64,
    pub(crate) effects_active: AtomicU64,
    pub(crate) activities_leased: AtomicU64,
    pub(crate) activities_ended: AtomicU64,
    pub(crate) activities_lost: AtomicU64,
    pub(crate) runs_quarantined: AtomicU64,
    pub(crate) runs_removed: AtomicU64,
    pub(crate) pushes_made: AtomicU64,
    pub(crate) pushes_delivered: AtomicU64,
    pub(crate) pushes_failed: AtomicU64,
    pub(crate) pushes_given_up: AtomicU64,
    pub(crate) pushes_active: AtomicU64,
    model_tokens: AtomicU64,
    model_cost_micros: AtomicU64,
    over_tenant_budget: AtomicU64,
    over_workflow_budget: AtomicU64,
    pub(crate) panics: AtomicU64,
}

impl Counters {
    pub(crate) fn add(counter: &AtomicU64, n: usize) {
        counter.fetch_add(n as u64, Ordering::Relaxed);
    }

    /// Counts what a model took.
    pub(crate) fn took(&self, usage: &ModelUsage) {
        // A counter must not fall, so it must not wrap around.
        let add = |counter: &AtomicU64, n: u64| counter.fetch_add(n.min(MOST_ADDED), Ordering::Relaxed);
        add(&self.model_tokens, usage.total_tokens());
        add(&self.model_cost_micros, micros(usage.cost_usd.unwrap_or(0.0)));
    }

    /// Counts a call that was not made.
    pub(crate) fn over_budget(&self, scope: BudgetScope) {
        match scope {
            BudgetScope::Tenant => Self::add(&self.over_tenant_budget, 1),
            BudgetScope::Workflow => Self::add(&self.over_workflow_budget, 1),
        }
    }

    pub(crate) fn ended(&self, status: RunStatus) {
        match status {
            RunStatus::Completed => Self::add(&self.completed, 1),
            RunStatus::Failed => Self::add(&self.failed, 1),
            RunStatus::Cancelled => Self::add(&self.cancelled, 1),
            RunStatus::Pending
            | RunStatus::Running
            | RunStatus::Paused
            | RunStatus::WaitingApproval
            | RunStatus::WaitingInput
            | RunStatus::WaitingExternal
            | RunStatus::Cancelling => {}
        }
    }

    pub(crate) fn read(&self) -> Stats {
        let get = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        Stats {
            runs_created: get(&self.runs_created),
            runs_completed: get(&self.completed),
            runs_failed: get(&self.failed),
            runs_cancelled: get(&self.cancelled),
            appends: get(&self.appends),
            conflicts: get(&self.conflicts),
            timers_fired: get(&self.timers_fired),
            effects_started: get(&self.effects_started),
            effects_dropped: get(&self.effects_dropped),
            effects_active: get(&self.effects_active),
            activities_leased: get(&self.activities_leased),
            activities_ended: get(&self.activities_ended),
            activities_lost: get(&self.activities_lost),
            workers_waiting: 0,
            runs_quarantined: get(&self.runs_quarantined),
            runs_removed: get(&self.runs_removed),
            pushes_made: get(&self.pushes_made),
            pushes_delivered: get(&self.pushes_delivered),
            pushes_failed: get(&self.pushes_failed),
            pushes_given_up: get(&self.pushes_given_up),
            pushes_active: get(&self.pushes_active),
            model_tokens: get(&self.model_tokens),
            model_cost_micros: get(&self.model_cost_micros),
            over_tenant_budget: get(&self.over_tenant_budget),
            over_workflow_budget: get(&self.over_workflow_budget),
            panics: get(&self.panics),
            clock: Steps::default(),
        }
    }
}
