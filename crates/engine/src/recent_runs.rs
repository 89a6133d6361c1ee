//! In-memory cache of runs that this process decided recently.
//!
//! Most clients follow the run they have just started or answered, by a stream or by polling. The events of a
//! decision are in memory when its append is durable, so the first readers need not read the store. An entry
//! is never older than the last acknowledged append: it is removed before the next append of its run begins,
//! and of several concurrent appends only the last one leaves an entry. The log of an ended run cannot
//! change, so its entry is valid even if other processes write to the store. Any other entry is valid while
//! this process is the only writer, or if the store confirms the head.
//!
//! The cache is only an optimization: it is small, shared between tenants, and entries expire after
//! [`MAX_AGE`].

use std::{
    collections::{BTreeMap, BTreeSet, HashMap},
    sync::Arc,
    time::Duration,
};

use foldhash::fast::RandomState;
use parking_lot::Mutex;
use wopr_core::{Recorded, Run, RunKey, Seq, TenantId, Timestamp};
use wopr_store::Summary;

/// Maximum runs kept. Beyond it, the tenant with the most loses its oldest.
const MAX_RUNS: usize = 1_024;
/// Maximum stored bytes kept; decoded they take several times as much. Shared between tenants in the same
/// way.
const MAX_BYTES: usize = 2 << 20;
/// Maximum stored bytes kept of one run. Larger runs are not cached.
const MAX_RUN_BYTES: usize = 32 << 10;
/// How long a run is kept. Clients read it at once or not at all.
const MAX_AGE: Duration = Duration::from_secs(2);

/// A run as its last decision left it, and the events of that decision.
#[derive(Debug)]
pub struct Decided {
    pub summary: Summary,
    /// The last events of the log; usually all of it.
    pub events: Vec<Recorded>,
    /// Number of events in the log.
    pub head: Seq,
    /// The fold of the log, if `events` is not all of it.
    pub(crate) run: Option<Run>,
    /// Stored size of the events after the last snapshot.
    pub(crate) n_tail_bytes: usize,
    /// Stored size of the run, as this cache counts it.
    pub(crate) n_bytes: usize,
}

impl Decided {
    /// Maximum stored bytes kept of one run.
    pub(crate) const MOST: usize = MAX_RUN_BYTES;

    /// The events starting at `position`; `None` if some of them are only in the store.
    #[must_use]
    pub fn from(&self, position: Seq) -> Option<&[Recorded]> {
        let first = self.head.0.checked_sub(self.events.len() as u64)?;
        let skipped = usize::try_from(position.0.checked_sub(first)?).ok()?;
        Some(self.events.get(skipped..).unwrap_or_default())
    }
}

#[derive(Debug)]
pub(crate) struct RecentRunCache {
    max_age_ms: u64,
    kept: Mutex<Kept>,
}

#[derive(Debug, Default)]
struct Kept {
    runs: HashMap<RunKey, Entry, RandomState>,
    /// Runs by insertion number, oldest first.
    order: BTreeMap<u64, RunKey>,
    tenants: HashMap<TenantId, Share, RandomState>,
    bytes: usize,
    /// The next insertion number.
    next: u64,
    /// Runs with appends in progress.
    changing: HashMap<RunKey, Changing, RandomState>,
}

#[derive(Debug)]
struct Entry {
    decided: Arc<Decided>,
    bytes: usize,
    until: Timestamp,
    place: u64,
}

/// What the cache holds of one tenant.
#[derive(Debug, Default)]
struct Share {
    bytes: usize,
    places: BTreeSet<u64>,
}

/// Concurrent appends to one run.
#[derive(Debug, Default)]
struct Changing {
    n: usize,
    /// The length of the longest log that one of them left.
    head: Seq,
}

/// An append in progress, until its outcome is known or never will be.
#[derive(Debug)]
pub(crate) struct Change {
    recent_runs: Arc<RecentRunCache>,
    key: RunKey,
    /// The run after the append.
    after: Option<Decided>,
}

impl Change {
    /// Caches the run as this append left it. To be called once the append is durable.
    pub(crate) fn keep(mut self, decided: Decided) {
        self.after = Some(decided);
    }
}

