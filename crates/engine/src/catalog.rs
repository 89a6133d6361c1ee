//! Workflows of a host, compiled: the current version of each, and older ones that runs are pinned to.
//!
//! The registry is the truth and other processes write to it too. What is current here is what was when it was last
//! caught up with: after each registration of this process, on a hint, at every poll, and whenever a workflow is
//! missing. Catching up reads what has changed since and nothing else.

use std::{
    collections::HashMap,
    panic::{AssertUnwindSafe, catch_unwind},
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
};

use parking_lot::RwLock;
use serde_json::Value;
use wopr_core::{
    ContentHash, Definition, Offer, Plan, Problem, Problems, RunId, TenantId, Timestamp, WorkflowId,
};
use wopr_store::{ReadError, Revision, Store, WorkflowRow, WriteError};

use crate::descendants::Allowance;

/// Compiled old versions kept in memory; beyond it they are compiled again when needed.
const MAX_PINNED: usize = 1_024;
/// What the compiled patterns of those that one tenant's runs are pinned to may take, in bytes.
const MAX_PINNED_PATTERNS: usize = 4 << 20;
/// What the compiled patterns of the current workflows of one tenant may take, in bytes.
const MAX_TENANT_PATTERNS: usize = 16 << 20;

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

impl From<ReadError> for RegisterError {
    fn from(error: ReadError) -> Self {
        Self::Unavailable(error.to_string())
    }
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
    /// Held while a workflow with patterns is registered.
    registering: tokio::sync::Mutex<()>,
    /// Grows when something here changes.
    generation: AtomicU64,
    /// Rounds of catching up that have begun.
    rounds: AtomicU64,
    caught_up: tokio::sync::Mutex<CaughtUp>,
}

/// How far this process has caught up.
#[derive(Debug, Default)]
struct CaughtUp {
    /// With every change up to this one.
    seen: Revision,
    /// In this round.
    round: u64,
}

impl Catalog {
    pub(crate) async fn load(store: &dyn Store, offer: Offer) -> Result<Self, ReadError> {
        let catalog = Self {
            offer,
            current: RwLock::default(),
            pinned: RwLock::default(),
            registering: tokio::sync::Mutex::default(),
            generation: AtomicU64::new(0),
            rounds: AtomicU64::new(0),
            caught_up: tokio::sync::Mutex::default(),
        };
        catalog.catch_up(store).await?;
        Ok(catalog)
    }

    /// Reads what was registered since the last time, by whomever.
    ///
    /// However many ask at once, a round that began after they did serves them all.
    pub(crate) async fn catch_up(&self, store: &dyn Store) -> Result<(), ReadError> {
        let asked = self.rounds.load(Ordering::SeqCst);
        let mut caught_up = self.caught_up.lock().await;
        if caught_up.round > asked {
            return Ok(());
        }
        let round = self.rounds.fetch_add(1, Ordering::SeqCst) + 1;
        for (revision, row) in store.workflows_since(caught_up.seen).await? {
            caught_up.seen = revision;
            match self.compile(&row.body) {
                Ok(plan) => self.set(row.tenant, plan),
                // A type that was offered before (conformance mode) may not be now, or is only by a later wopr that
                // shares the store: whatever was current stays so here.
                Err(error) => tracing::warn!(workflow = %row.id, %error, "stored workflow not offered"),
            }
        }
        caught_up.round = round;
        Ok(())
    }

    /// Grows with each change of what is current.
    pub(crate) fn generation(&self) -> u64 {
        self.generation.load(Ordering::SeqCst)
    }

    fn compile(&self, body: &[u8]) -> Result<Arc<Plan>, String> {
        let document = serde_json::from_slice(body).map_err(|error| error.to_string())?;
        let compile =
            || Definition::parse(document).and_then(|definition| Plan::compile(definition, self.offer));
        // One definition must not keep a host from starting, whatever is the matter with it.
        match catch_unwind(AssertUnwindSafe(compile)) {
            Ok(plan) => plan.map(Arc::new).map_err(|problems| problems.to_string()),
            Err(_) => Err("compiling it panicked".to_owned()),
        }
    }

    fn set(&self, owner: Owner, plan: Arc<Plan>) {
        let mut current = self.current.write();
        let owners = current.entry(plan.id().clone()).or_default();
        match owners.iter_mut().find(|(known, _)| *known == owner) {
            Some((_, known)) => *known = plan,
            None => owners.push((owner, plan)),
        }
        drop(current);
        self.generation.fetch_add(1, Ordering::SeqCst);
    }

