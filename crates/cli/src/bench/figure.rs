//! A named figure, and the bar it is held against.

use std::fmt;

use serde::{Serialize, Serializer, ser::SerializeStruct as _};

use super::latency::Summary;

/// A figure of a report.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Figure {
    /// What it is.
    pub(crate) name: String,
    /// How much.
    pub(crate) value: f64,
    /// Of what; empty where it is a number of its own.
    pub(crate) unit: &'static str,
    /// What it is held against.
    pub(crate) bar: Option<Bar>,
}

/// What wopr promises of a figure.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Bar {
    AtMost(f64),
    AtLeast(f64),
}

impl Bar {
    /// Whether a value keeps the promise.
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
    /// A figure without a bar.
    pub(crate) fn new(name: impl Into<String>, value: f64, unit: &'static str) -> Self {
        Self {
            name: name.into(),
            value,
            unit,
            bar: None,
        }
    }

    /// Holds it against a bar.
    pub(crate) fn bar(mut self, bar: Bar) -> Self {
        self.bar = Some(bar);
        self
    }

    /// Whether the bar holds; `None` where there is none.
    pub(crate) fn holds(&self) -> Option<bool> {
        self.bar.map(|bar| bar.holds(self.value))
    }

    /// The value for people.
    pub(crate) fn shown(&self) -> String {
        rounded(self.value)
    }
}

/// Three figures that count, whole numbers as they are.
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

/// The figures of a study as they come up.
#[derive(Debug, Default)]
pub(crate) struct Figures(pub(crate) Vec<Figure>);

impl Figures {
    /// Adds one.
    pub(crate) fn add(&mut self, name: impl Into<String>, value: f64, unit: &'static str) {
        self.0.push(Figure::new(name, value, unit));
    }

    /// Adds one if it is known.
    pub(crate) fn add_known(&mut self, name: impl Into<String>, value: Option<f64>, unit: &'static str) {
        if let Some(value) = value {
            self.add(name, value, unit);
        }
    }

    /// Adds one that is held against a bar, if it is known.
    pub(crate) fn hold(&mut self, name: impl Into<String>, value: Option<f64>, unit: &'static str, bar: Bar) {
        if let Some(value) = value {
            self.0.push(Figure::new(name, value, unit).bar(bar));
        }
    }

    /// Adds p50, p99 and the largest of latencies, in milliseconds.
    pub(crate) fn add_latencies(&mut self, name: &str, summary: Option<Summary>) {
        let Some(summary) = summary else { return };
        for (quantile, micros) in [("p50", summary.p50), ("p99", summary.p99), ("max", summary.max)] {
            self.add(format!("{name}, {quantile}"), micros / 1_000.0, "ms");
        }
    }
}

/// Bytes as mebibytes.
pub(crate) fn mebibytes(bytes: u64) -> f64 {
    bytes as f64 / f64::from(1 << 20)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_bar_holds_or_is_missed() {
        let figure = Figure::new("memory", 256.0, "MiB");
        assert_eq!(figure.holds(), None);
        assert_eq!(figure.clone().bar(Bar::AtMost(256.0)).holds(), Some(true));
        assert_eq!(figure.clone().bar(Bar::AtMost(255.9)).holds(), Some(false));
        assert_eq!(figure.bar(Bar::AtLeast(300.0)).holds(), Some(false));
    }

    #[test]
    fn a_machine_reads_whether_it_holds() {
        let figure = Figure::new("memory", 1.5, "MiB").bar(Bar::AtMost(2.0));
        let document = serde_json::to_value(figure).unwrap();
        let expected = serde_json::json!({
            "name": "memory", "value": 1.5, "unit": "MiB", "bar": {"at_most": 2.0}, "holds": true,
        });
        assert_eq!(document, expected);
    }

    #[test]
    fn people_read_three_figures() {
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
