//! Runs CPU-bound work on the caller's thread or on a few blocking threads.
//!
//! Most decisions take about ten microseconds, less than handing them to another thread costs. They run in
//! place if their input is small and their tenant is trusted. A decision that needs more than [`BRIEF`] units
//! of work is abandoned and repeated on another thread, so that even a trusted tenant cannot block an I/O
//! thread for longer. A tenant becomes trusted after a number of short decisions on other threads, and loses
//! trust with one long decision in place. The required number grows each time, so that almost no decision of
//! an abusive tenant runs in place. It starts over after a long series of short decisions in place, because on a busy
//! machine even the time of a short one is sometimes measured as long.
//!
//! There are two lanes of other threads: one for work that is brief, because its input is small or because it is abandoned
//! after [`BRIEF`] units, and one for all other work. So a short decision does not wait for the long ones of other
//! tenants, even if its own tenant has not earned trust yet. A tenant whose last decisions were long skips the first
//! lane: it would only begin them there. On both lanes, tenants take turns; the one with the least processor time used
//! comes first. Each tenant has a bounded queue. If it is full, the caller gets [`CommandError::Busy`].

use std::{
    collections::HashMap,
    num::NonZero,
    panic::{AssertUnwindSafe, catch_unwind, resume_unwind},
    time::Duration,
};

use parking_lot::Mutex;
use rustix::time::{ClockId, clock_gettime};
use wopr_core::TenantId;
use wopr_store::{Cause, with_timeout};

use crate::{CommandError, Engine, turns::Turns};

/// Maximum input size, decoded, of work done in place.
const SMALL: usize = 128 << 10;
/// Maximum processor time of a short decision.
const SHORT: Duration = Duration::from_millis(1);
/// Units of work after which a decision in place is abandoned: about a millisecond.
pub(crate) const BRIEF: u64 = 100_000;
/// Of this many decisions in place, one is measured: reading the clock takes two system calls.
const SAMPLE: u32 = 8;
/// The time that work is accounted with if it gave up. However soon it did, it was not short.
const GAVE_UP: Duration = Duration::MAX;
/// Consecutive short decisions that first earn a tenant trust.
const FIRST_PROOFS: u32 = 16;
/// Maximum number of short decisions required.
const MOST_PROOFS: u32 = 1 << 20;
/// Decisions in place after which a long one counts as the first.
const FORGIVEN: u32 = 1_000;
/// Consecutive long decisions after which the next one is expected to be long. One may have been measured as long.
const LONG_RUN: u32 = 2;
/// Maximum tenants remembered. When the limit is reached, all are forgotten and have to earn trust again.
const MAX_TENANTS: usize = 16_384;
/// Maximum waiting decisions of a tenant.
const MAX_WAITING: usize = 256;
/// How long a decision waits for its turn.
const TIMEOUT: Duration = Duration::from_secs(3);
/// How long a caller should wait if its tenant's queue is full.
const RETRY_AFTER_MS: u64 = 1_000;

#[derive(Debug)]
pub(crate) struct DecisionPool {
    /// Work that takes about a millisecond at most.
    brief: Turns,
    /// All other work.
    long: Turns,
    tenants: Mutex<HashMap<TenantId, Trust>>,
}

/// The right to decide in place.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct InPlace {
    is_measured: bool,
}

/// A tenant's progress towards trust.
#[derive(Debug, Clone, Copy)]
struct Trust {
    /// Short decisions still missing.
    to_prove: u32,
    /// Short decisions required after the next long one.
    next: u32,
    /// Decisions in place since the last long one.
    in_place: u32,
    /// Consecutive long decisions, up to the last one.
    n_long: u32,
}

impl Default for Trust {
    fn default() -> Self {
        Self {
            to_prove: FIRST_PROOFS,
            next: FIRST_PROOFS,
            in_place: 0,
            n_long: 0,
        }
    }
}

impl Trust {
    /// Accounts for a decision.
    fn note(&mut self, took: Duration, is_in_place: bool) {
        if took <= SHORT {
            self.n_long = 0;
            self.to_prove = self.to_prove.saturating_sub(1);
        } else {
            self.n_long = self.n_long.saturating_add(1);
            if is_in_place {
                let is_forgiven = self.in_place > FORGIVEN;
                let before = if is_forgiven { FIRST_PROOFS } else { self.next };
                self.next = before.saturating_mul(8).min(MOST_PROOFS);
                self.in_place = 0;
            }
            self.to_prove = self.next;
        }
    }
}

