//! The work port in memory.

use std::collections::BTreeSet;

use async_trait::async_trait;
use wopr_core::{RunKey, Timestamp};

use super::{Hand, Item, MemoryStore, State};
use crate::{
    CallDeliveryCursor, CallDeliveryFilter, CallDeliveryRow, Epoch, Fence, LAST_CHANCE, Leased, Mailbox,
    Moved, Parking, QUARANTINED, Queue, Quota, ReadError, Then, Times, Work, WorkKey, WorkRow, WriteError,
    work::Candidate,
};

impl State {
    /// Creates a row of work, or replaces the one with its key.
    pub(super) fn set_work(&mut self, run: &RunKey, row: WorkRow, now: Timestamp) {
        let (due, epoch) = row.state.columns();
        let offer = row.state.offer().cloned();
        let first = row.first_fence(now);
        let place = (run.clone(), row.key);
        let replaced = self.work.get(&place);
        let item = Item {
            due,
            body: row.body,
            epoch,
            fence: replaced.map_or(first, |replaced| Fence(replaced.fence.0 + 1)),
            deaths: 0,
            woken: None,
            offer,
            leases: 0,
        };
        self.work.insert(place, item);
    }

    /// Gives a row of work another key.
    pub(super) fn move_work(&mut self, run: &RunKey, moved: Moved) {
        let Some(mut item) = self.work.remove(&(run.clone(), moved.key)) else {
            return;
        };
        if moved.fence.is_some() {
            item.epoch = None;
            item.fence.0 += 1;
            item.deaths = 0;
        }
        if item.epoch.is_none() {
            item.due = moved.due;
            item.woken = None;
        }
        item.offer = None;
        item.leases = 0;
        self.work.insert((run.clone(), moved.to), item);
    }

    /// Renews or ends a lease. Returns `false` if it is lost.
    pub(super) fn set_lease(&mut self, place: &(RunKey, WorkKey), fence: Fence, then: Then) -> bool {
        let held = self.work.get_mut(place);
        let Some(item) = held.filter(|item| item.fence == fence && item.epoch.is_some()) else {
            return false;
        };
        match then {
            Then::Renew(until) => item.due = Some(until),
            Then::Release(due) => {
                item.epoch = None;
                item.due = Some(due);
                item.woken = None;
            }
            Then::Park(due) => {
                item.epoch = None;
                item.due = [due, item.woken.take()].into_iter().flatten().min();
                item.fence.0 += 1;
                if !place.1.queue.is_quarantined(item.deaths) {
                    item.deaths = 0;
                }
            }
        }
        true
    }

    /// Makes a row due at `at`, or at the end of its lease if it is leased. Returns `false` if it is missing.
    pub(super) fn wake(&mut self, place: &(RunKey, WorkKey), at: Timestamp) -> bool {
        let Some(item) = self.work.get_mut(place) else {
            return false;
        };
        let due = match item.epoch {
            Some(_) => &mut item.woken,
            None => &mut item.due,
        };
        *due = Some(due.map_or(at, |due| due.min(at)));
        true
    }
}

impl Item {
    fn is_available(&self, times: &Times) -> bool {
        let by = match self.epoch {
            Some(_) => times.now,
            None => times.due,
        };
        self.due.is_some_and(|due| due <= by)
    }
}

#[async_trait]
impl Work for MemoryStore {
    async fn high_water(&self) -> Result<Option<Timestamp>, ReadError> {
        Ok(self.state.lock().high_water)
    }

    async fn keep_time(&self, at: Timestamp) -> Result<(), WriteError> {
        let mut state = self.state.lock();
        state.high_water = state.high_water.max(Some(at));
        Ok(())
    }