impl Drop for Change {
    fn drop(&mut self) {
        self.recent_runs.end(&self.key, self.after.take());
    }
}

impl RecentRunCache {
    /// Creates a cache that keeps runs no longer than the store does.
    pub(crate) fn new(retention: Option<Duration>) -> Self {
        let max_age = retention.map_or(MAX_AGE, |retention| retention.min(MAX_AGE));
        Self {
            max_age_ms: u64::try_from(max_age.as_millis()).unwrap_or(u64::MAX),
            kept: Mutex::default(),
        }
    }

    /// Removes a run that is about to be appended to. It is not cached before the append is over, nor if the
    /// outcome stays unknown.
    pub(crate) fn change(self: &Arc<Self>, key: &RunKey) -> Change {
        let mut kept = self.kept.lock();
        let dropped = kept.remove(key);
        kept.changing.entry(key.clone()).or_default().n += 1;
        drop(kept);
        // Outside the lock, because freeing an entry means freeing many small allocations.
        drop(dropped);
        Change {
            recent_runs: Arc::clone(self),
            key: key.clone(),
            after: None,
        }
    }

    fn end(&self, key: &RunKey, after: Option<Decided>) {
        let mut dropped = Vec::new();
        let mut kept = self.kept.lock();
        let Some(changing) = kept.changing.get_mut(key) else {
            return;
        };
        changing.n -= 1;
        if let Some(decided) = &after {
            changing.head = changing.head.max(decided.head);
        }
        if changing.n > 0 {
            return;
        }
        let longest = changing.head;
        kept.changing.remove(key);
        let after = after.filter(|decided| decided.head == longest && decided.n_bytes <= MAX_RUN_BYTES);
        if let Some(decided) = after {
            let now = decided.summary.updated_at;
            dropped.extend(kept.insert(key, decided, now.plus_millis(self.max_age_ms)));
            kept.make_room(now, &mut dropped);
        }
        drop(kept);
        drop(dropped);
    }

    pub(crate) fn find(&self, key: &RunKey, now: Timestamp) -> Option<Arc<Decided>> {
        let kept = self.kept.lock();
        let entry = kept.runs.get(key)?;
        (now < entry.until).then(|| Arc::clone(&entry.decided))
    }

    /// Removes an entry found outdated because another process appended to the run.
    pub(crate) fn forget(&self, key: &RunKey, outdated: &Arc<Decided>) {
        let mut kept = self.kept.lock();
        let entry = kept.runs.get(key);
        if entry.is_some_and(|entry| Arc::ptr_eq(&entry.decided, outdated)) {
            let dropped = kept.remove(key);
            drop(kept);
            drop(dropped);
        }
    }
}

impl Kept {
    fn insert(&mut self, key: &RunKey, decided: Decided, until: Timestamp) -> Option<Entry> {
        let bytes = decided.n_bytes;
        let replaced = self.remove(key);
        let place = self.next;
        self.next += 1;
        self.order.insert(place, key.clone());
        let share = self.tenants.entry(key.tenant.clone()).or_default();
        share.places.insert(place);
        share.bytes += bytes;
        self.bytes += bytes;
        let entry = Entry {
            decided: Arc::new(decided),
            bytes,
            until,
            place,
        };
        self.runs.insert(key.clone(), entry);
        replaced
    }

    fn remove(&mut self, key: &RunKey) -> Option<Entry> {
        let entry = self.runs.remove(key)?;
        self.order.remove(&entry.place);
        self.bytes -= entry.bytes;
        if let Some(share) = self.tenants.get_mut(&key.tenant) {
            share.places.remove(&entry.place);
            share.bytes -= entry.bytes;
            if share.places.is_empty() {
                self.tenants.remove(&key.tenant);
            }
        }
        Some(entry)
    }

    /// Drops expired entries and, beyond the limits, the oldest entries of the tenants that hold the most.
    fn make_room(&mut self, now: Timestamp, dropped: &mut Vec<Entry>) {
        while let Some(key) = self.superfluous(now) {
            dropped.extend(self.remove(&key));
        }
    }

