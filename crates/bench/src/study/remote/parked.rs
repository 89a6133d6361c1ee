//! Many runs that wait for a task of another agent: what they cost while nothing happens but that the tasks are
//! looked at.

use std::time::{Duration, Instant};

use anyhow::{Result, ensure};

use super::Hosts;
use crate::{
    client::start,
    figure::{Bar, Figures},
    process::Process,
    study::context::Context,
    workflow::SLOW_CALL,
};

/// Appends until a call is parked: its run has started, and the callee has accepted the task.
const APPENDS: f64 = 2.0;
/// Time limit until all calls are parked, besides [`EACH`] for each of them.
const LIMIT: Duration = Duration::from_secs(60);
const EACH: Duration = Duration::from_millis(20);
/// Time between two looks at the counters.
const PAUSE: Duration = Duration::from_millis(100);
/// The measurement lasts this many times `--seconds`: by default, as long as it takes to look at every task once.
const LONGER: u32 = 6;
/// Allowed share of one core.
const MOST_CPU: Bar = Bar::AtMost(2.0);
/// Allowed connections to the callee: a host follows the streams of 256 tasks, however many there are, and keeps some
/// connections for the next requests.
const MOST_CONNECTIONS: Bar = Bar::AtMost(320.0);

pub(super) async fn measure(hosts: &Hosts, context: &Context<'_>, figures: &mut Figures) -> Result<()> {
    let caller = &hosts.caller;
    let resident = || caller.process().and_then(Process::resident);
    let before = (caller.counters().await?, resident());
    let begun = Instant::now();
    start(caller.address, &caller.key, SLOW_CALL, context.size).await?;
    let limit = LIMIT + EACH * u32::try_from(context.size).unwrap_or(u32::MAX);
    let wanted = APPENDS * context.size as f64;
    loop {
        let now = caller.counters().await?;
        let appends = now.since(&before.0, "wopr_store_appends_total");
        let is_busy = now.get("wopr_effects_active").is_some_and(|active| active > 0.0);
        if !is_busy && appends.is_none_or(|appends| appends >= wanted) {
            break;
        }
        ensure!(
            begun.elapsed() < limit,
            "park {} tasks: the caller has made {appends:?} appends after {limit:?}",
            context.size
        );
        tokio::time::sleep(PAUSE).await;
    }
    figures.add("tasks parked", context.size as f64, "");
    figures.add(
        "parked per second",
        context.size as f64 / begun.elapsed().as_secs_f64(),
        "",
    );
    let grown = resident().zip(before.1);
    let grown = grown.map(|(now, before)| now.saturating_sub(before) as f64 / 1_024.0);
    figures.add_known(
        "RSS per parked task",
        grown.map(|kib| kib / context.size as f64),
        "KiB",
    );
    watch(hosts, context, figures).await?;
    figures.hold(
        "connections to the callee, all parked",
        hosts.connections(),
        "",
        MOST_CONNECTIONS,
    );
    Ok(())
}

/// Measures what the caller does while all tasks are parked.
async fn watch(hosts: &Hosts, context: &Context<'_>, figures: &mut Figures) -> Result<()> {
    let caller = &hosts.caller;
    let cpu = || caller.process().and_then(Process::cpu);
    let before = (caller.counters().await?, cpu(), Instant::now());
    tokio::time::sleep(context.seconds * LONGER).await;
    let (spent, seconds) = (cpu(), before.2.elapsed().as_secs_f64());
    let after = caller.counters().await?;
    let polls = after.since(&before.0, "wopr_effect_attempts_total");
    figures.add_known("polls per second", polls.map(|polls| polls / seconds), "");
    let spent = spent.zip(before.1);
    let spent = spent.map(|(now, before)| now.saturating_sub(before).as_secs_f64());
    let each = spent.zip(polls).filter(|(_, polls)| *polls > 0.0);
    figures.add_known(
        "CPU of the caller per poll",
        each.map(|(spent, polls)| 1e6 * spent / polls),
        "us",
    );
    let share = spent.map(|spent| 100.0 * spent / seconds);
    figures.hold("CPU while all are parked, of a core", share, "%", MOST_CPU);
    Ok(())
}
