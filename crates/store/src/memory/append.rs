//! The append verb in memory: all checks first, then all writes.

use std::collections::btree_map::Entry;

use wopr_core::{RunKey, Seq, TenantId};

use super::{Hand, Run, State, Told};
use crate::{AppendError, Batch, Guard, Hold, InboxRow, Mailbox, Put, QUARANTINED, Queue, Then};

impl State {
    /// Appends a batch, or changes nothing on error.
    pub(super) fn append(&mut self, batch: Batch) -> Result<(), AppendError> {
        self.check_idempotency(&batch)?;
        self.check_fences(&batch)?;
        self.check_guard(&batch)?;
        self.check_children(&batch)?;
        self.check_push(&batch)?;
        self.write(batch);
        Ok(())
    }

    fn check_idempotency(&self, batch: &Batch) -> Result<(), AppendError> {
        let Some(record) = &batch.idempotency else {
            return Ok(());
        };
        match self.records.get(&record.key) {
            Some(existing) if existing.expires_at > batch.summary.updated_at => {
                Err(AppendError::Duplicate(Box::new(existing.clone())))
            }
            Some(_) | None => Ok(()),
        }
    }

    fn check_fences(&self, batch: &Batch) -> Result<(), AppendError> {
        let place = |key| (batch.run.clone(), key);
        let ended = batch.work_ended.iter().map(|ended| (&ended.key, ended.fence));
        let moved = batch.work_moved.iter().map(|moved| (&moved.key, moved.fence));
        for (key, fence) in ended.chain(moved) {
            let Some(fence) = fence else { continue };
            match self.work.get(&place(key.clone())) {
                Some(item) if item.fence == fence => {}
                Some(_) | None => return Err(AppendError::Fenced(key.clone())),
            }
        }
        let parked = batch.work_parked.iter().map(|parked| (&parked.key, parked.fence));
        let held = batch.work_held.iter().map(|(key, fence)| (key, *fence));
        for (key, fence) in parked.chain(held) {
            match self.work.get(&place(key.clone())) {
                Some(item) if item.fence == fence && item.epoch.is_some() => {}
                Some(_) | None => return Err(AppendError::Fenced(key.clone())),
            }
        }
        Ok(())
    }

    fn check_guard(&self, batch: &Batch) -> Result<(), AppendError> {
        let actual = self.run(&batch.run).map(Run::head);
        let holds = match batch.guard {
            // A removed run keeps its id and its alias until it is swept.
            Guard::Create => !self.runs.contains_key(&batch.run) && !self.is_alias_taken(batch),
            Guard::At(seq) => actual == Some(seq),
        };
        if holds {
            Ok(())
        } else {
            Err(AppendError::Conflict {
                expected: batch.expected(),
                actual,
            })
        }
    }

    fn is_alias_taken(&self, batch: &Batch) -> bool {
        let alias = batch.summary.alias.as_ref();
        batch.summary.parent.is_none()
            && alias.is_some_and(|alias| self.holder(&batch.run.tenant, alias).is_some())
    }

    /// The run without a parent that has an alias, also one that is removed.
    pub(super) fn holder(&self, tenant: &TenantId, alias: &str) -> Option<&RunKey> {
        self.aliases.get(tenant)?.get(alias)
    }

    fn check_children(&self, batch: &Batch) -> Result<(), AppendError> {
        for child in &batch.children {
            if let Some(run) = self.runs.get(&batch.run.sibling(child.run.clone())) {
                return Err(AppendError::Conflict {
                    expected: Seq(0),
                    actual: Some(run.head()),
                });
            }
        }
        Ok(())
    }

    fn check_push(&self, batch: &Batch) -> Result<(), AppendError> {
        let Some(push) = &batch.push else {
            return Ok(());
        };
        let put = if batch.guard == Guard::Create && push.run == batch.run.run {
            if push.most > 0 { Put::Added } else { Put::Full }
        } else {
            self.judge_push(&batch.run.sibling(push.run.clone()), &push.row.id, push.most)
        };
        match put {
            Put::Added | Put::Replaced => Ok(()),
            Put::Full => Err(AppendError::Full(push.most)),
            Put::Missing => Err(AppendError::Missing),
        }
    }

