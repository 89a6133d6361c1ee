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
use tokio::task::spawn_blocking;
use wopr_core::{
    ContentHash, Definition, NodeTypes, Plan, Problem, Problems, RunId, TenantId, Timestamp, WorkflowId,
    parsed_size,
};
use wopr_store::{ReadError, Revision, Store, WorkflowRow, WriteError};

use crate::{
    CommandError, Engine, Options,
    descendants::Allowance,
    holdings::{Claim, Holdings, Owner, Weight, WorkflowLimit},
    pinned::{Pinned, Version},
};

/// Bytes of definitions that are read from the registry at once.
const PAGE: usize = 8 << 20;
/// A definition is as heavy as its author likes, whatever its size: it is never compiled in place.
const HEAVY: usize = usize::MAX;

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
    /// The tenant's workflows take as much as they may.
    #[error("register the workflow: {0}")]
    Full(WorkflowLimit),
    /// The store does not take writes now.
    #[error("write: {0}")]
    Unavailable(String),
    /// Too much of the tenant waits to be computed.
    #[error("compile the workflow: {0}")]
    Busy(CommandError),
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

impl From<WorkflowLimit> for RegisterError {
    fn from(limit: WorkflowLimit) -> Self {
        match limit {
            WorkflowLimit::Workflows { .. } | WorkflowLimit::Bytes { .. } => Self::Full(limit),
            // A definition without so many patterns is accepted.
            WorkflowLimit::Patterns { .. } => {
                Self::Invalid(Problems(vec![Problem::new("definition", limit.to_string())]))
            }
        }
    }
}

/// The current version of each owner that has one.
type Owners = Vec<(Owner, Arc<Plan>)>;

#[derive(Debug)]
pub(crate) struct Catalog {
    node_types: NodeTypes,
    /// Compiles where it is asked to: threads come to an end in no order that could be repeated.
    is_repeatable: bool,
    current: RwLock<HashMap<WorkflowId, Owners>>,
    /// What the current versions take.
    holdings: Holdings,
    pinned: Pinned,
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
    /// Current versions in the registry for which their owner has no room here.
    left_out: Vec<LeftOut>,
}

#[derive(Debug)]
struct LeftOut {
    revision: Revision,
    claim: Claim,
    limit: WorkflowLimit,
}

impl Catalog {
    pub(crate) async fn load(store: &dyn Store, options: &Options) -> Result<Self, ReadError> {
        let catalog = Self {
            node_types: options.node_types,
            is_repeatable: options.seed.is_some(),
            current: RwLock::default(),
            holdings: Holdings::new(options.max_workflows, options.max_workflow_bytes),
            pinned: Pinned::default(),
            generation: AtomicU64::new(0),
            rounds: AtomicU64::new(0),
            caught_up: tokio::sync::Mutex::default(),
        };
        catalog.catch_up(store, None).await?;
        Ok(catalog)
    }

    /// Reads what was registered since the last time, by whomever. `compiled` is a version that need not be compiled
    /// again.
    ///
    /// However many ask at once, a round that began after they did serves them all.
    pub(crate) async fn catch_up(
        &self,
        store: &dyn Store,
        compiled: Option<&Arc<Plan>>,
    ) -> Result<(), ReadError> {
        let asked = self.rounds.load(Ordering::SeqCst);
        let mut caught_up = self.caught_up.lock().await;
        if caught_up.round > asked {
            return Ok(());
        }
        let round = self.rounds.fetch_add(1, Ordering::SeqCst) + 1;
        loop {
            let page = store.workflows_since(caught_up.seen, PAGE).await?;
            if page.is_empty() {
                // A change that came later may have made room for one that was left out.
                let mut left_out = caught_up.left_out.iter();
                let Some(first) = left_out.position(|left| self.holdings.check(&left.claim).is_ok()) else {
                    break;
                };
                caught_up.seen = Revision(caught_up.left_out[first].revision.0.saturating_sub(1));
                caught_up.left_out.truncate(first);
            }
            for (revision, row) in page {
                self.catch_up_with(revision, row, &mut caught_up.left_out, compiled)
                    .await;
                // Whoever goes away before this leaves the rest to the next round.
                caught_up.seen = revision;
            }
        }
        caught_up.round = round;
        Ok(())
    }

