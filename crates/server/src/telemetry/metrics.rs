//! Counters and their Prometheus text.
//!
//! This is a registry of our own: the metrics are a closed list, most are read from the engine and the store on
//! demand, and a process may run several hosts (tests do), which a global recorder would mix up.

use std::{
    collections::BTreeMap,
    fmt::Write as _,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering::Relaxed},
    },
    time::{Duration, Instant},
};

use bytes::Bytes;
use http::{Method, StatusCode};
use parking_lot::Mutex;
use wopr_engine::Stats;
use wopr_store::{postgres, sqlite};

use super::throttled::Answers;

/// Media type of the Prometheus text format.
pub const METRICS_TYPE: &str = "text/plain; version=0.0.4; charset=utf-8";

const BUCKETS: [u64; 12] = [
    250, 500, 1_000, 2_500, 5_000, 10_000, 25_000, 50_000, 100_000, 500_000, 1_000_000, 5_000_000,
];

/// Maximum renderings per second. The endpoint is public and slower than most.
const MAX_RENDERS: u32 = 20;

/// Metrics collected by the faces.
#[derive(Debug, Default)]
pub struct Metrics {
    rendered: Mutex<Option<Rendered>>,
    requests: Mutex<BTreeMap<Series, u64>>,
    latencies: Mutex<BTreeMap<&'static str, Latency>>,
    streams: Arc<AtomicU64>,
    panics: AtomicU64,
    pub(super) answers: Answers,
}

/// Statistics of a database since it was opened.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum StoreStats {
    Sqlite(sqlite::Stats),
    Postgres(postgres::Stats),
}

/// A rendered text, and the number of renderings within its second.
#[derive(Debug)]
struct Rendered {
    since: Instant,
    count: u32,
    text: Bytes,
}

type Series = (&'static str, &'static str, u16);

#[derive(Debug, Default)]
struct Latency {
    buckets: [u64; BUCKETS.len()],
    count: u64,
    sum_micros: u64,
}

/// Counts a stream as open until it is dropped.
#[derive(Debug)]
pub struct OpenStream(Arc<AtomicU64>);

impl Drop for OpenStream {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Relaxed);
    }
}

impl Metrics {
    /// Counts an answered request. `route` is a template, which bounds the number of series.
    pub fn answered(&self, method: &Method, route: &'static str, status: StatusCode, took: Duration) {
        let series = (method_name(method), route, status.as_u16());
        *self.requests.lock().entry(series).or_default() += 1;
        let micros = u64::try_from(took.as_micros()).unwrap_or(u64::MAX);
        let mut latencies = self.latencies.lock();
        let latency = latencies.entry(route).or_default();
        latency.count += 1;
        latency.sum_micros = latency.sum_micros.saturating_add(micros);
        if let Some(bucket) = BUCKETS.iter().position(|bound| micros <= *bound) {
            latency.buckets[bucket] += 1;
        }
    }

    /// Counts a stream as open until the guard is dropped.
    #[must_use]
    pub fn open_stream(&self) -> OpenStream {
        self.streams.fetch_add(1, Relaxed);
        OpenStream(Arc::clone(&self.streams))
    }

    /// Counts a panic that became an error response.
    pub fn panicked(&self) {
        self.panics.fetch_add(1, Relaxed);
    }

    /// Returns the text made by `make`, or the last text once `MAX_RENDERS` were made within a second.
    pub fn rendered(&self, make: impl FnOnce(&Self) -> String) -> Bytes {
        let mut last = self.rendered.lock();
        let now = Instant::now();
        let (since, count) = match &*last {
            Some(last) if now.duration_since(last.since) < Duration::from_secs(1) => (last.since, last.count),
            Some(_) | None => (now, 0),
        };
        if let (Some(last), true) = (&*last, count >= MAX_RENDERS) {
            return last.text.clone();
        }
        let text = Bytes::from(make(self));
        *last = Some(Rendered {
            since,
            count: count + 1,
            text: text.clone(),
        });
        text
    }