    fn superfluous(&self, now: Timestamp) -> Option<RunKey> {
        let (_, oldest) = self.order.first_key_value()?;
        if self.runs.get(oldest).is_none_or(|entry| entry.until <= now) {
            return Some(oldest.clone());
        }
        let most = if self.runs.len() > MAX_RUNS {
            let shares = self.tenants.iter();
            shares.max_by_key(|(tenant, share)| (share.places.len(), *tenant))
        } else if self.bytes > MAX_BYTES {
            let shares = self.tenants.iter();
            shares.max_by_key(|(tenant, share)| (share.bytes, *tenant))
        } else {
            None
        };
        let place = most?.1.places.first()?;
        self.order.get(place).cloned()
    }
}

#[cfg(test)]
mod tests {
    use wopr_core::{ContentHash, KernelEvent, PrincipalId, RunId, RunStatus, TenantId, WorkflowId};

    use super::*;

    fn at(millis: i64) -> Timestamp {
        Timestamp::from_millis(millis)
    }

    fn key(n: usize) -> RunKey {
        let run = RunId::parse(&format!("run_{n:016}")).expect("a run id");
        RunKey::new(TenantId::parse("acme").expect("a tenant"), run)
    }

    /// A decided run whose cached events are `first..head`.
    fn decided(first: u64, head: u64, millis: i64) -> Decided {
        let event = |seq| Recorded {
            given: None,
            is_untrusted: false,
            seq: Seq(seq),
            at: at(0),
            cause: None,
            event: KernelEvent::RunResumed { reason: None }.into(),
        };
        Decided {
            summary: Summary {
                status: RunStatus::Completed,
                updated_at: at(millis),
                ..Summary::new(
                    WorkflowId::parse("greet").expect("a workflow"),
                    ContentHash::of(b""),
                    PrincipalId::parse("ada").expect("a principal"),
                    at(0),
                )
            },
            events: (first..head).map(event).collect(),
            head: Seq(head),
            run: None,
            n_tail_bytes: 0,
            n_bytes: 1,
        }
    }

    fn keep(recent_runs: &Arc<RecentRunCache>, key: &RunKey, decided: Decided, n_bytes: usize) {
        recent_runs.change(key).keep(Decided { n_bytes, ..decided });
    }

    fn head(recent_runs: &RecentRunCache, n: usize) -> Option<u64> {
        Some(recent_runs.find(&key(n), at(0))?.head.0)
    }

    fn places(ended: &Decided, position: u64) -> Option<Vec<u64>> {
        let events = ended.from(Seq(position))?;
        Some(events.iter().map(|recorded| recorded.seq.0).collect())
    }

    #[test]
    fn events_are_found_by_position() {
        let ended = decided(3, 6, 0);
        assert_eq!(places(&ended, 2), None, "only in the store");
        assert_eq!(places(&ended, 3), Some(vec![3, 4, 5]));
        assert_eq!(places(&ended, 5), Some(vec![5]));
        assert_eq!(places(&ended, 6), Some(vec![]));
        assert_eq!(places(&ended, 60), Some(vec![]));
    }

    #[test]
    fn a_run_is_cached_until_it_expires() {
        for (retention, end) in [(None, 2_000), (Some(60_000), 2_000), (Some(50), 50), (Some(0), 0)] {
            let recent_runs = Arc::new(RecentRunCache::new(retention.map(Duration::from_millis)));
            keep(&recent_runs, &key(1), decided(0, 2, 7), 10);
            assert_eq!(recent_runs.find(&key(1), at(7 + end - 1)).is_some(), end > 0);
            assert!(recent_runs.find(&key(1), at(7 + end)).is_none());
            assert!(recent_runs.find(&key(2), at(7)).is_none());
        }
    }

