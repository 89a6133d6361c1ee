//! A process's connection to the one store, which conflicts, refuses, answers late and goes silent.
//!
//! The store behind it is the reference implementation and never fails; only the way there and back does. The
//! witness sees every write at the moment it happens.

use std::{
    collections::{BTreeMap, BTreeSet},
    panic::resume_unwind,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
};

use async_trait::async_trait;
use parking_lot::Mutex;
use tokio::sync::broadcast;
use wopr_core::{ContentHash, RunId, RunKey, Seq, TenantId, Timestamp, WorkflowId};
use wopr_store::{
    AgentMemory, AppendError, Batch, BlobRow, CallDeliveryCursor, CallDeliveryFilter, CallDeliveryRow, Child,
    EndedRoots, Epoch, EventPage, Fence, Guard, Hint, IdempotencyKey, IdempotencyRecord, KeyRow, Leased,
    LeasedOffers, Load, Log, Mailbox, MemoryEntry, MemoryQuery, MemoryRoom, MemoryStore, MemoryUse,
    MessageRow, OfferRequest, OfferThen, OfferedQueue, Offers, Parking, PhaseCursor, PhaseFilter, PhasePage,
    Queue, Quota, ReadError, Registry, Removal, Retention, Revision, RunFilter, RunPage, SecretRow, Spenders,
    Spending, SpentRow, StoredSecrets, Summary, Swept, Then, Times, Work, WorkKey, WorkflowChange,
    WorkflowRow, WriteError,
};

use super::{
    fate::Fate,
    process::{self, Process},
    witness::Witness,
};

/// Maximum delay until an uncertain commit is written after all.
const MAX_LATENESS_MS: u64 = 400;

/// The store, as a server shared by several processes.
#[derive(Debug)]
pub(crate) struct Server {
    pub(crate) store: MemoryStore,
    pub(crate) witness: Witness,
    fate: Arc<Fate>,
    /// The store belongs to one process: a process that starts ends the leases of those before it.
    is_embedded: bool,
    epochs: AtomicU64,
    processes: Mutex<Vec<Arc<Process>>>,
    /// Loading one of these runs panics.
    mines: Mutex<BTreeSet<RunKey>>,
    n_struck: AtomicU64,
    n_reads: Mutex<BTreeMap<&'static str, u64>>,
    n_writes: Mutex<BTreeMap<&'static str, u64>>,
    uncertain: Mutex<UncertainCommit>,
    doom: Mutex<Option<Doom>>,
}

/// A process that dies or freezes as soon as it has leased timers.
#[derive(Debug)]
struct Doom {
    process: u64,
    is_end: bool,
}

/// An uncertain commit that a test schedules for a certain moment.
#[derive(Debug, Default)]
enum UncertainCommit {
    #[default]
    None,
    /// The next append is uncertain.
    Next,
    /// Written as soon as somebody has looked for it without finding it.
    InFlight(Box<Batch>),
}

impl Server {
    pub(crate) fn new(fate: Arc<Fate>, is_embedded: bool) -> Arc<Self> {
        Arc::new(Self {
            store: MemoryStore::new(),
            witness: Witness::new(Arc::clone(&fate)),
            fate,
            is_embedded,
            epochs: AtomicU64::new(0),
            processes: Mutex::default(),
            mines: Mutex::default(),
            n_struck: AtomicU64::new(0),
            n_reads: Mutex::default(),
            n_writes: Mutex::default(),
            uncertain: Mutex::default(),
            doom: Mutex::default(),
        })
    }

    /// Connects a process.
    pub(crate) fn connect(self: &Arc<Self>, process: &Arc<Process>) -> Arc<Connection> {
        let mut processes = self.processes.lock();
        processes.retain(|process| !process.is_dead());
        processes.push(Arc::clone(process));
        Arc::new(Connection {
            server: Arc::clone(self),
            process: Arc::clone(process),
        })
    }

    pub(crate) fn next_epoch(&self) -> u64 {
        self.epochs.fetch_add(1, Ordering::Relaxed) + 1
    }

    /// How many processes have been started.
    pub(crate) fn n_processes(&self) -> u64 {
        self.epochs.load(Ordering::Relaxed)
    }

