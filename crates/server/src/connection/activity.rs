//! What is in flight on a connection that carries many requests, so that one which carries none for long is closed, and
//! one whose client takes nothing of its answers as well.

use std::{
    collections::HashMap,
    pin::Pin,
    sync::Arc,
    task::{Context, Poll},
    time::Duration,
};

use axum::body::{Body, Bytes, HttpBody};
use http_body::{Frame, SizeHint};
use parking_lot::Mutex;
use tokio::time::Instant;

/// The requests of a connection.
#[derive(Debug)]
pub(super) struct Activity(Mutex<State>);

#[derive(Debug)]
struct State {
    n_open: usize,
    /// When the last one began or ended.
    since: Instant,
    /// Answers whose client has not asked for more, by number: since when.
    unread: HashMap<u64, Instant>,
    n_answers: u64,
}

impl Default for Activity {
    fn default() -> Self {
        Self(Mutex::new(State {
            n_open: 0,
            since: Instant::now(),
            unread: HashMap::new(),
            n_answers: 0,
        }))
    }
}

/// A request in flight, until it is dropped.
#[derive(Debug)]
pub(super) struct Open(Arc<Activity>);

impl Activity {
    /// A request begins.
    pub(super) fn begin(self: &Arc<Self>) -> Open {
        let mut state = self.0.lock();
        state.n_open += 1;
        state.since = Instant::now();
        Open(Arc::clone(self))
    }

    /// Waits until nothing was in flight for a while.
    pub(super) async fn rests(self: Arc<Self>, patience: Duration) {
        loop {
            let until = {
                let state = self.0.lock();
                let now = Instant::now();
                let until = state.since + patience;
                match state.n_open {
                    0 if until <= now => return,
                    0 => until,
                    // Looked at again when it may have ended; there is no hurry.
                    _ => now + patience,
                }
            };
            tokio::time::sleep_until(until).await;
        }
    }
}

impl Activity {
    /// Claims that since then the client has taken nothing of an answer, or has had no request at all.
    pub(super) fn is_stale(&self, then: Instant) -> bool {
        let state = self.0.lock();
        state.unread.values().any(|since| *since <= then) || (state.n_open == 0 && state.since <= then)
    }
}

impl Drop for Open {
    fn drop(&mut self) {
        let mut state = self.0.0.lock();
        state.n_open -= 1;
        state.since = Instant::now();
    }
}

/// The body of an answer, in flight until it has been read or dropped.
#[derive(Debug)]
pub(super) struct Held {
    body: Body,
    open: Open,
    number: u64,
}

impl Held {
    pub(super) fn new(body: Body, open: Open) -> Self {
        let number = {
            let mut state = open.0.0.lock();
            state.n_answers += 1;
            let number = state.n_answers;
            state.unread.insert(number, Instant::now());
            number
        };
        Self { body, open, number }
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        self.open.0.0.lock().unread.remove(&self.number);
    }
}

impl HttpBody for Held {
    type Data = Bytes;
    type Error = axum::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, axum::Error>>> {
        // There is room for another piece, or this would not be asked for.
        let polled = Pin::new(&mut self.body).poll_frame(cx);
        let number = self.number;
        let mut state = self.open.0.0.lock();
        if polled.is_ready() {
            state.unread.insert(number, Instant::now());
        } else {
            state.unread.remove(&number);
        }
        drop(state);
        polled
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn a_connection_rests_when_nothing_was_in_flight_for_a_while() {
        let patience = Duration::from_secs(10);
        let activity = Arc::new(Activity::default());
        let begun = Instant::now();
        Arc::clone(&activity).rests(patience).await;
        assert_eq!(begun.elapsed(), patience);

        let open = activity.begin();
        let rests = tokio::spawn(Arc::clone(&activity).rests(patience));
        tokio::time::advance(Duration::from_secs(100)).await;
        tokio::task::yield_now().await;
        assert!(!rests.is_finished());
        drop(open);
        let ended = Instant::now();
        rests.await.unwrap();
        assert!(ended.elapsed() >= patience && ended.elapsed() <= patience * 2);
    }
}
