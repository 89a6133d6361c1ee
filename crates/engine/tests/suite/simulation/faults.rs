//! A store and an executor that fail as a seed says.

use std::sync::{
    Arc,
    atomic::{AtomicBool, AtomicU64, Ordering},
};
use std::time::Duration;

use async_trait::async_trait;
use parking_lot::Mutex;
use rand::{Rng, SeedableRng, rngs::StdRng};
use serde_json::json;
use wopr_core::{ContentHash, RunId, RunKey, Seq, TenantId, Timestamp, WorkflowId};
use wopr_engine::{Attempt, Clock, Executor, Outcome};
use wopr_store::{
    AppendError, Batch, BlobRow, Child, EffectKey, EndedRoots, Epoch, EventPage, Fence, IdempotencyKey,
    IdempotencyRecord, KeyRow, LeasedEffect, Loaded, Log, MemoryStore, MessageRow, ReadError, Registry,
    Removal, Retention, Revision, RunFilter, RunPage, Summary, Swept, TaskCursor, TaskFilter, TaskPage,
    TaskRow, TimerKey, Work, WorkflowRow, WriteError,
};

/// What every part of a simulated world shares.
#[derive(Debug)]
pub(crate) struct Fate {
    dice: Mutex<StdRng>,
    /// Whether things fail; off for the end of a world, in which everything must come to rest.
    pub(crate) is_cruel: AtomicBool,
    pub(crate) attempts: AtomicU64,
}

impl Fate {
    pub(crate) fn new(seed: u64) -> Arc<Self> {
        Arc::new(Self {
            dice: Mutex::new(StdRng::seed_from_u64(seed)),
            is_cruel: AtomicBool::new(true),
            attempts: AtomicU64::new(0),
        })
    }

    pub(crate) fn below(&self, n: u64) -> u64 {
        self.dice.lock().random_range(0..n)
    }

    /// True in `percent` of a hundred calls while things fail.
    pub(crate) fn strikes(&self, percent: u64) -> bool {
        self.is_cruel.load(Ordering::Relaxed) && self.below(100) < percent
    }
}

/// One process's connection to the shared store. Once the process is dead, nothing comes back.
#[derive(Debug)]
pub(crate) struct Connection {
    pub(crate) store: Arc<MemoryStore>,
    pub(crate) fate: Arc<Fate>,
    pub(crate) is_dead: Arc<AtomicBool>,
}

impl Connection {
    async fn live(&self) {
        if self.is_dead.load(Ordering::Relaxed) {
            std::future::pending::<()>().await;
        }
    }

    /// A step of the way to the store or back, at which the process may die.
    async fn step(&self) {
        self.live().await;
        let pause = self.fate.below(3);
        tokio::time::sleep(Duration::from_millis(pause)).await; // sleep: virtual time
        self.live().await;
    }

    async fn read(&self) -> Result<(), ReadError> {
        self.step().await;
        if self.fate.strikes(2) {
            Err(ReadError::Unavailable("simulated".to_owned()))
        } else {
            Ok(())
        }
    }

    async fn write(&self) -> Result<(), WriteError> {
        self.step().await;
        if self.fate.strikes(2) {
            Err(WriteError::Unavailable("simulated".to_owned()))
        } else {
            Ok(())
        }
    }
}

#[async_trait]
impl Log for Connection {
    async fn append(&self, batch: Batch) -> Result<(), AppendError> {
        self.step().await;
        if self.fate.strikes(3) {
            return Err(AppendError::Unavailable("simulated".to_owned()));
        }
        if self.fate.strikes(3) {
            return Err(AppendError::Unknown("simulated, nothing was written".to_owned()));
        }
        let done = self.store.append(batch).await;
        self.step().await;
        if done.is_ok() && self.fate.strikes(3) {
            return Err(AppendError::Unknown("simulated, all was written".to_owned()));
        }
        done
    }

    async fn load(&self, run: &RunKey) -> Result<Option<Loaded>, ReadError> {
        self.read().await?;
        self.store.load(run).await
    }

    async fn summary(&self, run: &RunKey) -> Result<Option<(Summary, Seq)>, ReadError> {
        self.read().await?;
        self.store.summary(run).await
    }

