//! Compares the cost of a run with few and with many stored runs.
//!
//! Two servers on two stores take turns, so that both see the same variations of a shared machine: one store
//! has a thousand runs, the other one many.

use std::time::Duration;

use anyhow::{Context as _, Result};

use super::context::Context;
use crate::{
    disk::Probe,
    figure::{Bar, Figure, Figures},
    latency::Latencies,
    load::{Plan, Target},
    meter::{Reading, Used},
    place::{Place, Store},
    scenario::{Journey, Scenario, Way},
    seed,
    server::Server,
    workflow::ONE,
};

/// Initial number of runs in the small store.
const FEW: usize = 1_000;
/// Number of concurrent clients.
const CLIENTS: usize = 32;
/// Total number of runs on each store: many for the counters, but few compared to what is stored.
const RUNS: u64 = 6_000;
/// Allowed cost ratio.
const MOST: Bar = Bar::AtMost(1.2);

/// One of the two stores.
#[derive(Debug)]
struct Side {
    server: Server,
    place: Place,
    probe: Probe,
    used: Used,
    latencies: Latencies,
}

pub(super) async fn study(context: &Context<'_>) -> Result<Vec<Figure>> {
    let mut few = Side::new(context, FEW.min(context.size)).await?;
    let mut many = Side::new(context, context.size).await?;
    // A SQLite file has its own counters. Those of a database server are shared, so they are read before and
    // after every turn, which takes time.
    let (is_alone, turns) = match context.store {
        Store::Sqlite => (true, 12),
        Store::Postgres(_) => (false, 3),
    };
    for side in [&mut few, &mut many] {
        side.turn(context.seconds, RUNS / turns, false).await?;
    }
    let before = if is_alone {
        Some((few.reading().await?, many.reading().await?))
    } else {
        None
    };
    for _ in 0..turns {
        few.turn(context.seconds, RUNS / turns, true).await?;
        many.turn(context.seconds, RUNS / turns, true).await?;
    }
    if let Some((of_few, of_many)) = before {
        few.account(&of_few).await?;
        many.account(&of_many).await?;
    }
    let mut figures = Figures::default();
    let (few_runs, many_runs) = (few.latencies.len() as f64, many.latencies.len() as f64);
    figures.add("runs measured on each", few_runs.min(many_runs), "");
    let costs = [
        ("CPU per run", "us", micros as fn(&Used) -> Option<f64>),
        ("KiB written per run", "", |used| Some(used.bytes? / 1_024.0)),
        ("fsyncs per run", "", |used| used.fsyncs),
    ];
    for (name, unit, cost) in costs {
        let (Some(of_few), Some(of_many)) = (cost(&few.used), cost(&many.used)) else {
            continue;
        };
        let (of_few, of_many) = (of_few / few_runs, of_many / many_runs);
        figures.add(format!("{name}, {FEW} stored"), of_few, unit);
        figures.add(format!("{name}, {} stored", context.size), of_many, unit);
        figures.hold(format!("{name}, many by few"), Some(of_many / of_few), "", MOST);
    }
    figures.add_latencies(&format!("latency, {FEW} stored"), few.latencies.summarize());
    figures.add_latencies(
        &format!("latency, {} stored", context.size),
        many.latencies.summarize(),
    );
    Ok(figures.0)
}

fn micros(used: &Used) -> Option<f64> {
    Some(used.cpu()?.as_secs_f64() * 1e6)
}

impl Side {
    async fn new(context: &Context<'_>, n_runs: usize) -> Result<Self> {
        let place = context.place().await?;
        seed::fill(&place, n_runs, |_| ONE, context.talk).await?;
        let server = context.serve(&place, &[]).await?;
        let probe = Probe::create(place.folder()).context("probe the disk")?;
        Ok(Self {
            server,
            place,
            probe,
            used: Used::default(),
            latencies: Latencies::default(),
        })
    }

    async fn reading(&self) -> Result<Reading> {
        Reading::take(&self.server, Some(&self.place)).await
    }

    /// Executes some runs, and reads the counters if asked to.
    async fn turn(&mut self, time: Duration, runs: u64, counts: bool) -> Result<()> {
        let plan = Plan {
            scenario: Scenario::Flat,
            journey: Journey {
                workflow: ONE,
                way: Way::Rest,
            },
            concurrency: CLIENTS,
            time,
            runs,
            warm_up: Duration::ZERO,
        };
        let place = counts.then_some(&self.place);
        let mut target = Target::new(&self.server, place, &mut self.probe)?;
        let outcome = target.measure(plan).await?;
        if let Some(failure) = outcome.first_failure {
            return Err(anyhow::anyhow!(failure)).context("complete a run");
        }
        if counts {
            self.latencies.append(outcome.latencies);
            self.used = self.used.plus(&outcome.used);
        }
        Ok(())
    }

    /// Takes the counters over all turns, to include what was written between turns.
    async fn account(&mut self, before: &Reading) -> Result<()> {
        let whole = self.reading().await?.since(before);
        self.used.bytes = whole.bytes;
        self.used.fsyncs = whole.fsyncs;
        Ok(())
    }
}
