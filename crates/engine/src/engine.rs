//! The engine's handle: creating runs, commanding them, and reading them.

use std::{sync::Arc, time::Duration};

use serde_json::Value;
use tokio_util::{sync::CancellationToken, task::TaskTracker};
use wopr_core::{
    Asked, Command, Decision, Entropy, Input, Plan, Refusal, Resolve, Run, RunId, RunKey, Seq, StartRun,
    TenantId, Timestamp, WorkflowId, decide,
};
use wopr_store::{EffectKey, Epoch, Fence, Guard, IdempotencyRecord, ReadError, Store, WriteError};

use crate::{
    Clock, CommandError, Create, Done, Events, Executor, Extras, Once, Options, RegisterError, Registered,
    Stats, Tail, View,
    catalog::{Catalog, TenantCatalog},
    commit,
    committing::{Change, Doubt, Failed},
    dice::Dice,
    effects::Effects,
    inbox::Inboxes,
    locks::Locks,
    stats::Counters,
    tail::Tails,
    timers::Timers,
    view::{self, Open, decode_events},
};

/// Decisions that lose this often in a row answer [`CommandError::Busy`].
const MAX_ATTEMPTS: u32 = 16;
/// Deepest chain of children an answer is forwarded through; the kernel refuses deeper ones.
const MAX_FORWARDS: usize = 40;
/// How long a caller told `Busy` or `Unavailable` should wait.
const RETRY_AFTER_MS: u64 = 1_000;

/// Why an engine did not start.
#[derive(Debug, thiserror::Error)]
pub enum StartError {
    /// The store does not answer.
    #[error("read the store: {0}")]
    Read(#[from] ReadError),
    /// The store does not take writes.
    #[error("write the store: {0}")]
    Write(#[from] WriteError),
}

/// A durable engine over one store. Clones share it.
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
    pub(crate) catalog: Catalog,
    pub(crate) tails: Arc<Tails>,
    pub(crate) counters: Counters,
    pub(crate) timers: Timers,
    pub(crate) effects: Effects,
    pub(crate) inboxes: Inboxes,
    pub(crate) stop: CancellationToken,
    pub(crate) tasks: TaskTracker,
    pub(crate) dice: Dice,
    locks: Locks,
}

impl Engine {
    /// Begins a new epoch, recovers what earlier ones left, and goes on until [`Engine::stop`].
    ///
    /// # Errors
    /// See [`StartError`].
    pub async fn start(
        store: Arc<dyn Store>,
        executor: Arc<dyn Executor>,
        clock: Arc<dyn Clock>,
        options: Options,
    ) -> Result<Self, StartError> {
        let epoch = store.begin_epoch(clock.now()).await?;
        let catalog = Catalog::load(&*store, options.offer).await?;
        let shared = Arc::new(Shared {
            effects: Effects::new(options.max_effects),
            dice: Dice::new(options.seed),
            store,
            executor,
            clock,
            options,
            epoch,
            catalog,
            tails: Arc::default(),
            counters: Counters::default(),
            timers: Timers::default(),
            inboxes: Inboxes::default(),
            stop: CancellationToken::new(),
            tasks: TaskTracker::new(),
            locks: Locks::default(),
        });
        let engine = Self { shared };
        let tasks = &engine.shared.tasks;
        tasks.spawn(engine.clone().run_timers());
        tasks.spawn(engine.clone().run_effects());
        tasks.spawn(engine.clone().run_inboxes());
        tasks.spawn(engine.clone().run_retention());
        tracing::info!(epoch = epoch.0, "engine started");
        Ok(engine)
    }

    /// Stops taking up work, gives back what is under way, and waits for it. Commands that come later still work;
    /// what they leave to do is done by the next start.
    pub async fn stop(&self) {
        self.shared.stop.cancel();
        self.shared.tails.wake_all();
        self.shared.tasks.close();
        self.shared.tasks.wait().await;
        tracing::info!("engine stopped");
    }

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
        self.shared
            .catalog
            .register(&*self.shared.store, tenant.cloned(), document, now)
            .await
    }

    /// The current version of a workflow.
    #[must_use]
    pub fn workflow(&self, tenant: &TenantId, id: &WorkflowId) -> Option<Arc<Plan>> {
        self.shared.catalog.current(tenant, id)
    }

    /// The current versions of a tenant's workflows, by id.
    #[must_use]
    pub fn workflows(&self, tenant: &TenantId) -> Vec<Arc<Plan>> {
        self.shared.catalog.all(tenant)
    }

