//! Named figures and their targets.

use std::fmt;

use serde::{Serialize, Serializer, ser::SerializeStruct as _};

use super::latency::Summary;

#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Figure {
    pub(crate) name: String,
    pub(crate) value: f64,
    /// Empty for dimensionless values.
    pub(crate) unit: &'static str,
    /// The target of the figure.
    pub(crate) bar: Option<Bar>,
}

/// A target that wopr promises to meet.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Bar {
    AtMost(f64),
    AtLeast(f64),
}

impl Bar {
    /// Returns `true` if the value meets the target.
    pub(crate) fn holds(self, value: f64) -> bool {
        match self {
            Self::AtMost(most) => value <= most,
            Self::AtLeast(least) => value >= least,
        }
    }
}

impl fmt::Display for Bar {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::AtMost(most) => write!(f, "<= {}", rounded(*most)),
            Self::AtLeast(least) => write!(f, ">= {}", rounded(*least)),
        }
    }
}

impl Figure {
    pub(crate) fn new(name: impl Into<String>, value: f64, unit: &'static str) -> Self {
        Self {
            name: name.into(),
            value,
            unit,
            bar: None,
        }
    }

    /// Sets the target.
    pub(crate) fn bar(mut self, bar: Bar) -> Self {
        self.bar = Some(bar);
        self
    }

    /// Returns `true` if the value meets the target; `None` without a target.
    pub(crate) fn holds(&self) -> Option<bool> {
        self.bar.map(|bar| bar.holds(self.value))
    }

    /// Formats the value for display.
    pub(crate) fn shown(&self) -> String {
        rounded(self.value)
    }
}

/// Rounds to three significant digits; whole numbers stay exact.
fn rounded(value: f64) -> String {
    let digits = match value.abs() {
        size if size >= 100.0 || value.fract() == 0.0 => 0,
        size if size >= 10.0 => 1,
        size if size >= 0.1 => 2,
        _ => 4,
    };
    format!("{value:.digits$}")
}

impl Serialize for Figure {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut figure = serializer.serialize_struct("Figure", 5)?;
        figure.serialize_field("name", &self.name)?;
        figure.serialize_field("value", &self.value)?;
        figure.serialize_field("unit", self.unit)?;
        figure.serialize_field("bar", &self.bar)?;
        figure.serialize_field("holds", &self.holds())?;
        figure.end()
    }
}

/// The figures of a study, in the order in which they were measured.
#[derive(Debug, Default)]
pub(crate) struct Figures(pub(crate) Vec<Figure>);

impl Figures {
    pub(crate) fn add(&mut self, name: impl Into<String>, value: f64, unit: &'static str) {
        self.0.push(Figure::new(name, value, unit));
    }

    /// Adds a figure unless the value is unknown.
    pub(crate) fn add_known(&mut self, name: impl Into<String>, value: Option<f64>, unit: &'static str) {
        if let Some(value) = value {
            self.add(name, value, unit);
        }
    }

    /// Adds a figure with a target unless the value is unknown.
    pub(crate) fn hold(&mut self, name: impl Into<String>, value: Option<f64>, unit: &'static str, bar: Bar) {
        if let Some(value) = value {
            self.0.push(Figure::new(name, value, unit).bar(bar));
        }
    }

    /// Adds the p50, p99 and maximum latency in milliseconds.
    pub(crate) fn add_latencies(&mut self, name: &str, summary: Option<Summary>) {
        let Some(summary) = summary else { return };
        for (quantile, micros) in [("p50", summary.p50), ("p99", summary.p99), ("max", summary.max)] {
            self.add(format!("{name}, {quantile}"), micros / 1_000.0, "ms");
        }
    }
}

/// Converts bytes to mebibytes.
pub(crate) fn mebibytes(bytes: u64) -> f64 {
    bytes as f64 / f64::from(1 << 20)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn target_is_met_or_missed() {
        let figure = Figure::new("memory", 256.0, "MiB");
        assert_eq!(figure.holds(), None);
        assert_eq!(figure.clone().bar(Bar::AtMost(256.0)).holds(), Some(true));
        assert_eq!(figure.clone().bar(Bar::AtMost(255.9)).holds(), Some(false));
        assert_eq!(figure.bar(Bar::AtLeast(300.0)).holds(), Some(false));
    }

    #[test]
    fn json_reports_if_a_target_is_met() {
        let figure = Figure::new("memory", 1.5, "MiB").bar(Bar::AtMost(2.0));
        let document = serde_json::to_value(figure).unwrap();
        let expected = serde_json::json!({
            "name": "memory", "value": 1.5, "unit": "MiB", "bar": {"at_most": 2.0}, "holds": true,
        });
        assert_eq!(document, expected);
    }

    #[test]
    fn values_are_shown_with_three_digits() {
        for (value, text) in [
            (12_345.6, "12346"),
            (3.0, "3"),
            (12.345, "12.3"),
            (1.234, "1.23"),
            (0.012_34, "0.0123"),
        ] {
            assert_eq!(rounded(value), text);
        }
    }
}
