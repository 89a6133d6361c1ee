//! Concurrent work of a loop on runs: bounded, and a slow run does not delay the others.
//!
//! Most of it takes milliseconds. But a run whose row another process holds, one that was stopped in the middle of an
//! append, takes as long as the database lets it, and a loop that waited for all of a round would work at nothing else
//! meanwhile.

use std::{
    collections::{HashMap, HashSet},
    hash::Hash,
    time::Duration,
};

use tokio::{
    task::{Id, JoinSet},
    time::{Instant, timeout_at},
};

/// How long a loop waits for a round: longer than work on runs that nobody holds takes, and no longer than others may
/// well wait.
const ROUND: Duration = Duration::from_millis(50);

/// What is under way, by what it is about.
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

    /// How much more may be begun.
    pub(crate) fn load_budget(&self) -> usize {
        self.most.saturating_sub(self.tasks.len())
    }

    /// Whether nothing is in hand.
    pub(crate) fn are_empty(&self) -> bool {
        self.tasks.is_empty()
    }

    /// Begins something; `false` if it is in hand, and may have looked at the store already: it has to be begun again
    /// after a round.
    pub(crate) fn begin(&mut self, about: K, work: impl Future<Output = T> + Send + 'static) -> bool {
        let is_new = self.in_hand.insert(about.clone());
        if is_new {
            let task = self.tasks.spawn(work);
            self.about.insert(task.id(), about);
        }
        is_new
    }

    /// Waits until all has ended that is in hand, or a round's time is over and there is room for more; what it came to,
    /// none of what broke off.
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

    /// Waits until nothing is in hand.
    pub(crate) async fn rest(mut self) {
        while self.tasks.join_next().await.is_some() {}
    }
}

#[cfg(test)]
mod tests {
    use tokio::sync::oneshot;

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn what_takes_long_is_in_nobodys_way() {
        let (finish, finished) = oneshot::channel::<&str>();
        let mut hands = TaskPool::new(3);
        assert!(hands.begin(1, async { finished.await.unwrap() }));
        assert!(hands.begin(2, async { "quick" }));
        let begun = Instant::now();
        assert_eq!(hands.round().await, [Some("quick")]);
        assert_eq!((begun.elapsed(), hands.load_budget()), (ROUND, 2));
        assert!(hands.begin(3, async { "quick" }));
        assert_eq!(hands.round().await.len(), 1);
        assert!(!hands.begin(1, async { panic!("it is in hand") }));
        finish.send("long").unwrap();
        assert_eq!(hands.round().await, [Some("long")]);
        assert!(hands.are_empty() && hands.begin(1, async { "again" }));
    }

    #[tokio::test(start_paused = true)]
    async fn full_hands_wait_for_room() {
        let mut hands = TaskPool::new(1);
        // sleep: longer than a round, in virtual time
        assert!(hands.begin(1, tokio::time::sleep(ROUND * 10)));
        assert_eq!(hands.load_budget(), 0);
        assert_eq!(hands.round().await.len(), 1);
        assert!(hands.begin(2, async { panic!("as what nobody thought of") }));
        assert_eq!(hands.round().await, [None]);
        hands.rest().await;
    }
}