    /// A fresh run id.
    #[must_use]
    pub fn new_run_id(&self) -> RunId {
        RunId::from_parts(self.now(), self.shared.dice.roll())
    }

    /// The time.
    #[must_use]
    pub fn now(&self) -> Timestamp {
        self.shared.clock.now()
    }

    /// The store, for reads of side rows.
    #[must_use]
    pub fn store(&self) -> &Arc<dyn Store> {
        &self.shared.store
    }

    /// What the engine did since it started.
    #[must_use]
    pub fn stats(&self) -> Stats {
        self.shared.counters.read()
    }

    /// Creates a run and lets it go as far as it can: one append.
    ///
    /// # Errors
    /// See [`CommandError`].
    pub async fn create(&self, create: Create) -> Result<Done, CommandError> {
        let once = create.extras.idempotency.clone();
        match (self.create_once(create).await, once) {
            // The workflow may have changed since the request took effect.
            (Err(error @ (CommandError::UnknownWorkflow | CommandError::Refused(_))), Some(once)) => {
                self.replay_or(error, &once).await
            }
            (done, _) => done,
        }
    }

    async fn create_once(&self, create: Create) -> Result<Done, CommandError> {
        let Create {
            run,
            workflow,
            start,
            extras,
        } = create;
        let plan = self.shared.catalog.current(&start.tenant, &workflow);
        let plan = plan
            .filter(|plan| plan.definition.is_active)
            .ok_or(CommandError::UnknownWorkflow)?;
        let now = self.now();
        let key = RunKey::new(start.tenant.clone(), run);
        let summary = commit::new_summary(workflow, plan.version().clone(), start.principal.clone(), now);
        let view = View {
            key,
            plan,
            run: Run::default(),
            summary,
        };
        let command = Command::Start(Box::new(StartRun {
            tenant: start.tenant,
            principal: start.principal,
            origin: start.origin,
            inputs: start.inputs,
            configurable: start.configurable,
            tags: start.tags,
            metadata: start.metadata,
            context: start.context,
            trace: start.trace,
            parent: None,
            bounds: self.shared.options.bounds,
        }));
        let mut doubts = Vec::new();
        for attempt in 0..MAX_ATTEMPTS {
            // No race to lose, the run is this caller's alone; but a commit in doubt may turn out not to have happened,
            // or to have happened after all.
            if !doubts.is_empty()
                && let Some(open) = self.open(&view.key).await?
                && self
                    .has_happened(&view.key, open.view.run.head, &mut doubts)
                    .await?
            {
                Counters::add(&self.shared.counters.runs_created, 1);
                return Ok(Done::Fresh(open.view));
            }
            let decision = self.decide(&view, command.clone(), now)?;
            let change = Change {
                view: &view,
                task: None,
                guard: Guard::Create,
                fence: None,
                consumed: &[],
            };
            match self.commit(change, decision, &extras, now).await {
                Ok(view) => {
                    Counters::add(&self.shared.counters.runs_created, 1);
                    return Ok(Done::Fresh(view));
                }
                Err(Failed::Conflict) => self.back_off(attempt).await,
                Err(Failed::InDoubt(doubt)) => doubts.push(doubt),
                Err(Failed::Replayed(record)) => return replay(record, extras.idempotency.as_ref()),
                Err(Failed::Error(error)) => return Err(error),
            }
        }
        Err(CommandError::Busy {
            retry_after_ms: RETRY_AFTER_MS,
        })
    }

    /// Whether one of these commits happened after all. Those whose place another took never will, and are forgotten.
    async fn has_happened(
        &self,
        key: &RunKey,
        head: Seq,
        doubts: &mut Vec<Doubt>,
    ) -> Result<bool, ReadError> {
        while let Some(decided) = doubts.iter().position(|doubt| doubt.seq() < head) {
            let doubt = doubts.swap_remove(decided);
            if self.stands(key, &doubt).await? {
                return Ok(true);
            }
        }
        Ok(false)
    }