    /// Renders all metrics as Prometheus text.
    #[must_use]
    pub fn render(&self, engine: &Stats, store: Option<&StoreStats>) -> String {
        let mut out = String::with_capacity(4_096);
        self.render_requests(&mut out);
        let streams = self.streams.load(Relaxed);
        one(
            &mut out,
            "wopr_open_streams",
            "gauge",
            "Event streams open now.",
            streams,
        );
        let panics = self.panics.load(Relaxed) + engine.panics;
        one(
            &mut out,
            "wopr_panics_total",
            "counter",
            "Panics caught: of requests, of work at a run, of loops.",
            panics,
        );
        render_engine(&mut out, engine);
        match store {
            Some(StoreStats::Sqlite(stats)) => render_sqlite(&mut out, stats),
            Some(StoreStats::Postgres(stats)) => render_postgres(&mut out, stats),
            None => {}
        }
        out
    }

    fn render_requests(&self, out: &mut String) {
        head(out, "wopr_http_requests_total", "counter", "Requests answered.");
        for ((method, route, status), count) in &*self.requests.lock() {
            put(
                out,
                format_args!(
                    "wopr_http_requests_total{{method=\"{method}\",route=\"{route}\",status=\"{status}\"}} {count}"
                ),
            );
        }
        let name = "wopr_http_request_seconds";
        head(out, name, "histogram", "Time to the head of the answer.");
        for (route, latency) in &*self.latencies.lock() {
            let mut below = 0;
            for (bound, count) in BUCKETS.iter().zip(latency.buckets) {
                below += count;
                let bound = Duration::from_micros(*bound).as_secs_f64();
                put(
                    out,
                    format_args!("{name}_bucket{{route=\"{route}\",le=\"{bound}\"}} {below}"),
                );
            }
            let Latency {
                count, sum_micros, ..
            } = latency;
            let sum = Duration::from_micros(*sum_micros).as_secs_f64();
            put(
                out,
                format_args!("{name}_bucket{{route=\"{route}\",le=\"+Inf\"}} {count}"),
            );
            put(out, format_args!("{name}_sum{{route=\"{route}\"}} {sum}"));
            put(out, format_args!("{name}_count{{route=\"{route}\"}} {count}"));
        }
    }
}