impl DecisionPool {
    /// Creates a pool with `threads` threads in each lane; by default one less than there are processors.
    pub(crate) fn new(threads: Option<usize>) -> Self {
        let processors = std::thread::available_parallelism().map_or(1, NonZero::get);
        let threads = threads.unwrap_or(processors - 1).max(1);
        Self {
            brief: Turns::new(threads, MAX_WAITING),
            long: Turns::new(threads, MAX_WAITING),
            tenants: Mutex::default(),
        }
    }

    /// Whether the next decision of a tenant may run in place. If so, it counts as one that does.
    fn trusts(&self, tenant: &TenantId) -> Option<InPlace> {
        let mut tenants = self.tenants.lock();
        let trust = tenants.get_mut(tenant).filter(|trust| trust.to_prove == 0)?;
        trust.in_place = trust.in_place.saturating_add(1);
        Some(InPlace {
            is_measured: trust.in_place % SAMPLE == 1,
        })
    }

    /// Whether the next decision of a tenant is likely to be long.
    fn expects_long(&self, tenant: &TenantId) -> bool {
        let tenants = self.tenants.lock();
        tenants.get(tenant).is_some_and(|trust| trust.n_long >= LONG_RUN)
    }

    fn note(&self, tenant: &TenantId, took: Duration, is_in_place: bool) {
        if is_in_place && took <= SHORT {
            return;
        }
        let mut tenants = self.tenants.lock();
        if tenants.len() >= MAX_TENANTS && !tenants.contains_key(tenant) {
            tenants.clear();
        }
        tenants.entry(tenant.clone()).or_default().note(took, is_in_place);
    }
}

/// Processor time that this thread has used.
fn processor_time() -> Duration {
    let time = clock_gettime(ClockId::ThreadCPUTime);
    Duration::new(
        u64::try_from(time.tv_sec).unwrap_or(0),
        u32::try_from(time.tv_nsec).unwrap_or(0),
    )
}

