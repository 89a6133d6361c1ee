//! What a seed decides: every die thrown in a world, how often each thing goes wrong in it, and what went wrong for good.
//!
//! A world does not suffer from everything at once. Each draws which faults it knows and how often they strike, so that
//! some worlds are nearly quiet, some lose every third commit, and rare pairs of faults meet somewhere.

use std::{
    fmt::Display,
    sync::atomic::{AtomicBool, AtomicI64, AtomicU64, Ordering},
    time::Duration,
};

use parking_lot::Mutex;
use rand::{Rng, SeedableRng, rngs::StdRng, seq::IndexedRandom};
use tokio::sync::Notify;

/// How often each thing goes wrong, in thousandths of its occasions.
#[derive(Debug, Clone)]
pub(crate) struct Odds {
    /// A read or a write fails, nothing happened.
    pub(crate) unavailable: u64,
    /// A write of work rows fails, and happened.
    pub(crate) unacknowledged: u64,
    /// An append loses against nobody.
    pub(crate) conflict: u64,
    /// The outcome of an append is unknown, nothing was written.
    pub(crate) unknown_lost: u64,
    /// The outcome of an append is unknown, all was written.
    pub(crate) unknown_done: u64,
    /// The outcome of an append is unknown, and it is written later if it still can be.
    pub(crate) unknown_late: u64,
    /// A process dies at a step of the way to the store or back.
    pub(crate) death: u64,
    /// A process is stopped there, and goes on later as if nothing had been.
    pub(crate) freeze: u64,
    /// The wall clock of a process is set forward or back there.
    pub(crate) clock: u64,
    /// A hint to another process is lost.
    pub(crate) hint_lost: u64,
    /// It comes twice.
    pub(crate) hint_twice: u64,
    /// It comes after a later one.
    pub(crate) hint_late: u64,
    /// An attempt fails.
    pub(crate) attempt_fails: u64,
    /// An attempt takes longer than a lease.
    pub(crate) attempt_hangs: u64,
    /// An attempt panics.
    pub(crate) attempt_panics: u64,
}

impl Odds {
    fn draw(entropy_source: &mut StdRng) -> Self {
        let mut rate = |most: u64| {
            // Half of the faults are unknown to a world.
            if entropy_source.random_bool(0.5) {
                entropy_source.random_range(1..=most)
            } else {
                0
            }
        };
        Self {
            unavailable: rate(60),
            unacknowledged: rate(60),
            conflict: rate(60),
            unknown_lost: rate(60),
            unknown_done: rate(60),
            unknown_late: rate(60),
            death: rate(4),
            freeze: rate(2),
            clock: rate(2),
            hint_lost: rate(500),
            hint_twice: rate(200),
            hint_late: rate(300),
            attempt_fails: rate(400),
            attempt_hangs: rate(100),
            attempt_panics: rate(60),
        }
    }
}

/// What every part of a simulated world shares.
#[derive(Debug)]
pub(crate) struct Fate {
    pub(crate) odds: Odds,
    entropy_source: Mutex<StdRng>,
    /// Whether things fail; off for the end of a world, in which everything must come to rest.
    is_cruel: AtomicBool,
    n_strikes: AtomicU64,
    broken: Mutex<Option<String>>,
    broke: Notify,
    began: tokio::time::Instant,
    /// Time of all wall clocks in which nothing happened, in milliseconds.
    skipped: AtomicI64,
    story: Option<Mutex<Vec<String>>>,
}

impl Fate {
    /// The fate of a seed. With a story, what happens is written down.
    pub(crate) fn new(seed: u64, has_story: bool) -> Self {
        let mut entropy_source = StdRng::seed_from_u64(seed);
        Self {
            odds: Odds::draw(&mut entropy_source),
            entropy_source: Mutex::new(entropy_source),
            is_cruel: AtomicBool::new(false),
            n_strikes: AtomicU64::new(0),
            broken: Mutex::default(),
            broke: Notify::new(),
            began: tokio::time::Instant::now(),
            skipped: AtomicI64::new(0),
            story: has_story.then(Mutex::default),
        }
    }

    pub(crate) fn below(&self, n: u64) -> u64 {
        self.entropy_source.lock().random_range(0..n)
    }

    /// One of a few.
    pub(crate) fn one_of<'t, T>(&self, several: &'t [T]) -> &'t T {
        several.choose(&mut *self.entropy_source.lock()).expect("several")
    }

    /// True once in so many calls.
    pub(crate) fn once_in(&self, n: u64) -> bool {
        self.below(n) == 0
    }

    /// Whether a fault strikes now, by its odds.
    pub(crate) fn strikes(&self, odds: u64) -> bool {
        let strikes = odds > 0 && self.is_cruel.load(Ordering::Relaxed) && self.below(1_000) < odds;
        self.n_strikes.fetch_add(u64::from(strikes), Ordering::Relaxed);
        strikes
    }

    /// How often something was struck.
    pub(crate) fn n_strikes(&self) -> u64 {
        self.n_strikes.load(Ordering::Relaxed)
    }

    pub(crate) fn set_cruel(&self, is_cruel: bool) {
        self.is_cruel.store(is_cruel, Ordering::Relaxed);
    }

    /// Waits for a while of the world's time.
    pub(crate) async fn linger(&self, below_ms: u64) {
        let ms = self.below(below_ms);
        tokio::time::sleep(Duration::from_millis(ms)).await; // sleep: virtual time
    }

    /// Milliseconds since the world began.
    fn elapsed(&self) -> i64 {
        i64::try_from(self.began.elapsed().as_millis()).expect("a world ends")
    }

    /// The time of a wall clock that is right, in milliseconds since the world began.
    pub(crate) fn wall_time(&self) -> i64 {
        self.elapsed() + self.skipped.load(Ordering::Relaxed)
    }

    /// Lets time pass in which nothing happens.
    pub(crate) fn skip(&self, time: Duration) {
        let millis = i64::try_from(time.as_millis()).expect("a world ends");
        self.skipped.fetch_add(millis, Ordering::Relaxed);
    }

    /// A promise does not hold; the first one counts.
    pub(crate) fn breaks(&self, what: impl Display) {
        let mut broken = self.broken.lock();
        if broken.is_none() {
            *broken = Some(what.to_string());
            self.broke.notify_one();
        }
    }

    /// Takes in whether a promise holds.
    pub(crate) fn holds(&self, kept: Result<(), impl Display>) {
        if let Err(violation) = kept {
            self.breaks(violation);
        }
    }

    /// Returns once a promise does not hold.
    pub(crate) async fn broken(&self) -> String {
        loop {
            if let Some(what) = self.verdict() {
                return what;
            }
            self.broke.notified().await;
        }
    }

    /// What does not hold, if anything.
    pub(crate) fn verdict(&self) -> Option<String> {
        self.broken.lock().clone()
    }

    /// Writes down what happens, if anybody reads it.
    pub(crate) fn tell(&self, line: impl FnOnce() -> String) {
        if let Some(story) = &self.story {
            story.lock().push(format!("{:>7} {}", self.elapsed(), line()));
        }
    }

    /// What was written down.
    pub(crate) fn story(&self) -> Vec<String> {
        self.story
            .as_ref()
            .map(|story| story.lock().clone())
            .unwrap_or_default()
    }
}
