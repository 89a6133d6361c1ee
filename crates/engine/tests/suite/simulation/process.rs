//! One process of a cluster: running, frozen or dead, with its own wall clock.
//!
//! Faults strike at the steps on the way to the store and back, which are all the moments at which the world
//! can tell a difference. A dead process takes no further step: its tasks hang until the world ends. A
//! process that is frozen, as by SIGSTOP, stays where it is while time passes for the others, and does not
//! notice.

use std::{
    sync::{
        Arc,
        atomic::{AtomicI64, Ordering},
    },
    time::Duration,
};

use parking_lot::Mutex;
use tokio::sync::{Notify, broadcast, mpsc};
use wopr_core::Timestamp;
use wopr_engine::Clock;
use wopr_store::Hint;

use super::fate::Fate;

/// The time at which a world begins.
const EPOCH: i64 = 1_700_000_000_000;
/// Maximum duration of a freeze: far longer than a lease.
const MAX_FREEZE_MS: u64 = 20_000;
/// Maximum deviation of a wall clock, either way.
const MAX_SKEW_MS: i64 = 30_000;
/// Hints a process may lag behind; few, so that it loses some.
const HINTS: usize = 16;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Life {
    Running,
    Frozen,
    Dead,
}

/// One life of a process.
#[derive(Debug)]
pub(crate) struct Process {
    /// Unique in the world; also the epoch of its engine.
    pub(crate) number: u64,
    fate: Arc<Fate>,
    life: Mutex<Life>,
    /// Not a `watch`, which wakes its waiters in a random order of its own.
    changed: Notify,
    skew: AtomicI64,
    hints: broadcast::Sender<Hint>,
    late_hint: Mutex<Option<Hint>>,
    deaths: mpsc::UnboundedSender<u64>,
}

impl Process {
    pub(crate) fn new(number: u64, fate: Arc<Fate>, deaths: mpsc::UnboundedSender<u64>) -> Arc<Self> {
        Arc::new(Self {
            number,
            fate,
            life: Mutex::new(Life::Running),
            changed: Notify::new(),
            skew: AtomicI64::new(0),
            hints: broadcast::Sender::new(HINTS),
            late_hint: Mutex::default(),
            deaths,
        })
    }

    /// Returns once the process is running. Never returns if it is dead.
    pub(crate) async fn live(&self) {
        self.reached(Life::Running).await;
    }

    pub(crate) async fn ended(&self) {
        self.reached(Life::Dead).await;
    }

    async fn reached(&self, wanted: Life) {
        loop {
            let changed = self.changed.notified();
            if *self.life.lock() == wanted {
                return;
            }
            changed.await;
        }
    }

    /// Changes the state, unless the process is dead. Returns `true` if it changed.
    fn turn(&self, next: Life) -> bool {
        let mut life = self.life.lock();
        if *life == Life::Dead || *life == next {
            return false;
        }
        *life = next;
        self.changed.notify_waiters();
        true
    }

    /// A step on the way to the store or back, at which faults may strike.
    pub(crate) async fn step(self: &Arc<Self>, what: &'static str) {
        self.live().await;
        let odds = &self.fate.odds;
        if self.fate.strikes(odds.death) {
            self.fate.tell(|| format!("p{} dies at {what}", self.number));
            self.die();
        } else if self.fate.strikes(odds.freeze) {
            self.freeze();
        } else if self.fate.strikes(odds.clock) {
            self.set_clock();
        }
        match self.fate.below(4) {
            0 | 1 => {}
            2 => tokio::task::yield_now().await,
            _ => self.fate.linger(4).await,
        }
        self.live().await;
    }

    /// Kills the process and notifies the supervisor.
    pub(crate) fn die(&self) {
        if self.turn(Life::Dead) {
            // The receiver is dropped only when the world ends.
            let _ = self.deaths.send(self.number);
        }
    }

    /// Ends the process cleanly, without notifying the supervisor.
    pub(crate) fn retire(&self) {
        self.turn(Life::Dead);
    }

    pub(crate) fn is_dead(&self) -> bool {
        *self.life.lock() == Life::Dead
    }

    fn freeze(self: &Arc<Self>) {
        let ms = self.fate.below(MAX_FREEZE_MS);
        self.fate
            .tell(|| format!("p{} is stopped for {ms} ms", self.number));
        self.turn(Life::Frozen);
        let process = Arc::clone(self);
        tokio::spawn(async move {
            tokio::time::sleep(Duration::from_millis(ms)).await; // sleep: virtual time
            process.thaw();
        });
    }

    /// Freezes the process until it is thawed.
    pub(crate) fn stand_still(&self) {
        self.turn(Life::Frozen);
    }

    /// Continues if the process was frozen.
    pub(crate) fn thaw(&self) {
        self.turn(Life::Running);
    }

    fn set_clock(&self) {
        let width = u64::try_from(2 * MAX_SKEW_MS).expect("positive");
        let skew = i64::try_from(self.fate.below(width)).expect("small") - MAX_SKEW_MS;
        self.fate
            .tell(|| format!("p{} has its clock off by {skew} ms", self.number));
        self.skew.store(skew, Ordering::Relaxed);
    }

    /// Corrects the clock.
    pub(crate) fn mend_clock(&self) {
        self.skew.store(0, Ordering::Relaxed);
    }

    pub(crate) fn listen(&self) -> broadcast::Receiver<Hint> {
        self.hints.subscribe()
    }

    /// Receives a hint from another process, which may be lost, doubled or late.
    pub(crate) fn hint(&self, hint: &Hint) {
        let odds = &self.fate.odds;
        if self.fate.strikes(odds.hint_lost) {
            return;
        }
        if self.fate.strikes(odds.hint_late) {
            *self.late_hint.lock() = Some(hint.clone());
            return;
        }
        // There may be no listener.
        let _ = self.hints.send(hint.clone());
        if self.fate.strikes(odds.hint_twice) {
            let _ = self.hints.send(hint.clone());
        }
        if let Some(late) = self.late_hint.lock().take() {
            let _ = self.hints.send(late);
        }
    }
}

/// The time of a correct clock.
pub(crate) fn wall_time(fate: &Fate) -> Timestamp {
    Timestamp::from_millis(EPOCH + fate.wall_time())
}

#[derive(Debug)]
pub(crate) struct WallClock(pub(crate) Arc<Process>);

impl Clock for WallClock {
    fn now(&self) -> Timestamp {
        let process = &self.0;
        let right = wall_time(&process.fate).millis();
        Timestamp::from_millis(right + process.skew.load(Ordering::Relaxed))
    }
}
