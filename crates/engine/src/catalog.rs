//! The compiled workflows of a host: current versions, and old versions that runs are pinned to.
//!
//! The registry in the store is authoritative, and other processes write to it too. The versions current here
//! are those at the last catch-up, which happens after each registration by this process, on a hint, at every
//! poll, and whenever a workflow is missing. A catch-up reads only what has changed since the previous one.

use std::{
    collections::{BTreeMap, HashMap, hash_map::Entry},
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
    ContentHash, DialectId, EndedChild, Input, NewChild, NodeTypes, Plan, Problem, Problems, RunId,
    SignaturePolicy, Startable, TenantId, Timestamp, UndecidedChild, WorkflowId, parsed_size,
};
use wopr_store::{Cause, ReadError, Revision, Store, WorkflowChange, WorkflowRow, WriteError};

use crate::{
    CommandError, Engine, Options,
    descendants::Allowance,
    holdings::{Claim, Holdings, Owner, WorkflowLimit},
    pinned::{Pinned, Version},
    whole_children::{Deciding, WholeChildren},
};

/// Maximum bytes of definitions read from the registry at once.
const PAGE: usize = 8 << 20;
/// Compiling can be expensive for a definition of any size, so it never happens in place.
const HEAVY: usize = usize::MAX;

/// A registered version of a workflow.
#[derive(Debug, Clone)]
pub struct Registered {
    pub plan: Arc<Plan>,
    /// The store did not have this version before.
    pub is_new: bool,
}

#[derive(Debug, thiserror::Error)]
pub enum RegisterError {
    /// The definition is invalid.
    #[error(transparent)]
    Invalid(#[from] Problems),
    /// The tenant's workflows would exceed a limit.
    #[error("register the workflow: {0}")]
    Full(WorkflowLimit),
    #[error("write: {0}")]
    Unavailable(#[source] Cause),
    /// Too much work of the tenant is already waiting.
    #[error("compile the workflow: {0}")]
    Busy(CommandError),
}

impl From<ReadError> for RegisterError {
    fn from(error: ReadError) -> Self {
        Self::Unavailable(Cause::of(error))
    }
}

impl From<WriteError> for RegisterError {
    fn from(error: WriteError) -> Self {
        Self::Unavailable(Cause::of(error))
    }
}

impl From<WorkflowLimit> for RegisterError {
    fn from(limit: WorkflowLimit) -> Self {
        Self::Full(limit)
    }
}

/// Current versions by id.
type Plans = BTreeMap<WorkflowId, Arc<Plan>>;

/// The current versions by owner, so that a tenant's workflows are found without looking at those of others.
#[derive(Debug, Default)]
struct Current {
    /// Visible to all tenants.
    shared: Plans,
    tenants: HashMap<TenantId, Plans>,
}

impl Current {
    /// A tenant's own workflows.
    fn own(&self, tenant: &TenantId) -> &Plans {
        static NONE: Plans = BTreeMap::new();
        self.tenants.get(tenant).unwrap_or(&NONE)
    }

    /// A tenant's own version takes precedence over a shared one.
    fn get(&self, tenant: &TenantId, id: &WorkflowId) -> Option<&Arc<Plan>> {
        self.own(tenant).get(id).or_else(|| self.shared.get(id))
    }

    /// All workflows of a tenant, its own first.
    fn all<'c>(&'c self, tenant: &TenantId) -> impl Iterator<Item = &'c Arc<Plan>> + use<'c> {
        let own = self.own(tenant);
        let shared = self.shared.iter().filter(|(id, _)| !own.contains_key(*id));
        own.values().chain(shared.map(|(_, plan)| plan))
    }

    /// The publicly visible workflows of a tenant, its own first: public shared ones, and those that the
    /// tenant marked as public.
    fn public<'c>(&'c self, tenant: &TenantId) -> impl Iterator<Item = &'c Arc<Plan>> + use<'c> {
        let own = self.own(tenant);
        let is_own = |id: &WorkflowId| own.get(id).is_some_and(|plan| plan.is_expressly_public());
        let shared = self.shared.iter();
        let shared = shared.filter(move |(id, plan)| plan.is_public() && !is_own(id));
        let own = own.values().filter(|plan| plan.is_expressly_public());
        own.chain(shared.map(|(_, plan)| plan))
    }
}

