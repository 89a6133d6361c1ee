//! Remembers how far each caller has read each run's log.
//!
//! An answer that names no question is accepted only if no other caller has settled a question that its caller
//! may have meant. The positions are bounded in number and kept only in the memory of this process. Beyond
//! that, the caller's own messages show what it has read, or it must name the question.

use std::collections::HashMap;

use parking_lot::Mutex;
use wopr_core::{PrincipalId, RunId, RunKey, Seq, TenantId};
use wopr_engine::View;

use crate::{App, Caller, Question, VisibleRun};

/// Maximum readers remembered.
const MAX: usize = 65_536;

/// Maximum tenants whose readers are remembered. Bounds the search for the one with the most readers.
const MAX_TENANTS: usize = 1_024;

/// A principal and a run of its tenant.
type Reader = (RunId, PrincipalId);

#[derive(Debug, Default)]
pub(crate) struct LastReads(Mutex<Memory>);

/// If the limit is reached, the tenant with the most readers loses some, so that tenants do not displace each
/// other's.
#[derive(Debug, Default)]
struct Memory {
    tenants: HashMap<TenantId, Generations>,
    n_readers: usize,
}

/// The older half is forgotten at once, which needs no ordered list.
#[derive(Debug, Default)]
struct Generations {
    newer: HashMap<Reader, Known>,
    older: HashMap<Reader, Known>,
}

/// What is known of a principal and a run.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Known {
    /// The principal was shown the log up to here.
    pub(crate) seen: Seq,
    /// The end of the log when the principal sent an answer, until it is shown more than that.
    pub(crate) answering: Option<Seq>,
}

impl App {
    /// Notes that a caller was shown a run as it is. A run that has ended asks nothing, so it is skipped.
    pub fn note_view(&self, caller: &Caller, view: &View) {
        if !view.run.status.is_terminal() {
            self.last_reads.note(&view.key, &caller.principal, view.run.head);
        }
    }

    /// Notes that a caller was shown a run's log up to `head`.
    pub fn note_read(&self, caller: &Caller, run: &VisibleRun, head: Seq) {
        self.last_reads.note(run, &caller.principal, head);
    }

    /// Notes that a caller answers a question of a run as it is. Until the caller is shown what follows, it may
    /// repeat the answer, which does not mean the next question.
    pub fn note_answer(&self, caller: &Caller, view: &View) {
        self.last_reads
            .note_answer(&view.key, &caller.principal, view.run.head);
    }

    /// Notes that a caller was shown questions of children, and so their logs up to these.
    pub fn note_questions(&self, caller: &Caller, questions: &[Question]) {
        for (run, head) in questions.iter().flat_map(|question| &question.way) {
            self.last_reads.note(run, &caller.principal, *head);
        }
    }
}

impl LastReads {
    /// Notes that a principal was shown a run's log up to `head`.
    fn note(&self, run: &RunKey, principal: &PrincipalId, head: Seq) {
        let reader = (run.run.clone(), principal.clone());
        let mut memory = self.0.lock();
        let known = memory.get(&run.tenant, &reader);
        if known.is_none_or(|known| known.seen < head) {
            let answering = known.and_then(|known| known.answering);
            let known = Known {
                seen: head,
                answering: answering.filter(|answering| *answering >= head),
            };
            memory.put(&run.tenant, reader, known);
        }
    }

    /// Notes that a principal answers a question of a run whose log ends at `head`.
    fn note_answer(&self, run: &RunKey, principal: &PrincipalId, head: Seq) {
        let reader = (run.run.clone(), principal.clone());
        let mut memory = self.0.lock();
        let known = memory.get(&run.tenant, &reader).unwrap_or_default();
        let known = Known {
            answering: Some(head).filter(|head| known.seen <= *head),
            ..known
        };
        memory.put(&run.tenant, reader, known);
    }

    /// What is remembered of a principal and a run.
    pub(crate) fn of(&self, run: &RunKey, principal: &PrincipalId) -> Option<Known> {
        self.0
            .lock()
            .get(&run.tenant, &(run.run.clone(), principal.clone()))
    }
}

impl Memory {
    fn get(&self, tenant: &TenantId, reader: &Reader) -> Option<Known> {
        let generations = self.tenants.get(tenant)?;
        let known = generations.newer.get(reader);
        known.or_else(|| generations.older.get(reader)).copied()
    }

    fn put(&mut self, tenant: &TenantId, reader: Reader, known: Known) {
        if !self.tenants.contains_key(tenant) && self.tenants.len() >= MAX_TENANTS {
            self.forget_tenant();
        }
        while self.n_readers >= MAX {
            self.forget_readers();
        }
        let generations = self.tenants.entry(tenant.clone()).or_default();
        let before = generations.len();
        generations.older.remove(&reader);
        generations.newer.insert(reader, known);
        let after = generations.len();
        self.n_readers = self.n_readers + after - before;
        let share = MAX / self.tenants.len().max(1);
        self.age(tenant, share / 2);
    }

    /// Turns the newer half of a tenant into the older one once it is full.
    fn age(&mut self, tenant: &TenantId, half: usize) {
        if let Some(generations) = self.tenants.get_mut(tenant)
            && generations.newer.len() >= half
        {
            self.n_readers -= generations.older.len();
            generations.older = std::mem::take(&mut generations.newer);
        }
    }

    /// Forgets readers of the tenant with the most readers, the older half first.
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

    /// Forgets the tenant with the fewest readers.
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

    /// The number of readers remembered. Checks that it is counted correctly.
    fn held(reads: &LastReads) -> usize {
        let memory = reads.0.lock();
        let n = memory.tenants.values().map(Generations::len).sum();
        assert_eq!(memory.n_readers, n);
        n
    }

    #[test]
    fn the_latest_read_of_each_principal_is_remembered_up_to_a_limit() {
        let seen = LastReads::default();
        let [ada, bob] = principals();
        seen.note(&run(0, 0), &ada, Seq(4));
        seen.note(&run(0, 0), &ada, Seq(2));
        let of = |principal| seen.of(&run(0, 0), principal).map(|known| known.seen);
        assert_eq!((of(&ada), of(&bob)), (Some(Seq(4)), None));
        for n in 1..2 * MAX {
            seen.note(&run(0, n), &bob, Seq(1));
        }
        assert_eq!(seen.of(&run(0, 0), &ada), None);
        let last = seen.of(&run(0, 2 * MAX - 1), &bob).unwrap();
        assert_eq!(last.seen, Seq(1));
        assert!(held(&seen) <= MAX);
    }

    #[test]
    fn an_answer_is_remembered_until_its_sender_is_shown_what_follows() {
        let reads = LastReads::default();
        let [ada, bob] = principals();
        let answering = || reads.of(&run(0, 0), &ada).and_then(|known| known.answering);
        reads.note(&run(0, 0), &ada, Seq(4));
        reads.note_answer(&run(0, 0), &ada, Seq(4));
        reads.note(&run(0, 0), &ada, Seq(4));
        reads.note(&run(0, 0), &bob, Seq(9));
        assert_eq!(answering(), Some(Seq(4)));
        reads.note(&run(0, 0), &ada, Seq(6));
        assert_eq!(answering(), None);
        reads.note_answer(&run(0, 0), &ada, Seq(5));
        assert_eq!(answering(), None, "it has been shown more already");
    }

    #[test]
    fn reads_of_one_tenant_do_not_displace_those_of_another() {
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
    fn many_tenants_share_the_limit() {
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
