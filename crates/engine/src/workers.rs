//! Activities: workers outside this host lease them, say that they are alive, and end them.
//!
//! An activity is an effect whose row is offered in a worker queue ([`wopr_store::Offers`]). A lease of it is a fence:
//! an outcome under the fence of the newest lease ends the attempt, one under an older fence is refused by the append.
//! A lease that is not renewed ends, and the activity is handed out again, as the same attempt under the same
//! idempotency key, until it has lost so many leases that the host ends the attempt ([`crate::lost_activities`]). The
//! run's log says nothing of leases.

use std::{collections::BTreeMap, sync::OnceLock, time::Duration};

use serde_json::Value;
use tokio::{
    sync::oneshot,
    task::JoinSet,
    time::{Instant, sleep_until},
};
use wopr_core::{Activity, Command, Failure, Object, RunKey, StepId, TenantId, Timestamp, TraceContext};
use wopr_store::{Fence, Leased, OfferRequest, OfferThen, OfferedQueue, Outage, WriteError};

use crate::{
    CommandError, Done, Engine, Request, SeenWorker, SideRows,
    commanding::RETRY_AFTER_MS,
    commit::{StoredEffect, Won, effect_key},
    logs::store_failed,
    panics::{Panicked, caught},
    rates::Rates,
    stats::Counters,
    worker_queues::{Answer, Full, Look, Next, Place, WorkerQueues},
    worker_roster::{Attempt, Roster},
};

/// Looks at queues that are under way at the same time.
const LOOKS: usize = 8;
/// The most bytes of bodies that one look leases.
const LOOK_BYTES: usize = 8 << 20;
/// Pause after a failure of the store.
const AFTER_TROUBLE: Duration = Duration::from_millis(500);
/// How long to wait before looking again at rows that a limit, or another process, keeps back.
const HELD_BACK: Duration = Duration::from_millis(500);
/// The most queues that are listed.
const MOST_LISTED: usize = 1_000;

#[derive(Debug, Clone)]
pub struct WorkerOptions {
    /// Duration of a lease that is not renewed.
    pub lease: Duration,
    /// The most calls of one tenant that wait at the same time.
    pub max_waiting: usize,
    /// The number of leases in a row without an outcome that end an attempt.
    pub max_lost_leases: u32,
    /// Limits on all activities of a tenant together.
    pub of_tenant: WorkerLimits,
    /// Limits on queues, by name, in each tenant.
    pub of_queues: BTreeMap<String, WorkerLimits>,
}

/// Limits on activities; none where absent.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct WorkerLimits {
    /// How many may be leased at once.
    pub max_leased: Option<usize>,
    /// How many may be leased in a second. Each process counts its own.
    pub per_second: Option<u32>,
}

impl Default for WorkerOptions {
    fn default() -> Self {
        Self {
            lease: Duration::from_mins(1),
            max_waiting: 1_000,
            max_lost_leases: 10,
            of_tenant: WorkerLimits::default(),
            of_queues: BTreeMap::new(),
        }
    }
}

impl WorkerOptions {
    fn has_limits(&self) -> bool {
        let all = self.of_queues.values().chain([&self.of_tenant]);
        all.into_iter().any(|limits| limits.max_leased.is_some())
    }
}

/// A worker's call for activities.
#[derive(Debug, Clone)]
pub struct ActivityCall {
    pub tenant: TenantId,
    pub queue: String,
    /// The name that the worker gives itself.
    pub worker: String,
    /// The most activities that it wants.
    pub max: usize,
    /// How long it waits for the first.
    pub wait: Duration,
}

/// An activity that a worker has leased.
#[derive(Debug, Clone, PartialEq)]
pub struct LeasedActivity {
    pub run: RunKey,
    pub step: StepId,
    pub attempt: u32,
    pub fence: Fence,
    pub activity: Activity,
    /// The same for every attempt of the step.
    pub idempotency_key: String,
    pub trace: Option<TraceContext>,
    /// Since when it could be leased.
    pub since: Timestamp,
    /// How long the lease lasts.
    pub lease: Duration,
}

