//! Calls of workers that wait for activities, and when their queues are looked at.
//!
//! ```text
//!   call ----> waits in its queue <------ none -----.
//!                   |                               |
//!   offered, hinted, due --> one look of the queue -+--> rows are dealt to the calls, the oldest first
//! ```
//!
//! One look serves all calls that wait in a queue, in one write of the store. Nobody looks at a queue in which no call
//! waits. Between two looks a queue waits to be stirred: by an append of this process, by a hint from another one, or
//! by the time at which a lease in it ends. Tenants take turns, and so do the queues of a tenant.

use std::{
    collections::{BTreeMap, BTreeSet, VecDeque},
    ops::Bound,
    time::Duration,
};

use parking_lot::Mutex;
use tokio::{
    sync::{Notify, oneshot},
    time::Instant,
};
use wopr_core::TenantId;
use wopr_store::Cause;

use crate::LeasedActivity;

/// The most rows that one look leases.
const MOST_WANTED: usize = 1_024;
/// How long a look waits for further leases to end. A look with a limit counts the rows that are leased, so many ends
/// share one.
const AFTER_FREED: Duration = Duration::from_millis(20);

/// A worker queue of a tenant.
pub(crate) type Place = (TenantId, String);

/// What a call gets: activities, or none when its time is over.
pub(crate) type Answer = Result<Vec<LeasedActivity>, Cause>;

#[derive(Debug, Default)]
pub(crate) struct WorkerQueues {
    state: Mutex<State>,
    /// Notified when there may be a queue to look at.
    pub(crate) stirred: Notify,
}

#[derive(Debug, Default)]
struct State {
    /// Queues in which calls wait.
    queues: BTreeMap<Place, Waiting>,
    n_waiting: BTreeMap<TenantId, usize>,
    /// Queues to look at, each once.
    due: BTreeMap<TenantId, VecDeque<String>>,
    served_last: Option<TenantId>,
    times: BTreeSet<(Instant, Place)>,
    /// Tenants whose runs another process has changed.
    hinted: BTreeSet<TenantId>,
    n_calls: u64,
}

#[derive(Debug, Default)]
struct Waiting {
    calls: VecDeque<Call>,
    is_due: bool,
    is_looked_at: bool,
    look_at: Option<Instant>,
    /// A limit on leases kept rows back.
    is_held_back: bool,
    /// When leases ended during the look that is under way, which may have counted before.
    freed_at: Option<Instant>,
}

#[derive(Debug)]
struct Call {
    number: u64,
    max: usize,
    /// A look that found nothing for it has begun after it came.
    has_looked: bool,
    /// It is answered after the next look, whatever that finds.
    is_last_look: bool,
    answer: oneshot::Sender<Answer>,
}

/// A look at a queue that has begun.
#[derive(Debug)]
pub(crate) struct Look {
    pub(crate) place: Place,
    /// How many activities the calls want.
    pub(crate) wanted: usize,
    /// The newest call that the look serves.
    newest: u64,
}

/// When to look at a queue again in which calls still wait.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Next {
    AtOnce,
    At(Instant),
    WhenStirred,
}

/// The tenant has as many calls waiting as it may.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Full;

impl WorkerQueues {
    /// Adds a call, and has its queue looked at.
    pub(crate) fn call(
        &self,
        place: &Place,
        max: usize,
        is_last_look: bool,
        most: usize,
    ) -> Result<(u64, oneshot::Receiver<Answer>), Full> {
        let (answer, receiver) = oneshot::channel();
        let mut state = self.state.lock();
        let n_waiting = state.n_waiting.entry(place.0.clone()).or_default();
        if *n_waiting >= most {
            return Err(Full);
        }
        *n_waiting += 1;
        state.n_calls += 1;
        let number = state.n_calls;
        let waiting = state.queues.entry(place.clone()).or_default();
        waiting.calls.push_back(Call {
            number,
            max,
            has_looked: false,
            is_last_look,
            answer,
        });
        let is_stirred = state.stir(place);
        drop(state);
        self.notify_if(is_stirred);
        Ok((number, receiver))
    }

    /// Removes a call that its worker has given up.
    pub(crate) fn leave(&self, place: &Place, number: u64) {
        self.state.lock().leave(place, number);
    }

    /// Ends the wait of a call. Returns `true` if it is removed; otherwise an answer comes without further waiting.
    pub(crate) fn is_over(&self, place: &Place, number: u64) -> bool {
        let mut state = self.state.lock();
        let waiting = state.queues.get_mut(place);
        let call = waiting.and_then(|waiting| waiting.calls.iter_mut().find(|call| call.number == number));
        match call {
            Some(call) if call.has_looked => {
                state.leave(place, number);
                true
            }
            Some(call) => {
                call.is_last_look = true;
                false
            }
            None => false,
        }
    }