    /// Makes a version that is current in the registry the current one here, if it can be offered and there is room
    /// for it. Otherwise whatever was current stays so.
    async fn catch_up_with(
        &self,
        revision: Revision,
        row: WorkflowRow,
        left_out: &mut Vec<LeftOut>,
        compiled: Option<&Arc<Plan>>,
    ) {
        let mut claim = Claim {
            owner: row.tenant,
            id: row.id,
            version: row.version,
            weight: Weight {
                bytes: parsed_size(&row.body),
                patterns: 0,
            },
        };
        left_out.retain(|left| left.claim.owner != claim.owner || left.claim.id != claim.id);
        if self.holdings.has(&claim) {
            return;
        }
        // Before it is parsed: a definition for which there is no room may be one for which there is no memory.
        let mut checked = self.holdings.check(&claim);
        if checked.is_ok() {
            let is_compiled = |plan: &&Arc<Plan>| *plan.id() == claim.id && *plan.version() == claim.version;
            let plan = match compiled.filter(is_compiled) {
                Some(plan) => Ok(Arc::clone(plan)),
                None => self.compile_aside(row.body).await,
            };
            let plan = match plan {
                Ok(plan) => plan,
                // A type that was offered before (conformance mode) may not be now, or is only by a later wopr that
                // shares the store.
                Err(error) => {
                    return tracing::warn!(workflow = %claim.id, %error, "stored workflow not offered");
                }
            };
            claim.weight.patterns = plan.pattern_bytes();
            checked = self.holdings.check(&claim);
            if checked.is_ok() {
                self.set(claim, plan);
                return;
            }
        }
        if let Err(limit) = checked {
            let tenant = claim.owner.as_ref().map(TenantId::as_str);
            tracing::warn!(workflow = %claim.id, tenant, error = %limit, "stored workflow not offered");
            left_out.push(LeftOut {
                revision,
                claim,
                limit,
            });
        }
    }

    /// Grows with each change of what is current.
    pub(crate) fn generation(&self) -> u64 {
        self.generation.load(Ordering::SeqCst)
    }

    /// Compiles beside the threads of input and output. Rounds of catching up are made one after the other, so it is one
    /// definition at a time.
    async fn compile_aside(&self, body: Vec<u8>) -> Result<Arc<Plan>, String> {
        let node_types = self.node_types;
        // One definition must not keep a host from starting, whatever is the matter with it.
        let compiling = move || catch_unwind(AssertUnwindSafe(|| compile(&body, node_types)));
        let compiled = match self.is_repeatable {
            true => compiling(),
            false => match spawn_blocking(compiling).await {
                Ok(compiled) => compiled,
                Err(error) => return Err(error.to_string()),
            },
        };
        compiled.unwrap_or_else(|_| Err("compiling it panicked".to_owned()))
    }

    fn set(&self, claim: Claim, plan: Arc<Plan>) {
        let owner = claim.owner.clone();
        self.holdings.add(claim);
        let mut current = self.current.write();
        let owners = current.entry(plan.id().clone()).or_default();
        match owners.iter_mut().find(|(known, _)| *known == owner) {
            Some((_, known)) => *known = plan,
            None => owners.push((owner, plan)),
        }
        drop(current);
        self.generation.fetch_add(1, Ordering::SeqCst);
    }

