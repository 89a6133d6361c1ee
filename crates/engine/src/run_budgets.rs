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
use serde_json::Value;
use tokio::runtime::Handle;
use tokio_util::task::TaskTracker;
use wopr_core::{BudgetKey, BudgetUnit, OverBudget, OverRunBudget, RunBound, RunKey, RunSpending, provider};

use crate::{
    Attempt, Engine, Estimate, Outcome, Report, Request, View, commit::effect_key, logs::store_failed,
    waiting::Waiting,
};

/// After how long the first call of a run looks again that waits for others. It is woken when one of them ends in this
/// process.
const LATER: Duration = Duration::from_secs(5);
/// After how long calls look again that wait for the store.
const AFTER_TROUBLE: Duration = Duration::from_millis(500);
/// How long the first call waits at least and at most while somebody is asked for more. The wait grows with the time that
/// the question has been open.
const WHILE_ASKED: (Duration, Duration) = (Duration::from_millis(500), Duration::from_secs(60));

/// An attempt that is made.
type Performing<'a> = Pin<Box<dyn Future<Output = Report> + Send + 'a>>;

/// What the calls under way may take, by run, and the calls that wait.
#[derive(Debug)]
pub(crate) struct RunBudgets {
    under_way: Arc<Mutex<HashMap<RunKey, UnderWay>>>,
    /// Calls that wait for room in the budget of their run.
    waiting: Waiting<RunKey>,
    /// Calls that wait because their run asks for more of a shared budget.
    asking: Waiting<RunKey>,
}

/// The calls of a run that are under way.
#[derive(Debug, Default)]
struct UnderWay {
    n_calls: usize,
    reserved: Estimate,
    /// The rest of the run's budget at the last check. Calls that have ended since can only have lowered it.
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
    /// Whether no other call of the run was under way in this process.
    is_alone: bool,
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

/// The result of checking a call against what its run has left.
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
    pub(crate) fn new(tasks: TaskTracker, runtime: Handle) -> Self {
        Self {
            under_way: Arc::default(),
            waiting: Waiting::new(tasks.clone(), runtime.clone()),
            asking: Waiting::new(tasks, runtime),
        }
    }

    /// Reserves what a call may take. The run is read after that, so that no call is missed by both. Returns `None` if the
    /// other calls may use up what the run had left.
    fn reserve(&self, run: &RunKey, amount: Estimate) -> Option<Reservation> {
        let mut known = self.under_way.lock();
        let under_way = known.entry(run.clone()).or_default();
        let others = under_way.reserved;
        if under_way.left.is_some_and(|left| others.uses_up(left)) {
            return None;
        }
        let is_alone = under_way.n_calls == 0;
        under_way.n_calls += 1;
        under_way.reserved = others.with(amount);
        Some(Reservation {
            known: Arc::clone(&self.under_way),
            run: run.clone(),
            amount,
            others,
            is_alone,
        })
    }

