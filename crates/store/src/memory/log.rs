//! The log port in memory.

use async_trait::async_trait;
use wopr_core::{RunId, RunKey, Seq, TenantId, Timestamp};

use super::MemoryStore;
use crate::{
    AppendError, Batch, BlobRow, EventPage, INBOX_ROWS, IdempotencyKey, IdempotencyRecord, Load, Loaded, Log,
    MESSAGES_BYTES, MessageRow, PAGE_BYTES, PhaseCursor, PhaseFilter, PhasePage, QUARANTINED, ReadError,
    RunFilter, RunPage, StoredEvent, Summary, WriteError, check::assert_sound,
};

#[async_trait]
impl Log for MemoryStore {
    async fn append(&self, batch: Batch) -> Result<(), AppendError> {
        assert_sound(&batch);
        self.state.lock().append(batch)
    }

    async fn load_within(&self, run: &RunKey, most: usize) -> Result<Option<Load>, ReadError> {
        let state = self.state.lock();
        let Some(found) = state.run(run) else {
            return Ok(None);
        };
        let folded = found.snapshot.as_ref().map_or(Seq(0), |snapshot| snapshot.head);
        let tail = tail(&found.events, folded);
        let told = state.inboxes.get(run).into_iter().flatten();
        let told = told
            .filter(|told| told.hand.deaths < QUARANTINED)
            .take(INBOX_ROWS);
        let inbox: Vec<_> = page(told, |told| &told.row.body).collect();
        let snapshot = found.snapshot.iter().map(|snapshot| snapshot.body.len());
        let weight: usize = snapshot
            .chain(tail.iter().map(|event| event.body.len()))
            .chain(inbox.iter().map(|told| told.row.body.len()))
            .sum();
        if weight > most {
            return Ok(Some(Load::Heavy(weight)));
        }
        Ok(Some(Load::Whole(Box::new(Loaded {
            summary: found.summary.clone(),
            head: found.head(),
            snapshot: found.snapshot.clone(),
            tail: tail.to_vec(),
            inbox: inbox.into_iter().map(|told| told.row.clone()).collect(),
        }))))
    }

    async fn summary(&self, run: &RunKey) -> Result<Option<(Summary, Seq)>, ReadError> {
        let state = self.state.lock();
        Ok(state.run(run).map(|found| (found.summary.clone(), found.head())))
    }

    async fn run_of_alias(&self, tenant: &TenantId, alias: &str) -> Result<Option<RunId>, ReadError> {
        let state = self.state.lock();
        let found = state.holder(tenant, alias).filter(|key| state.run(key).is_some());
        Ok(found.map(|key| key.run.clone()))
    }

    async fn heads(&self, runs: &[RunKey]) -> Result<Vec<Option<Seq>>, ReadError> {
        let state = self.state.lock();
        let head = |run| Some(state.run(run)?.head());
        Ok(runs.iter().map(head).collect())
    }

    async fn events(&self, run: &RunKey, from: Seq, limit: usize) -> Result<Option<EventPage>, ReadError> {
        let state = self.state.lock();
        Ok(state.run(run).map(|found| EventPage {
            events: page(tail(&found.events, from).iter().take(limit), |event| &event.body)
                .cloned()
                .collect(),
            head: found.head(),
            status: found.summary.status,
        }))
    }

    async fn list_runs(
        &self,
        tenant: &TenantId,
        filter: &RunFilter,
        after: Option<&RunId>,
        limit: usize,
    ) -> Result<RunPage, ReadError> {
        let state = self.state.lock();
        let mut runs: Vec<_> = state
            .runs
            .iter()
            .rev()
            .filter(|(key, _)| key.tenant == *tenant && !state.is_gone(key))
            .filter(|(key, _)| after.is_none_or(|after| key.run < *after))
            .filter(|(_, run)| filter.statuses.is_empty() || filter.statuses.contains(&run.summary.status))
            .filter(|(_, run)| {
                filter
                    .workflow
                    .as_ref()
                    .is_none_or(|workflow| run.summary.workflow == *workflow)
            })
            .filter(|(_, run)| {
                filter.parent.as_ref().is_none_or(|wanted| {
                    run.summary
                        .parent
                        .as_ref()
                        .is_some_and(|(parent, _)| parent == wanted)
                })
            })
            .filter(|(_, run)| {
                let mut wanted = filter.principal.iter();
                wanted.all(|wanted| run.summary.principal == *wanted)
            })
            .map(|(key, run)| (key.run.clone(), run.summary.clone(), run.head()))
            .take(limit.saturating_add(1))
            .collect();
        let has_more = runs.len() > limit;
        runs.truncate(limit);
        Ok(RunPage { runs, has_more })
    }

