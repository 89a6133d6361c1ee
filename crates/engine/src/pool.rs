//! Pools: lease the rows of one queue of work, and do that work within bounds.
//!
//! ```text
//!   due rows --lease--> slot, bytes, suspects? --yes--> the work of the queue --> settled, parked, released
//!   hint, poll, freed --^                       '--no---------------------------> released
//! ```
//!
//! One pool runs per queue, so that slow work in one does not delay another. The rows are authoritative: a
//! hint only shortens the sleep. A lease only prevents duplicate work; what an attempt appends is fenced. If a
//! process dies, its leases expire, and another process takes the rows over.
//!
//! What has waited longest comes first. Slots and bytes are shared between tenants, and no more is leased than
//! there is room for. A row whose run is in backoff stays leased, so that it neither comes back at once nor
//! starves others.

use std::{
    collections::HashMap,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use parking_lot::Mutex;
use tokio::sync::{Notify, OwnedSemaphorePermit};
use tokio_util::task::TaskTracker;
use tracing::Instrument;
use wopr_core::{RunKey, TenantId, Timestamp};
use wopr_store::{Fence, Leased, Queue, Quota, Times, WorkKey, WriteError};

use crate::{
    Engine, Options,
    commit::StoredEffect,
    logs::{of_run, store_failed},
    quarantine::Suspects,
    slots::{Slot, Slots},
};

/// Timers fired at once: enough to fill a group commit.
const TIMERS: usize = 256;
/// Duration of a timer's lease, unless leases are configured shorter. Firing takes milliseconds.
const TIMER_LEASE: Duration = Duration::from_secs(5);
/// Maximum concurrent suspects, which have one chance left. Attempts and deliveries may take long, so suspects
/// do not run one by one.
const SUSPECTS: usize = 8;
/// Maximum bytes of bodies leased at once.
const LEASE_BYTES: usize = 16 << 20;
/// Minimum interval between two rounds of leasing while most slots are taken, so that one round leases more
/// than the row for which a slot became free.
const GATHER: Duration = Duration::from_millis(10);
/// Pause after a failure to read or write the store.
const AFTER_TROUBLE: Duration = Duration::from_millis(500);
/// First pause if a row is due that cannot be leased: its tenant or the suspects have no room, or its lease
/// ends by the clock of leases and not by the time of day. It doubles, up to [`AFTER_TROUBLE`], while nothing
/// can be leased: the two clocks may differ by much.
const HELD: Duration = Duration::from_millis(20);
/// Minimum interval between lease checks of an attempt, however often its run changes.
const LOOK_AGAIN: Duration = Duration::from_millis(500);

/// The capacity of one queue, and what wakes its loop.
#[derive(Debug)]
pub(crate) struct Pool {
    queue: Queue,
    /// Duration of a lease that is not renewed.
    lease: Duration,
    max: usize,
    slots: Slots,
    /// Bytes of bodies in hand, and of outcomes until they are recorded.
    bytes: Slots,
    suspects: Suspects,
    /// Notified when there may be something to lease.
    stirred: Notify,
    /// Notified when capacity becomes free.
    pub(crate) freed: Notify,
    /// When the loop looks next, if it knows of a row that is due then.
    next: Mutex<Option<Timestamp>>,
    /// More rows were due than were leased in the last round.
    is_behind: AtomicBool,
    /// The leases held, to be notified when they may be lost.
    held: Mutex<HashMap<RunKey, Listeners>>,
    /// The work in hand.
    working: TaskTracker,
}

/// The leases on rows of one run, each with its wake-up.
type Listeners = Vec<(WorkKey, Arc<Notify>)>;

/// A row of work in hand: its lease, and the capacity it takes.
pub(crate) struct Lease {
    engine: Engine,
    pub(crate) run: RunKey,
    pub(crate) key: WorkKey,
    pub(crate) fence: Fence,
    /// When the row became available.
    pub(crate) since: Timestamp,
    /// Deaths of processes that held the row.
    pub(crate) deaths: u32,
    capacity: Option<Capacity>,
    listening: Option<Listening>,
}

struct Capacity {
    _slot: Slot,
    bytes: Slot,
    _suspect: Option<OwnedSemaphorePermit>,
}

/// Listens for changes of a run, until dropped.
struct Listening {
    engine: Engine,
    run: RunKey,
    queue: Queue,
    heard: Arc<Notify>,
}

/// How the work on a row ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum End {
    /// An append or another write ended the lease, or it is lost, or it is left to expire.
    Over,
    /// The lease is given back; the row is due at this time.
    Release(Timestamp),
    /// The row waits until this time, or until it is woken. Nothing is appended.
    Park(Option<Timestamp>),
}

