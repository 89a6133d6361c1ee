//! Generates ascending run ids.
//!
//! Ids of one process ascend even within a millisecond, so that lists show the newest run first. They stay
//! unguessable: within a millisecond the random part grows by a random step of 56 bits. Ids that several
//! processes generate within a millisecond are unordered, and so are ids of children, which are derived from
//! the parent's.

use parking_lot::Mutex;
use wopr_core::{RunId, Timestamp};

use crate::{clock::Clock, entropy::EntropySource};

/// Bits of an id that are not the time: ten bytes, less version and variant of a UUID.
const FREE: u32 = 74;
/// Free bits in the last eight bytes.
const LOW: u32 = 62;
/// Bits of a step: too many to guess, and few enough for at least 130,000 ids per millisecond.
const STEP: u32 = 56;

/// The last id generated.
#[derive(Debug, Default)]
pub(crate) struct RunIds(Mutex<Option<Last>>);

#[derive(Debug, Clone, Copy)]
struct Last {
    at: Timestamp,
    random: u128,
}

impl RunIds {
    /// Generates the next id. If the clock went back, ids follow it and ascend from there.
    pub(crate) fn next(&self, clock: &dyn Clock, entropy_source: &EntropySource) -> RunId {
        let mut last = self.0.lock();
        // Read under the lock, so that ids ascend in the order of their times.
        let at = clock.now();
        let rolled = number(entropy_source.roll());
        // The highest bit is reserved for the steps of this millisecond.
        let fresh = rolled >> (128 - FREE + 1);
        let random = match *last {
            Some(last) if last.at == at => {
                let step = (rolled >> (128 - STEP)) + 1;
                let grown = last.random + step;
                // No machine is fast enough to run out. If one does, ids are unordered rather than refused.
                if grown >> FREE == 0 { grown } else { fresh }
            }
            Some(_) | None => fresh,
        };
        *last = Some(Last { at, random });
        RunId::from_parts(at, entropy(random))
    }
}

/// Returns ten random bytes as the highest bits of a number.
fn number(bytes: [u8; 10]) -> u128 {
    let mut wide = [0; 16];
    wide[..10].copy_from_slice(&bytes);
    u128::from_be_bytes(wide)
}

/// Places the free bits of an id where a UUID of version 7 has them, in order.
fn entropy(random: u128) -> [u8; 10] {
    let (high, low) = (random >> LOW, random & ((1 << LOW) - 1));
    let mut bytes = [0; 10];
    bytes[..2].copy_from_slice(&high.to_be_bytes()[14..]);
    bytes[2..].copy_from_slice(&low.to_be_bytes()[8..]);
    bytes
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(Debug)]
    struct Still(i64);

    impl Clock for Still {
        fn now(&self) -> Timestamp {
            Timestamp::from_millis(self.0)
        }
    }

    fn made(n: usize, clock: &Still, ids: &RunIds, seed: u64) -> Vec<RunId> {
        let entropy_source = EntropySource::new(Some(seed));
        (0..n).map(|_| ids.next(clock, &entropy_source)).collect()
    }

    #[test]
    fn ids_of_one_millisecond_ascend() {
        for seed in 0..20 {
            let ids = RunIds::default();
            let mut all = made(1_000, &Still(5), &ids, seed);
            all.extend(made(10, &Still(6), &ids, seed));
            assert!(all.windows(2).all(|pair| pair[0] < pair[1]), "{seed}");
            assert_eq!(all[..1_000], made(1_000, &Still(5), &RunIds::default(), seed));
        }
    }

    #[test]
    fn ids_follow_a_clock_that_goes_back() {
        let ids = RunIds::default();
        let before = made(1, &Still(9), &ids, 1);
        let after = made(100, &Still(3), &ids, 2);
        assert!(after.iter().all(|id| *id < before[0]));
        assert!(after.windows(2).all(|pair| pair[0] < pair[1]));
    }

    #[test]
    fn every_free_bit_of_an_id_is_used() {
        let at = Timestamp::from_millis(1);
        let id = |random: u128| RunId::from_parts(at, entropy(random));
        let numbers: Vec<u128> = (0..FREE).map(|bit| 1 << bit).collect();
        assert!(numbers.windows(2).all(|pair| id(pair[0]) < id(pair[1])));
        assert!(numbers.iter().all(|number| id(number - 1) < id(*number)));
    }

    #[test]
    fn ids_are_generated_even_if_a_millisecond_is_exhausted() {
        let at = Timestamp::from_millis(1);
        let full = Last {
            at,
            random: (1 << FREE) - 1,
        };
        let ids = RunIds(Mutex::new(Some(full)));
        let all = made(3, &Still(1), &ids, 3);
        assert!(all[0] < all[1] && all[1] < all[2]);
    }
}
