//! Bounds the memory of loaded runs.
//!
//! Concurrent loads are limited by turns. A large run needs a permit in addition, for as long as it stays in
//! memory. The store reports the size of a run before reading it, so a large run waits for its permit without
//! holding a turn, and is read afterwards. Its decoded size is known only after reading: if that exceeds the
//! permit and no more budget is free, the run is dropped and waits again. Turns and budget are shared between
//! tenants: each has its own queue, and none can take the whole budget. Runs that were large recently are
//! remembered and wait for a permit before anything is read, so they do not delay small runs.
//!
//! A caller may command a run it has just read while it still holds it. Commands therefore have a budget of
//! their own, which readers cannot exhaust, so the two cannot deadlock.

use std::{collections::HashMap, sync::Arc, time::Duration};

use parking_lot::Mutex;
use wopr_core::{RunKey, TenantId};
use wopr_store::{ReadError, with_timeout};

use crate::turns::{Full, Turn, Turns};

/// Maximum concurrent loads.
const TURNS: usize = 32;
/// Maximum stored size in bytes of a run that needs no permit.
const SMALL: usize = 256 << 10;
/// Budget in bytes of larger runs, for each purpose.
const BYTES: usize = 96 << 20;
/// Copies of a run in memory while it is decided: the state before, the state after, and the events.
pub const TIMES_DECIDED: usize = 3;
/// Maximum large runs remembered. When the limit is reached, all are forgotten.
const MAX_KNOWN: usize = 1_024;
/// Maximum waiting loads of a tenant, in each queue.
const MAX_WAITING: usize = 1_024;
/// How long a load waits for a turn or for budget before it is refused.
const TIMEOUT: Duration = Duration::from_secs(3);

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Purpose {
    View,
    Command,
}

/// The share of the budget that a run takes, until the last clone is dropped. A small run takes none.
#[derive(Debug, Clone, Default)]
pub(crate) struct LoadPermit {
    _share: Option<Arc<Turn>>,
    n_bytes: usize,
}

impl LoadPermit {
    /// The size of the run when the permit was taken.
    pub(crate) const fn n_bytes(&self) -> usize {
        self.n_bytes
    }

    /// Maximum bytes that may be read under this permit.
    pub(crate) const fn readable(&self) -> usize {
        if self.n_bytes > SMALL { self.n_bytes } else { SMALL }
    }

    const fn small(n_bytes: usize) -> Self {
        Self {
            _share: None,
            n_bytes,
        }
    }

    fn large(share: Turn, n_bytes: usize) -> Self {
        Self {
            _share: Some(Arc::new(share)),
            n_bytes,
        }
    }
}

#[derive(Debug)]
pub(crate) struct LoadBudget {
    bytes: usize,
    turns: Turns,
    views: Turns,
    commands: Turns,
    /// The sizes of runs that were large.
    known: Mutex<HashMap<RunKey, usize>>,
}

impl Default for LoadBudget {
    fn default() -> Self {
        Self::new(BYTES)
    }
}

impl LoadBudget {
    fn new(bytes: usize) -> Self {
        let kilobytes = || Turns::room(bytes >> 10, MAX_WAITING);
        Self {
            bytes,
            turns: Turns::new(TURNS, MAX_WAITING),
            views: kilobytes(),
            commands: kilobytes(),
            known: Mutex::default(),
        }
    }

    /// Waits for a permit if the run is known to be large; returns `None` otherwise.
    pub(crate) async fn expect(
        &self,
        purpose: Purpose,
        key: &RunKey,
    ) -> Result<Option<LoadPermit>, ReadError> {
        let known = self.known.lock().get(key).copied();
        match known {
            Some(n_bytes) => Box::pin(self.hold(purpose, &key.tenant, n_bytes)).await.map(Some),
            None => Ok(None),
        }
    }

    /// Remembers the size of a run.
    pub(crate) fn note(&self, key: &RunKey, n_bytes: usize) {
        let mut known = self.known.lock();
        if n_bytes <= SMALL {
            known.remove(key);
            return;
        }
        if known.len() >= MAX_KNOWN {
            known.clear();
        }
        known.insert(key.clone(), n_bytes);
    }

    /// Waits for a turn to load a run. The caller holds it until the run is decoded.
    pub(crate) async fn turn(&self, tenant: &TenantId) -> Result<Turn, ReadError> {
        match with_timeout(TIMEOUT, self.turns.take(tenant, 1)).await {
            Some(Ok(turn)) => Ok(turn),
            Some(Err(Full)) | None => Err(ReadError::Unavailable("too many runs are being read".into())),
        }
    }

    /// Takes a permit for a loaded run if the budget has room now.
    pub(crate) fn try_hold(&self, purpose: Purpose, tenant: &TenantId, n_bytes: usize) -> Option<LoadPermit> {
        if n_bytes <= SMALL {
            return Some(LoadPermit::small(n_bytes));
        }
        let turns = self.of(purpose);
        let share = turns.try_take(tenant, self.share(purpose, n_bytes));
        share.map(|share| LoadPermit::large(share, n_bytes))
    }