/// When to look for due rows again.
struct Look {
    after: Duration,
    /// Freed capacity may let more be leased.
    is_waiting_for_capacity: bool,
}

impl Pool {
    pub(crate) fn new(queue: Queue, options: &Options) -> Self {
        let (max, suspects, lease) = match queue {
            Queue::Timers => (TIMERS, 1, options.lease.min(TIMER_LEASE)),
            Queue::Effects => (options.max_effects, SUSPECTS, options.lease),
            Queue::Deliveries => (options.push.max_active, SUSPECTS, options.lease),
        };
        Self {
            queue,
            lease,
            max,
            slots: Slots::new(max),
            bytes: Slots::new(options.max_effect_bytes),
            suspects: Suspects::new(suspects),
            stirred: Notify::new(),
            freed: Notify::new(),
            next: Mutex::default(),
            is_behind: AtomicBool::new(false),
            held: Mutex::default(),
            working: TaskTracker::new(),
        }
    }

    /// The quota for the next lease: no limit per tenant, unless the loop is behind or a tenant has used up its
    /// share.
    fn quota(&self) -> Quota {
        let mut without = self.slots.crowded();
        without.extend(self.bytes.crowded());
        without.sort_unstable();
        without.dedup();
        let bytes = self.bytes.free().min(LEASE_BYTES);
        let room = self.slots.room();
        let (rows, bytes_per_tenant) = match self.is_behind.load(Ordering::Relaxed) || !without.is_empty() {
            true => (self.slots.free(), self.bytes.share().min(bytes)),
            false => (room, bytes),
        };
        Quota {
            rows,
            per_tenant: room,
            bytes,
            bytes_per_tenant,
            without,
            suspects: self.suspects.free(),
        }
    }

    /// How many rows of a tenant can begin now.
    pub(crate) fn room(&self, tenant: &TenantId) -> usize {
        match self.bytes.room_of(tenant) {
            0 => 0,
            _ => self.slots.room_of(tenant),
        }
    }

    /// Returns `true` if no work can begin.
    fn is_full(&self) -> bool {
        self.slots.free() == 0 || self.bytes.free() == 0
    }

    /// Takes the capacity for a row with a body of this size.
    fn take(&self, tenant: &TenantId, n_bytes: usize, deaths: u32) -> Option<Capacity> {
        let bytes = self.bytes.take_sized(tenant, n_bytes)?;
        let slot = self.slots.take(tenant)?;
        Some(Capacity {
            _slot: slot,
            bytes,
            _suspect: self.suspects.begin(deaths),
        })
    }

    /// Takes room for bytes that an attempt brings into memory besides its request, if there is room for all of them. A
    /// tenant that has little in hand gets any number sooner or later: more than half of all count as half.
    pub(crate) fn take_bytes(&self, tenant: &TenantId, n_bytes: usize) -> Option<Slot> {
        self.bytes.take_whole(tenant, n_bytes)
    }

    /// Makes the loop look for due rows.
    pub(crate) fn stir(&self) {
        self.stirred.notify_one();
    }

    /// Makes the loop look at `due` at the latest, by the clock of its queue.
    pub(crate) fn hint(&self, due: Timestamp) {
        let mut next = self.next.lock();
        if next.is_none_or(|next| due < next) {
            *next = Some(due);
            self.stirred.notify_one();
        }
    }

