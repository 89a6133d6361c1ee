//! The ports of the store, dispatched to the threads that own connections.

use std::sync::Arc;

use async_trait::async_trait;
use rusqlite::Connection;
use tokio::sync::oneshot;
use wopr_core::{ContentHash, RunId, RunKey, Seq, TenantId, Timestamp, WorkflowId};

use super::{
    SqliteStore,
    append::Append,
    fault::Fault,
    job::{Job, Task},
    lanes::Lane,
    lists,
    queue::{Refused, SMALL},
    read,
    reader::as_of_one_moment,
    records, registry, retention,
    session::Session,
    work,
};
use crate::{
    AppendError, Batch, BlobRow, CallDeliveryCursor, CallDeliveryFilter, CallDeliveryRow, Cause, Child,
    EndedRoots, Epoch, EventPage, Fence, IdempotencyKey, IdempotencyRecord, KeyRow, Leased, Load, Log,
    Mailbox, MessageRow, Parking, PhaseCursor, PhaseFilter, PhasePage, Queue, Quota, ReadError, Registry,
    Removal, Retention, Revision, RunFilter, RunPage, Summary, Swept, Then, Times, Work, WorkKey,
    WorkflowChange, WorkflowRow, WriteError, check::assert_sound,
};

impl SqliteStore {
    /// Runs a read on one of the readers, as of one moment.
    pub(super) async fn read<T: Send + 'static>(
        &self,
        lane: Lane,
        read: impl FnOnce(&Connection) -> Result<T, Fault> + Send + 'static,
    ) -> Result<T, ReadError> {
        let Ok(place) = self.lanes.take(&lane).await else {
            return Err(ReadError::Unavailable(self.refused(Refused::Full)));
        };
        let (reply, answer) = oneshot::channel();
        let job = move |conn: &Connection| {
            // The place is held until the read is done, because the reader is busy even if the caller is
            // gone.
            let _place = place;
            // Skip the read if its caller is gone.
            if !reply.is_closed() {
                drop(reply.send(as_of_one_moment(conn, read)));
            }
        };
        self.reads
            .push(Box::new(job), 0)
            .map_err(|refused| ReadError::Unavailable(self.refused(refused)))?;
        match answer.await {
            Ok(answer) => answer.map_err(ReadError::from),
            Err(_) => Err(ReadError::Unavailable("the read was dropped".into())),
        }
    }

    /// Runs a write in the writer's next group.
    pub(super) async fn write<T: Send + 'static>(
        &self,
        bytes: usize,
        work: impl FnMut(&Connection) -> Result<T, Fault> + Send + 'static,
    ) -> Result<T, WriteError> {
        let (reply, answer) = oneshot::channel();
        self.enqueue(
            Box::new(Task {
                work,
                bytes,
                value: None,
                reply,
            }),
            bytes,
        )
        .map_err(WriteError::Unavailable)?;
        match answer.await {
            Ok(answer) => answer,
            Err(_) => Err(WriteError::Unavailable("the writer stopped".into())),
        }
    }

    pub(super) fn enqueue(&self, job: Box<dyn Job>, bytes: usize) -> Result<(), Cause> {
        self.writes
            .push(job, bytes)
            .map_err(|refused| self.refused(refused))
    }

    fn refused(&self, refused: Refused) -> Cause {
        match refused {
            Refused::Full => {
                self.counters.refused();
                "too many requests wait for the database".into()
            }
            Refused::Closed => "the store is closed".into(),
        }
    }
}

#[async_trait]
impl Log for SqliteStore {
    async fn append(&self, batch: Batch) -> Result<(), AppendError> {
        assert_sound(&batch);
        let (reply, answer) = oneshot::channel();
        let bytes = batch.weight();
        let batch = Arc::new(batch);
        let job = Append {
            batch: Arc::clone(&batch),
            reply,
            counters: Arc::clone(&self.counters),
            records: Arc::clone(&self.records),
            vitals: Arc::clone(&self.vitals),
            totals: self.totals.clone(),
            refusal: None,
        };
        self.enqueue(Box::new(job), bytes)
            .map_err(AppendError::Unavailable)?;
        match answer.await {
            Ok(answer) => answer,
            Err(_) => Err(AppendError::Unknown("the writer stopped".into())),
        }
    }

    async fn load_within(&self, run: &RunKey, most: usize) -> Result<Option<Load>, ReadError> {
        self.load_in_turn(run, most).await
    }

    async fn summary(&self, run: &RunKey) -> Result<Option<(Summary, Seq)>, ReadError> {
        let run = run.clone();
        self.read(Lane::Look(run.tenant.clone()), move |conn| {
            read::summary(conn, &run)
        })
        .await
    }