    /// Makes loading these runs panic, and no others.
    pub(crate) fn mine(&self, runs: BTreeSet<RunKey>) {
        *self.mines.lock() = runs;
    }

    /// How often such a load panicked.
    pub(crate) fn n_struck(&self) -> u64 {
        self.n_struck.load(Ordering::Relaxed)
    }

    /// The number of reads of each kind.
    pub(crate) fn n_reads(&self) -> BTreeMap<&'static str, u64> {
        self.n_reads.lock().clone()
    }

    /// The number of writes of each kind, without appends.
    pub(crate) fn n_writes(&self) -> BTreeMap<&'static str, u64> {
        self.n_writes.lock().clone()
    }

    /// Makes the outcome of the next append unknown, and writes it right after somebody looked for it without
    /// finding it.
    pub(crate) fn doubt_next(&self) {
        *self.uncertain.lock() = UncertainCommit::Next;
    }

    /// Returns `true` if an uncertain append has been written since.
    pub(crate) fn has_doubt_passed(&self) -> bool {
        matches!(*self.uncertain.lock(), UncertainCommit::None)
    }

    /// Lets a process die, or freeze until it is thawed, as soon as it has leased timers.
    pub(crate) fn doom(&self, process: u64, is_end: bool) {
        *self.doom.lock() = Some(Doom { process, is_end });
    }

    /// Returns `true` if a doomed process has not leased timers yet.
    pub(crate) fn has_doom(&self) -> bool {
        self.doom.lock().is_some()
    }

    fn meet(&self, process: &Process) {
        let mut doom = self.doom.lock();
        if let Some(Doom { is_end, .. }) = doom.take_if(|doom| doom.process == process.number) {
            if is_end {
                process.die();
            } else {
                process.stand_still();
            }
        }
    }

    /// Takes the batch if it is to be uncertain.
    fn hold(&self, batch: Batch) -> Result<(), Box<Batch>> {
        let mut uncertain = self.uncertain.lock();
        match &*uncertain {
            UncertainCommit::Next => {
                *uncertain = UncertainCommit::InFlight(Box::new(batch));
                Ok(())
            }
            UncertainCommit::None | UncertainCommit::InFlight(_) => Err(Box::new(batch)),
        }
    }

    /// Writes the uncertain append to this run, if there is one.
    async fn land(&self, run: &RunKey, by: u64) {
        let landing = {
            let mut uncertain = self.uncertain.lock();
            match std::mem::take(&mut *uncertain) {
                UncertainCommit::InFlight(batch) if batch.run == *run => Some(batch),
                other => {
                    *uncertain = other;
                    None
                }
            }
        };
        if let Some(batch) = landing {
            self.append(*batch, by).await.expect("nothing else was appended");
        }
    }

    fn step_on(&self, run: &RunKey) {
        if self.mines.lock().contains(run) {
            self.n_struck.fetch_add(1, Ordering::Relaxed);
            // Bypasses the panic hook, which would print it.
            resume_unwind(Box::new("simulated"));
        }
    }

    /// Appends a batch. The witness sees it at once; other processes see it on a hint or when they look.
    async fn append(&self, batch: Batch, by: u64) -> Result<(), AppendError> {
        let copy = batch.clone();
        let done = self.store.append(batch).await;
        self.fate.tell(|| {
            let told = copy.inbox_sent.len();
            let n = copy.events.len();
            match &done {
                Ok(()) => format!(
                    "p{by} appends {n} to {} at {}, tells {told}",
                    copy.run,
                    copy.expected()
                ),
                Err(error) => format!("p{by} does not append {n} to {}: {error}", copy.run),
            }
        });
        if done.is_ok() {
            let told = copy
                .inbox_sent
                .iter()
                .map(|row| copy.run.sibling(row.target.clone()));
            let hints: Vec<_> = std::iter::once(copy.run.clone())
                .chain(told)
                .map(Hint::Run)
                .collect();
            self.witness.commit(&copy, by);
            self.tell_others(by, &hints);
        }
        done
    }

    fn tell_others(&self, by: u64, hints: &[Hint]) {
        for process in self.processes.lock().iter() {
            if process.number != by {
                hints.iter().for_each(|hint| process.hint(hint));
            }
        }
    }
}

