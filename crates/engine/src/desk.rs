//! Where runs are decided: on the thread that asks, or on one of few beside those of input and output.
//!
//! Most decisions take some ten microseconds, less than it costs to hand them to another thread. They are made where
//! they are asked for, as long as what they are about is small and their tenant is trusted. A tenant is trusted once a
//! number of its decisions on other threads were short, and no longer when one that was not has been made in place. That
//! number doubles each time, so that of the decisions of a tenant that tries to be in the way almost none is.
//!
//! Elsewhere tenants take turns, and whoever has used least processor time comes first. A tenant has a bounded queue; who
//! finds it full is told to come back.

use std::{
    collections::HashMap,
    num::NonZero,
    panic::{AssertUnwindSafe, catch_unwind, resume_unwind},
    time::Duration,
};

use parking_lot::Mutex;
use rustix::time::{ClockId, clock_gettime};
use wopr_core::TenantId;
use wopr_store::patiently;

use crate::{CommandError, Engine, turns::Turns};

/// The most bytes, decoded, that are decided on in place.
const SMALL: usize = 128 << 10;
/// Processor time a decision takes that is short.
const SHORT: Duration = Duration::from_millis(1);
/// Short decisions in a row by which a tenant earns trust at first.
const FIRST_PROOFS: u32 = 16;
/// The most that are ever asked for.
const MOST_PROOFS: u32 = 1 << 20;
/// Tenants remembered; when there are more, all are forgotten and have to prove themselves anew.
const MAX_TENANTS: usize = 16_384;
/// Decisions of a tenant that wait.
const MAX_WAITING: usize = 256;
/// How long a decision waits for its turn.
const PATIENCE: Duration = Duration::from_secs(3);
/// How long a caller should wait whose tenant has too much waiting.
const RETRY_AFTER_MS: u64 = 1_000;

/// Who may decide in place, and the turns of the others.
#[derive(Debug)]
pub(crate) struct Desk {
    turns: Turns,
    tenants: Mutex<HashMap<TenantId, Trust>>,
}

/// What a tenant's decisions were like.
#[derive(Debug, Clone, Copy)]
struct Trust {
    /// Short ones that are still to be seen.
    to_prove: u32,
    /// How many it takes the next time.
    next: u32,
}

impl Default for Trust {
    fn default() -> Self {
        Self {
            to_prove: FIRST_PROOFS,
            next: FIRST_PROOFS,
        }
    }
}

impl Trust {
    /// Takes in how long a decision took, and whether it was made in place.
    fn note(&mut self, took: Duration, is_in_place: bool) {
        if took <= SHORT {
            self.to_prove = self.to_prove.saturating_sub(1);
        } else {
            if is_in_place {
                self.next = self.next.saturating_mul(8).min(MOST_PROOFS);
            }
            self.to_prove = self.next;
        }
    }
}

impl Desk {
    /// So many threads; by default one less than there are processors.
    pub(crate) fn new(threads: Option<usize>) -> Self {
        let processors = std::thread::available_parallelism().map_or(1, NonZero::get);
        let threads = threads.unwrap_or(processors - 1).max(1);
        Self {
            turns: Turns::new(threads, MAX_WAITING),
            tenants: Mutex::default(),
        }
    }

    fn is_trusted(&self, tenant: &TenantId) -> bool {
        let tenants = self.tenants.lock();
        tenants.get(tenant).is_some_and(|trust| trust.to_prove == 0)
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

/// Processor time of this thread so far.
fn processor_time() -> Duration {
    let time = clock_gettime(ClockId::ThreadCPUTime);
    Duration::new(
        u64::try_from(time.tv_sec).unwrap_or(0),
        u32::try_from(time.tv_nsec).unwrap_or(0),
    )
}

impl Engine {
    /// Does work of a tenant that takes the processor and nothing else, about so many bytes.
    ///
    /// # Errors
    /// [`CommandError::Busy`]: too much of the tenant waits already.
    pub(crate) async fn think<T: Send + 'static>(
        &self,
        tenant: &TenantId,
        n_bytes: usize,
        work: impl FnOnce() -> T + Send + 'static,
    ) -> Result<T, CommandError> {
        let desk = &self.shared.desk;
        // Threads come to an end in no order that could be repeated.
        if self.shared.options.seed.is_some() {
            return Ok(work());
        }
        if n_bytes <= SMALL && desk.is_trusted(tenant) {
            let began = processor_time();
            let done = work();
            desk.note(tenant, processor_time().saturating_sub(began), true);
            return Ok(done);
        }
        Box::pin(self.think_elsewhere(tenant, work)).await
    }

    async fn think_elsewhere<T: Send + 'static>(
        &self,
        tenant: &TenantId,
        work: impl FnOnce() -> T + Send + 'static,
    ) -> Result<T, CommandError> {
        let busy = || CommandError::Busy {
            retry_after_ms: RETRY_AFTER_MS,
        };
        let desk = &self.shared.desk;
        let turn = patiently(PATIENCE, desk.turns.take(tenant, 1)).await;
        let mut turn = turn.and_then(Result::ok).ok_or_else(busy)?;
        let (engine, tenant) = (self.clone(), tenant.clone());
        let span = tracing::Span::current();
        // The turn goes along: it lasts as long as the work, whoever still waits for that.
        let working = self.shared.runtime.spawn_blocking(move || {
            let _entered = span.entered();
            let began = processor_time();
            let done = catch_unwind(AssertUnwindSafe(work));
            let took = processor_time().saturating_sub(began);
            engine.shared.desk.note(&tenant, took, false);
            turn.charge(u64::try_from(took.as_micros()).unwrap_or(u64::MAX).max(1));
            drop(turn);
            done
        });
        match working.await {
            Ok(Ok(done)) => Ok(done),
            Ok(Err(payload)) => resume_unwind(payload),
            Err(error) => Err(CommandError::Internal(format!("decide: {error}"))),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LONG: Duration = Duration::from_millis(2);

    #[test]
    fn trust_is_earned_by_short_decisions_and_lost_by_a_long_one_in_place() {
        let desk = Desk::new(Some(1));
        let tenant = TenantId::parse("acme").expect("valid");
        let prove = |n: u32| {
            for _ in 0..n {
                assert!(!desk.is_trusted(&tenant));
                desk.note(&tenant, SHORT, false);
            }
            assert!(desk.is_trusted(&tenant));
        };
        prove(FIRST_PROOFS);
        desk.note(&tenant, SHORT, true);
        assert!(desk.is_trusted(&tenant));
        desk.note(&tenant, LONG, true);
        prove(8 * FIRST_PROOFS);
        desk.note(&tenant, LONG, true);
        prove(64 * FIRST_PROOFS);
        // One where it is in nobody's way begins the count anew.
        desk.note(&tenant, LONG, false);
        prove(64 * FIRST_PROOFS);
    }
}
