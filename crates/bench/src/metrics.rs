//! Counters of a server, in the Prometheus text format.

use std::collections::HashMap;

/// Counters at one moment; the series of each name are summed.
#[derive(Debug, Default)]
pub(crate) struct Metrics(HashMap<String, f64>);

impl Metrics {
    /// Parses the text and ignores unknown lines.
    pub(crate) fn parse(text: &str) -> Self {
        let mut sums = HashMap::new();
        for line in text.lines().filter(|line| !line.starts_with('#')) {
            let Some((series, value)) = line.rsplit_once(' ') else {
                continue;
            };
            let Ok(value) = value.parse::<f64>() else {
                continue;
            };
            let name = series.split('{').next().unwrap_or(series);
            *sums.entry(name.to_owned()).or_default() += value;
        }
        Self(sums)
    }

    /// Returns the value of a counter; `None` if it is not reported.
    pub(crate) fn get(&self, name: &str) -> Option<f64> {
        self.0.get(name).copied()
    }

    /// Returns the increase of a counter; `None` if it is not reported.
    pub(crate) fn since(&self, before: &Self, name: &str) -> Option<f64> {
        Some(self.get(name)? - before.get(name).unwrap_or_default())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn series_of_a_name_are_summed() {
        let before =
            Metrics::parse("# HELP a_total Text 1\na_total{x=\"1 2\"} 3\na_total{x=\"3\"} 4.5\n\nb nonsense");
        let after = Metrics::parse("a_total{x=\"1 2\"} 10\nc_total 2");
        assert_eq!(after.since(&before, "a_total"), Some(2.5));
        assert_eq!(after.since(&before, "c_total"), Some(2.0));
        assert_eq!(after.since(&before, "b"), None);
    }
}
