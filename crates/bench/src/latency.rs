//! Latencies of a measurement, and their quantiles.
//!
//! Every value is kept: the number of runs is limited, and exact quantiles avoid the error of buckets.

use std::time::Duration;

use serde::Serialize;

/// Values in the order of arrival, in units of 100 ns.
#[derive(Debug, Default, Clone)]
pub(crate) struct Latencies(Vec<u32>);

/// A summary of latencies, in microseconds.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub(crate) struct Summary {
    pub(crate) n: usize,
    pub(crate) p50: f64,
    pub(crate) p95: f64,
    pub(crate) p99: f64,
    pub(crate) p999: f64,
    pub(crate) max: f64,
    pub(crate) mean: f64,
}

impl Latencies {
    /// Adds a value. Values above seven minutes are capped.
    pub(crate) fn add(&mut self, took: Duration) {
        self.0
            .push(u32::try_from(took.as_nanos() / 100).unwrap_or(u32::MAX));
    }

    pub(crate) fn append(&mut self, mut other: Self) {
        self.0.append(&mut other.0);
    }

    pub(crate) fn len(&self) -> usize {
        self.0.len()
    }

    /// Computes the summary; `None` without values.
    pub(crate) fn summarize(mut self) -> Option<Summary> {
        self.0.sort_unstable();
        let values = self.0;
        let n = values.len();
        let micros = |value: u32| f64::from(value) / 10.0;
        // Nearest rank: the smallest value that is not exceeded by `of_thousand` per mille of the values.
        let quantile = |of_thousand: usize| micros(values[(n * of_thousand).div_ceil(1_000).max(1) - 1]);
        let max = micros(*values.last()?);
        let sum: f64 = values.iter().copied().map(micros).sum();
        Some(Summary {
            n,
            p50: quantile(500),
            p95: quantile(950),
            p99: quantile(990),
            p999: quantile(999),
            max,
            mean: sum / n as f64,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quantiles_are_observed_values() {
        let mut latencies = Latencies::default();
        for micros in (1..=1_000).rev() {
            latencies.add(Duration::from_micros(micros));
        }
        let summary = latencies.summarize().unwrap();
        assert_eq!(
            summary,
            Summary {
                n: 1_000,
                p50: 500.0,
                p95: 950.0,
                p99: 990.0,
                p999: 999.0,
                max: 1_000.0,
                mean: 500.5
            }
        );
    }

    #[test]
    fn single_value_is_every_quantile() {
        let mut latencies = Latencies::default();
        latencies.add(Duration::from_nanos(1_500));
        let summary = latencies.summarize().unwrap();
        assert_eq!((summary.p50, summary.p999, summary.max), (1.5, 1.5, 1.5));
        assert_eq!(Latencies::default().summarize(), None);
    }
}
