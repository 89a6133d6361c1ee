//! Delivers updates to the subscriptions of runs: at least once, in order per subscription, for up to a day.
//!
//! ```text
//!   outbox --expand--> deliveries --(lease the subscription, one attempt at a time)--> delivered
//!                          ^                                                  '--> failed: backoff, retry
//!                          '------------------------------------------------------ dead letter after a day
//! ```
//!
//! The rows are authoritative; a wake-up from an append only shortens the wait. A slow or unreachable
//! subscription takes a slot during an attempt and then waits for its backoff, so it delays neither other
//! subscriptions nor runs. If a process dies, another takes over its leases and repeats the attempts that
//! were not settled.

use std::{
    cmp::Reverse,
    collections::BinaryHeap,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use parking_lot::Mutex;
use tokio::sync::OwnedSemaphorePermit;
use tokio::{sync::Notify, time::Instant};
use tracing::Instrument;
use wopr_core::{Run, RunKey, Seq, Timestamp};
use wopr_store::{
    Attempted, DeliveryRow, LeasedPush, Mailbox, OutboxRow, PushRow, Put, Quota, ReadError, StoredEvent,
    Then, Update, WriteError,
};

use crate::{
    CommandError, Delivery, Engine, Notifier, Undelivered, View,
    engine::Shared,
    inbox::end_of,
    load_budget::{LoadPermit, Purpose},
    loading::Fetched,
    logs::of_run,
    panics::{Panicked, caught},
    quarantine::Suspects,
    slots::{Slot, Slots},
    stats::Counters,
    task_pool::TaskPool,
    view::{decode_base, decode_events},
};

/// Maximum runs whose events are expanded into deliveries at once.
const ROUND: usize = 64;
/// Events of a run read at once.
const PAGE: usize = 256;
/// Load budget for a page of the log while the whole log is folded again.
const FOLDING: usize = 16 << 20;
/// Deliveries of one subscription made in a row before others get their turn.
const BURST: usize = 16;
/// Minimum interval between rounds. Appends in between cost one look together instead of one each.
const GATHER: Duration = Duration::from_millis(20);
/// Pause before a subscription is leased again whose deliveries could not be read or settled.
const AFTER_TROUBLE: Duration = Duration::from_millis(500);
/// Maximum due times of failed subscriptions remembered. Polling finds the others.
const MAX_DATES: usize = 4_096;
/// Delay after a due time before looking, so that the subscription is certainly due by then.
const MARGIN: Duration = Duration::from_millis(2);
/// Maximum suspect subscriptions, which have one chance left, served at once.
const SUSPECTS: usize = 8;
/// Consecutive deaths of processes that held a subscription, without a settled attempt in between, after
/// which its deliveries are dead-lettered. Far more than quarantine a run: deliveries are owed to a client
/// and rarely kill a process.
const HOPELESS: u32 = 20;
/// Tries to settle an attempt while the store is unavailable, before it is left to the next lease.
const SETTLE_TRIES: u32 = 8;

/// State of the push loop: slots, wake-ups and due times.
#[derive(Debug)]
pub(crate) struct Pushes {
    slots: Slots,
    /// Slots for expanding outboxes, shared between tenants.
    expanding: Slots,
    suspects: Suspects,
    /// Suspect outboxes, which have one chance left.
    suspect_outboxes: Suspects,
    /// The next outboxes found may have been left by a process that died because of them.
    is_recovering: AtomicBool,
    freed: Notify,
    stirred: Notify,
    /// Due times of subscriptions that failed in this process, the earliest on top. Only a hint: the loop
    /// polls the rows anyway.
    due: Mutex<BinaryHeap<Reverse<Instant>>>,
    dated: Notify,
    /// This process has seen a subscription. Until then, appends do not wake the loop.
    is_used: AtomicBool,
}

impl Pushes {
    pub(crate) fn new(max_active: usize) -> Self {
        Self {
            slots: Slots::new(max_active),
            expanding: Slots::new(ROUND),
            suspects: Suspects::new(SUSPECTS),
            suspect_outboxes: Suspects::new(1),
            is_recovering: AtomicBool::new(true),
            freed: Notify::new(),
            stirred: Notify::new(),
            due: Mutex::default(),
            dated: Notify::new(),
            is_used: AtomicBool::new(false),
        }
    }

    /// Treats the next outboxes found as left by a dead process.
    pub(crate) fn recover(&self) {
        self.is_recovering.store(true, Ordering::Relaxed);
    }

    fn quota(&self) -> Quota {
        Quota {
            rows: self.slots.free(),
            per_tenant: self.slots.share(),
            bytes: usize::MAX,
            bytes_per_tenant: usize::MAX,
            without: self.slots.crowded(),
            suspects: self.suspects.free(),
        }
    }

    /// Wakes the loop after an append.
    pub(crate) fn stir(&self) {
        if self.is_used.load(Ordering::Relaxed) {
            self.stirred.notify_one();
        }
    }

    /// Remembers that a subscription is due after the pause.
    fn due_after(&self, pause: Duration) {
        let mut due = self.due.lock();
        if due.len() < MAX_DATES {
            due.push(Reverse(Instant::now() + pause + MARGIN));
            self.dated.notify_one();
        }
    }

    /// Drops the due times up to `now`. Returns whether there were any, and the next due time.
    fn due_by(&self, now: Instant) -> (bool, Option<Instant>) {
        let mut due = self.due.lock();
        let before = due.len();
        while due.peek().is_some_and(|Reverse(at)| *at <= now) {
            due.pop();
        }
        (due.len() < before, due.peek().map(|Reverse(at)| *at))
    }

    pub(crate) fn is_used(&self) {
        self.is_used.store(true, Ordering::Relaxed);
    }
}

/// How to continue after an attempt.
enum Next {
    /// With the next delivery.
    GoOn,
    Stop,
}

impl Engine {
    /// Registers a subscription to a run, which may have at most `most`.
    pub async fn put_push(&self, run: &RunKey, row: PushRow, most: usize) -> Result<Put, WriteError> {
        self.shared.pushes.is_used();
        let put = self
            .shared
            .store
            .put_push(run, row, most, self.lease_time())
            .await?;
        self.shared.wake_hints.pushes.notify_one();
        Ok(put)
    }

    /// Retries dead-lettered deliveries: all of a subscription, or the one for event `seq`. Returns how many
    /// there were.
    pub async fn retry_push(&self, run: &RunKey, push: &str, seq: Option<Seq>) -> Result<usize, WriteError> {
        let now = self.lease_time();
        let n_retried = self.shared.store.retry_push(run, push, seq, now).await?;
        self.shared.pushes.is_used();
        self.shared.wake_hints.pushes.notify_one();
        Ok(n_retried)
    }

    pub(crate) fn lease_time(&self) -> Timestamp {
        self.shared.lease_clock.lease(Duration::ZERO).0
    }

    /// The push loop: expands outboxes, leases due subscriptions and delivers their updates.
    pub(crate) async fn run_pushes(self) {
        let Some(notifier) = self.shared.options.notifier.clone() else {
            return;
        };
        let stop = self.shared.stop.clone();
        let mut next_look = Instant::now();
        // One more than there are slots, so that no round waits for a task to end.
        let mut expanding = TaskPool::new(ROUND + 1);
        while !stop.is_cancelled() {
            let began = Instant::now();
            let (n_expanded, is_more_left) = self.expand_all(&notifier, &mut expanding).await;
            let (is_due, _) = self.shared.pushes.due_by(began);
            let mut is_full = false;
            if n_expanded > 0 || is_due || began >= next_look {
                is_full = self.lease_due(&notifier).await;
                next_look = began + self.shared.options.poll;
            }
            if let (_, Some(due)) = self.shared.pushes.due_by(began) {
                next_look = next_look.min(due);
            }
            tokio::select! {
                biased;
                () = stop.cancelled() => {}
                () = self.shared.pushes.freed.notified(), if is_full => next_look = began,
                () = self.shared.pushes.dated.notified() => {}
                () = self.shared.pushes.stirred.notified() => {}
                () = self.shared.wake_hints.pushes.notified() => next_look = began,
                () = std::future::ready(()), if is_more_left || !expanding.are_empty() => {}
                () = tokio::time::sleep_until(next_look) => {}
            }
            tokio::select! {
                biased;
                () = stop.cancelled() => {}
                () = tokio::time::sleep_until(began + GATHER) => {}
            }
        }
        expanding.rest().await;
    }

    /// Expands all outboxes. Returns how many runs were expanded, and whether to look again soon: an outbox
    /// was skipped because its run was already in progress, and may have grown since.
    async fn expand_all(
        &self,
        notifier: &Arc<dyn Notifier>,
        expanding: &mut TaskPool<RunKey, bool>,
    ) -> (usize, bool) {
        let (mut n_expanded, mut is_more_left) = (0, false);
        let (mut after, mut leased) = (None, Instant::now());
        let is_recovering = self.shared.pushes.is_recovering.swap(false, Ordering::Relaxed);
        loop {
            let epoch = self.shared.epoch;
            let rows = match self.shared.store.outbox(epoch, after.as_ref(), ROUND).await {
                Ok(rows) => rows,
                Err(error) => {
                    if is_recovering {
                        self.shared.pushes.recover();
                    }
                    tracing::warn!(%error, "cannot read what is to be pushed");
                    return (n_expanded, is_more_left);
                }
            };
            let is_last = rows.len() < ROUND;
            after = rows.last().map(|row| row.run.clone());
            let mut rows = rows;
            rows.retain(|row| !self.shared.run_backoff.is_left_alone(&row.run));
            let n_found = rows.len();
            let rows = self.with_slots(rows);
            if rows.len() < n_found {
                is_more_left = true;
                if is_recovering {
                    self.shared.pushes.recover();
                }
            }
            // If a tenant has used up its share, its remaining outboxes are skipped.
            let crowded = self.shared.pushes.expanding.crowded();
            after = after.map(|last: RunKey| match crowded.contains(&last.tenant) {
                true => end_of(last.tenant),
                false => last,
            });
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
                        tracing::warn!(%error, "deliveries not made yet");
                    }
                    expanded.is_ok()
                };
                let has_begun = expanding.begin(key, work.instrument(span));
                is_more_left |= !has_begun;
            }
            for expanded in expanding.round().await {
                n_expanded += usize::from(expanded.unwrap_or(false));
            }
            if is_last {
                if n_expanded > 0 {
                    self.shared.pushes.is_used();
                }
                return (n_expanded, is_more_left);
            }
            // Due subscriptions do not wait until every outbox has been looked at.
            if leased.elapsed() >= GATHER {
                self.lease_due(notifier).await;
                leased = Instant::now();
            }
        }
    }

    /// Keeps the outboxes whose tenant has a free slot.
    fn with_slots(&self, rows: Vec<OutboxRow>) -> Vec<(OutboxRow, Slot)> {
        let slots = &self.shared.pushes.expanding;
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
        let suspects = shared.pushes.suspect_outboxes.begin(u32::MAX).map(Arc::new);
        let most = usize::from(suspects.is_some());
        let claimed = match shared
            .store
            .claim(Mailbox::Outbox, shared.epoch, &runs, most)
            .await
        {
            Ok(claimed) => claimed,
            Err(error) => {
                tracing::warn!(%error, "cannot claim outboxes");
                Vec::new()
            }
        };
        if claimed.len() < runs.len() {
            shared.pushes.recover();
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
                return Err(CommandError::Internal(why));
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
                Err(WriteError::Unavailable(why)) => return Err(CommandError::Unavailable(why)),
                Err(WriteError::Corrupt(why)) => return Err(CommandError::Internal(why)),
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
        let Shared {
            load_budget, store, ..
        } = &*self.shared;
        let Some(Fetched { loaded, held, turn }) = self.fetch(key, Purpose::View).await? else {
            return Ok(None);
        };
        let (workflow, version) = (&loaded.summary.workflow, &loaded.summary.version);
        let plan = self.version(&key.tenant, workflow, version).await?;
        let mut view = View {
            key: key.clone(),
            plan,
            run: Run::default(),
            summary: loaded.summary,
            held,
        };
        let n_bytes = view.held.n_bytes();
        let is_newer = loaded.snapshot.as_ref().is_some_and(|base| base.head > head);
        if is_newer {
            // The snapshot is newer than `head`. The whole log is read again from the start, and the run
            // grows meanwhile.
            drop((loaded.snapshot, loaded.tail, turn));
            view.held = LoadPermit::default();
            view.held = Box::pin(load_budget.hold(Purpose::View, &key.tenant, n_bytes + FOLDING)).await?;
        } else {
            let (base, mut tail) = (loaded.snapshot, loaded.tail);
            tail.retain(|event| event.seq < head);
            let work = move || {
                if let Some(base) = base {
                    view.run = decode_base(&view.key, &base)?;
                }
                fold(&mut view, &decode_events(&tail)?)?;
                Ok::<_, ReadError>(view)
            };
            view = self.think(&key.tenant, n_bytes, work).await??;
            drop(turn);
        }
        while view.run.head < head {
            let limit = usize::try_from(head.0 - view.run.head.0).map_or(PAGE, |left| left.min(PAGE));
            let Some(page) = store.events(key, view.run.head, limit).await? else {
                return Ok(None);
            };
            if page.events.is_empty() {
                return Err(CommandError::Internal(format!(
                    "run {key}: the log ends before {head}"
                )));
            }
            (view, _) = self.advance(view, page.events, None).await?;
        }
        Ok(Some(view))
    }

    /// Leases due subscriptions, as many as there are free slots. Returns `true` if there may be more.
    async fn lease_due(&self, notifier: &Arc<dyn Notifier>) -> bool {
        let shared = &self.shared;
        let free = shared.pushes.slots.free();
        if free == 0 {
            return true;
        }
        if let Err(error) = shared.lease_clock.set(&*shared.store, &*shared.clock).await {
            tracing::warn!(%error, "cannot read the store's clock");
        }
        let (now, until) = shared.lease_clock.lease(self.push_lease());
        let quota = shared.pushes.quota();
        let leased = match shared.store.lease_pushes(shared.epoch, now, until, &quota).await {
            Ok(leased) => leased,
            Err(error) => {
                tracing::warn!(%error, "cannot lease receivers of pushes");
                return false;
            }
        };
        let is_full = leased.len() >= quota.per_tenant || !quota.without.is_empty();
        for lease in leased {
            shared.pushes.is_used();
            let slot = shared.pushes.slots.take(&lease.run.tenant);
            let suspect = shared.pushes.suspects.begin(lease.deaths);
            let (engine, notifier) = (self.clone(), Arc::clone(notifier));
            let span = of_run(&lease.run);
            let work = async move {
                engine.tell(&*notifier, &lease, slot).await;
                drop(suspect);
                engine.shared.pushes.freed.notify_one();
            };
            shared.tasks.spawn(work.instrument(span));
        }
        is_full
    }

    /// The duration of a lease: longer than an attempt and its settling, so that it does not expire while its
    /// holder lives.
    fn push_lease(&self) -> Duration {
        let Options { timeout, .. } = self.shared.options.push;
        self.shared.options.lease.max(timeout.saturating_mul(2))
    }

    /// Sends the pending deliveries of a subscription one after the other, until one attempt fails.
    async fn tell(&self, notifier: &dyn Notifier, lease: &LeasedPush, slot: Option<Slot>) {
        let waiting = match self.shared.store.waiting(&lease.run, &lease.id, BURST).await {
            Ok(waiting) if slot.is_some() => waiting,
            // Without a slot, another process may lease it at once.
            Ok(_) => return self.let_lease_go(lease, Duration::ZERO).await,
            Err(error) => {
                tracing::warn!(run = %lease.run, %error, "cannot read what waits for a receiver");
                return self.let_lease_go(lease, AFTER_TROUBLE).await;
            }
        };
        let Some(n_before_last) = waiting.len().checked_sub(1) else {
            let rest = Then::Rest(self.lease_time());
            self.settle_attempt(lease, None, rest).await;
            return;
        };
        let is_given_up = lease.deaths >= HOPELESS;
        for (n, delivery) in waiting.into_iter().enumerate() {
            let then = if n < n_before_last {
                None
            } else if n + 1 < BURST {
                Some(Then::Rest(self.lease_time()))
            } else {
                Some(Then::Due(self.lease_time()))
            };
            let next = if is_given_up {
                self.give_push_up(lease, delivery.seq, then).await
            } else {
                self.attempt_push(notifier, lease, delivery, then).await
            };
            match next {
                Next::GoOn => {}
                Next::Stop => return,
            }
        }
    }

    /// Makes one attempt and settles it. `then` applies unless the attempt is to be retried; `None` means
    /// that another delivery is pending.
    async fn attempt_push(
        &self,
        notifier: &dyn Notifier,
        lease: &LeasedPush,
        delivery: DeliveryRow,
        then: Option<Then>,
    ) -> Next {
        let DeliveryRow {
            seq,
            body,
            attempts,
            enqueued_at,
            ..
        } = delivery;
        let delivery = Delivery {
            run: lease.run.clone(),
            push: lease.id.clone(),
            receiver: lease.body.clone(),
            seq,
            body,
        };
        let counters = &self.shared.counters;
        Counters::add(&counters.pushes_active, 1);
        let timeout = self.shared.options.push.timeout;
        let outcome = tokio::select! {
            biased;
            outcome = tokio::time::timeout(timeout, caught(notifier.deliver(&delivery))) => Some(outcome),
            () = self.shared.stop.cancelled() => None,
        };
        counters.pushes_active.fetch_sub(1, Ordering::Relaxed);
        let failure = match outcome {
            None => {
                self.let_lease_go(lease, Duration::ZERO).await;
                return Next::Stop;
            }
            Some(Ok(Ok(Ok(())))) => None,
            Some(Ok(Ok(Err(failure)))) => Some(failure),
            Some(Ok(Err(Panicked(text)))) => {
                Counters::add(&counters.panics, 1);
                tracing::error!(run = %lease.run, panic = text, "push panicked");
                Some(undelivered("the attempt broke off by a fault of this host"))
            }
            Some(Err(_)) => Some(undelivered("no answer in time")),
        };
        let now = self.lease_time();
        let go_on = || then.unwrap_or_else(|| Then::GoOn(self.shared.lease_clock.lease(self.push_lease()).1));
        let (attempted, then, next) = match failure {
            None => {
                Counters::add(&counters.pushes_delivered, 1);
                (Attempted::Delivered, go_on(), Next::GoOn)
            }
            Some(Undelivered { reason, .. }) if self.is_too_old(enqueued_at, now) => {
                Counters::add(&counters.pushes_given_up, 1);
                tracing::warn!(run = %lease.run, push = lease.id, seq = seq.0, reason, "push given up");
                let given_up = Attempted::GivenUp {
                    error: reason,
                    at: now,
                };
                (given_up, go_on(), Next::GoOn)
            }
            Some(Undelivered { reason, retry_after }) => {
                Counters::add(&counters.pushes_failed, 1);
                tracing::debug!(run = %lease.run, push = lease.id, seq = seq.0, attempts, reason, "push failed");
                let pause = self.push_pause(attempts, retry_after);
                let due = now.plus_millis(millis(pause));
                self.shared.pushes.due_after(pause);
                (Attempted::Failed { error: reason }, Then::Due(due), Next::Stop)
            }
        };
        if self.settle_attempt(lease, Some((seq, attempted)), then).await {
            next
        } else {
            Next::Stop
        }
    }

    /// Dead-letters a delivery that processes kept dying at. It can be retried by request.
    async fn give_push_up(&self, lease: &LeasedPush, seq: Seq, then: Option<Then>) -> Next {
        Counters::add(&self.shared.counters.pushes_given_up, 1);
        let error = "processes died while it was told";
        tracing::error!(push = lease.id, seq = seq.0, reason = error, "push given up");
        let given_up = Attempted::GivenUp {
            error: error.to_owned(),
            at: self.lease_time(),
        };
        let then = then.unwrap_or_else(|| Then::GoOn(self.shared.lease_clock.lease(self.push_lease()).1));
        if self.settle_attempt(lease, Some((seq, given_up)), then).await {
            Next::GoOn
        } else {
            Next::Stop
        }
    }

    fn is_too_old(&self, enqueued_at: Timestamp, now: Timestamp) -> bool {
        let age = now.millis().saturating_sub(enqueued_at.millis());
        u64::try_from(age).is_ok_and(|age| age >= millis(self.shared.options.push.give_up_after))
    }

    /// The backoff before the next attempt: doubles with each attempt, up to a limit, with random jitter.
    fn push_pause(&self, attempts: u64, retry_after: Option<Duration>) -> Duration {
        let Options {
            first_pause,
            longest_pause,
            ..
        } = self.shared.options.push;
        let doublings = u32::try_from(attempts).unwrap_or(u32::MAX).min(30);
        let longest = first_pause.saturating_mul(1 << doublings).min(longest_pause);
        let [byte] = self.shared.entropy_source.roll::<1>();
        let pause = longest / 2 + longest.mul_f64(f64::from(byte) / 510.0);
        pause.max(retry_after.unwrap_or_default().min(longest_pause))
    }

    /// Ends a lease without an attempt.
    async fn let_lease_go(&self, lease: &LeasedPush, pause: Duration) {
        let due = self.lease_time().plus_millis(millis(pause));
        self.settle_attempt(lease, None, Then::Due(due)).await;
    }

    /// Settles an attempt. Returns `true` if this process still has the lease. If the store stays
    /// unavailable, the holder of the next lease repeats the attempt.
    async fn settle_attempt(
        &self,
        lease: &LeasedPush,
        attempted: Option<(Seq, Attempted)>,
        then: Then,
    ) -> bool {
        let mut pause = Duration::from_millis(50);
        for _ in 0..SETTLE_TRIES {
            match self
                .shared
                .store
                .settle_push(lease, attempted.clone(), then)
                .await
            {
                Ok(is_ours) => return is_ours,
                Err(error) => tracing::warn!(run = %lease.run, %error, "push not settled"),
            }
            if self.paused_for(pause).await {
                break;
            }
            pause *= 2;
        }
        false
    }
}

