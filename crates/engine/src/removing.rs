//! Removal of workflows.
//!
//! The store says at once that a removed workflow is not current, and every process learns of it as of a registration.
//! Its versions stay while runs are pinned to them. A start that was decided before the removal may be stored after it,
//! and a fork of a run after that run is gone. So versions are deleted only when two checks, well apart, find no run.

use std::time::Duration;

use wopr_core::{TenantId, Timestamp, WorkflowId};
use wopr_store::WriteError;

use crate::{CommandError, Engine};

/// Time from a removal to the first check of its versions, and from one check to the next. What was decided before it,
/// by any process, has been stored after it.
const CHECK_AFTER: Duration = Duration::from_secs(3_600);
/// Maximum removed workflows checked, and versions deleted, by one write.
const VERSIONS: usize = 32;

/// The result of a removal.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum WorkflowRemoval {
    Removed,
    /// The workflow is the operator's, for all tenants.
    Shared,
    /// The tenant has no such workflow.
    Missing,
}

impl Engine {
    /// Removes a tenant's own workflow: no run is started from it any more. Runs go on with the version that they are
    /// pinned to. A shared workflow that it hid is current again. A start that is being decided meanwhile may succeed.
    ///
    /// # Errors
    /// The store could not be written, or not be read afterwards.
    pub async fn remove_workflow(
        &self,
        tenant: &TenantId,
        id: &WorkflowId,
    ) -> Result<WorkflowRemoval, CommandError> {
        let store = &*self.shared.store;
        let check_at = later(self.now(), CHECK_AFTER);
        let is_removed = store.remove_workflow(tenant, id, check_at).await?;
        self.catch_up().await?;
        Ok(match (is_removed, self.workflow(tenant, id)) {
            (true, _) => WorkflowRemoval::Removed,
            // Its own one may have been registered meanwhile: then the removal came first, and found none.
            (false, Some(_)) if !self.is_own_workflow(tenant, id) => WorkflowRemoval::Shared,
            (false, Some(_) | None) => WorkflowRemoval::Missing,
        })
    }

    /// Deletes the versions of removed workflows that no run needs. Returns how many rows were changed.
    pub(crate) async fn forget_removed(&self) -> Result<usize, WriteError> {
        let now = self.now();
        let next_check = later(now, CHECK_AFTER);
        self.shared
            .store
            .forget_workflows(now, next_check, VERSIONS)
            .await
    }
}

fn later(now: Timestamp, period: Duration) -> Timestamp {
    let millis = i64::try_from(period.as_millis()).unwrap_or(i64::MAX);
    Timestamp::from_millis(now.millis().saturating_add(millis))
}
