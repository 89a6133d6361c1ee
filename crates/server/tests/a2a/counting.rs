//! A memory store that counts reads of runs. Reads by background loops are not counted.

use std::collections::BTreeMap;

use async_trait::async_trait;
use parking_lot::Mutex;
use wopr_core::{ContentHash, RunId, RunKey, Seq, TenantId, Timestamp, WorkflowId};
use wopr_store::*;

#[derive(Debug, Default)]
pub(crate) struct Counting {
    inner: MemoryStore,
    asked: Mutex<BTreeMap<&'static str, usize>>,
    lost: Mutex<Option<&'static str>>,
}

/// The store does not answer.
pub(crate) struct Lost;

impl From<Lost> for ReadError {
    fn from(_: Lost) -> Self {
        Self::Unavailable("lost".into())
    }
}

impl From<Lost> for WriteError {
    fn from(_: Lost) -> Self {
        Self::Unavailable("lost".into())
    }
}

impl Counting {
    /// Returns and resets the number of calls by kind.
    pub(crate) fn take(&self) -> BTreeMap<&'static str, usize> {
        std::mem::take(&mut *self.asked.lock())
    }

    /// Makes all further calls of a kind fail.
    pub(crate) fn lose(&self, what: &'static str) {
        *self.lost.lock() = Some(what);
    }

    fn count(&self, what: &'static str) -> Result<(), Lost> {
        *self.asked.lock().entry(what).or_default() += 1;
        if *self.lost.lock() == Some(what) {
            return Err(Lost);
        }
        Ok(())
    }
}

