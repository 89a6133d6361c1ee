//! Bounds the memory of loaded runs.
//!
//! Loading goes by turns, of which there are few. A large run needs room besides, for as long as it is in memory. The
//! store says how many bytes a run has before it reads them, so that a large one waits for room, without a turn, and is
//! read then. How much it takes once it is decoded is known when it has been read: if that is more, and there is no more
//! room, it is let go of and waits again. Turns and room are shared by tenants: each waits in a queue of its own, and none
//! gets all of the room. The last that were large are remembered, and wait for room before they are looked at: so small
//! runs are not behind large ones.
//!
//! Whoever reads a run may then command it, with the run in hand. Commands have room of their own, and wait for nobody
//! who waits for room; so neither is ever stuck.

use std::{collections::HashMap, sync::Arc, time::Duration};

use parking_lot::Mutex;
use wopr_core::{RunKey, TenantId};
use wopr_store::{ReadError, with_timeout};

use crate::turns::{Full, Turn, Turns};

/// Runs that are being loaded at once.
const TURNS: usize = 32;
/// The most bytes, as far as is known before it is decoded, of a run that needs no room.
const SMALL: usize = 256 << 10;
/// Bytes of larger ones for each purpose.
const BYTES: usize = 96 << 20;
/// How many times a run is in memory while it is decided: as it was, as it becomes, and in its events.
pub const TIMES_DECIDED: usize = 3;
/// Large runs remembered; when there are more, all are forgotten.
const MAX_KNOWN: usize = 1_024;
/// Loads of a tenant that wait, of each kind.
const MAX_WAITING: usize = 1_024;
/// How long to wait for a turn or for room before whoever asks is refused.
const TIMEOUT: Duration = Duration::from_secs(3);

/// What a run is loaded for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Purpose {
    /// To be shown.
    View,
    /// To decide a command.
    Command,
}

/// The room a run takes, until the last that has it is dropped; none if it is small.
#[derive(Debug, Clone, Default)]
pub(crate) struct LoadPermit {
    _share: Option<Arc<Turn>>,
    n_bytes: usize,
}

impl LoadPermit {
    /// How large the run was when it was loaded.
    pub(crate) const fn n_bytes(&self) -> usize {
        self.n_bytes
    }

    /// The most bytes that may be read into it.
    pub(crate) const fn readable(&self) -> usize {
        if self.n_bytes > SMALL { self.n_bytes } else { SMALL }
    }

    /// Of a run that needs no room.
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
    /// Runs that were large, and how large.
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

    /// Waits for room for a run that is known to be large; none otherwise.
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

    /// Remembers how large a run is.
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

    /// Waits for a turn to load a run, which ends when it is decoded.
    pub(crate) async fn turn(&self, tenant: &TenantId) -> Result<Turn, ReadError> {
        match with_timeout(TIMEOUT, self.turns.take(tenant, 1)).await {
            Some(Ok(turn)) => Ok(turn),
            Some(Err(Full)) | None => Err(ReadError::Unavailable("too many runs are being read".to_owned())),
        }
    }

    /// The room for what was loaded, if there is some at once.
    pub(crate) fn try_hold(&self, purpose: Purpose, tenant: &TenantId, n_bytes: usize) -> Option<LoadPermit> {
        if n_bytes <= SMALL {
            return Some(LoadPermit::small(n_bytes));
        }
        let load_budget = self.of(purpose);
        let share = load_budget.try_take(tenant, self.share(purpose, n_bytes));
        share.map(|share| LoadPermit::large(share, n_bytes))
    }

    /// Waits for room for a run of so many bytes.
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
                "too many large runs are being read".to_owned(),
            )),
        }
    }

    const fn of(&self, purpose: Purpose) -> &Turns {
        match purpose {
            Purpose::View => &self.views,
            Purpose::Command => &self.commands,
        }
    }

    /// Kilobytes; a run that is larger than all of the room has all of it.
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
    async fn large_runs_share_the_room_and_small_ones_need_none() {
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
    async fn few_load_at_once_and_who_waits_is_told() {
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
    async fn a_tenant_with_many_large_runs_leaves_room_for_others() {
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
    async fn a_tenant_that_waits_for_many_loads_is_not_ahead_of_another() {
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
