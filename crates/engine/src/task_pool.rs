//! Concurrent work of a loop on runs: bounded, and a slow run does not delay the others.
//!
//! Most tasks take milliseconds. But if another process was suspended in the middle of an append, a task on
//! that run waits for the database as long as the database allows. A loop that joined all tasks of a round
//! would do nothing else meanwhile.

use std::{
    collections::{HashMap, HashSet},
    hash::Hash,
    time::Duration,
};

use tokio::{
    task::{Id, JoinSet},
    time::{Instant, timeout_at},
};

/// How long a loop waits for a round: longer than uncontended work takes, and short enough that other work
/// can wait for it.
const ROUND: Duration = Duration::from_millis(50);

/// Running tasks, at most one per key.
#[derive(Debug)]
pub(crate) struct TaskPool<K, T> {
    most: usize,
    tasks: JoinSet<T>,
    about: HashMap<Id, K>,
    in_hand: HashSet<K>,
}

impl<K: Clone + Eq + Hash, T: Send + 'static> TaskPool<K, T> {
    pub(crate) fn new(most: usize) -> Self {
        Self {
            most,
            tasks: JoinSet::new(),
            about: HashMap::new(),
            in_hand: HashSet::new(),
        }
    }

    /// How many more tasks may begin.
    pub(crate) fn free(&self) -> usize {
        self.most.saturating_sub(self.tasks.len())
    }

    pub(crate) fn are_empty(&self) -> bool {
        self.tasks.is_empty()
    }

    /// Begins a task. Returns `false` if one with this key is running: it may have read the store already, so
    /// the caller has to begin again after a round.
    pub(crate) fn begin(&mut self, about: K, work: impl Future<Output = T> + Send + 'static) -> bool {
        let is_new = self.in_hand.insert(about.clone());
        if is_new {
            let task = self.tasks.spawn(work);
            self.about.insert(task.id(), about);
        }
        is_new
    }

    /// Waits until all tasks have ended, or the round's time is over and more tasks may begin. Returns the
    /// outcomes; `None` for a task that panicked.
    pub(crate) async fn round(&mut self) -> Vec<Option<T>> {
        let until = Instant::now() + ROUND;
        let mut ended = Vec::new();
        while !self.tasks.is_empty() {
            let has_room = self.tasks.len() < self.most;
            let next = self.tasks.join_next_with_id();
            let next = if has_room {
                match timeout_at(until, next).await {
                    Ok(next) => next,
                    Err(_) => break,
                }
            } else {
                next.await
            };
            let (id, outcome) = match next {
                Some(Ok((id, outcome))) => (id, Some(outcome)),
                Some(Err(error)) => (error.id(), None),
                None => break,
            };
            if let Some(about) = self.about.remove(&id) {
                self.in_hand.remove(&about);
            }
            ended.push(outcome);
        }
        ended
    }

    /// Waits until all tasks have ended.
    pub(crate) async fn rest(mut self) {
        while self.tasks.join_next().await.is_some() {}
    }
}

#[cfg(test)]
mod tests {
    use tokio::sync::oneshot;

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn a_slow_task_does_not_delay_others() {
        let (finish, finished) = oneshot::channel::<&str>();
        let mut pool = TaskPool::new(3);
        assert!(pool.begin(1, async { finished.await.unwrap() }));
        assert!(pool.begin(2, async { "quick" }));
        let begun = Instant::now();
        assert_eq!(pool.round().await, [Some("quick")]);
        assert_eq!((begun.elapsed(), pool.free()), (ROUND, 2));
        assert!(pool.begin(3, async { "quick" }));
        assert_eq!(pool.round().await.len(), 1);
        assert!(!pool.begin(1, async { panic!("it is in hand") }));
        finish.send("long").unwrap();
        assert_eq!(pool.round().await, [Some("long")]);
        assert!(pool.are_empty() && pool.begin(1, async { "again" }));
    }

    #[tokio::test(start_paused = true)]
    async fn a_full_pool_waits_for_a_task_to_end() {
        let mut pool = TaskPool::new(1);
        // sleep: longer than a round, in virtual time
        assert!(pool.begin(1, tokio::time::sleep(ROUND * 10)));
        assert_eq!(pool.free(), 0);
        assert_eq!(pool.round().await.len(), 1);
        assert!(pool.begin(2, async { panic!("as what nobody thought of") }));
        assert_eq!(pool.round().await, [None]);
        pool.rest().await;
    }
}
