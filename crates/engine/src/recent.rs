//! Runs that ended a moment ago, in memory.
//!
//! Most clients follow the run they have just started, and most runs end in the append that started them. Their
//! log is at hand when that append is durable, so its first readers need not ask the store. Only logs that have
//! ended are kept: nothing is ever added to those, so what is here cannot be out of date, whichever process wrote
//! what, and it is gone before the run's time has come to be removed. Nothing depends on an entry being here: they
//! are few, small, and last for [`MAX_AGE`].

use std::{
    collections::{HashMap, VecDeque},
    sync::Arc,
    time::Duration,
};

use parking_lot::Mutex;
use wopr_core::{Recorded, RunKey, Seq, Timestamp};
use wopr_store::Summary;

/// The most runs kept.
const MAX_RUNS: usize = 1_024;
/// The most bytes kept, as stored; decoded they take a few times as many.
const MAX_BYTES: usize = 2 << 20;
/// A run that wrote more than this in its last append is not kept.
const MAX_RUN_BYTES: usize = 32 << 10;
/// How long a run is kept: its client comes at once or not at all.
const MAX_AGE: Duration = Duration::from_secs(2);

/// A run that has ended, and what its last append added to its log.
#[derive(Debug)]
pub struct Ended {
    /// Its summary.
    pub summary: Summary,
    /// The last events of its log; in most cases all of it.
    pub events: Vec<Recorded>,
    /// How many events the log holds.
    pub head: Seq,
}

impl Ended {
    /// The events from a position on; `None` if some of them are only in the store.
    #[must_use]
    pub fn from(&self, position: Seq) -> Option<&[Recorded]> {
        let first = self.head.0.checked_sub(self.events.len() as u64)?;
        let skipped = usize::try_from(position.0.checked_sub(first)?).ok()?;
        Some(self.events.get(skipped..).unwrap_or_default())
    }
}

#[derive(Debug)]
pub(crate) struct Recent {
    max_age_ms: u64,
    kept: Mutex<Kept>,
}

#[derive(Debug, Default)]
struct Kept {
    runs: HashMap<RunKey, Entry>,
    /// The oldest first. A run ends once, so each is here once.
    order: VecDeque<RunKey>,
    bytes: usize,
}

#[derive(Debug)]
struct Entry {
    ended: Arc<Ended>,
    bytes: usize,
    until: Timestamp,
}

impl Recent {
    /// Keeps runs no longer than the store does.
    pub(crate) fn new(retention: Option<Duration>) -> Self {
        let max_age = retention.map_or(MAX_AGE, |retention| retention.min(MAX_AGE));
        Self {
            max_age_ms: u64::try_from(max_age.as_millis()).unwrap_or(u64::MAX),
            kept: Mutex::default(),
        }
    }

    /// Keeps a run whose end is durable, with the stored size of its last events.
    pub(crate) fn keep(&self, key: &RunKey, ended: Ended, bytes: usize) {
        if bytes > MAX_RUN_BYTES {
            return;
        }
        let now = ended.summary.updated_at;
        let entry = Entry {
            ended: Arc::new(ended),
            bytes,
            until: now.plus_millis(self.max_age_ms),
        };
        let mut dropped = Vec::new();
        let mut kept = self.kept.lock();
        kept.bytes += bytes;
        kept.order.push_back(key.clone());
        kept.runs.insert(key.clone(), entry);
        while let Some(oldest) = kept.order.front() {
            let is_over = kept.runs.get(oldest).is_none_or(|entry| entry.until <= now);
            if !is_over && kept.order.len() <= MAX_RUNS && kept.bytes <= MAX_BYTES {
                break;
            }
            dropped.extend(kept.pop());
        }
        drop(kept);
        // Not under the lock: an entry is many small pieces of memory.
        drop(dropped);
    }

    /// Finds a run.
    pub(crate) fn find(&self, key: &RunKey, now: Timestamp) -> Option<Arc<Ended>> {
        let kept = self.kept.lock();
        let entry = kept.runs.get(key)?;
        (now < entry.until).then(|| Arc::clone(&entry.ended))
    }
}