#[derive(Debug)]
pub(crate) struct Catalog {
    node_types: NodeTypes,
    /// Compiles in place, because the order in which threads finish is not repeatable.
    is_repeatable: bool,
    current: RwLock<Current>,
    /// Memory taken by the current versions.
    holdings: Holdings,
    pinned: Pinned,
    /// Grows when a current version changes or a workflow is removed.
    generation: AtomicU64,
    /// Number of catch-up rounds that have begun.
    rounds: AtomicU64,
    caught_up: tokio::sync::Mutex<CaughtUp>,
}

#[derive(Debug, Default)]
struct CaughtUp {
    /// The newest revision that has been read.
    seen: Revision,
    /// The last completed round.
    round: u64,
    /// Current versions in the registry that exceed a limit of their owner here.
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

    /// Reads what any process has registered since the last time. `compiled` is a version that need not be
    /// compiled again.
    ///
    /// Concurrent callers share a round if it began after they called.
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
                // A later change may have made room for a version that was left out.
                let mut left_out = caught_up.left_out.iter();
                let Some(first) = left_out.position(|left| self.holdings.check(&left.claim).is_ok()) else {
                    break;
                };
                caught_up.seen = Revision(caught_up.left_out[first].revision.0.saturating_sub(1));
                caught_up.left_out.truncate(first);
            }
            for (revision, change) in page {
                let left_out = &mut caught_up.left_out;
                match change {
                    WorkflowChange::Current(row) => {
                        self.catch_up_with(revision, row, left_out, compiled).await;
                    }
                    WorkflowChange::Removed { tenant, id } => self.unset(tenant, &id, left_out),
                }
                // Updated for each row: if the caller is dropped here, the next round reads only the rest.
                caught_up.seen = revision;
            }
        }
        caught_up.round = round;
        Ok(())
    }

    /// Makes the registry's current version current here, if this host offers it and its owner's limits allow
    /// it. Otherwise the previous one stays current.
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
            bytes: parsed_size(&row.body),
        };
        left_out.retain(|left| left.claim.owner != claim.owner || left.claim.id != claim.id);
        if self.holdings.has(&claim) {
            return;
        }
        // Checked before parsing: a definition beyond the limits might exhaust the memory.
        let mut checked = self.holdings.check(&claim);
        if checked.is_ok() {
            let is_compiled = |plan: &&Arc<Plan>| *plan.id() == claim.id && *plan.version() == claim.version;
            let plan = match compiled.filter(is_compiled) {
                Some(plan) => Ok(Arc::clone(plan)),
                None => self.compile_aside(row.dialect, row.body).await,
            };
            let plan = match plan {
                Ok(plan) => plan,
                // The version may use a node type that was offered before (conformance mode) and is not now,
                // or that only a newer wopr sharing the store knows.
                Err(error) => {
                    return tracing::warn!(workflow = %claim.id, %error, "stored workflow not offered");
                }
            };
            claim.bytes += plan.extra_bytes();
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

    pub(crate) fn generation(&self) -> u64 {
        self.generation.load(Ordering::SeqCst)
    }

    /// Compiles on a blocking thread. Catch-up rounds do not overlap, so at most one definition compiles at a
    /// time.
    async fn compile_aside(&self, dialect: String, body: Vec<u8>) -> Result<Arc<Plan>, Cause> {
        let node_types = self.node_types;
        // A definition that makes the compiler panic must not keep the host from starting.
        let compiling = move || catch_unwind(AssertUnwindSafe(|| compile(&dialect, &body, node_types)));
        let compiled = match self.is_repeatable {
            true => compiling(),
            false => match spawn_blocking(compiling).await {
                Ok(compiled) => compiled,
                Err(error) => return Err(Cause::of(error)),
            },
        };
        compiled.unwrap_or_else(|_| Err("compiling it panicked".into()))
    }

    fn set(&self, claim: Claim, plan: Arc<Plan>) {
        let owner = claim.owner.clone();
        self.holdings.add(claim);
        let mut current = self.current.write();
        let plans = match owner {
            None => &mut current.shared,
            Some(tenant) => current.tenants.entry(tenant).or_default(),
        };
        plans.insert(plan.id().clone(), plan);
        drop(current);
        self.generation.fetch_add(1, Ordering::SeqCst);
    }

    /// Takes in a removal. Runs keep the plan that they have.
    fn unset(&self, tenant: TenantId, id: &WorkflowId, left_out: &mut Vec<LeftOut>) {
        let owner = Some(tenant);
        left_out.retain(|left| left.claim.owner != owner || left.claim.id != *id);
        if !self.holdings.remove(&owner, id) {
            return;
        }
        let mut current = self.current.write();
        if let Some(tenant) = owner
            && let Entry::Occupied(mut plans) = current.tenants.entry(tenant)
        {
            plans.get_mut().remove(id);
            if plans.get().is_empty() {
                plans.remove();
            }
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
        let (plan, claim, row) = admitted.split(owner, now);
        let _reserved = self.holdings.reserve(claim.clone())?;
        let is_new = match store.put_workflow(row).await {
            Ok(is_new) => is_new,
            Err(error) => {
                self.catch_up(store, None).await?;
                if !self.holdings.has(&claim) {
                    return Err(error.into());
                }
                // The store does not accept writes, but already has this version as the current one.
                false
            }
        };
        self.registered(store, plan, &claim, is_new).await
    }

    /// Registers the first version of a workflow; `None` if its owner has one already.
    async fn add(
        &self,
        store: &dyn Store,
        owner: Owner,
        admitted: Admitted,
        now: Timestamp,
    ) -> Result<Option<Registered>, RegisterError> {
        let (plan, claim, row) = admitted.split(owner, now);
        let _reserved = self.holdings.reserve(claim.clone())?;
        if !store.add_workflow(row).await? {
            return Ok(None);
        }
        self.registered(store, plan, &claim, true).await.map(Some)
    }

    /// Takes in a version that the registry has stored.
    async fn registered(
        &self,
        store: &dyn Store,
        plan: Arc<Plan>,
        claim: &Claim,
        is_new: bool,
    ) -> Result<Registered, RegisterError> {
        // The registry decides which version is current: another process may have registered one in between.
        self.catch_up(store, Some(&plan)).await?;
        let caught_up = self.caught_up.lock().await;
        let left_out = caught_up.left_out.iter().find(|left| {
            let other = &left.claim;
            (&other.owner, &other.id, &other.version) == (&claim.owner, &claim.id, &claim.version)
        });
        match left_out {
            // Another process used up the limit meanwhile.
            Some(left) => Err(left.limit.into()),
            None => Ok(Registered { plan, is_new }),
        }
    }

    /// The current version; a tenant's own takes precedence over a shared one.
    pub(crate) fn current(&self, tenant: &TenantId, id: &WorkflowId) -> Option<Arc<Plan>> {
        self.current.read().get(tenant, id).map(Arc::clone)
    }

    /// Whether the tenant itself has registered the workflow, which may hide a shared one.
    pub(crate) fn is_own(&self, tenant: &TenantId, id: &WorkflowId) -> bool {
        self.current.read().own(tenant).contains_key(id)
    }

    /// The only current version that `is_wanted` accepts. Stops at the second one.
    pub(crate) fn only(&self, tenant: &TenantId, is_wanted: impl Fn(&Plan) -> bool) -> Option<Arc<Plan>> {
        let current = self.current.read();
        let mut wanted = current.all(tenant).filter(|plan| is_wanted(plan));
        let only = wanted.next()?;
        wanted.next().is_none().then(|| Arc::clone(only))
    }

    pub(crate) fn all(&self, tenant: &TenantId) -> Vec<Arc<Plan>> {
        sorted(self.current.read().all(tenant))
    }

    pub(crate) fn public(&self, tenant: &TenantId) -> Vec<Arc<Plan>> {
        sorted(self.current.read().public(tenant))
    }

    /// A version of a tenant's workflow, if it is already compiled.
    fn compiled(&self, version: &Version) -> Option<Arc<Plan>> {
        let (tenant, id, hash) = version;
        let current = self.current(tenant, id).filter(|plan| plan.version() == hash);
        current.or_else(|| self.pinned.get(version))
    }
}

fn compile(dialect: &str, body: &[u8], node_types: NodeTypes) -> Result<Arc<Plan>, Cause> {
    let known = DialectId::parse(dialect);
    let dialect = known.ok_or_else(|| format!("this host does not know the language '{dialect}'"))?;
    let document = serde_json::from_slice(body).map_err(Cause::of)?;
    let plan = Plan::compile(dialect, document, node_types);
    plan.map(Arc::new).map_err(Cause::of)
}

/// A valid definition, with its text.
struct Admitted {
    plan: Arc<Plan>,
    body: Vec<u8>,
}

impl Admitted {
    fn new(document: Value, node_types: NodeTypes, signatures: &SignaturePolicy) -> Result<Self, Problems> {
        let plan = Plan::admit_signed(document, node_types, signatures)?;
        Ok(Self {
            body: plan.document().to_string().into_bytes(),
            plan: Arc::new(plan),
        })
    }

    /// The plan, with what the catalog counts for it and the row that the registry stores.
    fn split(self, owner: Owner, now: Timestamp) -> (Arc<Plan>, Claim, WorkflowRow) {
        let Self { plan, body } = self;
        let claim = Claim {
            owner: owner.clone(),
            id: plan.id().clone(),
            version: plan.version().clone(),
            bytes: parsed_size(&body) + plan.extra_bytes(),
        };
        let row = WorkflowRow {
            tenant: owner,
            id: plan.id().clone(),
            version: plan.version().clone(),
            dialect: plan.dialect().name().to_owned(),
            body,
            registered_at: now,
        };
        (plan, claim, row)
    }
}

impl Engine {
    /// Registers a workflow for one tenant, or for all (`None`), and makes it the current version.
    pub async fn register(
        &self,
        tenant: Option<&TenantId>,
        document: Value,
    ) -> Result<Registered, RegisterError> {
        let now = self.now();
        let admitted = self.admitted(tenant, document).await?;
        let (catalog, store) = (&self.shared.catalog, &*self.shared.store);
        catalog.put(store, tenant.cloned(), admitted, now).await
    }

    /// Whether the tenant itself has registered the workflow, as far as this process knows.
    #[must_use]
    pub fn is_own_workflow(&self, tenant: &TenantId, id: &WorkflowId) -> bool {
        self.shared.catalog.is_own(tenant, id)
    }

    /// Registers the first version of a tenant's workflow. Returns `None` and changes nothing if the tenant has a workflow
    /// of that id: of several calls at once, over all processes, one registers it.
    pub async fn register_first(
        &self,
        tenant: &TenantId,
        document: Value,
    ) -> Result<Option<Registered>, RegisterError> {
        let now = self.now();
        let admitted = self.admitted(Some(tenant), document).await?;
        let (catalog, store) = (&self.shared.catalog, &*self.shared.store);
        catalog.add(store, Some(tenant.clone()), admitted, now).await
    }

    async fn admitted(&self, tenant: Option<&TenantId>, document: Value) -> Result<Admitted, RegisterError> {
        let node_types = self.shared.catalog.node_types;
        let signatures = Arc::clone(&self.shared.options.signatures);
        let Some(tenant) = tenant else {
            return Ok(Admitted::new(document, node_types, &signatures)?);
        };
        let admitting = self.compute(tenant, HEAVY, move || {
            Admitted::new(document, node_types, &signatures)
        });
        let admitted = admitting.await.map_err(RegisterError::Busy)??;
        let id = admitted.plan.id();
        // Whoever registered one would do the work that others give to an agent or a tool.
        if id.is_of_host() {
            let rule = format!("id '{id}' begins with 'host-', as only those of the host's own workflows do");
            let problem = Problem::new("definition", rule);
            return Err(RegisterError::Invalid(Problems(vec![problem])));
        }
        Ok(admitted)
    }

    /// The version that a run is pinned to.
    pub(crate) async fn version(
        &self,
        tenant: &TenantId,
        id: &WorkflowId,
        hash: &ContentHash,
    ) -> Result<Arc<Plan>, ReadError> {
        let plan = self.known_version(tenant, id, hash).await?;
        plan.ok_or_else(|| ReadError::Corrupt(format!("workflow {id} has no version {hash}").into()))
    }

    /// A version of a workflow; `None` if the store does not have it.
    pub(crate) async fn known_version(
        &self,
        tenant: &TenantId,
        id: &WorkflowId,
        hash: &ContentHash,
    ) -> Result<Option<Arc<Plan>>, ReadError> {
        let version = (tenant.clone(), id.clone(), hash.clone());
        if let Some(plan) = self.shared.catalog.compiled(&version) {
            return Ok(Some(plan));
        }
        // Rarely needed; boxed to keep the caller's future small.
        Box::pin(self.pinned_version(version)).await
    }

    async fn pinned_version(&self, version: Version) -> Result<Option<Arc<Plan>>, ReadError> {
        let (tenant, id, hash) = &version;
        let Some(row) = self.shared.store.workflow(tenant, id, hash).await? else {
            return Ok(None);
        };
        // A run may finish with the node types it was started with, even if this host no longer offers them.
        let node_types = NodeTypes { conformance: true };
        let compiling = move || {
            (
                compile(&row.dialect, &row.body, node_types),
                parsed_size(&row.body),
            )
        };
        let (plan, n_bytes) = match self.compute(tenant, HEAVY, compiling).await {
            Ok((plan, n_bytes)) => (plan.map_err(ReadError::Corrupt)?, n_bytes),
            Err(error) => return Err(ReadError::Unavailable(Cause::of(error))),
        };
        let n_bytes = n_bytes + plan.extra_bytes();
        self.shared
            .catalog
            .pinned
            .keep(version, Arc::clone(&plan), n_bytes);
        Ok(Some(plan))
    }
}

fn sorted<'c>(plans: impl Iterator<Item = &'c Arc<Plan>>) -> Vec<Arc<Plan>> {
    let mut plans: Vec<_> = plans.map(Arc::clone).collect();
    plans.sort_by(|a, b| a.id().cmp(b.id()));
    plans
}

