//! Fair queueing: turns that tenants wait for, each tenant in its own queue.
//!
//! The tenant with the least accumulated cost goes first. A turn costs one unless its holder charges more. A
//! new tenant starts at the current level, so no tenant can save up turns. However long one tenant's queue is,
//! another tenant waits at most for the turns in progress and one turn of each tenant.

use std::{
    collections::{HashMap, VecDeque},
    sync::Arc,
};

use parking_lot::Mutex;
use tokio::sync::oneshot;
use wopr_core::TenantId;

use crate::slots::Held;

/// A capacity shared by tenants in turns.
#[derive(Debug, Clone)]
pub struct Turns(Arc<Shared>);

#[derive(Debug)]
struct Shared {
    most: usize,
    /// Maximum number of waiters per tenant.
    max_waiting: usize,
    /// Reserves capacity for tenants that hold none.
    leaves_room: bool,
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    held: Held,
    n_held: usize,
    tenants: HashMap<TenantId, Tenant>,
    /// The accumulated cost of the tenant served last. New tenants start here.
    level: u64,
}

#[derive(Debug, Default)]
struct Tenant {
    had: u64,
    n_turns: usize,
    waiting: VecDeque<Waiter>,
}

#[derive(Debug)]
struct Waiter {
    size: usize,
    turn: oneshot::Sender<Turn>,
}

/// The tenant already has the maximum number of waiters.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Full;

/// A turn, held until dropped.
#[derive(Debug)]
#[must_use]
pub struct Turn {
    shared: Arc<Shared>,
    tenant: TenantId,
    size: usize,
    cost: u64,
}

impl Turn {
    /// Sets the cost of the turn. Any unit will do, as long as all turns use the same.
    pub fn charge(&mut self, cost: u64) {
        self.cost = cost;
    }
}

impl Drop for Turn {
    fn drop(&mut self) {
        Shared::give_back(&self.shared, &self.tenant, self.size, self.cost);
    }
}

impl Turns {
    /// Creates `most` concurrent turns, with up to `max_waiting` waiters per tenant.
    #[must_use]
    pub fn new(most: usize, max_waiting: usize) -> Self {
        Self::with(most, max_waiting, false)
    }

    /// Creates a capacity of `most` units. A tenant that already holds some cannot take all the rest.
    #[must_use]
    pub fn room(most: usize, max_waiting: usize) -> Self {
        Self::with(most, max_waiting, true)
    }

    fn with(most: usize, max_waiting: usize, leaves_room: bool) -> Self {
        Self(Arc::new(Shared {
            most,
            max_waiting,
            leaves_room,
            state: Mutex::default(),
        }))
    }

    /// Takes a turn if one is free now and nobody in the tenant's queue is ahead.
    #[must_use]
    pub fn try_take(&self, tenant: &TenantId, size: usize) -> Option<Turn> {
        let mut state = self.0.state.lock();
        let is_next = state
            .tenants
            .get(tenant)
            .is_none_or(|known| known.waiting.is_empty());
        (is_next && self.0.has_room(&state, tenant, size))
            .then(|| Shared::begin(&self.0, &mut state, tenant, size))
    }

    /// Waits for a turn.
    ///
    /// # Errors
    /// [`Full`] if the tenant already has the maximum number of waiters.
    ///
    /// # Cancel safety
    /// If the future is dropped, its turn goes to the next waiter.
    pub async fn take(&self, tenant: &TenantId, size: usize) -> Result<Turn, Full> {
        if let Some(turn) = self.try_take(tenant, size) {
            return Ok(turn);
        }
        let (turn, granted) = oneshot::channel();
        {
            let mut state = self.0.state.lock();
            let level = state.level;
            let known = state.tenants.entry(tenant.clone()).or_default();
            if known.waiting.len() >= self.0.max_waiting {
                known.waiting.retain(|waiter| !waiter.turn.is_closed());
                if known.waiting.len() >= self.0.max_waiting {
                    return Err(Full);
                }
            }
            if known.waiting.is_empty() && known.n_turns == 0 {
                known.had = known.had.max(level);
            }
            known.waiting.push_back(Waiter { size, turn });
        }
        // Capacity may have been freed since `try_take`.
        Shared::hand_out(&self.0);
        granted.await.map_err(|_| Full)
    }
}

impl Shared {
    fn has_room(&self, state: &State, tenant: &TenantId, size: usize) -> bool {
        if self.leaves_room {
            state.held.has_room(self.most, tenant, size)
        } else {
            state.n_held + size <= self.most
        }
    }

    fn begin(shared: &Arc<Self>, state: &mut State, tenant: &TenantId, size: usize) -> Turn {
        let level = state.level;
        let known = state.tenants.entry(tenant.clone()).or_default();
        if known.n_turns == 0 && known.waiting.is_empty() {
            known.had = known.had.max(level);
        }
        known.n_turns += 1;
        state.level = known.had;
        state.n_held += size;
        if shared.leaves_room {
            state.held.add(tenant, size);
        }
        Turn {
            shared: Arc::clone(shared),
            tenant: tenant.clone(),
            size,
            cost: 1,
        }
    }