    async fn put(
        &self,
        store: &dyn Store,
        owner: Owner,
        admitted: Admitted,
        now: Timestamp,
    ) -> Result<Registered, RegisterError> {
        let Admitted { plan, body } = admitted;
        let claim = Claim {
            owner: owner.clone(),
            id: plan.id().clone(),
            version: plan.version().clone(),
            weight: Weight {
                bytes: parsed_size(&body),
                patterns: plan.pattern_bytes(),
            },
        };
        let _reserved = self.holdings.reserve(claim.clone())?;
        let put = store
            .put_workflow(WorkflowRow {
                tenant: owner.clone(),
                id: plan.id().clone(),
                version: plan.version().clone(),
                body,
                registered_at: now,
            })
            .await;
        let is_new = match put {
            Ok(is_new) => is_new,
            Err(error) => {
                self.catch_up(store, None).await?;
                if !self.holdings.has(&claim) {
                    return Err(error.into());
                }
                // A store that takes no writes has it already: nothing is left to be done.
                false
            }
        };
        // What is current is the registry's to say: another process may have been there in between.
        self.catch_up(store, Some(&plan)).await?;
        let caught_up = self.caught_up.lock().await;
        let left_out = caught_up.left_out.iter().find(|left| {
            let other = &left.claim;
            (&other.owner, &other.id, &other.version) == (&claim.owner, &claim.id, &claim.version)
        });
        match left_out {
            // Another process took the room meanwhile.
            Some(left) => Err(left.limit.into()),
            None => Ok(Registered { plan, is_new }),
        }
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

    /// A version of a tenant's workflow, if it is compiled already.
    fn compiled(&self, version: &Version) -> Option<Arc<Plan>> {
        let (tenant, id, hash) = version;
        let current = self.current(tenant, id).filter(|plan| plan.version() == hash);
        current.or_else(|| self.pinned.get(version))
    }
}

fn compile(body: &[u8], node_types: NodeTypes) -> Result<Arc<Plan>, String> {
    let document = serde_json::from_slice(body).map_err(|error| error.to_string())?;
    let plan = Definition::parse(document).and_then(|definition| Plan::compile(definition, node_types));
    plan.map(Arc::new).map_err(|problems| problems.to_string())
}

/// A definition that keeps the rules, with its text.
struct Admitted {
    plan: Arc<Plan>,
    body: Vec<u8>,
}

impl Admitted {
    fn new(document: Value, node_types: NodeTypes) -> Result<Self, Problems> {
        let plan = Plan::admit(document, node_types)?;
        Ok(Self {
            body: plan.definition.document.to_string().into_bytes(),
            plan: Arc::new(plan),
        })
    }
}

impl Engine {
    /// Registers a workflow for a tenant, or for all (`None`), and makes it the current version.
    ///
    /// # Errors
    /// See [`RegisterError`].
    pub async fn register(
        &self,
        tenant: Option<&TenantId>,
        document: Value,
    ) -> Result<Registered, RegisterError> {
        let now = self.now();
        let (catalog, store) = (&self.shared.catalog, &*self.shared.store);
        let node_types = catalog.node_types;
        let admitted = match tenant {
            Some(tenant) => {
                let admitting = self.compute(tenant, HEAVY, move || Admitted::new(document, node_types));
                admitting.await.map_err(RegisterError::Busy)?
            }
            None => Admitted::new(document, node_types),
        };
        catalog.put(store, tenant.cloned(), admitted?, now).await
    }

    /// The version a run is pinned to.
    pub(crate) async fn version(
        &self,
        tenant: &TenantId,
        id: &WorkflowId,
        hash: &ContentHash,
    ) -> Result<Arc<Plan>, ReadError> {
        let version = (tenant.clone(), id.clone(), hash.clone());
        if let Some(plan) = self.shared.catalog.compiled(&version) {
            return Ok(plan);
        }
        // Seldom needed, and kept apart from what always is.
        Box::pin(self.pinned_version(version)).await
    }

    async fn pinned_version(&self, version: Version) -> Result<Arc<Plan>, ReadError> {
        let (tenant, id, hash) = &version;
        let row = self.shared.store.workflow(tenant, id, hash).await?;
        let row = row.ok_or_else(|| ReadError::Corrupt(format!("workflow {id} has no version {hash}")))?;
        // What a run was started with it may finish with, whatever this host offers to new runs.
        let node_types = NodeTypes { conformance: true };
        let compiling = move || (compile(&row.body, node_types), parsed_size(&row.body));
        let (plan, n_bytes) = match self.compute(tenant, HEAVY, compiling).await {
            Ok((plan, n_bytes)) => (plan.map_err(ReadError::Corrupt)?, n_bytes),
            Err(error) => return Err(ReadError::Unavailable(error.to_string())),
        };
        let n_bytes = n_bytes + plan.pattern_bytes();
        self.shared
            .catalog
            .pinned
            .keep(version, Arc::clone(&plan), n_bytes);
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
