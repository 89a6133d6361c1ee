//! Rate limits: buckets of tokens that fill up evenly, and hold at most what one second brings.

use std::collections::BTreeMap;

use parking_lot::Mutex;
use tokio::time::{Duration, Instant};

/// Beyond this many buckets, those that are full are dropped: they say nothing.
const MANY: usize = 1_024;

/// Buckets by key.
#[derive(Debug)]
pub(crate) struct Rates<K>(Mutex<BTreeMap<K, Bucket>>);

#[derive(Debug, Clone, Copy)]
struct Bucket {
    tokens: f64,
    rate: f64,
    at: Instant,
}

impl Bucket {
    fn fill(&mut self, now: Instant) {
        let passed = now.saturating_duration_since(self.at).as_secs_f64();
        self.tokens = (self.tokens + passed * self.rate).min(self.rate);
        self.at = now;
    }
}

impl<K> Default for Rates<K> {
    fn default() -> Self {
        Self(Mutex::default())
    }
}

impl<K: Ord> Rates<K> {
    /// Takes up to `wanted` tokens from the bucket of `key`, which refills at `per_second`. Returns how many it took, or the
    /// time of the next token if the bucket is empty.
    pub(crate) fn take(
        &self,
        key: K,
        per_second: u32,
        wanted: usize,
        now: Instant,
    ) -> Result<usize, Instant> {
        let mut buckets = self.0.lock();
        if buckets.len() >= MANY {
            buckets.retain(|_, bucket| {
                bucket.fill(now);
                bucket.tokens < bucket.rate
            });
        }
        let rate = f64::from(per_second.max(1));
        let bucket = buckets.entry(key).or_insert(Bucket {
            tokens: rate,
            rate,
            at: now,
        });
        bucket.fill(now);
        let mut taken = 0;
        while taken < wanted && bucket.tokens >= 1.0 {
            bucket.tokens -= 1.0;
            taken += 1;
        }
        match taken {
            // A little later, so that rounding leaves no look in vain.
            0 if wanted > 0 => {
                let missing = Duration::from_secs_f64((1.0 - bucket.tokens) / rate);
                Err(now + missing + Duration::from_millis(1))
            }
            taken => Ok(taken),
        }
    }

    /// Gives tokens back that were not used.
    pub(crate) fn give_back(&self, key: &K, unused: usize) {
        if let Some(bucket) = self.0.lock().get_mut(key) {
            for _ in 0..unused {
                bucket.tokens = (bucket.tokens + 1.0).min(bucket.rate);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_bucket_gives_its_rate_and_no_more() {
        let rates = Rates::default();
        let start = Instant::now();
        assert_eq!(
            rates.take("a", 10, 100, start),
            Ok(10),
            "a second's worth at first"
        );
        let next = rates.take("a", 10, 1, start).expect_err("it is empty");
        assert_eq!(next - start, Duration::from_millis(101));
        assert_eq!(rates.take("a", 10, 5, next), Ok(1));
        assert_eq!(rates.take("b", 10, 5, start), Ok(5));
        rates.give_back(&"b", 3);
        assert_eq!(rates.take("b", 10, 100, start), Ok(8));
        let mut n_taken = 0;
        let mut now = start;
        while now < start + Duration::from_secs(10) {
            n_taken += rates.take("c", 7, 3, now).unwrap_or(0);
            now += Duration::from_millis(10);
        }
        assert!(
            (76..=77).contains(&n_taken),
            "{n_taken} in ten seconds and the first one's worth"
        );
    }
}
