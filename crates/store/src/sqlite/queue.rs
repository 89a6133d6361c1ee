//! A bounded queue between callers and the threads that own connections.
//!
//! Callers never wait here: a full queue refuses at once, so that overload is reported instead of growing the
//! heap. Items accepted before the queue was closed are still handed out.

use std::{
    collections::VecDeque,
    time::{Duration, Instant},
};

use parking_lot::{Condvar, Mutex};

/// Weight in bytes of a write without a significant body.
pub(super) const SMALL: usize = 256;

/// Why a queue refused an item.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Refused {
    /// The queue is at its limit.
    Full,
    /// The store is closed, or its thread died.
    Closed,
}

/// A queue limited by the number and the weight of its items.
pub(super) struct Queue<T> {
    state: Mutex<State<T>>,
    ready: Condvar,
    bound: usize,
    bound_bytes: usize,
}

struct State<T> {
    items: VecDeque<(T, usize)>,
    bytes: usize,
    closed: bool,
    /// Number of items at which a waiting consumer wants to be woken.
    wanted: usize,
}

/// How gathering ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Gathered {
    /// There are enough items, or the timeout passed.
    Enough,
    /// No more items arrived.
    Dry,
}

impl<T> Queue<T> {
    pub(super) fn new(bound: usize, bound_bytes: usize) -> Self {
        Self {
            state: Mutex::new(State {
                items: VecDeque::new(),
                bytes: 0,
                closed: false,
                wanted: 1,
            }),
            ready: Condvar::new(),
            bound: bound.max(1),
            bound_bytes,
        }
    }

    /// Adds an item that keeps `bytes` bytes alive. An empty queue accepts an item of any weight.
    pub(super) fn push(&self, item: T, bytes: usize) -> Result<(), Refused> {
        let mut state = self.state.lock();
        if state.closed {
            return Err(Refused::Closed);
        }
        let too_heavy = !state.items.is_empty() && state.bytes.saturating_add(bytes) > self.bound_bytes;
        if state.items.len() >= self.bound || too_heavy {
            return Err(Refused::Full);
        }
        state.bytes = state.bytes.saturating_add(bytes);
        state.items.push_back((item, bytes));
        let is_wanted = state.items.len() >= state.wanted;
        drop(state);
        if is_wanted {
            self.ready.notify_one();
        }
        Ok(())
    }

    /// Waits for an item; `None` once the queue is closed and empty.
    pub(super) fn pop(&self) -> Option<T> {
        let mut state = self.state.lock();
        loop {
            if let Some((item, bytes)) = state.items.pop_front() {
                state.bytes -= bytes;
                return Some(item);
            }
            if state.closed {
                return None;
            }
            self.ready.wait(&mut state);
        }
    }

    /// Waits for an item, then takes what else is queued, at most `max` items and about `max_bytes` bytes.
    /// Returns `false` once the queue is closed and empty.
    pub(super) fn drain(&self, into: &mut Vec<T>, max: usize, max_bytes: usize) -> bool {
        let mut state = self.state.lock();
        while state.items.is_empty() {
            if state.closed {
                return false;
            }
            self.ready.wait(&mut state);
        }
        let mut taken = 0_usize;
        while into.len() < max && taken < max_bytes {
            let Some((item, bytes)) = state.items.pop_front() else {
                break;
            };
            state.bytes -= bytes;
            taken = taken.saturating_add(bytes);
            into.push(item);
        }
        true
    }

    /// Waits until there are `enough` items, for at most `timeout`, and only while at least one arrives in
    /// each `slice`.
    pub(super) fn gather(&self, enough: usize, slice: Duration, timeout: Duration) -> Gathered {
        let end = Instant::now() + timeout;
        let mut state = self.state.lock();
        state.wanted = enough;
        let mut gathered = Gathered::Enough;
        while state.items.len() < enough && !state.closed && Instant::now() < end {
            let n_before = state.items.len();
            self.ready.wait_for(&mut state, slice);
            if state.items.len() == n_before {
                gathered = Gathered::Dry;
                break;
            }
        }
        state.wanted = 1;
        gathered
    }

    pub(super) fn len(&self) -> usize {
        self.state.lock().items.len()
    }

    /// Stops accepting items; queued items are still handed out.
    pub(super) fn close(&self) {
        self.state.lock().closed = true;
        self.ready.notify_all();
    }

    /// Stops accepting items and drops queued ones.
    pub(super) fn abandon(&self) {
        let dropped = {
            let mut state = self.state.lock();
            state.closed = true;
            state.bytes = 0;
            std::mem::take(&mut state.items)
        };
        self.ready.notify_all();
        drop(dropped);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_full_queue_refuses_at_once() {
        let queue = Queue::new(2, usize::MAX);
        assert_eq!(queue.push(1, 0), Ok(()));
        assert_eq!(queue.push(2, 0), Ok(()));
        assert_eq!(queue.push(3, 0), Err(Refused::Full));
        assert_eq!(queue.pop(), Some(1));
        assert_eq!(queue.push(3, 0), Ok(()));
    }

    #[test]
    fn a_single_item_may_exceed_the_weight_limit() {
        let queue = Queue::new(10, 100);
        assert_eq!(queue.push("heavy", 500), Ok(()));
        assert_eq!(queue.push("light", 1), Err(Refused::Full));
        assert_eq!(queue.pop(), Some("heavy"));
        assert_eq!(queue.push("light", 1), Ok(()));
    }

    #[test]
    fn draining_stops_at_either_bound() {
        let queue = Queue::new(10, usize::MAX);
        for n in 0..6 {
            queue.push(n, 10).expect("room");
        }
        let mut group = Vec::new();
        assert!(queue.drain(&mut group, 2, usize::MAX));
        assert_eq!(group, [0, 1]);
        group.clear();
        assert!(queue.drain(&mut group, 9, 15));
        assert_eq!(group, [2, 3]);
    }

    #[test]
    fn gathering_ends_with_enough_items_or_a_pause() {
        let (slice, timeout) = (Duration::from_millis(1), Duration::from_secs(60));
        let queue = Queue::new(10, usize::MAX);
        queue.push(1, 0).expect("room");
        assert_eq!(queue.gather(4, slice, timeout), Gathered::Dry);
        assert_eq!(queue.gather(4, slice, Duration::ZERO), Gathered::Enough);
        std::thread::scope(|scope| {
            let gathering = scope.spawn(|| queue.gather(4, timeout, timeout));
            for n in 2..=4 {
                queue.push(n, 0).expect("room");
            }
            assert_eq!(gathering.join().expect("it ends"), Gathered::Enough);
        });
        queue.close();
        assert_eq!(queue.gather(9, timeout, timeout), Gathered::Enough);
        let mut group = Vec::new();
        assert!(queue.drain(&mut group, 9, usize::MAX));
        assert_eq!(group, [1, 2, 3, 4]);
    }

    #[test]
    fn a_closed_queue_hands_out_queued_items() {
        let queue = Queue::new(2, usize::MAX);
        queue.push(1, 0).expect("room");
        queue.close();
        assert_eq!(queue.push(2, 0), Err(Refused::Closed));
        assert_eq!(queue.pop(), Some(1));
        assert_eq!(queue.pop(), None);
    }

    #[test]
    fn an_abandoned_queue_drops_queued_items() {
        let queue = Queue::new(2, usize::MAX);
        queue.push(1, 0).expect("room");
        queue.abandon();
        assert_eq!(queue.pop(), None);
        assert!(!queue.drain(&mut Vec::new(), 1, 1));
    }
}