    /// An append has put an activity into a queue.
    pub(crate) fn offered(&self, place: &Place) {
        let is_stirred = self.state.lock().stir(place);
        self.notify_if(is_stirred);
    }

    /// Leases of a tenant have ended, which may make room for others.
    pub(crate) fn freed(&self, tenant: &TenantId, now: Instant) {
        let is_changed = self.state.lock().freed(tenant, now);
        self.notify_if(is_changed);
    }

    /// Another process has changed a run of the tenant.
    pub(crate) fn hint(&self, tenant: &TenantId) {
        let mut state = self.state.lock();
        if state.n_waiting.contains_key(tenant) {
            state.hinted.insert(tenant.clone());
        }
    }

    /// Has the queues of hinted tenants looked at.
    pub(crate) fn stir_hinted(&self) {
        let mut state = self.state.lock();
        let mut is_stirred = false;
        for tenant in std::mem::take(&mut state.hinted) {
            is_stirred |= state.stir_tenant(&tenant);
        }
        drop(state);
        self.notify_if(is_stirred);
    }

    /// Has the queues of a tenant looked at in which calls wait.
    pub(crate) fn stir_tenant(&self, tenant: &TenantId) {
        let is_stirred = self.state.lock().stir_tenant(tenant);
        self.notify_if(is_stirred);
    }

    /// Has every queue looked at in which calls wait.
    pub(crate) fn stir_all(&self) {
        let mut state = self.state.lock();
        let places: Vec<Place> = state.queues.keys().cloned().collect();
        let mut is_stirred = false;
        for place in places {
            is_stirred |= state.stir(&place);
        }
        drop(state);
        self.notify_if(is_stirred);
    }

    fn notify_if(&self, is_stirred: bool) {
        if is_stirred {
            self.stirred.notify_one();
        }
    }

    /// How many calls wait, of all tenants.
    pub(crate) fn n_waiting(&self) -> usize {
        self.state.lock().n_waiting.values().sum()
    }

    /// Begins the next look, if a queue is due.
    pub(crate) fn next_look(&self, now: Instant) -> Option<Look> {
        let mut state = self.state.lock();
        while state.times.first().is_some_and(|(at, _)| *at <= now)
            && let Some((_, place)) = state.times.pop_first()
        {
            state.stir(&place);
        }
        while let Some(place) = state.next_due() {
            let Some(waiting) = state.queues.get_mut(&place) else {
                continue;
            };
            waiting.is_due = false;
            waiting.is_looked_at = true;
            waiting.is_held_back = false;
            waiting.freed_at = None;
            let wanted: usize = waiting.calls.iter().map(|call| call.max).sum();
            let newest = waiting.calls.back().map_or(0, |call| call.number);
            return Some(Look {
                place,
                wanted: wanted.min(MOST_WANTED),
                newest,
            });
        }
        None
    }

    /// When the next queue comes due by time.
    pub(crate) fn next_time(&self) -> Option<Instant> {
        self.state.lock().times.first().map(|(at, _)| *at)
    }

    /// Deals what a look found to the calls that wait, and returns what nobody wants any more.
    pub(crate) fn conclude(
        &self,
        look: &Look,
        found: Answer,
        next: Next,
        is_held_back: bool,
    ) -> Vec<LeasedActivity> {
        let mut state = self.state.lock();
        let Some(waiting) = state.queues.get_mut(&look.place) else {
            return found.unwrap_or_default();
        };
        waiting.is_looked_at = false;
        waiting.is_held_back = is_held_back;
        let next = match waiting.freed_at.take() {
            Some(at) if is_held_back => Next::At(at + AFTER_FREED),
            Some(_) | None => next,
        };
        // A look that found only rows for no worker is repeated at once, and no call has been looked for.
        let is_repeated = next == Next::AtOnce && found.as_ref().is_ok_and(Vec::is_empty);
        let (mut rows, failure) = match found {
            Ok(rows) => (VecDeque::from(rows), None),
            Err(cause) => (VecDeque::new(), Some(cause)),
        };
        let mut n_answered = 0;
        while !rows.is_empty()
            && let Some(call) = waiting.calls.pop_front()
        {
            n_answered += 1;
            let dealt: Vec<_> = rows.drain(..call.max.min(rows.len())).collect();
            if let Err(Ok(returned)) = call.answer.send(Ok(dealt)) {
                // Its worker is gone.
                for row in returned.into_iter().rev() {
                    rows.push_front(row);
                }
            }
        }
        for call in &mut waiting.calls {
            call.has_looked |= !is_repeated && call.number <= look.newest;
        }
        let mut left = VecDeque::with_capacity(waiting.calls.len());
        for call in waiting.calls.drain(..) {
            if !(call.is_last_look && call.has_looked) {
                left.push_back(call);
                continue;
            }
            n_answered += 1;
            let answer = failure.clone().map_or_else(|| Ok(Vec::new()), Err);
            // Its worker may be gone, which loses nothing.
            drop(call.answer.send(answer));
        }
        waiting.calls = left;
        let is_due = std::mem::take(&mut waiting.is_due);
        let is_empty = waiting.calls.is_empty();
        state.answered(&look.place.0, n_answered);
        let is_changed = if is_empty {
            state.forget(&look.place);
            false
        } else if is_due || next == Next::AtOnce {
            state.stir(&look.place)
        } else if let Next::At(at) = next {
            state.look_at(&look.place, at);
            true
        } else {
            false
        };
        drop(state);
        self.notify_if(is_changed);
        rows.into()
    }
}

