//! Calls that wait for room in a budget, in the order in which they came.
//!
//! A look costs a lease and a commit, so only the first call of a queue looks often, and is woken when room may have come:
//! when a call has ended, and when the call before it has found room. The others look seldom, in case a wake was lost:
//! queues are in memory only.

use std::{
    collections::{HashMap, VecDeque},
    fmt,
    hash::Hash,
    sync::Arc,
    time::Duration,
};

use parking_lot::Mutex;
use tokio::runtime::Handle;
use tokio_util::task::TaskTracker;
use wopr_core::Timestamp;

use crate::Wake;

/// After how long a call looks again that is not the first of its queue.
const SELDOM: Duration = Duration::from_secs(30);
/// A call that has not looked for so long is gone: it was cancelled, or another process has it.
const GONE_MS: u64 = 90_000;
/// The maximum length of a queue. Further calls do not join it: they look again every [`SELDOM`].
const MOST_CALLS: usize = 4_096;
/// How many queues there are at least before those are looked for whose calls are gone.
const MANY_QUEUES: usize = 64;

/// Queues, each by what its calls compete for.
pub(crate) struct Waiting<K>(Arc<Shared<K>>);

struct Shared<K> {
    queues: Mutex<Queues<K>>,
    /// Tracks the tasks that wake calls.
    tasks: TaskTracker,
    runtime: Handle,
}

struct Queues<K> {
    by_place: HashMap<K, VecDeque<Call>>,
    /// How many queues there are when those are dropped whose calls are gone.
    clear_at: usize,
}

struct Call {
    id: String,
    wake: Wake,
    seen: Timestamp,
}

impl Call {
    fn is_gone(&self, now: Timestamp) -> bool {
        now.millis_since(self.seen) > GONE_MS
    }
}

impl<K: Clone + Eq + Hash> Waiting<K> {
    pub(crate) fn new(tasks: TaskTracker, runtime: Handle) -> Self {
        let queues = Queues {
            by_place: HashMap::new(),
            clear_at: MANY_QUEUES,
        };
        Self(Arc::new(Shared {
            queues: Mutex::new(queues),
            tasks,
            runtime,
        }))
    }

    /// Puts a call at the end of a queue, unless it is in it. Returns after how long it looks again: `soon` if it is the
    /// first.
    pub(crate) fn join(
        &self,
        place: &K,
        (id, wake): (&str, &Wake),
        soon: Duration,
        now: Timestamp,
    ) -> Duration {
        let mut queues = self.0.queues.lock();
        if queues.by_place.len() >= queues.clear_at {
            queues
                .by_place
                .retain(|_, queue| !queue.iter().all(|call| call.is_gone(now)));
            queues.clear_at = (2 * queues.by_place.len()).max(MANY_QUEUES);
        }
        let queue = queues.by_place.entry(place.clone()).or_default();
        queue.retain(|call| call.id == id || !call.is_gone(now));
        let n_calls = queue.len();
        match queue.iter_mut().find(|call| call.id == id) {
            Some(call) => call.seen = now,
            None if n_calls < MOST_CALLS => queue.push_back(Call {
                id: id.to_owned(),
                wake: wake.clone(),
                seen: now,
            }),
            None => {}
        }
        match queue.front().is_some_and(|first| first.id == id) {
            true => soon,
            false => SELDOM.max(soon),
        }
    }

    /// Whether no call is in a queue.
    pub(crate) fn is_empty(&self, place: &K) -> bool {
        !self.0.queues.lock().by_place.contains_key(place)
    }

    /// Takes a call out of a queue.
    pub(crate) fn leave(&self, place: &K, id: &str) {
        let mut queues = self.0.queues.lock();
        let Some(queue) = queues.by_place.get_mut(place) else {
            return;
        };
        queue.retain(|call| call.id != id);
        if queue.is_empty() {
            queues.by_place.remove(place);
        }
    }

    /// Has the first call of a queue look, because there may be room.
    pub(crate) fn wake_first(&self, place: &K) {
        let queues = self.0.queues.lock();
        let first = queues.by_place.get(place).and_then(VecDeque::front);
        let Some(wake) = first.map(|call| call.wake.clone()) else {
            return;
        };
        drop(queues);
        let waking = async move {
            wake.now().await;
        };
        drop(self.0.tasks.spawn_on(waking, &self.0.runtime));
    }

