//! Holds calls to models back that their run's own budget may have no room for.
//!
//! A run looks at its budget when it makes a call, and does not know then what the calls beside it will take. So the host
//! looks again before it asks the model: what the log has, and what the calls of the run that are under way in this process
//! may take. A call without room waits, parked, until others have ended. Other processes do not see these: together they
//! may exceed a budget by the calls that each of them has under way.

use std::{
    collections::{HashMap, hash_map::Entry},
    pin::Pin,
    sync::Arc,
    time::Duration,
};

use parking_lot::Mutex;
use wopr_core::{BudgetUnit, ModelCall, OverRunBudget, RunBound, RunKey, RunSpending};

use crate::{Attempt, Engine, Estimate, Outcome, Report, Request};

/// After how long a call is looked at again that waits for others, or for the store.
const LATER: Duration = Duration::from_millis(500);
/// The longest wait of a call while somebody is asked for more. It begins with [`LATER`], and grows with the time that
/// the question has been open.
const WHILE_ASKED: Duration = Duration::from_secs(60);

/// An attempt that is made.
type Performing<'a> = Pin<Box<dyn Future<Output = Report> + Send + 'a>>;

/// What the calls under way may take, by run.
#[derive(Debug, Default)]
pub(crate) struct RunBudgets(Arc<Mutex<HashMap<RunKey, UnderWay>>>);

/// The calls of a run that are under way.
#[derive(Debug, Default)]
struct UnderWay {
    n_calls: usize,
    reserved: Estimate,
    /// What the run had left when it was last looked at: no more while only calls end.
    left: Option<Estimate>,
}

/// What a call has reserved, until dropped.
#[derive(Debug)]
struct Reservation {
    known: Arc<Mutex<HashMap<RunKey, UnderWay>>>,
    run: RunKey,
    amount: Estimate,
    /// What other calls had reserved.
    others: Estimate,
}

impl Drop for Reservation {
    fn drop(&mut self) {
        let mut known = self.known.lock();
        let Entry::Occupied(mut of_run) = known.entry(self.run.clone()) else {
            return;
        };
        let under_way = of_run.get_mut();
        under_way.n_calls -= 1;
        under_way.reserved = under_way.reserved.without(self.amount);
        if under_way.n_calls == 0 {
            of_run.remove();
        }
    }
}

/// Whether a call may be made.
#[derive(Debug, PartialEq, Eq)]
enum Room {
    Yes,
    /// Not while calls are under way that may take the rest.
    Later,
    /// Not before somebody has answered.
    WhenAnswered,
    No,
}

impl RunBudgets {
    /// Reserves what a call may take. The run is read after that, so that no call is missed by both. Returns `None` if the
    /// other calls may use up what the run had left.
    fn reserve(&self, run: &RunKey, amount: Estimate) -> Option<Reservation> {
        let mut known = self.0.lock();
        let under_way = known.entry(run.clone()).or_default();
        let others = under_way.reserved;
        if under_way.left.is_some_and(|left| others.uses_up(left)) {
            return None;
        }
        under_way.n_calls += 1;
        under_way.reserved = others.with(amount);
        Some(Reservation {
            known: Arc::clone(&self.0),
            run: run.clone(),
            amount,
            others,
        })
    }

    fn look(&self, spending: &RunSpending, reservation: &Reservation) -> Room {
        let left = |unit: BudgetUnit| {
            let mut bounds = spending.bounds.iter().filter(|bound| bound.unit == unit);
            bounds
                .next()
                .map_or(u64::MAX, |bound| bound.most.saturating_sub(bound.taken))
        };
        let left = Estimate {
            tokens: left(BudgetUnit::Tokens),
            cost_micros: left(BudgetUnit::CostMicros),
        };
        if let Some(under_way) = self.0.lock().get_mut(&reservation.run) {
            under_way.left = Some(left);
        }
        match spending.bounds.iter().any(RunBound::is_used_up) {
            true if spending.is_asked_for => Room::WhenAnswered,
            true => Room::No,
            false if reservation.others.uses_up(left) => Room::Later,
            false => Room::Yes,
        }
    }
}

impl Estimate {
    const fn with(self, other: Self) -> Self {
        Self {
            tokens: self.tokens.saturating_add(other.tokens),
            cost_micros: self.cost_micros.saturating_add(other.cost_micros),
        }
    }

    const fn without(self, other: Self) -> Self {
        Self {
            tokens: self.tokens.saturating_sub(other.tokens),
            cost_micros: self.cost_micros.saturating_sub(other.cost_micros),
        }
    }

    /// Whether nothing would be left of one of the amounts.
    fn uses_up(self, left: Self) -> bool {
        let uses_up = |amount: u64, left: u64| amount > 0 && amount >= left;
        uses_up(self.tokens, left.tokens) || uses_up(self.cost_micros, left.cost_micros)
    }
}