impl State {
    /// Makes a queue due if calls wait in it. Returns whether a look can begin that could not before: during a look,
    /// the next one begins when that ends.
    fn stir(&mut self, place: &Place) -> bool {
        let Some(waiting) = self.queues.get_mut(place) else {
            return false;
        };
        if let Some(at) = waiting.look_at.take() {
            self.times.remove(&(at, place.clone()));
        }
        if std::mem::replace(&mut waiting.is_due, true) || waiting.is_looked_at {
            return false;
        }
        let (tenant, queue) = place.clone();
        self.due.entry(tenant).or_default().push_back(queue);
        true
    }

    fn stir_tenant(&mut self, tenant: &TenantId) -> bool {
        let mut is_stirred = false;
        for place in self.places(tenant, |_| true) {
            is_stirred |= self.stir(&place);
        }
        is_stirred
    }

    /// Schedules looks at the queues that a limit holds back. Returns whether one comes due earlier than before.
    fn freed(&mut self, tenant: &TenantId, now: Instant) -> bool {
        let mut is_changed = false;
        for place in self.places(tenant, |waiting| waiting.is_looked_at || waiting.is_held_back) {
            let Some(waiting) = self.queues.get_mut(&place) else {
                continue;
            };
            if waiting.is_looked_at {
                waiting.freed_at.get_or_insert(now);
            } else if waiting.look_at.is_some_and(|at| at > now + AFTER_FREED) {
                self.look_at(&place, now + AFTER_FREED);
                is_changed = true;
            }
        }
        is_changed
    }

    /// The queues of a tenant in which calls wait, of those that are wanted.
    fn places(&self, tenant: &TenantId, is_wanted: impl Fn(&Waiting) -> bool) -> Vec<Place> {
        let queues = self.queues.range((tenant.clone(), String::new())..);
        queues
            .take_while(|(place, _)| place.0 == *tenant)
            .filter(|(_, waiting)| is_wanted(waiting))
            .map(|(place, _)| place.clone())
            .collect()
    }

    fn look_at(&mut self, place: &Place, at: Instant) {
        if let Some(waiting) = self.queues.get_mut(place) {
            if let Some(before) = waiting.look_at.replace(at) {
                self.times.remove(&(before, place.clone()));
            }
            self.times.insert((at, place.clone()));
        }
    }

    /// The next queue in turn of the next tenant in turn.
    fn next_due(&mut self) -> Option<Place> {
        let after = self.served_last.as_ref();
        let behind = after.and_then(|last| {
            self.due
                .range::<TenantId, _>((Bound::Excluded(last), Bound::Unbounded))
                .next()
        });
        let tenant = behind.or_else(|| self.due.first_key_value())?.0.clone();
        let queues = self.due.get_mut(&tenant)?;
        let queue = queues.pop_front();
        if queues.is_empty() {
            self.due.remove(&tenant);
        }
        self.served_last = Some(tenant.clone());
        Some((tenant, queue?))
    }

    fn leave(&mut self, place: &Place, number: u64) {
        let Some(waiting) = self.queues.get_mut(place) else {
            return;
        };
        let before = waiting.calls.len();
        waiting.calls.retain(|call| call.number != number);
        let n_left = before - waiting.calls.len();
        let is_empty = waiting.calls.is_empty() && !waiting.is_looked_at;
        self.answered(&place.0, n_left);
        if is_empty {
            self.forget(place);
        }
    }