    /// Waits until no work is in hand.
    pub(crate) async fn rest(&self) {
        self.working.close();
        if !self.working.is_empty() {
            tracing::info!(queue = ?self.queue, n = self.working.len(), "waiting for work under way");
        }
        self.working.wait().await;
    }

    fn listen(&self, engine: &Engine, run: &RunKey, key: &WorkKey) -> Listening {
        let heard = Arc::new(Notify::new());
        let listener = (key.clone(), Arc::clone(&heard));
        self.held.lock().entry(run.clone()).or_default().push(listener);
        Listening {
            engine: engine.clone(),
            run: run.clone(),
            queue: self.queue,
            heard,
        }
    }

    /// Makes the holders of leases on rows of a run check them.
    pub(crate) fn look(&self, run: &RunKey) {
        for (_, heard) in self.held.lock().get(run).into_iter().flatten() {
            heard.notify_one();
        }
    }

    /// Makes every holder of a lease check it. Goes through the runs in key order, so that simulations are
    /// repeatable.
    pub(crate) fn look_all(&self) {
        let held = self.held.lock();
        let mut of_runs: Vec<_> = held.iter().collect();
        of_runs.sort_unstable_by_key(|(run, _)| *run);
        for (_, heard) in of_runs.into_iter().flat_map(|(_, of_run)| of_run) {
            heard.notify_one();
        }
    }

    /// Makes the holder of the lease on a row that was ended check it.
    pub(crate) fn ended(&self, run: &RunKey, key: &WorkKey) {
        let held = self.held.lock();
        let of_run = held.get(run).into_iter().flatten();
        for (_, heard) in of_run.filter(|(of, _)| of == key) {
            heard.notify_one();
        }
    }
}

impl Drop for Listening {
    fn drop(&mut self) {
        let mut held = self.engine.pool(self.queue).held.lock();
        if let Some(of_run) = held.get_mut(&self.run) {
            of_run.retain(|(_, heard)| !Arc::ptr_eq(heard, &self.heard));
            if of_run.is_empty() {
                held.remove(&self.run);
            }
        }
    }
}

impl Lease {
    /// Does work while the lease lasts, and renews it meanwhile. Returns `None` if the lease is lost or the
    /// engine stops; the work is dropped then.
    pub(crate) async fn hold<T>(&mut self, work: impl Future<Output = T>) -> Option<T> {
        let done = tokio::select! {
            biased;
            done = work => Some(done),
            () = self.lost() => None,
            () = self.engine.shared.stop.cancelled() => None,
        };
        // The outcome of the work must not wake its own holder.
        self.listening = None;
        done
    }

    /// Renews the lease, periodically and when the run changes, until it is lost.
    async fn lost(&self) {
        let shared = &self.engine.shared;
        let length = self.engine.pool(self.key.queue).lease;
        let renewing = length / 3;
        let never = Notify::new();
        let heard = self
            .listening
            .as_ref()
            .map_or(&never, |listening| &listening.heard);
        loop {
            let slept = tokio::time::timeout(renewing, heard.notified()).await;
            let (_, until) = shared.lease_clock.lease(length);
            match shared.store.renew(&self.run, &self.key, self.fence, until).await {
                Ok(true) => {}
                Ok(false) => return,
                Err(error) => store_failed("lease not renewed", &error),
            }
            if slept.is_ok() {
                tokio::time::sleep(LOOK_AGAIN.min(renewing)).await;
            }
        }
    }

    /// The end of this lease if it is extended now.
    pub(crate) fn extended(&self) -> Timestamp {
        let length = self.engine.pool(self.key.queue).lease;
        self.engine.shared.lease_clock.lease(length).1
    }

    /// Counts memory that the work has taken in addition.
    pub(crate) fn grow(&mut self, n_bytes: usize) {
        if let Some(capacity) = &mut self.capacity {
            capacity.bytes.grow(n_bytes);
        }
    }

