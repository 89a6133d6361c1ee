//! The latency and cost of a call to another agent, next to a run that calls nobody.

use std::time::Duration;

use anyhow::Result;

use super::{Hosts, Turn};
use crate::{
    figure::{Bar, Figures},
    latency::Latencies,
    meter::Used,
    study::context::Context,
    workflow::{CALL, ONE},
};

/// Number of concurrent clients at which cost is compared.
const MANY: usize = 256;
/// Number of turns of each kind.
const TURNS: u32 = 3;
/// Allowed appends of the caller and of the callee for each call.
const MOST_APPENDS: (Bar, Bar) = (Bar::AtMost(3.0), Bar::AtMost(1.0));
/// Allowed CPU of the caller, as a multiple of a run that calls nobody.
const MOST_CPU: Bar = Bar::AtMost(3.5);
/// Allowed latency at one client: a multiple of F, and milliseconds in addition.
const MOST_LATENCY: (f64, f64) = (4.0, 2.0);

/// All turns of one kind.
#[derive(Debug, Default)]
struct Sum {
    latencies: Latencies,
    raw: Latencies,
    elapsed: Duration,
    caller: Used,
    callee: Used,
}

impl Sum {
    fn add(&mut self, turn: Turn) {
        let Turn { outcome, callee } = turn;
        self.latencies.append(outcome.latencies);
        self.raw.append(outcome.raw);
        self.elapsed += outcome.elapsed;
        self.caller = self.caller.plus(&outcome.used);
        self.callee = self.callee.plus(&callee);
    }

    fn per_run(&self, value: Option<f64>) -> Option<f64> {
        Some(value? / self.latencies.len() as f64)
    }

    /// CPU time of the caller per run, in microseconds.
    fn cpu(&self) -> Option<f64> {
        self.per_run(self.caller.server.map(micros))
    }

    fn per_second(&self) -> f64 {
        self.latencies.len() as f64 / self.elapsed.as_secs_f64()
    }
}

pub(super) async fn measure(hosts: &mut Hosts, context: &Context<'_>, figures: &mut Figures) -> Result<()> {
    // Warms up both hosts, and the connections between them.
    hosts.turn(CALL, MANY, context.seconds / 5).await?;
    let mut alone = Sum::default();
    alone.add(hosts.turn(CALL, 1, context.seconds).await?);
    let (mut pure, mut calls) = (Sum::default(), Sum::default());
    let time = context.seconds / TURNS;
    for _ in 0..TURNS {
        pure.add(hosts.turn(ONE, MANY, time).await?);
        calls.add(hosts.turn(CALL, MANY, time).await?);
    }
    show_latency(&alone, figures);
    figures.add("calls, 256 clients", calls.latencies.len() as f64, "");
    figures.add("calls per second, 256 clients", calls.per_second(), "");
    figures.add("the same of runs that call nobody", pure.per_second(), "");
    let appends = calls.per_run(calls.caller.appends);
    figures.hold("appends of the caller per call", appends, "", MOST_APPENDS.0);
    let appends = calls.per_run(calls.callee.appends);
    figures.hold("appends of the callee per call", appends, "", MOST_APPENDS.1);
    figures.add_known(
        "fsyncs of the caller per call",
        calls.per_run(calls.caller.fsyncs),
        "",
    );
    figures.add_known("CPU of the caller per call", calls.cpu(), "us");
    figures.add_known("CPU per run that calls nobody", pure.cpu(), "us");
    let by = calls.cpu().zip(pure.cpu()).map(|(call, pure)| call / pure);
    figures.hold("CPU, call by run", by, "", MOST_CPU);
    let callee = calls.per_run(calls.callee.server.map(micros));
    figures.add_known("CPU of the callee per call", callee, "us");
    figures.add_known("connections to the callee, 256 clients", hosts.connections(), "");
    Ok(())
}

fn show_latency(alone: &Sum, figures: &mut Figures) {
    let (latency, raw) = (alone.latencies.clone().summarize(), alone.raw.clone().summarize());
    let Some((latency, raw)) = latency.zip(raw) else {
        return;
    };
    let millis = |micros: f64| micros / 1_000.0;
    figures.add("calls, 1 client", latency.n as f64, "");
    figures.add("calls per second, 1 client", alone.per_second(), "");
    figures.add("F, p50", millis(raw.p50), "ms");
    let (times, more) = MOST_LATENCY;
    let most = Bar::AtMost(times * millis(raw.p50) + more);
    figures.hold("call, 1 client, p50", Some(millis(latency.p50)), "ms", most);
    figures.add("call, 1 client, p95", millis(latency.p95), "ms");
}

fn micros(time: Duration) -> f64 {
    time.as_secs_f64() * 1e6
}
