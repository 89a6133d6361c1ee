//! The workers that this process has seen: those that wait, and how many activities each has.
//!
//! It is kept in memory, for people who look: nothing depends on it. It forgets a worker that has been silent for long
//! when it next hears of any, and counts only what goes through this process.

use std::{collections::BTreeMap, time::Duration};

use parking_lot::Mutex;
use tokio::time::Instant;
use wopr_core::{RunKey, StepId, TenantId, Timestamp};
use wopr_store::Fence;

use crate::WorkerLease;

/// How long a worker is remembered that is silent.
const REMEMBERED: Duration = Duration::from_mins(10);
/// The interval between sweeps of silent workers.
const SWEEP: Duration = Duration::from_mins(1);
/// The most workers of a tenant that are remembered.
const MOST: usize = 1_000;

#[derive(Debug, Default)]
pub(crate) struct Roster(Mutex<Known>);

#[derive(Debug, Default)]
struct Known {
    tenants: BTreeMap<TenantId, Workers>,
    swept_at: Option<Instant>,
}

/// The workers of a tenant, and what they have leased.
#[derive(Debug, Default)]
struct Workers {
    seen: BTreeMap<Name, Seen>,
    held: BTreeMap<Attempt, Held>,
}

/// The queue and the name of a worker.
type Name = (String, String);

/// The attempt of an activity.
pub(crate) type Attempt = (RunKey, StepId, u32);

/// A lease that a worker of this process got. It counts until it is over, because nobody tells this process that the
/// run has ended, or that the lease was lost.
#[derive(Debug)]
struct Held {
    worker: Name,
    fence: Fence,
    until: Instant,
}

#[derive(Debug)]
struct Seen {
    waiting: usize,
    at: Timestamp,
    heard: Instant,
}

/// A worker of a queue, as this process knows it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SeenWorker {
    pub queue: String,
    pub worker: String,
    /// Its calls that wait for activities.
    pub waiting: usize,
    /// Activities that it leased here and has not ended here, as long as the leases last.
    pub working: usize,
    /// When it was last heard of.
    pub seen_at: Timestamp,
}

impl Roster {
    /// A worker calls for activities.
    pub(crate) fn waits(&self, tenant: &TenantId, queue: &str, worker: &str, at: Timestamp) {
        self.note(tenant, queue, worker, at, |seen, _| seen.waiting += 1);
    }

    /// A call of a worker is answered with activities, which may be none.
    pub(crate) fn got(
        &self,
        tenant: &TenantId,
        queue: &str,
        worker: &str,
        leased: Vec<(Attempt, Fence)>,
        lease: Duration,
        at: Timestamp,
    ) {
        let until = Instant::now() + lease;
        self.note(tenant, queue, worker, at, |seen, held| {
            seen.waiting = seen.waiting.saturating_sub(1);
            for (attempt, fence) in leased {
                let worker = (queue.to_owned(), worker.to_owned());
                held.insert(attempt, Held { worker, fence, until });
            }
        });
    }

    /// A worker is alive.
    pub(crate) fn heard(&self, tenant: &TenantId, queue: &str, worker: &str, at: Timestamp) {
        self.note(tenant, queue, worker, at, |_, _| {});
    }

    /// The lease of an activity was renewed for so long, or is lost.
    pub(crate) fn renewed(
        &self,
        attempt: &Attempt,
        lease: &WorkerLease,
        lasts: Option<Duration>,
        at: Timestamp,
    ) {
        let WorkerLease { fence, queue, worker } = lease;
        self.note(&attempt.0.tenant, queue, worker, at, |_, held| {
            let Some(known) = held.get_mut(attempt).filter(|held| held.fence == *fence) else {
                return;
            };
            match lasts {
                Some(lasts) => known.until = Instant::now() + lasts,
                None => drop(held.remove(attempt)),
            }
        });
    }

    /// A worker has ended an activity, or has lost it.
    pub(crate) fn ended(&self, attempt: &Attempt, lease: &WorkerLease, at: Timestamp) {
        self.renewed(attempt, lease, None, at);
    }

    fn note(
        &self,
        tenant: &TenantId,
        queue: &str,
        worker: &str,
        at: Timestamp,
        change: impl FnOnce(&mut Seen, &mut BTreeMap<Attempt, Held>),
    ) {
        let now = Instant::now();
        let mut known = self.0.lock();
        known.sweep(now);
        let Workers { seen: workers, held } = known.tenants.entry(tenant.clone()).or_default();
        let name = (queue.to_owned(), worker.to_owned());
        if workers.len() >= MOST && !workers.contains_key(&name) {
            workers.retain(|_, seen| seen.is_remembered(now));
            let idle = workers.iter().filter(|(_, seen)| seen.waiting == 0);
            let oldest = idle
                .min_by_key(|(_, seen)| seen.heard)
                .map(|(name, _)| name.clone());
            if workers.len() >= MOST
                && let Some(oldest) = oldest
            {
                workers.remove(&oldest);
            }
        }
        // All of so many wait: the newest is not listed.
        if workers.len() < MOST || workers.contains_key(&name) {
            let seen = workers.entry(name).or_insert(Seen {
                waiting: 0,
                at,
                heard: now,
            });
            seen.at = at;
            seen.heard = now;
            change(seen, held);
        }
    }

    /// The workers of a tenant, by queue and name.
    pub(crate) fn list(&self, tenant: &TenantId) -> Vec<SeenWorker> {
        let now = Instant::now();
        let known = self.0.lock();
        let Some(workers) = known.tenants.get(tenant) else {
            return Vec::new();
        };
        let mut working: BTreeMap<&Name, usize> = BTreeMap::new();
        for held in workers.held.values().filter(|held| now < held.until) {
            *working.entry(&held.worker).or_default() += 1;
        }
        let remembered = workers.seen.iter().filter(|(_, seen)| seen.is_remembered(now));
        let listed = remembered.map(|(name, seen)| SeenWorker {
            queue: name.0.clone(),
            worker: name.1.clone(),
            waiting: seen.waiting,
            working: working.get(name).copied().unwrap_or(0),
            seen_at: seen.at,
        });
        listed.collect()
    }
}

