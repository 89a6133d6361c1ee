//! The position in each run's log up to which each caller has read.
//!
//! An answer that names no question counts only while nobody else has settled one that its caller may have meant. What
//! a caller was shown is remembered for as long as there is room, and in this process only: after that the caller's
//! own messages say what it knows, or it names the question.

use std::collections::HashMap;

use parking_lot::Mutex;
use wopr_core::{PrincipalId, RunId, RunKey, Seq, TenantId};
use wopr_engine::View;

/// Readers of runs that are remembered.
const MAX: usize = 65_536;

/// Tenants whose readers are remembered. A bound on the search for the one that has most of them.
const MAX_TENANTS: usize = 1_024;

/// A principal and a run of its tenant.
type Reader = (RunId, PrincipalId);

/// The last reads of a host.
#[derive(Debug, Default)]
pub struct LastReads(Mutex<Memory>);

/// Where there is no more room, the tenant with most readers forgets some: no tenant's reads cost another its memory.
#[derive(Debug, Default)]
struct Memory {
    tenants: HashMap<TenantId, Generations>,
    n_readers: usize,
}

/// The older half is forgotten at once: no list to keep in order.
#[derive(Debug, Default)]
struct Generations {
    newer: HashMap<Reader, Seq>,
    older: HashMap<Reader, Seq>,
}

impl LastReads {
    /// Notes that a principal was shown a run as it is. One that has ended asks nothing, so nobody needs to know.
    pub fn note_view(&self, view: &View, principal: &PrincipalId) {
        if !view.run.status.is_terminal() {
            self.note(&view.key, principal, view.run.head);
        }
    }

    /// Notes that a principal was shown a run up to a place of its log.
    pub fn note(&self, run: &RunKey, principal: &PrincipalId, head: Seq) {
        let reader = (run.run.clone(), principal.clone());
        let mut memory = self.0.lock();
        let known = memory.get(&run.tenant, &reader);
        if known.is_none_or(|known| known < head) {
            memory.put(&run.tenant, reader, head);
        }
    }

    /// How far a principal has seen a run, if that is remembered.
    pub fn of(&self, run: &RunKey, principal: &PrincipalId) -> Option<Seq> {
        self.0
            .lock()
            .get(&run.tenant, &(run.run.clone(), principal.clone()))
    }
}

impl Memory {
    fn get(&self, tenant: &TenantId, reader: &Reader) -> Option<Seq> {
        let generations = self.tenants.get(tenant)?;
        let known = generations.newer.get(reader);
        known.or_else(|| generations.older.get(reader)).copied()
    }

    fn put(&mut self, tenant: &TenantId, reader: Reader, head: Seq) {
        if !self.tenants.contains_key(tenant) && self.tenants.len() >= MAX_TENANTS {
            self.forget_tenant();
        }
        while self.n_readers >= MAX {
            self.forget_readers();
        }
        let generations = self.tenants.entry(tenant.clone()).or_default();
        let before = generations.len();
        generations.older.remove(&reader);
        generations.newer.insert(reader, head);
        let after = generations.len();
        self.n_readers = self.n_readers + after - before;
        let share = MAX / self.tenants.len().max(1);
        self.age(tenant, share / 2);
    }

    /// Makes the newer half of a tenant the older one once it is full.
    fn age(&mut self, tenant: &TenantId, half: usize) {
        if let Some(generations) = self.tenants.get_mut(tenant)
            && generations.newer.len() >= half
        {
            self.n_readers -= generations.older.len();
            generations.older = std::mem::take(&mut generations.newer);
        }
    }

    /// Forgets readers of the tenant that has most of them, the older ones first.
    fn forget_readers(&mut self) {
        let all = self.tenants.values_mut();
        let Some(most) = all.max_by_key(|generations| generations.len()) else {
            return;
        };
        let forgotten = if most.older.is_empty() {
            std::mem::take(&mut most.newer)
        } else {
            std::mem::take(&mut most.older)
        };
        self.n_readers -= forgotten.len();
    }

    /// Forgets the tenant that has fewest readers.
    fn forget_tenant(&mut self) {
        let all = self.tenants.iter();
        let fewest = all.min_by_key(|(_, generations)| generations.len());
        if let Some(tenant) = fewest.map(|(tenant, _)| tenant.clone())
            && let Some(generations) = self.tenants.remove(&tenant)
        {
            self.n_readers -= generations.len();
        }
    }
}

impl Generations {
    fn len(&self) -> usize {
        self.newer.len() + self.older.len()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn run(tenant: usize, n: usize) -> RunKey {
        RunKey::new(
            TenantId::parse(&format!("t{tenant}")).unwrap(),
            RunId::parse(&format!("run_{n:016}")).unwrap(),
        )
    }

    fn principals() -> [PrincipalId; 2] {
        ["ada", "bob"].map(|name| PrincipalId::parse(name).unwrap())
    }

    /// The readers that are remembered; what is counted is what is held.
    fn held(reads: &LastReads) -> usize {
        let memory = reads.0.lock();
        let n = memory.tenants.values().map(Generations::len).sum();
        assert_eq!(memory.n_readers, n);
        n
    }

    #[test]
    fn the_latest_read_of_each_principal_is_remembered_within_bounds() {
        let seen = LastReads::default();
        let [ada, bob] = principals();
        seen.note(&run(0, 0), &ada, Seq(4));
        seen.note(&run(0, 0), &ada, Seq(2));
        assert_eq!(
            (seen.of(&run(0, 0), &ada), seen.of(&run(0, 0), &bob)),
            (Some(Seq(4)), None)
        );
        for n in 1..2 * MAX {
            seen.note(&run(0, n), &bob, Seq(1));
        }
        assert_eq!(seen.of(&run(0, 0), &ada), None);
        assert_eq!(seen.of(&run(0, 2 * MAX - 1), &bob), Some(Seq(1)));
        assert!(held(&seen) <= MAX);
    }

    #[test]
    fn reads_of_one_tenant_do_not_make_those_of_another_forgotten() {
        let seen = LastReads::default();
        let [ada, bob] = principals();
        for n in 0..100 {
            seen.note(&run(1, n), &ada, Seq(1));
        }
        for n in 0..2 * MAX {
            seen.note(&run(0, n), &bob, Seq(1));
        }
        assert!((0..100).all(|n| seen.of(&run(1, n), &ada).is_some()));
        assert!(held(&seen) <= MAX);
    }

    #[test]
    fn many_tenants_share_the_room() {
        let seen = LastReads::default();
        let [ada, _] = principals();
        for tenant in 0..MAX_TENANTS + 9 {
            for n in 0..70 {
                seen.note(&run(tenant, n), &ada, Seq(1));
            }
        }
        assert!(held(&seen) <= MAX);
        assert!(seen.0.lock().tenants.len() <= MAX_TENANTS);
    }
}
