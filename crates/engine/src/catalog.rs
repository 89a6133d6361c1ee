//! Workflows of a host, compiled: the current version of each, and older ones that runs are pinned to.

use std::{collections::HashMap, sync::Arc};

use parking_lot::RwLock;
use serde_json::Value;
use wopr_core::{ContentHash, Definition, Offer, Plan, Problems, TenantId, Timestamp, WorkflowId};
use wopr_store::{ReadError, Store, WorkflowRow, WriteError};

/// Compiled old versions kept in memory; beyond it they are compiled again when needed.
const MAX_PINNED: usize = 1_024;

/// A registered version.
#[derive(Debug, Clone)]
pub struct Registered {
    /// The version, compiled.
    pub plan: Arc<Plan>,
    /// Whether the store did not know it.
    pub is_new: bool,
}

/// Why a workflow was not registered.
#[derive(Debug, thiserror::Error)]
pub enum RegisterError {
    /// The definition breaks rules.
    #[error(transparent)]
    Invalid(#[from] Problems),
    /// The store does not take writes now.
    #[error("write: {0}")]
    Unavailable(String),
}

impl From<WriteError> for RegisterError {
    fn from(error: WriteError) -> Self {
        Self::Unavailable(error.to_string())
    }
}

type Owner = Option<TenantId>;
/// The current version of each owner that has one.
type Owners = Vec<(Owner, Arc<Plan>)>;
type Version = (TenantId, WorkflowId, ContentHash);

#[derive(Debug)]
pub(crate) struct Catalog {
    offer: Offer,
    current: RwLock<HashMap<WorkflowId, Owners>>,
    pinned: RwLock<HashMap<Version, Arc<Plan>>>,
}

impl Catalog {
    pub(crate) async fn load(store: &dyn Store, offer: Offer) -> Result<Self, ReadError> {
        let catalog = Self {
            offer,
            current: RwLock::default(),
            pinned: RwLock::default(),
        };
        for row in store.current_workflows().await? {
            match catalog.compile(&row.body) {
                Ok(plan) => catalog.set(row.tenant, plan),
                // A type that was offered before (conformance mode) may not be now; its runs stay readable by nobody
                // until it is offered again, but the host starts.
                Err(error) => tracing::warn!(workflow = %row.id, %error, "stored workflow not offered"),
            }
        }
        Ok(catalog)
    }

    fn compile(&self, body: &[u8]) -> Result<Arc<Plan>, String> {
        let document = serde_json::from_slice(body).map_err(|error| error.to_string())?;
        let plan = Definition::parse(document).and_then(|definition| Plan::compile(definition, self.offer));
        plan.map(Arc::new).map_err(|problems| problems.to_string())
    }

    fn set(&self, owner: Owner, plan: Arc<Plan>) {
        let mut current = self.current.write();
        let owners = current.entry(plan.id().clone()).or_default();
        match owners.iter_mut().find(|(known, _)| *known == owner) {
            Some((_, known)) => *known = plan,
            None => owners.push((owner, plan)),
        }
    }

    pub(crate) async fn register(
        &self,
        store: &dyn Store,
        owner: Owner,
        document: Value,
        now: Timestamp,
    ) -> Result<Registered, RegisterError> {
        let plan = Arc::new(Plan::compile(Definition::parse(document)?, self.offer)?);
        let is_new = store
            .put_workflow(WorkflowRow {
                tenant: owner.clone(),
                id: plan.id().clone(),
                version: plan.version().clone(),
                body: plan.definition.document.to_string().into_bytes(),
                registered_at: now,
            })
            .await?;
        self.set(owner, Arc::clone(&plan));
        Ok(Registered { plan, is_new })
    }

    /// The current version; a tenant's own wins over a shared one.
    pub(crate) fn current(&self, tenant: &TenantId, id: &WorkflowId) -> Option<Arc<Plan>> {
        let current = self.current.read();
        pick(current.get(id)?, tenant)
    }

    pub(crate) fn all(&self, tenant: &TenantId) -> Vec<Arc<Plan>> {
        let current = self.current.read();
        let mut plans: Vec<_> = current
            .values()
            .filter_map(|owners| pick(owners, tenant))
            .collect();
        plans.sort_by(|a, b| a.id().cmp(b.id()));
        plans
    }

    /// The version a run is pinned to.
    pub(crate) async fn version(
        &self,
        store: &dyn Store,
        tenant: &TenantId,
        id: &WorkflowId,
        version: &ContentHash,
    ) -> Result<Arc<Plan>, ReadError> {
        if let Some(plan) = self.current(tenant, id).filter(|plan| plan.version() == version) {
            return Ok(plan);
        }
        let key = (tenant.clone(), id.clone(), version.clone());
        if let Some(plan) = self.pinned.read().get(&key) {
            return Ok(Arc::clone(plan));
        }
        let row = store.workflow(tenant, id, version).await?;
        let row = row.ok_or_else(|| ReadError::Corrupt(format!("workflow {id} has no version {version}")))?;
        // What a run was started with it may finish with, whatever this host offers to new runs.
        let offer = Offer { conformance: true };
        let document =
            serde_json::from_slice(&row.body).map_err(|error| ReadError::Corrupt(error.to_string()))?;
        let plan = Definition::parse(document).and_then(|definition| Plan::compile(definition, offer));
        let plan = Arc::new(plan.map_err(|problems| ReadError::Corrupt(problems.to_string()))?);
        let mut pinned = self.pinned.write();
        if pinned.len() >= MAX_PINNED {
            pinned.clear();
        }
        pinned.insert(key, Arc::clone(&plan));
        Ok(plan)
    }
}

fn pick(owners: &[(Owner, Arc<Plan>)], tenant: &TenantId) -> Option<Arc<Plan>> {
    let own = owners.iter().find(|(owner, _)| owner.as_ref() == Some(tenant));
    own.or_else(|| owners.iter().find(|(owner, _)| owner.is_none()))
        .map(|(_, plan)| Arc::clone(plan))
}

/// The workflows a tenant's runs may start.
#[derive(Debug)]
pub(crate) struct TenantCatalog<'a> {
    pub(crate) catalog: &'a Catalog,
    pub(crate) tenant: &'a TenantId,
}

impl wopr_core::Catalog for TenantCatalog<'_> {
    fn current(&self, workflow: &WorkflowId) -> Option<Arc<Plan>> {
        self.catalog
            .current(self.tenant, workflow)
            .filter(|plan| plan.definition.is_active)
    }
}