    /// Checks a call that uses these grants against what its run has left.
    fn look(&self, spending: &RunSpending, reservation: &Reservation, granted: &[BudgetKey]) -> Room {
        let grants = granted.iter().map(|key| {
            let mut grants = spending.granted.iter();
            grants.find(|(known, _)| known == key).map(|(_, bound)| bound)
        });
        let grants: Option<Vec<_>> = grants.collect();
        // A call with a grant that is no more is made again without it.
        let Some(grants) = grants.filter(|grants| !grants.iter().any(|bound| bound.is_used_up())) else {
            return Room::No;
        };
        let bounds = spending.bounds.iter().chain(grants);
        let mut left = Estimate {
            tokens: u64::MAX,
            cost_micros: u64::MAX,
        };
        for bound in bounds {
            let of_bound = bound.most.saturating_sub(bound.taken);
            match bound.unit {
                BudgetUnit::Tokens => left.tokens = left.tokens.min(of_bound),
                BudgetUnit::CostMicros => left.cost_micros = left.cost_micros.min(of_bound),
                // Nobody knows before how long an answer takes.
                BudgetUnit::TimeMs => {}
            }
        }
        if let Some(under_way) = self.under_way.lock().get_mut(&reservation.run) {
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
    /// Makes an attempt at a call, if the budgets of its run have room for it.
    pub(crate) fn perform(&self, attempt: Attempt) -> Performing<'_> {
        match &attempt.request {
            Request::Model(_) => Box::pin(self.ask_model(attempt)),
            _ => self.shared.executor.run(attempt),
        }
    }

    async fn ask_model(&self, attempt: Attempt) -> Report {
        let (run, id) = (attempt.run.clone(), attempt.idempotency_key.clone());
        let (wake, keep) = (attempt.wake.clone(), attempt.keep.clone());
        let RunBudgets { waiting, asking, .. } = &self.shared.run_budgets;
        let unchanged = |again| Report::Unchanged {
            check_after: Some(again),
        };
        let reservation = match self.hold_back(&attempt).await {
            Held::Not(reservation) => reservation,
            Held::UntilLater(again) => {
                return unchanged(waiting.join(&run, (&id, &wake), again, self.now()));
            }
            Held::ForGood => {
                tracing::debug!(%run, "model not asked: the budget of the run is used up");
                keep.until_recorded(waiting.decided(&run, &id, None::<Reservation>));
                return Outcome::Done(OverRunBudget.outcome().into()).into();
            }
        };
        waiting.leave(&run, &id);
        if reservation.is_some() {
            // There may be room for more.
            waiting.wake_first(&run);
        }
        let report = self.shared.executor.run(attempt).await;
        if let Some(over) = over_shared(&report) {
            // The executor did not make the call. If an approval for more is open already, the call waits without waking the
            // next one, which could only wait as well.
            if let Some(again) = self.is_asked_for(&run, &over).await {
                return unchanged(asking.join(&run, (&id, &wake), again, self.now()));
            }
            self.shared.counters.over_budget(over.key.scope);
            // As often as a run calls models; the counter says it, too.
            tracing::debug!(%run, budget = over.message(), "model not asked");
        }
        keep.until_recorded(waiting.decided(&run, &id, reservation));
        keep.until_recorded(asking.decided(&run, &id, None::<Reservation>));
        report
    }

    /// How long a call waits for an answer to the question for more of a budget that the run shares, if one is open.
    async fn is_asked_for(&self, run: &RunKey, over: &OverBudget) -> Option<Duration> {
        let view = self.view(run).await.ok().flatten()?;
        view.run.asks_for_more(&over.key).then(|| self.while_asked(&view))
    }

    /// How long a call waits for an answer, by how long the question has been open.
    fn while_asked(&self, view: &View) -> Duration {
        let asked_ms = self.now().millis_since(view.run.updated_at);
        Duration::from_millis(asked_ms / 4).clamp(WHILE_ASKED.0, WHILE_ASKED.1)
    }

    /// Has the other calls of a run look that a process which has ended left waiting: they are in no queue of this one.
    async fn wake_beside(&self, view: &View, attempt: &Attempt) {
        for (step, nth, number) in view.run.calls_of(&**view.plan, provider::MODEL) {
            if step == attempt.step {
                continue;
            }
            let key = effect_key(&step, nth, number);
            if let Err(error) = self.wake_row(&view.key, &key, Duration::ZERO).await {
                // It looks by itself, if later.
                tracing::debug!(run = %view.key, %error, "waiting call not woken");
                return;
            }
        }
    }

    /// Reserves room for a call, if there is some.
    async fn hold_back(&self, attempt: &Attempt) -> Held {
        let (run, call) = match &attempt.request {
            Request::Model(call) if call.has_run_budget => (&attempt.run, call),
            _ => return Held::Not(None),
        };
        let amount = self.shared.executor.estimate(&run.tenant, call);
        let budgets = &self.shared.run_budgets;
        let Some(reservation) = budgets.reserve(run, amount) else {
            return Held::UntilLater(LATER);
        };
        let view = match self.view(run).await {
            Ok(Some(view)) => view,
            // A run that was removed hears no answer.
            Ok(None) => return Held::Not(None),
            // Only the log says whether the model may be asked.
            Err(error) => {
                store_failed("cannot read what the run has spent", &error);
                return Held::UntilLater(AFTER_TROUBLE);
            }
        };
        let Some(spending) = view.run.model_spending(&view.plan) else {
            return Held::Not(None);
        };
        if attempt.is_interrupted && reservation.is_alone && budgets.waiting.is_empty(run) {
            self.wake_beside(&view, attempt).await;
        }
        match budgets.look(&spending, &reservation, &call.granted) {
            Room::Yes => Held::Not(Some(reservation)),
            Room::Later => Held::UntilLater(LATER),
            Room::WhenAnswered => Held::UntilLater(self.while_asked(&view)),
            Room::No => Held::ForGood,
        }
    }
}

/// The shared budget because of which a call was not made.
fn over_shared(report: &Report) -> Option<OverBudget> {
    match report {
        Report::Ended(Outcome::Done(Value::Object(outcome))) => OverBudget::read(outcome),
        Report::Ended(_)
        | Report::Accepted { .. }
        | Report::Interrupted { .. }
        | Report::Unchanged { .. }
        | Report::Produced { .. } => None,
    }
}

/// What the host does with a call.
#[derive(Debug)]
enum Held {
    /// Others count with it until the reservation is dropped.
    Not(Option<Reservation>),
    /// After this time it looks again, if it is the first.
    UntilLater(Duration),
    ForGood,
}

#[cfg(test)]
mod tests {
    use wopr_core::{BudgetPeriod, BudgetScope, RunId, TenantId, Timestamp};

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
            granted: Vec::new(),
            is_asked_for,
        }
    }

    #[tokio::test]
    async fn calls_beside_each_other_do_not_exceed_the_budget_together() {
        let budgets = RunBudgets::new(TaskTracker::new(), Handle::current());
        let reserve = || budgets.reserve(&run(), tokens(60));
        let first = reserve().expect("nothing is known");
        assert_eq!(budgets.look(&spending(0, false), &first, &[]), Room::Yes);
        let second = reserve().expect("the first leaves 40");
        assert_eq!(budgets.look(&spending(0, false), &second, &[]), Room::Yes);
        assert!(
            reserve().is_none(),
            "the two may take everything, which is known without a look"
        );
        drop(first);
        let third = reserve().expect("the second leaves 40, as far as is known");
        assert_eq!(
            budgets.look(&spending(55, false), &third, &[]),
            Room::Later,
            "the first took 55"
        );
        drop((second, third));
        assert!(budgets.under_way.lock().is_empty());
    }

    #[tokio::test]
    async fn used_up_budget_is_asked_for_once() {
        let budgets = RunBudgets::new(TaskTracker::new(), Handle::current());
        let call = budgets.reserve(&run(), tokens(60)).expect("nothing is known");
        assert_eq!(budgets.look(&spending(99, false), &call, &[]), Room::Yes);
        assert_eq!(budgets.look(&spending(100, false), &call, &[]), Room::No);
        assert_eq!(budgets.look(&spending(100, true), &call, &[]), Room::WhenAnswered);
    }

    #[tokio::test]
    async fn calls_of_unknown_size_do_not_wait_for_each_other() {
        let budgets = RunBudgets::new(TaskTracker::new(), Handle::current());
        let first = budgets
            .reserve(&run(), Estimate::default())
            .expect("nothing is known");
        assert_eq!(budgets.look(&spending(99, false), &first, &[]), Room::Yes);
        let second = budgets
            .reserve(&run(), Estimate::default())
            .expect("nothing is reserved");
        assert_eq!(budgets.look(&spending(99, false), &second, &[]), Room::Yes);
    }

    #[tokio::test]
    async fn calls_share_what_was_granted() {
        let key = BudgetKey {
            scope: BudgetScope::Tenant,
            per: BudgetPeriod::Day,
            unit: BudgetUnit::Tokens,
            until: Timestamp::from_millis(1_800_000_000_000),
        };
        let granted = |taken| RunSpending {
            bounds: Vec::new(),
            granted: spending(taken, false)
                .bounds
                .into_iter()
                .map(|bound| (key, bound))
                .collect(),
            is_asked_for: false,
        };
        let budgets = RunBudgets::new(TaskTracker::new(), Handle::current());
        let reserve = || {
            budgets
                .reserve(&run(), tokens(60))
                .expect("room as far as is known")
        };
        let first = reserve();
        assert_eq!(budgets.look(&granted(0), &first, &[key]), Room::Yes);
        let second = reserve();
        assert_eq!(budgets.look(&granted(50), &second, &[key]), Room::Later);
        drop(second);
        assert_eq!(
            budgets.look(&granted(100), &first, &[key]),
            Room::No,
            "it is used up"
        );
        let other = BudgetKey {
            per: BudgetPeriod::Hour,
            ..key
        };
        assert_eq!(
            budgets.look(&granted(0), &first, &[other]),
            Room::No,
            "it is over"
        );
    }
}