    /// Commands a run: load, decide, append; decided again when another writer was first.
    ///
    /// An answer to an interrupt that the run mirrors from a child goes to that child.
    ///
    /// # Errors
    /// See [`CommandError`].
    pub async fn command(
        &self,
        key: &RunKey,
        command: Command,
        extras: Extras,
    ) -> Result<Done, CommandError> {
        if let Some(once) = &extras.idempotency
            && let Some(record) = self.shared.store.idempotency(&once.key, self.now()).await?
        {
            return replay(record, Some(once));
        }
        let once = extras.idempotency.clone();
        let done = match command {
            Command::Resolve(resolve) => self.resolve(key, resolve, extras).await,
            command => self.command_fenced(key, command, extras, None).await,
        };
        match (done, once) {
            // The same request may have taken effect between the look and the decision.
            (Err(error @ CommandError::Refused(_)), Some(once)) => self.replay_or(error, &once).await,
            (done, _) => done,
        }
    }

    async fn replay_or(&self, error: CommandError, once: &Once) -> Result<Done, CommandError> {
        match self.shared.store.idempotency(&once.key, self.now()).await? {
            Some(record) => replay(record, Some(once)),
            None => Err(error),
        }
    }

    async fn resolve(&self, key: &RunKey, resolve: Resolve, extras: Extras) -> Result<Done, CommandError> {
        let mut resolve = resolve;
        let mut chain = vec![key.clone()];
        while let (Some(target), true) = (chain.last(), chain.len() < MAX_FORWARDS) {
            let view = self.view(target).await?.ok_or(CommandError::NotFound)?;
            let child = view
                .run
                .interrupts(&view.plan)
                .find(|open| *open.node == resolve.node)
                .and_then(|open| match open.asked {
                    Asked::Here(_) => None,
                    Asked::Child(child, _, _) => Some(child.clone()),
                });
            let Some(child) = child else { break };
            let child = target.sibling(child);
            let asks = self.view(&child).await?.ok_or(CommandError::NotFound)?;
            let Some(open) = asks.run.interrupt(&asks.plan) else {
                return Err(Refusal::AlreadyResolved.into());
            };
            resolve.node = open.node.clone();
            resolve.ordinal = None;
            chain.push(child);
        }
        let Some(target) = chain.pop() else {
            return Err(CommandError::NotFound);
        };
        let done = self
            .command_fenced(&target, Command::Resolve(resolve), extras, None)
            .await?;
        if chain.is_empty() {
            return Ok(done);
        }
        // Those that mirror the question hear of the answer now, so that the caller sees what it did.
        for ancestor in chain.iter().rev() {
            self.hear(ancestor).await?;
        }
        Ok(Done::Fresh(self.view(key).await?.ok_or(CommandError::NotFound)?))
    }

    pub(crate) async fn command_fenced(
        &self,
        key: &RunKey,
        command: Command,
        extras: Extras,
        fence: Option<(EffectKey, Fence)>,
    ) -> Result<Done, CommandError> {
        let _lock = self.shared.locks.hold(key).await;
        let mut doubts = Vec::new();
        for attempt in 0..MAX_ATTEMPTS {
            let open = self.open(key).await?.ok_or(CommandError::NotFound)?;
            // What a commit in doubt told the run it must not be told again.
            if self.has_happened(key, open.view.run.head, &mut doubts).await? {
                return Ok(Done::Fresh(open.view));
            }
            if !open.inbox.is_empty() {
                // What others said comes first; a lost race here is a lost attempt.
                self.consume_inbox(open).await?;
                continue;
            }
            let now = self.now();
            let decision = self.decide(&open.view, command.clone(), now)?;
            let guard = Guard::At(open.view.run.head);
            let change = Change {
                view: &open.view,
                task: open.task.as_ref(),
                guard,
                fence: fence.clone(),
                consumed: &[],
            };
            match self.commit(change, decision, &extras, now).await {
                Ok(view) => return Ok(Done::Fresh(view)),
                Err(Failed::Conflict) => self.back_off(attempt).await,
                Err(Failed::InDoubt(doubt)) => doubts.push(doubt),
                Err(Failed::Replayed(record)) => return replay(record, extras.idempotency.as_ref()),
                Err(Failed::Error(error)) => return Err(error),
            }
        }
        Err(CommandError::Busy {
            retry_after_ms: RETRY_AFTER_MS,
        })
    }

    /// Lets a run hear what others told it, under its lock.
    pub(crate) async fn hear(&self, key: &RunKey) -> Result<(), CommandError> {
        let _lock = self.shared.locks.hold(key).await;
        for attempt in 0..MAX_ATTEMPTS {
            match self.open(key).await? {
                Some(open) if !open.inbox.is_empty() => {
                    if self.consume_inbox(open).await? {
                        return Ok(());
                    }
                    self.back_off(attempt).await;
                }
                Some(_) | None => return Ok(()),
            }
        }
        Err(CommandError::Busy {
            retry_after_ms: RETRY_AFTER_MS,
        })
    }

