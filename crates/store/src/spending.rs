//! What models took, counted per tenant and workflow in windows of the calendar.
//!
//! The counts are rows of an append: the one that records an answer adds what it took. So a crash neither loses nor
//! doubles any of it, and all processes over a store share them.

use async_trait::async_trait;
use wopr_core::{BudgetPeriod, BudgetWindow, TenantId, Timestamp, WorkflowId};

use crate::{ReadError, WriteError};

/// What was taken in one window. In a batch, it is added to what the window has.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SpentRow {
    /// The workflow whose runs are counted; all runs of the tenant where absent.
    pub workflow: Option<WorkflowId>,
    pub per: BudgetPeriod,
    pub window: BudgetWindow,
    pub tokens: u64,
    /// In millionths of a US dollar.
    pub cost_micros: u64,
    /// How long hosts waited for answers, in milliseconds.
    pub time_ms: u64,
}

/// Where a count stops, so that no answer of a provider can make an append fail.
pub(crate) const MOST_SPENT: u64 = 9_000_000_000_000_000_000;
/// The most that one row of a batch adds, whatever a provider says that an answer took.
pub const MOST_ADDED: u64 = 1_000_000_000_000;

/// What a read of counts is restricted to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Spenders<'a> {
    /// All tenants.
    All,
    /// A tenant, and all of its workflows.
    Tenant(&'a TenantId),
    /// A tenant as a whole, and one of its workflows.
    Workflow(&'a TenantId, &'a WorkflowId),
}

impl Spenders<'_> {
    /// The tenant, and the workflow of it, as columns.
    pub(crate) fn columns(&self) -> (Option<&str>, Option<&str>) {
        match self {
            Self::All => (None, None),
            Self::Tenant(tenant) => (Some(tenant.as_str()), None),
            Self::Workflow(tenant, workflow) => (Some(tenant.as_str()), Some(workflow.as_str())),
        }
    }
}

/// Keeps what models took.
#[async_trait]
pub trait Spending: Send + Sync + 'static {
    /// Reads at most `limit` counts of windows that include `now`, ordered by tenant, workflow (the tenant as a whole
    /// first) and period.
    async fn spent(
        &self,
        of: Spenders<'_>,
        now: Timestamp,
        limit: usize,
    ) -> Result<Vec<(TenantId, SpentRow)>, ReadError>;

    /// Deletes at most `limit` counts of windows that ended before `before`, and returns how many.
    async fn forget_spent(&self, before: Timestamp, limit: usize) -> Result<usize, WriteError>;
}
