//! Two hosts, of which the first calls workflows of the second as an agent.
//!
//! ```text
//!   clients --REST--> caller --A2A--> callee      calls: a one-node run that asks an echo
//!                     caller  ......  callee      parked: many runs whose task does not end
//! ```
//!
//! The cost of a call is compared with that of a run that calls nobody, measured in turns on the same host.

mod calls;
mod parked;

use std::time::Duration;

use anyhow::{Context as _, Result};

use super::context::Context;
use crate::{
    disk::Probe,
    figure::{Figure, Figures},
    load::{Outcome, Plan, Target},
    meter::{Reading, Used},
    place::Place,
    process,
    scenario::{Journey, Scenario, Way},
    server::Server,
    workflow,
};

/// The interval at which parked tasks are looked at.
const POLL_SECONDS: u64 = 30;

pub(super) async fn study(context: &Context<'_>) -> Result<Vec<Figure>> {
    let mut hosts = Hosts::start(context).await?;
    let mut figures = Figures::default();
    calls::measure(&mut hosts, context, &mut figures).await?;
    parked::measure(&hosts, context, &mut figures).await?;
    Ok(figures.0)
}

struct Hosts {
    caller: Server,
    callee: Server,
    place_of_caller: Place,
    place_of_callee: Place,
    probe: Probe,
}

/// Some runs of the caller, and what they cost on both hosts.
struct Turn {
    outcome: Outcome,
    callee: Used,
}

impl Hosts {
    async fn start(context: &Context<'_>) -> Result<Self> {
        let (place_of_caller, place_of_callee) = (context.place().await?, context.place().await?);
        let callee = Server::start(&place_of_callee, &[]).await?;
        for document in workflow::called() {
            callee.register(&document).await?;
        }
        let settings = [
            format!("a2a.peers=http://{}", callee.address),
            format!("a2a.poll_interval={POLL_SECONDS}s"),
            "egress.allow=127.0.0.0/8".to_owned(),
        ];
        let caller = context.serve(&place_of_caller, &settings).await?;
        for document in workflow::calls() {
            caller.register(&document).await?;
        }
        let probe = Probe::create(place_of_caller.folder()).context("probe the disk")?;
        Ok(Self {
            caller,
            callee,
            place_of_caller,
            place_of_callee,
            probe,
        })
    }

    /// Starts runs of a workflow on the caller, by REST, and reads each to its end.
    async fn turn(&mut self, workflow: &'static str, concurrency: usize, time: Duration) -> Result<Turn> {
        let plan = Plan {
            scenario: Scenario::Remote,
            journey: Journey {
                workflow,
                way: Way::Rest,
            },
            concurrency,
            time,
            runs: u64::MAX,
            // The callee's counters include every run, so there must be none that does not count.
            warm_up: Duration::ZERO,
        };
        let before = Reading::take(&self.callee, Some(&self.place_of_callee)).await?;
        let mut target = Target::new(&self.caller, Some(&self.place_of_caller), &mut self.probe)?;
        let mut outcome = target.measure(plan).await?;
        if let Some(failure) = outcome.first_failure.take() {
            return Err(anyhow::anyhow!(failure)).context("complete a run");
        }
        let after = Reading::take(&self.callee, Some(&self.place_of_callee)).await?;
        Ok(Turn {
            outcome,
            callee: after.since(&before),
        })
    }

    /// Number of connections to the callee, where known.
    fn connections(&self) -> Option<f64> {
        process::connections_to(self.callee.address.port()).map(|n| n as f64)
    }
}