    fn write(&mut self, batch: Batch) {
        let (before, after) = (batch.expected(), batch.head());
        let descendants = batch.n_descendants();
        let key = batch.run;
        let at = batch.summary.updated_at;

        let run = match self.runs.entry(key.clone()) {
            Entry::Vacant(entry) => {
                if let (None, Some(alias)) = (&batch.summary.parent, &batch.summary.alias) {
                    let aliases = self.aliases.entry(key.tenant.clone()).or_default();
                    aliases.insert(alias.clone(), key.clone());
                }
                entry.insert(Run {
                    descendants,
                    ..Run::new(batch.summary)
                })
            }
            Entry::Occupied(entry) => {
                let run = entry.into_mut();
                // The other columns never change after creation.
                let after = batch.summary;
                run.summary.status = after.status;
                run.summary.waiting_on = after.waiting_on;
                run.summary.error_code = after.error_code;
                run.summary.phase_since = after.phase_since;
                run.summary.updated_at = at;
                run
            }
        };
        run.events.extend(batch.events);
        if batch.snapshot.is_some() {
            run.snapshot = batch.snapshot;
        }
        for message in batch.messages {
            if !run.messages.iter().any(|known| known.id == message.id) {
                run.messages.push(message);
            }
        }
        for blob in batch.blobs {
            run.blobs.entry(blob.id.clone()).or_insert(blob);
        }

        for row in batch.memory {
            let place = (key.tenant.clone(), row.scope.clone(), row.id.clone());
            let version = (row.at, key.run.clone(), row.seq);
            self.memory.entry(place).or_default().insert(version, row);
        }

        for row in batch.spent {
            self.spend(&key.tenant, row);
        }

        for ended in batch.work_ended {
            self.work.remove(&(key.clone(), ended.key));
        }
        for parked in batch.work_parked {
            let place = (key.clone(), parked.key);
            self.set_lease(&place, parked.fence, Then::Park(parked.due));
            if let (Some(item), Some(body)) = (self.work.get_mut(&place), parked.body) {
                item.body = body;
            }
        }
        for moved in batch.work_moved {
            self.move_work(&key, moved);
        }
        for row in batch.work_set {
            self.set_work(&key, row, at);
        }

        for child in batch.children {
            let mut run = Run::new(child.summary);
            run.events = child.events;
            run.snapshot = child.snapshot;
            let child_key = key.sibling(child.run);
            self.runs.insert(child_key.clone(), run);
            for row in child.work {
                self.set_work(&child_key, row, at);
            }
        }

        for (source, source_seq) in batch.inbox_consumed {
            if let Entry::Occupied(mut inbox) = self.inboxes.entry(key.clone()) {
                inbox
                    .get_mut()
                    .retain(|told| (&told.row.source, told.row.source_seq) != (&source, source_seq));
                if inbox.get().is_empty() {
                    inbox.remove();
                }
            }
        }
        for row in batch.inbox_sent {
            self.tell(key.sibling(row.target.clone()), row);
        }

        if let Some(push) = batch.push {
            let is_own = push.run == key.run;
            let since = is_own.then_some(before);
            self.put_push(&key.sibling(push.run), push.row, push.now, since);
        }
        self.note(&key, before, after);

        if let Some(record) = batch.idempotency {
            self.records.insert(record.key.clone(), record);
        }
        if let Some(hold) = batch.hold {
            self.hold(&key, hold);
        }
    }

    fn hold(&mut self, run: &RunKey, hold: Hold) {
        let work = self.work.iter_mut().filter(|((of, _), _)| of == run);
        for (_, item) in work.filter(|((_, key), _)| key.queue != Queue::Deliveries) {
            turn(hold, QUARANTINED, &mut item.deaths);
        }
        for told in self.inboxes.get_mut(run).into_iter().flatten() {
            if turn(hold, Mailbox::Inbox.quarantined(), &mut told.hand.deaths) {
                told.hand.epoch = None;
            }
        }
        if let Some(note) = self.outbox.get_mut(run)
            && (hold == Hold::Release || note.hand.deaths >= Mailbox::Outbox.quarantined())
            && turn(hold, Mailbox::Outbox.quarantined(), &mut note.hand.deaths)
        {
            note.hand.epoch = None;
        }
    }

    fn tell(&mut self, target: RunKey, row: InboxRow) {
        let inbox = self.inboxes.entry(target).or_default();
        if !inbox
            .iter()
            .any(|known| (&known.row.source, known.row.source_seq) == (&row.source, row.source_seq))
        {
            inbox.push(Told {
                row,
                hand: Hand::default(),
            });
        }
    }
}

/// Quarantines a row, or releases it if it has as many deaths as quarantine it. Returns `true` if it was released.
fn turn(hold: Hold, quarantined: u32, deaths: &mut u32) -> bool {
    match hold {
        Hold::Quarantine => *deaths = quarantined + 1,
        Hold::Release if *deaths >= quarantined => {
            *deaths = 0;
            return true;
        }
        Hold::Release => {}
    }
    false
}
