//! Expands outboxes: makes deliveries to subscriptions of what was appended to runs.
//!
//! An append notes which events of its run have to be told. Here the run is loaded as it was before them, and
//! the notifier decides what each subscription is sent, under the bounds of every load and decision. Sending
//! is the business of [`crate::pushes`], in the pool of deliveries.

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use tokio::{
    sync::{Notify, OwnedSemaphorePermit},
    time::Instant,
};
use tracing::Instrument;
use wopr_core::{Recorded, Run, RunKey, Seq};
use wopr_store::{Mailbox, OutboxRow, ReadError, StoredEvent, Update};

use crate::{
    CommandError, Engine, Notifier, View,
    engine::Shared,
    inbox::end_of,
    load_budget::{LoadPermit, Purpose},
    loading::Fetched,
    logs::{of_run, store_failed},
    quarantine::Suspects,
    slots::{Slot, Slots},
    stats::Counters,
    task_pool::TaskPool,
    view::{corrupt, decode_base, decode_events, is_of_other_fold},
};

/// Maximum runs whose events are expanded into deliveries at once.
const ROUND: usize = 64;
/// Minimum interval between rounds. Appends in between cost one look together instead of one each.
const GATHER: Duration = Duration::from_millis(20);
/// Events of a run read at once.
const PAGE: usize = 256;
/// Load budget for a page of the log while the whole log is folded again.
pub(crate) const FOLDING: usize = 16 << 20;

/// State of the loop that expands outboxes.
#[derive(Debug)]
pub(crate) struct Outboxes {
    /// Slots for expanding, shared between tenants.
    slots: Slots,
    /// Suspect outboxes, which have one chance left.
    suspects: Suspects,
    /// The next outboxes found may have been left by a process that died because of them.
    is_recovering: AtomicBool,
    stirred: Notify,
    /// This process has seen a subscription. Until then, appends do not wake the loop.
    is_used: AtomicBool,
}

impl Default for Outboxes {
    fn default() -> Self {
        Self {
            slots: Slots::new(ROUND),
            suspects: Suspects::new(1),
            is_recovering: AtomicBool::new(true),
            stirred: Notify::new(),
            is_used: AtomicBool::new(false),
        }
    }
}

impl Outboxes {
    /// Treats the next outboxes found as left by a dead process.
    pub(crate) fn recover(&self) {
        self.is_recovering.store(true, Ordering::Relaxed);
    }

    /// Makes the loop look.
    pub(crate) fn stir(&self) {
        self.stirred.notify_one();
    }

    /// Wakes the loop after an append.
    pub(crate) fn appended(&self) {
        if self.is_used.load(Ordering::Relaxed) {
            self.stir();
        }
    }

    pub(crate) fn is_used(&self) {
        self.is_used.store(true, Ordering::Relaxed);
    }
}

impl Engine {
    /// The loop that expands outboxes.
    pub(crate) async fn run_outboxes(self) {
        let Some(notifier) = self.shared.options.notifier.clone() else {
            return;
        };
        let (stop, poll) = (&self.shared.stop, self.shared.options.poll);
        // One more than there are slots, so that no round waits for a task to end.
        let mut expanding = TaskPool::new(ROUND + 1);
        while !stop.is_cancelled() {
            let began = Instant::now();
            let is_more_left = self.expand_all(&notifier, &mut expanding).await;
            tokio::select! {
                biased;
                () = stop.cancelled() => {}
                () = self.shared.outboxes.stirred.notified() => {}
                () = std::future::ready(()), if is_more_left || !expanding.are_empty() => {}
                () = tokio::time::sleep_until(began + poll) => {}
            }
            tokio::select! {
                biased;
                () = stop.cancelled() => {}
                () = tokio::time::sleep_until(began + GATHER) => {}
            }
        }
        expanding.rest().await;
    }