fn render_engine(out: &mut String, stats: &Stats) {
    let Stats {
        runs_created,
        runs_completed,
        runs_failed,
        runs_cancelled,
        appends,
        conflicts,
        timers_fired,
        effects_started,
        effects_dropped,
        effects_active,
        activities_leased,
        activities_ended,
        activities_lost,
        workers_waiting,
        runs_quarantined,
        runs_removed,
        pushes_made,
        pushes_delivered,
        pushes_failed,
        pushes_given_up,
        pushes_active,
        model_tokens,
        model_cost_micros,
        over_tenant_budget,
        over_workflow_budget,
        // Added to the panics of requests.
        panics: _,
        clock,
    } = *stats;
    let name = "wopr_clock_steps_total";
    head(
        out,
        name,
        "counter",
        "How often the clock was set, by a second or more.",
    );
    for (direction, count) in [("back", clock.back), ("forward", clock.forward)] {
        put(out, format_args!("{name}{{direction=\"{direction}\"}} {count}"));
    }
    let name = "wopr_clock_ahead_seconds";
    head(
        out,
        name,
        "gauge",
        "How far the host's time, which never goes back, is ahead of the clock.",
    );
    let ahead = Duration::from_millis(clock.ahead_ms).as_secs_f64();
    put(out, format_args!("{name} {ahead}"));
    one(
        out,
        "openwop_run_created_total",
        "counter",
        "Runs created.",
        runs_created,
    );
    let name = "openwop_run_completed_total";
    head(out, name, "counter", "Runs ended, by status.");
    for (status, count) in [
        ("completed", runs_completed),
        ("failed", runs_failed),
        ("cancelled", runs_cancelled),
    ] {
        put(
            out,
            format_args!("{name}{{openwop_run_status=\"{status}\"}} {count}"),
        );
    }
    let name = "wopr_over_budget_total";
    head(
        out,
        name,
        "counter",
        "Calls to models that were not made because a budget was used up.",
    );
    for (scope, count) in [("tenant", over_tenant_budget), ("workflow", over_workflow_budget)] {
        put(out, format_args!("{name}{{scope=\"{scope}\"}} {count}"));
    }
    for (name, kind, help, value) in [
        ("wopr_appends_total", "counter", "Batches appended.", appends),
        (
            "wopr_append_conflicts_total",
            "counter",
            "Appends decided again.",
            conflicts,
        ),
        (
            "wopr_timers_fired_total",
            "counter",
            "Timers fired.",
            timers_fired,
        ),
        (
            "wopr_effect_attempts_total",
            "counter",
            "Effect attempts begun.",
            effects_started,
        ),
        (
            "wopr_effect_outcomes_dropped_total",
            "counter",
            "Outcomes dropped.",
            effects_dropped,
        ),
        (
            "wopr_effects_active",
            "gauge",
            "Effect attempts under way.",
            effects_active,
        ),
        (
            "wopr_activities_leased_total",
            "counter",
            "Activities that workers leased, each lease counted.",
            activities_leased,
        ),
        (
            "wopr_activities_ended_total",
            "counter",
            "Outcomes of workers that were recorded.",
            activities_ended,
        ),
        (
            "wopr_activities_lost_total",
            "counter",
            "Attempts of activities that ended because too many of their leases had no outcome.",
            activities_lost,
        ),
        (
            "wopr_workers_waiting",
            "gauge",
            "Calls of workers that wait for activities.",
            workers_waiting,
        ),
        (
            "wopr_runs_quarantined_total",
            "counter",
            "Runs paused because processes died at them, or because they could not be read.",
            runs_quarantined,
        ),
        (
            "wopr_runs_removed_total",
            "counter",
            "Runs removed after their time.",
            runs_removed,
        ),
        (
            "wopr_push_updates_total",
            "counter",
            "Updates of runs that are pushed, each counted once however many receivers there are.",
            pushes_made,
        ),
        (
            "wopr_push_delivered_total",
            "counter",
            "Pushes that a receiver took.",
            pushes_delivered,
        ),
        (
            "wopr_push_failed_total",
            "counter",
            "Attempts to push that failed and are made again.",
            pushes_failed,
        ),
        (
            "wopr_push_given_up_total",
            "counter",
            "Pushes given up; see `wopr deliveries list`.",
            pushes_given_up,
        ),
        (
            "wopr_model_tokens_total",
            "counter",
            "Tokens of the answers that models gave.",
            model_tokens,
        ),
        (
            "wopr_model_cost_micros_total",
            "counter",
            "What they cost, in millionths of a US dollar.",
            model_cost_micros,
        ),
        (
            "wopr_push_active",
            "gauge",
            "Attempts to push under way.",
            pushes_active,
        ),
    ] {
        one(out, name, kind, help, value);
    }
}

fn render_sqlite(out: &mut String, stats: &sqlite::Stats) {
    for (name, kind, help, value) in [
        (
            "wopr_store_appends_total",
            "counter",
            "Batches that are durable.",
            stats.appends,
        ),
        (
            "wopr_store_groups_total",
            "counter",
            "Transactions: each one commit and one fsync.",
            stats.groups,
        ),
        (
            "wopr_store_largest_group",
            "gauge",
            "Most writes of one transaction.",
            stats.largest_group,
        ),
        (
            "wopr_store_refused_total",
            "counter",
            "Calls refused because too many waited.",
            stats.refused,
        ),
        (
            "wopr_store_duplicates_total",
            "counter",
            "Requests that had taken effect.",
            stats.duplicates,
        ),
        (
            "wopr_store_retried_groups_total",
            "counter",
            "Transactions taken apart.",
            stats.retried_groups,
        ),
        (
            "wopr_store_doubtful_commits_total",
            "counter",
            "Commits that ended in doubt.",
            stats.doubtful_commits,
        ),
        (
            "wopr_store_wal_pages",
            "gauge",
            "Pages in the write-ahead log.",
            stats.wal_pages,
        ),
        (
            "wopr_store_checkpoints_total",
            "counter",
            "Checkpoints.",
            stats.checkpoints,
        ),
        (
            "wopr_store_checkpoint_stalls_total",
            "counter",
            "Transactions that waited for one.",
            stats.stalls,
        ),
        (
            "wopr_store_checkpoint_stall_microseconds_total",
            "counter",
            "How long.",
            stats.stall_micros,
        ),
    ] {
        one(out, name, kind, help, value);
    }
}

