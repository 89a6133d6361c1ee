//! What models took, in memory.

use async_trait::async_trait;
use wopr_core::{BudgetPeriod, TenantId, Timestamp, WorkflowId};

use super::{MemoryStore, State};
use crate::{
    ReadError, Spenders, Spending, SpentRow, WriteError,
    spending::{MOST_ADDED, MOST_SPENT},
};

/// A tenant, its workflow, a period and the beginning of a window.
pub(super) type Place = (TenantId, Option<WorkflowId>, BudgetPeriod, Timestamp);

impl State {
    /// Adds what an append says.
    pub(super) fn spend(&mut self, tenant: &TenantId, row: SpentRow) {
        let place = (tenant.clone(), row.workflow.clone(), row.per, row.window.since);
        let sum = |known: u64, more: u64| known.saturating_add(more.min(MOST_ADDED)).min(MOST_SPENT);
        let (tokens, cost_micros, time_ms) = (row.tokens, row.cost_micros, row.time_ms);
        let known = self.spending.entry(place).or_insert(SpentRow {
            tokens: 0,
            cost_micros: 0,
            time_ms: 0,
            ..row
        });
        known.tokens = sum(known.tokens, tokens);
        known.cost_micros = sum(known.cost_micros, cost_micros);
        known.time_ms = sum(known.time_ms, time_ms);
    }
}

#[async_trait]
impl Spending for MemoryStore {
    async fn spent(
        &self,
        of: Spenders<'_>,
        now: Timestamp,
        limit: usize,
    ) -> Result<Vec<(TenantId, SpentRow)>, ReadError> {
        let state = self.state.lock();
        let (tenant, workflow) = of.columns();
        let is_wanted = |((owner, of, ..), row): &(&Place, &SpentRow)| {
            let is_of = of
                .as_ref()
                .is_none_or(|of| workflow.is_none_or(|one| one == of.as_str()));
            tenant.is_none_or(|tenant| tenant == owner.as_str())
                && is_of
                && row.window.since <= now
                && now < row.window.until
        };
        let mut rows: Vec<_> = { state.spending.iter() }
            .filter(is_wanted)
            .map(|((tenant, ..), row)| (tenant.clone(), row.clone()))
            .collect();
        let place = |(tenant, row): &(TenantId, SpentRow)| {
            let workflow = row.workflow.as_ref().map(|of| of.as_str().to_owned());
            (tenant.clone(), workflow, row.per.as_str())
        };
        rows.sort_by_key(place);
        rows.truncate(limit);
        Ok(rows)
    }

    async fn forget_spent(&self, before: Timestamp, limit: usize) -> Result<usize, WriteError> {
        let mut state = self.state.lock();
        let over = state.spending.iter().filter(|(_, row)| row.window.until < before);
        let over: Vec<_> = over.take(limit).map(|(place, _)| place.clone()).collect();
        for place in &over {
            state.spending.remove(place);
        }
        Ok(over.len())
    }
}