/// The workflows that runs of a tenant may start.
#[derive(Debug)]
pub(crate) struct TenantCatalog<'a> {
    catalog: &'a Catalog,
    tenant: &'a TenantId,
    allowance: &'a Allowance,
    has_missed: AtomicBool,
    children: Deciding,
}

impl<'a> TenantCatalog<'a> {
    pub(crate) fn new(catalog: &'a Catalog, tenant: &'a TenantId, allowance: &'a Allowance) -> Self {
        Self {
            catalog,
            tenant,
            allowance,
            has_missed: AtomicBool::new(false),
            children: Deciding::default(),
        }
    }

    /// The children that were decided together with the run.
    pub(crate) fn into_children(self) -> WholeChildren {
        self.children.into_children()
    }

    /// Returns `true` if a workflow was looked up that is unknown here but may be in the registry.
    pub(crate) fn has_missed(&self) -> bool {
        self.has_missed.load(Ordering::Relaxed)
    }
}

impl wopr_core::Catalog for TenantCatalog<'_> {
    fn current(&self, workflow: &WorkflowId) -> Option<Arc<dyn Startable>> {
        let plan = self.catalog.current(self.tenant, workflow);
        self.has_missed.fetch_or(plan.is_none(), Ordering::Relaxed);
        let plan = plan.filter(|plan| plan.is_active())?;
        Some(plan as Arc<dyn Startable>)
    }

    fn admits_child(&self, root: &RunId) -> bool {
        self.allowance.admits(root)
    }

    fn decide_child(
        &self,
        child: &NewChild,
        input: &Input<'_>,
        units: u64,
    ) -> Result<EndedChild, UndecidedChild> {
        let plan = self.catalog.current(self.tenant, &child.workflow);
        let plan = plan.filter(|plan| *plan.version() == child.version && plan.never_waits());
        let plan = plan.ok_or(UndecidedChild::Waits(0))?;
        self.children.decide(&plan, child, input, units)
    }
}
