//! The report: a table for people, JSON for machines.

use std::fmt::Write as _;

use serde::Serialize;

use super::{
    latency::Summary,
    load::{Outcome, Plan},
    scenario::Scenario,
};

/// Everything a bench found out.
#[derive(Debug, Serialize)]
pub(crate) struct Report {
    /// The version of wopr that measured.
    pub(crate) version: &'static str,
    /// Whether it was built with optimizations off.
    pub(crate) is_debug_build: bool,
    /// The cores this machine lets us use.
    pub(crate) n_cpus: usize,
    /// The kind of file system below the raw probe; of a child of ours, below the store too.
    pub(crate) file_system: Option<String>,
    /// Claims that the server is a child on a new store.
    pub(crate) has_own_server: bool,
    /// One per scenario and number of clients.
    pub(crate) cells: Vec<Cell>,
}

/// One measurement. Times are in microseconds.
#[derive(Debug, Serialize)]
pub(crate) struct Cell {
    pub(crate) scenario: Scenario,
    pub(crate) concurrency: usize,
    pub(crate) runs: usize,
    pub(crate) failures: u64,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) first_failure: Option<String>,
    pub(crate) seconds: f64,
    pub(crate) runs_per_second: f64,
    /// From the request that starts a run until its end was read.
    pub(crate) latency: Option<Summary>,
    /// F: appending 16 KiB to a growing file and `fdatasync`, between the rounds.
    pub(crate) raw: Option<Summary>,
    /// p50 of the latency as a multiple of p50 of F.
    pub(crate) p50_by_raw: Option<f64>,
    pub(crate) appends_per_run: Option<f64>,
    /// Commits, each with one fsync, per run.
    pub(crate) fsyncs_per_run: Option<f64>,
    pub(crate) server_cpu_per_run: Option<f64>,
    pub(crate) client_cpu_per_run: Option<f64>,
    /// The server's memory afterwards, in bytes.
    pub(crate) resident: Option<u64>,
}

impl Cell {
    /// Sums a measurement up.
    pub(crate) fn new(plan: Plan, outcome: Outcome) -> Self {
        let latency = outcome.latencies.summarize();
        let raw = outcome.raw.summarize();
        let runs = latency.map_or(0, |latency| latency.n);
        let per_run = |value: f64| (runs > 0).then(|| value / runs as f64);
        let seconds = outcome.elapsed.as_secs_f64();
        Self {
            scenario: plan.scenario,
            concurrency: plan.concurrency,
            runs,
            failures: outcome.failures,
            first_failure: outcome.first_failure,
            seconds,
            runs_per_second: runs as f64 / seconds.max(f64::EPSILON),
            latency,
            raw,
            p50_by_raw: latency.zip(raw).map(|(latency, raw)| latency.p50 / raw.p50),
            appends_per_run: outcome.appends.and_then(per_run),
            fsyncs_per_run: outcome.commits.and_then(per_run),
            server_cpu_per_run: outcome.server.and_then(|cpu| per_run(cpu.as_secs_f64() * 1e6)),
            client_cpu_per_run: outcome.client.and_then(|cpu| per_run(cpu.as_secs_f64() * 1e6)),
            resident: outcome.resident,
        }
    }
}

impl Report {
    /// How many runs failed.
    pub(crate) fn failures(&self) -> u64 {
        self.cells.iter().map(|cell| cell.failures).sum()
    }

    /// The table.
    pub(crate) fn table(&self) -> String {
        let head = [
            "scenario",
            "clients",
            "runs/s",
            "p50 ms",
            "p99 ms",
            "p99.9 ms",
            "F p50",
            "F p99",
            "p50/F",
            "appends",
            "fsyncs",
            "server us",
            "client us",
            "RSS MiB",
            "failed",
        ];
        let mut rows = vec![head.map(str::to_owned)];
        rows.extend(self.cells.iter().map(row));
        let mut widths = [0; 15];
        for row in &rows {
            for (width, field) in widths.iter_mut().zip(row) {
                *width = (*width).max(field.len());
            }
        }
        let mut text = String::new();
        for row in &rows {
            let mut line = format!("{:<width$}", row[0], width = widths[0]);
            for (field, width) in row.iter().zip(widths).skip(1) {
                // Writing to a string cannot fail.
                let _ = write!(line, "  {field:>width$}");
            }
            let _ = writeln!(text, "{line}");
        }
        text.push_str(
            "\nFrom the request that starts a run until its end was read; appends, fsyncs and CPU are per run.\n\
             F: 16 KiB appended to a growing file and fdatasync, between the rounds, in ms.\n",
        );
        for cell in &self.cells {
            if let Some(failure) = &cell.first_failure {
                let _ = writeln!(
                    text,
                    "{}, {} clients: {failure}",
                    cell.scenario.name(),
                    cell.concurrency
                );
            }
        }
        text
    }
}

fn row(cell: &Cell) -> [String; 15] {
    let millis = |summary: Option<Summary>, of: fn(Summary) -> f64| {
        shown(summary.map(of).map(|micros| micros / 1_000.0), 2)
    };
    [
        cell.scenario.name().to_owned(),
        cell.concurrency.to_string(),
        format!("{:.0}", cell.runs_per_second),
        millis(cell.latency, |latency| latency.p50),
        millis(cell.latency, |latency| latency.p99),
        millis(cell.latency, |latency| latency.p999),
        millis(cell.raw, |raw| raw.p50),
        millis(cell.raw, |raw| raw.p99),
        shown(cell.p50_by_raw, 2),
        shown(cell.appends_per_run, 3),
        shown(cell.fsyncs_per_run, 3),
        shown(cell.server_cpu_per_run, 0),
        shown(cell.client_cpu_per_run, 0),
        shown(cell.resident.map(|bytes| bytes as f64 / f64::from(1 << 20)), 0),
        cell.failures.to_string(),
    ]
}

fn shown(value: Option<f64>, digits: usize) -> String {
    value.map_or_else(|| "-".to_owned(), |value| format!("{value:.digits$}"))
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn a_cell_counts_per_completed_run() {
        let plan = Plan {
            scenario: Scenario::Rest,
            concurrency: 8,
            time: Duration::from_secs(1),
            runs: 100,
            warm_up: Duration::ZERO,
        };
        let mut outcome = Outcome {
            failures: 1,
            elapsed: Duration::from_secs(2),
            server: Some(Duration::from_millis(1)),
            appends: Some(4.0),
            commits: Some(1.0),
            ..Outcome::default()
        };
        for _ in 0..4 {
            outcome.latencies.add(Duration::from_millis(3));
            outcome.raw.add(Duration::from_millis(2));
        }
        let cell = Cell::new(plan, outcome);
        assert_eq!(cell.runs, 4);
        assert!((cell.runs_per_second - 2.0).abs() < 1e-9);
        assert_eq!(cell.p50_by_raw, Some(1.5));
        assert_eq!(cell.appends_per_run, Some(1.0));
        assert_eq!(cell.fsyncs_per_run, Some(0.25));
        assert_eq!(cell.server_cpu_per_run, Some(250.0));
        assert_eq!(cell.client_cpu_per_run, None);
        assert_eq!(Cell::new(plan, Outcome::default()).appends_per_run, None);
    }
}