    /// Takes a call out of a queue that has been decided about. With it goes what it holds, until it is recorded.
    pub(crate) fn decided<H: Send>(&self, place: &K, id: &str, held: Option<H>) -> Decided<K, H> {
        self.leave(place, id);
        Decided {
            held,
            waiting: self.clone(),
            place: place.clone(),
        }
    }

    #[cfg(test)]
    fn n_queues(&self) -> usize {
        self.0.queues.lock().by_place.len()
    }
}

/// A call that has been decided about. When it is dropped, because what became of it is recorded, the next one looks.
#[derive(Debug)]
pub(crate) struct Decided<K: Clone + Eq + Hash, H> {
    held: Option<H>,
    waiting: Waiting<K>,
    place: K,
}

impl<K: Clone + Eq + Hash, H> Drop for Decided<K, H> {
    fn drop(&mut self) {
        drop(self.held.take());
        self.waiting.wake_first(&self.place);
    }
}

impl<K> Clone for Waiting<K> {
    fn clone(&self) -> Self {
        Self(Arc::clone(&self.0))
    }
}

impl<K> fmt::Debug for Waiting<K> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Waiting").finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use tokio::sync::mpsc;

    use super::*;

    const SOON: Duration = Duration::from_millis(500);
    const NOW: Timestamp = Timestamp::from_millis(1_800_000_000_000);

    fn waiting() -> Waiting<u32> {
        Waiting::new(TaskTracker::new(), Handle::current())
    }

    /// A wake that says which call it woke.
    fn wake(id: &'static str, woken: &mpsc::UnboundedSender<&'static str>) -> Wake {
        let woken = woken.clone();
        Wake::new(move || {
            let woken = woken.clone();
            Box::pin(async move { woken.send(id).is_ok() })
        })
    }

    #[tokio::test]
    async fn only_the_first_call_looks_often_and_is_woken() {
        let waiting = waiting();
        let (tell, mut woken) = mpsc::unbounded_channel();
        let join = |id, now| waiting.join(&1, (id, &wake(id, &tell)), SOON, now);
        assert_eq!(join("a", NOW), SOON);
        assert_eq!(join("b", NOW), SELDOM);
        assert_eq!(join("a", NOW), SOON, "it keeps its place");
        waiting.wake_first(&2);
        waiting.wake_first(&1);
        assert_eq!(woken.recv().await, Some("a"));
        waiting.leave(&1, "a");
        waiting.wake_first(&1);
        assert_eq!(woken.recv().await, Some("b"));
        assert_eq!(join("b", NOW), SOON);
        waiting.leave(&1, "b");
        assert_eq!(waiting.n_queues(), 0);
        assert!(woken.try_recv().is_err());
    }

    #[tokio::test]
    async fn calls_that_are_gone_keep_nobody_waiting_and_no_memory() {
        let waiting = waiting();
        let later = NOW.plus_millis(GONE_MS + 1);
        let none = Wake::none();
        waiting.join(&0, ("cancelled", &none), SOON, NOW);
        assert_eq!(waiting.join(&0, ("next", &none), SOON, NOW), SELDOM);
        assert_eq!(waiting.join(&0, ("next", &none), SOON, later), SOON);
        for place in 1..1_000 {
            waiting.join(&place, ("cancelled", &none), SOON, NOW);
        }
        for place in 1_000..3_000 {
            waiting.join(&place, ("next", &none), SOON, later);
            waiting.leave(&place, "next");
        }
        assert!(waiting.n_queues() <= 1_000);
        waiting.join(&3_000, ("next", &none), SOON, later);
        for place in 4_000..5_200 {
            waiting.join(&place, ("next", &none), SOON, later.plus_millis(2 * GONE_MS));
        }
        assert!(waiting.n_queues() <= 1_201, "{}", waiting.n_queues());
    }

    #[tokio::test]
    async fn queue_has_a_bound() {
        let waiting = waiting();
        for n in 0..=MOST_CALLS {
            let id = n.to_string();
            waiting.join(&0, (&id, &Wake::none()), SOON, NOW);
        }
        let length = waiting.0.queues.lock().by_place[&0].len();
        assert_eq!(length, MOST_CALLS);
    }
}
