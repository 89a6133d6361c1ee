//! The report: a table for the terminal, and JSON.

use std::fmt::Write as _;

use serde::Serialize;

use super::{
    figure::{Bar, Figure},
    latency::Summary,
    load::{Outcome, Plan},
    scenario::Scenario,
};

/// Target for p50 at one client: microseconds allowed in addition to the disk's share.
const BAR_P50: f64 = 400.0;
/// The disk's share, as a multiple of F.
const BAR_P50_RAW: f64 = 1.5;
/// Number of clients at which runs per second, CPU and fsyncs have targets.
const BAR_CLIENTS: usize = 256;
/// Number of clients at which runs of documents are compared.
const DOCUMENT_CLIENTS: usize = 32;
/// 50 times what the reference engine of the Agent Workflow Protocol does, which starts 70 to 85 of these runs per second
/// on two processors.
pub(crate) const DOCUMENTS_PER_SECOND: f64 = 4_250.0;

#[derive(Debug, Serialize)]
pub struct Report {
    pub(crate) version: &'static str,
    pub(crate) is_debug_build: bool,
    /// CPU cores available to this process.
    pub(crate) n_cpus: usize,
    /// Load average of the last minute at the start of the benchmark.
    pub(crate) load_average: Option<f64>,
    /// `sqlite` or `postgres`; absent if the store is not ours.
    pub(crate) store: Option<&'static str>,
    /// File system type of the probe file and, for SQLite, the store.
    pub(crate) file_system: Option<String>,
    /// One per journey and number of clients.
    pub(crate) cells: Vec<Cell>,
    pub(crate) studies: Vec<StudyReport>,
    /// Targets of the cells.
    pub(crate) bars: Vec<Figure>,
}

#[derive(Debug, Serialize)]
pub(crate) struct StudyReport {
    pub(crate) scenario: Scenario,
    pub(crate) size: usize,
    pub(crate) figures: Vec<Figure>,
}

/// One measurement of a journey. Times are in microseconds.
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
    /// Time from the first request of a run until the client has read the expected result.
    pub(crate) latency: Option<Summary>,
    /// F: the latency of appending 16 KiB to a growing file and `fdatasync`, measured between rounds.
    pub(crate) raw: Option<Summary>,
    /// p50 of the latency as a multiple of p50 of F.
    pub(crate) p50_by_raw: Option<f64>,
    /// Target for p50, at one client.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) p50_bar: Option<f64>,
    pub(crate) appends_per_run: Option<f64>,
    pub(crate) fsyncs_per_run: Option<f64>,
    pub(crate) bytes_written_per_run: Option<f64>,
    pub(crate) server_cpu_per_run: Option<f64>,
    /// CPU time of the database server; absent if there is none.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) database_cpu_per_run: Option<f64>,
    pub(crate) client_cpu_per_run: Option<f64>,
    /// The server's resident memory after the measurement, in bytes.
    pub(crate) resident: Option<u64>,
}

impl Cell {
    /// Summarizes a measurement.
    pub(crate) fn new(plan: Plan, outcome: Outcome) -> Self {
        let latency = outcome.latencies.summarize();
        let raw = outcome.raw.summarize();
        let runs = latency.map_or(0, |latency| latency.n);
        let per_run = |value: f64| (runs > 0).then(|| value / runs as f64);
        let micros_per_run = |cpu: std::time::Duration| per_run(cpu.as_secs_f64() * 1e6);
        let seconds = outcome.elapsed.as_secs_f64();
        let has_bar = plan.concurrency == 1 && plan.scenario.is_pure();
        let used = outcome.used;
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
            p50_bar: raw.filter(|_| has_bar).map(|raw| BAR_P50_RAW * raw.p50 + BAR_P50),
            appends_per_run: used.appends.and_then(per_run),
            fsyncs_per_run: used.fsyncs.and_then(per_run),
            bytes_written_per_run: used.bytes.and_then(per_run),
            server_cpu_per_run: used.server.and_then(micros_per_run),
            database_cpu_per_run: used.database.and_then(micros_per_run),
            client_cpu_per_run: outcome.client.and_then(micros_per_run),
            resident: outcome.resident,
        }
    }
}

