//! Slots shared by tenants.
//!
//! A tenant gets another slot while it holds less than three times as many as are free. A tenant alone can
//! thus take three quarters of all slots; the next tenant finds free slots at once and can take three
//! quarters of the rest, and so on.

use std::{collections::HashMap, sync::Arc};

use parking_lot::Mutex;
use wopr_core::TenantId;

/// How many times the free slots a tenant may hold.
const FACTOR: usize = 3;

/// A fixed number of slots.
#[derive(Debug, Clone)]
pub struct Slots {
    most: usize,
    held: Arc<Mutex<Held>>,
}

/// The slots held, in total and per tenant.
#[derive(Debug, Default)]
pub struct Held {
    n: usize,
    of: HashMap<TenantId, usize>,
}

impl Held {
    /// Returns `true` if the tenant may take `more` slots out of `most` in total.
    #[must_use]
    pub fn has_room(&self, most: usize, tenant: &TenantId, more: usize) -> bool {
        let free = most.saturating_sub(self.n);
        let held = self.of.get(tenant).copied().unwrap_or(0);
        // A tenant that holds nothing may take all that is left, however much it needs at once.
        more <= free && (held == 0 || held + more <= FACTOR.saturating_mul(free - more + 1))
    }

    pub fn add(&mut self, tenant: &TenantId, more: usize) {
        self.n += more;
        *self.of.entry(tenant.clone()).or_default() += more;
    }

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

/// The number of slots out of `free` that [`Held::has_room`] admits one by one, to a tenant that holds `held`.
fn room(free: usize, held: usize) -> usize {
    ((FACTOR * (free + 1)).saturating_sub(held) / (FACTOR + 1)).min(free)
}

/// A slot, held until dropped.
#[derive(Debug)]
#[must_use]
pub struct Slot {
    held: Arc<Mutex<Held>>,
    tenant: TenantId,
    size: usize,
}

impl Slot {
    /// Takes `more` slots even if they are not free: memory that is already in use must count, so that no
    /// further work is admitted.
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
    #[must_use]
    pub fn new(most: usize) -> Self {
        Self {
            most,
            held: Arc::default(),
        }
    }

    #[must_use]
    pub fn free(&self) -> usize {
        self.most.saturating_sub(self.held.lock().n)
    }

    /// The maximum number of free slots that one tenant may take now.
    #[must_use]
    pub fn share(&self) -> usize {
        (self.free() * FACTOR).div_ceil(FACTOR + 1)
    }

    /// The number of slots that each tenant may take now, except those that cannot get another: the least room
    /// that any of the others has.
    #[must_use]
    pub fn room(&self) -> usize {
        let held = self.held.lock();
        let free = self.most.saturating_sub(held.n);
        let rooms = held
            .of
            .values()
            .map(|held| room(free, *held))
            .filter(|room| *room > 0);
        let nobody = (free * FACTOR).div_ceil(FACTOR + 1);
        rooms.fold(nobody, usize::min)
    }

    /// The number of slots that a tenant may take now.
    #[must_use]
    pub fn room_of(&self, tenant: &TenantId) -> usize {
        let held = self.held.lock();
        room(
            self.most.saturating_sub(held.n),
            held.of.get(tenant).copied().unwrap_or(0),
        )
    }

    /// Tenants that cannot get another slot now.
    #[must_use]
    pub fn crowded(&self) -> Vec<TenantId> {
        let held = self.held.lock();
        let tenants = held
            .of
            .keys()
            .filter(|tenant| !held.has_room(self.most, tenant, 1));
        tenants.cloned().collect()
    }

    /// Takes a slot if the tenant may have one.
    pub fn take(&self, tenant: &TenantId) -> Option<Slot> {
        self.take_sized(tenant, 1)
    }

    /// Takes `size` slots if the tenant may have all of them. More than half of all slots count as half, which a tenant
    /// that holds up to a quarter gets once the others are free.
    pub fn take_whole(&self, tenant: &TenantId, size: usize) -> Option<Slot> {
        let size = size.min(self.most / 2);
        let mut held = self.held.lock();
        held.has_room(self.most, tenant, size).then(|| {
            held.add(tenant, size);
            Slot {
                held: Arc::clone(&self.held),
                tenant: tenant.clone(),
                size,
            }
        })
    }

    /// Takes `size` slots if the tenant may have at least one. A large request may exceed the free slots, so
    /// it is never starved; later requests wait until enough slots are free again.
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
    fn a_greedy_tenant_leaves_slots_for_others() {
        let slots = Slots::new(256);
        assert_eq!(slots.room_of(&tenant("a")), 192);
        let first = take_all(&slots, "a");
        assert_eq!((first.len(), slots.crowded()), (192, vec![tenant("a")]));
        assert_eq!(
            (slots.room_of(&tenant("a")), slots.room_of(&tenant("b"))),
            (0, 48)
        );
        let second = take_all(&slots, "b");
        assert_eq!(second.len(), 48);
        assert!(slots.take(&tenant("c")).is_some());
        drop(second);
        drop(first);
        assert_eq!(slots.free(), 256);
        assert_eq!(slots.crowded(), []);
    }

    #[test]
    fn every_tenant_that_is_not_crowded_may_take_the_room() {
        let slots = Slots::new(256);
        assert_eq!(slots.room(), slots.share());
        let _first: Vec<_> = (0..100).filter_map(|_| slots.take(&tenant("a"))).collect();
        let room = slots.room();
        let more: Vec<_> = (0..room).filter_map(|_| slots.take(&tenant("a"))).collect();
        assert_eq!((room, more.len(), slots.crowded()), (92, 92, vec![tenant("a")]));
        assert_eq!(slots.room(), 48, "as for a tenant that holds nothing");
    }

    #[test]
    fn a_request_larger_than_the_total_is_admitted() {
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
    fn a_whole_request_waits_until_all_of_it_has_room() {
        let slots = Slots::new(100);
        let own = slots.take_sized(&tenant("a"), 25).expect("free");
        let first = slots.take_whole(&tenant("a"), 1_000).expect("counts as half");
        assert_eq!(slots.free(), 25);
        assert!(
            slots.take_whole(&tenant("a"), 5).is_none(),
            "its share is used up"
        );
        assert!(slots.take_whole(&tenant("b"), 26).is_none());
        let other = slots.take_whole(&tenant("b"), 25).expect("fits");
        assert_eq!(slots.free(), 0);
        drop((own, first, other));
        assert_eq!(slots.free(), 100);
    }

    #[test]
    fn a_single_tenant_can_take_all_of_few_slots() {
        for most in 1..=3 {
            assert_eq!(take_all(&Slots::new(most), "a").len(), most);
        }
        assert!(take_all(&Slots::new(0), "a").is_empty());
    }
}