    async fn run_of_alias(&self, tenant: &TenantId, alias: &str) -> Result<Option<RunId>, ReadError> {
        let (tenant, alias) = (tenant.clone(), alias.to_owned());
        self.read(Lane::Look(tenant.clone()), move |conn| {
            read::run_of_alias(conn, &tenant, &alias)
        })
        .await
    }

    async fn heads(&self, runs: &[RunKey]) -> Result<Vec<Option<Seq>>, ReadError> {
        let runs = runs.to_vec();
        self.read(Lane::Work, move |conn| read::heads(conn, &runs)).await
    }

    async fn events(&self, run: &RunKey, from: Seq, limit: usize) -> Result<Option<EventPage>, ReadError> {
        let run = run.clone();
        self.read(Lane::Look(run.tenant.clone()), move |conn| {
            read::events(conn, &run, from, limit)
        })
        .await
    }

    async fn list_runs(
        &self,
        tenant: &TenantId,
        filter: &RunFilter,
        after: Option<&RunId>,
        limit: usize,
    ) -> Result<RunPage, ReadError> {
        let (tenant, filter, after) = (tenant.clone(), filter.clone(), after.cloned());
        self.read(Lane::List(tenant.clone()), move |conn| {
            lists::runs(conn, &tenant, &filter, after.as_ref(), limit)
        })
        .await
    }

    async fn list_by_phase(
        &self,
        tenant: &TenantId,
        filter: &PhaseFilter,
        after: Option<&PhaseCursor>,
        limit: usize,
    ) -> Result<PhasePage, ReadError> {
        let lane = Lane::List(tenant.clone());
        let (tenant, filter, after) = (tenant.clone(), filter.clone(), after.cloned());
        let totals = self.totals.clone();
        self.read(lane, move |conn| {
            // Nothing was read yet, so the following reads see a moment after the mark was taken.
            match totals.find(&tenant, &filter) {
                Ok(total) => lists::phases(conn, &tenant, &filter, after.as_ref(), limit, Some(total)),
                Err(mark) => {
                    let page = lists::phases(conn, &tenant, &filter, after.as_ref(), limit, None)?;
                    totals.keep(&tenant, filter, mark, page.total);
                    Ok(page)
                }
            }
        })
        .await
    }

    async fn messages(&self, run: &RunKey, limit: usize) -> Result<Vec<MessageRow>, ReadError> {
        let run = run.clone();
        self.read(Lane::Look(run.tenant.clone()), move |conn| {
            read::messages(conn, &run, limit)
        })
        .await
    }

    async fn blob(&self, run: &RunKey, id: &str) -> Result<Option<BlobRow>, ReadError> {
        let (run, id) = (run.clone(), id.to_owned());
        self.read(Lane::Look(run.tenant.clone()), move |conn| {
            read::blob(conn, &run, &id)
        })
        .await
    }

    async fn idempotency(
        &self,
        key: &IdempotencyKey,
        now: Timestamp,
    ) -> Result<Option<IdempotencyRecord>, ReadError> {
        let (key, records) = (key.clone(), Arc::clone(&self.records));
        self.read(Lane::Look(key.tenant.clone()), move |conn| {
            Ok(records.find(&Session::new(conn), &key, now)?.unexpired())
        })
        .await
    }

    async fn remember(
        &self,
        record: IdempotencyRecord,
        now: Timestamp,
    ) -> Result<Option<IdempotencyRecord>, WriteError> {
        let bytes = SMALL + record.response.len();
        let records = Arc::clone(&self.records);
        self.write(bytes, move |conn| {
            let conn = Session::new(conn);
            let found = records.find(&conn, &record.key, now)?;
            let expired = found.expired();
            let existing = found.unexpired();
            if existing.is_none() {
                records.write(&conn, &record, expired)?;
            }
            Ok(existing)
        })
        .await
    }

    async fn forget_expired(&self, now: Timestamp, limit: usize) -> Result<usize, WriteError> {
        self.write(SMALL, move |conn| records::forget_expired(conn, now, limit))
            .await
    }
}

#[async_trait]
impl Work for SqliteStore {
    async fn ready(&self) -> Result<(), WriteError> {
        let probe = self.probes.probe(|probe| self.enqueue(probe, SMALL));
        self.readiness.ask(probe).await?;
        self.vitals.check()?;
        self.next_due(Queue::Timers).await?;
        Ok(())
    }

    async fn high_water(&self) -> Result<Option<Timestamp>, ReadError> {
        self.read(Lane::Work, work::high_water).await
    }

