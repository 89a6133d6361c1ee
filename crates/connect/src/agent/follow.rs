//! Follows the streams of tasks, so that a parked call is looked at as soon as something changes.
//!
//! What a stream says is not believed: it wakes the call, and the agent is asked. The end that a stream has brought
//! counts only if the agent then has no task, or none to ask for. The number of streams is bounded, for the host and for
//! each tenant; a call that is not followed is looked at when it is due.

use std::{
    collections::{HashMap, HashSet},
    sync::Arc,
    time::Duration,
};

use futures_util::{FutureExt as _, StreamExt as _};
use parking_lot::Mutex;
use tokio::{
    task::JoinSet,
    time::{Instant, sleep_until, timeout},
};
use wopr_core::TenantId;
use wopr_engine::Wake;
use wopr_wire::a2a::model::{StreamResponse, Task};

use super::{room::holder, stream::GoesOn};
use crate::shares::{Share, Shares};

/// The most streams of one host. A tenant gets half of those that are left.
const MAX_FOLLOWED: usize = 256;
/// Shortest time between two looks at a task that a stream causes.
const PACE: Duration = Duration::from_millis(250);
/// The most bytes that are kept of tasks whose streams are followed. A tenant gets half of those that are left.
const MAX_BYTES: usize = 32 << 20;
/// How long the end of a task is kept, and how long once it has been told.
const KEPT: Duration = Duration::from_secs(600);
const TOLD: Duration = Duration::from_secs(60);
/// How long an agent that gave no stream of a task is asked for no other.
const REFUSED: Duration = Duration::from_secs(60);
/// How long a stream may be without an event before it is left.
const SILENCE: Duration = Duration::from_secs(600);

/// The streams that this host follows. Dropping it ends them.
#[derive(Debug)]
pub(super) struct Followers {
    slots: Arc<Shares<u64>>,
    /// For what the streams bring.
    room: Arc<Shares<u64>>,
    /// The calls that are followed, by their keys.
    calls: Arc<Mutex<HashSet<String>>>,
    ends: Arc<Ends>,
    /// When agents that gave no stream of a task are asked for one again.
    refusing: Mutex<HashMap<String, Instant>>,
    tasks: Mutex<JoinSet<()>>,
}

impl Default for Followers {
    fn default() -> Self {
        Self {
            slots: Arc::new(Shares::new(MAX_FOLLOWED, 1)),
            room: Arc::new(Shares::new(MAX_BYTES, 1)),
            calls: Arc::default(),
            ends: Arc::default(),
            refusing: Mutex::default(),
            tasks: Mutex::default(),
        }
    }
}

/// Ends the claim on a call when its stream is left.
struct Claim {
    calls: Arc<Mutex<HashSet<String>>>,
    key: String,
}

impl Drop for Claim {
    fn drop(&mut self) {
        self.calls.lock().remove(&self.key);
    }
}

/// The place of a call among those that are followed, until it is dropped.
pub(super) struct Place {
    claim: Claim,
    _slot: Share<u64>,
    room: Share<u64>,
}

impl Followers {
    pub(super) fn is_followed(&self, key: &str) -> bool {
        self.calls.lock().contains(key)
    }

    /// Whether an agent may be asked for the stream of a task. One that gave none is left alone for a while, so that looks
    /// at its other tasks do not wait for it.
    pub(super) fn may_ask(&self, peer: &str) -> bool {
        let mut refusing = self.refusing.lock();
        refusing.retain(|_, until| *until > Instant::now());
        !refusing.contains_key(peer)
    }

    /// Notes that an agent gave no stream of a task.
    pub(super) fn note_refusal(&self, peer: &str) {
        self.refusing
            .lock()
            .insert(peer.to_owned(), Instant::now() + REFUSED);
    }