    fn give_back(shared: &Arc<Self>, tenant: &TenantId, size: usize, cost: u64) {
        {
            let mut state = shared.state.lock();
            state.n_held = state.n_held.saturating_sub(size);
            if shared.leaves_room {
                state.held.remove(tenant, size);
            }
            let level = state.level;
            if let Some(known) = state.tenants.get_mut(tenant) {
                known.n_turns = known.n_turns.saturating_sub(1);
                known.had = known.had.saturating_add(cost);
                // Keep the tenant's entry while its cost is above the level, so that it cannot reset its cost
                // by leaving and coming back.
                if known.n_turns == 0 && known.waiting.is_empty() && known.had <= level {
                    state.tenants.remove(tenant);
                }
            }
        }
        Self::hand_out(shared);
    }

    /// Grants free capacity to waiters, the tenant with the least accumulated cost first.
    fn hand_out(shared: &Arc<Self>) {
        loop {
            let mut state = shared.state.lock();
            let next = state
                .tenants
                .iter()
                .filter_map(|(tenant, known)| Some((known.had, tenant, known.waiting.front()?.size)))
                .filter(|(_, tenant, size)| shared.has_room(&state, tenant, *size))
                .min_by(|one, other| (one.0, one.1).cmp(&(other.0, other.1)));
            let Some((_, tenant, _)) = next else {
                // Nothing is held and nobody waits: start over with equal costs.
                if state.n_held == 0 && state.tenants.values().all(|known| known.waiting.is_empty()) {
                    state.tenants.clear();
                    state.level = 0;
                }
                return;
            };
            let tenant = tenant.clone();
            let waiter = state
                .tenants
                .get_mut(&tenant)
                .and_then(|known| known.waiting.pop_front());
            let Some(waiter) = waiter else { return };
            if waiter.turn.is_closed() {
                continue;
            }
            let turn = Self::begin(shared, &mut state, &tenant, waiter.size);
            drop(state);
            // If the waiter is gone, dropping the turn gives it back.
            drop(waiter.turn.send(turn));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tenant(name: &str) -> TenantId {
        TenantId::parse(name).expect("valid")
    }

    /// Queues the names in order and returns the order in which they are served if each turn ends at once.
    async fn order(turns: &Turns, held: Turn, names: &[(&str, u64)]) -> Vec<String> {
        let (done, mut finished) = tokio::sync::mpsc::unbounded_channel();
        for (name, cost) in names {
            let (turns, name, cost, done) = (turns.clone(), (*name).to_owned(), *cost, done.clone());
            let waiting = tokio::spawn(async move {
                let mut turn = turns.take(&tenant(&name), 1).await.expect("not full");
                turn.charge(cost);
                done.send(name).expect("the test listens");
            });
            // Let it join the queue before the next one does.
            tokio::task::yield_now().await;
            assert!(!waiting.is_finished());
        }
        drop((held, done));
        let mut order = Vec::new();
        while let Some(name) = finished.recv().await {
            order.push(name);
        }
        order
    }

    #[tokio::test]
    async fn a_long_queue_of_one_tenant_does_not_delay_another() {
        let turns = Turns::new(1, 99);
        let held = turns.try_take(&tenant("a"), 1).expect("free");
        let names = [("a", 1), ("a", 1), ("a", 1), ("a", 1), ("b", 1)];
        let order = order(&turns, held, &names).await;
        assert!(order.iter().position(|name| name == "b") <= Some(1), "{order:?}");
    }

    #[tokio::test]
    async fn expensive_turns_reduce_a_tenants_share() {
        let turns = Turns::new(1, 99);
        let held = turns.try_take(&tenant("c"), 1).expect("free");
        let names = [
            ("a", 10),
            ("a", 10),
            ("a", 10),
            ("b", 1),
            ("b", 1),
            ("b", 1),
            ("b", 1),
        ];
        let order = order(&turns, held, &names).await;
        assert_eq!(order, ["a", "b", "b", "b", "b", "a", "a"]);
    }

    #[tokio::test]
    async fn a_full_queue_rejects_only_its_own_tenant() {
        let turns = Turns::new(1, 1);
        let held = turns.try_take(&tenant("a"), 1).expect("free");
        let (one, other) = (turns.clone(), turns.clone());
        let first = tokio::spawn(async move { one.take(&tenant("a"), 1).await.map(drop) });
        tokio::task::yield_now().await;
        assert_eq!(turns.take(&tenant("a"), 1).await.map(drop), Err(Full));
        let second = tokio::spawn(async move { other.take(&tenant("b"), 1).await.map(drop) });
        tokio::task::yield_now().await;
        drop(held);
        assert_eq!((first.await.unwrap(), second.await.unwrap()), (Ok(()), Ok(())));
    }

    #[tokio::test]
    async fn turn_of_a_dropped_waiter_is_freed() {
        let turns = Turns::new(1, 9);
        let held = turns.try_take(&tenant("a"), 1).expect("free");
        let waiting = turns.clone();
        let gone = tokio::spawn(async move { waiting.take(&tenant("a"), 1).await.map(drop) });
        tokio::task::yield_now().await;
        gone.abort();
        assert!(gone.await.is_err());
        drop(held);
        assert!(turns.try_take(&tenant("a"), 1).is_some());
    }
}
