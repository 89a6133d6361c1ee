//! Telling receivers what happens to their runs: at least once, in order for each, for up to a day.
//!
//! ```text
//!   outbox --expand--> deliveries --(receiver leased, one attempt at a time)--> delivered
//!                          ^                                               '--> failed: pause, then again
//!                          '--------------------------------------------------- given up after a day
//! ```
//!
//! The rows are the truth; what an append says only shortens the wait. A receiver that is slow or away costs a slot
//! while an attempt lasts and then waits for its time, so it keeps nobody else from being told, and no run waits for
//! any. A process that dies leaves a lease, and whoever takes it over tells what was not settled once more.

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

/// Runs whose events are made deliveries of at once.
const ROUND: usize = 64;
/// Events of a run read at once.
const PAGE: usize = 256;
/// LoadBudget for a page of a log while all of it is folded again.
const FOLDING: usize = 16 << 20;
/// What a receiver is told in a row before others have their turn.
const BURST: usize = 16;
/// Rounds are at least this far apart: what is appended meanwhile costs one look and not one each.
const GATHER: Duration = Duration::from_millis(20);
/// Pause before a receiver is looked at again whose deliveries could not be read, or could not be settled.
const AFTER_TROUBLE: Duration = Duration::from_millis(500);
/// Receivers remembered that failed, each with its time; beyond it they are found by polling.
const MAX_DATES: usize = 4_096;
/// How much later than a receiver is due it is looked for, so that it is found.
const MARGIN: Duration = Duration::from_millis(2);
/// Receivers told at once that have one chance left.
const SUSPECTS: usize = 8;
/// Deaths of processes in a row, with a receiver in hand and no attempt settled in between, after which its deliveries are
/// given up. Far more than quarantine a run: a push is owed to somebody, and seldom what ends a process.
const HOPELESS: u32 = 20;
/// Tries to say how an attempt ended while the store is away, before it is left to the next lease.
const SETTLE_TRIES: u32 = 8;

/// Who tells, and how many at once.
#[derive(Debug)]
pub(crate) struct Pushes {
    slots: Slots,
    /// Runs whose events are made deliveries of, shared by tenants.
    expanding: Slots,
    suspects: Suspects,
    /// Outboxes with one chance left.
    suspect_outboxes: Suspects,
    /// Whether the outboxes that are found next were left by a process that may have died of them.
    is_recovering: AtomicBool,
    freed: Notify,
    stirred: Notify,
    /// When receivers are due that failed here, the first on top. A rough guide: the rows are looked at every so often
    /// anyway.
    due: Mutex<BinaryHeap<Reverse<Instant>>>,
    dated: Notify,
    /// Whether this process has heard of a receiver at all; without one an append wakes nobody.
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

    /// Looks for what another process left.
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
            suspects: self.suspects.load_budget(),
        }
    }

    /// Something was appended.
    pub(crate) fn stir(&self) {
        if self.is_used.load(Ordering::Relaxed) {
            self.stirred.notify_one();
        }
    }

    /// A receiver is due after a pause.
    fn due_after(&self, pause: Duration) {
        let mut due = self.due.lock();
        if due.len() < MAX_DATES {
            due.push(Reverse(Instant::now() + pause + MARGIN));
            self.dated.notify_one();
        }
    }

    /// Forgets who is due by now; whether there was any, and when the next is.
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

/// What comes after an attempt.
enum Next {
    /// The one behind it.
    GoOn,
    /// Nothing, for now.
    Stop,
}

impl Engine {
    /// Registers a receiver with a run, at most so many.
    ///
    /// # Errors
    /// See [`WriteError`].
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

    /// Lets what was given up be tried again: all of a receiver's, or the one of an event. Says how many there were.
    ///
    /// # Errors
    /// See [`WriteError`].
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