impl Engine {
    /// Makes an attempt at a call, if the budget of its run has room for it.
    pub(crate) fn perform(&self, attempt: Attempt) -> Performing<'_> {
        match &attempt.request {
            Request::Model(call) if call.has_run_budget => Box::pin(self.perform_within(attempt)),
            _ => self.shared.executor.run(attempt),
        }
    }

    async fn perform_within(&self, attempt: Attempt) -> Report {
        let Request::Model(call) = &attempt.request else {
            return self.shared.executor.run(attempt).await;
        };
        match self.hold_back(&attempt.run, call).await {
            Ok(reservation) => {
                attempt.keep.until_recorded(reservation);
                self.shared.executor.run(attempt).await
            }
            Err(report) => report,
        }
    }

    /// Reserves room for a call. Where there is none, returns what becomes of the attempt.
    async fn hold_back(&self, run: &RunKey, call: &ModelCall) -> Result<Option<Reservation>, Report> {
        let later = |wait| Report::Unchanged {
            check_after: Some(wait),
        };
        let amount = self.shared.executor.estimate(&run.tenant, call);
        let budgets = &self.shared.run_budgets;
        let reservation = budgets.reserve(run, amount).ok_or_else(|| later(LATER))?;
        let view = self.view(run).await.map_err(|error| {
            // Without the log nobody knows whether the model may be asked.
            let error = &error as &dyn std::error::Error;
            tracing::warn!(%run, error, "cannot read what the run has spent");
            later(LATER)
        })?;
        // A run that was removed hears no answer.
        let Some(view) = view else { return Ok(None) };
        let Some(spending) = view.run.model_spending(&view.plan) else {
            return Ok(None);
        };
        match budgets.look(&spending, &reservation) {
            Room::Yes => Ok(Some(reservation)),
            Room::Later => Err(later(LATER)),
            Room::WhenAnswered => {
                let asked_ms = self.now().millis_since(view.run.updated_at);
                let wait = Duration::from_millis(asked_ms / 4);
                Err(later(wait.clamp(LATER, WHILE_ASKED)))
            }
            Room::No => {
                tracing::info!(%run, "model not asked: the budget of the run is used up");
                Err(Outcome::Done(OverRunBudget.outcome().into()).into())
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use wopr_core::{RunId, TenantId};

    use super::*;

    fn run() -> RunKey {
        let tenant = TenantId::parse("acme").expect("valid");
        RunKey {
            tenant,
            run: RunId::parse("run-with-a-budget").expect("valid"),
        }
    }

    fn tokens(tokens: u64) -> Estimate {
        Estimate {
            tokens,
            cost_micros: 0,
        }
    }

    fn spending(taken: u64, is_asked_for: bool) -> RunSpending {
        let bound = RunBound {
            unit: BudgetUnit::Tokens,
            taken,
            most: 100,
        };
        RunSpending {
            bounds: vec![bound],
            is_asked_for,
        }
    }

    #[test]
    fn calls_beside_each_other_do_not_exceed_the_budget_together() {
        let budgets = RunBudgets::default();
        let reserve = || budgets.reserve(&run(), tokens(60));
        let first = reserve().expect("nothing is known");
        assert_eq!(budgets.look(&spending(0, false), &first), Room::Yes);
        let second = reserve().expect("the first leaves 40");
        assert_eq!(budgets.look(&spending(0, false), &second), Room::Yes);
        assert!(
            reserve().is_none(),
            "the two may take everything, which is known without a look"
        );
        drop(first);
        let third = reserve().expect("the second leaves 40, as far as is known");
        assert_eq!(
            budgets.look(&spending(55, false), &third),
            Room::Later,
            "the first took 55"
        );
        drop((second, third));
        assert!(budgets.0.lock().is_empty());
    }

    #[test]
    fn used_up_budget_is_asked_for_once() {
        let budgets = RunBudgets::default();
        let call = budgets.reserve(&run(), tokens(60)).expect("nothing is known");
        assert_eq!(budgets.look(&spending(99, false), &call), Room::Yes);
        assert_eq!(budgets.look(&spending(100, false), &call), Room::No);
        assert_eq!(budgets.look(&spending(100, true), &call), Room::WhenAnswered);
    }

    #[test]
    fn calls_of_unknown_size_do_not_wait_for_each_other() {
        let budgets = RunBudgets::default();
        let first = budgets
            .reserve(&run(), Estimate::default())
            .expect("nothing is known");
        assert_eq!(budgets.look(&spending(99, false), &first), Room::Yes);
        let second = budgets
            .reserve(&run(), Estimate::default())
            .expect("nothing is reserved");
        assert_eq!(budgets.look(&spending(99, false), &second), Room::Yes);
    }
}