/// Forwards calls to the inner store; marked ones are counted.
macro_rules! hand_on {
    ($port:ident: $($(#[$count:ident])? $name:ident($($arg:ident: $of:ty),*) -> $answer:ty;)*) => {
        #[async_trait]
        impl $port for Counting {
            $(async fn $name(&self, $($arg: $of),*) -> $answer {
                $(self.$count(stringify!($name))?;)?
                self.inner.$name($($arg),*).await
            })*
        }
    };
}

hand_on! { Log:
    append(batch: Batch) -> Result<(), AppendError>;
    #[count] load_within(run: &RunKey, most: usize) -> Result<Option<Load>, ReadError>;
    #[count] summary(run: &RunKey) -> Result<Option<(Summary, Seq)>, ReadError>;
    #[count] run_of_alias(tenant: &TenantId, alias: &str) -> Result<Option<RunId>, ReadError>;
    heads(runs: &[RunKey]) -> Result<Vec<Option<Seq>>, ReadError>;
    #[count] events(run: &RunKey, from: Seq, limit: usize) -> Result<Option<EventPage>, ReadError>;
    #[count] list_runs(tenant: &TenantId, filter: &RunFilter, after: Option<&RunId>, limit: usize) -> Result<RunPage, ReadError>;
    #[count] list_by_phase(tenant: &TenantId, filter: &PhaseFilter, after: Option<&PhaseCursor>, limit: usize) -> Result<PhasePage, ReadError>;
    #[count] messages(run: &RunKey, limit: usize) -> Result<Vec<MessageRow>, ReadError>;
    #[count] blob(run: &RunKey, id: &str) -> Result<Option<BlobRow>, ReadError>;
    #[count] idempotency(key: &IdempotencyKey, now: Timestamp) -> Result<Option<IdempotencyRecord>, ReadError>;
    remember(record: IdempotencyRecord, now: Timestamp) -> Result<Option<IdempotencyRecord>, WriteError>;
    forget_expired(now: Timestamp, limit: usize) -> Result<usize, WriteError>;
}

hand_on! { Work:
    high_water() -> Result<Option<Timestamp>, ReadError>;
    keep_time(at: Timestamp) -> Result<(), WriteError>;
    begin_epoch(now: Timestamp) -> Result<Epoch, WriteError>;
    end_epoch(epoch: Epoch) -> Result<(), WriteError>;
    claim(mailbox: Mailbox, epoch: Epoch, runs: &[RunKey], suspects: usize) -> Result<Vec<RunKey>, WriteError>;
    grant(root: &RunKey, wanted: u64, most: u64) -> Result<u64, WriteError>;
    quarantined(limit: usize) -> Result<Vec<RunKey>, ReadError>;
    lease(queue: Queue, epoch: Epoch, times: Times, quota: &Quota) -> Result<Vec<Leased>, WriteError>;
    set_lease(run: &RunKey, key: &WorkKey, fence: Fence, then: Then) -> Result<bool, WriteError>;
    park_all(rows: &[Parking]) -> Result<Vec<bool>, WriteError>;
    wake(run: &RunKey, key: &WorkKey, at: Timestamp) -> Result<bool, WriteError>;
    call_deliveries(filter: &CallDeliveryFilter, after: Option<&CallDeliveryCursor>, limit: usize) -> Result<Vec<CallDeliveryRow>, ReadError>;
    next_due(queue: Queue) -> Result<Option<Timestamp>, ReadError>;
    runs_with_inbox(epoch: Epoch, after: Option<&RunKey>, limit: usize) -> Result<Vec<RunKey>, ReadError>;
}

hand_on! { Registry:
    put_workflow(row: WorkflowRow) -> Result<bool, WriteError>;
    add_workflow(row: WorkflowRow) -> Result<bool, WriteError>;
    remove_workflow(tenant: &TenantId, id: &WorkflowId, check_at: Timestamp) -> Result<bool, WriteError>;
    workflow(tenant: &TenantId, id: &WorkflowId, version: &ContentHash) -> Result<Option<WorkflowRow>, ReadError>;
    workflows_since(after: Revision, max_bytes: usize) -> Result<Vec<(Revision, WorkflowChange)>, ReadError>;
    add_key(row: KeyRow, limit: usize) -> Result<bool, WriteError>;
    revoke_key(tenant: &TenantId, id: &str, at: Timestamp) -> Result<bool, WriteError>;
    keys() -> Result<Vec<KeyRow>, ReadError>;
    keys_of(tenant: &TenantId) -> Result<Vec<KeyRow>, ReadError>;
    forget_keys(tenant: &TenantId, revoked_before: Timestamp) -> Result<(), WriteError>;
    keys_since(after: Revision) -> Result<Vec<(Revision, KeyRow)>, ReadError>;
}

hand_on! { Pushes:
    #[count] put_push(run: &RunKey, row: PushRow, most: usize, now: Timestamp) -> Result<Put, WriteError>;
    #[count] pushes(run: &RunKey) -> Result<Vec<PushRow>, ReadError>;
    #[count] drop_push(run: &RunKey, id: &str) -> Result<bool, WriteError>;
    outbox(epoch: Epoch, after: Option<&RunKey>, limit: usize) -> Result<Vec<OutboxRow>, ReadError>;
    expand(row: &OutboxRow, updates: &[Update], now: Timestamp) -> Result<bool, WriteError>;
    waiting(run: &RunKey, push: &str, limit: usize) -> Result<Pending, ReadError>;
    settle_push(run: &RunKey, push: &str, fence: Fence, attempted: (Seq, Attempted), then: Then) -> Result<bool, WriteError>;
    deliveries(filter: &DeliveryFilter, after: Option<&DeliveryCursor>, limit: usize) -> Result<Vec<DeliveryRow>, ReadError>;
    retry_push(run: &RunKey, push: &str, seq: Option<Seq>, now: Timestamp) -> Result<usize, WriteError>;
}

hand_on! { Retention:
    next_tenant(after: Option<&TenantId>) -> Result<Option<TenantId>, ReadError>;
    ended_roots(tenant: &TenantId, before: Timestamp, after: Option<&PhaseCursor>, limit: usize) -> Result<EndedRoots, ReadError>;
    children(tenant: &TenantId, parents: &[RunId], after: Option<&Child>, limit: usize) -> Result<Vec<Child>, ReadError>;
    remove(tenant: &TenantId, removals: &[Removal]) -> Result<(), WriteError>;
    begun_removals(limit: usize) -> Result<Vec<RunKey>, ReadError>;
    sweep(limit: usize) -> Result<Swept, WriteError>;
    forget_workflows(now: Timestamp, next_check: Timestamp, limit: usize) -> Result<usize, WriteError>;
}

hand_on! { AgentMemory:
    memory(tenant: &TenantId, query: &MemoryQuery) -> Result<Vec<MemoryEntry>, ReadError>;
    memory_use(tenant: &TenantId, scope: &str) -> Result<MemoryUse, ReadError>;
    next_remembering(after: Option<&TenantId>) -> Result<Option<TenantId>, ReadError>;
    forget_memory(tenant: &TenantId, now: Timestamp, before: Timestamp, limit: usize) -> Result<usize, WriteError>;
    forget_ended_scopes(tenant: &TenantId, wanted: MemoryRoom, limit: usize) -> Result<usize, WriteError>;
    has_forgotten(run: &RunKey) -> Result<bool, ReadError>;
}

hand_on! { StoredSecrets:
    put_secret(row: SecretRow, limit: usize) -> Result<bool, WriteError>;
    secret(tenant: &TenantId, name: &str) -> Result<Option<SecretRow>, ReadError>;
    secrets(tenant: &TenantId) -> Result<Vec<SecretRow>, ReadError>;
    remove_secret(tenant: &TenantId, name: &str) -> Result<bool, WriteError>;
    key_check() -> Result<Option<String>, ReadError>;
    put_key_check(check: &str, replaces: bool) -> Result<(), WriteError>;
}

hand_on! { Spending:
    spent(of: Spenders<'_>, now: Timestamp, limit: usize) -> Result<Vec<(TenantId, SpentRow)>, ReadError>;
    forget_spent(before: Timestamp, limit: usize) -> Result<usize, WriteError>;
}

hand_on! { Offers:
    lease_offers(request: &OfferRequest) -> Result<LeasedOffers, WriteError>;
    set_offer(run: &RunKey, key: &WorkKey, fence: Fence, then: OfferThen) -> Result<bool, WriteError>;
    offered_queues(tenant: &TenantId, now: Timestamp, after: Option<&str>, limit: usize) -> Result<Vec<OfferedQueue>, ReadError>;
}