    /// Expands all outboxes. Returns whether to look again soon: an outbox was skipped because its run was
    /// already in progress, and may have grown since.
    async fn expand_all(&self, notifier: &Arc<dyn Notifier>, expanding: &mut TaskPool<RunKey, bool>) -> bool {
        let (mut after, mut is_more_left) = (None, false);
        let is_recovering = self.shared.outboxes.is_recovering.swap(false, Ordering::Relaxed);
        loop {
            let epoch = self.shared.epoch;
            let rows = match self.shared.store.outbox(epoch, after.as_ref(), ROUND).await {
                Ok(rows) => rows,
                Err(error) => {
                    if is_recovering {
                        self.shared.outboxes.recover();
                    }
                    store_failed("cannot read what is to be pushed", &error);
                    return is_more_left;
                }
            };
            let is_last = rows.len() < ROUND;
            after = rows.last().map(|row| row.run.clone());
            let mut rows = rows;
            rows.retain(|row| !self.shared.run_backoff.is_left_alone(&row.run));
            let n_found = rows.len();
            let rows = self.with_slots(rows);
            // If a tenant has used up its share, its remaining outboxes are skipped.
            let crowded = self.shared.outboxes.slots.crowded();
            let is_skipping = !is_last && after.as_ref().is_some_and(|last| crowded.contains(&last.tenant));
            if is_skipping {
                after = after.map(|last| end_of(last.tenant));
            }
            if is_skipping || rows.len() < n_found {
                is_more_left = true;
                if is_recovering {
                    self.shared.outboxes.recover();
                }
            }
            let (rows, suspects) = if is_recovering {
                self.claim_outboxes(rows).await
            } else {
                (rows, None)
            };
            for (row, slot) in rows {
                let (engine, notifier, suspects) = (self.clone(), Arc::clone(notifier), suspects.clone());
                let (span, key) = (of_run(&row.run), row.run.clone());
                let work = async move {
                    let run = row.run.clone();
                    let expanded = engine.attend(&run, Box::pin(engine.expand(&notifier, row))).await;
                    drop((slot, suspects));
                    if let Err(error) = &expanded {
                        store_failed("deliveries not made yet", error);
                    }
                    expanded.is_ok()
                };
                let has_begun = expanding.begin(key, work.instrument(span));
                is_more_left |= !has_begun;
            }
            if expanding.round().await.contains(&Some(true)) {
                self.shared.outboxes.is_used();
                self.shared.deliveries.stir();
            }
            if is_last {
                return is_more_left;
            }
        }
    }

    /// Keeps the outboxes whose tenant has a free slot.
    fn with_slots(&self, rows: Vec<OutboxRow>) -> Vec<(OutboxRow, Slot)> {
        let slots = &self.shared.outboxes.slots;
        let with_slot = |row: OutboxRow| {
            let slot = slots.take(&row.run.tenant)?;
            Some((row, slot))
        };
        rows.into_iter().filter_map(with_slot).collect()
    }

    /// Claims outboxes left by a process that may have died because of them. Returns those claimed.
    async fn claim_outboxes(
        &self,
        rows: Vec<(OutboxRow, Slot)>,
    ) -> (Vec<(OutboxRow, Slot)>, Option<Arc<OwnedSemaphorePermit>>) {
        let shared = &self.shared;
        let runs: Vec<_> = rows.iter().map(|(row, _)| row.run.clone()).collect();
        if runs.is_empty() {
            return (rows, None);
        }
        let suspects = shared.outboxes.suspects.begin(u32::MAX).map(Arc::new);
        let most = usize::from(suspects.is_some());
        let claimed = match shared
            .store
            .claim(Mailbox::Outbox, shared.epoch, &runs, most)
            .await
        {
            Ok(claimed) => claimed,
            Err(error) => {
                store_failed("cannot claim outboxes", &error);
                Vec::new()
            }
        };
        if claimed.len() < runs.len() {
            shared.outboxes.recover();
        }
        let is_claimed = |(row, _): &(OutboxRow, Slot)| claimed.contains(&row.run);
        (rows.into_iter().filter(is_claimed).collect(), suspects)
    }

    /// Expands the outbox of a run into deliveries.
    async fn expand(&self, notifier: &Arc<dyn Notifier>, row: OutboxRow) -> Result<(), CommandError> {
        let store = &self.shared.store;
        let Some(mut before) = self.as_of(&row.run, row.from).await? else {
            return Ok(());
        };
        let mut from = row.from;
        while from < row.to {
            let limit = usize::try_from(row.to.0 - from.0).map_or(PAGE, |left| left.min(PAGE));
            let Some(page) = store.events(&row.run, from, limit).await? else {
                return Ok(());
            };
            let Some(last) = page.events.last() else {
                let why = format!("run {}: the log ends before event {from}", row.run);
                return Err(CommandError::Internal(why.into()));
            };
            let part = OutboxRow {
                run: row.run.clone(),
                from,
                to: last.seq.next(),
            };
            let updates;
            (before, updates) = self.advance(before, page.events, Some(notifier)).await?;
            let n_made = updates.len();
            match store.expand(&part, &updates, self.lease_time()).await {
                Ok(true) => Counters::add(&self.shared.counters.pushes_made, n_made),
                // More events were appended meanwhile, or another process was first: the next look continues.
                Ok(false) => return Ok(()),
                Err(error) => return Err(error.into()),
            }
            from = part.to;
        }
        Ok(())
    }