    async fn keep_time(&self, at: Timestamp) -> Result<(), WriteError> {
        self.write(SMALL, move |conn| work::keep_time(conn, at)).await
    }

    async fn begin_epoch(&self, now: Timestamp) -> Result<Epoch, WriteError> {
        self.begin_epoch_or_owe_it(now).await
    }

    async fn end_epoch(&self, epoch: Epoch) -> Result<(), WriteError> {
        self.write(SMALL, move |conn| work::end_epoch(conn, epoch)).await
    }

    async fn claim(
        &self,
        mailbox: Mailbox,
        epoch: Epoch,
        runs: &[RunKey],
        suspects: usize,
    ) -> Result<Vec<RunKey>, WriteError> {
        let runs = runs.to_vec();
        self.write(SMALL * (1 + runs.len()), move |conn| {
            work::claim(conn, mailbox, epoch, &runs, suspects)
        })
        .await
    }

    async fn grant(&self, root: &RunKey, wanted: u64, most: u64) -> Result<u64, WriteError> {
        let root = root.clone();
        self.write(SMALL, move |conn| work::grant(conn, &root, wanted, most))
            .await
    }

    async fn quarantined(&self, limit: usize) -> Result<Vec<RunKey>, ReadError> {
        self.read(Lane::Work, move |conn| work::quarantined(conn, limit))
            .await
    }

    async fn lease(
        &self,
        queue: Queue,
        epoch: Epoch,
        times: Times,
        quota: &Quota,
    ) -> Result<Vec<Leased>, WriteError> {
        let quota = quota.clone();
        self.write(SMALL, move |conn| work::lease(conn, queue, epoch, times, &quota))
            .await
    }

    async fn set_lease(
        &self,
        run: &RunKey,
        key: &WorkKey,
        fence: Fence,
        then: Then,
    ) -> Result<bool, WriteError> {
        let (run, key) = (run.clone(), key.clone());
        self.write(SMALL, move |conn| {
            work::set_lease(conn, &run, &key, fence, then, None)
        })
        .await
    }

    async fn park_all(&self, rows: &[Parking]) -> Result<Vec<bool>, WriteError> {
        let rows = rows.to_vec();
        self.write(SMALL * rows.len(), move |conn| {
            let parked = rows.iter().map(|row| {
                let Parking { run, key, fence, due } = row;
                work::set_lease(conn, run, key, *fence, Then::Park(*due), None)
            });
            parked.collect()
        })
        .await
    }

    async fn wake(&self, run: &RunKey, key: &WorkKey, at: Timestamp) -> Result<bool, WriteError> {
        let (run, key) = (run.clone(), key.clone());
        self.write(SMALL, move |conn| work::wake(conn, &run, &key, at))
            .await
    }

    async fn call_deliveries(
        &self,
        filter: &CallDeliveryFilter,
        after: Option<&CallDeliveryCursor>,
        limit: usize,
    ) -> Result<Vec<CallDeliveryRow>, ReadError> {
        let (filter, after) = (filter.clone(), after.cloned());
        self.read(Lane::List(filter.tenant.clone()), move |conn| {
            work::call_deliveries(conn, &filter, after.as_ref(), limit)
        })
        .await
    }

    async fn next_due(&self, queue: Queue) -> Result<Option<Timestamp>, ReadError> {
        self.read(Lane::Work, move |conn| work::next_due(conn, queue))
            .await
    }

    async fn runs_with_inbox(
        &self,
        _epoch: Epoch,
        after: Option<&RunKey>,
        limit: usize,
    ) -> Result<Vec<RunKey>, ReadError> {
        let after = after.cloned();
        self.read(Lane::Work, move |conn| {
            work::runs_with_inbox(conn, after.as_ref(), limit)
        })
        .await
    }
}

#[async_trait]
impl Registry for SqliteStore {
    async fn put_workflow(&self, row: WorkflowRow) -> Result<bool, WriteError> {
        let bytes = SMALL + row.body.len();
        self.write(bytes, move |conn| registry::put_workflow(conn, &row))
            .await
    }

    async fn add_workflow(&self, row: WorkflowRow) -> Result<bool, WriteError> {
        let bytes = SMALL + row.body.len();
        self.write(bytes, move |conn| registry::add_workflow(conn, &row))
            .await
    }

    async fn remove_workflow(
        &self,
        tenant: &TenantId,
        id: &WorkflowId,
        check_at: Timestamp,
    ) -> Result<bool, WriteError> {
        let (tenant, id) = (tenant.clone(), id.clone());
        self.write(SMALL, move |conn| {
            registry::remove_workflow(conn, &tenant, &id, check_at)
        })
        .await
    }

