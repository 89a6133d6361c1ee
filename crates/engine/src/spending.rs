//! Shows what the budgets of tenants and workflows have left.

use wopr_core::{TenantId, Timestamp};
use wopr_store::{ReadError, Spenders, SpentRow};

use crate::{Budget, Engine, budgets::Budgets};

/// The most counts that are read at once.
const MOST_ROWS: usize = 1_000;

/// A budget of a tenant, and what its current window has taken.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Spent {
    pub budget: Budget,
    pub row: SpentRow,
}

impl Engine {
    /// The budgets of a tenant in their current windows: that of the tenant first, then those of workflows.
    pub async fn spent(&self, tenant: &TenantId) -> Result<Vec<Spent>, ReadError> {
        let now = self.now();
        if !self.shared.budgets.bounds(tenant).0 {
            return Ok(Vec::new());
        }
        let rows = self
            .shared
            .store
            .spent(Spenders::Tenant(tenant), now, MOST_ROWS)
            .await?;
        let rows: Vec<_> = rows.into_iter().map(|(_, row)| row).collect();
        Ok(of_rows(&self.shared.budgets, tenant, &rows, now))
    }
}

/// The budgets of a tenant, with what is counted of each.
fn of_rows(budgets: &Budgets, tenant: &TenantId, rows: &[SpentRow], now: Timestamp) -> Vec<Spent> {
    let mut spent: Vec<_> = budgets
        .of(tenant, None)
        .map(|budget| {
            let window = budget.per.window(now);
            let is_of = |row: &&SpentRow| {
                (&row.workflow, row.per, row.window) == (&budget.workflow, budget.per, window)
            };
            let row = rows.iter().find(is_of).cloned().unwrap_or_else(|| SpentRow {
                workflow: budget.workflow.clone(),
                per: budget.per,
                window,
                tokens: 0,
                cost_micros: 0,
                time_ms: 0,
            });
            Spent {
                budget: budget.clone(),
                row,
            }
        })
        .collect();
    spent.sort_by(|one, other| {
        let place = |spent: &Spent| (spent.row.workflow.clone(), spent.row.per);
        place(one).cmp(&place(other))
    });
    spent
}

/// Like [`Engine::spent`], without an engine: from counts that were read.
#[must_use]
pub fn spent_of(budgets: Vec<Budget>, tenant: &TenantId, rows: &[SpentRow], now: Timestamp) -> Vec<Spent> {
    of_rows(&Budgets::new(budgets), tenant, rows, now)
}
