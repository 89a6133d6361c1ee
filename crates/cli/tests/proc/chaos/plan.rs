//! The fault schedule, which the seed determines before anything starts.
//!
//! Steps are separated by pauses instead of absolute times, so that slow and fast machines execute the same
//! sequence. A plan kills no process that is down, and repairs every fault: processes are restarted, frozen
//! ones thawed, clocks corrected, the database started.
//! thawed, clocks put right, the database started.

use std::{fmt, time::Duration};

use rand::{Rng as _, rngs::StdRng};

/// Lease duration in these tests, the minimum that can be set.
pub(super) const LEASE: Duration = Duration::from_secs(1);

/// Maximum clock offset in seconds.
pub(super) const FARTHEST: i64 = 300;

/// The setup that a plan is drawn for.
#[derive(Debug, Clone, Copy)]
pub(super) struct Scene {
    pub(super) replicas: usize,
    /// The database is a separate server.
    pub(super) has_database: bool,
    /// Clocks can be changed.
    pub(super) has_clocks: bool,
    pub(super) kills: u32,
}

/// How the database server is stopped.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Stop {
    /// Like a crash.
    Immediate,
    /// Gracefully, without waiting for clients.
    Fast,
}

impl Stop {
    /// The mode of `pg_ctl`.
    pub(super) const fn mode(self) -> &'static str {
        match self {
            Self::Immediate => "immediate",
            Self::Fast => "fast",
        }
    }
}

/// An action, mostly on one of the replicas.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Action {
    /// SIGKILL.
    Kill(usize),
    /// SIGTERM, then wait for the exit.
    Terminate(usize),
    /// Start without waiting.
    Start(usize),
    /// SIGSTOP.
    Freeze(usize),
    /// SIGCONT, unless it was killed meanwhile.
    Thaw(usize),
    /// Sets a clock's offset in seconds.
    Clock(usize, i64),
    DatabaseStop(Stop),
    DatabaseStart,
}

/// An action and the pause before it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Step {
    pub(super) after: Duration,
    pub(super) action: Action,
}

impl fmt::Display for Step {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "+{:?} {:?}", self.after, self.action)
    }
}

/// Kinds of faults by frequency. A kind that a scene does not support adds its share to `Kill`.
const TROUBLES: [(u32, Trouble); 7] = [
    (52, Trouble::Kill),
    (8, Trouble::KillAtStart),
    (4, Trouble::PowerCut),
    (7, Trouble::Terminate),
    (11, Trouble::Freeze),
    (9, Trouble::Clock),
    (9, Trouble::Database),
];

#[derive(Debug, Clone, Copy)]
enum Trouble {
    Kill,
    KillAtStart,
    PowerCut,
    Terminate,
    Freeze,
    Clock,
    Database,
}

/// Draws the plan of a scene, which ends with everything repaired.
pub(super) fn draw(random: &mut StdRng, scene: Scene) -> Vec<Step> {
    let mut drawing = Drawing {
        random,
        scene,
        now: 0,
        up_at: vec![0; scene.replicas],
        thawed_at: vec![0; scene.replicas],
        right_at: vec![0; scene.replicas],
        database_at: 0,
        kills: 0,
        actions: Vec::new(),
    };
    while drawing.kills < scene.kills {
        drawing.trouble();
    }
    let mut actions = drawing.actions;
    // A stable sort keeps the order of simultaneous actions.
    actions.sort_by_key(|(at, _)| *at);
    let mut now = 0;
    actions
        .into_iter()
        .map(|(at, action)| {
            let after = Duration::from_millis(at - now);
            now = at;
            Step { after, action }
        })
        .collect()
}

/// A plan being drawn. Times are in milliseconds.
struct Drawing<'r> {
    random: &'r mut StdRng,
    scene: Scene,
    now: u64,
    /// The time until which each replica is down, or must not be disturbed after its start.
    up_at: Vec<u64>,
    /// When each replica is thawed.
    thawed_at: Vec<u64>,
    /// When each clock is correct again.
    right_at: Vec<u64>,
    /// When the database is up again.
    database_at: u64,
    kills: u32,
    actions: Vec<(u64, Action)>,
}

