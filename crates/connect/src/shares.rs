//! A bounded amount of a resource, shared so that no holder can exhaust it.
//!
//! A holder may take at most `times_free` times the amount that is still free afterwards. A single holder
//! thus gets most of the total, and a new holder always finds some. Dropping a [`Share`] returns its amount.

use std::{collections::HashMap, fmt, hash::Hash, sync::Arc};

use foldhash::fast::RandomState;
use parking_lot::Mutex;

/// The total amount, and the amount taken by each holder.
pub struct Shares<K> {
    most: usize,
    times_free: usize,
    taken: Mutex<Taken<K>>,
}

struct Taken<K> {
    all: usize,
    each: HashMap<K, usize, RandomState>,
}

impl<K: Copy + Eq + Hash> Shares<K> {
    /// With `times_free`, a holder may take up to that multiple of the amount it leaves free.
    #[must_use]
    pub fn new(most: usize, times_free: usize) -> Self {
        Self {
            most,
            times_free,
            taken: Mutex::new(Taken {
                all: 0,
                each: HashMap::default(),
            }),
        }
    }

    /// The amount taken by all holders.
    #[must_use]
    pub fn taken(&self) -> usize {
        self.taken.lock().all
    }

    /// Creates an empty share.
    pub fn share(self: &Arc<Self>, holder: K) -> Share<K> {
        Share {
            shares: Arc::clone(self),
            holder,
            amount: 0,
        }
    }

    /// Takes an amount; `None` if it is not available to this holder.
    pub fn take(self: &Arc<Self>, holder: K, amount: usize) -> Option<Share<K>> {
        let mut share = self.share(holder);
        share.grow(amount).then_some(share)
    }

    fn try_take(&self, holder: K, amount: usize) -> bool {
        let mut taken = self.taken.lock();
        let all = taken.all.saturating_add(amount);
        let own = taken.each.get(&holder).map_or(amount, |own| own + amount);
        let has_room =
            (self.most.checked_sub(all)).is_some_and(|free| own <= free.saturating_mul(self.times_free));
        if has_room && amount > 0 {
            taken.all = all;
            taken.each.insert(holder, own);
        }
        has_room
    }

    fn give_back(&self, holder: K, amount: usize) {
        if amount == 0 {
            return;
        }
        let mut taken = self.taken.lock();
        taken.all -= amount;
        if let Some(own) = taken.each.get_mut(&holder) {
            *own -= amount;
            if *own == 0 {
                taken.each.remove(&holder);
            }
        }
    }
}

impl<K> fmt::Debug for Shares<K> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let taken = self.taken.lock();
        f.debug_struct("Shares")
            .field("most", &self.most)
            .field("taken", &taken.all)
            .field("holders", &taken.each.len())
            .finish()
    }
}

/// The amount of one holder. Dropping it returns the amount.
#[must_use]
pub struct Share<K: Copy + Eq + Hash> {
    shares: Arc<Shares<K>>,
    holder: K,
    amount: usize,
}

impl<K: Copy + Eq + Hash> Share<K> {
    /// Takes an additional amount; returns `false` and takes nothing if it is not available.
    pub fn grow(&mut self, amount: usize) -> bool {
        let has_room = self.shares.try_take(self.holder, amount);
        if has_room {
            self.amount += amount;
        }
        has_room
    }

    /// Returns all but `amount`; has no effect on a smaller share.
    pub fn shrink_to(&mut self, amount: usize) {
        if let Some(less) = self.amount.checked_sub(amount) {
            self.shares.give_back(self.holder, less);
            self.amount = amount;
        }
    }

    #[must_use]
    pub const fn amount(&self) -> usize {
        self.amount
    }
}

impl<K: Copy + Eq + Hash> fmt::Debug for Share<K> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Share")
            .field("amount", &self.amount)
            .finish_non_exhaustive()
    }
}

impl<K: Copy + Eq + Hash> Drop for Share<K> {
    fn drop(&mut self) {
        self.shares.give_back(self.holder, self.amount);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_holder_cannot_exhaust_the_total() {
        let shares = Arc::new(Shares::new(10_000, 3));
        let of_one: Vec<_> = std::iter::from_fn(|| shares.take(1, 1_000)).collect();
        assert_eq!(of_one.len(), 7);
        let of_other: Vec<_> = std::iter::from_fn(|| shares.take(2, 1_000)).collect();
        assert_eq!(of_other.len(), 2);
        drop(of_one);
        assert_eq!(shares.taken(), 2_000);
        drop(of_other);
        assert!(shares.taken() == 0 && shares.taken.lock().each.is_empty());
    }

    #[test]
    fn failed_growth_takes_nothing() {
        let shares = Arc::new(Shares::new(100, 3));
        let mut share = shares.take(1, 50).unwrap();
        assert!(!share.grow(60) && share.grow(20));
        assert_eq!(share.amount(), 70);
        share.shrink_to(10);
        assert_eq!(shares.taken(), 10);
        share.shrink_to(20);
        assert_eq!(share.amount(), 10);
    }
}
