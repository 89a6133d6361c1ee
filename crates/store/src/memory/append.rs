//! The append verb in memory: all checks first, then all writes.

use std::collections::btree_map::Entry;

use wopr_core::{RunKey, Seq};

use super::{Effect, Hand, Run, State, Timer, Told};
use crate::{AppendError, Batch, Fence, Guard, Hold, InboxRow, PARKED, Put};

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
        for settled in &batch.effects_settled {
            let Some(fence) = settled.fence else { continue };
            match self.effects.get(&(batch.run.clone(), settled.key.clone())) {
                Some(effect) if effect.fence == fence => {}
                Some(_) | None => return Err(AppendError::Fenced(settled.key.clone())),
            }
        }
        Ok(())
    }

    fn check_guard(&self, batch: &Batch) -> Result<(), AppendError> {
        let actual = self.run(&batch.run).map(Run::head);
        let holds = match batch.guard {
            // A removed run keeps its id until it is swept.
            Guard::Create => !self.runs.contains_key(&batch.run),
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
        let guard = batch.guard;
        let key = batch.run;
        let at = batch.summary.updated_at;

        let run = match self.runs.entry(key.clone()) {
            Entry::Vacant(entry) => entry.insert(Run::new(batch.summary)),
            Entry::Occupied(entry) => {
                let run = entry.into_mut();
                // The other columns never change after creation.
                run.summary.status = batch.summary.status;
                run.summary.updated_at = at;
                run
            }
        };
        run.events.extend(batch.events);
        if batch.task.is_some() {
            run.task = batch.task;
        }
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

        for timer in batch.timers_cleared {
            self.timers.remove(&(key.clone(), timer));
        }
        for timer in batch.timers_set {
            let place = (key.clone(), timer.key);
            let fence = self
                .timers
                .get(&place)
                .map_or(Fence::first_at(at), |replaced| Fence(replaced.fence.0 + 1));
            let timer = Timer {
                due: timer.due,
                epoch: None,
                fence,
                deaths: 0,
            };
            self.timers.insert(place, timer);
        }

        for settled in batch.effects_settled {
            self.effects.remove(&(key.clone(), settled.key));
        }
        for row in batch.effects_enqueued {
            let born = Fence(u64::from(row.leased.is_some()));
            let place = (key.clone(), row.key);
            let fence = self
                .effects
                .get(&place)
                .map_or(born, |replaced| Fence(replaced.fence.0 + 1));
            self.effects.insert(
                place,
                Effect {
                    body: row.body,
                    enqueued_at: at,
                    lease: row.leased,
                    fence,
                    deaths: 0,
                },
            );
        }

        for child in batch.children {
            let mut run = Run::new(child.summary);
            run.task = Some(child.task);
            self.runs.insert(key.sibling(child.run), run);
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
            let first = match guard {
                Guard::Create if is_own => Fence(0),
                Guard::Create | Guard::At(_) => Fence::first_at(push.now),
            };
            let since = is_own.then_some(before);
            self.put_push(&key.sibling(push.run), push.row, push.now, since, first);
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
        let timers = self.timers.iter_mut().filter(|((of, _), _)| of == run);
        for (_, timer) in timers {
            turn(hold, &mut timer.deaths);
        }
        let effects = self.effects.iter_mut().filter(|((of, _), _)| of == run);
        for (_, effect) in effects {
            if turn(hold, &mut effect.deaths) {
                effect.lease = None;
            }
        }
        for told in self.inboxes.get_mut(run).into_iter().flatten() {
            if turn(hold, &mut told.hand.deaths) {
                told.hand.epoch = None;
            }
        }
        if let Some(note) = self.outbox.get_mut(run)
            && (hold == Hold::Release || note.hand.deaths >= PARKED)
            && turn(hold, &mut note.hand.deaths)
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

/// Parks a row, or releases it if it is parked. Returns `true` if it was released.
fn turn(hold: Hold, deaths: &mut u32) -> bool {
    match hold {
        Hold::Park => *deaths = PARKED + 1,
        Hold::Release if *deaths >= PARKED => {
            *deaths = 0;
            return true;
        }
        Hold::Release => {}
    }
    false
}
