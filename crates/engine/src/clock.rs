//! Clocks, passed as a parameter.
//!
//! [`SystemClock`] reads the system clock, which an administrator or NTP may set. A host uses
//! [`SteadyClock`]: it advances with the monotonic clock, follows the system clock forward, and never goes
//! back, not even behind the time that an earlier process stored. So no wait ends early or lasts longer than
//! it should, and no idempotency key expires early.

use std::{
    sync::Arc,
    time::{Duration, SystemTime, UNIX_EPOCH},
};

use parking_lot::Mutex;
use tokio::time::Instant;
use wopr_core::Timestamp;

/// A difference from the monotonic clock of at least this much between two reads counts as a step.
const STEP_MS: i64 = 1_000;

pub trait Clock: Send + Sync + std::fmt::Debug + 'static {
    fn now(&self) -> Timestamp;

    /// The current time of the system clock, which may go back. For comparison with external timestamps, such
    /// as those of certificates and tokens.
    fn time_of_day(&self) -> Timestamp {
        self.now()
    }

    /// Never returns an earlier time from now on. Clocks that tests set by hand ignore this.
    fn not_before(&self, _mark: Timestamp) {}

    /// Follows a clock shared by several processes, currently at `shared`, instead of the system clock.
    fn follow(&self, _shared: Timestamp) {}

    /// How often and how far the underlying clock was set.
    fn steps(&self) -> Steps {
        Steps::default()
    }
}

/// How often and how far a clock was set while a host ran.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Steps {
    /// Number of steps back.
    pub back: u64,
    /// Number of steps forward. A suspended machine also counts.
    pub forward: u64,
    /// How far the host's time is ahead of the clock now, in milliseconds.
    pub ahead_ms: u64,
}

#[derive(Debug, Clone, Copy, Default)]
pub struct SystemClock;

impl Clock for SystemClock {
    fn now(&self) -> Timestamp {
        let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        Timestamp::from_millis(i64::try_from(since.as_millis()).unwrap_or(i64::MAX))
    }
}

/// A clock that never goes back, on top of one that may.
#[derive(Debug)]
pub struct SteadyClock {
    machine: Arc<dyn Clock>,
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    /// The last time returned, with the moment it was returned.
    told: Option<At>,
    /// The last time of the shared clock, if there is one.
    shared: Option<At>,
    /// How far the underlying clock was ahead of `told` at the last read, in milliseconds; negative if
    /// behind.
    gap_ms: i64,
    steps: Steps,
}

#[derive(Debug, Clone, Copy)]
struct At {
    time: Timestamp,
    moment: Instant,
}

impl At {
    fn now(time: Timestamp) -> Self {
        let moment = Instant::now();
        Self { time, moment }
    }

    /// The time at `now`, assuming that `time` was right at `moment`.
    fn passed(self, now: Instant) -> Timestamp {
        let passed = now.saturating_duration_since(self.moment);
        self.time.plus_millis(millis(passed))
    }
}

/// A step of the underlying clock, in milliseconds.
struct Step(i64);

impl SteadyClock {
    /// Creates a steady clock on top of `machine`, which may be set.
    #[must_use]
    pub fn over(machine: Arc<dyn Clock>) -> Self {
        Self {
            machine,
            state: Mutex::default(),
        }
    }

    fn look(&self) -> (Timestamp, Option<Step>) {
        let mut state = self.state.lock();
        let moment = Instant::now();
        let source = match state.shared {
            Some(shared) => shared.passed(moment),
            None => self.machine.now(),
        };
        let at = At { time: source, moment };
        let Some(told) = state.told else {
            state.told = Some(at);
            return (source, None);
        };
        let steady = told.passed(moment);
        let gap_ms = source.millis().saturating_sub(steady.millis());
        let step_ms = gap_ms.saturating_sub(state.gap_ms);
        let is_step = step_ms.abs() >= STEP_MS;
        if is_step && step_ms > 0 {
            state.steps.forward += 1;
        } else if is_step {
            state.steps.back += 1;
        }
        let now = if gap_ms > 0 {
            state.told = Some(at);
            state.gap_ms = 0;
            source
        } else {
            state.gap_ms = gap_ms;
            steady
        };
        state.steps.ahead_ms = state.gap_ms.unsigned_abs();
        (now, is_step.then_some(Step(step_ms)))
    }
}

impl Clock for SteadyClock {
    fn now(&self) -> Timestamp {
        let (now, step) = self.look();
        if let Some(Step(step_ms)) = step {
            let ahead_ms = self.steps().ahead_ms;
            if step_ms < 0 {
                tracing::warn!(
                    step_ms,
                    ahead_ms,
                    "the clock was set back, time goes on as it passes"
                );
            } else {
                tracing::warn!(
                    step_ms,
                    ahead_ms,
                    "the clock was set forward, or the machine was suspended: what is due by it is done now"
                );
            }
        }
        now
    }

    fn time_of_day(&self) -> Timestamp {
        self.machine.time_of_day()
    }