    async fn workflow(
        &self,
        tenant: &TenantId,
        id: &WorkflowId,
        version: &ContentHash,
    ) -> Result<Option<WorkflowRow>, ReadError> {
        let (tenant, id, version) = (tenant.clone(), id.clone(), version.clone());
        self.read(Lane::Look(tenant.clone()), move |conn| {
            registry::workflow(conn, &tenant, &id, &version)
        })
        .await
    }

    async fn workflows_since(
        &self,
        after: Revision,
        max_bytes: usize,
    ) -> Result<Vec<(Revision, WorkflowChange)>, ReadError> {
        self.read(Lane::Work, move |conn| {
            registry::workflows_since(conn, after, max_bytes)
        })
        .await
    }

    async fn add_key(&self, row: KeyRow, limit: usize) -> Result<bool, WriteError> {
        self.write(SMALL, move |conn| registry::add_key(conn, &row, limit))
            .await
    }

    async fn revoke_key(&self, tenant: &TenantId, id: &str, at: Timestamp) -> Result<bool, WriteError> {
        let (tenant, id) = (tenant.clone(), id.to_owned());
        self.write(SMALL, move |conn| registry::revoke_key(conn, &tenant, &id, at))
            .await
    }

    async fn keys(&self) -> Result<Vec<KeyRow>, ReadError> {
        self.read(Lane::Work, registry::keys).await
    }

    async fn keys_of(&self, tenant: &TenantId) -> Result<Vec<KeyRow>, ReadError> {
        let tenant = tenant.clone();
        self.read(Lane::List(tenant.clone()), move |conn| {
            registry::keys_of(conn, &tenant)
        })
        .await
    }

    async fn forget_keys(&self, tenant: &TenantId, revoked_before: Timestamp) -> Result<(), WriteError> {
        let tenant = tenant.clone();
        self.write(SMALL, move |conn| {
            registry::forget_keys(conn, &tenant, revoked_before)
        })
        .await
    }

    async fn keys_since(&self, after: Revision) -> Result<Vec<(Revision, KeyRow)>, ReadError> {
        self.read(Lane::Work, move |conn| registry::keys_since(conn, after))
            .await
    }
}

#[async_trait]
impl Retention for SqliteStore {
    async fn next_tenant(&self, after: Option<&TenantId>) -> Result<Option<TenantId>, ReadError> {
        let after = after.cloned();
        self.read(Lane::Work, move |conn| {
            retention::next_tenant(conn, after.as_ref())
        })
        .await
    }

    async fn ended_roots(
        &self,
        tenant: &TenantId,
        before: Timestamp,
        after: Option<&PhaseCursor>,
        limit: usize,
    ) -> Result<EndedRoots, ReadError> {
        let (tenant, after) = (tenant.clone(), after.cloned());
        self.read(Lane::Work, move |conn| {
            retention::ended_roots(conn, &tenant, before, after.as_ref(), limit)
        })
        .await
    }

    async fn children(
        &self,
        tenant: &TenantId,
        parents: &[RunId],
        after: Option<&Child>,
        limit: usize,
    ) -> Result<Vec<Child>, ReadError> {
        let (tenant, parents, after) = (tenant.clone(), parents.to_vec(), after.cloned());
        self.read(Lane::Work, move |conn| {
            retention::children(conn, &tenant, &parents, after.as_ref(), limit)
        })
        .await
    }

    async fn remove(&self, tenant: &TenantId, removals: &[Removal]) -> Result<(), WriteError> {
        let of = tenant;
        let (tenant, removals) = (tenant.clone(), removals.to_vec());
        let bytes = SMALL * (1 + removals.len());
        let change = self.totals.change(&tenant);
        let removed = self.write(bytes, move |conn| {
            // Move `change` into the job, which is dropped after its commit.
            let _ = &change;
            retention::remove(conn, &tenant, &removals)
        });
        let removed = removed.await;
        self.totals.changed(of);
        removed
    }

    async fn begun_removals(&self, limit: usize) -> Result<Vec<RunKey>, ReadError> {
        self.read(Lane::Work, move |conn| retention::begun_removals(conn, limit))
            .await
    }

    async fn sweep(&self, limit: usize) -> Result<Swept, WriteError> {
        self.write(SMALL, move |conn| retention::sweep(conn, limit)).await
    }

    async fn forget_workflows(
        &self,
        now: Timestamp,
        next_check: Timestamp,
        limit: usize,
    ) -> Result<usize, WriteError> {
        self.write(SMALL, move |conn| {
            registry::forget_workflows(conn, now, next_check, limit)
        })
        .await
    }
}
