//! What callers have seen of runs: how far the log reached when they last read it.
//!
//! An answer that names no question counts only while nobody else has settled one that its caller may have meant. What
//! a caller was shown is remembered for as long as there is room, and in this process only: after that the caller's
//! own messages say what it knows, or it names the question.

use std::collections::HashMap;

use parking_lot::Mutex;
use wopr_core::{PrincipalId, RunKey, Seq};

/// Readers of runs that are remembered, twice: those seen lately, and those seen before.
const MAX: usize = 32_768;

/// A principal and a run of its tenant.
type Reader = (RunKey, PrincipalId);

/// The last reads of a host.
#[derive(Debug, Default)]
pub(crate) struct Seen(Mutex<Generations>);

/// When the newer half is full, the older one is forgotten: no list to keep in order, and a bound that holds.
#[derive(Debug, Default)]
struct Generations {
    newer: HashMap<Reader, Seq>,
    older: HashMap<Reader, Seq>,
}

impl Seen {
    /// Notes that a principal was shown a run up to a place of its log.
    pub(crate) fn note(&self, run: &RunKey, principal: &PrincipalId, head: Seq) {
        let reader = (run.clone(), principal.clone());
        let mut generations = self.0.lock();
        let known = generations.get(&reader);
        if known.is_some_and(|known| known >= head) {
            return;
        }
        if generations.newer.len() >= MAX {
            generations.older = std::mem::take(&mut generations.newer);
        }
        generations.newer.insert(reader, head);
    }

    /// How far a principal has seen a run, if that is remembered.
    pub(crate) fn of(&self, run: &RunKey, principal: &PrincipalId) -> Option<Seq> {
        self.0.lock().get(&(run.clone(), principal.clone()))
    }
}

impl Generations {
    fn get(&self, reader: &Reader) -> Option<Seq> {
        self.newer.get(reader).or_else(|| self.older.get(reader)).copied()
    }
}

#[cfg(test)]
mod tests {
    use wopr_core::{RunId, TenantId};

    use super::*;

    fn run(n: usize) -> RunKey {
        RunKey::new(
            TenantId::parse("acme").unwrap(),
            RunId::parse(&format!("run_{n:016}")).unwrap(),
        )
    }

    #[test]
    fn the_latest_read_of_each_principal_is_remembered_within_bounds() {
        let seen = Seen::default();
        let [ada, bob] = ["ada", "bob"].map(|name| PrincipalId::parse(name).unwrap());
        seen.note(&run(0), &ada, Seq(4));
        seen.note(&run(0), &ada, Seq(2));
        assert_eq!(
            (seen.of(&run(0), &ada), seen.of(&run(0), &bob)),
            (Some(Seq(4)), None)
        );
        for n in 1..3 * MAX {
            seen.note(&run(n), &bob, Seq(1));
        }
        assert_eq!(seen.of(&run(0), &ada), None);
        assert_eq!(seen.of(&run(3 * MAX - 1), &bob), Some(Seq(1)));
        let held = seen.0.lock();
        assert!(held.newer.len() + held.older.len() <= 2 * MAX);
    }
}