    fn not_before(&self, mark: Timestamp) {
        let now = self.now();
        if now >= mark {
            return;
        }
        let ahead_ms = mark.millis().saturating_sub(now.millis());
        {
            let mut state = self.state.lock();
            state.told = Some(At::now(mark));
            state.gap_ms = state.gap_ms.saturating_sub(ahead_ms);
            state.steps.ahead_ms = state.gap_ms.unsigned_abs();
        }
        if ahead_ms >= STEP_MS {
            tracing::warn!(
                ahead_ms,
                "the clock is behind the time that the store has seen, which goes on from there"
            );
        }
    }

    fn follow(&self, shared: Timestamp) {
        let mut state = self.state.lock();
        if state.shared.is_none() {
            // Nothing has been read from this clock yet, so it may still go back: the local clock may be far
            // ahead.
            state.told = None;
            state.gap_ms = 0;
        }
        state.shared = Some(At::now(shared));
    }

    fn steps(&self) -> Steps {
        self.state.lock().steps
    }
}

fn millis(time: Duration) -> u64 {
    u64::try_from(time.as_millis()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicI64, Ordering};

    use tokio::time::advance;

    use super::*;

    const HOUR: i64 = 3_600_000;

    /// A system clock that a test can set.
    #[derive(Debug)]
    struct Machine {
        booted: Instant,
        set_by: AtomicI64,
    }

    impl Machine {
        fn new() -> Arc<Self> {
            Arc::new(Self {
                booted: Instant::now(),
                set_by: AtomicI64::new(100 * HOUR),
            })
        }

        fn set(&self, millis: i64) {
            self.set_by.fetch_add(millis, Ordering::SeqCst);
        }
    }

    impl Clock for Machine {
        fn now(&self) -> Timestamp {
            let up = i64::try_from(self.booted.elapsed().as_millis()).expect("not that long");
            Timestamp::from_millis(up + self.set_by.load(Ordering::SeqCst))
        }
    }

    fn clocks() -> (Arc<Machine>, SteadyClock) {
        let machine = Machine::new();
        let steady = SteadyClock::over(Arc::clone(&machine) as Arc<dyn Clock>);
        assert_eq!(steady.now(), machine.now());
        (machine, steady)
    }

    async fn pass(millis: u64) {
        advance(Duration::from_millis(millis)).await;
    }

    #[tokio::test(start_paused = true)]
    async fn time_advances_while_the_system_clock_is_set_back() {
        let (machine, clock) = clocks();
        let begun = clock.now();
        machine.set(-HOUR);
        for seconds in 1..5 {
            pass(1_000).await;
            assert_eq!(clock.now(), begun.plus_millis(1_000 * seconds));
        }
        assert!(clock.time_of_day() < begun, "the machine's is as it was set");
        let ahead_ms = HOUR.unsigned_abs();
        assert_eq!(
            clock.steps(),
            Steps {
                back: 1,
                forward: 0,
                ahead_ms
            }
        );
        machine.set(HOUR);
        assert_eq!(clock.now(), machine.now());
        assert_eq!(
            clock.steps(),
            Steps {
                back: 1,
                forward: 1,
                ahead_ms: 0
            }
        );
    }

    #[tokio::test(start_paused = true)]
    async fn time_follows_the_system_clock_forward_and_never_back() {
        let (machine, clock) = clocks();
        machine.set(HOUR);
        let later = clock.now();
        assert_eq!(later, machine.now());
        machine.set(-HOUR);
        pass(10).await;
        assert_eq!(clock.now(), later.plus_millis(10));
        assert_eq!(
            (clock.steps().forward, clock.steps().back),
            (1, 1),
            "each is counted once"
        );
    }

    #[tokio::test(start_paused = true)]
    async fn small_corrections_do_not_count_as_steps() {
        let (machine, clock) = clocks();
        let mut last = clock.now();
        for correction in [300, -500, 200, -900, 900] {
            machine.set(correction);
            pass(1).await;
            assert!(clock.now() > last);
            last = clock.now();
        }
        assert_eq!((clock.steps().forward, clock.steps().back), (0, 0));
    }

    #[tokio::test(start_paused = true)]
    async fn time_never_starts_before_the_stored_time() {
        let (machine, clock) = clocks();
        let kept = clock.now();
        machine.set(-HOUR);
        let clock = SteadyClock::over(Arc::clone(&machine) as Arc<dyn Clock>);
        clock.not_before(kept);
        pass(5).await;
        assert_eq!(clock.now(), kept.plus_millis(5));
        assert_eq!(clock.steps().ahead_ms, HOUR.unsigned_abs());
        clock.not_before(Timestamp::from_millis(0));
        assert_eq!(clock.now(), kept.plus_millis(5));
    }

    #[tokio::test(start_paused = true)]
    async fn processes_follow_the_shared_clock_instead_of_their_own() {
        let (ahead, behind) = (Machine::new(), Machine::new());
        ahead.set(HOUR);
        behind.set(-HOUR);
        let shared = Machine::new();
        let clocks = [ahead, behind].map(|machine| SteadyClock::over(machine));
        for clock in &clocks {
            clock.follow(shared.now());
            assert_eq!(clock.now(), shared.now());
        }
        pass(700).await;
        assert!(clocks.iter().all(|clock| clock.now() == shared.now()));
        // Like after a failover to a server whose clock is behind.
        let last = shared.now();
        shared.set(-HOUR);
        for clock in &clocks {
            clock.follow(shared.now());
            assert_eq!(clock.now(), last);
            assert_eq!(clock.steps().back, 1);
        }
    }
}