    /// Takes a place for a call, unless it is followed or there are too many.
    pub(super) fn place(&self, tenant: &TenantId, key: &str) -> Option<Place> {
        let slot = self.slots.take(holder(tenant), 1)?;
        if !self.calls.lock().insert(key.to_owned()) {
            return None;
        }
        let claim = Claim {
            calls: Arc::clone(&self.calls),
            key: key.to_owned(),
        };
        Some(Place {
            claim,
            _slot: slot,
            room: self.room.share(holder(tenant)),
        })
    }

    /// Follows the stream of a call.
    pub(super) fn follow(&self, place: Place, stream: GoesOn, wake: Wake) {
        let ends = Arc::clone(&self.ends);
        let mut tasks = self.tasks.lock();
        while tasks.try_join_next().is_some() {}
        tasks.spawn(async move { watch(stream, place, &ends, &wake).await });
    }

    /// The task of a call as its stream has ended it. It stays for a moment, until the end of the call is recorded.
    pub(super) fn end_of(&self, key: &str, task: &str) -> Option<Task> {
        self.ends.get(key).filter(|end| end.id == task)
    }

    /// Forgets how the stream of a call has ended: the agent has told it.
    pub(super) fn forget(&self, key: &str) {
        self.ends.0.lock().remove(key);
    }
}

/// The ended tasks of streams, by the keys of their calls, for agents that cannot be asked for them.
#[derive(Debug, Default)]
struct Ends(Mutex<HashMap<String, End>>);

#[derive(Debug)]
struct End {
    task: Task,
    until: Instant,
    _room: Share<u64>,
}

impl Ends {
    fn keep(&self, key: String, task: Task, room: Share<u64>) {
        let now = Instant::now();
        let mut ends = self.0.lock();
        ends.retain(|_, end| end.until > now);
        let end = End {
            task,
            until: now + KEPT,
            _room: room,
        };
        ends.insert(key, end);
    }

    fn get(&self, key: &str) -> Option<Task> {
        let mut ends = self.0.lock();
        let end = ends.get_mut(key)?;
        end.until = end.until.min(Instant::now() + TOLD);
        Some(end.task.clone())
    }
}

/// Wakes the call with each change until the task rests, the stream ends, or nobody waits for the call.
async fn watch(stream: GoesOn, place: Place, ends: &Ends, wake: &Wake) {
    let GoesOn { mut items, carried } = stream;
    let Place {
        claim,
        _slot,
        mut room,
    } = place;
    let mut carried = carried;
    let mut take = |item| {
        let rests = is_rest(&item);
        carried.take(item);
        carried.trim(|n_bytes| {
            room.shrink_to(n_bytes);
            room.grow(n_bytes - room.amount())
        });
        rests
    };
    let mut next_look = Instant::now() + PACE;
    let mut is_first = true;
    let has_ended = loop {
        let Ok(Some(Ok((_, item)))) = timeout(SILENCE, items.next()).await else {
            return;
        };
        // A stream begins with the task as it is, which is known.
        let is_known = std::mem::take(&mut is_first) && matches!(item, StreamResponse::Task(_));
        let mut rests = take(item);
        if is_known && !rests {
            continue;
        }
        if !rests {
            sleep_until(next_look).await;
            // One look sees all that has come.
            while !rests && let Some(Some(Ok((_, item)))) = items.next().now_or_never() {
                rests = take(item);
            }
        }
        next_look = Instant::now() + PACE;
        if rests {
            break carried.has_ended();
        }
        if !wake.now().await {
            return;
        }
    };
    let task = carried.task.filter(|_| has_ended);
    if let Some(task) = task {
        ends.keep(claim.key.clone(), task, room);
    }
    // It is no longer followed when it is looked at.
    let key = claim.key.clone();
    drop(claim);
    if !wake.now().await {
        ends.0.lock().remove(&key);
    }
}

