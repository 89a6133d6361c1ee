//! A seeded simulator: processes that come and go over one store, persistent clients, and faults everywhere
//! in between. Time is virtual, so minutes pass in milliseconds, and a seed always produces the same world.
//!
//! ```text
//! clients ──> engines, one per process ──> connections that fail ──> one store
//!    │                    └── executors that fail                      │
//!    └───────────────── responses ───────> witness <── every write ─────┘
//! ```
//!
//! | what goes wrong | where |
//! | --- | --- |
//! | which faults a world has, and how often they strike | [`fate`] |
//! | a process dies, freezes, or has a wrong clock, at any step to the store or back; hints are lost, late, doubled | [`process`] |
//! | the store conflicts, refuses, leaves the outcome of a write unknown, writes later | [`store`] |
//! | attempts fail, outlast their lease, return after it was lost, panic | [`executor`] |
//! | peers ask again and again, go on without an answer, are told while processes die | [`questions`] |
//! | processes are replaced by ones with other workflows, or one of them alone registers a new one | [`cluster`] |
//! | run trees expire after a day and are removed by processes that fail and die | [`aging`] |
//! | workers lease activities and die, outlast their lease, end them twice and at two processes | [`workers`] |
//! | every step at some runs panics, in separate worlds | [`mines`] |
//! | nothing, in separate worlds where reads are counted | [`idle`] |
//! | an uncertain commit is written just after a check did not find it, in separate worlds | [`late`] |
//! | a process dies or freezes while it holds timers, in separate worlds | [`turns`] |
//! | runs that have ended are replayed and branched off, and the forks meet all of this too | [`forks`] |
//! | clients repeat requests, ask two processes at once, answer against each other, cancel trees, pause | [`client`] |
//!
//! The invariants are those of `wopr_core::invariant`, which the kernel's property tests check too.
//! [`witness`] checks them at every write, and [`world`] at the end: everything that was begun has ended, and
//! clients saw only what is there.
//!
//! # Running it
//!
//! `cargo xtask sim --seeds N` runs many worlds; without it, the suite runs a few. If a world violates an
//! invariant, the simulator prints its last events, and `cargo xtask sim --seed K` repeats it. Add its seed
//! to `seeds.txt`, whose seeds run first from then on. A change to the simulator itself changes the world of
//! every seed; the kept seeds are then ordinary ones.

#![expect(
    clippy::print_stdout,
    reason = "whoever lives a million worlds wants to know how far it is"
)]

mod aging;
mod client;
mod cluster;
mod documents;
mod executor;
mod fate;
mod forks;
mod idle;
mod late;
mod mines;
mod postman;
mod process;
mod pushes;
mod questions;
mod store;
mod turns;
mod witness;
mod workers;
mod workflows;
mod world;

use std::{
    io::{Write as _, stdout},
    panic::{AssertUnwindSafe, catch_unwind},
    sync::atomic::{AtomicBool, AtomicU64, Ordering},
    time::{Duration, Instant},
};

use parking_lot::Mutex;
use world::Lived;

/// Seeds that once violated an invariant.
const KEPT: &str = include_str!("seeds.txt");
/// Worlds in an ordinary run of the suite.
const WORLDS: u64 = 150;
/// Worlds that run twice: enough that some processes lag behind with their hints.
const TWICE: u64 = 25;
/// How often a long run reports its progress.
const NEWS: Duration = Duration::from_secs(5);
/// How many events of a broken world are printed.
const STORY: usize = 120;

/// The options, from environment variables that `cargo xtask sim` sets.
#[derive(Debug)]
struct Asked {
    /// Run this seed only, and print its story.
    seed: Option<u64>,
    first: u64,
    n_seeds: u64,
    n_jobs: u64,
}

impl Asked {
    fn read() -> Self {
        let number = |name: &str| {
            let text = std::env::var(name).ok()?;
            Some(
                text.parse()
                    .unwrap_or_else(|_| panic!("{name} is not a number: {text}")),
            )
        };
        Self {
            seed: number("WOPR_SIM_SEED"),
            first: number("WOPR_SIM_FROM").unwrap_or(0),
            n_seeds: number("WOPR_SIM_SEEDS").unwrap_or(WORLDS),
            n_jobs: number("WOPR_SIM_JOBS").unwrap_or(1).max(1),
        }
    }
}

