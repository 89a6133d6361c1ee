//! The engine's handle: starting and stopping, registered workflows, and reading runs.

use std::{sync::Arc, time::Duration};

use tokio::{
    runtime::Handle,
    sync::{Semaphore, broadcast},
};
use tokio_util::{sync::CancellationToken, task::TaskTracker};
use wopr_core::{
    ContentHash, Plan, PrincipalId, Run, RunId, RunKey, RunStatus, Seq, TenantId, Timestamp, WorkflowId,
};
use wopr_store::{Cause, Epoch, Hint, Loaded, Outage, Queue, ReadError, Store, Summary, WriteError};

use crate::{
    Clock, CommandError, Decided, Events, Executor, Opened, Options, Stats, Tail, View,
    blobs::READERS,
    budgeting::Budgeting,
    budgets::Budgets,
    catalog::Catalog,
    commit::SNAPSHOT_BYTES,
    decision_pool::DecisionPool,
    descendants::Descendants,
    entropy::EntropySource,
    hints::WakeHints,
    inbox::Inboxes,
    lease_clock::LeaseClock,
    load_budget::{LoadBudget, LoadPermit, Purpose},
    loading::Fetched,
    locks::Locks,
    logs::store_failed,
    memory_shares::MemoryShares,
    outboxes::{FOLDING, Outboxes},
    parks::Parks,
    pool::Pool,
    quarantine::silence,
    recent_runs::RecentRunCache,
    remembering::Remembering,
    run_backoff::RunBackoff,
    run_budgets::RunBudgets,
    run_ids::RunIds,
    stats::Counters,
    tail::Tails,
    view::{self, Open, decode_events},
    waiting::Waiting,
    workers::Workers,
};

/// Time limit for recording a clean shutdown in the store.
const FAREWELL: Duration = Duration::from_secs(1);

