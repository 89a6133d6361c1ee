//! Turns that tenants wait for, each in a queue of its own.
//!
//! Whoever has had least comes first: a turn counts one, and more if its holder says so. A tenant that comes anew begins
//! where the others are, so nobody saves up turns. However long the queue of one tenant, another waits for no more than
//! the turns under way and one of each tenant.

use std::{
    collections::{HashMap, VecDeque},
    sync::Arc,
};

use parking_lot::Mutex;
use tokio::sync::oneshot;
use wopr_core::TenantId;

use crate::slots::Held;

/// So much, handed out by turns.
#[derive(Debug, Clone)]
pub struct Turns(Arc<Shared>);

#[derive(Debug)]
struct Shared {
    most: usize,
    /// The most of a tenant's that wait.
    max_waiting: usize,
    /// Whether something is left for tenants that have none.
    leaves_room: bool,
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    held: Held,
    n_held: usize,
    tenants: HashMap<TenantId, Tenant>,
    /// What the tenant whose turn was last had had by then.
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

/// Too many of the tenant's wait already.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Full;

/// A turn, until dropped.
#[derive(Debug)]
#[must_use]
pub struct Turn {
    shared: Arc<Shared>,
    tenant: TenantId,
    size: usize,
    cost: u64,
}

impl Turn {
    /// Says what the turn cost, in whatever unit all of them are measured by.
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
    /// Turns, of which so many are under way at once. As many of each tenant may wait.
    #[must_use]
    pub fn new(most: usize, max_waiting: usize) -> Self {
        Self::with(most, max_waiting, false)
    }

    /// Room of such a size. A tenant does not get all of it while it has some.
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

    /// Takes a turn if there is one at once.
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
    /// [`Full`]: as many of the tenant wait as may.
    ///
    /// # Cancel safety
    /// A turn nobody waits for any more goes to the next.
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
        // Something may have become free since the look.
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
                // What it has had beyond the others counts as long as it might come back for more.
                if known.n_turns == 0 && known.waiting.is_empty() && known.had <= level {
                    state.tenants.remove(tenant);
                }
            }
        }
        Self::hand_out(shared);
    }

    /// Hands out what is free, to whoever has had least first.
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
                // Nobody waits: whoever had more is even with the others.
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
            // Dropped on the way, it is given back.
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

    /// Waits in the order of the names; the order in which the turns come when each ends at once.
    async fn order(turns: &Turns, held: Turn, names: &[(&str, u64)]) -> Vec<String> {
        let (done, mut finished) = tokio::sync::mpsc::unbounded_channel();
        for (name, cost) in names {
            let (turns, name, cost, done) = (turns.clone(), (*name).to_owned(), *cost, done.clone());
            let waiting = tokio::spawn(async move {
                let mut turn = turns.take(&tenant(&name), 1).await.expect("not full");
                turn.charge(cost);
                done.send(name).expect("the test listens");
            });
            // It waits before the next does.
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
    async fn a_long_queue_of_one_tenant_does_not_hold_up_another() {
        let turns = Turns::new(1, 99);
        let held = turns.try_take(&tenant("a"), 1).expect("free");
        let names = [("a", 1), ("a", 1), ("a", 1), ("a", 1), ("b", 1)];
        let order = order(&turns, held, &names).await;
        assert!(order.iter().position(|name| name == "b") <= Some(1), "{order:?}");
    }

    #[tokio::test]
    async fn a_tenant_whose_turns_cost_more_has_fewer() {
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
    async fn a_full_queue_refuses_its_own_tenant_only() {
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
    async fn a_turn_nobody_waits_for_goes_to_the_next() {
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