    /// Counts calls that wait no more.
    fn answered(&mut self, tenant: &TenantId, n: usize) {
        if let Some(n_waiting) = self.n_waiting.get_mut(tenant) {
            *n_waiting = n_waiting.saturating_sub(n);
            if *n_waiting == 0 {
                self.n_waiting.remove(tenant);
            }
        }
    }

    fn forget(&mut self, place: &Place) {
        if let Some(waiting) = self.queues.remove(place) {
            if let Some(at) = waiting.look_at {
                self.times.remove(&(at, place.clone()));
            }
            if waiting.is_due && !waiting.is_looked_at {
                let (tenant, queue) = place;
                if let Some(queues) = self.due.get_mut(tenant) {
                    queues.retain(|due| due != queue);
                    if queues.is_empty() {
                        self.due.remove(tenant);
                    }
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use wopr_core::{Activity, NodeId, RunId, RunKey, StepId, Timestamp};
    use wopr_store::Fence;

    use super::*;

    fn place(tenant: &str, queue: &str) -> Place {
        (TenantId::parse(tenant).expect("valid"), queue.to_owned())
    }

    fn rows(n: usize) -> Vec<LeasedActivity> {
        let row = |n: usize| LeasedActivity {
            run: RunKey::new(
                TenantId::parse("acme").expect("valid"),
                RunId::parse(&format!("run_{n:032}")).expect("valid"),
            ),
            step: StepId {
                node: NodeId::parse("work").expect("valid"),
                ordinal: 0,
            },
            attempt: 0,
            fence: Fence(1),
            activity: Activity {
                queue: "letters".to_owned(),
                input: serde_json::Value::Null,
                timeout_ms: None,
                heartbeat_ms: None,
            },
            idempotency_key: String::new(),
            trace: None,
            since: Timestamp::from_millis(0),
            lease: Duration::from_secs(60),
        };
        (0..n).map(row).collect()
    }

    #[tokio::test]
    async fn one_look_serves_the_calls_of_a_queue_in_order() {
        let queues = WorkerQueues::default();
        let letters = place("acme", "letters");
        let call = |max| queues.call(&letters, max, false, 9).expect("room").1;
        let (first, second, mut third) = (call(2), call(2), call(2));
        let look = queues.next_look(Instant::now()).expect("a look");
        assert_eq!(
            (look.wanted, queues.next_look(Instant::now()).is_none()),
            (6, true)
        );
        let left = queues.conclude(&look, Ok(rows(3)), Next::WhenStirred, false);
        assert!(left.is_empty());
        let n = async |call: oneshot::Receiver<Answer>| call.await.expect("an answer").expect("rows").len();
        assert_eq!((n(first).await, n(second).await, queues.n_waiting()), (2, 1, 1));
        assert!(third.try_recv().is_err(), "it waits");
        assert!(queues.next_look(Instant::now()).is_none());
        queues.offered(&letters);
        assert_eq!(queues.next_look(Instant::now()).expect("a look").wanted, 2);
    }

    #[tokio::test]
    async fn rows_of_a_call_that_is_gone_go_to_the_next_one_or_back() {
        let queues = WorkerQueues::default();
        let letters = place("acme", "letters");
        drop(queues.call(&letters, 5, false, 9).expect("room"));
        let (_, next) = queues.call(&letters, 1, false, 9).expect("room");
        let look = queues.next_look(Instant::now()).expect("a look");
        let left = queues.conclude(&look, Ok(rows(3)), Next::AtOnce, false);
        assert_eq!(next.await.expect("an answer").expect("rows").len(), 1);
        assert_eq!((left.len(), queues.n_waiting()), (2, 0));
    }

    #[tokio::test]
    async fn a_call_that_does_not_wait_is_answered_by_the_first_look_after_it() {
        let queues = WorkerQueues::default();
        let letters = place("acme", "letters");
        let (_, _early) = queues.call(&letters, 1, false, 9).expect("room");
        let look = queues.next_look(Instant::now()).expect("a look");
        let (number, mut late) = queues.call(&letters, 1, true, 9).expect("room");
        queues.conclude(&look, Ok(Vec::new()), Next::WhenStirred, false);
        assert!(late.try_recv().is_err() && !queues.is_over(&letters, number));
        let look = queues
            .next_look(Instant::now())
            .expect("the look that it asked for");
        queues.conclude(&look, Ok(Vec::new()), Next::WhenStirred, false);
        assert!(late.await.expect("an answer").expect("none").is_empty());
        assert_eq!(queues.n_waiting(), 1);
    }

    #[tokio::test]
    async fn a_look_that_found_only_rows_for_no_worker_answers_no_call() {
        let queues = WorkerQueues::default();
        let letters = place("acme", "letters");
        let (_, mut call) = queues.call(&letters, 1, true, 9).expect("room");
        let look = queues.next_look(Instant::now()).expect("a look");
        queues.conclude(&look, Ok(Vec::new()), Next::AtOnce, false);
        assert!(call.try_recv().is_err(), "it waits for the next look");
        let look = queues.next_look(Instant::now()).expect("a look");
        queues.conclude(&look, Ok(rows(1)), Next::WhenStirred, false);
        assert_eq!(call.await.expect("an answer").expect("rows").len(), 1);
    }

    #[tokio::test]
    async fn tenants_and_their_queues_take_turns() {
        let queues = WorkerQueues::default();
        let mut calls = Vec::new();
        for (tenant, queue) in [("a", "1"), ("a", "2"), ("a", "3"), ("b", "1"), ("c", "1")] {
            calls.push(queues.call(&place(tenant, queue), 1, false, 9).expect("room").1);
        }
        let mut seen = Vec::new();
        while let Some(look) = queues.next_look(Instant::now()) {
            seen.push(format!("{}{}", look.place.0, look.place.1));
        }
        assert_eq!(seen, ["a1", "b1", "c1", "a2", "a3"]);
    }

    #[tokio::test]
    async fn a_tenant_has_a_limited_number_of_calls_waiting() {
        let queues = WorkerQueues::default();
        let letters = place("acme", "letters");
        let (number, _first) = queues.call(&letters, 1, false, 1).expect("room");
        assert_eq!(queues.call(&letters, 1, false, 1).err(), Some(Full));
        assert!(queues.call(&place("other", "letters"), 1, false, 1).is_ok());
        queues.leave(&letters, number);
        assert!(queues.call(&letters, 1, false, 1).is_ok());
    }

    #[tokio::test]
    async fn a_queue_comes_due_by_time_and_is_forgotten_with_its_last_call() {
        let queues = WorkerQueues::default();
        let letters = place("acme", "letters");
        let (number, _call) = queues.call(&letters, 1, false, 9).expect("room");
        let now = Instant::now();
        let look = queues.next_look(now).expect("a look");
        let at = now + Duration::from_secs(9);
        queues.conclude(&look, Ok(Vec::new()), Next::At(at), false);
        assert_eq!(queues.next_time(), Some(at));
        assert!(queues.next_look(now).is_none());
        let look = queues.next_look(at).expect("a look");
        queues.conclude(&look, Ok(Vec::new()), Next::At(at), false);
        queues.leave(&letters, number);
        assert_eq!((queues.next_time(), queues.n_waiting()), (None, 0));
        assert!(queues.next_look(at).is_none());
    }

    #[tokio::test]
    async fn ends_of_leases_share_one_look_at_a_queue_that_a_limit_holds_back() {
        let queues = WorkerQueues::default();
        let (letters, now) = (place("acme", "letters"), Instant::now());
        let (_, _call) = queues.call(&letters, 1, false, 9).expect("room");
        let held_back = Next::At(now + Duration::from_millis(500));
        let look = queues.next_look(now).expect("a look");
        queues.conclude(&look, Ok(Vec::new()), held_back, true);
        let soon = now + AFTER_FREED;
        for n in 0..3 {
            queues.freed(&letters.0, now + Duration::from_millis(n));
        }
        queues.freed(&place("other", "letters").0, now);
        assert_eq!(queues.next_time(), Some(soon));
        assert!(queues.next_look(now).is_none());
        let look = queues.next_look(soon).expect("a look");
        // The look may have counted before this one ended.
        queues.freed(&letters.0, soon);
        queues.conclude(&look, Ok(Vec::new()), held_back, true);
        assert_eq!(queues.next_time(), Some(soon + AFTER_FREED));
    }

    #[tokio::test]
    async fn stirring_a_tenant_makes_its_waiting_queues_due_and_no_others() {
        let queues = WorkerQueues::default();
        let now = Instant::now();
        let mut calls = Vec::new();
        for (tenant, queue) in [("a", "1"), ("b", "1"), ("b", "2"), ("c", "1")] {
            calls.push(queues.call(&place(tenant, queue), 1, false, 9).expect("room").1);
        }
        while let Some(look) = queues.next_look(now) {
            queues.conclude(&look, Ok(Vec::new()), Next::WhenStirred, false);
        }
        queues.stir_tenant(&place("b", "").0);
        queues.offered(&place("d", "1"));
        let mut seen = Vec::new();
        while let Some(look) = queues.next_look(now) {
            seen.push(format!("{}{}", look.place.0, look.place.1));
        }
        assert_eq!(seen, ["b1", "b2"]);
    }
}
