//! The budget of a run: what its models may take before somebody is asked for more, or the run fails.
//!
//! It is looked at before each request to a model, so an answer may exceed it, and the next one is not asked for.

use serde_json::json;
use wopr_kernel::{Answered, Cap, Seq, StepId};

use crate::{
    ApprovalAction, Failure, InterruptKind,
    definition::{OnBreach, RunBudget},
    node::ModelNode,
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
            OnBreach::Ask => {
                let data = json!({
                    "title": format!("Spend {} more?", breach.grant),
                    "description": format!("The models of this run have used {}.", breach.used),
                    "artifactId": step.node.as_str(),
                    "artifactType": "budget",
                    "actions": ["accept", "reject"],
                });
                self.interrupt(step, cause, (InterruptKind::Approval, data), None);
            }
        }
        false
    }

    fn breach_of(&self, budget: &RunBudget) -> Option<Breach> {
        // Each approval gives as much again.
        let times = u64::from(self.state.n_grants) + 1;
        let usage = &self.state.usage;
        if let Some(most) = budget.max_tokens
            && usage.total_tokens() >= most.saturating_mul(times)
        {
            return Some(Breach {
                cap: Cap::BudgetTokens,
                limit: most.saturating_mul(times),
                observed: usage.total_tokens(),
                used: format!("{} tokens", usage.total_tokens()),
                grant: format!("{most} tokens"),
            });
        }
        let (cost, most) = (
            micros(usage.cost_usd.unwrap_or(0.0)),
            budget.max_cost_usd.map(micros),
        );
        if let Some(most) = most
            && cost >= most.saturating_mul(times)
        {
            return Some(Breach {
                cap: Cap::BudgetCost,
                limit: most.saturating_mul(times),
                observed: cost,
                used: format!("{} USD", dollars(cost)),
                grant: format!("{} USD", dollars(most)),
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

    /// Goes on after somebody was asked for more.
    pub(super) fn budget_answered(&mut self, node: &ModelNode, step: &StepId, cause: Seq, answer: &Answered) {
        let is_granted = matches!(
            answer,
            Answered::Approval {
                action: ApprovalAction::Accept,
                ..
            }
        );
        let Some((position, attempt)) = self
            .active(step)
            .map(|(position, active)| (position, active.attempt))
        else {
            return;
        };
        match is_granted {
            true => self.call_model(node, position, step.clone(), attempt, cause),
            false => {
                let failure = Failure::new("budget_exhausted", "the run may not spend more on models");
                self.fail_node(step, cause, failure);
            }
        }
    }
}

/// Millionths of a dollar, which add up without error.
fn micros(usd: f64) -> u64 {
    #[expect(
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        reason = "a cost is no negative number, and the largest budget is a billion dollars"
    )]
    let micros = (usd.clamp(0.0, 1e9) * 1e6).round() as u64;
    micros
}

fn dollars(micros: u64) -> String {
    let (whole, part) = (micros / 1_000_000, micros % 1_000_000);
    let text = format!("{whole}.{part:06}");
    let text = text.trim_end_matches('0');
    text.trim_end_matches('.').to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn costs_are_shown_without_rounding_errors() {
        for (usd, text) in [
            (0.1 + 0.2, "0.3"),
            (2.0, "2"),
            (0.000_001, "0.000001"),
            (12.5, "12.5"),
            (-1.0, "0"),
        ] {
            assert_eq!(dollars(micros(usd)), text);
        }
    }
}