    async fn list_by_phase(
        &self,
        tenant: &TenantId,
        filter: &PhaseFilter,
        after: Option<&PhaseCursor>,
        limit: usize,
    ) -> Result<PhasePage, ReadError> {
        let state = self.state.lock();
        let mut runs: Vec<_> = state
            .runs
            .iter()
            .filter(|(key, run)| key.tenant == *tenant && filter.accepts(&run.summary))
            .filter(|(key, _)| !state.is_gone(key))
            .map(|(key, run)| (key.run.clone(), run.summary.clone()))
            .collect();
        let total = runs.len() as u64;
        runs.sort_by(|(run, at), (other, than)| (than.phase_since, other).cmp(&(at.phase_since, run)));
        if let Some(after) = after {
            runs.retain(|(run, summary)| (summary.phase_since, run) < (after.since, &after.run));
        }
        let has_more = runs.len() > limit;
        runs.truncate(limit);
        Ok(PhasePage {
            runs,
            total,
            has_more,
        })
    }

    async fn messages(&self, run: &RunKey, limit: usize) -> Result<Vec<MessageRow>, ReadError> {
        let state = self.state.lock();
        let mut messages = state
            .run(run)
            .map(|found| found.messages.clone())
            .unwrap_or_default();
        // The sort is stable, so messages at the same place keep the order in which they came.
        messages.sort_by_key(|message| message.seq);
        let mut skipped = messages.len().saturating_sub(limit);
        let mut n_bytes = 0;
        for (place, message) in messages.iter().enumerate().skip(skipped).rev() {
            n_bytes += message.body.len();
            if n_bytes > MESSAGES_BYTES && place + 1 < messages.len() {
                skipped = place + 1;
                break;
            }
        }
        Ok(messages.split_off(skipped))
    }

    async fn blob(&self, run: &RunKey, id: &str) -> Result<Option<BlobRow>, ReadError> {
        let state = self.state.lock();
        Ok(state.run(run).and_then(|found| found.blobs.get(id).cloned()))
    }

    async fn idempotency(
        &self,
        key: &IdempotencyKey,
        now: Timestamp,
    ) -> Result<Option<IdempotencyRecord>, ReadError> {
        let state = self.state.lock();
        Ok(state
            .records
            .get(key)
            .filter(|record| record.expires_at > now)
            .cloned())
    }

    async fn remember(
        &self,
        record: IdempotencyRecord,
        now: Timestamp,
    ) -> Result<Option<IdempotencyRecord>, WriteError> {
        let mut state = self.state.lock();
        if let Some(existing) = state
            .records
            .get(&record.key)
            .filter(|existing| existing.expires_at > now)
        {
            return Ok(Some(existing.clone()));
        }
        state.records.insert(record.key.clone(), record);
        Ok(None)
    }

    async fn forget_expired(&self, now: Timestamp, limit: usize) -> Result<usize, WriteError> {
        let mut state = self.state.lock();
        let mut left = limit;
        state.records.retain(|_, record| {
            let forget = left > 0 && record.expires_at <= now;
            left -= usize::from(forget);
            !forget
        });
        Ok(limit - left)
    }
}

/// Takes rows up to and including the one that brings their bodies to [`PAGE_BYTES`].
fn page<T>(rows: impl Iterator<Item = T>, body: impl Fn(&T) -> &Vec<u8>) -> impl Iterator<Item = T> {
    let mut n_bytes = 0;
    rows.take_while(move |row| {
        let is_full = n_bytes >= PAGE_BYTES;
        n_bytes += body(row).len();
        !is_full
    })
}

/// The events starting at a position.
fn tail(events: &[StoredEvent], from: Seq) -> &[StoredEvent] {
    usize::try_from(from.0)
        .ok()
        .and_then(|from| events.get(from..))
        .unwrap_or_default()
}
