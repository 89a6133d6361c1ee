//! The ports of the store, each call on a connection of the pool.

use std::time::Duration;

use async_trait::async_trait;
use tokio::sync::broadcast;
use wopr_core::{ContentHash, RunId, RunKey, Seq, TenantId, Timestamp, WorkflowId};

use super::{PostgresStore, append, checks, fault::Fault, lists, read, registry, round::Round, rows, work};
use crate::{
    AppendError, Batch, BlobRow, CallDeliveryCursor, CallDeliveryFilter, CallDeliveryRow, Epoch, EventPage,
    Fence, Hint, IdempotencyKey, IdempotencyRecord, KeyRow, Leased, Load, Log, Mailbox, MessageRow, Parking,
    PhaseCursor, PhaseFilter, PhasePage, Queue, Quota, ReadError, Registry, Revision, RunFilter, RunPage,
    Summary, Then, Times, Work, WorkKey, WorkflowChange, WorkflowRow, WriteError, check::assert_sound,
};

/// Attempts to read a record that is repeatedly created and deleted by others.
const REMEMBER_TRIES: usize = 5;

#[async_trait]
impl Log for PostgresStore {
    async fn append(&self, batch: Batch) -> Result<(), AppendError> {
        assert_sound(&batch);
        self.groups.append(batch).await
    }

    async fn load_within(&self, run: &RunKey, most: usize) -> Result<Option<Load>, ReadError> {
        Ok(read::load(&self.pool, run, most).await?)
    }

    async fn summary(&self, run: &RunKey) -> Result<Option<(Summary, Seq)>, ReadError> {
        Ok(read::summary(&self.pool, run).await?)
    }

    async fn run_of_alias(&self, tenant: &TenantId, alias: &str) -> Result<Option<RunId>, ReadError> {
        Ok(read::run_of_alias(&self.pool, tenant, alias).await?)
    }

    async fn heads(&self, runs: &[RunKey]) -> Result<Vec<Option<Seq>>, ReadError> {
        Ok(read::heads(&self.pool, runs).await?)
    }

    fn is_shared(&self) -> bool {
        true
    }

    async fn events(&self, run: &RunKey, from: Seq, limit: usize) -> Result<Option<EventPage>, ReadError> {
        Ok(read::events(&self.pool, run, from, limit).await?)
    }

    async fn list_runs(
        &self,
        tenant: &TenantId,
        filter: &RunFilter,
        after: Option<&RunId>,
        limit: usize,
    ) -> Result<RunPage, ReadError> {
        Ok(lists::runs(&self.pool, tenant, filter, after, limit).await?)
    }

    async fn list_by_phase(
        &self,
        tenant: &TenantId,
        filter: &PhaseFilter,
        after: Option<&PhaseCursor>,
        limit: usize,
    ) -> Result<PhasePage, ReadError> {
        Ok(lists::phases(&self.pool, tenant, filter, after, limit).await?)
    }

    async fn messages(&self, run: &RunKey, limit: usize) -> Result<Vec<MessageRow>, ReadError> {
        Ok(read::messages(&self.pool, run, limit).await?)
    }

    async fn blob(&self, run: &RunKey, id: &str) -> Result<Option<BlobRow>, ReadError> {
        Ok(read::blob(&self.pool, run, id).await?)
    }

    async fn idempotency(
        &self,
        key: &IdempotencyKey,
        now: Timestamp,
    ) -> Result<Option<IdempotencyRecord>, ReadError> {
        Ok(self.record(key, now).await?)
    }

    async fn remember(
        &self,
        record: IdempotencyRecord,
        now: Timestamp,
    ) -> Result<Option<IdempotencyRecord>, WriteError> {
        for _ in 0..REMEMBER_TRIES {
            let claim = || {
                let mut round = Round::default();
                checks::claim(&mut round, &[&record], now);
                round
            };
            if !self.pool.write(claim).await?.is_empty() {
                return Ok(None);
            }
            if let Some(existing) = self.record(&record.key, now).await? {
                return Ok(Some(existing));
            }
        }
        Err(WriteError::Unavailable("the record comes and goes".into()))
    }

    async fn forget_expired(&self, now: Timestamp, limit: usize) -> Result<usize, WriteError> {
        Ok(work::forget_expired(&self.pool, now, limit).await?)
    }
}

impl PostgresStore {
    /// Announces a change to other processes, if hints are enabled.
    pub(super) fn tell(&self, hint: Hint) {
        if let Some(hints) = &self.hints {
            hints.tell(hint);
        }
    }

    async fn record(&self, key: &IdempotencyKey, now: Timestamp) -> Result<Option<IdempotencyRecord>, Fault> {
        let found = self.pool.learn(|| append::unexpired(key, now)).await?;
        found.first().map(|row| rows::record(row, key)).transpose()
    }
}

#[async_trait]
impl Work for PostgresStore {
    async fn time(&self) -> Result<Option<Timestamp>, ReadError> {
        Ok(Some(work::time(&self.pool).await?))
    }

    async fn high_water(&self) -> Result<Option<Timestamp>, ReadError> {
        Ok(work::high_water(&self.pool).await?)
    }

    async fn keep_time(&self, at: Timestamp) -> Result<(), WriteError> {
        Ok(work::keep_time(&self.pool, at).await?)
    }

    async fn ready(&self) -> Result<(), WriteError> {
        let probe = async { Ok(work::ready(&self.pool).await?) };
        self.readiness.ask(probe).await?;
        self.groups.check()
    }

    async fn begin_epoch(&self, now: Timestamp) -> Result<Epoch, WriteError> {
        Ok(work::begin_epoch(&self.pool, now).await?)
    }

    async fn end_epoch(&self, epoch: Epoch) -> Result<(), WriteError> {
        Ok(work::end_epoch(&self.pool, epoch).await?)
    }

