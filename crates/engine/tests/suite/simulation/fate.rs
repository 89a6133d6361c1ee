//! Everything that a seed decides: all random choices in a world, the frequency of each fault, and the
//! verdict.
//!
//! A world does not have all faults at once. Each draws which ones occur and how often, so that some worlds
//! are nearly quiet, some lose every third commit, and rare pairs of faults meet somewhere.

use std::{
    fmt::Display,
    sync::atomic::{AtomicBool, AtomicI64, AtomicU64, Ordering},
    time::Duration,
};

use parking_lot::Mutex;
use rand::{Rng, SeedableRng, rngs::StdRng, seq::IndexedRandom};
use tokio::sync::Notify;

/// The probability of each fault, in thousandths per occasion.
#[derive(Debug, Clone)]
pub(crate) struct Odds {
    /// A read or a write fails without effect.
    pub(crate) unavailable: u64,
    /// A write of work rows fails although it took effect.
    pub(crate) unacknowledged: u64,
    /// An append conflicts although there is no other writer.
    pub(crate) conflict: u64,
    /// The outcome of an append is unknown; nothing was written.
    pub(crate) unknown_lost: u64,
    /// The outcome of an append is unknown; everything was written.
    pub(crate) unknown_done: u64,
    /// The outcome of an append is unknown; it is written later if it still can be.
    pub(crate) unknown_late: u64,
    /// A process dies at a step on the way to the store or back.
    pub(crate) death: u64,
    /// A process is frozen at such a step, and later continues without knowing.
    pub(crate) freeze: u64,
    /// The wall clock of a process is set forward or back at such a step.
    pub(crate) clock: u64,
    /// A hint to another process is lost.
    pub(crate) hint_lost: u64,
    /// A hint arrives twice.
    pub(crate) hint_twice: u64,
    /// A hint arrives after a later one.
    pub(crate) hint_late: u64,
    pub(crate) attempt_fails: u64,
    /// An attempt takes longer than a lease.
    pub(crate) attempt_hangs: u64,
    pub(crate) attempt_panics: u64,
    /// The peer takes the call and goes on with it.
    pub(crate) attempt_accepted: u64,
    /// The peer asks something.
    pub(crate) attempt_asks: u64,
    /// The peer ends the call with the answer.
    pub(crate) answer_ends: u64,
    /// A process dies just before a peer gets something, or just after.
    pub(crate) tells_and_dies: u64,
}

impl Odds {
    fn draw(entropy_source: &mut StdRng) -> Self {
        let mut rate = |most: u64| {
            // Half of the faults do not occur in a world.
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
            attempt_accepted: rate(900),
            attempt_asks: rate(900),
            answer_ends: rate(300),
            tells_and_dies: rate(40),
        }
    }
}

/// State shared by all parts of a simulated world.
#[derive(Debug)]
pub(crate) struct Fate {
    pub(crate) odds: Odds,
    /// Whether clients cut calls with their pauses. No peer then goes on by itself with a call that it has not accepted.
    pub(crate) cuts_calls: bool,
    entropy_source: Mutex<StdRng>,
    /// Faults strike. Off at the end of a world, where everything must come to rest.
    is_cruel: AtomicBool,
    n_strikes: AtomicU64,
    broken: Mutex<Option<String>>,
    broke: Notify,
    began: tokio::time::Instant,
    /// Time added to all wall clocks in which nothing happened, in milliseconds.
    skipped: AtomicI64,
    story: Option<Mutex<Vec<String>>>,
}

impl Fate {
    /// Draws the fate of a seed. With a story, events are written down.
    pub(crate) fn new(seed: u64, has_story: bool) -> Self {
        let mut entropy_source = StdRng::seed_from_u64(seed);
        Self {
            odds: Odds::draw(&mut entropy_source),
            cuts_calls: seed.is_multiple_of(3),
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

    /// Picks a random element.
    pub(crate) fn one_of<'t, T>(&self, several: &'t [T]) -> &'t T {
        several.choose(&mut *self.entropy_source.lock()).expect("several")
    }

    /// Returns `true` once in `n` calls on average.
    pub(crate) fn once_in(&self, n: u64) -> bool {
        self.below(n) == 0
    }

    /// Decides if a fault with these odds strikes now.
    pub(crate) fn strikes(&self, odds: u64) -> bool {
        let strikes = odds > 0 && self.is_cruel.load(Ordering::Relaxed) && self.below(1_000) < odds;
        self.n_strikes.fetch_add(u64::from(strikes), Ordering::Relaxed);
        strikes
    }

    /// The number of faults that have struck.
    pub(crate) fn n_strikes(&self) -> u64 {
        self.n_strikes.load(Ordering::Relaxed)
    }

    pub(crate) fn set_cruel(&self, is_cruel: bool) {
        self.is_cruel.store(is_cruel, Ordering::Relaxed);
    }

    /// Sleeps for a random time.
    pub(crate) async fn linger(&self, below_ms: u64) {
        let ms = self.below(below_ms);
        tokio::time::sleep(Duration::from_millis(ms)).await; // sleep: virtual time
    }

    fn elapsed(&self) -> i64 {
        i64::try_from(self.began.elapsed().as_millis()).expect("a world ends")
    }

    /// The time of a correct wall clock, in milliseconds since the world began.
    pub(crate) fn wall_time(&self) -> i64 {
        self.elapsed() + self.skipped.load(Ordering::Relaxed)
    }

    /// Advances all wall clocks without anything happening.
    pub(crate) fn skip(&self, time: Duration) {
        let millis = i64::try_from(time.as_millis()).expect("a world ends");
        self.skipped.fetch_add(millis, Ordering::Relaxed);
    }

    /// Reports a violated invariant. The first one counts.
    pub(crate) fn breaks(&self, what: impl Display) {
        let mut broken = self.broken.lock();
        if broken.is_none() {
            *broken = Some(what.to_string());
            self.broke.notify_one();
        }
    }

    /// Reports a violated invariant if there is one.
    pub(crate) fn holds(&self, kept: Result<(), impl Display>) {
        if let Err(violation) = kept {
            self.breaks(violation);
        }
    }

    /// Waits until an invariant is violated.
    pub(crate) async fn broken(&self) -> String {
        loop {
            if let Some(what) = self.verdict() {
                return what;
            }
            self.broke.notified().await;
        }
    }

    /// The violated invariant, if any.
    pub(crate) fn verdict(&self) -> Option<String> {
        self.broken.lock().clone()
    }

    /// Writes an event down if the world has a story.
    pub(crate) fn tell(&self, line: impl FnOnce() -> String) {
        if let Some(story) = &self.story {
            story.lock().push(format!("{:>7} {}", self.elapsed(), line()));
        }
    }

    pub(crate) fn story(&self) -> Vec<String> {
        self.story
            .as_ref()
            .map(|story| story.lock().clone())
            .unwrap_or_default()
    }
}