impl Report {
    /// Number of failed runs.
    #[must_use]
    pub fn failures(&self) -> u64 {
        self.cells.iter().map(|cell| cell.failures).sum()
    }

    /// Compares the cells with their targets.
    pub(crate) fn compare(&mut self) {
        self.bars = self.cells.iter().flat_map(cell_bars).collect();
        for chain in self.cells.iter().filter(|cell| cell.scenario == Scenario::Chain) {
            let one = self
                .cells
                .iter()
                .find(|cell| cell.scenario == Scenario::Rest && cell.concurrency == chain.concurrency);
            let costs = one
                .and_then(|one| one.server_cpu_per_run)
                .zip(chain.server_cpu_per_run);
            if let Some((one, chain_cost)) = costs {
                let name = format!("server CPU of chain by rest, {} clients", chain.concurrency);
                self.bars
                    .push(Figure::new(name, chain_cost / one, "").bar(Bar::AtMost(2.0)));
            }
        }
    }

    /// Formats the report as tables.
    #[must_use]
    pub fn table(&self) -> String {
        let mut text = String::new();
        if !self.cells.is_empty() {
            text.push_str(&self.cell_table());
        }
        for study in &self.studies {
            // Writing to a string cannot fail.
            let _ = writeln!(text, "\n{}, {}", study.scenario.name(), study.size);
            text.push_str(&figure_table(&study.figures));
        }
        if !self.bars.is_empty() {
            text.push_str("\nbars\n");
            text.push_str(&figure_table(&self.bars));
        }
        text
    }

    fn cell_table(&self) -> String {
        let has_database = self.cells.iter().any(|cell| cell.database_cpu_per_run.is_some());
        let mut rows = vec![head(has_database)];
        rows.extend(self.cells.iter().map(|cell| row(cell, has_database)));
        let mut text = aligned(&rows);
        text.push_str(
            "\nFrom the first request of a run until its client read what it waits for, in ms; appends, fsyncs, KiB\n\
             written and CPU are per run. F: 16 KiB appended to a growing file and fdatasync, between the rounds.\n",
        );
        for cell in &self.cells {
            if let Some(failure) = &cell.first_failure {
                let (name, clients) = (cell.scenario.name(), cell.concurrency);
                let _ = writeln!(text, "{name}, {clients} clients: {failure}");
            }
        }
        text
    }
}

/// Compares one cell with its targets.
fn cell_bars(cell: &Cell) -> Vec<Figure> {
    let is_busy = cell.concurrency == BAR_CLIENTS;
    let has_database = cell.database_cpu_per_run.is_some();
    let bar = |what: &str, value: Option<f64>, unit: &'static str, bar: Bar| {
        let name = format!("{what}, {}, {} clients", cell.scenario.name(), cell.concurrency);
        value.map(|value| Figure::new(name, value, unit).bar(bar))
    };
    let per_second = |least| {
        bar(
            "runs per second",
            Some(cell.runs_per_second),
            "",
            Bar::AtLeast(least),
        )
    };
    let cpu = |most| bar("server CPU", cell.server_cpu_per_run, "us", Bar::AtMost(most));
    let appends = |most| bar("appends", cell.appends_per_run, "", Bar::AtMost(most));
    let p50_ms = cell.latency.map(|latency| latency.p50 / 1_000.0);
    let bars = match cell.scenario {
        Scenario::Rest | Scenario::Poll | Scenario::A2a1 | Scenario::A2a03 => {
            let p50 = cell.p50_bar.map(|most| Bar::AtMost(most / 1_000.0));
            let most_cpu = if cell.scenario == Scenario::Rest {
                100.0
            } else {
                80.0
            };
            let fsyncs = || bar("fsyncs per run", cell.fsyncs_per_run, "", Bar::AtMost(0.05));
            vec![
                p50.and_then(|most| bar("p50", p50_ms, "ms", most)),
                is_busy.then(|| per_second(6_000.0)).flatten(),
                is_busy.then(|| cpu(most_cpu)).flatten(),
                is_busy.then(fsyncs).flatten(),
            ]
        }
        Scenario::Fan if is_busy && has_database => vec![appends(2.0), per_second(1_000.0)],
        Scenario::Fan if is_busy => vec![appends(2.0), cpu(300.0), per_second(3_000.0)],
        Scenario::Fan => vec![appends(2.0)],
        Scenario::Turn => vec![appends(3.0)],
        Scenario::Fork if cell.concurrency == 1 => vec![bar("p50", p50_ms, "ms", Bar::AtMost(20.0))],
        Scenario::Document if cell.concurrency == DOCUMENT_CLIENTS => {
            vec![appends(1.05), per_second(DOCUMENTS_PER_SECOND)]
        }
        Scenario::Fork
        | Scenario::Document
        | Scenario::Chain
        | Scenario::Waiting
        | Scenario::Resume
        | Scenario::Subscribers
        | Scenario::Followers
        | Scenario::Children
        | Scenario::List
        | Scenario::Parked
        | Scenario::Streams
        | Scenario::Flat
        | Scenario::Remote
        | Scenario::Workers
        | Scenario::Mcp => Vec::new(),
    };
    bars.into_iter().flatten().collect()
}

