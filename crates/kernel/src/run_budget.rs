//! The budget of one run, as the host reads it that asks models for the run.
//!
//! A run decides about its budget from what its log holds, so it cannot know what the calls under way will take. Its host
//! can: it holds a call back while the others may use up the rest.

use serde_json::json;

use crate::{BudgetKey, BudgetUnit, Object};

/// What the models of a run have taken, and may take.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RunSpending {
    /// Those of its own budget.
    pub bounds: Vec<RunBound>,
    /// The grants of the run beyond shared budgets.
    pub granted: Vec<(BudgetKey, RunBound)>,
    /// Whether an approval of more is open.
    pub is_asked_for: bool,
}

/// A bound of what the models of a run may take.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RunBound {
    pub unit: BudgetUnit,
    pub taken: u64,
    /// With what has been granted.
    pub most: u64,
}

impl RunBound {
    #[must_use]
    pub const fn is_used_up(&self) -> bool {
        self.taken >= self.most
    }
}

/// The host did not ask a model, because the run has used up its own budget or a grant. The run knows by how much.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct OverRunBudget;

/// The member of an outcome that is no reply.
const OVER_RUN_BUDGET: &str = "overRunBudget";

impl OverRunBudget {
    /// It as the outcome of a call.
    #[must_use]
    pub fn outcome(self) -> Object {
        Object::from_iter([(OVER_RUN_BUDGET.to_owned(), json!(true))])
    }

    /// Reads the outcome of a call to a model. `None` if the model was asked, or not asked for another reason.
    #[must_use]
    pub fn read(outcome: &Object) -> Option<Self> {
        outcome.contains_key(OVER_RUN_BUDGET).then_some(Self)
    }
}