/// Whether the item says that the agent has stopped working: the task has ended, or it waits for an answer.
fn is_rest(item: &StreamResponse) -> bool {
    let state = match item {
        StreamResponse::Message(_) => return true,
        StreamResponse::ArtifactUpdate(_) => return false,
        StreamResponse::Task(task) => task.status.state,
        StreamResponse::StatusUpdate(update) => update.status.state,
    };
    state.is_terminal() || state.is_interrupted()
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};

    use futures_util::stream;
    use wopr_wire::{
        a2a::model::{TaskState, TaskStatus, TaskStatusUpdateEvent},
        json::Object,
    };

    use super::*;
    use crate::{
        a2a::{Error, Items},
        agent::carried::Carried,
    };

    /// Watches a stream until it is left.
    async fn watched(items: Items, wake: &Wake) {
        let followers = Followers::default();
        let place = followers.place(&TenantId::parse("t").unwrap(), "k").unwrap();
        let carried = Carried::default();
        watch(GoesOn { items, carried }, place, &followers.ends, wake).await;
    }

    fn update(state: TaskState) -> StreamResponse {
        StreamResponse::StatusUpdate(TaskStatusUpdateEvent {
            task_id: "t".to_owned(),
            context_id: "c".to_owned(),
            status: TaskStatus {
                state,
                message: None,
                timestamp: None,
            },
            metadata: Object::new(),
            unreadable: Vec::new(),
        })
    }

    fn counted(is_waiting: bool) -> (Wake, Arc<AtomicUsize>) {
        let n = Arc::new(AtomicUsize::new(0));
        let counter = Arc::clone(&n);
        let wake = Wake::new(move || {
            counter.fetch_add(1, Ordering::Relaxed);
            Box::pin(async move { is_waiting })
        });
        (wake, n)
    }

    fn items(states: &[TaskState]) -> Items {
        let items: Vec<Result<_, Error>> = states.iter().map(|state| Ok((None, update(*state)))).collect();
        Box::pin(stream::iter(items))
    }

    #[tokio::test(start_paused = true)]
    async fn changes_that_come_together_cause_one_look() {
        let (wake, n) = counted(true);
        watched(items(&[TaskState::Working; 50]), &wake).await;
        assert_eq!(n.load(Ordering::Relaxed), 1);
    }

    #[tokio::test(start_paused = true)]
    async fn a_task_that_rests_is_looked_at_and_left() {
        let (wake, n) = counted(true);
        let then = items(&[TaskState::Completed]).chain(stream::pending());
        watched(Box::pin(then), &wake).await;
        assert_eq!(n.load(Ordering::Relaxed), 1);
    }

    #[tokio::test(start_paused = true)]
    async fn a_call_that_is_over_and_a_silent_stream_are_left() {
        let (wake, n) = counted(false);
        let then = items(&[TaskState::Working]).chain(stream::pending());
        watched(Box::pin(then), &wake).await;
        assert_eq!(n.load(Ordering::Relaxed), 1);
        let (wake, n) = counted(true);
        watched(Box::pin(stream::pending()), &wake).await;
        assert_eq!(n.load(Ordering::Relaxed), 0);
    }

    #[tokio::test(start_paused = true)]
    async fn streams_are_bounded_for_the_host_and_a_tenant() {
        let followers = Followers::default();
        let follow = |tenant: &str, n: usize| {
            let tenant = TenantId::parse(tenant).unwrap();
            let key = format!("{}-{n}", tenant.as_str());
            if let Some(place) = followers.place(&tenant, &key) {
                let items: Items = Box::pin(stream::pending());
                let carried = Carried::default();
                followers.follow(place, GoesOn { items, carried }, Wake::none());
            }
            followers.is_followed(&key)
        };
        let first = (0..1_000).filter(|n| follow("a", *n)).count();
        let second = (0..1_000).filter(|n| follow("b", *n)).count();
        assert!((100..=MAX_FOLLOWED / 2).contains(&first), "{first}");
        assert!(second > 0 && first + second <= MAX_FOLLOWED, "{second}");
    }
}