#[derive(Debug)]
pub(crate) struct Connection {
    server: Arc<Server>,
    process: Arc<Process>,
}

impl Connection {
    fn fate(&self) -> &Fate {
        &self.server.fate
    }

    pub(super) fn memory(&self) -> &MemoryStore {
        &self.server.store
    }

    pub(super) async fn read(&self, what: &'static str) -> Result<(), ReadError> {
        *self.server.n_reads.lock().entry(what).or_default() += 1;
        self.process.step(what).await;
        if self.fate().strikes(self.fate().odds.unavailable) {
            return Err(ReadError::Unavailable(format!("simulated at {what}").into()));
        }
        Ok(())
    }

    pub(super) async fn write(&self, what: &'static str) -> Result<(), WriteError> {
        *self.server.n_writes.lock().entry(what).or_default() += 1;
        self.process.step(what).await;
        if self.fate().strikes(self.fate().odds.unavailable) {
            return Err(WriteError::Unavailable(format!("simulated at {what}").into()));
        }
        Ok(())
    }

    /// The way back from a write that took effect.
    pub(super) async fn written<T>(&self, what: &'static str, value: T) -> Result<T, WriteError> {
        self.process.step(what).await;
        if self.fate().strikes(self.fate().odds.unacknowledged) {
            return Err(WriteError::Unavailable(format!("simulated after {what}").into()));
        }
        Ok(value)
    }
}

#[async_trait]
impl Log for Connection {
    async fn append(&self, batch: Batch) -> Result<(), AppendError> {
        self.process.step("append").await;
        let batch = match self.server.hold(batch) {
            Ok(()) => return Err(AppendError::Unknown("simulated, it is in flight".into())),
            Err(batch) => *batch,
        };
        let (fate, odds) = (self.fate(), &self.fate().odds);
        if fate.strikes(odds.unavailable) {
            return Err(AppendError::Unavailable("simulated".into()));
        }
        if fate.strikes(odds.conflict) {
            let expected = batch.expected();
            let actual = matches!(batch.guard, Guard::At(_)).then_some(expected);
            return Err(AppendError::Conflict { expected, actual });
        }
        if fate.strikes(odds.unknown_lost) {
            fate.tell(|| {
                format!(
                    "p{} does not learn that {} was not written",
                    self.process.number, batch.run
                )
            });
            return Err(AppendError::Unknown("simulated, nothing was written".into()));
        }
        if !self.server.is_embedded && fate.strikes(odds.unknown_late) {
            let (server, by) = (Arc::clone(&self.server), self.process.number);
            fate.tell(|| format!("p{by} leaves a commit to {} in flight", batch.run));
            tokio::spawn(async move {
                server.fate.linger(MAX_LATENESS_MS).await;
                // The caller is gone.
                let _ = server.append(batch, by).await;
            });
            self.process.step("silence").await;
            return Err(AppendError::Unknown("simulated, it may be written yet".into()));
        }
        let done = self.server.append(batch, self.process.number).await;
        self.process.step("appended").await;
        if done.is_ok() && fate.strikes(odds.unknown_done) {
            return Err(AppendError::Unknown("simulated, all was written".into()));
        }
        done
    }

    async fn load_within(&self, run: &RunKey, most: usize) -> Result<Option<Load>, ReadError> {
        self.read("load").await?;
        self.server.step_on(run);
        let loaded = self.server.store.load_within(run, most).await;
        // The run may change before the caller uses it.
        self.process.step("loaded").await;
        loaded
    }

    async fn summary(&self, run: &RunKey) -> Result<Option<(Summary, Seq)>, ReadError> {
        self.read("summary").await?;
        self.server.store.summary(run).await
    }

    async fn run_of_alias(&self, tenant: &TenantId, alias: &str) -> Result<Option<RunId>, ReadError> {
        self.read("run of alias").await?;
        self.server.store.run_of_alias(tenant, alias).await
    }