/// A lease that a worker claims to have.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct WorkerLease {
    pub fence: Fence,
    pub queue: String,
    pub worker: String,
}

/// What this process keeps of workers.
#[derive(Debug, Default)]
pub(crate) struct Workers {
    pub(crate) queues: WorkerQueues,
    roster: Roster,
    rates: Rates<(TenantId, Option<String>)>,
    /// The time before this process during which none was up.
    outage: Option<Outage>,
    /// Whether the end of a lease can make room for another lease.
    has_limits: OnceLock<bool>,
}

impl Workers {
    pub(crate) fn after(outage: Option<Outage>) -> Self {
        Self {
            outage,
            ..Self::default()
        }
    }
}

/// A call that waits. If it is dropped, what it was dealt goes back.
struct WaitingCall {
    engine: Engine,
    place: Place,
    number: u64,
    answer: oneshot::Receiver<Answer>,
    worker: String,
    got: Vec<(Attempt, Fence)>,
}

impl Drop for WaitingCall {
    fn drop(&mut self) {
        let Self {
            engine,
            place,
            number,
            answer,
            worker,
            got,
        } = self;
        let workers = &engine.shared.workers;
        workers.queues.leave(place, *number);
        let (tenant, queue) = &*place;
        let (got, lease) = (std::mem::take(got), engine.shared.options.workers.lease);
        workers
            .roster
            .got(tenant, queue, worker, got, lease, engine.now());
        if let Ok(Ok(rows)) = answer.try_recv() {
            let (tasks, engine) = (&engine.shared.tasks, engine.clone());
            tasks.spawn(async move { engine.give_back_activities(rows).await });
        }
    }
}

/// How a worker ended an activity, and the details that it gives with that.
#[derive(Debug, Clone, PartialEq)]
pub struct EndedActivity {
    /// Recorded like those of a heartbeat, in the append that records the outcome.
    pub details: Option<Value>,
    pub outcome: Result<Object, Failure>,
}

impl From<Result<Object, Failure>> for EndedActivity {
    fn from(outcome: Result<Object, Failure>) -> Self {
        Self {
            details: None,
            outcome,
        }
    }
}

impl Engine {
    /// Leases activities of a queue, as soon as there are any. Returns none if the call's time is over or the engine
    /// stops.
    ///
    /// # Errors
    /// [`CommandError::Busy`] if too many calls of the tenant wait already.
    ///
    /// # Cancel safety
    /// What a dropped call was dealt is given back.
    pub async fn lease_activities(&self, call: ActivityCall) -> Result<Vec<LeasedActivity>, CommandError> {
        let ActivityCall {
            tenant,
            queue,
            worker,
            max,
            wait,
        } = call;
        let (shared, deadline) = (&self.shared, Instant::now() + wait);
        let place = (tenant, queue);
        let (most, is_last_look) = (shared.options.workers.max_waiting, wait.is_zero());
        let called = shared.workers.queues.call(&place, max.max(1), is_last_look, most);
        let (number, answer) = called.map_err(|Full| CommandError::Busy {
            retry_after_ms: RETRY_AFTER_MS,
        })?;
        shared
            .workers
            .roster
            .waits(&place.0, &place.1, &worker, self.now());
        let mut waiting = WaitingCall {
            engine: self.clone(),
            place,
            number,
            answer,
            worker,
            got: Vec::new(),
        };
        let mut is_last = is_last_look;
        loop {
            tokio::select! {
                biased;
                answer = &mut waiting.answer => {
                    let rows = match answer {
                        Ok(Ok(rows)) => rows,
                        Ok(Err(cause)) => return Err(CommandError::Unavailable(cause)),
                        // The loop that answers has gone.
                        Err(_) => Vec::new(),
                    };
                    let leased = |row: &LeasedActivity| {
                        let attempt = (row.run.clone(), row.step.clone(), row.attempt);
                        (attempt, row.fence)
                    };
                    waiting.got = rows.iter().map(leased).collect();
                    Counters::add(&shared.counters.activities_leased, rows.len());
                    return Ok(rows);
                }
                () = shared.stop.cancelled() => return Ok(Vec::new()),
                () = sleep_until(deadline), if !is_last => {
                    is_last = true;
                    if shared.workers.queues.is_over(&waiting.place, number) {
                        return Ok(Vec::new());
                    }
                }
            }
        }
    }