    /// Gives the row back to be leased again in its turn.
    pub(crate) const fn give_back(&self) -> End {
        End::Release(self.since)
    }
}

impl Engine {
    pub(crate) fn pool(&self, queue: Queue) -> &Pool {
        match queue {
            Queue::Timers => &self.shared.timers,
            Queue::Effects => &self.shared.effects,
            Queue::Deliveries => &self.shared.deliveries,
        }
    }

    /// The clock by which rows of a queue come due: timers by the time of day, all else by that of leases.
    fn queue_time(&self, queue: Queue) -> Timestamp {
        match queue {
            Queue::Timers => self.now(),
            Queue::Effects | Queue::Deliveries => self.lease_time(),
        }
    }

    /// Leases the due rows of a queue and begins work on them.
    pub(crate) async fn run_pool(self, queue: Queue) {
        let (leaving, pool) = (&self.shared.leaving, self.pool(queue));
        let mut held = HELD;
        while !leaving.is_cancelled() {
            let look = match self.lease_due(pool, &mut held).await {
                Ok(look) => look,
                Err(error) => {
                    store_failed("cannot lease due work", &error);
                    Look {
                        after: AFTER_TROUBLE,
                        is_waiting_for_capacity: false,
                    }
                }
            };
            tokio::select! {
                biased;
                () = leaving.cancelled() => {}
                () = pool.freed.notified(), if look.is_waiting_for_capacity => {}
                () = pool.stirred.notified() => {}
                () = tokio::time::sleep(look.after) => {}
            }
        }
    }

    /// Leases the rows of a queue that are due, as far as there is capacity, and begins work on them.
    async fn lease_due(&self, pool: &Pool, held: &mut Duration) -> Result<Look, WriteError> {
        let Pool { queue, lease, .. } = *pool;
        let shared = &self.shared;
        let poll = shared.options.poll;
        if pool.is_full() {
            return Ok(Look {
                after: poll,
                is_waiting_for_capacity: true,
            });
        }
        if let Err(error) = shared.lease_clock.set(&*shared.store, &*shared.clock).await {
            store_failed("cannot read the store's clock", &error);
        }
        let (now, until) = shared.lease_clock.lease(lease);
        let times = Times {
            due: self.queue_time(queue),
            now,
            until,
        };
        let quota = pool.quota();
        let leased = shared.store.lease(queue, shared.epoch, times, &quota).await?;
        let n_leased = leased.len();
        let n_bytes: usize = leased.iter().map(|row| row.body.len()).sum();
        let is_behind =
            n_leased >= quota.per_tenant || n_bytes >= quota.bytes_per_tenant || !quota.without.is_empty();
        pool.is_behind.store(is_behind, Ordering::Relaxed);
        for row in leased {
            // The outcome could not be recorded, so the row stays leased: nobody retries before that expires,
            // but another process may succeed then. Deliveries do not need the run.
            if queue == Queue::Deliveries || !shared.run_backoff.is_left_alone(&row.run) {
                self.begin_work(row, None);
            }
        }
        let look_after = |after| Look {
            after,
            is_waiting_for_capacity: is_behind,
        };
        if n_leased > 0 {
            *held = HELD;
            if is_behind {
                return Ok(Look {
                    after: if pool.slots.free() * 2 >= pool.max {
                        Duration::ZERO
                    } else {
                        GATHER
                    },
                    is_waiting_for_capacity: false,
                });
            }
        }
        // Reset the hint before reading: a hint that arrives in between would be lost otherwise.
        pool.next.lock().take();
        let Some(next) = shared.store.next_due(queue).await? else {
            return Ok(look_after(poll));
        };
        let now = self.queue_time(queue);
        if next > now {
            let mut hint = pool.next.lock();
            if hint.is_none_or(|hint| next < hint) {
                *hint = Some(next);
            }
            return Ok(look_after(
                Duration::from_millis(next.millis_since(now)).min(poll),
            ));
        }
        if n_leased > 0 {
            return Ok(look_after(Duration::ZERO));
        }
        let pause = *held;
        *held = (pause * 2).min(AFTER_TROUBLE);
        Ok(look_after(pause))
    }