fn head(has_database: bool) -> Vec<String> {
    let mut head = vec![
        "scenario",
        "clients",
        "runs/s",
        "p50",
        "p99",
        "p99.9",
        "F p50",
        "F p99",
        "p50/F",
        "p50 bar",
        "appends",
        "fsyncs",
        "KiB",
        "server us",
    ];
    if has_database {
        head.push("database us");
    }
    head.extend(["client us", "RSS MiB", "failed"]);
    head.into_iter().map(str::to_owned).collect()
}

fn row(cell: &Cell, has_database: bool) -> Vec<String> {
    let millis = |summary: Option<Summary>, of: fn(Summary) -> f64| {
        shown(summary.map(of).map(|micros| micros / 1_000.0), 2)
    };
    let mut row = vec![
        cell.scenario.name().to_owned(),
        cell.concurrency.to_string(),
        format!("{:.0}", cell.runs_per_second),
        millis(cell.latency, |latency| latency.p50),
        millis(cell.latency, |latency| latency.p99),
        millis(cell.latency, |latency| latency.p999),
        millis(cell.raw, |raw| raw.p50),
        millis(cell.raw, |raw| raw.p99),
        shown(cell.p50_by_raw, 2),
        shown(cell.p50_bar.map(|bar| bar / 1_000.0), 2),
        shown(cell.appends_per_run, 3),
        shown(cell.fsyncs_per_run, 3),
        shown(cell.bytes_written_per_run.map(|bytes| bytes / 1_024.0), 1),
        shown(cell.server_cpu_per_run, 0),
    ];
    if has_database {
        row.push(shown(cell.database_cpu_per_run, 0));
    }
    row.push(shown(cell.client_cpu_per_run, 0));
    row.push(shown(
        cell.resident.map(|bytes| bytes as f64 / f64::from(1 << 20)),
        0,
    ));
    row.push(cell.failures.to_string());
    row
}

fn figure_table(figures: &[Figure]) -> String {
    let rows: Vec<_> = figures
        .iter()
        .map(|figure| {
            let value = format!("{} {}", figure.shown(), figure.unit);
            let held = figure.bar.map_or_else(String::new, |bar| {
                let verdict = if bar.holds(figure.value) {
                    "holds"
                } else {
                    "MISSED"
                };
                format!("{bar}: {verdict}")
            });
            vec![format!("  {}", figure.name), value.trim_end().to_owned(), held]
        })
        .collect();
    aligned(&rows)
}

/// Aligns columns to their widest field: the first one left, the others right.
fn aligned(rows: &[Vec<String>]) -> String {
    let n_columns = rows.iter().map(Vec::len).max().unwrap_or(0);
    let mut widths = vec![0; n_columns];
    for row in rows {
        for (width, field) in widths.iter_mut().zip(row) {
            *width = (*width).max(field.len());
        }
    }
    let mut text = String::new();
    for row in rows {
        let mut line = String::new();
        for (n, (field, width)) in row.iter().zip(&widths).enumerate() {
            // Writing to a string cannot fail.
            let _ = if n == 0 {
                write!(line, "{field:<width$}")
            } else {
                write!(line, "  {field:>width$}")
            };
        }
        let _ = writeln!(text, "{}", line.trim_end());
    }
    text
}