impl Drawing<'_> {
    fn trouble(&mut self) {
        self.now += self.random.random_range(50..900);
        let total: u32 = TROUBLES.iter().map(|(share, _)| share).sum();
        let mut drawn = self.random.random_range(0..total);
        let trouble = TROUBLES.iter().find_map(|(share, trouble)| {
            if drawn < *share {
                return Some(*trouble);
            }
            drawn -= share;
            None
        });
        match trouble {
            Some(Trouble::KillAtStart) => self.kill_at_start(),
            Some(Trouble::PowerCut) => self.power_cut(),
            Some(Trouble::Terminate) => self.terminate(),
            Some(Trouble::Freeze) => self.freeze(),
            Some(Trouble::Clock) if self.scene.has_clocks => self.clock(),
            Some(Trouble::Database) if self.scene.has_database => self.database(),
            Some(Trouble::Kill | Trouble::Clock | Trouble::Database) | None => self.kill(),
        }
    }

    fn push(&mut self, at: u64, action: Action) {
        self.actions.push((at, action));
    }

    /// Chooses one of the replicas that meet the condition.
    fn any(&mut self, holds: impl Fn(&Self, usize) -> bool) -> Option<usize> {
        let fit: Vec<usize> = (0..self.scene.replicas)
            .filter(|replica| holds(self, *replica))
            .collect();
        if fit.is_empty() {
            return None;
        }
        Some(fit[self.random.random_range(0..fit.len())])
    }

    fn is_up(&self, replica: usize) -> bool {
        self.up_at[replica] <= self.now
    }

    fn is_awake(&self, replica: usize) -> bool {
        self.is_up(replica) && self.thawed_at[replica] <= self.now
    }

    /// Downtime of a process. Short for a single replica, since nothing happens meanwhile.
    fn absence(&mut self) -> u64 {
        match self.scene.replicas {
            1 => self.random.random_range(0..30),
            _ => self.random.random_range(0..1_500),
        }
    }

    fn start(&mut self, replica: usize, at: u64) {
        self.push(at, Action::Start(replica));
        self.up_at[replica] = at + self.random.random_range(0..500);
        self.thawed_at[replica] = at;
    }

    fn kill(&mut self) {
        // May be a frozen one, which then never handles what it missed.
        if let Some(replica) = self.any(Self::is_up) {
            self.push(self.now, Action::Kill(replica));
            self.kills += 1;
            let absence = self.absence();
            self.start(replica, self.now + absence);
        }
    }

    fn kill_at_start(&mut self) {
        let Some(replica) = self.any(Self::is_up) else {
            return;
        };
        self.push(self.now, Action::Kill(replica));
        self.kills += 1;
        let mut at = self.now;
        for _ in 0..self.random.random_range(1..=3) {
            if self.kills < self.scene.kills {
                at += self.random.random_range(0..50);
                self.push(at, Action::Start(replica));
                at += self.random.random_range(0..150);
                self.push(at, Action::Kill(replica));
                self.kills += 1;
            }
        }
        self.start(replica, at + 1);
    }

    /// Kills all running processes at once.
    fn power_cut(&mut self) {
        let absence = self.random.random_range(0..500);
        for replica in 0..self.scene.replicas {
            if self.is_up(replica) && self.kills < self.scene.kills {
                self.push(self.now, Action::Kill(replica));
                self.kills += 1;
                self.start(replica, self.now + absence);
            }
        }
    }

    fn terminate(&mut self) {
        // A frozen process does not receive signals.
        if let Some(replica) = self.any(Self::is_awake) {
            self.push(self.now, Action::Terminate(replica));
            let absence = self.absence();
            self.start(replica, self.now + absence);
        }
    }

    fn freeze(&mut self) {
        if let Some(replica) = self.any(Self::is_awake) {
            let lease = u64::try_from(LEASE.as_millis()).expect("a lease is short");
            let lasts = match self.random.random_bool(0.5) {
                // Long enough to lose every lease.
                true => self.random.random_range(lease * 3 / 2..lease * 3),
                false => self.random.random_range(20..500),
            };
            self.push(self.now, Action::Freeze(replica));
            self.thawed_at[replica] = self.now + lasts;
            self.push(self.now + lasts, Action::Thaw(replica));
        }
    }

    fn clock(&mut self) {
        let is_right = |drawing: &Self, replica: usize| drawing.right_at[replica] <= drawing.now;
        if let Some(replica) = self.any(is_right) {
            let by = self.random.random_range(5..=FARTHEST);
            let by = if self.random.random_bool(0.5) { by } else { -by };
            let lasts = self.random.random_range(200..4_000);
            self.push(self.now, Action::Clock(replica, by));
            self.right_at[replica] = self.now + lasts;
            self.push(self.now + lasts, Action::Clock(replica, 0));
        }
    }

    fn database(&mut self) {
        if self.database_at > self.now {
            return;
        }
        let stop = if self.random.random_bool(0.5) {
            Stop::Immediate
        } else {
            Stop::Fast
        };
        let absence = match self.random.random_bool(0.3) {
            true => self.random.random_range(200..2_000),
            false => 0,
        };
        self.push(self.now, Action::DatabaseStop(stop));
        self.database_at = self.now + absence;
        self.push(self.database_at, Action::DatabaseStart);
    }
}