    /// Renews the lease of an activity. Returns `false` if it is lost.
    pub async fn renew_activity(
        &self,
        run: &RunKey,
        step: &StepId,
        attempt: u32,
        lease: &WorkerLease,
    ) -> Result<bool, CommandError> {
        let (shared, WorkerLease { fence, queue, worker }) = (&self.shared, lease);
        let roster = &shared.workers.roster;
        roster.heard(&run.tenant, queue, worker, self.now());
        let lasts = shared.options.workers.lease;
        let (_, until) = shared.lease_clock.lease(lasts);
        let key = effect_key(step, attempt, 0);
        let then = OfferThen::Renew(until);
        let is_renewed = shared.store.set_offer(run, &key, *fence, then).await?;
        let attempt = (run.clone(), step.clone(), attempt);
        roster.renewed(&attempt, lease, is_renewed.then_some(lasts), self.now());
        Ok(is_renewed)
    }

    /// Ends an activity with the outcome of its worker, under the worker's lease if it has one. An outcome under a
    /// lease that was lost is refused as stale.
    pub async fn end_activity(
        &self,
        run: &RunKey,
        (step, attempt): (StepId, u32),
        lease: Option<&WorkerLease>,
        ending: impl Into<EndedActivity>,
        side_rows: SideRows,
    ) -> Result<Done, CommandError> {
        let EndedActivity { details, outcome } = ending.into();
        let won = lease.map(|lease| won(&step, attempt, lease.fence));
        let held = lease.map(|lease| ((run.clone(), step.clone(), attempt), lease));
        let progressed = details.map(|details| (step.clone(), details));
        let command = Command::Effect {
            step,
            attempt,
            outcome,
            retry_after_ms: None,
        };
        let command = match progressed {
            None => command,
            Some((step, details)) => Command::Progressed {
                step,
                attempt,
                details,
                then: Some(Box::new(command)),
            },
        };
        let once = side_rows.idempotency.clone();
        let done = Box::pin(self.command_fenced(run, None, &command, side_rows, won)).await;
        if let Some((attempt, lease)) = &held
            && matches!(done, Ok(Done::Fresh(_)) | Err(CommandError::Refused(_)))
        {
            let roster = &self.shared.workers.roster;
            roster.ended(attempt, lease, self.now());
        }
        if let Ok(Done::Fresh(_)) = &done {
            Counters::add(&self.shared.counters.activities_ended, 1);
        }
        match (done, once) {
            // The outcome may have been recorded before, which is why the run refuses it now.
            (Err(error @ CommandError::Refused(_)), Some(once)) => self.replay_or(error, &once).await,
            (done, _) => done,
        }
    }

    /// The worker queues of a tenant in which activities are.
    pub async fn worker_queues(&self, tenant: &TenantId) -> Result<Vec<OfferedQueue>, CommandError> {
        let now = self.lease_time();
        let queues = self
            .shared
            .store
            .offered_queues(tenant, now, None, MOST_LISTED)
            .await;
        Ok(queues?)
    }

    /// The workers of a tenant that this process knows.
    #[must_use]
    pub fn seen_workers(&self, tenant: &TenantId) -> Vec<SeenWorker> {
        self.shared.workers.roster.list(tenant)
    }

    /// Effects of a tenant's run have ended.
    pub(crate) fn activities_settled(&self, tenant: &TenantId) {
        let (options, workers) = (&self.shared.options.workers, &self.shared.workers);
        if *workers.has_limits.get_or_init(|| options.has_limits()) {
            workers.queues.freed(tenant, Instant::now());
        }
    }