    async fn events(&self, run: &RunKey, from: Seq, limit: usize) -> Result<Option<EventPage>, ReadError> {
        self.read().await?;
        self.store.events(run, from, limit).await
    }

    async fn list_runs(
        &self,
        tenant: &TenantId,
        filter: &RunFilter,
        after: Option<&RunId>,
        limit: usize,
    ) -> Result<RunPage, ReadError> {
        self.store.list_runs(tenant, filter, after, limit).await
    }

    async fn task(&self, run: &RunKey) -> Result<Option<(TaskRow, Seq)>, ReadError> {
        self.store.task(run).await
    }

    async fn list_tasks(
        &self,
        tenant: &TenantId,
        filter: &TaskFilter,
        after: Option<&TaskCursor>,
        limit: usize,
    ) -> Result<TaskPage, ReadError> {
        self.store.list_tasks(tenant, filter, after, limit).await
    }

    async fn messages(&self, run: &RunKey, limit: usize) -> Result<Vec<MessageRow>, ReadError> {
        self.store.messages(run, limit).await
    }

    async fn blob(&self, run: &RunKey, id: &str) -> Result<Option<BlobRow>, ReadError> {
        self.store.blob(run, id).await
    }

    async fn idempotency(
        &self,
        key: &IdempotencyKey,
        now: Timestamp,
    ) -> Result<Option<IdempotencyRecord>, ReadError> {
        self.read().await?;
        self.store.idempotency(key, now).await
    }

    async fn remember(
        &self,
        record: IdempotencyRecord,
        now: Timestamp,
    ) -> Result<Option<IdempotencyRecord>, WriteError> {
        self.write().await?;
        self.store.remember(record, now).await
    }

    async fn forget_expired(&self, now: Timestamp, limit: usize) -> Result<usize, WriteError> {
        self.live().await;
        self.store.forget_expired(now, limit).await
    }
}

#[async_trait]
impl Work for Connection {
    async fn begin_epoch(&self, now: Timestamp) -> Result<Epoch, WriteError> {
        self.live().await;
        self.store.begin_epoch(now).await
    }

    async fn due_timers(&self, now: Timestamp, limit: usize) -> Result<Vec<(RunKey, TimerKey)>, ReadError> {
        self.read().await?;
        self.store.due_timers(now, limit).await
    }

    async fn next_due(&self) -> Result<Option<Timestamp>, ReadError> {
        self.read().await?;
        self.store.next_due().await
    }

    async fn lease_effects(
        &self,
        epoch: Epoch,
        now: Timestamp,
        until: Timestamp,
        limit: usize,
    ) -> Result<Vec<LeasedEffect>, WriteError> {
        self.write().await?;
        self.store.lease_effects(epoch, now, until, limit).await
    }

    async fn renew(
        &self,
        run: &RunKey,
        key: &EffectKey,
        fence: Fence,
        until: Timestamp,
    ) -> Result<bool, WriteError> {
        self.write().await?;
        self.store.renew(run, key, fence, until).await
    }

    async fn release(&self, run: &RunKey, key: &EffectKey, fence: Fence) -> Result<(), WriteError> {
        self.write().await?;
        self.store.release(run, key, fence).await
    }

    async fn runs_with_inbox(&self, after: Option<&RunKey>, limit: usize) -> Result<Vec<RunKey>, ReadError> {
        self.read().await?;
        self.store.runs_with_inbox(after, limit).await
    }
}

#[async_trait]
impl Registry for Connection {
    async fn put_workflow(&self, row: WorkflowRow) -> Result<bool, WriteError> {
        self.live().await;
        self.store.put_workflow(row).await
    }

    async fn workflow(
        &self,
        tenant: &TenantId,
        id: &WorkflowId,
        version: &ContentHash,
    ) -> Result<Option<WorkflowRow>, ReadError> {
        self.live().await;
        self.store.workflow(tenant, id, version).await
    }

    async fn workflows_since(&self, after: Revision) -> Result<Vec<(Revision, WorkflowRow)>, ReadError> {
        self.live().await;
        self.store.workflows_since(after).await
    }