impl Known {
    /// Forgets silent workers, tenants that have no others, and leases that are over.
    fn sweep(&mut self, now: Instant) {
        if self.swept_at.is_some_and(|swept| now < swept + SWEEP) {
            return;
        }
        self.swept_at = Some(now);
        self.tenants.retain(|_, workers| {
            workers.seen.retain(|_, seen| seen.is_remembered(now));
            workers.held.retain(|_, held| now < held.until);
            !workers.seen.is_empty()
        });
    }
}

impl Seen {
    fn is_remembered(&self, now: Instant) -> bool {
        self.waiting > 0 || now.saturating_duration_since(self.heard) < REMEMBERED
    }
}

#[cfg(test)]
mod tests {
    use wopr_core::{NodeId, RunId};

    use super::*;

    const LEASE: Duration = Duration::from_secs(10);

    fn acme() -> TenantId {
        TenantId::parse("acme").expect("valid")
    }

    fn attempt(run: &str) -> Attempt {
        let run = RunKey::new(acme(), RunId::parse(run).expect("valid"));
        let step = StepId {
            node: NodeId::parse("work").expect("valid"),
            ordinal: 0,
        };
        (run, step, 1)
    }

    fn lease(worker: &str, fence: u64) -> WorkerLease {
        WorkerLease {
            fence: Fence(fence),
            queue: "letters".to_owned(),
            worker: worker.to_owned(),
        }
    }

    /// A worker calls, and gets activities under a fence.
    fn got(roster: &Roster, worker: &str, fence: u64, runs: &[&str]) {
        let (tenant, at) = (acme(), Timestamp::from_millis(7));
        roster.waits(&tenant, "letters", worker, at);
        let leased = runs.iter().map(|run| (attempt(run), Fence(fence))).collect();
        roster.got(&tenant, "letters", worker, leased, LEASE, at);
    }

    /// The workers, with their counts of calls and of activities.
    fn seen(roster: &Roster) -> Vec<(String, usize, usize)> {
        let list = roster.list(&acme()).into_iter();
        list.map(|seen| (seen.worker, seen.waiting, seen.working))
            .collect()
    }

    #[tokio::test(start_paused = true)]
    async fn only_leases_that_last_count_as_work() {
        let (roster, at) = (Roster::default(), Timestamp::from_millis(7));
        let working = |worker: &str| {
            let found = seen(&roster).into_iter().find(|(name, ..)| name == worker);
            found.map(|(.., working)| working)
        };
        let (one, two, three) = ("run-one-0123456789", "run-two-0123456789", "run-three-0123456789");
        got(&roster, "ann", 1, &[one, two, three]);
        assert_eq!(working("ann"), Some(3));
        roster.ended(&attempt(one), &lease("ann", 1), at);
        assert_eq!(working("ann"), Some(2), "it was ended");
        tokio::time::advance(LEASE / 2).await;
        roster.renewed(&attempt(two), &lease("ann", 1), Some(LEASE), at);
        tokio::time::advance(LEASE / 2).await;
        assert_eq!(working("ann"), Some(1), "one lease is over");
        got(&roster, "bob", 2, &[three, two]);
        assert_eq!(
            (working("ann"), working("bob")),
            (Some(0), Some(2)),
            "leased again"
        );
        roster.ended(&attempt(two), &lease("ann", 1), at);
        assert_eq!(working("bob"), Some(2), "an old lease ends nothing");
        roster.renewed(&attempt(two), &lease("bob", 2), None, at);
        assert_eq!(working("bob"), Some(1), "a heartbeat found the lease lost");
        tokio::time::advance(SWEEP).await;
        roster.heard(&acme(), "letters", "ann", at);
        assert!(roster.0.lock().tenants[&acme()].held.is_empty());
    }

    #[tokio::test(start_paused = true)]
    async fn silent_workers_are_forgotten_and_waiting_ones_are_not() {
        let (roster, at) = (Roster::default(), Timestamp::from_millis(7));
        roster.waits(&acme(), "letters", "ann", at);
        got(&roster, "bob", 1, &["run-one-0123456789"]);
        assert_eq!(
            seen(&roster),
            [("ann".to_owned(), 1, 0), ("bob".to_owned(), 0, 1)]
        );
        tokio::time::advance(REMEMBERED).await;
        assert_eq!(seen(&roster), [("ann".to_owned(), 1, 0)]);
    }

    #[tokio::test(start_paused = true)]
    async fn tenants_of_silent_workers_are_forgotten_when_another_is_heard() {
        let tenant = |name: &str| TenantId::parse(name).expect("valid");
        let roster = Roster::default();
        roster.heard(&tenant("acme"), "letters", "ann", Timestamp::from_millis(0));
        tokio::time::advance(REMEMBERED).await;
        roster.heard(&tenant("zeta"), "letters", "zoe", Timestamp::from_millis(1));
        let known = roster.0.lock();
        assert!(known.tenants.keys().eq([&tenant("zeta")]));
    }

    #[tokio::test]
    async fn a_tenant_has_a_limited_number_of_remembered_workers() {
        let (roster, acme) = (Roster::default(), acme());
        for n in 0..MOST + 5 {
            roster.heard(&acme, "letters", &format!("w{n}"), Timestamp::from_millis(0));
        }
        assert_eq!(roster.list(&acme).len(), MOST);
    }
}
