//! Timers shared by processes: one process leases and fires each, and loses it to another if it dies or
//! freezes.

use std::time::Duration;

use wopr_core::{RunKey, RunStatus};
use wopr_engine::{Engine, Options};
use wopr_testkit::Workflow;

use super::mines::Calm;
use crate::harness::{log, reaches};

/// The delay of the runs in these tests.
const DELAY: Duration = Duration::from_secs(60);
/// Duration of a timer's lease.
const TURN: Duration = Duration::from_secs(5);
const SECOND: Duration = Duration::from_secs(1);

/// A process over a shared store.
async fn calm() -> Calm {
    let calm = Calm::with(None, false, Options::default()).await;
    let delay = u64::try_from(DELAY.as_millis()).expect("small");
    calm.register(Workflow::new("delay").delay("wait", delay)).await;
    calm
}

async fn is_completed(engine: &Engine, run: &RunKey) -> bool {
    let view = engine.view(run).await.expect("reads").expect("exists");
    view.run.status == RunStatus::Completed
}

async fn n_completions(engine: &Engine, run: &RunKey) -> usize {
    let events = log(engine, run).await;
    events.iter().filter(|event| *event == "NodeCompleted").count()
}

#[tokio::test(start_paused = true)]
async fn each_due_run_is_loaded_by_one_of_many_processes() {
    const RUNS: u64 = 200;
    let calm = calm().await;
    let others = [calm.another().await, calm.another().await];
    let mut runs = Vec::new();
    for _ in 0..RUNS {
        runs.push(calm.create("delay").await);
    }
    let n_loads = || calm.server.n_reads().get("load").copied().unwrap_or(0);
    let before = n_loads();
    tokio::time::sleep(DELAY + SECOND).await; // sleep: virtual time
    let loads = n_loads() - before;
    for run in &runs {
        assert!(is_completed(&calm.engine, run).await);
    }
    let engines = [&calm.engine].into_iter().chain(&others);
    let fired: Vec<_> = engines.map(|engine| engine.stats().timers_fired).collect();
    assert_eq!((loads, fired.iter().sum()), (RUNS, RUNS), "{fired:?}");
    for other in others {
        other.stop().await;
    }
    calm.end().await;
}

#[tokio::test(start_paused = true)]
async fn the_timers_of_a_process_that_died_are_taken_over_when_its_turn_is_over() {
    let calm = calm().await;
    let run = calm.create("delay").await;
    calm.server.doom(calm.process.number, true);
    tokio::time::sleep(DELAY + SECOND / 10).await; // sleep: virtual time
    assert!(!calm.server.has_doom(), "it died with the timer in hand");
    let other = calm.another().await;
    let since = tokio::time::Instant::now();
    reaches(&other, &run, RunStatus::Completed).await;
    let took = since.elapsed();
    assert!((TURN - SECOND..TURN + SECOND).contains(&took), "{took:?}");
    assert_eq!(other.stats().timers_fired, 1);
    other.stop().await;
}

#[tokio::test(start_paused = true)]
async fn a_process_that_stood_still_with_a_timer_in_hand_fires_it_no_second_time() {
    let calm = calm().await;
    let run = calm.create("delay").await;
    calm.server.doom(calm.process.number, false);
    tokio::time::sleep(DELAY + SECOND / 10).await; // sleep: virtual time
    assert!(!calm.server.has_doom(), "it stands still");
    let other = calm.another().await;
    reaches(&other, &run, RunStatus::Completed).await;
    let before = log(&other, &run).await;
    calm.process.thaw();
    tokio::time::sleep(DELAY).await; // sleep: virtual time
    assert_eq!(log(&other, &run).await, before, "nothing more came of it");
    assert_eq!(n_completions(&other, &run).await, 1);
    other.stop().await;
    calm.end().await;
}

#[tokio::test(start_paused = true)]
async fn a_process_that_starts_alone_need_not_wait_for_turns_of_earlier_ones() {
    let calm = Calm::with(None, true, Options::default()).await;
    calm.register(Workflow::new("delay").delay("wait", 60_000)).await;
    let run = calm.create("delay").await;
    calm.server.doom(calm.process.number, true);
    tokio::time::sleep(DELAY + SECOND / 10).await; // sleep: virtual time
    assert!(!calm.server.has_doom(), "it died with the timer in hand");
    let next = calm.another().await;
    let since = tokio::time::Instant::now();
    reaches(&next, &run, RunStatus::Completed).await;
    assert!(since.elapsed() < SECOND, "{:?}", since.elapsed());
    next.stop().await;
}
