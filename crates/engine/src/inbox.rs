//! Delivers messages between runs.
//!
//! The rows are authoritative; the queue here only says which runs to look at. A run consumes many rows in
//! one append, and runs take turns, however many there are.

use std::{
    collections::{BTreeMap, BTreeSet, HashSet},
    ops::Bound,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use parking_lot::Mutex;
use tokio::sync::Notify;
use tracing::Instrument;
use wopr_core::{RunId, RunKey, TenantId, Timestamp};
use wopr_store::Mailbox;

use crate::{
    Engine,
    logs::{of_run, store_failed},
    quarantine::Suspects,
    slots::{Held, Slots},
    task_pool::TaskPool,
};

/// Maximum runs that consume their inbox at once: enough to fill a group commit.
const ROUND: usize = 256;
/// Maximum runs queued. Beyond it, the sweep finds them.
const MAX_PENDING: usize = 65_536;
/// Runs read by one page of the sweep.
const SWEEP_PAGE: usize = 256;
/// Pause after a round in which a run that is not in backoff failed.
const AFTER_TROUBLE: Duration = Duration::from_millis(500);

#[derive(Debug)]
pub(crate) struct Inboxes {
    pending: Mutex<Pending>,
    told: Notify,
    /// Runs that consume their inbox, shared between tenants.
    slots: Slots,
    suspects: Suspects,
    /// The next sweep may find rows left by a process that died because of them.
    is_recovering: AtomicBool,
}

impl Default for Inboxes {
    fn default() -> Self {
        Self {
            pending: Mutex::default(),
            told: Notify::new(),
            slots: Slots::new(ROUND),
            suspects: Suspects::new(1),
            is_recovering: AtomicBool::new(true),
        }
    }
}

/// The queue of runs with messages, by tenant.
#[derive(Debug, Default)]
struct Pending {
    tenants: BTreeMap<TenantId, Queue>,
    held: Held,
    /// The tenant served last.
    last: Option<TenantId>,
    /// Runs left by a process that may have died because of them.
    inherited: HashSet<RunKey>,
    /// Where the last sweep ran out of space, and the next one begins.
    swept: Option<RunKey>,
}

/// The queue of one tenant.
#[derive(Debug, Default)]
struct Queue {
    runs: BTreeSet<RunId>,
    /// The run served last. The next round begins after it, so that runs that get messages all the time do
    /// not starve others.
    last: Option<RunId>,
}

impl Queue {
    /// Removes runs in id order, beginning after the last one served and wrapping around.
    fn take(&mut self, most: usize) -> Vec<RunId> {
        let taken: Vec<_> = match &self.last {
            None => self.runs.iter().take(most).cloned().collect(),
            Some(last) => {
                let behind = self
                    .runs
                    .range::<RunId, _>((Bound::Excluded(last), Bound::Unbounded));
                behind
                    .chain(self.runs.range::<RunId, _>(..=last))
                    .take(most)
                    .cloned()
                    .collect()
            }
        };
        for run in &taken {
            self.runs.remove(run);
        }
        if let Some(last) = taken.last() {
            self.last = Some(last.clone());
        }
        taken
    }
}

impl Inboxes {
    pub(crate) fn tell(&self, run: RunKey) {
        self.pending.lock().add(run, MAX_PENDING);
        self.told.notify_one();
    }

    /// Treats the rows found by the next sweep as left by a dead process.
    pub(crate) fn recover(&self) {
        self.is_recovering.store(true, Ordering::Relaxed);
    }

    fn take(&self, most: usize) -> (Vec<RunKey>, Vec<RunKey>) {
        let without = self.slots.crowded();
        let mut pending = self.pending.lock();
        let taken = pending.take(most, &without);
        taken.into_iter().partition(|run| !pending.inherited.remove(run))
    }
}

impl Pending {
    /// Queues a run. Returns `false` if there is no space for it.
    fn add(&mut self, run: RunKey, most: usize) -> bool {
        let RunKey { tenant, run } = run;
        let is_known = self
            .tenants
            .get(&tenant)
            .is_some_and(|queue| queue.runs.contains(&run));
        if is_known {
            return true;
        }
        if !self.held.has_room(most, &tenant, 1) {
            return false;
        }
        self.held.add(&tenant, 1);
        self.tenants.entry(tenant).or_default().runs.insert(run)
    }

    /// Queues a page of a sweep. If there is no space for a tenant, skips the rest of its runs and remembers
    /// the last run queued before them. Returns that tenant if the page ends with skipped runs.
    fn add_page(&mut self, page: Vec<RunKey>, most: usize, is_inherited: bool) -> Option<TenantId> {
        let mut left_out: Option<TenantId> = None;
        let mut before: Option<RunKey> = None;
        for run in page {
            if left_out.as_ref() == Some(&run.tenant) {
                continue;
            }
            if self.add(run.clone(), most) {
                if is_inherited {
                    self.inherited.insert(run.clone());
                }
                left_out = None;
                before = Some(run);
            } else {
                left_out = Some(run.tenant.clone());
                if self.swept.is_none() {
                    self.swept = before.clone();
                }
            }
        }
        left_out
    }

    /// Removes a round of runs, divided evenly between the tenants.
    fn take(&mut self, most: usize, without: &[TenantId]) -> Vec<RunKey> {
        let behind = |last: &Option<TenantId>| match last {
            None => Bound::Unbounded,
            Some(last) => Bound::Excluded(last.clone()),
        };
        let after = self
            .tenants
            .range::<TenantId, _>((behind(&self.last), Bound::Unbounded));
        let upto = self
            .tenants
            .iter()
            .take_while(|(tenant, _)| self.last.as_ref().is_some_and(|last| *tenant <= last));
        let mut order: Vec<TenantId> = after.chain(upto).map(|(tenant, _)| tenant.clone()).collect();
        order.retain(|tenant| !without.contains(tenant));
        let mut taken = Vec::new();
        while taken.len() < most && !order.is_empty() {
            let each = ((most - taken.len()) / order.len()).max(1);
            let mut rest = Vec::new();
            for tenant in order {
                let n_most = each.min(most - taken.len());
                let Some(queue) = self.tenants.get_mut(&tenant) else {
                    continue;
                };
                let runs = queue.take(n_most);
                self.held.remove(&tenant, runs.len());
                let is_empty = queue.runs.is_empty();
                taken.extend(runs.into_iter().map(|run| RunKey::new(tenant.clone(), run)));
                if n_most > 0 {
                    self.last = Some(tenant.clone());
                }
                if is_empty {
                    // The tenant loses its place in the order.
                    self.tenants.remove(&tenant);
                } else {
                    rest.push(tenant);
                }
            }
            order = rest;
        }
        taken
    }
}

/// A key after every run of the tenant.
pub(crate) fn end_of(tenant: TenantId) -> RunKey {
    /// The last millisecond that an id can encode.
    const LAST: i64 = (1 << 48) - 1;
    RunKey::new(tenant, RunId::from_parts(Timestamp::from_millis(LAST), [255; 10]))
}

impl Engine {
    pub(crate) async fn run_inboxes(self) {
        let stop = self.shared.stop.clone();
        let mut next_sweep = tokio::time::Instant::now();
        let mut hearing = TaskPool::new(ROUND);
        while !stop.is_cancelled() {
            if tokio::time::Instant::now() >= next_sweep {
                self.sweep().await;
                next_sweep = tokio::time::Instant::now() + self.shared.options.poll;
            }
            let (runs, inherited) = self.shared.inboxes.take(hearing.free());
            if runs.is_empty() && inherited.is_empty() && hearing.are_empty() {
                tokio::select! {
                    biased;
                    () = stop.cancelled() => {}
                    () = self.shared.inboxes.told.notified() => {}
                    () = self.shared.wake_hints.inboxes.notified() => next_sweep = tokio::time::Instant::now(),
                    () = tokio::time::sleep_until(next_sweep) => {}
                }
                continue;
            }
            for run in runs {
                self.begin_hearing(&mut hearing, run, None);
            }
            if !inherited.is_empty() {
                self.claim_and_hear(&mut hearing, inherited).await;
            }
            let ended = hearing.round().await;
            let is_trouble = ended.into_iter().any(|heard| !heard.unwrap_or(false));
            if is_trouble && self.paused_for(AFTER_TROUBLE).await {
                break;
            }
        }
        hearing.rest().await;
    }

    fn begin_hearing(
        &self,
        hearing: &mut TaskPool<RunKey, bool>,
        run: RunKey,
        suspects: Option<Arc<tokio::sync::OwnedSemaphorePermit>>,
    ) {
        let shared = &self.shared;
        // The sweep will find it again.
        if shared.run_backoff.is_left_alone(&run) {
            return;
        }
        let Some(slot) = shared.inboxes.slots.take(&run.tenant) else {
            return shared.inboxes.tell(run);
        };
        let (engine, key) = (self.clone(), run.clone());
        let span = of_run(&run);
        let work = async move {
            let heard = engine.attend(&key, Box::pin(engine.hear(&key))).await;
            drop((slot, suspects));
            if let Err(error) = &heard {
                store_failed("inbox not read", error);
            }
            heard.is_ok() || engine.shared.run_backoff.is_left_alone(&key)
        };
        if !hearing.begin(run.clone(), work.instrument(span)) {
            shared.inboxes.tell(run);
        }
    }

    /// Claims runs left by a process that may have died because of them before they consume their inbox.
    /// Suspects, which have one chance left, are claimed one by one.
    async fn claim_and_hear(&self, hearing: &mut TaskPool<RunKey, bool>, runs: Vec<RunKey>) {
        let shared = &self.shared;
        let suspects = shared.inboxes.suspects.begin(u32::MAX).map(Arc::new);
        let most = usize::from(suspects.is_some());
        match shared
            .store
            .claim(Mailbox::Inbox, shared.epoch, &runs, most)
            .await
        {
            Ok(claimed) => {
                if claimed.len() < runs.len() {
                    // Another process has them, or they wait for the one suspect: let the sweep find them
                    // again.
                    shared.inboxes.recover();
                }
                for run in claimed {
                    self.begin_hearing(hearing, run, suspects.clone());
                }
            }
            Err(error) => {
                store_failed("cannot claim inboxes", &error);
                shared.inboxes.recover();
            }
        }
    }

    /// Finds runs with rows that no hint announced: those of an earlier epoch or another process. If the
    /// queue runs out of space for a tenant, the next sweep continues there.
    async fn sweep(&self) {
        let Inboxes {
            pending,
            is_recovering,
            ..
        } = &self.shared.inboxes;
        let begins_at = pending.lock().swept.take();
        let is_inherited = is_recovering.load(Ordering::Relaxed);
        if begins_at.is_none() {
            is_recovering.store(false, Ordering::Relaxed);
        }
        let mut after = begins_at.clone();
        loop {
            let page = self
                .shared
                .store
                .runs_with_inbox(self.shared.epoch, after.as_ref(), SWEEP_PAGE);
            match page.await {
                Ok(runs) => {
                    let is_last = runs.len() < SWEEP_PAGE;
                    after = runs.last().cloned();
                    let mut pending = pending.lock();
                    let left_out = pending.add_page(runs, MAX_PENDING, is_inherited);
                    if let Some(tenant) = left_out {
                        if is_inherited {
                            is_recovering.store(true, Ordering::Relaxed);
                        }
                        after = Some(end_of(tenant));
                    }
                    if is_last {
                        if begins_at.is_some() {
                            // Begin from the start again, so that no earlier run is skipped forever.
                            pending.swept = None;
                        }
                        return;
                    }
                }
                Err(error) => {
                    if is_inherited {
                        is_recovering.store(true, Ordering::Relaxed);
                    }
                    return store_failed("cannot read inboxes", &error);
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(tenant: &str, n: u8) -> RunKey {
        let tenant = TenantId::parse(tenant).expect("valid");
        RunKey::new(tenant, RunId::from_parts(Timestamp::from_millis(0), [n; 10]))
    }

    fn runs(numbers: impl IntoIterator<Item = u8>) -> Vec<RunKey> {
        numbers.into_iter().map(|n| of("acme", n)).collect()
    }

    #[test]
    fn runs_with_frequent_messages_do_not_starve_others() {
        let mut pending = Pending::default();
        pending.add_page(runs(0..10), 99, false);
        let mut heard = BTreeSet::new();
        for _ in 0..4 {
            // The first runs get messages in every round.
            pending.add_page(runs(0..3), 99, false);
            let round = pending.take(3, &[]);
            assert_eq!(round.len(), 3);
            heard.extend(round);
        }
        assert!(heard.into_iter().eq(runs(0..10)));
        // After the last run comes the first.
        pending.add_page(runs(0..10), 99, false);
        assert_eq!(pending.take(3, &[]), runs([2, 3, 4]));
        assert_eq!(pending.take(99, &[]), runs([5, 6, 7, 8, 9, 0, 1]));
        assert_eq!(pending.take(3, &[]), []);
    }

    #[test]
    fn a_tenant_with_many_runs_does_not_starve_others() {
        let mut pending = Pending::default();
        pending.add_page(runs(0..200), 1_000, false);
        assert!(pending.add(of("zeta", 1), 1_000));
        let round = pending.take(4, &[]);
        assert_eq!(round.len(), 4);
        assert!(round.contains(&of("zeta", 1)));
        assert!(pending.add(of("zeta", 1), 1_000));
        let acme = TenantId::parse("acme").expect("valid");
        assert_eq!(pending.take(4, &[acme]), [of("zeta", 1)]);
    }

    #[test]
    fn a_sweep_continues_where_the_queue_was_full() {
        let mut pending = Pending::default();
        // A tenant may take three quarters of the space.
        assert_eq!(pending.add_page(runs(0..2), 4, false), None);
        let acme = TenantId::parse("acme").expect("valid");
        let mut page = runs(2..5);
        page.push(of("zeta", 0));
        assert_eq!(pending.add_page(page, 4, false), None);
        assert_eq!(pending.swept, Some(of("acme", 2)));
        assert_eq!(pending.add_page(runs(5..7), 4, false), Some(acme));
        let mut round = pending.take(99, &[]);
        round.sort();
        assert_eq!(round, [runs(0..3), vec![of("zeta", 0)]].concat());
        // A run that is already queued needs no space.
        assert_eq!(pending.add_page(runs(3..6), 4, true), None);
        assert!(pending.add(of("acme", 4), 4) && !pending.add(of("acme", 6), 4));
        assert!(pending.inherited.contains(&of("acme", 3)));
    }
}
