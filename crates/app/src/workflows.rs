//! Registers, finds and lists workflows.

use std::sync::Arc;

use serde_json::Value;
use wopr_core::{ContentHash, Plan, TenantId, WorkflowId};
use wopr_engine::{RegisterError, Registered, WorkflowRemoval};

use crate::{App, Caller, Error, Forbidden, Scope, StartPermit};

/// Why a workflow was not registered.
#[derive(Debug, thiserror::Error)]
pub enum NotRegistered {
    #[error(transparent)]
    Forbidden(#[from] Forbidden),
    #[error(transparent)]
    Engine(#[from] RegisterError),
}

impl App {
    /// Registers a definition for the caller's tenant.
    pub async fn register_workflow(
        &self,
        caller: &Caller,
        document: Value,
    ) -> Result<Registered, NotRegistered> {
        caller.require(Scope::WorkflowsWrite)?;
        Ok(self.engine.register(Some(&caller.tenant), document).await?)
    }

    /// Registers a definition for the caller's tenant, unless the tenant has a workflow of its id.
    pub async fn register_new_workflow(
        &self,
        caller: &Caller,
        document: Value,
    ) -> Result<Option<Registered>, NotRegistered> {
        caller.require(Scope::WorkflowsWrite)?;
        Ok(self.engine.register_first(&caller.tenant, document).await?)
    }

    /// Removes a workflow of the caller's tenant: no run is started from it any more. Its runs go on.
    pub async fn remove_workflow(&self, caller: &Caller, id: &WorkflowId) -> Result<WorkflowRemoval, Error> {
        caller.require(Scope::WorkflowsWrite)?;
        Ok(self.engine.remove_workflow(&caller.tenant, id).await?)
    }

    /// Registers a definition of the operator, for all tenants.
    pub async fn register_for_all(&self, document: Value) -> Result<Registered, RegisterError> {
        self.engine.register(None, document).await
    }

    /// Reads the current version of a workflow.
    pub async fn read_workflow(&self, caller: &Caller, id: &WorkflowId) -> Result<Option<Arc<Plan>>, Error> {
        caller.require(Scope::ManifestRead)?;
        Ok(self.engine.find_workflow(&caller.tenant, id).await?)
    }

    /// The current versions of the workflows that the caller can start, ordered by id.
    pub fn list_workflows(&self, caller: &Caller) -> Result<Vec<Arc<Plan>>, Error> {
        caller.require(Scope::ManifestRead)?;
        let mut workflows = self.engine.workflows(&caller.tenant);
        workflows.retain(|plan| plan.is_for_callers());
        Ok(workflows)
    }

    /// The current version of a workflow that the caller may start. If it is unknown to this process, reads
    /// the registry first, because another process may have registered it.
    pub async fn find_workflow(
        &self,
        permit: StartPermit<'_>,
        id: &WorkflowId,
    ) -> Result<Option<Arc<Plan>>, Error> {
        Ok(self.engine.find_workflow(&permit.caller().tenant, id).await?)
    }

    /// Whether the caller's tenant has registered the workflow, rather than the operator for all. Found by
    /// [`Self::find_workflow`] before.
    #[must_use]
    pub fn is_own_workflow(&self, permit: StartPermit<'_>, id: &WorkflowId) -> bool {
        self.engine.is_own_workflow(&permit.caller().tenant, id)
    }

    /// A version of a workflow, current or not; `None` if the host does not have it.
    pub async fn find_version(
        &self,
        permit: StartPermit<'_>,
        id: &WorkflowId,
        version: &ContentHash,
    ) -> Result<Option<Arc<Plan>>, Error> {
        let tenant = &permit.caller().tenant;
        Ok(self.engine.find_version(tenant, id, version).await?)
    }

    /// The only public workflow that the caller may start; `None` also if there are several.
    #[must_use]
    pub fn only_public_workflow(&self, permit: StartPermit<'_>) -> Option<Arc<Plan>> {
        self.engine
            .only_workflow(&permit.caller().tenant, |plan| plan.is_public())
    }

    /// The current versions of a tenant's workflows, ordered by id, to be described to its callers.
    #[must_use]
    pub fn workflows(&self, tenant: &TenantId) -> Vec<Arc<Plan>> {
        self.engine.workflows(tenant)
    }

    /// The workflows visible without authentication, ordered by id.
    #[must_use]
    pub fn public_workflows(&self, tenant: &TenantId) -> Vec<Arc<Plan>> {
        self.engine.public_workflows(tenant)
    }

    /// A counter that grows whenever a workflow becomes current or is removed.
    #[must_use]
    pub fn workflows_generation(&self) -> u64 {
        self.engine.workflows_generation()
    }
}