fn render_postgres(out: &mut String, stats: &postgres::Stats) {
    for (name, kind, help, value) in [
        (
            "wopr_store_appends_total",
            "counter",
            "Batches that are durable.",
            stats.appends,
        ),
        (
            "wopr_store_groups_total",
            "counter",
            "Transactions that appended: each one commit.",
            stats.groups,
        ),
        (
            "wopr_store_largest_group",
            "gauge",
            "Most batches of one transaction.",
            stats.largest_group,
        ),
        (
            "wopr_store_conflicts_total",
            "counter",
            "Batches another process was quicker than.",
            stats.conflicts,
        ),
        (
            "wopr_store_refused_total",
            "counter",
            "Calls refused because too many waited.",
            stats.refused,
        ),
        (
            "wopr_store_duplicates_total",
            "counter",
            "Requests that had taken effect.",
            stats.duplicates,
        ),
        (
            "wopr_store_retries_total",
            "counter",
            "Transactions tried again.",
            stats.retries,
        ),
        (
            "wopr_store_doubtful_commits_total",
            "counter",
            "Commits that ended in doubt.",
            stats.doubtful_commits,
        ),
        (
            "wopr_store_hints_total",
            "counter",
            "Hints from other processes.",
            stats.hints,
        ),
        (
            "wopr_store_connections",
            "gauge",
            "Connections to the database.",
            stats.connections,
        ),
        (
            "wopr_store_connections_busy",
            "gauge",
            "Connections in use.",
            stats.busy_connections,
        ),
    ] {
        one(out, name, kind, help, value);
    }
}

fn one(out: &mut String, name: &str, kind: &str, help: &str, value: u64) {
    head(out, name, kind, help);
    put(out, format_args!("{name} {value}"));
}

fn head(out: &mut String, name: &str, kind: &str, help: &str) {
    put(out, format_args!("# HELP {name} {help}"));
    put(out, format_args!("# TYPE {name} {kind}"));
}

fn put(out: &mut String, line: std::fmt::Arguments<'_>) {
    // Writing to a string never fails.
    let _ = writeln!(out, "{line}");
}

fn method_name(method: &Method) -> &'static str {
    match *method {
        Method::GET => "GET",
        Method::POST => "POST",
        Method::PUT => "PUT",
        Method::DELETE => "DELETE",
        Method::HEAD => "HEAD",
        Method::OPTIONS => "OPTIONS",
        Method::PATCH => "PATCH",
        _ => "other",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rendering_is_rate_limited() {
        let metrics = Metrics::default();
        let mut n = 0;
        for _ in 0..MAX_RENDERS * 10 {
            let text = metrics.rendered(|_| {
                n += 1;
                n.to_string()
            });
            assert_eq!(text, n.to_string());
        }
        // A slow machine may take more than one second.
        assert!((MAX_RENDERS..MAX_RENDERS * 10).contains(&n), "{n}");
    }

    #[test]
    fn every_series_is_rendered_once() {
        let metrics = Metrics::default();
        let took = Duration::from_micros(700);
        metrics.answered(&Method::GET, "/v1/runs", StatusCode::OK, took);
        metrics.answered(&Method::GET, "/v1/runs", StatusCode::OK, took);
        let stream = metrics.open_stream();
        let text = metrics.render(
            &Stats::default(),
            Some(&StoreStats::Sqlite(sqlite::Stats::default())),
        );
        for line in [
            "wopr_http_requests_total{method=\"GET\",route=\"/v1/runs\",status=\"200\"} 2",
            "wopr_http_request_seconds_bucket{route=\"/v1/runs\",le=\"0.0005\"} 0",
            "wopr_http_request_seconds_bucket{route=\"/v1/runs\",le=\"0.001\"} 2",
            "wopr_http_request_seconds_count{route=\"/v1/runs\"} 2",
            "wopr_open_streams 1",
            "openwop_run_completed_total{openwop_run_status=\"failed\"} 0",
        ] {
            assert_eq!(
                text.lines().filter(|other| *other == line).count(),
                1,
                "{line}\n{text}"
            );
        }
        drop(stream);
        assert!(
            metrics
                .render(&Stats::default(), None)
                .contains("wopr_open_streams 0")
        );
    }
}