    async fn heads(&self, runs: &[RunKey]) -> Result<Vec<Option<Seq>>, ReadError> {
        self.read("heads").await?;
        self.server.store.heads(runs).await
    }

    fn is_shared(&self) -> bool {
        !self.server.is_embedded
    }

    async fn events(&self, run: &RunKey, from: Seq, limit: usize) -> Result<Option<EventPage>, ReadError> {
        self.read("events").await?;
        let page = self.server.store.events(run, from, limit).await;
        self.server.land(run, self.process.number).await;
        page
    }

    async fn list_runs(
        &self,
        tenant: &TenantId,
        filter: &RunFilter,
        after: Option<&RunId>,
        limit: usize,
    ) -> Result<RunPage, ReadError> {
        self.read("list").await?;
        self.server.store.list_runs(tenant, filter, after, limit).await
    }

    async fn list_by_phase(
        &self,
        tenant: &TenantId,
        filter: &PhaseFilter,
        after: Option<&PhaseCursor>,
        limit: usize,
    ) -> Result<PhasePage, ReadError> {
        self.read("phases").await?;
        self.server
            .store
            .list_by_phase(tenant, filter, after, limit)
            .await
    }

    async fn messages(&self, run: &RunKey, limit: usize) -> Result<Vec<MessageRow>, ReadError> {
        self.read("messages").await?;
        self.server.store.messages(run, limit).await
    }

    async fn blob(&self, run: &RunKey, id: &str) -> Result<Option<BlobRow>, ReadError> {
        self.read("blob").await?;
        self.server.store.blob(run, id).await
    }

    async fn idempotency(
        &self,
        key: &IdempotencyKey,
        now: Timestamp,
    ) -> Result<Option<IdempotencyRecord>, ReadError> {
        self.read("idempotency").await?;
        self.server.store.idempotency(key, now).await
    }

    async fn remember(
        &self,
        record: IdempotencyRecord,
        now: Timestamp,
    ) -> Result<Option<IdempotencyRecord>, WriteError> {
        self.write("remember").await?;
        let known = self.server.store.remember(record, now).await?;
        self.written("remember", known).await
    }

    async fn forget_expired(&self, now: Timestamp, limit: usize) -> Result<usize, WriteError> {
        self.write("forget").await?;
        self.server.store.forget_expired(now, limit).await
    }
}

#[async_trait]
impl Work for Connection {
    async fn time(&self) -> Result<Option<Timestamp>, ReadError> {
        self.read("time").await?;
        // A server has a correct clock; a file has none.
        Ok((!self.server.is_embedded).then(|| process::wall_time(&self.server.fate)))
    }

    async fn high_water(&self) -> Result<Option<Timestamp>, ReadError> {
        self.read("high water").await?;
        self.server.store.high_water().await
    }

    async fn keep_time(&self, at: Timestamp) -> Result<(), WriteError> {
        self.write("keep time").await?;
        self.server.store.keep_time(at).await?;
        self.written("kept time", ()).await
    }

    async fn begin_epoch(&self, now: Timestamp) -> Result<Epoch, WriteError> {
        self.process.live().await;
        if self.server.is_embedded {
            // No other process has the file. The store's epoch numbers are not used; only the effect of
            // beginning one matters.
            self.server.store.begin_epoch(now).await?;
        }
        Ok(Epoch(self.process.number))
    }

    async fn lease(
        &self,
        queue: Queue,
        epoch: Epoch,
        times: Times,
        quota: &Quota,
    ) -> Result<Vec<Leased>, WriteError> {
        self.write("lease").await?;
        let leased = self.server.store.lease(queue, epoch, times, quota).await?;
        for row in &leased {
            let (number, run, key, fence) = (self.process.number, &row.run, &row.key.name, row.fence.0);
            self.fate()
                .tell(|| format!("p{number} leases {queue:?} {key} of {run} as {fence}"));
            if queue == Queue::Effects {
                self.server.witness.leased(row, number);
            }
        }
        if queue == Queue::Timers && !leased.is_empty() {
            self.server.meet(&self.process);
        }
        self.written("leased", leased).await
    }