impl Engine {
    /// Runs CPU-bound work for a tenant, in place or on another thread. `n_bytes` is the approximate size of
    /// its input.
    ///
    /// # Errors
    /// [`CommandError::Busy`] if too much work of the tenant is already waiting.
    pub(crate) async fn think<T: Send + 'static>(
        &self,
        tenant: &TenantId,
        n_bytes: usize,
        work: impl FnOnce() -> T + Send + 'static,
    ) -> Result<T, CommandError> {
        if let Some(right) = self.in_place(tenant, n_bytes) {
            return Ok(self.noting(tenant, right, work, |_| false));
        }
        let decision_pool = &self.shared.decision_pool;
        let lane = match n_bytes <= SMALL {
            true => &decision_pool.brief,
            false => &decision_pool.long,
        };
        Box::pin(self.think_in(lane, tenant, work, |_| false)).await
    }

    /// Runs work that gives up after [`BRIEF`] units, which `begin` makes: in place if that is allowed for this tenant and
    /// input size, otherwise on the lane for brief work. Returns `None` if it is not begun because the
    /// input is too large or the tenant's last decisions were long, and the inner error if it gave up.
    ///
    /// # Errors
    /// Same as [`Self::think`].
    pub(crate) async fn think_briefly<T, G, W>(
        &self,
        tenant: &TenantId,
        n_bytes: usize,
        begin: impl FnOnce() -> W,
    ) -> Result<Option<Result<T, G>>, CommandError>
    where
        T: Send + 'static,
        G: Send + 'static,
        W: FnOnce() -> Result<T, G> + Send + 'static,
    {
        if n_bytes > SMALL {
            return Ok(None);
        }
        if let Some(right) = self.in_place(tenant, n_bytes) {
            return Ok(Some(self.noting(tenant, right, begin(), Result::is_err)));
        }
        let decision_pool = &self.shared.decision_pool;
        if decision_pool.expects_long(tenant) {
            return Ok(None);
        }
        let thinking = self.think_in(&decision_pool.brief, tenant, begin(), Result::is_err);
        Box::pin(thinking).await.map(Some)
    }

    fn in_place(&self, tenant: &TenantId, n_bytes: usize) -> Option<InPlace> {
        if n_bytes > SMALL {
            None
        } else if self.is_repeatable() {
            Some(InPlace { is_measured: false })
        } else {
            self.shared.decision_pool.trusts(tenant)
        }
    }

    /// Returns `true` in a simulation, which must be repeatable: the order in which threads finish is not.
    fn is_repeatable(&self) -> bool {
        self.shared.options.seed.is_some()
    }

    /// Runs work in place, and accounts for its processor time if that is measured.
    fn noting<T>(
        &self,
        tenant: &TenantId,
        InPlace { is_measured }: InPlace,
        work: impl FnOnce() -> T,
        gave_up: fn(&T) -> bool,
    ) -> T {
        let began = is_measured.then(processor_time);
        let done = work();
        let took = match (gave_up(&done), began) {
            (true, _) => Some(GAVE_UP),
            (false, began) => began.map(|began| processor_time().saturating_sub(began)),
        };
        if let Some(took) = took {
            self.shared.decision_pool.note(tenant, took, true);
        }
        done
    }

    /// Runs long work for a tenant in its turn, on a blocking thread.
    ///
    /// # Errors
    /// Same as [`Self::think`].
    pub(crate) async fn think_elsewhere<T: Send + 'static>(
        &self,
        tenant: &TenantId,
        work: impl FnOnce() -> T + Send + 'static,
    ) -> Result<T, CommandError> {
        self.think_in(&self.shared.decision_pool.long, tenant, work, |_| false)
            .await
    }

    /// Runs work for a tenant in its turn on a lane.
    async fn think_in<T: Send + 'static>(
        &self,
        lane: &Turns,
        tenant: &TenantId,
        work: impl FnOnce() -> T + Send + 'static,
        gave_up: fn(&T) -> bool,
    ) -> Result<T, CommandError> {
        if self.is_repeatable() {
            return Ok(work());
        }
        let busy = || CommandError::Busy {
            retry_after_ms: RETRY_AFTER_MS,
        };
        let turn = with_timeout(TIMEOUT, lane.take(tenant, 1)).await;
        let mut turn = turn.and_then(Result::ok).ok_or_else(busy)?;
        let (engine, tenant) = (self.clone(), tenant.clone());
        let span = tracing::Span::current();
        // The turn moves into the task: it lasts as long as the work, even if the caller is dropped.
        let working = self.shared.runtime.spawn_blocking(move || {
            let _entered = span.entered();
            let began = processor_time();
            let done = catch_unwind(AssertUnwindSafe(work));
            let spent = processor_time().saturating_sub(began);
            let took = match done.as_ref().is_ok_and(gave_up) {
                true => GAVE_UP,
                false => spent,
            };
            engine.shared.decision_pool.note(&tenant, took, false);
            turn.charge(u64::try_from(spent.as_micros()).unwrap_or(u64::MAX).max(1));
            drop(turn);
            done
        });
        match working.await {
            Ok(Ok(done)) => Ok(done),
            Ok(Err(payload)) => resume_unwind(payload),
            Err(error) => Err(CommandError::Internal(Cause::about(
                format!("decide: {error}"),
                error,
            ))),
        }
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use std::sync::Arc;

    use async_trait::async_trait;
    use serde_json::json;
    use wopr_core::{Origin, PrincipalId, RunStatus, WorkflowId};
    use wopr_store::MemoryStore;

    use super::*;
    use crate::{Attempt, Create, Done, Executor, Options, Report, SideRows, Start, SystemClock};

    /// Never ends an attempt.
    #[derive(Debug)]
    pub(crate) struct Nobody;

    #[async_trait]
    impl Executor for Nobody {
        async fn run(&self, _: Attempt) -> Report {
            std::future::pending().await
        }
    }

    /// Creates a run and returns its status.
    async fn create(engine: &Engine, tenant: &TenantId, workflow: &str) -> Result<RunStatus, CommandError> {
        let id = WorkflowId::parse(workflow).expect("valid");
        let create = Create {
            run: engine.new_run_id(),
            workflow: engine.workflow(tenant, &id).expect("registered"),
            start: Start {
                tenant: tenant.clone(),
                principal: PrincipalId::parse("tester").expect("valid"),
                origin: Origin::new("rest"),
                inputs: serde_json::Map::new(),
                configurable: serde_json::Map::new(),
                tags: Vec::new(),
                metadata: serde_json::Map::new(),
                context: None,
                trace: None,
            },
            side_rows: SideRows::default(),
        };
        match engine.create(create).await? {
            Done::Fresh(view) => Ok(view.run.status),
            Done::Replayed(_) => panic!("it has no key"),
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_heavy_decision_of_a_trusted_tenant_moves_to_the_pool() {
        let options = Options {
            deciders: Some(1),
            ..Options::default()
        };
        let store = Arc::new(MemoryStore::new());
        let engine = Engine::start(store, Arc::new(Nobody), Arc::new(SystemClock), options).await;
        let engine = engine.expect("starts");
        let loops = "{% for a in range(1000) %}{% for b in range(60) %}x{% endfor %}{% endfor %}";
        for (id, template) in [("light", "x"), ("heavy", loops)] {
            let node = json!({ "id": "n", "typeId": "core.template", "name": "n", "config": { "template": template } });
            let document = json!({
                "id": id, "name": id, "version": "1", "nodes": [node], "edges": [], "triggers": [],
                "variables": [], "metadata": {}, "settings": {},
            });
            engine.register(None, document).await.expect("registers");
        }
        let parse = |name| TenantId::parse(name).expect("valid");
        let (tenant, other) = (parse("acme"), parse("other"));
        let decision_pool = &engine.shared.decision_pool;
        for _ in 0..FIRST_PROOFS {
            decision_pool.note(&tenant, SHORT, false);
        }
        // The only thread for long work is busy, so the heavy decision times out.
        let turn = decision_pool.long.take(&other, 1).await.expect("none waits");
        let light = create(&engine, &tenant, "light").await;
        assert_eq!(light.expect("decided in place"), RunStatus::Completed);
        let heavy = create(&engine, &tenant, "heavy").await;
        assert!(matches!(heavy, Err(CommandError::Busy { .. })), "{heavy:?}");
        // Nobody knows yet what a new tenant does, and its short decision does not wait for long ones.
        let newcomer = parse("newcomer");
        assert_eq!(decision_pool.trusts(&newcomer), None);
        let light = create(&engine, &newcomer, "light").await;
        assert_eq!(
            light.expect("decided on the lane for brief work"),
            RunStatus::Completed
        );
        drop(turn);
        let heavy = create(&engine, &tenant, "heavy").await;
        assert_eq!(heavy.expect("decided elsewhere"), RunStatus::Completed);
        // Known to be heavy by now, the tenant takes no turn of brief work.
        let turn = decision_pool.brief.take(&other, 1).await.expect("none waits");
        let heavy = create(&engine, &tenant, "heavy").await;
        assert_eq!(heavy.expect("not begun there"), RunStatus::Completed);
        drop(turn);
        engine.stop().await;
    }

    const LONG: Duration = Duration::from_millis(2);

    #[test]
    fn short_decisions_earn_trust_and_a_long_one_in_place_loses_it() {
        let decision_pool = DecisionPool::new(Some(1));
        let tenant = TenantId::parse("acme").expect("valid");
        let prove = |n: u32| {
            for _ in 0..n {
                assert_eq!(decision_pool.trusts(&tenant), None);
                decision_pool.note(&tenant, SHORT, false);
            }
            assert!(decision_pool.trusts(&tenant).is_some());
        };
        prove(FIRST_PROOFS);
        decision_pool.note(&tenant, SHORT, true);
        // The first one in place is measured, and then every eighth.
        let n_measured = (0..2 * SAMPLE)
            .filter_map(|_| decision_pool.trusts(&tenant))
            .filter(|right| right.is_measured)
            .count();
        assert_eq!(n_measured, 2);
        decision_pool.note(&tenant, LONG, true);
        prove(8 * FIRST_PROOFS);
        decision_pool.note(&tenant, LONG, true);
        prove(64 * FIRST_PROOFS);
        // A long decision on another thread restarts the count.
        decision_pool.note(&tenant, LONG, false);
        prove(64 * FIRST_PROOFS);
    }

    #[test]
    fn a_rare_long_decision_in_place_is_forgiven() {
        let decision_pool = DecisionPool::new(Some(1));
        let tenant = TenantId::parse("acme").expect("valid");
        let prove = |n: u32| (0..n).for_each(|_| decision_pool.note(&tenant, SHORT, false));
        prove(FIRST_PROOFS);
        for _ in 0..10 {
            (0..=FORGIVEN).for_each(|_| assert!(decision_pool.trusts(&tenant).is_some()));
            decision_pool.note(&tenant, LONG, true);
            assert_eq!(decision_pool.trusts(&tenant), None);
            prove(8 * FIRST_PROOFS);
            assert!(decision_pool.trusts(&tenant).is_some());
        }
        // One that comes soon after it is not.
        decision_pool.note(&tenant, LONG, true);
        prove(64 * FIRST_PROOFS - 1);
        assert_eq!(decision_pool.trusts(&tenant), None);
    }
}
