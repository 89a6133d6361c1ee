//! Slots that tenants share.
//!
//! A tenant gets another slot as long as it holds less than three times as many as are free. So one that is alone has
//! three quarters of all, and whoever comes next finds some at once: three quarters of the rest, and so on.

use std::{collections::HashMap, sync::Arc};

use parking_lot::Mutex;
use wopr_core::TenantId;

/// How many times as many as are free a tenant may hold.
const FACTOR: usize = 3;

/// So many slots.
#[derive(Debug, Clone)]
pub struct Slots {
    most: usize,
    held: Arc<Mutex<Held>>,
}

/// How many each tenant holds.
#[derive(Debug, Default)]
pub struct Held {
    n: usize,
    of: HashMap<TenantId, usize>,
}

impl Held {
    /// Whether a tenant may hold so many more, of so many in all.
    #[must_use]
    pub fn has_room(&self, most: usize, tenant: &TenantId, more: usize) -> bool {
        let free = most.saturating_sub(self.n);
        let held = self.of.get(tenant).copied().unwrap_or(0);
        // Whoever has none may take all that is left, however much it needs at once.
        more <= free && (held == 0 || held + more <= FACTOR.saturating_mul(free - more + 1))
    }

    /// Counts so many more of a tenant.
    pub fn add(&mut self, tenant: &TenantId, more: usize) {
        self.n += more;
        *self.of.entry(tenant.clone()).or_default() += more;
    }

    /// Counts so many fewer of a tenant.
    pub fn remove(&mut self, tenant: &TenantId, less: usize) {
        self.n = self.n.saturating_sub(less);
        if let Some(held) = self.of.get_mut(tenant) {
            *held = held.saturating_sub(less);
            if *held == 0 {
                self.of.remove(tenant);
            }
        }
    }
}

/// A slot, until dropped.
#[derive(Debug)]
#[must_use]
pub struct Slot {
    held: Arc<Mutex<Held>>,
    tenant: TenantId,
    size: usize,
}

impl Slot {
    /// Takes so much more, whether it is free or not: what is in memory already counts, so that no more is begun.
    pub fn grow(&mut self, more: usize) {
        self.held.lock().add(&self.tenant, more);
        self.size += more;
    }
}

impl Drop for Slot {
    fn drop(&mut self) {
        self.held.lock().remove(&self.tenant, self.size);
    }
}

impl Slots {
    /// So many slots, all free.
    #[must_use]
    pub fn new(most: usize) -> Self {
        Self {
            most,
            held: Arc::default(),
        }
    }

    /// How many nobody holds.
    #[must_use]
    pub fn free(&self) -> usize {
        self.most.saturating_sub(self.held.lock().n)
    }

    /// The most a tenant may take at once of what is free.
    #[must_use]
    pub fn share(&self) -> usize {
        (self.free() * FACTOR).div_ceil(FACTOR + 1)
    }

    /// Tenants that get none now.
    #[must_use]
    pub fn crowded(&self) -> Vec<TenantId> {
        let held = self.held.lock();
        let tenants = held
            .of
            .keys()
            .filter(|tenant| !held.has_room(self.most, tenant, 1));
        tenants.cloned().collect()
    }

    /// Takes a slot, if there is one for the tenant.
    pub fn take(&self, tenant: &TenantId) -> Option<Slot> {
        self.take_sized(tenant, 1)
    }

    /// Takes so many, if there is one for the tenant. However large something is, it has its turn, and what comes after
    /// it waits until there is room again.
    pub fn take_sized(&self, tenant: &TenantId, size: usize) -> Option<Slot> {
        let mut held = self.held.lock();
        held.has_room(self.most, tenant, 1).then(|| {
            held.add(tenant, size);
            Slot {
                held: Arc::clone(&self.held),
                tenant: tenant.clone(),
                size,
            }
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tenant(name: &str) -> TenantId {
        TenantId::parse(name).expect("valid")
    }

    fn take_all(slots: &Slots, name: &str) -> Vec<Slot> {
        std::iter::from_fn(|| slots.take(&tenant(name))).collect()
    }

    #[test]
    fn a_tenant_that_takes_all_it_gets_leaves_slots_for_others() {
        let slots = Slots::new(256);
        let first = take_all(&slots, "a");
        assert_eq!((first.len(), slots.crowded()), (192, vec![tenant("a")]));
        let second = take_all(&slots, "b");
        assert_eq!(second.len(), 48);
        assert!(slots.take(&tenant("c")).is_some());
        drop(second);
        drop(first);
        assert_eq!(slots.free(), 256);
        assert_eq!(slots.crowded(), []);
    }

    #[test]
    fn what_is_larger_than_all_has_its_turn() {
        let slots = Slots::new(100);
        let mut first = slots.take_sized(&tenant("a"), 40).expect("free");
        first.grow(30);
        let second = slots.take_sized(&tenant("b"), 1_000).expect("something is free");
        assert!(slots.take(&tenant("c")).is_none() && slots.free() == 0);
        drop(second);
        assert_eq!(slots.free(), 30);
        drop(first);
        assert_eq!(slots.free(), 100);
    }

    #[test]
    fn few_slots_are_all_of_use() {
        for most in 1..=3 {
            assert_eq!(take_all(&Slots::new(most), "a").len(), most);
        }
        assert!(take_all(&Slots::new(0), "a").is_empty());
    }
}