    async fn set_lease(
        &self,
        run: &RunKey,
        key: &WorkKey,
        fence: Fence,
        then: Then,
    ) -> Result<bool, WriteError> {
        self.write("set lease").await?;
        let is_held = self.server.store.set_lease(run, key, fence, then).await?;
        self.written("lease set", is_held).await
    }

    async fn park_all(&self, rows: &[Parking]) -> Result<Vec<bool>, WriteError> {
        self.write("park").await?;
        let parked = self.server.store.park_all(rows).await?;
        self.written("parked", parked).await
    }

    async fn wake(&self, run: &RunKey, key: &WorkKey, at: Timestamp) -> Result<bool, WriteError> {
        self.write("wake").await?;
        let is_there = self.server.store.wake(run, key, at).await?;
        self.written("woken", is_there).await
    }

    async fn call_deliveries(
        &self,
        filter: &CallDeliveryFilter,
        after: Option<&CallDeliveryCursor>,
        limit: usize,
    ) -> Result<Vec<CallDeliveryRow>, ReadError> {
        self.read("call deliveries").await?;
        self.server.store.call_deliveries(filter, after, limit).await
    }

    async fn next_due(&self, queue: Queue) -> Result<Option<Timestamp>, ReadError> {
        self.read("next due").await?;
        self.server.store.next_due(queue).await
    }

    async fn end_epoch(&self, epoch: Epoch) -> Result<(), WriteError> {
        self.write("end epoch").await?;
        self.server.store.end_epoch(epoch).await?;
        self.written("ended epoch", ()).await
    }

    async fn claim(
        &self,
        mailbox: Mailbox,
        epoch: Epoch,
        runs: &[RunKey],
        suspects: usize,
    ) -> Result<Vec<RunKey>, WriteError> {
        self.write("claim").await?;
        if !self.server.is_embedded {
            // The simulated server detects no deaths, so no claim would ever end.
            return self.written("claimed", runs.to_vec()).await;
        }
        let claimed = self.server.store.claim(mailbox, epoch, runs, suspects).await?;
        self.written("claimed", claimed).await
    }

    async fn grant(&self, root: &RunKey, wanted: u64, most: u64) -> Result<u64, WriteError> {
        self.write("grant").await?;
        let granted = self.server.store.grant(root, wanted, most).await?;
        self.written("granted", granted).await
    }

    async fn quarantined(&self, limit: usize) -> Result<Vec<RunKey>, ReadError> {
        self.read("quarantined").await?;
        self.server.store.quarantined(limit).await
    }

    async fn runs_with_inbox(
        &self,
        epoch: Epoch,
        after: Option<&RunKey>,
        limit: usize,
    ) -> Result<Vec<RunKey>, ReadError> {
        self.read("inboxes").await?;
        self.server.store.runs_with_inbox(epoch, after, limit).await
    }

    fn hints(&self) -> Option<broadcast::Receiver<Hint>> {
        (!self.server.is_embedded).then(|| self.process.listen())
    }
}

#[async_trait]
impl Registry for Connection {
    async fn put_workflow(&self, row: WorkflowRow) -> Result<bool, WriteError> {
        self.write("register").await?;
        self.server.witness.registered(&row);
        let is_new = self.server.store.put_workflow(row).await?;
        self.server.tell_others(self.process.number, &[Hint::Registry]);
        self.written("registered", is_new).await
    }

    async fn add_workflow(&self, row: WorkflowRow) -> Result<bool, WriteError> {
        self.write("register").await?;
        self.server.witness.registered(&row);
        let is_added = self.server.store.add_workflow(row).await?;
        self.server.tell_others(self.process.number, &[Hint::Registry]);
        self.written("registered", is_added).await
    }

    async fn remove_workflow(
        &self,
        tenant: &TenantId,
        id: &WorkflowId,
        check_at: Timestamp,
    ) -> Result<bool, WriteError> {
        self.write("remove workflow").await?;
        let is_removed = self.server.store.remove_workflow(tenant, id, check_at).await?;
        self.server.tell_others(self.process.number, &[Hint::Registry]);
        self.written("removed workflow", is_removed).await
    }

