//! Follows the streams of tasks, so that a parked call is looked at as soon as something changes.
//!
//! What a stream says is not believed: it wakes the call, and the agent is asked. The number of streams is
//! bounded, for the host and for each tenant; a call that is not followed is looked at when it is due.

use std::{collections::HashSet, sync::Arc, time::Duration};

use futures_util::{FutureExt as _, StreamExt as _};
use parking_lot::Mutex;
use tokio::{
    task::JoinSet,
    time::{Instant, sleep_until, timeout},
};
use wopr_core::TenantId;
use wopr_engine::Wake;
use wopr_wire::a2a::model::StreamResponse;

use super::room::holder;
use crate::{a2a::Items, shares::Shares};

/// The most streams of one host. A tenant gets half of those that are left.
const MAX_FOLLOWED: usize = 256;
/// Shortest time between two looks at a task that a stream causes.
const PACE: Duration = Duration::from_millis(250);
/// How long a stream may be without an event before it is left.
const SILENCE: Duration = Duration::from_secs(600);

/// The streams that this host follows. Dropping it ends them.
#[derive(Debug)]
pub(super) struct Followers {
    slots: Arc<Shares<u64>>,
    /// The calls that are followed, by their keys.
    calls: Arc<Mutex<HashSet<String>>>,
    tasks: Mutex<JoinSet<()>>,
}

impl Default for Followers {
    fn default() -> Self {
        Self {
            slots: Arc::new(Shares::new(MAX_FOLLOWED, 1)),
            calls: Arc::default(),
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

impl Followers {
    pub(super) fn is_followed(&self, key: &str) -> bool {
        self.calls.lock().contains(key)
    }

    /// Follows the stream of a call, unless it is followed or there are too many.
    pub(super) fn follow(&self, tenant: &TenantId, key: &str, items: Items, wake: Wake) {
        let Some(slot) = self.slots.take(holder(tenant), 1) else {
            return;
        };
        if !self.calls.lock().insert(key.to_owned()) {
            return;
        }
        let claim = Claim {
            calls: Arc::clone(&self.calls),
            key: key.to_owned(),
        };
        let mut tasks = self.tasks.lock();
        while tasks.try_join_next().is_some() {}
        tasks.spawn(async move {
            watch(items, &wake).await;
            drop((claim, slot));
        });
    }
}

/// Wakes the call with each change until the task rests, the stream ends, or nobody waits for the call.
async fn watch(mut items: Items, wake: &Wake) {
    let mut next_look = Instant::now() + PACE;
    let mut is_first = true;
    loop {
        let Ok(Some(Ok((_, item)))) = timeout(SILENCE, items.next()).await else {
            return;
        };
        let mut rests = is_rest(&item);
        // A stream begins with the task as it is, which is known.
        if std::mem::take(&mut is_first) && !rests && matches!(item, StreamResponse::Task(_)) {
            continue;
        }
        if !rests {
            sleep_until(next_look).await;
            // One look sees all that has come.
            while let Some(Some(Ok((_, item)))) = items.next().now_or_never() {
                rests = rests || is_rest(&item);
            }
        }
        next_look = Instant::now() + PACE;
        if !wake.now().await || rests {
            return;
        }
    }
}

/// Whether the task has ended or asks something.
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
    use crate::a2a::Error;

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
        watch(items(&[TaskState::Working; 50]), &wake).await;
        assert_eq!(n.load(Ordering::Relaxed), 1);
    }

    #[tokio::test(start_paused = true)]
    async fn a_task_that_rests_is_looked_at_and_left() {
        let (wake, n) = counted(true);
        let then = items(&[TaskState::Completed]).chain(stream::pending());
        watch(Box::pin(then), &wake).await;
        assert_eq!(n.load(Ordering::Relaxed), 1);
    }

    #[tokio::test(start_paused = true)]
    async fn a_call_that_is_over_and_a_silent_stream_are_left() {
        let (wake, n) = counted(false);
        let then = items(&[TaskState::Working]).chain(stream::pending());
        watch(Box::pin(then), &wake).await;
        assert_eq!(n.load(Ordering::Relaxed), 1);
        let (wake, n) = counted(true);
        watch(Box::pin(stream::pending()), &wake).await;
        assert_eq!(n.load(Ordering::Relaxed), 0);
    }

    #[tokio::test(start_paused = true)]
    async fn streams_are_bounded_for_the_host_and_a_tenant() {
        let followers = Followers::default();
        let follow = |tenant: &str, n: usize| {
            let tenant = TenantId::parse(tenant).unwrap();
            let key = format!("{}-{n}", tenant.as_str());
            followers.follow(&tenant, &key, Box::pin(stream::pending()), Wake::none());
            followers.is_followed(&key)
        };
        let first = (0..1_000).filter(|n| follow("a", *n)).count();
        let second = (0..1_000).filter(|n| follow("b", *n)).count();
        assert!((100..=MAX_FOLLOWED / 2).contains(&first), "{first}");
        assert!(second > 0 && first + second <= MAX_FOLLOWED, "{second}");
    }
}