fn undelivered(reason: &str) -> Undelivered {
    Undelivered {
        reason: reason.to_owned(),
        retry_after: None,
    }
}

fn fold(view: &mut View, events: &[wopr_core::Recorded]) -> Result<(), ReadError> {
    let folded = std::mem::take(&mut view.run).fold(&view.plan, events);
    view.run = folded.map_err(|error| ReadError::Corrupt(format!("run {}: {error}", view.key)))?;
    Ok(())
}

fn millis(time: Duration) -> u64 {
    u64::try_from(time.as_millis()).unwrap_or(u64::MAX)
}

/// Timing and limits of push notifications.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Options {
    /// Maximum concurrent delivery attempts.
    pub max_active: usize,
    /// Time limit of one attempt.
    pub timeout: Duration,
    /// The backoff after the first failed attempt; jitter shortens it to half at most.
    pub first_pause: Duration,
    /// The maximum backoff.
    pub longest_pause: Duration,
    /// Age at which a failing delivery is dead-lettered.
    pub give_up_after: Duration,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            max_active: 256,
            timeout: Duration::from_secs(15),
            first_pause: Duration::from_secs(1),
            longest_pause: Duration::from_secs(3_600),
            give_up_after: Duration::from_secs(24 * 3_600),
        }
    }
}
