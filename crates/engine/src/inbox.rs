//! Inboxes: deliver messages from other runs.
//!
//! The rows are the truth; the set here only says which runs to look at. However many rows a run has, it hears them in
//! one append, and however many runs there are, each has its turn.

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
    logs::of_run,
    quarantine::Suspects,
    slots::{Held, Slots},
    task_pool::TaskPool,
};

/// Runs that hear at once: enough to fill a group commit.
const ROUND: usize = 256;
/// Runs remembered; beyond it the sweep finds them.
const MAX_PENDING: usize = 65_536;
/// Rows read by one page of the sweep.
const SWEEP_PAGE: usize = 256;
/// Pause after a round in which a run could not hear, unless it is left alone for a while of its own.
const AFTER_TROUBLE: Duration = Duration::from_millis(500);

#[derive(Debug)]
pub(crate) struct Inboxes {
    pending: Mutex<Pending>,
    told: Notify,
    /// Those that hear, shared by tenants.
    slots: Slots,
    suspects: Suspects,
    /// Whether what the next sweep finds was left by a process that may have died of it.
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

/// Runs that wait for their turn.
#[derive(Debug, Default)]
struct Pending {
    tenants: BTreeMap<TenantId, Queue>,
    held: Held,
    /// The tenant whose turn was last.
    last: Option<TenantId>,
    /// Runs that a process left which may have died of them.
    inherited: HashSet<RunKey>,
    /// Where the last sweep ended because there was no more room, and the next begins.
    swept: Option<RunKey>,
}

/// Runs of a tenant that wait for their turn.
#[derive(Debug, Default)]
struct Queue {
    runs: BTreeSet<RunId>,
    /// The last that had its turn. The next round begins behind it, so that those who are told ever again do not keep
    /// others from theirs.
    last: Option<RunId>,
}

impl Queue {
    /// Takes out runs in the order of ids, and from the first again after the last.
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

    /// Looks for what another process left.
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
    /// Takes in a run; `false` if there is no room for it.
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

    /// Takes in a page of a sweep; a tenant for whose runs there is no room is left out from there on, and its last run
    /// that had room is kept.
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

    /// Takes out a round: as much of each tenant as of another, as far as it has as much.
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
                let load_budget = each.min(most - taken.len());
                let Some(queue) = self.tenants.get_mut(&tenant) else {
                    continue;
                };
                let runs = queue.take(load_budget);
                self.held.remove(&tenant, runs.len());
                let is_empty = queue.runs.is_empty();
                taken.extend(runs.into_iter().map(|run| RunKey::new(tenant.clone(), run)));
                if load_budget > 0 {
                    self.last = Some(tenant.clone());
                }
                if is_empty {
                    // Its place in the order is forgotten with it.
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

/// Behind every run of a tenant.
pub(crate) fn end_of(tenant: TenantId) -> RunKey {
    /// The last millisecond that an id can tell.
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
            let (runs, inherited) = self.shared.inboxes.take(hearing.load_budget());
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
        // The sweep tells of it again.
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
                tracing::warn!(%error, "inbox not read");
            }
            heard.is_ok() || engine.shared.run_backoff.is_left_alone(&key)
        };
        if !hearing.begin(run.clone(), work.instrument(span)) {
            shared.inboxes.tell(run);
        }
    }

    /// Lets runs hear that a process left which may have died of them: noted first, and those with one chance left one by
    /// one.
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
                    // Another process has them, or they wait for the one suspect: found again.
                    shared.inboxes.recover();
                }
                for run in claimed {
                    self.begin_hearing(hearing, run, suspects.clone());
                }
            }
            Err(error) => {
                tracing::warn!(%error, "cannot claim inboxes");
                shared.inboxes.recover();
            }
        }
    }

    /// Finds runs with rows that no hint announced: those of an earlier epoch or another process. As many as there is
    /// room for; where there is none for a tenant, the next sweep goes on there.
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
                            // From the start again, so that nobody before it is passed over for good.
                            pending.swept = None;
                        }
                        return;
                    }
                }
                Err(error) => {
                    if is_inherited {
                        is_recovering.store(true, Ordering::Relaxed);
                    }
                    return tracing::warn!(%error, "cannot read inboxes");
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
    fn runs_told_again_and_again_keep_no_others_from_their_turn() {
        let mut pending = Pending::default();
        pending.add_page(runs(0..10), 99, false);
        let mut heard = BTreeSet::new();
        for _ in 0..4 {
            // The first are told in every round.
            pending.add_page(runs(0..3), 99, false);
            let round = pending.take(3, &[]);
            assert_eq!(round.len(), 3);
            heard.extend(round);
        }
        assert!(heard.into_iter().eq(runs(0..10)));
        // Behind the last of its keys comes the first.
        pending.add_page(runs(0..10), 99, false);
        assert_eq!(pending.take(3, &[]), runs([2, 3, 4]));
        assert_eq!(pending.take(99, &[]), runs([5, 6, 7, 8, 9, 0, 1]));
        assert_eq!(pending.take(3, &[]), []);
    }

    #[test]
    fn a_tenant_with_many_runs_leaves_turns_for_others() {
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
    fn a_sweep_goes_on_where_there_was_no_more_room() {
        let mut pending = Pending::default();
        // A tenant has three quarters at the most.
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
        // One that is there needs no room.
        assert_eq!(pending.add_page(runs(3..6), 4, true), None);
        assert!(pending.add(of("acme", 4), 4) && !pending.add(of("acme", 6), 4));
        assert!(pending.inherited.contains(&of("acme", 3)));
    }
}