/// This many worlds contain some of everything.
const EVENTFUL: u64 = 20;

/// Runs the world of a seed. A panic in it counts as a violation.
fn live(seed: u64, has_story: bool) -> world::Life {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_time()
        .start_paused(true)
        .build()
        .expect("a runtime");
    let life = catch_unwind(AssertUnwindSafe(|| {
        runtime.block_on(world::live(seed, has_story))
    }));
    runtime.shutdown_timeout(Duration::ZERO);
    life.unwrap_or_else(|_| world::Life::panicked())
}

#[test]
fn replicas_keep_every_promise_whatever_fails() {
    let asked = Asked::read();
    if let Some(seed) = asked.seed {
        return tell(seed);
    }
    let kept = kept();
    let n_seeds = kept.len() as u64 + asked.n_seeds;
    let next = AtomicU64::new(0);
    let is_over = AtomicBool::new(false);
    let sum = Mutex::new((0, Lived::default()));
    let broken = Mutex::new(None);
    let began = Instant::now();
    let work = || {
        while !is_over.load(Ordering::Relaxed) {
            let index = next.fetch_add(1, Ordering::Relaxed);
            if index >= n_seeds {
                return;
            }
            let of_kept = usize::try_from(index).ok().and_then(|index| kept.get(index));
            let seed = of_kept.map_or_else(|| asked.first + index - kept.len() as u64, |seed| *seed);
            match live(seed, false).outcome {
                Ok(lived) => {
                    let mut sum = sum.lock();
                    sum.0 += 1;
                    sum.1.add(lived);
                }
                Err(_) => {
                    broken.lock().get_or_insert(seed);
                    is_over.store(true, Ordering::Relaxed);
                }
            }
        }
    };
    std::thread::scope(|scope| {
        let workers: Vec<_> = (0..asked.n_jobs).map(|_| scope.spawn(work)).collect();
        let mut last_news = Instant::now();
        while workers.iter().any(|worker| !worker.is_finished()) {
            std::thread::sleep(Duration::from_millis(20)); // sleep: between progress reports
            if last_news.elapsed() >= NEWS {
                last_news = Instant::now();
                print_news(n_seeds, &sum.lock(), began.elapsed());
            }
        }
    });
    if let Some(seed) = *broken.lock() {
        tell(seed);
    }
    let (n_lived, lived) = *sum.lock();
    print_news(n_seeds, &(n_lived, lived), began.elapsed());
    assert_eq!(n_lived, n_seeds, "every world was lived");
    // Worlds without faults would keep every invariant.
    assert!(
        n_lived < EVENTFUL || lived.is_eventful(),
        "in so many worlds everything happens: {lived}"
    );
}

/// Runs a world once more and prints its last events.
fn tell(seed: u64) {
    let life = live(seed, true);
    for line in &life.story[life.story.len().saturating_sub(STORY)..] {
        println!("{line}");
    }
    match life.outcome {
        Ok(lived) => println!("seed {seed} keeps every promise: {lived}"),
        Err(what) => {
            panic!("seed {seed} breaks a promise; repeat it with `cargo xtask sim --seed {seed}`\n{what}")
        }
    }
}

fn print_news(n_seeds: u64, (n_lived, sum): &(u64, Lived), took: Duration) {
    let per_second = f64::from(u32::try_from(*n_lived).unwrap_or(u32::MAX)) / took.as_secs_f64();
    println!("{n_lived} of {n_seeds} seeds, {per_second:.0}/s: {sum}");
    // For a pipe. A closed one must not fail the test.
    let _ = stdout().flush();
}

fn kept() -> Vec<u64> {
    KEPT.lines()
        .filter_map(|line| line.split('#').next())
        .map(str::trim)
        .filter(|seed| !seed.is_empty())
        .map(|seed| seed.parse().expect("seeds.txt holds a number per line"))
        .collect()
}

#[test]
fn a_seed_lives_the_same_life_twice() {
    for seed in 0..TWICE {
        let (once, again) = (live(seed, true), live(seed, true));
        assert!(once.story.len() > 50, "seed {seed} tells a story");
        for (index, (one, other)) in once.story.iter().zip(&again.story).enumerate() {
            assert_eq!(one, other, "seed {seed}, line {index}");
        }
        assert_eq!(once, again, "seed {seed}");
    }
}