    #[test]
    fn the_cache_is_bounded() {
        let recent_runs = Arc::new(RecentRunCache::new(None));
        keep(&recent_runs, &key(0), decided(0, 2, 0), MAX_RUN_BYTES + 1);
        assert!(recent_runs.find(&key(0), at(0)).is_none(), "too large");
        for n in 1..=MAX_RUNS + 5 {
            keep(&recent_runs, &key(n), decided(0, 2, 0), 1);
        }
        assert!(recent_runs.find(&key(5), at(0)).is_none(), "too many");
        assert!(recent_runs.find(&key(6), at(0)).is_some());
        let n_heavy = MAX_BYTES / MAX_RUN_BYTES;
        for n in 0..n_heavy {
            keep(&recent_runs, &key(10_000 + n), decided(0, 2, 0), MAX_RUN_BYTES);
        }
        assert!(recent_runs.find(&key(6), at(0)).is_none(), "too heavy");
        assert!(recent_runs.find(&key(10_000), at(0)).is_some());
        keep(&recent_runs, &key(9), decided(0, 2, 1_000_000), 1);
        let kept = recent_runs.kept.lock();
        assert_eq!(
            (kept.runs.len(), kept.order.len(), kept.tenants.len(), kept.bytes),
            (1, 1, 1, 1),
            "too old"
        );
        assert!(kept.changing.is_empty());
    }

    #[test]
    fn an_append_in_progress_hides_the_previous_entry() {
        let recent_runs = Arc::new(RecentRunCache::new(None));
        keep(&recent_runs, &key(1), decided(0, 2, 0), 1);
        let change = recent_runs.change(&key(1));
        assert_eq!(head(&recent_runs, 1), None);
        change.keep(decided(2, 3, 0));
        assert_eq!(head(&recent_runs, 1), Some(3));
        // The outcome stays unknown.
        drop(recent_runs.change(&key(1)));
        assert_eq!(head(&recent_runs, 1), None);
    }

    #[test]
    fn of_concurrent_appends_only_the_longest_log_is_cached() {
        for is_late_last in [true, false] {
            let recent_runs = Arc::new(RecentRunCache::new(None));
            let (early, late) = (recent_runs.change(&key(1)), recent_runs.change(&key(1)));
            if is_late_last {
                early.keep(decided(0, 2, 0));
                assert_eq!(head(&recent_runs, 1), None);
                late.keep(decided(2, 3, 0));
                assert_eq!(head(&recent_runs, 1), Some(3));
            } else {
                late.keep(decided(2, 3, 0));
                early.keep(decided(0, 2, 0));
                assert_eq!(head(&recent_runs, 1), None, "what was acknowledged last is gone");
            }
            assert!(recent_runs.kept.lock().changing.is_empty());
        }
    }

    #[test]
    fn a_busy_tenant_does_not_evict_the_runs_of_others() {
        let recent_runs = Arc::new(RecentRunCache::new(None));
        let of = |tenant: &str, n| {
            let tenant = TenantId::parse(tenant).expect("a tenant");
            RunKey::new(tenant, key(n).run)
        };
        keep(&recent_runs, &of("quiet", 0), decided(0, 2, 0), MAX_RUN_BYTES);
        for n in 1..=2 * MAX_RUNS {
            keep(&recent_runs, &of("loud", n), decided(0, 2, 0), MAX_RUN_BYTES / 2);
        }
        for n in 1..=2 * MAX_RUNS {
            keep(&recent_runs, &of("loud", n), decided(0, 2, 0), 1);
        }
        assert!(recent_runs.find(&of("quiet", 0), at(0)).is_some());
        let kept = recent_runs.kept.lock();
        assert_eq!(kept.runs.len(), MAX_RUNS);
        assert!(kept.bytes <= MAX_BYTES);
    }

    #[test]
    fn only_the_outdated_entry_is_removed() {
        let recent_runs = Arc::new(RecentRunCache::new(None));
        keep(&recent_runs, &key(1), decided(0, 2, 0), 1);
        let found = recent_runs.find(&key(1), at(0)).expect("kept");
        keep(&recent_runs, &key(1), decided(2, 3, 0), 1);
        recent_runs.forget(&key(1), &found);
        assert_eq!(head(&recent_runs, 1), Some(3));
        let found = recent_runs.find(&key(1), at(0)).expect("kept");
        recent_runs.forget(&key(1), &found);
        assert_eq!(head(&recent_runs, 1), None);
    }
}