    async fn begin_epoch(&self, now: Timestamp) -> Result<Epoch, WriteError> {
        let mut state = self.state.lock();
        let state = &mut *state;
        // One process owns this store, so the earlier epochs that held rows are gone.
        let ended = std::mem::take(&mut state.ended);
        let bury = |epoch: Epoch, deaths: &mut u32| *deaths += u32::from(!ended.contains(&epoch));
        for item in state.work.values_mut() {
            if let Some(epoch) = item.epoch.take() {
                bury(epoch, &mut item.deaths);
                item.due = Some(now);
                item.woken = None;
            }
        }
        let told = state.inboxes.values_mut().flatten().map(|told| &mut told.hand);
        for hand in told.chain(state.outbox.values_mut().map(|note| &mut note.hand)) {
            if let Some(epoch) = hand.epoch.take() {
                bury(epoch, &mut hand.deaths);
            }
        }
        state.has_died = state.epoch > 0 && !ended.contains(&Epoch(state.epoch));
        state.epoch += 1;
        Ok(Epoch(state.epoch))
    }

    async fn end_epoch(&self, epoch: Epoch) -> Result<(), WriteError> {
        self.state.lock().ended.insert(epoch);
        Ok(())
    }

    async fn claim(
        &self,
        mailbox: Mailbox,
        epoch: Epoch,
        runs: &[RunKey],
        suspects: usize,
    ) -> Result<Vec<RunKey>, WriteError> {
        let mut state = self.state.lock();
        let state = &mut *state;
        let least = u32::from(state.has_died);
        let (mut claimed, mut left) = (Vec::new(), suspects);
        for run in runs {
            let mut hands: Vec<&mut Hand> = match mailbox {
                Mailbox::Inbox => {
                    let told = state.inboxes.get_mut(run).into_iter().flatten();
                    told.map(|told| &mut told.hand).collect()
                }
                Mailbox::Outbox => state
                    .outbox
                    .get_mut(run)
                    .map(|note| &mut note.hand)
                    .into_iter()
                    .collect(),
            };
            hands.retain(|hand| hand.deaths < mailbox.quarantined());
            let is_free = |hand: &&mut Hand| hand.epoch.is_none_or(|holder| holder == epoch);
            if hands.is_empty() || !hands.iter().all(is_free) {
                continue;
            }
            if hands.iter().any(|hand| hand.deaths >= LAST_CHANCE) {
                if left == 0 {
                    continue;
                }
                left -= 1;
            }
            for hand in hands {
                hand.epoch = Some(epoch);
                hand.deaths = hand.deaths.max(least);
            }
            claimed.push(run.clone());
        }
        Ok(claimed)
    }

    async fn grant(&self, root: &RunKey, wanted: u64, most: u64) -> Result<u64, WriteError> {
        let mut state = self.state.lock();
        let Some(run) = state.runs.get_mut(root) else {
            return Ok(0);
        };
        let granted = wanted.min(most.saturating_sub(run.descendants));
        run.descendants += granted;
        Ok(granted)
    }

    async fn quarantined(&self, limit: usize) -> Result<Vec<RunKey>, ReadError> {
        let state = self.state.lock();
        let work = state.work.iter();
        let work = work.filter(|((_, key), item)| key.queue.is_quarantined(item.deaths));
        let work = work.filter(|(_, item)| item.deaths == QUARANTINED);
        let work = work.map(|((run, _), _)| run);
        let is_news = |hand: &Hand, mailbox: Mailbox| hand.deaths == mailbox.quarantined();
        let outbox = state.outbox.iter();
        let outbox = outbox.filter(|(_, note)| is_news(&note.hand, Mailbox::Outbox));
        let inboxes = state.inboxes.iter();
        let inboxes = inboxes.filter(|(_, rows)| rows.iter().any(|told| is_news(&told.hand, Mailbox::Inbox)));
        let all = work
            .chain(outbox.map(|(run, _)| run))
            .chain(inboxes.map(|(run, _)| run));
        let runs: BTreeSet<_> = all.cloned().collect();
        Ok(runs.into_iter().take(limit).collect())
    }

