//! Budgets that runs share: those of a tenant and of its workflows, in windows of the calendar.
//!
//! The append that records a model's answer adds what it took to the counts of the current windows ([`Budgets::rows`]).
//! Before a model is asked, the counts are read ([`Budgets::look`]). Calls under way in this process are reserved for what
//! they may take, so that many runs that look at once do not all find room. Other processes do not see the reservations:
//! together they may exceed a budget by the calls that each of them has under way.

use std::{collections::HashMap, sync::Arc};

use parking_lot::Mutex;
use wopr_core::{
    BudgetKey, BudgetPeriod, BudgetScope, BudgetUnit, ModelUsage, MoreMoney, OnOverBudget, OverBudget,
    TenantId, Timestamp, WorkflowId, micros,
};
use wopr_store::SpentRow;

/// A budget that the operator has configured.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Budget {
    /// Whose it is; each tenant has one like it where absent.
    pub tenant: Option<TenantId>,
    /// The workflow whose runs it bounds; all runs of the tenant together where absent.
    pub workflow: Option<WorkflowId>,
    pub per: BudgetPeriod,
    pub tokens: Option<Bound>,
    /// In millionths of a US dollar.
    pub cost_micros: Option<Bound>,
    /// How long the host waits for answers, in milliseconds.
    pub time_ms: Option<Bound>,
    pub on_breach: OnBreach,
}

/// A bound of a budget.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Bound {
    pub most: u64,
    /// How much more each approval gives to one run.
    pub grant: u64,
}

/// What happens when a budget is used up.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum OnBreach {
    /// Those who have one of these roles or groups are asked; everybody who may answer where there are none.
    Ask {
        roles: Vec<String>,
        groups: Vec<String>,
    },
    Fail,
}

impl Budget {
    fn bound(&self, unit: BudgetUnit) -> Option<Bound> {
        match unit {
            BudgetUnit::Tokens => self.tokens,
            BudgetUnit::CostMicros => self.cost_micros,
            BudgetUnit::TimeMs => self.time_ms,
        }
    }

    const fn scope(&self) -> BudgetScope {
        match self.workflow {
            None => BudgetScope::Tenant,
            Some(_) => BudgetScope::Workflow,
        }
    }
}

/// What a call to a model may take at most, as far as one can know before.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Estimate {
    pub tokens: u64,
    pub cost_micros: u64,
}

impl Estimate {
    const fn of(&self, unit: BudgetUnit) -> u64 {
        match unit {
            BudgetUnit::Tokens => self.tokens,
            BudgetUnit::CostMicros => self.cost_micros,
            // Nobody knows before how long an answer takes.
            BudgetUnit::TimeMs => 0,
        }
    }
}

/// The budgets of a host, and what its calls under way have reserved.
#[derive(Debug, Default)]
pub(crate) struct Budgets {
    configured: Vec<Budget>,
    reserved: Arc<Mutex<Reserved>>,
}

/// Reserved amounts, by tenant, workflow (none for the tenant as a whole), period and unit.
type Reserved = HashMap<Place, u64>;
type Place = (TenantId, Option<WorkflowId>, BudgetPeriod, BudgetUnit);

/// What a call has reserved, until dropped.
#[derive(Debug)]
pub(crate) struct Reservation {
    reserved: Arc<Mutex<Reserved>>,
    places: Vec<(Place, u64)>,
    /// What other calls had reserved, in the same order.
    others: Vec<u64>,
}

impl Drop for Reservation {
    fn drop(&mut self) {
        let mut reserved = self.reserved.lock();
        for (place, amount) in &self.places {
            if let Some(known) = reserved.get_mut(place) {
                *known = known.saturating_sub(*amount);
                if *known == 0 {
                    reserved.remove(place);
                }
            }
        }
    }
}

/// Whether a model may be asked.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Room {
    Yes,
    /// Not while calls are under way that may take the rest.
    Later,
    No(Box<OverBudget>),
}

impl Budgets {
    pub(crate) fn new(configured: Vec<Budget>) -> Self {
        Self {
            configured,
            reserved: Arc::default(),
        }
    }