    async fn beat(&self, epoch: Epoch, silence: Option<Duration>) -> Result<bool, WriteError> {
        Ok(work::beat(&self.pool, epoch, silence).await?)
    }

    async fn claim(
        &self,
        mailbox: Mailbox,
        epoch: Epoch,
        runs: &[RunKey],
        suspects: usize,
    ) -> Result<Vec<RunKey>, WriteError> {
        Ok(work::claim(&self.pool, mailbox, epoch, runs, suspects).await?)
    }

    async fn grant(&self, root: &RunKey, wanted: u64, most: u64) -> Result<u64, WriteError> {
        Ok(work::grant(&self.pool, root, wanted, most).await?)
    }

    async fn quarantined(&self, limit: usize) -> Result<Vec<RunKey>, ReadError> {
        Ok(work::quarantined(&self.pool, limit).await?)
    }

    async fn lease(
        &self,
        queue: Queue,
        epoch: Epoch,
        times: Times,
        quota: &Quota,
    ) -> Result<Vec<Leased>, WriteError> {
        Ok(work::lease(&self.pool, queue, epoch, times, quota).await?)
    }

    async fn set_lease(
        &self,
        run: &RunKey,
        key: &WorkKey,
        fence: Fence,
        then: Then,
    ) -> Result<bool, WriteError> {
        let is_held = work::set_lease(&self.pool, run, key, fence, then).await?;
        if let (Queue::Effects, Then::Release(_)) = (key.queue, then) {
            // Another process may have capacity for it.
            self.tell(Hint::Run(run.clone()));
        }
        Ok(is_held)
    }

    async fn park_all(&self, rows: &[Parking]) -> Result<Vec<bool>, WriteError> {
        Ok(work::park_all(&self.pool, rows).await?)
    }

    async fn wake(&self, run: &RunKey, key: &WorkKey, at: Timestamp) -> Result<bool, WriteError> {
        let is_there = work::wake(&self.pool, run, key, at).await?;
        self.tell(Hint::Run(run.clone()));
        Ok(is_there)
    }

    async fn call_deliveries(
        &self,
        filter: &CallDeliveryFilter,
        after: Option<&CallDeliveryCursor>,
        limit: usize,
    ) -> Result<Vec<CallDeliveryRow>, ReadError> {
        Ok(work::call_deliveries(&self.pool, filter, after, limit).await?)
    }

    async fn next_due(&self, queue: Queue) -> Result<Option<Timestamp>, ReadError> {
        Ok(work::next_due(&self.pool, queue).await?)
    }

    async fn runs_with_inbox(
        &self,
        epoch: Epoch,
        after: Option<&RunKey>,
        limit: usize,
    ) -> Result<Vec<RunKey>, ReadError> {
        Ok(work::runs_with_inbox(&self.pool, epoch, after, limit).await?)
    }

    fn hints(&self) -> Option<broadcast::Receiver<Hint>> {
        self.hints.as_ref().map(super::hints::Hints::subscribe)
    }
}

#[async_trait]
impl Registry for PostgresStore {
    async fn put_workflow(&self, row: WorkflowRow) -> Result<bool, WriteError> {
        let is_new = registry::put_workflow(&self.pool, &row).await?;
        self.tell(Hint::Registry);
        Ok(is_new)
    }

    async fn add_workflow(&self, row: WorkflowRow) -> Result<bool, WriteError> {
        let is_added = registry::add_workflow(&self.pool, &row).await?;
        if is_added {
            self.tell(Hint::Registry);
        }
        Ok(is_added)
    }

    async fn remove_workflow(
        &self,
        tenant: &TenantId,
        id: &WorkflowId,
        check_at: Timestamp,
    ) -> Result<bool, WriteError> {
        let is_removed = registry::remove_workflow(&self.pool, tenant, id, check_at).await?;
        self.tell(Hint::Registry);
        Ok(is_removed)
    }

    async fn workflow(
        &self,
        tenant: &TenantId,
        id: &WorkflowId,
        version: &ContentHash,
    ) -> Result<Option<WorkflowRow>, ReadError> {
        Ok(registry::workflow(&self.pool, tenant, id, version).await?)
    }

    async fn workflows_since(
        &self,
        after: Revision,
        max_bytes: usize,
    ) -> Result<Vec<(Revision, WorkflowChange)>, ReadError> {
        Ok(registry::workflows_since(&self.pool, after, max_bytes).await?)
    }

    async fn add_key(&self, row: KeyRow, limit: usize) -> Result<bool, WriteError> {
        let is_added = registry::add_key(&self.pool, &row, limit).await?;
        self.tell(Hint::Registry);
        Ok(is_added)
    }

    async fn revoke_key(&self, tenant: &TenantId, id: &str, at: Timestamp) -> Result<bool, WriteError> {
        let is_revoked = registry::revoke_key(&self.pool, tenant, id, at).await?;
        self.tell(Hint::Registry);
        Ok(is_revoked)
    }

    async fn keys(&self) -> Result<Vec<KeyRow>, ReadError> {
        Ok(registry::keys(&self.pool).await?)
    }

    async fn keys_of(&self, tenant: &TenantId) -> Result<Vec<KeyRow>, ReadError> {
        Ok(registry::keys_of(&self.pool, tenant).await?)
    }

    async fn forget_keys(&self, tenant: &TenantId, revoked_before: Timestamp) -> Result<(), WriteError> {
        Ok(registry::forget_keys(&self.pool, tenant, revoked_before).await?)
    }

    async fn keys_since(&self, after: Revision) -> Result<Vec<(Revision, KeyRow)>, ReadError> {
        Ok(registry::keys_since(&self.pool, after).await?)
    }
}