    /// Makes deliveries, leases receivers that are due, and tells them.
    pub(crate) async fn run_pushes(self) {
        let Some(notifier) = self.shared.options.notifier.clone() else {
            return;
        };
        let stop = self.shared.stop.clone();
        let mut next_look = Instant::now();
        // One more than there are slots: so no round waits for a run to end.
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

    /// Makes deliveries of everything that was appended; of how many runs, and whether it met any that are in hand since
    /// an earlier look, of which more may have been appended than they know.
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
            let notes = match self.shared.store.outbox(epoch, after.as_ref(), ROUND).await {
                Ok(notes) => notes,
                Err(error) => {
                    if is_recovering {
                        self.shared.pushes.recover();
                    }
                    tracing::warn!(%error, "cannot read what is to be pushed");
                    return (n_expanded, is_more_left);
                }
            };
            let is_last = notes.len() < ROUND;
            after = notes.last().map(|note| note.run.clone());
            let n_found = notes.len();
            let notes = self.with_slots(notes);
            if notes.len() < n_found {
                is_more_left = true;
                if is_recovering {
                    self.shared.pushes.recover();
                }
            }
            // What else a tenant has that has its share waits as well.
            let crowded = self.shared.pushes.expanding.crowded();
            after = after.map(|last: RunKey| match crowded.contains(&last.tenant) {
                true => end_of(last.tenant),
                false => last,
            });
            let (notes, suspects) = if is_recovering {
                self.claim_outboxes(notes).await
            } else {
                (notes, None)
            };
            for (note, slot) in notes {
                let (engine, notifier, suspects) = (self.clone(), Arc::clone(notifier), suspects.clone());
                let (span, key) = (of_run(&note.run), note.run.clone());
                let work = async move {
                    let run = note.run.clone();
                    let expanded = engine
                        .attend(&run, Box::pin(engine.expand(&notifier, note)))
                        .await;
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
            // Receivers do not wait until every outbox has been looked at.
            if leased.elapsed() >= GATHER {
                self.lease_due(notifier).await;
                leased = Instant::now();
            }
        }
    }

    /// The outboxes that may be worked at, as far as there are slots for their tenants.
    fn with_slots(&self, notes: Vec<OutboxRow>) -> Vec<(OutboxRow, Slot)> {
        let Shared {
            pushes, run_backoff, ..
        } = &*self.shared;
        let with_slot = |note: OutboxRow| {
            let slot = pushes.expanding.take(&note.run.tenant)?;
            Some((note, slot))
        };
        let is_tried = |note: &OutboxRow| !run_backoff.is_left_alone(&note.run);
        notes.into_iter().filter(is_tried).filter_map(with_slot).collect()
    }

    /// Notes that outboxes are in hand that a process left which may have died of them; those that may be worked at.
    async fn claim_outboxes(
        &self,
        notes: Vec<(OutboxRow, Slot)>,
    ) -> (Vec<(OutboxRow, Slot)>, Option<Arc<OwnedSemaphorePermit>>) {
        let shared = &self.shared;
        let runs: Vec<_> = notes.iter().map(|(note, _)| note.run.clone()).collect();
        if runs.is_empty() {
            return (notes, None);
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
        let is_claimed = |(note, _): &(OutboxRow, Slot)| claimed.contains(&note.run);
        (notes.into_iter().filter(is_claimed).collect(), suspects)
    }

    /// Makes deliveries of what was appended to a run.
    async fn expand(&self, notifier: &Arc<dyn Notifier>, note: OutboxRow) -> Result<(), CommandError> {
        let store = &self.shared.store;
        let Some(mut before) = self.as_of(&note.run, note.from).await? else {
            return Ok(());
        };
        let mut from = note.from;
        while from < note.to {
            let limit = usize::try_from(note.to.0 - from.0).map_or(PAGE, |left| left.min(PAGE));
            let Some(page) = store.events(&note.run, from, limit).await? else {
                return Ok(());
            };
            let Some(last) = page.events.last() else {
                let why = format!("run {}: the log ends before event {from}", note.run);
                return Err(CommandError::Internal(why));
            };
            let part = OutboxRow {
                run: note.run.clone(),
                from,
                to: last.seq.next(),
            };
            let updates;
            (before, updates) = self.advance(before, page.events, Some(notifier)).await?;
            let n_made = updates.len();
            match store.expand(&part, &updates, self.lease_time()).await {
                Ok(true) => Counters::add(&self.shared.counters.pushes_made, n_made),
                // More was appended meanwhile, or another process was first: it is looked at again.
                Ok(false) => return Ok(()),
                Err(WriteError::Unavailable(why)) => return Err(CommandError::Unavailable(why)),
                Err(WriteError::Corrupt(why)) => return Err(CommandError::Internal(why)),
            }
            from = part.to;
        }
        Ok(())
    }

    /// Folds a page of its log into a run, where decisions are made, and says what receivers are told of it.
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

    /// A run as it was when its log had a length, with room for it; none if it is gone.
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
            // The fold of then is gone. All of the log before is read again, and the run grows meanwhile.
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

    /// Leases receivers that are due, as many as there are free slots; whether there may be more.
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

    /// Longer than an attempt and what is settled around it, so that no lease ends while its holder lives.
    fn push_lease(&self) -> Duration {
        let Options { timeout, .. } = self.shared.options.push;
        self.shared.options.lease.max(timeout.saturating_mul(2))
    }

    /// Tells a receiver what waits for it, one after the other, until one attempt fails.
    async fn tell(&self, notifier: &dyn Notifier, lease: &LeasedPush, slot: Option<Slot>) {
        let waiting = match self.shared.store.waiting(&lease.run, &lease.id, BURST).await {
            Ok(waiting) if slot.is_some() => waiting,
            // Without a slot somebody else may begin at once.
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

    /// Makes one attempt and says how it ended. `then` is what follows unless it has to be made again; without it
    /// another delivery waits.
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

    /// Gives up what three processes died at; it can be tried again.
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

    /// Twice as long as the last one, up to a bound, and never the same for two.
    fn push_pause(&self, attempts: u64, retry_after: Option<Duration>) -> Duration {
        let Options {
            first_pause,
            longest_pause,
            ..
        } = self.shared.options.push;
        let doublings = u32::try_from(attempts).unwrap_or(u32::MAX).min(30);
        let longest = first_pause.saturating_mul(1 << doublings).min(longest_pause);
        let [entropy_source] = self.shared.entropy_source.roll::<1>();
        let pause = longest / 2 + longest.mul_f64(f64::from(entropy_source) / 510.0);
        pause.max(retry_after.unwrap_or_default().min(longest_pause))
    }

    /// Ends a lease without an attempt.
    async fn let_lease_go(&self, lease: &LeasedPush, pause: Duration) {
        let due = self.lease_time().plus_millis(millis(pause));
        self.settle_attempt(lease, None, Then::Due(due)).await;
    }

    /// Says how an attempt ended; whether the lease is still this process's. What could not be said in time is tried
    /// again by whoever has the next lease.
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

/// How others are told what happens to runs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Options {
    /// Receivers that are told something at once.
    pub max_active: usize,
    /// How long an attempt may take.
    pub timeout: Duration,
    /// The pause after a first attempt that failed; about half of it at least.
    pub first_pause: Duration,
    /// The longest pause between two attempts.
    pub longest_pause: Duration,
    /// How long something is tried before it is given up.
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
