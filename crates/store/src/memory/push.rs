//! Subscriptions and deliveries in memory.

use std::collections::btree_map::Entry;

use async_trait::async_trait;
use wopr_core::{RunKey, Seq, Timestamp};

use super::{Hand, MemoryStore, Note, Push, State};
use crate::{
    Attempted, DeliveryCursor, DeliveryFilter, DeliveryRow, Epoch, Fence, Mailbox, OutboxRow, Pending,
    PushRow, Pushes, Put, Queue, ReadError, Then, Update, WorkKey, WorkRow, WriteError,
};

impl State {
    /// Returns the result that registering a subscription would have.
    pub(super) fn judge_push(&self, run: &RunKey, id: &str, most: usize) -> Put {
        if self.run(run).is_none() {
            return Put::Missing;
        }
        if self.pushes.contains_key(&(run.clone(), id.to_owned())) {
            return Put::Replaced;
        }
        let n_pushes = self.pushes.keys().filter(|(of, _)| of == run).count();
        if n_pushes < most { Put::Added } else { Put::Full }
    }

    /// Registers a subscription that `judge_push` admits. A new one covers events from `since`, or from the
    /// end of the log.
    pub(super) fn put_push(&mut self, run: &RunKey, row: PushRow, now: Timestamp, since: Option<Seq>) {
        let head = self.run(run).map_or(Seq(0), super::Run::head);
        let work = WorkRow::subscription(&row.id);
        match self.pushes.entry((run.clone(), row.id.clone())) {
            Entry::Occupied(entry) => {
                entry.into_mut().row = row;
                if let Some(item) = self.work.get_mut(&(run.clone(), work.key)) {
                    // A delivery that still uses the old subscription loses its lease.
                    item.fence.0 += 1;
                    item.epoch = None;
                    item.woken = None;
                    item.due = item.due.map(|_| now);
                }
            }
            Entry::Vacant(entry) => {
                let since = since.unwrap_or(head);
                entry.insert(Push { row, since });
                self.set_work(run, work, now);
            }
        }
    }

    /// Extends the outbox row of a run if it has subscriptions.
    pub(super) fn note(&mut self, run: &RunKey, from: Seq, to: Seq) {
        if from < to && self.pushes.keys().any(|(of, _)| of == run) {
            let note = self.outbox.entry(run.clone()).or_insert(Note {
                from,
                to,
                hand: Hand::default(),
            });
            note.to = to;
        }
    }

    fn of_run(&mut self, run: &RunKey) -> impl Iterator<Item = &mut Push> {
        self.pushes
            .iter_mut()
            .filter(move |((of, _), _)| of == run)
            .map(|(_, push)| push)
    }
}

#[async_trait]
impl Pushes for MemoryStore {
    async fn put_push(
        &self,
        run: &RunKey,
        row: PushRow,
        most: usize,
        now: Timestamp,
    ) -> Result<Put, WriteError> {
        let mut state = self.state.lock();
        let put = state.judge_push(run, &row.id, most);
        match put {
            Put::Added | Put::Replaced => state.put_push(run, row, now, None),
            Put::Full | Put::Missing => {}
        }
        Ok(put)
    }

    async fn pushes(&self, run: &RunKey) -> Result<Vec<PushRow>, ReadError> {
        let mut state = self.state.lock();
        if state.is_gone(run) {
            return Ok(Vec::new());
        }
        let mut rows: Vec<_> = state.of_run(run).map(|push| push.row.clone()).collect();
        rows.sort_by(|a, b| (a.created_at, &a.id).cmp(&(b.created_at, &b.id)));
        Ok(rows)
    }

    async fn drop_push(&self, run: &RunKey, id: &str) -> Result<bool, WriteError> {
        let mut state = self.state.lock();
        let was_there = state.pushes.remove(&(run.clone(), id.to_owned())).is_some();
        state.work.remove(&(run.clone(), WorkKey::delivery(id)));
        state
            .deliveries
            .retain(|(of, push, _), _| of != run || push != id);
        Ok(was_there)
    }

    async fn outbox(
        &self,
        epoch: Epoch,
        after: Option<&RunKey>,
        limit: usize,
    ) -> Result<Vec<OutboxRow>, ReadError> {
        let state = self.state.lock();
        Ok(state
            .outbox
            .iter()
            .filter(|(run, _)| after.is_none_or(|after| *run > after) && !state.is_gone(run))
            .filter(|(_, note)| note.hand.is_for(epoch, Mailbox::Outbox))
            .take(limit)
            .map(|(run, note)| OutboxRow {
                run: run.clone(),
                from: note.from,
                to: note.to,
            })
            .collect())
    }

