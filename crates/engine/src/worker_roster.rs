//! The workers that this process has seen: those that wait, and how many activities each has.
//!
//! It is kept in memory, for people who look: nothing depends on it. It forgets a worker that has been silent for long
//! when it next hears of any, and counts only what goes through this process.

use std::{collections::BTreeMap, time::Duration};

use parking_lot::Mutex;
use tokio::time::Instant;
use wopr_core::{TenantId, Timestamp};

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
    /// Tenants that have workers.
    tenants: BTreeMap<TenantId, BTreeMap<Name, Seen>>,
    swept_at: Option<Instant>,
}

/// The queue and the name of a worker.
type Name = (String, String);

#[derive(Debug)]
struct Seen {
    waiting: usize,
    working: usize,
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
    /// Activities that it got here and has not ended here.
    pub working: usize,
    /// When it was last heard of.
    pub seen_at: Timestamp,
}

impl Roster {
    /// A worker calls for activities.
    pub(crate) fn waits(&self, tenant: &TenantId, queue: &str, worker: &str, at: Timestamp) {
        self.note(tenant, queue, worker, at, |seen| seen.waiting += 1);
    }

    /// A call of a worker is answered with so many activities.
    pub(crate) fn got(&self, tenant: &TenantId, queue: &str, worker: &str, n: usize, at: Timestamp) {
        self.note(tenant, queue, worker, at, |seen| {
            seen.waiting = seen.waiting.saturating_sub(1);
            seen.working += n;
        });
    }

    /// A worker is alive.
    pub(crate) fn heard(&self, tenant: &TenantId, queue: &str, worker: &str, at: Timestamp) {
        self.note(tenant, queue, worker, at, |_| {});
    }

    /// A worker has ended an activity, or has lost it.
    pub(crate) fn ended(&self, tenant: &TenantId, queue: &str, worker: &str, at: Timestamp) {
        self.note(tenant, queue, worker, at, |seen| {
            seen.working = seen.working.saturating_sub(1);
        });
    }

    fn note(
        &self,
        tenant: &TenantId,
        queue: &str,
        worker: &str,
        at: Timestamp,
        change: impl FnOnce(&mut Seen),
    ) {
        let now = Instant::now();
        let mut known = self.0.lock();
        known.sweep(now);
        let workers = known.tenants.entry(tenant.clone()).or_default();
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
                working: 0,
                at,
                heard: now,
            });
            seen.at = at;
            seen.heard = now;
            change(seen);
        }
    }

    /// The workers of a tenant, by queue and name.
    pub(crate) fn list(&self, tenant: &TenantId) -> Vec<SeenWorker> {
        let now = Instant::now();
        let known = self.0.lock();
        let workers = known.tenants.get(tenant).into_iter().flatten();
        let remembered = workers.filter(|(_, seen)| seen.is_remembered(now));
        let listed = remembered.map(|((queue, worker), seen)| SeenWorker {
            queue: queue.clone(),
            worker: worker.clone(),
            waiting: seen.waiting,
            working: seen.working,
            seen_at: seen.at,
        });
        listed.collect()
    }
}

impl Known {
    /// Forgets silent workers, and tenants that have no others.
    fn sweep(&mut self, now: Instant) {
        if self.swept_at.is_some_and(|swept| now < swept + SWEEP) {
            return;
        }
        self.swept_at = Some(now);
        self.tenants.retain(|_, workers| {
            workers.retain(|_, seen| seen.is_remembered(now));
            !workers.is_empty()
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
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn silent_workers_are_forgotten_and_waiting_ones_are_not() {
        let (roster, acme) = (Roster::default(), TenantId::parse("acme").expect("valid"));
        let at = Timestamp::from_millis(7);
        roster.waits(&acme, "letters", "ann", at);
        roster.waits(&acme, "letters", "bob", at);
        roster.got(&acme, "letters", "bob", 2, at);
        roster.ended(&acme, "letters", "bob", at);
        let seen = |roster: &Roster| {
            let list = roster.list(&acme).into_iter();
            list.map(|seen| (seen.worker, seen.waiting, seen.working))
                .collect::<Vec<_>>()
        };
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
        let (roster, acme) = (Roster::default(), TenantId::parse("acme").expect("valid"));
        for n in 0..MOST + 5 {
            roster.heard(&acme, "letters", &format!("w{n}"), Timestamp::from_millis(0));
        }
        assert_eq!(roster.list(&acme).len(), MOST);
    }
}