    /// Folds a page of the log into a run, on the decision pool, and returns the updates for it.
    async fn advance(
        &self,
        before: View,
        page: Vec<StoredEvent>,
        notifier: Option<&Arc<dyn Notifier>>,
    ) -> Result<(View, Vec<Update>), CommandError> {
        let (tenant, notifier) = (before.key.tenant.clone(), notifier.map(Arc::clone));
        let n_page: usize = page.iter().map(|event| event.body.len()).sum();
        let n_bytes = before.held.n_bytes() + n_page;
        let work = move || {
            let events = decode_events(&page)?;
            drop(page);
            let updates = notifier.map(|notifier| notifier.updates(&before, &events));
            let mut view = before;
            fold(&mut view, &events)?;
            Ok::<_, ReadError>((view, updates.unwrap_or_default()))
        };
        Ok(self.think(&tenant, n_bytes, work).await??)
    }

    /// Loads a run as it was at `head`, with a load permit; `None` if the run is gone.
    async fn as_of(&self, key: &RunKey, head: Seq) -> Result<Option<View>, CommandError> {
        let Shared { load_budget, .. } = &*self.shared;
        let Some(Fetched { loaded, held, turn }) = self.fetch(key, Purpose::View).await? else {
            return Ok(None);
        };
        let (workflow, version) = (&loaded.summary.workflow, &loaded.summary.version);
        let plan = self.version(&key.tenant, workflow, version).await?;
        let is_other = is_of_other_fold(&plan, &loaded);
        let mut view = View {
            key: key.clone(),
            plan,
            run: Run::default(),
            summary: loaded.summary,
            last_events: Vec::new(),
            continues: None,
            held,
        };
        let n_bytes = view.held.n_bytes();
        let is_newer = loaded.snapshot.as_ref().is_some_and(|base| base.head > head);
        if is_newer || is_other {
            // The snapshot is newer than `head`, or of another fold. The whole log is read again from the start,
            // and the run grows meanwhile.
            drop((loaded.snapshot, loaded.tail, turn));
            view.held = LoadPermit::default();
            view.held = Box::pin(load_budget.hold(Purpose::View, &key.tenant, n_bytes + FOLDING)).await?;
        } else {
            let (base, mut tail) = (loaded.snapshot, loaded.tail);
            tail.retain(|event| event.seq < head);
            let work = move || {
                if let Some(base) = base {
                    view.run = decode_base(&view.key, &view.plan, &base)?;
                }
                fold(&mut view, &decode_events(&tail)?)?;
                Ok::<_, ReadError>(view)
            };
            view = self.think(&key.tenant, n_bytes, work).await??;
            drop(turn);
        }
        self.fold_up_to(view, head).await
    }

    /// Folds the log into a view, page by page, until it has this length; `None` if the run is gone.
    pub(crate) async fn fold_up_to(&self, mut view: View, head: Seq) -> Result<Option<View>, CommandError> {
        let key = view.key.clone();
        while view.run.head < head {
            let limit = usize::try_from(head.0 - view.run.head.0).map_or(PAGE, |left| left.min(PAGE));
            let Some(page) = self.shared.store.events(&key, view.run.head, limit).await? else {
                return Ok(None);
            };
            if page.events.is_empty() {
                return Err(CommandError::Internal(
                    format!("run {key}: the log ends before {head}").into(),
                ));
            }
            (view, _) = self.advance(view, page.events, None).await?;
        }
        Ok(Some(view))
    }
}

fn fold(view: &mut View, events: &[Recorded]) -> Result<(), ReadError> {
    let folded = std::mem::take(&mut view.run).fold(&view.plan, events);
    view.run = folded.map_err(|error| corrupt(&view.key, error))?;
    Ok(())
}