    async fn lease(
        &self,
        queue: Queue,
        epoch: Epoch,
        times: Times,
        quota: &Quota,
    ) -> Result<Vec<Leased>, WriteError> {
        let mut state = self.state.lock();
        let rows = state.work.iter();
        let rows = rows.filter(|((run, key), _)| key.queue == queue && !state.is_gone(run));
        let found = rows
            .filter(|(_, item)| item.is_available(&times) && !queue.is_quarantined(item.deaths))
            .filter_map(|((run, key), item)| {
                Some(Candidate {
                    run: run.clone(),
                    name: key.name.clone(),
                    since: item.due?,
                    deaths: item.deaths,
                    n_bytes: item.body.len(),
                })
            });
        let admitted = quota.admit(found.collect());
        let mut leased = Vec::with_capacity(admitted.len());
        for Candidate { run, name, since, .. } in admitted {
            let (run, key) = (run, WorkKey { queue, name });
            if let Some(item) = state.work.get_mut(&(run.clone(), key.clone())) {
                item.epoch = Some(epoch);
                item.due = Some(times.until);
                item.fence.0 += 1;
                item.woken = None;
                leased.push(Leased {
                    run,
                    key,
                    body: item.body.clone(),
                    since,
                    fence: item.fence,
                    deaths: item.deaths,
                });
            }
        }
        Ok(leased)
    }

    async fn set_lease(
        &self,
        run: &RunKey,
        key: &WorkKey,
        fence: Fence,
        then: Then,
    ) -> Result<bool, WriteError> {
        let place = (run.clone(), key.clone());
        Ok(self.state.lock().set_lease(&place, fence, then))
    }

    async fn park_all(&self, rows: &[Parking]) -> Result<Vec<bool>, WriteError> {
        let mut state = self.state.lock();
        let parked = rows.iter().map(|row| {
            let place = (row.run.clone(), row.key.clone());
            state.set_lease(&place, row.fence, Then::Park(row.due))
        });
        Ok(parked.collect())
    }

    async fn wake(&self, run: &RunKey, key: &WorkKey, at: Timestamp) -> Result<bool, WriteError> {
        Ok(self.state.lock().wake(&(run.clone(), key.clone()), at))
    }

    async fn call_deliveries(
        &self,
        filter: &CallDeliveryFilter,
        after: Option<&CallDeliveryCursor>,
        limit: usize,
    ) -> Result<Vec<CallDeliveryRow>, ReadError> {
        let state = self.state.lock();
        let rows = state.work.iter().filter(|((run, key), item)| {
            let principal = state.runs.get(run).map(|run| &run.summary.principal);
            key.is_call_delivery()
                && run.tenant == filter.tenant
                && !state.is_gone(run)
                && filter.run.as_ref().is_none_or(|wanted| run.run == *wanted)
                && filter
                    .principal
                    .as_ref()
                    .is_none_or(|wanted| principal == Some(wanted))
                && (!filter.parked || item.due.is_none())
                && after.is_none_or(|after| (&run.run, &key.name) > (&after.run, &after.name))
        });
        let rows = rows.map(|((run, key), item)| CallDeliveryRow {
            run: run.clone(),
            key: key.clone(),
            body: item.body.clone(),
            due: item.due,
            is_leased: item.epoch.is_some(),
        });
        Ok(rows.take(limit).collect())
    }

    async fn next_due(&self, queue: Queue) -> Result<Option<Timestamp>, ReadError> {
        let state = self.state.lock();
        let rows = state.work.iter();
        let rows = rows.filter(|((run, key), item)| {
            key.queue == queue && !queue.is_quarantined(item.deaths) && !state.is_gone(run)
        });
        Ok(rows.filter_map(|(_, item)| item.due).min())
    }

    async fn runs_with_inbox(
        &self,
        epoch: Epoch,
        after: Option<&RunKey>,
        limit: usize,
    ) -> Result<Vec<RunKey>, ReadError> {
        let state = self.state.lock();
        Ok(state
            .inboxes
            .iter()
            .filter(|(run, _)| after.is_none_or(|after| *run > after))
            .filter(|(_, rows)| rows.iter().any(|told| told.hand.is_for(epoch, Mailbox::Inbox)))
            .take(limit)
            .map(|(run, _)| run.clone())
            .collect())
    }
}

impl Hand {
    /// Returns `true` if an epoch may claim the row.
    pub(super) fn is_for(&self, epoch: Epoch, mailbox: Mailbox) -> bool {
        self.deaths < mailbox.quarantined() && self.epoch.is_none_or(|holder| holder == epoch)
    }
}