#[derive(Debug, thiserror::Error)]
pub enum StartError {
    #[error("read the store: {0}")]
    Read(#[from] ReadError),
    #[error("write the store: {0}")]
    Write(#[from] WriteError),
}

/// A durable engine over one store. Clones share the same engine.
#[derive(Debug, Clone)]
pub struct Engine {
    pub(crate) shared: Arc<Shared>,
}

#[derive(Debug)]
pub(crate) struct Shared {
    pub(crate) store: Arc<dyn Store>,
    pub(crate) executor: Arc<dyn Executor>,
    pub(crate) clock: Arc<dyn Clock>,
    pub(crate) options: Options,
    pub(crate) epoch: Epoch,
    pub(crate) lease_clock: LeaseClock,
    pub(crate) catalog: Catalog,
    pub(crate) tails: Arc<Tails>,
    pub(crate) recent_runs: Arc<RecentRunCache>,
    pub(crate) load_budget: LoadBudget,
    pub(crate) counters: Arc<Counters>,
    pub(crate) budgets: Arc<Budgets>,
    pub(crate) run_budgets: RunBudgets,
    pub(crate) memory_shares: Arc<MemoryShares>,
    pub(crate) timers: Pool,
    pub(crate) effects: Pool,
    /// A turn to read files of messages.
    pub(crate) blob_readers: Semaphore,
    pub(crate) deliveries: Pool,
    pub(crate) parks: Parks,
    pub(crate) workers: Workers,
    pub(crate) inboxes: Inboxes,
    pub(crate) outboxes: Outboxes,
    pub(crate) wake_hints: WakeHints,
    pub(crate) run_backoff: RunBackoff,
    /// No work is taken up any more. Cancelled with [`Shared::stop`], or before it.
    pub(crate) leaving: CancellationToken,
    pub(crate) stop: CancellationToken,
    pub(crate) tasks: TaskTracker,
    pub(crate) runtime: Handle,
    pub(crate) locks: Locks,
    pub(crate) descendants: Descendants,
    pub(crate) decision_pool: DecisionPool,
    pub(crate) entropy_source: EntropySource,
    pub(crate) run_ids: RunIds,
}

/// An engine that accepts requests but has not started its loops.
#[derive(Debug)]
pub struct Prepared {
    engine: Engine,
    hints: Option<broadcast::Receiver<Hint>>,
}

impl Prepared {
    #[must_use]
    pub fn engine(&self) -> &Engine {
        &self.engine
    }

    /// Starts the loops, which recover what earlier epochs left and do due work until [`Engine::stop`].
    #[must_use]
    pub fn begin(self) -> Engine {
        let Self { engine, hints } = self;
        let tasks = &engine.shared.tasks;
        tasks.spawn(engine.clone().keep("clock", Engine::run_clock));
        let pool = |queue| move |engine: Engine| engine.run_pool(queue);
        tasks.spawn(engine.clone().keep("timers", pool(Queue::Timers)));
        tasks.spawn(engine.clone().keep("effects", pool(Queue::Effects)));
        tasks.spawn(engine.clone().keep("workers", Engine::run_workers));
        tasks.spawn(engine.clone().keep("inboxes", Engine::run_inboxes));
        tasks.spawn(engine.clone().keep("quarantine", Engine::run_quarantine));
        tasks.spawn(engine.clone().keep("retention", Engine::run_retention));
        tasks.spawn(engine.clone().keep("registry", Engine::run_registry));
        tasks.spawn(engine.clone().keep("tails", Engine::run_tails));
        if engine.shared.options.notifier.is_some() {
            tasks.spawn(engine.clone().keep("outboxes", Engine::run_outboxes));
            tasks.spawn(engine.clone().keep("deliveries", pool(Queue::Deliveries)));
        }
        if let Some(hints) = hints {
            let looping = move |engine: Engine| engine.run_hints(hints.resubscribe());
            tasks.spawn(engine.clone().keep("hints", looping));
        }
        tracing::info!(epoch = engine.shared.epoch.0, "engine started");
        engine
    }
}

impl Engine {
    /// Begins a new epoch, recovers what earlier ones left, and runs until [`Engine::stop`].
    pub async fn start(
        store: Arc<dyn Store>,
        executor: Arc<dyn Executor>,
        clock: Arc<dyn Clock>,
        options: Options,
    ) -> Result<Self, StartError> {
        let prepared = Self::prepare(store, executor, clock, options).await?;
        Ok(prepared.begin())
    }

    /// Begins a new epoch and accepts requests, but does no due work before [`Prepared::begin`]. The caller
    /// can first register what runs need to continue, such as their workflows.
    pub async fn prepare(
        store: Arc<dyn Store>,
        executor: Arc<dyn Executor>,
        clock: Arc<dyn Clock>,
        options: Options,
    ) -> Result<Prepared, StartError> {
        // Subscribe before the first read, so that no hint is missed.
        let hints = store.hints();
        if let Some(time) = store.time().await? {
            clock.follow(time);
        }
        let mark = store.high_water().await?;
        if let Some(mark) = mark {
            clock.not_before(mark);
        }
        let epoch = store.begin_epoch(clock.now()).await?;
        // Leases that have ended are free at once. The death of their holder counts before that.
        store.beat(epoch, Some(silence(&options))).await?;
        let lease_clock = LeaseClock::start(&*store, clock.now()).await?;
        let (began, _) = lease_clock.lease(Duration::ZERO);
        let catalog = Catalog::load(&*store, &options).await?;
        let decision_pool = DecisionPool::new(options.deciders);
        let memory_shares = Arc::<MemoryShares>::default();
        let executor = Arc::new(Remembering::new(
            executor,
            Arc::clone(&store),
            Arc::clone(&clock),
            Arc::clone(&options.secrets),
            Arc::clone(&memory_shares),
        ));
        let tasks = TaskTracker::new();
        let (budgets, counters) = (
            Arc::new(Budgets::new(options.budgets.clone())),
            Arc::new(Counters::default()),
        );
        let executor = Arc::new(Budgeting::new(
            executor,
            Arc::clone(&store),
            Arc::clone(&clock),
            Arc::clone(&budgets),
            Waiting::new(tasks.clone(), Handle::current()),
        ));
        let stop = CancellationToken::new();
        let shared = Arc::new(Shared {
            timers: Pool::new(Queue::Timers, &options),
            effects: Pool::new(Queue::Effects, &options),
            blob_readers: Semaphore::new(READERS),
            deliveries: Pool::new(Queue::Deliveries, &options),
            parks: Parks::default(),
            workers: Workers::after(mark.map(|after| Outage { after, until: began })),
            entropy_source: EntropySource::new(options.seed),
            run_ids: RunIds::default(),
            recent_runs: Arc::new(RecentRunCache::new(options.retention)),
            load_budget: LoadBudget::default(),
            store,
            executor,
            clock,
            options,
            epoch,
            lease_clock,
            catalog,
            tails: Arc::default(),
            counters,
            budgets,
            memory_shares,
            run_budgets: RunBudgets::new(tasks.clone(), Handle::current()),
            inboxes: Inboxes::default(),
            outboxes: Outboxes::default(),
            wake_hints: WakeHints::default(),
            run_backoff: RunBackoff::default(),
            leaving: stop.child_token(),
            stop,
            tasks,
            runtime: Handle::current(),
            locks: Locks::default(),
            descendants: Descendants::default(),
            decision_pool,
        });
        Ok(Prepared {
            engine: Self { shared },
            hints,
        })
    }

    /// Takes up no more work, and waits until all that is under way has ended: calls of steps, and pushes. Commands
    /// still work, and what they make due is left to other processes or to the next start.
    ///
    /// A call that is cut off is repeated, or fails its step if it may not be, so an orderly stop waits here for as long
    /// as it can before [`Engine::stop`].
    ///
    /// # Cancel safety
    /// Dropping the future ends the wait only.
    pub async fn finish_work(&self) {
        let Shared {
            leaving,
            timers,
            effects,
            deliveries,
            ..
        } = &*self.shared;
        leaving.cancel();
        tokio::join!(timers.rest(), effects.rest(), deliveries.rest());
    }

    /// Stops taking up work, breaks off what is under way, releases leases and waits for running tasks. Later commands
    /// still work; their follow-up is done after the next start.
    pub async fn stop(&self) {
        self.shared.stop.cancel();
        self.shared.tails.wake_all();
        self.shared.tasks.close();
        self.shared.tasks.wait().await;
        // Without a clean end, other processes would count a death for rows that nobody holds.
        let ending = self.shared.store.end_epoch(self.shared.epoch);
        match tokio::time::timeout(FAREWELL, ending).await {
            Ok(Ok(())) => {}
            Ok(Err(error)) => tracing::warn!(%error, "end of the epoch not noted"),
            Err(_) => tracing::warn!("end of the epoch not noted in time"),
        }
        tracing::info!("engine stopped");
    }

    /// Runs CPU-bound work for a tenant in the decision pool. `n_bytes` is the approximate size of its input.
    ///
    /// # Errors
    /// [`CommandError::Busy`] if too much work of the tenant is already waiting.
    pub async fn compute<T: Send + 'static>(
        &self,
        tenant: &TenantId,
        n_bytes: usize,
        work: impl FnOnce() -> T + Send + 'static,
    ) -> Result<T, CommandError> {
        self.think(tenant, n_bytes, work).await
    }

    /// Returns the current version of a workflow. If it is unknown to this process, reads the registry first,
    /// because another process may have registered it.
    ///
    /// # Errors
    /// Only for a workflow unknown to this process: the registry could not be read.
    pub async fn find_workflow(
        &self,
        tenant: &TenantId,
        id: &WorkflowId,
    ) -> Result<Option<Arc<Plan>>, ReadError> {
        if let Some(plan) = self.workflow(tenant, id) {
            return Ok(Some(plan));
        }
        // Rarely needed; boxed to keep the caller's future small.
        Box::pin(self.catch_up()).await?;
        Ok(self.workflow(tenant, id))
    }

    /// Returns a version of a workflow, current or not. `None` if the store does not have it.
    ///
    /// # Errors
    /// The store could not be read, or what it has is damaged.
    pub async fn find_version(
        &self,
        tenant: &TenantId,
        id: &WorkflowId,
        version: &ContentHash,
    ) -> Result<Option<Arc<Plan>>, ReadError> {
        self.known_version(tenant, id, version).await
    }

    /// Reads what other processes have registered. Returns `true` if a current version changed.
    pub async fn catch_up(&self) -> Result<bool, ReadError> {
        let before = self.workflows_generation();
        self.shared.catalog.catch_up(&*self.shared.store, None).await?;
        Ok(self.workflows_generation() != before)
    }

    /// A counter that grows whenever a workflow becomes current or is removed, for invalidating caches.
    #[must_use]
    pub fn workflows_generation(&self) -> u64 {
        self.shared.catalog.generation()
    }

    /// The current version of a workflow known to this process.
    #[must_use]
    pub fn workflow(&self, tenant: &TenantId, id: &WorkflowId) -> Option<Arc<Plan>> {
        self.shared.catalog.current(tenant, id)
    }

    /// The current versions of a tenant's workflows known to this process, ordered by id.
    #[must_use]
    pub fn workflows(&self, tenant: &TenantId) -> Vec<Arc<Plan>> {
        self.shared.catalog.all(tenant)
    }

    /// The only current workflow of a tenant that `is_wanted` accepts; `None` also if there are several.
    #[must_use]
    pub fn only_workflow(&self, tenant: &TenantId, is_wanted: impl Fn(&Plan) -> bool) -> Option<Arc<Plan>> {
        self.shared.catalog.only(tenant, is_wanted)
    }

    /// The current workflows visible without authentication, ordered by id: the operator's public ones, and
    /// the tenant's own with `metadata.public: true`.
    #[must_use]
    pub fn public_workflows(&self, tenant: &TenantId) -> Vec<Arc<Plan>> {
        self.shared.catalog.public(tenant)
    }

    /// Creates a run id, larger than all ids this engine created before within the same millisecond.
    #[must_use]
    pub fn new_run_id(&self) -> RunId {
        let Shared {
            run_ids,
            clock,
            entropy_source,
            ..
        } = &*self.shared;
        run_ids.next(&**clock, entropy_source)
    }

    /// The current time, which never goes back.
    #[must_use]
    pub fn now(&self) -> Timestamp {
        self.shared.clock.now()
    }

    /// How long runs are kept after their last event; forever where absent.
    #[must_use]
    pub fn retention(&self) -> Option<Duration> {
        self.shared.options.retention
    }

    /// The current time of the system clock, for comparison with external timestamps.
    #[must_use]
    pub fn time_of_day(&self) -> Timestamp {
        self.shared.clock.time_of_day()
    }

    /// The store, for reading side rows.
    #[must_use]
    pub fn store(&self) -> &Arc<dyn Store> {
        &self.shared.store
    }

    /// Counters of the engine's activity since it started.
    #[must_use]
    pub fn stats(&self) -> Stats {
        let mut stats = self.shared.counters.read();
        stats.clock = self.shared.clock.steps();
        stats.workers_waiting = self.shared.workers.queues.n_waiting() as u64;
        stats
    }

    /// Reads a run. A run that this process decided recently is served from memory.
    pub async fn view(&self, key: &RunKey) -> Result<Option<View>, ReadError> {
        if let Some(view) = self.decided_view(key).await? {
            return Ok(Some(view));
        }
        Ok(self.open(key, Purpose::View).await?.map(|open| open.view))
    }

    /// Loads a run for a command.
    pub async fn open_run(&self, key: &RunKey) -> Result<Option<Opened>, ReadError> {
        Ok(self.open(key, Purpose::Command).await?.map(Opened))
    }

    /// Reads the summary row of a run and the number of its events.
    pub async fn summary(&self, key: &RunKey) -> Result<Option<(Summary, Seq)>, ReadError> {
        self.shared.store.summary(key).await
    }

    /// Finds the run without a parent that has this alias.
    pub async fn run_of_alias(&self, tenant: &TenantId, alias: &str) -> Result<Option<RunId>, ReadError> {
        self.shared.store.run_of_alias(tenant, alias).await
    }

    /// Reads at most `limit` events of a run's log, starting at `from`; fewer if they are large.
    pub async fn events(&self, key: &RunKey, from: Seq, limit: usize) -> Result<Option<Events>, ReadError> {
        let Some(page) = self.shared.store.events(key, from, limit).await? else {
            return Ok(None);
        };
        Ok(Some(Events {
            events: decode_events(&page.events)?,
            head: page.head,
            status: page.status,
        }))
    }

    /// A run that ended in this process recently, from memory. `None` says nothing about the run.
    #[must_use]
    pub fn ended(&self, key: &RunKey) -> Option<Arc<Decided>> {
        let decided = self.shared.recent_runs.find(key, self.now());
        decided.filter(|decided| decided.summary.status.is_terminal())
    }

    /// A run that this process decided recently, in its current state. `None` says nothing about the run. The
    /// store is read only if another process may have appended since.
    pub async fn decided(&self, key: &RunKey) -> Result<Option<Arc<Decided>>, ReadError> {
        let Shared {
            recent_runs, store, ..
        } = &*self.shared;
        let Some(decided) = recent_runs.find(key, self.now()) else {
            return Ok(None);
        };
        if decided.summary.status.is_terminal() || !store.is_shared() {
            return Ok(Some(decided));
        }
        // Reading the head is cheaper than loading the run.
        let heads = store.heads(std::slice::from_ref(key)).await?;
        if heads.first() == Some(&Some(decided.head)) {
            return Ok(Some(decided));
        }
        recent_runs.forget(key, &decided);
        Ok(None)
    }

    /// A run that this process decided recently, in its current state. `None` says nothing about the run. With a
    /// shared store only runs that have ended are found: confirming the head of another would cost as much as
    /// reading its events.
    #[must_use]
    pub fn at_hand(&self, key: &RunKey) -> Option<Arc<Decided>> {
        let Shared {
            recent_runs, store, ..
        } = &*self.shared;
        let decided = recent_runs.find(key, self.now())?;
        (decided.summary.status.is_terminal() || !store.is_shared()).then_some(decided)
    }

    /// Reads at most `limit` events from memory, starting at `from`; see [`Engine::at_hand`].
    #[must_use]
    pub fn events_at_hand(&self, key: &RunKey, from: Seq, limit: usize) -> Option<Events> {
        let decided = self.at_hand(key)?;
        let status = decided.summary.status;
        let events = decided.from(from)?;
        Some(Events {
            events: events.iter().take(limit).cloned().collect(),
            head: decided.head,
            status,
        })
    }

    /// The current status of a run; see [`Engine::at_hand`].
    #[must_use]
    pub fn status_at_hand(&self, key: &RunKey) -> Option<RunStatus> {
        Some(self.at_hand(key)?.summary.status)
    }

    /// The creator of a run that this process decided recently. `None` says nothing about the run.
    #[must_use]
    pub fn creator_at_hand(&self, key: &RunKey) -> Option<PrincipalId> {
        let decided = self.shared.recent_runs.find(key, self.now())?;
        Some(decided.summary.principal.clone())
    }

    async fn decided_view(&self, key: &RunKey) -> Result<Option<View>, ReadError> {
        match self.decided(key).await? {
            Some(decided) => self.view_of(key, &decided).await,
            None => Ok(None),
        }
    }

    async fn view_of(&self, key: &RunKey, decided: &Decided) -> Result<Option<View>, ReadError> {
        let Decided { summary, .. } = decided;
        let plan = self.version(&key.tenant, &summary.workflow, &summary.version);
        let plan = plan.await?;
        let run = match (&decided.run, decided.from(Seq(0))) {
            (Some(run), _) => run.clone(),
            (None, Some(events)) => match Run::default().fold(&plan, events) {
                Ok(run) => run,
                Err(_) => return Ok(None),
            },
            (None, None) => return Ok(None),
        };
        Ok(Some(View {
            key: key.clone(),
            plan,
            run,
            summary: summary.clone(),
            last_events: Vec::new(),
            continues: None,
            held: LoadPermit::default(),
        }))
    }

    /// A run that this process has just decided, for the next decision. It comes without its inbox: what is in there is
    /// heard afterwards, as if it had come a moment later. `None` says nothing about the run.
    pub(crate) async fn open_at_hand(&self, key: &RunKey) -> Result<Option<Open>, ReadError> {
        let Some(decided) = self.at_hand(key) else {
            return Ok(None);
        };
        let view = self.view_of(key, &decided).await?;
        Ok(view.map(|view| Open {
            view,
            inbox: Vec::new(),
            is_inbox_cut: false,
            n_tail_bytes: decided.n_tail_bytes,
            n_run_bytes: decided.n_bytes,
        }))
    }

    /// The number of events in a run's log, from memory if this process decided the run recently.
    pub async fn head(&self, key: &RunKey) -> Result<Option<Seq>, ReadError> {
        match self.decided(key).await? {
            Some(decided) => Ok(Some(decided.head)),
            None => Ok(self.summary(key).await?.map(|(_, head)| head)),
        }
    }

    /// Follows a run's log. Create the tail first, then read the log, then await the tail.
    #[must_use]
    pub fn tail(&self, key: &RunKey) -> Tail {
        self.shared.tails.follow(key)
    }

    pub(crate) async fn open(&self, key: &RunKey, purpose: Purpose) -> Result<Option<Open>, ReadError> {
        let Some(fetched) = self.fetch(key, purpose).await? else {
            return Ok(None);
        };
        let Fetched { loaded, held, turn } = fetched;
        let summary = &loaded.summary;
        let plan = self.version(&key.tenant, &summary.workflow, &summary.version);
        let plan = plan.await?;
        if view::is_of_other_fold(&plan, &loaded) {
            drop(turn);
            return Box::pin(self.open_afresh(purpose, key, plan, loaded, held)).await;
        }
        let (of, n_bytes) = (key.clone(), held.n_bytes());
        let opening = self.think(&key.tenant, n_bytes, move || view::open(&of, plan, loaded, held));
        let open = opening.await;
        drop(turn);
        open.map_err(unread)?.map(Some)
    }

    /// Folds the log of a run from its start, because its snapshot is of another fold. The next event that is
    /// appended brings a snapshot of this one.
    async fn open_afresh(
        &self,
        purpose: Purpose,
        key: &RunKey,
        plan: Arc<Plan>,
        loaded: Loaded,
        held: LoadPermit,
    ) -> Result<Option<Open>, ReadError> {
        let n_bytes = held.n_bytes();
        drop(held);
        let load_budget = &self.shared.load_budget;
        let held = load_budget.hold(purpose, &key.tenant, n_bytes + FOLDING).await?;
        let is_inbox_cut = loaded.is_inbox_cut();
        let Loaded {
            summary, head, inbox, ..
        } = loaded;
        let view = View {
            key: key.clone(),
            plan,
            run: Run::default(),
            summary,
            last_events: Vec::new(),
            continues: None,
            held,
        };
        let folded = self.fold_up_to(view, head).await.map_err(unread)?;
        Ok(folded.map(|view| Open {
            view,
            inbox,
            is_inbox_cut,
            n_tail_bytes: SNAPSHOT_BYTES,
            n_run_bytes: 0,
        }))
    }

    /// Catches up with the registry periodically and on hints.
    async fn run_registry(self) {
        loop {
            tokio::select! {
                biased;
                () = self.shared.stop.cancelled() => return,
                () = self.shared.wake_hints.registry.notified() => {}
                () = tokio::time::sleep(self.shared.options.poll) => {}
            }
            if let Err(error) = self.catch_up().await {
                store_failed("cannot read what other processes registered", &error);
            }
        }
    }

    /// Sleeps. Returns `true` if the engine stops meanwhile.
    pub(crate) async fn paused_for(&self, time: Duration) -> bool {
        tokio::time::timeout(time, self.shared.stop.cancelled())
            .await
            .is_ok()
    }
}

/// Why a run could not be folded, as the failure of a read.
fn unread(error: CommandError) -> ReadError {
    match error {
        CommandError::Internal(why) => ReadError::Corrupt(why),
        error => ReadError::Unavailable(Cause::of(error)),
    }
}