fn shown(value: Option<f64>, digits: usize) -> String {
    value.map_or_else(|| "-".to_owned(), |value| format!("{value:.digits$}"))
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::{
        meter::Used,
        scenario::{Journey, Way},
    };

    fn plan(scenario: Scenario, concurrency: usize) -> Plan {
        Plan {
            scenario,
            journey: Journey {
                workflow: "one",
                way: Way::Rest,
            },
            concurrency,
            time: Duration::from_secs(1),
            runs: 100,
            warm_up: Duration::ZERO,
        }
    }

    fn outcome(server: Duration) -> Outcome {
        let mut outcome = Outcome {
            failures: 1,
            elapsed: Duration::from_secs(2),
            used: Used {
                server: Some(server),
                appends: Some(4.0),
                fsyncs: Some(1.0),
                bytes: Some(8_192.0),
                database: None,
            },
            ..Outcome::default()
        };
        for _ in 0..4 {
            outcome.latencies.add(Duration::from_millis(3));
            outcome.raw.add(Duration::from_millis(2));
        }
        outcome
    }

    fn report(cells: Vec<Cell>) -> Report {
        let mut report = Report {
            version: "0",
            is_debug_build: false,
            n_cpus: 2,
            load_average: None,
            store: Some("sqlite"),
            file_system: None,
            cells,
            studies: Vec::new(),
            bars: Vec::new(),
        };
        report.compare();
        report
    }

    #[test]
    fn cell_figures_are_per_completed_run() {
        let cell = Cell::new(plan(Scenario::Rest, 8), outcome(Duration::from_millis(1)));
        assert_eq!(cell.runs, 4);
        assert!((cell.runs_per_second - 2.0).abs() < 1e-9);
        assert_eq!(cell.p50_by_raw, Some(1.5));
        assert_eq!(cell.p50_bar, None);
        assert_eq!(cell.appends_per_run, Some(1.0));
        assert_eq!(cell.fsyncs_per_run, Some(0.25));
        assert_eq!(cell.bytes_written_per_run, Some(2_048.0));
        assert_eq!(cell.server_cpu_per_run, Some(250.0));
        assert_eq!(cell.database_cpu_per_run, None);
        assert_eq!(cell.client_cpu_per_run, None);
        let empty = Cell::new(plan(Scenario::Rest, 8), Outcome::default());
        assert_eq!(empty.appends_per_run, None);
    }

    #[test]
    fn one_client_is_compared_with_the_disk() {
        let cell = Cell::new(plan(Scenario::Rest, 1), outcome(Duration::ZERO));
        assert_eq!(cell.p50_bar, Some(3_400.0));
        let bars = report(vec![cell]).bars;
        assert!(matches!(&*bars, [bar] if bar.holds() == Some(true)), "{bars:?}");
    }

    #[test]
    fn many_clients_are_compared_by_cpu_and_fsyncs() {
        let cell = Cell::new(plan(Scenario::A2a1, 256), outcome(Duration::from_micros(4 * 90)));
        let bars = report(vec![cell]).bars;
        let held: Vec<_> = bars.iter().map(|bar| (bar.name.as_str(), bar.holds())).collect();
        assert_eq!(
            held,
            [
                ("runs per second, a2a-1.0, 256 clients", Some(false)),
                ("server CPU, a2a-1.0, 256 clients", Some(false)),
                ("fsyncs per run, a2a-1.0, 256 clients", Some(false)),
            ]
        );
    }

    #[test]
    fn chain_is_compared_with_one_node() {
        let one = Cell::new(plan(Scenario::Rest, 32), outcome(Duration::from_millis(1)));
        let chain = Cell::new(plan(Scenario::Chain, 32), outcome(Duration::from_millis(3)));
        let report = report(vec![one, chain]);
        assert!(matches!(&*report.bars, [bar] if bar.holds() == Some(false)));
        assert!(report.table().contains("<= 2: MISSED"), "{}", report.table());
    }
}