    pub(crate) async fn register(
        &self,
        store: &dyn Store,
        owner: Owner,
        document: Value,
        now: Timestamp,
    ) -> Result<Registered, RegisterError> {
        let plan = Arc::new(Plan::admit(document, self.offer)?);
        // Two that are registered at once must not each find room where there is room for one.
        let _counted = match plan.pattern_bytes() {
            0 => None,
            _ => Some(self.registering.lock().await),
        };
        self.check_patterns(&owner, &plan)?;
        let put = store
            .put_workflow(WorkflowRow {
                tenant: owner.clone(),
                id: plan.id().clone(),
                version: plan.version().clone(),
                body: plan.definition.document.to_string().into_bytes(),
                registered_at: now,
            })
            .await;
        let is_new = match put {
            Ok(is_new) => is_new,
            Err(error) => {
                self.catch_up(store).await?;
                if !self.has(&owner, &plan) {
                    return Err(error.into());
                }
                // A store that takes no writes has it already: nothing is left to be done.
                false
            }
        };
        // What is current is the registry's to say: another process may have been there in between.
        self.catch_up(store).await?;
        Ok(Registered { plan, is_new })
    }

    /// Refuses a workflow whose patterns, with those of the owner's other workflows, take too much for good.
    fn check_patterns(&self, owner: &Owner, plan: &Plan) -> Result<(), Problems> {
        if plan.pattern_bytes() == 0 || self.has(owner, plan) {
            return Ok(());
        }
        let current = self.current.read();
        let others = current.iter().filter(|(id, _)| *id != plan.id());
        let own = others.flat_map(|(_, owners)| owners.iter().filter(|(known, _)| known == owner));
        let taken: usize = own.map(|(_, plan)| plan.pattern_bytes()).sum();
        if taken + plan.pattern_bytes() <= MAX_TENANT_PATTERNS {
            return Ok(());
        }
        let rule = format!(
            "the compiled patterns of all workflows of the tenant would exceed {MAX_TENANT_PATTERNS} bytes; {taken} are taken"
        );
        Err(Problems(vec![Problem::new("definition", rule)]))
    }

    /// Whether this version is an owner's current one.
    fn has(&self, owner: &Owner, plan: &Plan) -> bool {
        let current = self.current.read();
        let owners = current.get(plan.id()).into_iter().flatten();
        owners
            .into_iter()
            .any(|(known, current)| known == owner && current.version() == plan.version())
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

    /// The current versions that anybody may know of: the shared ones, and those of a tenant that say they are public.
    pub(crate) fn public(&self, tenant: &TenantId) -> Vec<Arc<Plan>> {
        let current = self.current.read();
        let public = |(owner, plan): &&(Owner, Arc<Plan>)| match owner {
            None => plan.definition.is_public(),
            Some(owner) => owner == tenant && plan.definition.is_expressly_public(),
        };
        let mut plans: Vec<_> = current
            .values()
            .filter_map(|owners| {
                let mut known = owners.iter().filter(public);
                // A tenant's own wins over a shared one.
                let first = known.next()?;
                let own = known
                    .find(|(owner, _)| owner.is_some())
                    .filter(|_| first.0.is_none());
                Some(Arc::clone(&own.unwrap_or(first).1))
            })
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
        // A tenant's old versions make room for each other, not those of other tenants.
        let own = pinned.iter().filter(|((owner, ..), _)| owner == tenant);
        let patterns: usize = own.map(|(_, plan)| plan.pattern_bytes()).sum();
        if patterns + plan.pattern_bytes() > MAX_PINNED_PATTERNS {
            pinned.retain(|(owner, ..), plan| owner != tenant || plan.pattern_bytes() == 0);
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
    catalog: &'a Catalog,
    tenant: &'a TenantId,
    allowance: &'a Allowance,
    /// Whether one was asked for that is not known here.
    has_missed: AtomicBool,
}

impl<'a> TenantCatalog<'a> {
    pub(crate) fn new(catalog: &'a Catalog, tenant: &'a TenantId, allowance: &'a Allowance) -> Self {
        Self {
            catalog,
            tenant,
            allowance,
            has_missed: AtomicBool::new(false),
        }
    }

    /// Whether a workflow was asked for that is not known here, but may be in the registry.
    pub(crate) fn has_missed(&self) -> bool {
        self.has_missed.load(Ordering::Relaxed)
    }
}

impl wopr_core::Catalog for TenantCatalog<'_> {
    fn current(&self, workflow: &WorkflowId) -> Option<Arc<Plan>> {
        let plan = self.catalog.current(self.tenant, workflow);
        self.has_missed.fetch_or(plan.is_none(), Ordering::Relaxed);
        plan.filter(|plan| plan.definition.is_active)
    }

    fn admits_child(&self, root: &RunId) -> bool {
        self.allowance.admits(root)
    }
}
