//! Random bytes: from the system, or from a seed in simulations.

use parking_lot::Mutex;
use rand::{Rng, SeedableRng, rngs::StdRng};

#[derive(Debug)]
pub(crate) struct EntropySource(Option<Mutex<StdRng>>);

impl EntropySource {
    pub(crate) fn new(seed: Option<u64>) -> Self {
        Self(seed.map(|seed| Mutex::new(StdRng::seed_from_u64(seed))))
    }

    pub(crate) fn roll<const N: usize>(&self) -> [u8; N] {
        let mut bytes = [0; N];
        match &self.0 {
            None => rand::rng().fill(&mut bytes),
            Some(seeded) => seeded.lock().fill(&mut bytes),
        }
        bytes
    }
}