    async fn expand(&self, row: &OutboxRow, updates: &[Update], now: Timestamp) -> Result<bool, WriteError> {
        let mut state = self.state.lock();
        match state.outbox.get(&row.run) {
            Some(note) if note.from == row.from && note.to >= row.to => {
                if note.to == row.to {
                    state.outbox.remove(&row.run);
                } else if let Some(note) = state.outbox.get_mut(&row.run) {
                    note.from = row.to;
                    note.hand = Hand::default();
                }
            }
            Some(_) | None => return Ok(false),
        }
        if updates.is_empty() {
            return Ok(true);
        }
        let subscriptions = state.work.iter_mut().filter(|((run, _), _)| *run == row.run);
        for (_, item) in subscriptions.filter(|((_, key), _)| key.queue == Queue::Deliveries) {
            // A subscription in backoff stays in it.
            item.due.get_or_insert(now);
            if item.epoch.is_some() {
                item.woken.get_or_insert(now);
            }
        }
        let mut made = Vec::new();
        for push in state.of_run(&row.run) {
            for update in updates.iter().filter(|update| update.seq >= push.since) {
                made.push(DeliveryRow {
                    run: row.run.clone(),
                    push: push.row.id.clone(),
                    seq: update.seq,
                    body: update.body.clone(),
                    enqueued_at: now,
                    attempts: 0,
                    error: None,
                    dead_at: None,
                });
            }
        }
        for delivery in made {
            let place = (row.run.clone(), delivery.push.clone(), delivery.seq);
            state.deliveries.entry(place).or_insert(delivery);
        }
        Ok(true)
    }

    async fn waiting(&self, run: &RunKey, push: &str, limit: usize) -> Result<Pending, ReadError> {
        let state = self.state.lock();
        let deliveries: Vec<_> = state
            .deliveries
            .values()
            .filter(|delivery| delivery.run == *run && delivery.push == push && delivery.dead_at.is_none())
            .take(limit)
            .cloned()
            .collect();
        let subscription = state.pushes.get(&(run.clone(), push.to_owned()));
        Ok(match subscription.filter(|_| !deliveries.is_empty()) {
            Some(push) => Pending {
                receiver: push.row.body.clone(),
                deliveries,
            },
            None => Pending::default(),
        })
    }

    async fn settle_push(
        &self,
        run: &RunKey,
        push: &str,
        fence: Fence,
        attempted: (Seq, Attempted),
        then: Then,
    ) -> Result<bool, WriteError> {
        let mut state = self.state.lock();
        let place = (run.clone(), WorkKey::delivery(push));
        if !state.set_lease(&place, fence, then) {
            return Ok(false);
        }
        if let Some(item) = state.work.get_mut(&place) {
            item.deaths = 0;
        }
        let (seq, attempted) = attempted;
        let place = (place.0, push.to_owned(), seq);
        match (attempted, state.deliveries.get_mut(&place)) {
            (Attempted::Delivered, _) => {
                state.deliveries.remove(&place);
            }
            (Attempted::Failed { error }, Some(delivery)) => {
                delivery.attempts += 1;
                delivery.error = Some(error);
            }
            (Attempted::GivenUp { error, at }, Some(delivery)) => {
                delivery.attempts += 1;
                delivery.error = Some(error);
                delivery.dead_at = Some(at);
            }
            (Attempted::Failed { .. } | Attempted::GivenUp { .. }, None) => {}
        }
        Ok(true)
    }

    async fn deliveries(
        &self,
        filter: &DeliveryFilter,
        after: Option<&DeliveryCursor>,
        limit: usize,
    ) -> Result<Vec<DeliveryRow>, ReadError> {
        let state = self.state.lock();
        Ok(state
            .deliveries
            .values()
            .filter(|delivery| delivery.run.tenant == filter.tenant && !state.is_gone(&delivery.run))
            .filter(|delivery| filter.run.as_ref().is_none_or(|run| delivery.run.run == *run))
            .filter(|delivery| !filter.given_up || delivery.dead_at.is_some())
            .filter(|delivery| {
                let mut wanted = filter.principal.iter();
                let run = state.runs.get(&delivery.run);
                wanted.all(|wanted| run.is_some_and(|run| run.summary.principal == *wanted))
            })
            .filter(|delivery| {
                let place = (&delivery.run.run, &delivery.push, delivery.seq);
                after.is_none_or(|after| place > (&after.run, &after.push, after.seq))
            })
            .take(limit)
            .cloned()
            .collect())
    }

    async fn retry_push(
        &self,
        run: &RunKey,
        push: &str,
        seq: Option<Seq>,
        now: Timestamp,
    ) -> Result<usize, WriteError> {
        let mut state = self.state.lock();
        if state.is_gone(run) {
            return Ok(0);
        }
        if let Some(note) = state.outbox.get_mut(run) {
            note.hand = Hand::default();
        }
        let mut n_retried = 0;
        for delivery in state.deliveries.values_mut() {
            if delivery.run == *run
                && delivery.push == push
                && delivery.dead_at.is_some()
                && seq.is_none_or(|seq| delivery.seq == seq)
            {
                delivery.dead_at = None;
                delivery.attempts = 0;
                delivery.enqueued_at = now;
                n_retried += 1;
            }
        }
        if n_retried > 0 {
            state.wake(&(run.clone(), WorkKey::delivery(push)), now);
        }
        Ok(n_retried)
    }
}