    async fn workflow(
        &self,
        tenant: &TenantId,
        id: &WorkflowId,
        version: &ContentHash,
    ) -> Result<Option<WorkflowRow>, ReadError> {
        self.read("workflow").await?;
        self.server.store.workflow(tenant, id, version).await
    }

    async fn workflows_since(
        &self,
        after: Revision,
        max_bytes: usize,
    ) -> Result<Vec<(Revision, WorkflowChange)>, ReadError> {
        self.read("workflows").await?;
        self.server.store.workflows_since(after, max_bytes).await
    }

    async fn add_key(&self, row: KeyRow, limit: usize) -> Result<bool, WriteError> {
        self.write("key").await?;
        self.server.store.add_key(row, limit).await
    }

    async fn revoke_key(&self, tenant: &TenantId, id: &str, at: Timestamp) -> Result<bool, WriteError> {
        self.write("revoke").await?;
        self.server.store.revoke_key(tenant, id, at).await
    }

    async fn keys(&self) -> Result<Vec<KeyRow>, ReadError> {
        self.read("keys").await?;
        self.server.store.keys().await
    }

    async fn keys_of(&self, tenant: &TenantId) -> Result<Vec<KeyRow>, ReadError> {
        self.read("keys of a tenant").await?;
        self.server.store.keys_of(tenant).await
    }

    async fn forget_keys(&self, tenant: &TenantId, revoked_before: Timestamp) -> Result<(), WriteError> {
        self.write("forget keys").await?;
        self.server.store.forget_keys(tenant, revoked_before).await
    }

    async fn keys_since(&self, after: Revision) -> Result<Vec<(Revision, KeyRow)>, ReadError> {
        self.read("keys since").await?;
        self.server.store.keys_since(after).await
    }
}

#[async_trait]
impl Retention for Connection {
    async fn next_tenant(&self, after: Option<&TenantId>) -> Result<Option<TenantId>, ReadError> {
        self.read("tenants").await?;
        self.server.store.next_tenant(after).await
    }

    async fn ended_roots(
        &self,
        tenant: &TenantId,
        before: Timestamp,
        after: Option<&PhaseCursor>,
        limit: usize,
    ) -> Result<EndedRoots, ReadError> {
        self.read("roots").await?;
        self.server.store.ended_roots(tenant, before, after, limit).await
    }

    async fn children(
        &self,
        tenant: &TenantId,
        parents: &[RunId],
        after: Option<&Child>,
        limit: usize,
    ) -> Result<Vec<Child>, ReadError> {
        self.read("children").await?;
        self.server.store.children(tenant, parents, after, limit).await
    }

    async fn remove(&self, tenant: &TenantId, removals: &[Removal]) -> Result<(), WriteError> {
        self.write("remove").await?;
        self.server.witness.removed(tenant, removals);
        self.server.store.remove(tenant, removals).await?;
        self.written("removed", ()).await
    }

    async fn begun_removals(&self, limit: usize) -> Result<Vec<RunKey>, ReadError> {
        self.read("begun removals").await?;
        self.server.store.begun_removals(limit).await
    }

    async fn sweep(&self, limit: usize) -> Result<Swept, WriteError> {
        self.write("sweep").await?;
        let swept = self.server.store.sweep(limit).await?;
        self.written("swept", swept).await
    }

    async fn forget_workflows(
        &self,
        now: Timestamp,
        next_check: Timestamp,
        limit: usize,
    ) -> Result<usize, WriteError> {
        self.write("forget workflows").await?;
        let n_changed = self.server.store.forget_workflows(now, next_check, limit).await?;
        self.written("forgot workflows", n_changed).await
    }
}

#[async_trait]
impl AgentMemory for Connection {
    async fn memory(&self, tenant: &TenantId, query: &MemoryQuery) -> Result<Vec<MemoryEntry>, ReadError> {
        self.read("memory").await?;
        self.server.store.memory(tenant, query).await
    }

    async fn memory_use(&self, tenant: &TenantId, scope: &str) -> Result<MemoryUse, ReadError> {
        self.read("memory use").await?;
        self.server.store.memory_use(tenant, scope).await
    }

