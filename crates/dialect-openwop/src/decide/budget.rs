//! Budgets: what models may take before somebody is asked for more, or the run fails.
//!
//! That of the run is looked at before each request to a model, and again by its host, which knows the calls under way. So
//! an answer may exceed it, and the next one is not asked for. Those that it shares with others are looked at by the host
//! only: the outcome of a call says which one is used up. While somebody is asked for more of either, the host holds the
//! calls of other steps back, so that nobody is asked twice.

use serde_json::json;
use wopr_kernel::{Answered, BudgetKey, Cap, OnOverBudget, OverBudget, RunBound, Seq, StepId};

use crate::{
    ApprovalAction, Failure, InterruptKind, Object,
    definition::{OnBreach, RunBudget},
    node::ModelNode,
    state::Granted,
    thinking::BUDGET,
};

use super::Walk;

/// A part of the budget that is used up.
struct Breach {
    cap: Cap,
    limit: u64,
    observed: u64,
    /// What was used, in words.
    used: String,
    /// What the budget gives each time, in words.
    grant: String,
}

impl Walk<'_, '_> {
    /// Returns `true` if the step may ask a model. Otherwise somebody is asked, or the run has failed.
    pub(super) fn may_spend(&mut self, step: &StepId, cause: Seq) -> bool {
        let plan = self.plan;
        let Some(budget) = &plan.definition.settings.budget else {
            return true;
        };
        let Some(breach) = self.breach_of(budget) else {
            return true;
        };
        match budget.on_breach {
            OnBreach::Fail => {
                self.breach(breach.cap, breach.limit, breach.observed, Some(step.node.clone()));
            }
            OnBreach::Ask if self.state.asks_for_budget(&self.run) => return true,
            OnBreach::Ask => {
                let data = json!({
                    "title": format!("Spend {} more?", breach.grant),
                    "description": format!("The models of this run have used {}.", breach.used),
                    "artifactId": step.node.as_str(),
                    "artifactType": BUDGET,
                    "actions": ["accept", "reject"],
                });
                self.interrupt(step, cause, (InterruptKind::Approval, data), None);
            }
        }
        false
    }

    fn breach_of(&self, budget: &RunBudget) -> Option<Breach> {
        let times = u64::from(self.state.n_grants) + 1;
        if let Some(bound) = self.state.bounds(budget).find(RunBound::is_used_up) {
            return Some(Breach {
                cap: bound.unit.cap(),
                limit: bound.most,
                observed: bound.taken,
                used: bound.unit.words(bound.taken),
                grant: bound.unit.words(bound.most / times),
            });
        }
        let since = self.run.running_since.unwrap_or(self.input.now);
        let spent_ms = self.run.active_ms + self.input.now.millis_since(since);
        if let Some(most) = budget.max_duration_ms
            && spent_ms >= most.saturating_mul(times)
        {
            return Some(Breach {
                cap: Cap::BudgetDuration,
                limit: most.saturating_mul(times),
                observed: spent_ms,
                used: format!("{spent_ms} ms"),
                grant: format!("{most} ms"),
            });
        }
        None
    }

    /// The shared budgets that the run may still go beyond.
    pub(super) fn granted(&self) -> Vec<BudgetKey> {
        let is_left = |granted: &&Granted| {
            granted.key.until > self.input.now && self.state.taken(granted.key.unit) < granted.up_to
        };
        let left = self.state.granted.iter().filter(is_left);
        left.map(|granted| granted.key).collect()
    }

    /// Follows the outcome of a call that was not made, because a budget that the run shares is used up.
    pub(super) fn over_budget(
        &mut self,
        node: &ModelNode,
        step: &StepId,
        cause: Seq,
        outcome: Object,
        over: &OverBudget,
    ) {
        let cause = self.end_call(step, cause, outcome);
        let more = match &over.on_breach {
            OnOverBudget::Fail => {
                let (cap, node) = (over.key.unit.cap(), Some(step.node.clone()));
                return self.breach_saying(cap, (over.limit, over.spent), node, over.message());
            }
            // Granted since the call was made, or another step asks: then the host holds the call back.
            OnOverBudget::Ask(_)
                if self.granted().contains(&over.key) || self.state.asks_for_more(&self.run, &over.key) =>
            {
                return self.ask_again(node, step, cause);
            }
            OnOverBudget::Ask(more) => more,
        };
        match over.key.until.millis_since(self.input.now) {
            // The next window has begun.
            0 => self.ask_again(node, step, cause),
            left_ms => {
                let data = over.question(step.node.as_str(), more);
                self.interrupt(step, cause, (InterruptKind::Approval, data), Some(left_ms));
            }
        }
    }

    /// Follows the outcome of a call that was not made, because the run's own budget was used up by calls beside it.
    pub(super) fn over_run_budget(&mut self, node: &ModelNode, step: &StepId, cause: Seq, outcome: Object) {
        let cause = self.end_call(step, cause, outcome);
        self.ask_again(node, step, cause);
    }

    fn ask_again(&mut self, node: &ModelNode, step: &StepId, cause: Seq) {
        let active = self.active(step);
        if let Some((position, attempt)) = active.map(|(position, active)| (position, active.attempt)) {
            self.call_model(node, position, step.clone(), attempt, cause);
        }
    }

    /// Goes on after somebody was asked for more. Only the approval of a shared budget times out: when the next window
    /// begins, which has room again.
    pub(super) fn budget_answered(&mut self, node: &ModelNode, step: &StepId, cause: Seq, answer: &Answered) {
        match answer {
            Answered::Approval {
                action: ApprovalAction::Accept,
                ..
            } => self.ask_again(node, step, cause),
            Answered::Approval {
                action: ApprovalAction::Timeout,
                ..
            } => {
                let cause = self.resume_step(step, cause, None);
                self.ask_again(node, step, cause);
            }
            Answered::Approval { .. }
            | Answered::Clarification { .. }
            | Answered::Value { .. }
            | Answered::Verdict { .. }
            | Answered::TimedOut => {
                let failure = Failure::new("budget_exhausted", "the run may not spend more on models");
                self.fail_node(step, cause, failure);
            }
        }
    }
}
