//! Registering, finding and listing workflows.

use std::sync::Arc;

use serde_json::Value;
use wopr_core::{Plan, TenantId, WorkflowId};
use wopr_engine::{RegisterError, Registered};

use crate::{App, Error};

impl App {
    /// Registers a definition for a tenant, or for every tenant.
    pub async fn register_workflow(
        &self,
        tenant: Option<&TenantId>,
        document: Value,
    ) -> Result<Registered, RegisterError> {
        self.engine.register(tenant, document).await
    }

    /// The current version of a workflow. One that this process does not know is looked up in the store, where another
    /// process may have registered it.
    pub async fn find_workflow(
        &self,
        tenant: &TenantId,
        id: &WorkflowId,
    ) -> Result<Option<Arc<Plan>>, Error> {
        Ok(self.engine.find_workflow(tenant, id).await?)
    }

    /// The current versions of a tenant's workflows, by id.
    #[must_use]
    pub fn workflows(&self, tenant: &TenantId) -> Vec<Arc<Plan>> {
        self.engine.workflows(tenant)
    }

    /// The workflows that unauthenticated clients may know of, by id.
    #[must_use]
    pub fn public_workflows(&self, tenant: &TenantId) -> Vec<Arc<Plan>> {
        self.engine.public_workflows(tenant)
    }

    /// Grows when a workflow changes.
    #[must_use]
    pub fn workflows_generation(&self) -> u64 {
        self.engine.workflows_generation()
    }
}