    async fn next_remembering(&self, after: Option<&TenantId>) -> Result<Option<TenantId>, ReadError> {
        self.read("remembering tenants").await?;
        self.server.store.next_remembering(after).await
    }

    async fn forget_memory(
        &self,
        tenant: &TenantId,
        now: Timestamp,
        before: Timestamp,
        limit: usize,
    ) -> Result<usize, WriteError> {
        self.write("forget memory").await?;
        let n_forgotten = self
            .server
            .store
            .forget_memory(tenant, now, before, limit)
            .await?;
        self.written("forgot memory", n_forgotten).await
    }

    async fn forget_ended_scopes(
        &self,
        tenant: &TenantId,
        wanted: MemoryRoom,
        limit: usize,
    ) -> Result<usize, WriteError> {
        self.write("forget scopes").await?;
        let store = &self.server.store;
        let n_forgotten = store.forget_ended_scopes(tenant, wanted, limit).await?;
        self.written("forgot scopes", n_forgotten).await
    }

    async fn has_forgotten(&self, run: &RunKey) -> Result<bool, ReadError> {
        self.read("forgotten").await?;
        self.server.store.has_forgotten(run).await
    }
}

#[async_trait]
impl StoredSecrets for Connection {
    async fn put_secret(&self, row: SecretRow, limit: usize) -> Result<bool, WriteError> {
        self.write("secret").await?;
        self.server.store.put_secret(row, limit).await
    }

    async fn secret(&self, tenant: &TenantId, name: &str) -> Result<Option<SecretRow>, ReadError> {
        self.read("secret").await?;
        self.server.store.secret(tenant, name).await
    }

    async fn secrets(&self, tenant: &TenantId) -> Result<Vec<SecretRow>, ReadError> {
        self.read("secrets").await?;
        self.server.store.secrets(tenant).await
    }

    async fn remove_secret(&self, tenant: &TenantId, name: &str) -> Result<bool, WriteError> {
        self.write("no secret").await?;
        self.server.store.remove_secret(tenant, name).await
    }

    async fn key_check(&self) -> Result<Option<String>, ReadError> {
        self.read("key check").await?;
        self.server.store.key_check().await
    }

    async fn put_key_check(&self, check: &str, replaces: bool) -> Result<(), WriteError> {
        self.write("key check").await?;
        self.server.store.put_key_check(check, replaces).await
    }
}

#[async_trait]
impl Offers for Connection {
    async fn lease_offers(&self, request: &OfferRequest) -> Result<LeasedOffers, WriteError> {
        self.write("lease offers").await?;
        let leased = self.server.store.lease_offers(request).await?;
        let lost = leased.lost.iter().map(|lost| &lost.leased);
        for row in leased.rows.iter().chain(lost) {
            self.server.witness.leased(row, self.process.number);
        }
        self.written("leased offers", leased).await
    }

    async fn set_offer(
        &self,
        run: &RunKey,
        key: &WorkKey,
        fence: Fence,
        then: OfferThen,
    ) -> Result<bool, WriteError> {
        self.write("set offer").await?;
        let is_held = self.server.store.set_offer(run, key, fence, then).await?;
        self.written("offer set", is_held).await
    }

    async fn offered_queues(
        &self,
        tenant: &TenantId,
        now: Timestamp,
        after: Option<&str>,
        limit: usize,
    ) -> Result<Vec<OfferedQueue>, ReadError> {
        self.read("offered queues").await?;
        self.server.store.offered_queues(tenant, now, after, limit).await
    }
}

#[async_trait]
impl Spending for Connection {
    async fn spent(
        &self,
        of: Spenders<'_>,
        now: Timestamp,
        limit: usize,
    ) -> Result<Vec<(TenantId, SpentRow)>, ReadError> {
        self.read("spending").await?;
        self.server.store.spent(of, now, limit).await
    }

    async fn forget_spent(&self, before: Timestamp, limit: usize) -> Result<usize, WriteError> {
        self.write("forget spending").await?;
        let n_forgotten = self.server.store.forget_spent(before, limit).await?;
        self.written("forgot spending", n_forgotten).await
    }
}