impl Kept {
    fn pop(&mut self) -> Option<Entry> {
        let entry = self.runs.remove(&self.order.pop_front()?)?;
        self.bytes -= entry.bytes;
        Some(entry)
    }
}

#[cfg(test)]
mod tests {
    use wopr_core::{ContentHash, Event, PrincipalId, RunId, RunStatus, TenantId, WorkflowId};

    use super::*;

    fn at(millis: i64) -> Timestamp {
        Timestamp::from_millis(millis)
    }

    fn key(n: usize) -> RunKey {
        let run = RunId::parse(&format!("run_{n:016}")).expect("a run id");
        RunKey::new(TenantId::parse("acme").expect("a tenant"), run)
    }

    /// A log whose events from `first` to `head` are at hand, ended at a time.
    fn ended(first: u64, head: u64, millis: i64) -> Ended {
        let event = |seq| Recorded {
            is_untrusted: false,
            seq: Seq(seq),
            at: at(0),
            cause: None,
            event: Event::RunResumed { reason: None },
        };
        Ended {
            summary: Summary {
                workflow: WorkflowId::parse("greet").expect("a workflow"),
                version: ContentHash::of(b""),
                status: RunStatus::Completed,
                principal: PrincipalId::parse("ada").expect("a principal"),
                parent: None,
                created_at: at(0),
                updated_at: at(millis),
            },
            events: (first..head).map(event).collect(),
            head: Seq(head),
        }
    }

    fn places(ended: &Ended, position: u64) -> Option<Vec<u64>> {
        let events = ended.from(Seq(position))?;
        Some(events.iter().map(|recorded| recorded.seq.0).collect())
    }

    #[test]
    fn events_are_found_by_their_place() {
        let ended = ended(3, 6, 0);
        assert_eq!(places(&ended, 2), None, "only in the store");
        assert_eq!(places(&ended, 3), Some(vec![3, 4, 5]));
        assert_eq!(places(&ended, 5), Some(vec![5]));
        assert_eq!(places(&ended, 6), Some(vec![]));
        assert_eq!(places(&ended, 60), Some(vec![]));
    }

    #[test]
    fn a_run_is_found_for_a_while() {
        for (retention, end) in [(None, 2_000), (Some(60_000), 2_000), (Some(50), 50), (Some(0), 0)] {
            let recent = Recent::new(retention.map(Duration::from_millis));
            recent.keep(&key(1), ended(0, 2, 7), 10);
            assert_eq!(recent.find(&key(1), at(7 + end - 1)).is_some(), end > 0);
            assert!(recent.find(&key(1), at(7 + end)).is_none());
            assert!(recent.find(&key(2), at(7)).is_none());
        }
    }

    #[test]
    fn what_is_kept_is_bounded() {
        let recent = Recent::new(None);
        recent.keep(&key(0), ended(0, 2, 0), MAX_RUN_BYTES + 1);
        assert!(recent.find(&key(0), at(0)).is_none(), "too large");
        for n in 1..=MAX_RUNS + 5 {
            recent.keep(&key(n), ended(0, 2, 0), 1);
        }
        assert!(recent.find(&key(5), at(0)).is_none(), "too many");
        assert!(recent.find(&key(6), at(0)).is_some());
        let n_heavy = MAX_BYTES / MAX_RUN_BYTES;
        for n in 0..n_heavy {
            recent.keep(&key(10_000 + n), ended(0, 2, 0), MAX_RUN_BYTES);
        }
        assert!(recent.find(&key(6), at(0)).is_none(), "too heavy");
        assert!(recent.find(&key(10_000), at(0)).is_some());
        recent.keep(&key(9), ended(0, 2, 1_000_000), 1);
        let kept = recent.kept.lock();
        assert_eq!(
            (kept.runs.len(), kept.order.len(), kept.bytes),
            (1, 1, 1),
            "too old"
        );
    }
}