    /// Waits for a permit for a run of this size.
    pub(crate) async fn hold(
        &self,
        purpose: Purpose,
        tenant: &TenantId,
        n_bytes: usize,
    ) -> Result<LoadPermit, ReadError> {
        match with_timeout(
            TIMEOUT,
            self.of(purpose).take(tenant, self.share(purpose, n_bytes)),
        )
        .await
        {
            Some(Ok(turn)) => Ok(LoadPermit::large(turn, n_bytes)),
            Some(Err(Full)) | None => Err(ReadError::Unavailable(
                "too many large runs are being read".into(),
            )),
        }
    }

    const fn of(&self, purpose: Purpose) -> &Turns {
        match purpose {
            Purpose::View => &self.views,
            Purpose::Command => &self.commands,
        }
    }

    /// The cost of a run in kilobytes. A run larger than the budget takes all of it.
    fn share(&self, purpose: Purpose, n_bytes: usize) -> usize {
        let times = match purpose {
            Purpose::View => 1,
            Purpose::Command => TIMES_DECIDED,
        };
        n_bytes.saturating_mul(times).min(self.bytes).div_ceil(1 << 10)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LARGE: usize = SMALL + 1_024;

    fn tenant(name: &str) -> TenantId {
        TenantId::parse(name).expect("valid")
    }

    #[tokio::test(start_paused = true)]
    async fn large_runs_share_the_budget_and_small_runs_need_no_permit() {
        let (load_budget, acme) = (LoadBudget::new(2 * SMALL), tenant("acme"));
        let first = load_budget.try_hold(Purpose::View, &acme, LARGE).unwrap();
        assert!(load_budget.try_hold(Purpose::View, &acme, LARGE).is_none());
        assert!(load_budget.try_hold(Purpose::View, &acme, SMALL).is_some());
        let command = load_budget.try_hold(Purpose::Command, &acme, usize::MAX).unwrap();
        assert!(load_budget.hold(Purpose::Command, &acme, LARGE).await.is_err());
        let second = first.clone();
        drop(first);
        assert!(load_budget.hold(Purpose::View, &acme, LARGE).await.is_err());
        drop(second);
        assert!(load_budget.hold(Purpose::View, &acme, LARGE).await.is_ok());
        drop(command);
        assert!(load_budget.hold(Purpose::Command, &acme, LARGE).await.is_ok());
    }

    #[tokio::test(start_paused = true)]
    async fn concurrent_loads_are_limited_and_waiting_times_out() {
        let (load_budget, acme) = (LoadBudget::default(), tenant("acme"));
        let mut turns = Vec::new();
        for _ in 0..TURNS {
            turns.push(load_budget.turn(&acme).await.unwrap());
        }
        assert!(matches!(
            load_budget.turn(&acme).await,
            Err(ReadError::Unavailable(_))
        ));
        turns.pop();
        assert!(load_budget.turn(&acme).await.is_ok());
    }

    #[tokio::test(start_paused = true)]
    async fn a_tenant_with_many_large_runs_leaves_budget_for_others() {
        let (load_budget, acme, other) = (LoadBudget::default(), tenant("acme"), tenant("other"));
        let held: Vec<_> =
            std::iter::from_fn(|| load_budget.try_hold(Purpose::View, &acme, 1 << 20)).collect();
        assert_eq!(held.len(), 72);
        assert!(load_budget.try_hold(Purpose::View, &other, 1 << 20).is_some());
        let held: Vec<_> =
            std::iter::from_fn(|| load_budget.try_hold(Purpose::Command, &acme, 1 << 20)).collect();
        assert_eq!(held.len(), 72 / TIMES_DECIDED);
        assert!(load_budget.try_hold(Purpose::Command, &other, 1 << 20).is_some());
    }

    #[tokio::test(start_paused = true)]
    async fn a_tenant_with_many_waiting_loads_does_not_delay_another() {
        let (load_budget, acme, other) = (Arc::new(LoadBudget::default()), tenant("acme"), tenant("other"));
        let mut turns = Vec::new();
        for _ in 0..TURNS {
            turns.push(load_budget.turn(&acme).await.unwrap());
        }
        for _ in 0..100 {
            let (load_budget, acme) = (Arc::clone(&load_budget), acme.clone());
            tokio::spawn(async move {
                let _turn = load_budget.turn(&acme).await;
                std::future::pending::<()>().await;
            });
            tokio::task::yield_now().await;
        }
        let waiting = tokio::spawn({
            let load_budget = Arc::clone(&load_budget);
            async move { load_budget.turn(&other).await.map(drop) }
        });
        tokio::task::yield_now().await;
        turns.pop();
        assert!(waiting.await.unwrap().is_ok());
    }
}