    /// Begins work on a row that this process has leased. An effect may have been decoded already. Without
    /// capacity, or when the engine takes up no more work, gives the row back instead.
    pub(crate) fn begin_work(&self, row: Leased, effect: Option<StoredEffect>) {
        let Leased {
            run,
            key,
            body,
            since,
            fence,
            deaths,
        } = row;
        let queue = key.queue;
        let pool = self.pool(queue);
        let n_bytes = effect
            .as_ref()
            .map_or(body.len(), |effect| effect.request.n_bytes());
        let capacity = pool.take(&run.tenant, n_bytes, deaths);
        let has_capacity = capacity.is_some();
        let mut lease = Lease {
            listening: Some(pool.listen(self, &run, &key)),
            engine: self.clone(),
            run,
            key,
            fence,
            since,
            deaths,
            capacity,
        };
        let span = of_run(&lease.run);
        let working = async move {
            let engine = lease.engine.clone();
            let begins = has_capacity && !engine.shared.leaving.is_cancelled();
            // Boxed, so that the work of one queue does not take the memory of another's.
            let end = match (queue, effect) {
                (Queue::Effects, effect) if !begins => {
                    Box::pin(engine.give_back_unbegun(&lease, effect, &body)).await
                }
                (Queue::Timers | Queue::Deliveries, _) if !begins => lease.give_back(),
                (Queue::Timers, _) => Box::pin(engine.fire(&lease)).await,
                (Queue::Effects, Some(effect)) => engine.attempt(&mut lease, effect).await,
                (Queue::Effects, None) => engine.attempt_stored(&mut lease, body).await,
                (Queue::Deliveries, _) => Box::pin(engine.deliver(&mut lease)).await,
            };
            match (end, queue) {
                (End::Park(due), Queue::Effects) => engine.park_soon(lease, due),
                (end, _) => {
                    engine.end_work(&lease, end).await;
                    drop(lease);
                    engine.pool(queue).freed.notify_one();
                }
            }
        };
        let working = pool.working.track_future(working.instrument(span));
        self.shared.tasks.spawn(working);
    }

    async fn end_work(&self, lease: &Lease, end: End) {
        let Lease { run, key, fence, .. } = lease;
        let store = &self.shared.store;
        let (done, due) = match end {
            End::Over => return,
            End::Release(due) => (store.release(run, key, *fence, due).await, Some(due)),
            End::Park(due) => (store.park(run, key, *fence, due).await, due),
        };
        match (done, due) {
            (Ok(true), Some(due)) => self.pool(key.queue).hint(due),
            (Ok(_), _) => {}
            (Err(error), _) => {
                store_failed("lease not given back, it will run out", &error);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use wopr_core::RunId;

    use super::*;

    #[tokio::test]
    async fn holders_are_woken_in_the_order_of_their_runs() {
        let pool = Pool::new(Queue::Effects, &Options::default());
        let (saw, mut looks) = tokio::sync::mpsc::unbounded_channel();
        for n in (0_u8..32).rev() {
            let run = RunId::from_parts(Timestamp::from_millis(n.into()), [0; 10]);
            let run = RunKey::new(TenantId::parse("acme").expect("valid"), run);
            let heard = Arc::new(Notify::new());
            let listener = (WorkKey::effect("call"), Arc::clone(&heard));
            pool.held.lock().insert(run, vec![listener]);
            let saw = saw.clone();
            tokio::spawn(async move {
                heard.notified().await;
                saw.send(n).expect("the test listens");
            });
        }
        drop(saw);
        tokio::task::yield_now().await;
        pool.look_all();
        for n in 0..32 {
            assert_eq!(looks.recv().await, Some(n));
        }
    }
}