    /// Looks at the queues in which calls wait, until the engine stops.
    pub(crate) async fn run_workers(self) {
        let shared = &self.shared;
        let queues = &shared.workers.queues;
        let mut looks = JoinSet::new();
        while !shared.stop.is_cancelled() {
            while looks.len() < LOOKS
                && let Some(look) = queues.next_look(Instant::now())
            {
                looks.spawn(self.clone().look_safely(look));
            }
            let next = queues.next_time();
            tokio::select! {
                biased;
                () = shared.stop.cancelled() => {}
                Some(_) = looks.join_next(), if !looks.is_empty() => {}
                () = queues.stirred.notified(), if looks.len() < LOOKS => {}
                () = at(next), if looks.len() < LOOKS => {}
            }
        }
        // Nobody waits any more for what these looks lease, so it goes back.
        while looks.join_next().await.is_some() {}
    }

    /// A look that panics ends as one that failed, so that its queue is looked at again.
    async fn look_safely(self, look: Look) {
        let looked = caught(Box::pin(self.look(&look))).await;
        if let Err(Panicked(text)) = looked {
            Counters::add(&self.shared.counters.panics, 1);
            tracing::error!(panic = text, "a look at a worker queue panicked");
            let next = Next::At(Instant::now() + AFTER_TROUBLE);
            let queues = &self.shared.workers.queues;
            queues.conclude(&look, Err(text.into()), next, false);
        }
    }

    /// Leases activities of a queue for the calls that wait in it.
    async fn look(&self, look: &Look) {
        let Self { shared } = self;
        let (options, workers) = (&shared.options.workers, &shared.workers);
        let (tenant, queue) = &look.place;
        let of_queue = options.of_queues.get(queue).copied().unwrap_or_default();
        let wanted = match self.allowed(look, of_queue) {
            Ok(wanted) => wanted,
            Err(next) => {
                workers
                    .queues
                    .conclude(look, Ok(Vec::new()), Next::At(next), false);
                return;
            }
        };
        if let Err(error) = shared.lease_clock.set(&*shared.store, &*shared.clock).await {
            store_failed("cannot read the store's clock", &error);
        }
        let (now, until) = shared.lease_clock.lease(options.lease);
        let request = OfferRequest {
            tenant: tenant.clone(),
            queue: queue.clone(),
            now,
            until,
            rows: wanted,
            bytes: LOOK_BYTES,
            most_of_queue: of_queue.max_leased,
            most_of_tenant: options.of_tenant.max_leased,
            max_lost: options.max_lost_leases,
            outage: workers.outage,
        };
        let mut found = shared.store.lease_offers(&request).await;
        let lost = found
            .as_mut()
            .map_or_else(|_| Vec::new(), |found| std::mem::take(&mut found.lost));
        let n_found = found.as_ref().map_or(0, |found| found.rows.len());
        self.not_taken(look, of_queue, wanted - n_found.min(wanted));
        let n_found = n_found + lost.len();
        let read_at = Instant::now();
        let poll = shared.store.is_shared().then(|| read_at + shared.options.poll);
        let mut is_held_back = false;
        let (found, next) = match found {
            Err(error) => {
                store_failed("cannot lease activities", &error);
                let (WriteError::Unavailable(cause) | WriteError::Corrupt(cause)) = error;
                (Err(cause), Next::At(read_at + AFTER_TROUBLE))
            }
            Ok(found) => {
                let next = match found.next {
                    Some(next) if next <= now && n_found > 0 => Next::AtOnce,
                    Some(next) if next <= now => {
                        is_held_back = true;
                        Next::At(read_at + HELD_BACK)
                    }
                    Some(next) => {
                        let left = u64::try_from(next.millis() - now.millis()).unwrap_or(0);
                        let next = read_at + Duration::from_millis(left);
                        Next::At(poll.map_or(next, |poll| poll.min(next)))
                    }
                    None => poll.map_or(Next::WhenStirred, Next::At),
                };
                let rows = found.rows.into_iter().filter_map(|row| read(row, options.lease));
                (Ok(rows.collect()), next)
            }
        };
        let unwanted = workers.queues.conclude(look, found, next, is_held_back);
        self.give_back_activities(unwanted).await;
        self.end_lost_activities(lost).await;
    }