    /// Decides on every inbox row at once; `false` if another writer was first.
    async fn consume_inbox(&self, open: Open) -> Result<bool, CommandError> {
        let Open { view, task, inbox } = open;
        let now = self.now();
        let consumed: Vec<_> = inbox
            .iter()
            .map(|row| (row.source.clone(), row.source_seq))
            .collect();
        let decision = if view.run.status.is_terminal() {
            // Nothing can follow the end; the rows only have to go.
            unchanged(&view)
        } else {
            let mut notices = Vec::with_capacity(inbox.len());
            for row in &inbox {
                let notice = serde_json::from_slice(&row.body);
                notices
                    .push(notice.map_err(|error| {
                        CommandError::Internal(format!("inbox of {}: {error}", view.key))
                    })?);
            }
            self.decide(&view, Command::Notices(notices), now)?
        };
        let guard = Guard::At(view.run.head);
        let change = Change {
            view: &view,
            task: task.as_ref(),
            guard,
            fence: None,
            consumed: &consumed,
        };
        match self.commit(change, decision, &Extras::default(), now).await {
            Ok(_) => Ok(true),
            Err(Failed::Conflict | Failed::InDoubt(_)) => Ok(false),
            Err(Failed::Replayed(_)) => Err(CommandError::Internal(
                "a batch without key was a duplicate".to_owned(),
            )),
            Err(Failed::Error(error)) => Err(error),
        }
    }

    /// Reads a run.
    ///
    /// # Errors
    /// See [`ReadError`].
    pub async fn view(&self, key: &RunKey) -> Result<Option<View>, ReadError> {
        Ok(self.open(key).await?.map(|open| open.view))
    }

    /// Reads a page of a run's log, from a position on.
    ///
    /// # Errors
    /// See [`ReadError`].
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

    /// Follows a run's log. Make the tail first, then read, then await the tail.
    #[must_use]
    pub fn tail(&self, key: &RunKey) -> Tail {
        self.shared.tails.follow(key, self.shared.options.poll)
    }

    async fn open(&self, key: &RunKey) -> Result<Option<Open>, ReadError> {
        let Some(loaded) = self.shared.store.load(key).await? else {
            return Ok(None);
        };
        let summary = &loaded.summary;
        let plan = self.shared.catalog.version(
            &*self.shared.store,
            &key.tenant,
            &summary.workflow,
            &summary.version,
        );
        let plan = plan.await?;
        view::open(key, plan, loaded).map(Some)
    }

    fn decide(&self, view: &View, command: Command, now: Timestamp) -> Result<Decision, Refusal> {
        let catalog = TenantCatalog {
            catalog: &self.shared.catalog,
            tenant: &view.key.tenant,
        };
        let input = Input {
            now,
            entropy: Entropy(self.shared.dice.roll()),
            run: &view.key.run,
            catalog: &catalog,
        };
        decide(view.run.clone(), &view.plan, command, &input)
    }

    /// Waits a little, longer with each lost attempt and never the same for two.
    async fn back_off(&self, attempt: u32) {
        let most = 1_u64 << attempt.min(6);
        let [dice] = self.shared.dice.roll::<1>();
        tokio::time::sleep(Duration::from_millis(u64::from(dice) % (most + 1))).await;
    }

    /// Sleeps; `true` if the engine stops meanwhile.
    pub(crate) async fn paused_for(&self, time: Duration) -> bool {
        tokio::time::timeout(time, self.shared.stop.cancelled())
            .await
            .is_ok()
    }
}

fn replay(record: IdempotencyRecord, once: Option<&Once>) -> Result<Done, CommandError> {
    match once {
        Some(once) if once.digest == record.digest => Ok(Done::Replayed(record)),
        Some(_) | None => Err(CommandError::KeyReused),
    }
}

fn unchanged(view: &View) -> Decision {
    Decision {
        run: view.run.clone(),
        events: Vec::new(),
        effects: Vec::new(),
        settled: Vec::new(),
        timers_set: Vec::new(),
        timers_cleared: Vec::new(),
        children: Vec::new(),
        notices: Vec::new(),
    }
}