    async fn put_key(&self, row: KeyRow) -> Result<(), WriteError> {
        self.store.put_key(row).await
    }

    async fn revoke_key(&self, id: &str, at: Timestamp) -> Result<bool, WriteError> {
        self.store.revoke_key(id, at).await
    }

    async fn keys(&self) -> Result<Vec<KeyRow>, ReadError> {
        self.store.keys().await
    }

    async fn keys_since(&self, after: Revision) -> Result<Vec<(Revision, KeyRow)>, ReadError> {
        self.store.keys_since(after).await
    }
}

#[async_trait]
impl Retention for Connection {
    async fn next_tenant(&self, after: Option<&TenantId>) -> Result<Option<TenantId>, ReadError> {
        self.read().await?;
        self.store.next_tenant(after).await
    }

    async fn ended_roots(
        &self,
        tenant: &TenantId,
        before: Timestamp,
        after: Option<&TaskCursor>,
        limit: usize,
    ) -> Result<EndedRoots, ReadError> {
        self.read().await?;
        self.store.ended_roots(tenant, before, after, limit).await
    }

    async fn children(
        &self,
        tenant: &TenantId,
        parents: &[RunId],
        after: Option<&Child>,
        limit: usize,
    ) -> Result<Vec<Child>, ReadError> {
        self.read().await?;
        self.store.children(tenant, parents, after, limit).await
    }

    async fn remove(&self, tenant: &TenantId, removals: &[Removal]) -> Result<(), WriteError> {
        self.write().await?;
        self.store.remove(tenant, removals).await?;
        self.live().await;
        Ok(())
    }

    async fn begun_removals(&self, limit: usize) -> Result<Vec<RunKey>, ReadError> {
        self.read().await?;
        self.store.begun_removals(limit).await
    }

    async fn sweep(&self, limit: usize) -> Result<Swept, WriteError> {
        self.write().await?;
        let swept = self.store.sweep(limit).await?;
        self.live().await;
        Ok(swept)
    }
}

/// Performs attempts as fate has it, and checks that each was asked for by a stored event.
#[derive(Debug)]
pub(crate) struct Fickle {
    pub(crate) store: Arc<MemoryStore>,
    pub(crate) fate: Arc<Fate>,
}

#[async_trait]
impl Executor for Fickle {
    async fn run(&self, attempt: Attempt) -> Outcome {
        let (_, head) = self
            .store
            .summary(&attempt.run)
            .await
            .expect("reads")
            .expect("no effect before its event");
        assert!(head > Seq(1), "no effect before its event");
        self.fate.attempts.fetch_add(1, Ordering::Relaxed);
        let pause = self.fate.below(1_500);
        tokio::time::sleep(Duration::from_millis(pause)).await; // sleep: virtual time
        if self.fate.strikes(5) {
            // A peer that never answers, within a time limit longer than the lease.
            tokio::time::sleep(Duration::from_secs(20)).await; // sleep: virtual time
        }
        if self.fate.strikes(20) {
            let retryable = self.fate.below(4) > 0;
            return Outcome::Failed {
                code: "external_call_failed".into(),
                message: "simulated".into(),
                retryable,
                retry_after: None,
            };
        }
        Outcome::Done(json!({ "key": attempt.idempotency_key }))
    }
}

/// The virtual time of the runtime, and what was skipped of it.
#[derive(Debug)]
pub(crate) struct VirtualClock {
    began: tokio::time::Instant,
    skipped: AtomicU64,
}

impl VirtualClock {
    pub(crate) fn new() -> Self {
        Self {
            began: tokio::time::Instant::now(),
            skipped: AtomicU64::new(0),
        }
    }

    /// Lets time pass in which nothing happens.
    pub(crate) fn skip(&self, time: Duration) {
        let millis = u64::try_from(time.as_millis()).expect("a simulation ends");
        self.skipped.fetch_add(millis, Ordering::Relaxed);
    }
}

impl Clock for VirtualClock {
    fn now(&self) -> Timestamp {
        let since = i64::try_from(self.began.elapsed().as_millis()).expect("a simulation ends");
        Timestamp::from_millis(1_700_000_000_000 + since).plus_millis(self.skipped.load(Ordering::Relaxed))
    }
}