    /// How many activities of those that are wanted the rates allow, or when they allow one.
    fn allowed(&self, look: &Look, of_queue: WorkerLimits) -> Result<usize, Instant> {
        let rates = &self.shared.workers.rates;
        let (tenant, queue) = &look.place;
        let now = Instant::now();
        let of_tenant = self.shared.options.workers.of_tenant;
        let by_queue = match of_queue.per_second {
            None => look.wanted,
            Some(rate) => rates.take((tenant.clone(), Some(queue.clone())), rate, look.wanted, now)?,
        };
        let by_tenant = match of_tenant.per_second {
            None => Ok(by_queue),
            Some(rate) => rates.take((tenant.clone(), None), rate, by_queue, now),
        };
        if of_queue.per_second.is_some() {
            let unused = by_queue - by_tenant.unwrap_or(0);
            rates.give_back(&(tenant.clone(), Some(queue.clone())), unused);
        }
        by_tenant
    }

    fn not_taken(&self, look: &Look, of_queue: WorkerLimits, n: usize) {
        let rates = &self.shared.workers.rates;
        let (tenant, queue) = &look.place;
        if of_queue.per_second.is_some() {
            rates.give_back(&(tenant.clone(), Some(queue.clone())), n);
        }
        if self.shared.options.workers.of_tenant.per_second.is_some() {
            rates.give_back(&(tenant.clone(), None), n);
        }
    }

    /// Puts activities back into their queue. One for which that fails comes back when its lease ends.
    async fn give_back_activities(&self, rows: Vec<LeasedActivity>) {
        let shared = &self.shared;
        for row in rows {
            let key = effect_key(&row.step, row.attempt, 0);
            let ready = match shared.workers.outage {
                // Each lease that ended in the outage is left out of the count once.
                Some(outage) if outage.contains(row.since) => outage.until.plus_millis(1),
                Some(_) | None => row.since,
            };
            let then = OfferThen::GiveBack(ready);
            let returned = shared.store.set_offer(&row.run, &key, row.fence, then).await;
            match returned {
                Ok(_) => shared
                    .workers
                    .queues
                    .offered(&(row.run.tenant, row.activity.queue)),
                Err(error) => store_failed("activity not given back", &error),
            }
        }
    }
}

async fn at(time: Option<Instant>) {
    match time {
        Some(time) => sleep_until(time).await,
        None => std::future::pending().await,
    }
}

/// The lease under which the attempt of an activity ends.
pub(crate) fn won(step: &StepId, attempt: u32, fence: Fence) -> Won {
    Won {
        key: effect_key(step, attempt, 0),
        fence,
        parked: None,
        may_go_on: false,
        // An activity is the first call of its step.
        call: (step.clone(), 0),
        goes_on: false,
        took: None,
    }
}

/// Reads a row that was leased. One that cannot be read stays leased, so that it does not block the others.
pub(crate) fn read(row: Leased, lease: Duration) -> Option<LeasedActivity> {
    let effect: StoredEffect = match serde_json::from_slice(&row.body) {
        Ok(effect) => effect,
        Err(error) => {
            tracing::error!(run = %row.run, effect = row.key.name, %error, "activity passed over that cannot be read");
            return None;
        }
    };
    let Request::Activity(activity) = effect.request else {
        tracing::error!(run = %row.run, effect = row.key.name, "a call in a worker queue is no activity");
        return None;
    };
    Some(LeasedActivity {
        run: row.run,
        step: effect.step,
        attempt: effect.attempt,
        fence: row.fence,
        activity,
        idempotency_key: effect.idempotency_key,
        trace: effect.trace,
        since: row.since,
        lease,
    })
}
