//! A seeded simulator: replicas over one store, with a store that conflicts, refuses and goes silent, executors that
//! fail and hang, and crashes between any two steps. Time is virtual, so minutes pass in milliseconds.
//!
//! `WOPR_SIM_SEEDS=N` runs seeds 0..N; `WOPR_SIM_SEED=K` runs one. A seed that fails goes into `KEPT`.

mod faults;
mod world;

use std::time::{Duration, Instant};

/// Seeds that failed once.
const KEPT: &[u64] = &[];
/// Seeds of an ordinary run.
const SEEDS: u64 = 150;

#[test]
fn replicas_keep_every_promise_whatever_fails() {
    let number = |name: &str| std::env::var(name).ok().and_then(|text| text.parse::<u64>().ok());
    let seeds: Vec<_> = match (number("WOPR_SIM_SEED"), number("WOPR_SIM_SEEDS")) {
        (Some(seed), _) => vec![seed],
        (None, n) => KEPT.iter().copied().chain(0..n.unwrap_or(SEEDS)).collect(),
    };
    let began = Instant::now();
    let (mut runs, mut crashes) = (0, 0);
    for seed in &seeds {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_time()
            .start_paused(true)
            .build()
            .expect("a runtime");
        let outcome = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
            runtime.block_on(world::live(*seed))
        }));
        match outcome {
            Ok(lived) => {
                runs += lived.runs;
                crashes += lived.crashes;
            }
            Err(_) => panic!("seed {seed} broke a promise; repeat it with WOPR_SIM_SEED={seed}"),
        }
        runtime.shutdown_timeout(Duration::ZERO);
    }
    println!(
        "{} seeds, {runs} runs, {crashes} crashes in {:?}",
        seeds.len(),
        began.elapsed()
    );
}