    /// The budgets that bound the runs of a workflow of a tenant; those of all its workflows with `None`. One for the
    /// tenant itself takes the place of one for every tenant.
    pub(crate) fn of<'b>(
        &'b self,
        tenant: &'b TenantId,
        workflow: Option<&'b WorkflowId>,
    ) -> impl Iterator<Item = &'b Budget> {
        let is_own = |budget: &Budget| budget.tenant.as_ref() == Some(tenant);
        let is_replaced = move |budget: &Budget| {
            let own = self.configured.iter().filter(move |other| is_own(other));
            budget.tenant.is_none() && { own }
                .any(|other| (&other.workflow, other.per) == (&budget.workflow, budget.per))
        };
        self.configured.iter().filter(move |budget| {
            let is_of = budget.tenant.as_ref().is_none_or(|of| of == tenant);
            let bounds = match (&budget.workflow, workflow) {
                (None, _) | (_, None) => true,
                (Some(of), Some(workflow)) => of == workflow,
            };
            is_of && bounds && !is_replaced(budget)
        })
    }

    /// Whether a budget bounds a tenant, and whether one bounds a workflow of it.
    pub(crate) fn bounds(&self, tenant: &TenantId) -> (bool, bool) {
        let mut found = (false, false);
        for budget in self.of(tenant, None) {
            found = (true, found.1 || budget.workflow.is_some());
        }
        found
    }

    /// What an answer adds to the counts.
    pub(crate) fn rows(
        &self,
        tenant: &TenantId,
        workflow: &WorkflowId,
        usage: &ModelUsage,
        now: Timestamp,
    ) -> Vec<SpentRow> {
        self.of(tenant, Some(workflow))
            .map(|budget| SpentRow {
                workflow: budget.workflow.clone(),
                per: budget.per,
                window: budget.per.window(now),
                tokens: usage.total_tokens(),
                cost_micros: micros(usage.cost_usd.unwrap_or(0.0)),
                time_ms: usage.duration_ms.unwrap_or(0),
            })
            .collect()
    }

    /// Reserves what a call may take. The counts are read after that, so that no call is missed by both.
    pub(crate) fn reserve(
        &self,
        tenant: &TenantId,
        workflow: Option<&WorkflowId>,
        estimate: Estimate,
    ) -> Reservation {
        let bounds = self.bounds_of(tenant, workflow);
        let places: Vec<_> = bounds
            .map(|(budget, unit, _)| {
                let place = (tenant.clone(), budget.workflow.clone(), budget.per, unit);
                (place, estimate.of(unit))
            })
            .collect();
        let mut reserved = self.reserved.lock();
        let mut others = Vec::with_capacity(places.len());
        for (place, amount) in &places {
            let known = reserved.entry(place.clone()).or_default();
            others.push(*known);
            *known = known.saturating_add(*amount);
        }
        drop(reserved);
        Reservation {
            reserved: Arc::clone(&self.reserved),
            places,
            others,
        }
    }

    /// Whether a call has room, by what is counted and by what other calls have reserved.
    pub(crate) fn look(
        &self,
        (tenant, workflow): (&TenantId, Option<&WorkflowId>),
        granted: &[BudgetKey],
        (spent, reservation): (&[SpentRow], &Reservation),
        now: Timestamp,
    ) -> Room {
        let mut room = Room::Yes;
        for ((budget, unit, bound), others) in self.bounds_of(tenant, workflow).zip(&reservation.others) {
            let window = budget.per.window(now);
            let key = BudgetKey {
                scope: budget.scope(),
                per: budget.per,
                unit,
                until: window.until,
            };
            if granted.contains(&key) {
                continue;
            }
            let is_of = |row: &&SpentRow| {
                (&row.workflow, row.per, row.window) == (&budget.workflow, budget.per, window)
            };
            let taken = spent.iter().find(is_of).map_or(0, |row| match unit {
                BudgetUnit::Tokens => row.tokens,
                BudgetUnit::CostMicros => row.cost_micros,
                BudgetUnit::TimeMs => row.time_ms,
            });
            if taken >= bound.most {
                // Nobody is asked for more if another budget fails the run all the same.
                let is_settled = matches!(room, Room::No(_)) && !matches!(budget.on_breach, OnBreach::Fail);
                if is_settled {
                    continue;
                }
                room = Room::No(Box::new(OverBudget {
                    key,
                    spent: taken,
                    limit: bound.most,
                    on_breach: match &budget.on_breach {
                        OnBreach::Fail => OnOverBudget::Fail,
                        OnBreach::Ask { roles, groups } => OnOverBudget::Ask(MoreMoney {
                            grant: bound.grant,
                            approver_roles: roles.clone(),
                            approver_groups: groups.clone(),
                        }),
                    },
                }));
                continue;
            }
            if matches!(room, Room::Yes) && *others > 0 && taken.saturating_add(*others) >= bound.most {
                room = Room::Later;
            }
        }
        room
    }

    /// Every bound of every budget.
    fn bounds_of<'b>(
        &'b self,
        tenant: &'b TenantId,
        workflow: Option<&'b WorkflowId>,
    ) -> impl Iterator<Item = (&'b Budget, BudgetUnit, Bound)> {
        self.of(tenant, workflow).flat_map(|budget| {
            let units = BudgetUnit::ALL.into_iter();
            units.filter_map(move |unit| Some((budget, unit, budget.bound(unit)?)))
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const NOW: Timestamp = Timestamp::from_millis(1_800_000_000_000);

    fn tenant(name: &str) -> TenantId {
        TenantId::parse(name).expect("valid")
    }

    fn workflow(name: &str) -> WorkflowId {
        WorkflowId::parse(name).expect("valid")
    }

    fn budget(of: Option<&str>, for_runs_of: Option<&str>, most: u64) -> Budget {
        Budget {
            tenant: of.map(tenant),
            workflow: for_runs_of.map(workflow),
            per: BudgetPeriod::Day,
            tokens: Some(Bound { most, grant: 10 }),
            cost_micros: None,
            time_ms: None,
            on_breach: OnBreach::Fail,
        }
    }

    fn took(tokens: u64) -> ModelUsage {
        ModelUsage {
            input_tokens: tokens,
            ..ModelUsage::default()
        }
    }

    /// Looks whether a call of a run of `acme` has room.
    fn look(budgets: &Budgets, spent: u64, reservation: &Reservation, granted: &[BudgetKey]) -> Room {
        let rows = budgets.rows(&tenant("acme"), &workflow("w"), &took(spent), NOW);
        let of = (&tenant("acme"), Some(&workflow("w")));
        budgets.look(of, granted, (&rows, reservation), NOW)
    }

    #[test]
    fn own_budget_takes_the_place_of_that_for_every_tenant() {
        let budgets = Budgets::new(vec![
            budget(None, None, 1),
            budget(Some("acme"), None, 2),
            budget(None, Some("w"), 3),
            budget(Some("other"), Some("w"), 4),
        ]);
        let of = |of: &str, runs_of: &str| {
            let (of, runs_of) = (tenant(of), workflow(runs_of));
            let found = budgets.of(&of, Some(&runs_of));
            found
                .filter_map(|budget| budget.tokens)
                .map(|bound| bound.most)
                .collect::<Vec<_>>()
        };
        assert_eq!(of("acme", "w"), [2, 3]);
        assert_eq!(of("acme", "v"), [2]);
        assert_eq!(of("other", "w"), [1, 4]);
        assert_eq!(of("third", "v"), [1]);
        assert_eq!(budgets.bounds(&tenant("third")), (true, true));
        assert_eq!(Budgets::default().bounds(&tenant("third")), (false, false));
    }

    #[test]
    fn calls_under_way_count_until_they_are_settled() {
        let budgets = Budgets::new(vec![budget(None, None, 100)]);
        let estimate = Estimate {
            tokens: 60,
            cost_micros: 0,
        };
        let reserve = || budgets.reserve(&tenant("acme"), Some(&workflow("w")), estimate);
        let first = reserve();
        assert_eq!(look(&budgets, 0, &first, &[]), Room::Yes);
        let second = reserve();
        assert_eq!(look(&budgets, 0, &second, &[]), Room::Yes, "the first leaves 40");
        let third = reserve();
        assert_eq!(look(&budgets, 0, &third, &[]), Room::Later);
        drop((first, second, third));
        assert!(budgets.reserved.lock().is_empty());
        let again = reserve();
        assert_eq!(look(&budgets, 99, &again, &[]), Room::Yes);
        let Room::No(over) = look(&budgets, 100, &again, &[]) else {
            panic!("it is used up");
        };
        assert_eq!((over.spent, over.limit), (100, 100));
        assert_eq!(
            look(&budgets, 100, &again, &[over.key]),
            Room::Yes,
            "it was granted more"
        );
    }

    #[test]
    fn nobody_is_asked_for_more_if_another_budget_fails_the_run() {
        let asks = Budget {
            on_breach: OnBreach::Ask {
                roles: Vec::new(),
                groups: Vec::new(),
            },
            ..budget(None, None, 100)
        };
        let fails = budget(None, Some("w"), 100);
        for configured in [vec![asks.clone(), fails.clone()], vec![fails, asks]] {
            let budgets = Budgets::new(configured);
            let reservation = budgets.reserve(&tenant("acme"), Some(&workflow("w")), Estimate::default());
            let rows = budgets.rows(&tenant("acme"), &workflow("w"), &took(100), NOW);
            let of = (&tenant("acme"), Some(&workflow("w")));
            let Room::No(over) = budgets.look(of, &[], (&rows, &reservation), NOW) else {
                panic!("both are used up");
            };
            assert_eq!(over.on_breach, OnOverBudget::Fail);
        }
    }

    #[test]
    fn a_count_of_an_earlier_window_does_not_bound_the_next() {
        let budgets = Budgets::new(vec![budget(None, None, 100)]);
        let rows = budgets.rows(&tenant("acme"), &workflow("w"), &took(500), NOW);
        let next = budgets.configured[0].per.window(NOW).until;
        let reservation = budgets.reserve(&tenant("acme"), None, Estimate::default());
        let room = budgets.look((&tenant("acme"), None), &[], (&rows, &reservation), next);
        assert_eq!(room, Room::Yes);
    }
}