#[cfg(test)]
mod tests {
    use rand::SeedableRng as _;

    use super::*;

    #[test]
    fn plan_has_the_requested_kills_and_repairs_every_fault() {
        for seed in 0..200 {
            let scene = Scene {
                replicas: if seed % 2 == 0 { 1 } else { 3 },
                has_database: seed % 3 == 0,
                has_clocks: seed % 5 != 0,
                kills: 40,
            };
            let mut is_up = vec![true; scene.replicas];
            let mut clocks = vec![0; scene.replicas];
            let mut has_database = true;
            let mut frozen = vec![false; scene.replicas];
            let mut kills = 0;
            let plan = draw(&mut StdRng::seed_from_u64(seed), scene);
            for step in &plan {
                match step.action {
                    Action::Kill(replica) | Action::Terminate(replica) => {
                        assert!(is_up[replica], "{seed}: {step} kills what is down");
                        is_up[replica] = false;
                        kills += u32::from(matches!(step.action, Action::Kill(_)));
                        assert!(!frozen[replica] || matches!(step.action, Action::Kill(_)));
                        frozen[replica] = false;
                    }
                    Action::Start(replica) => {
                        assert!(!is_up[replica], "{seed}: {step} starts what is up");
                        is_up[replica] = true;
                    }
                    Action::Freeze(replica) => {
                        assert!(is_up[replica] && !frozen[replica], "{seed}: {step}");
                        frozen[replica] = true;
                    }
                    Action::Thaw(replica) => frozen[replica] = false,
                    Action::Clock(replica, by) => {
                        assert!(scene.has_clocks && by.abs() <= FARTHEST, "{seed}: {step}");
                        clocks[replica] = by;
                    }
                    Action::DatabaseStop(_) => {
                        assert!(scene.has_database && has_database, "{seed}: {step}");
                        has_database = false;
                    }
                    Action::DatabaseStart => has_database = true,
                }
            }
            assert_eq!(kills, scene.kills, "{seed}");
            assert!(
                is_up.iter().all(|up| *up) && frozen.iter().all(|frozen| !frozen),
                "{seed}"
            );
            assert!(clocks.iter().all(|by| *by == 0) && has_database, "{seed}");
        }
    }

    #[test]
    fn equal_seeds_draw_equal_plans() {
        let scene = Scene {
            replicas: 3,
            has_database: true,
            has_clocks: true,
            kills: 20,
        };
        let plan = |seed| draw(&mut StdRng::seed_from_u64(seed), scene);
        assert_eq!(plan(7), plan(7));
        assert_ne!(plan(7), plan(8));
    }
}
