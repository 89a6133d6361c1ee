//! Registers, finds and lists workflows.

use std::sync::Arc;

use serde_json::Value;
use wopr_core::{Plan, TenantId, WorkflowId};
use wopr_engine::{RegisterError, Registered};

use crate::{App, Error};

impl App {
    /// Registers a definition for one tenant, or for all (`None`).
    pub async fn register_workflow(
        &self,
        tenant: Option<&TenantId>,
        document: Value,
    ) -> Result<Registered, RegisterError> {
        self.engine.register(tenant, document).await
    }

    /// The current version of a workflow. If it is unknown to this process, reads the registry first, because
    /// another process may have registered it.
    pub async fn find_workflow(
        &self,
        tenant: &TenantId,
        id: &WorkflowId,
    ) -> Result<Option<Arc<Plan>>, Error> {
        Ok(self.engine.find_workflow(tenant, id).await?)
    }

    /// The current versions of a tenant's workflows, ordered by id.
    #[must_use]
    pub fn workflows(&self, tenant: &TenantId) -> Vec<Arc<Plan>> {
        self.engine.workflows(tenant)
    }

    /// The workflows visible without authentication, ordered by id.
    #[must_use]
    pub fn public_workflows(&self, tenant: &TenantId) -> Vec<Arc<Plan>> {
        self.engine.public_workflows(tenant)
    }

    /// A counter that grows whenever a workflow becomes current.
    #[must_use]
    pub fn workflows_generation(&self) -> u64 {
        self.engine.workflows_generation()
    }
}
