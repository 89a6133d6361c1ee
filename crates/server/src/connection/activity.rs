//! Tracks the requests in flight on an HTTP/2 connection. An idle connection is closed, and so is one whose
//! client does not read its responses.

use std::{
    collections::HashMap,
    pin::Pin,
    sync::Arc,
    task::{Context, Poll, ready},
    time::Duration,
};

use bytes::Bytes;
use http_body::{Body as HttpBody, Frame, SizeHint};
use parking_lot::Mutex;
use tokio::time::Instant;

use crate::message::{Body, BoxError};

#[derive(Debug)]
pub(super) struct Activity(Mutex<State>);

#[derive(Debug)]
struct State {
    n_open: usize,
    /// When the last request began or ended.
    since: Instant,
    /// Responses whose client has not asked for more, by number, with the time since when.
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

/// A request in flight, until dropped.
#[derive(Debug)]
pub(super) struct Open(Arc<Activity>);

impl Activity {
    pub(super) fn begin(self: &Arc<Self>) -> Open {
        let mut state = self.0.lock();
        state.n_open += 1;
        state.since = Instant::now();
        Open(Arc::clone(self))
    }

    /// Waits until no request has been in flight for `timeout`.
    pub(super) async fn rests(self: Arc<Self>, timeout: Duration) {
        loop {
            let until = {
                let state = self.0.lock();
                let now = Instant::now();
                let until = state.since + timeout;
                match state.n_open {
                    0 if until <= now => return,
                    0 => until,
                    // Checked again after the timeout; there is no hurry.
                    _ => now + timeout,
                }
            };
            tokio::time::sleep_until(until).await;
        }
    }
}

impl Activity {
    /// Returns `true` if the client has read nothing of some response since `then`.
    pub(super) fn is_unread_since(&self, then: Instant) -> bool {
        self.0.lock().unread.values().any(|since| *since <= then)
    }

    /// Returns `true` if no request has been in flight since `then`.
    pub(super) fn is_idle_since(&self, then: Instant) -> bool {
        let state = self.0.lock();
        state.n_open == 0 && state.since <= then
    }
}

impl Drop for Open {
    fn drop(&mut self) {
        let mut state = self.0.0.lock();
        state.n_open -= 1;
        state.since = Instant::now();
    }
}

/// Maximum size of a frame passed to the protocol. Such a frame counts as read, although it may still wait for
/// the client, so frames are small.
const PIECE: usize = 64 << 10;

/// A response body, in flight until its last frame was passed on or it is dropped.
#[derive(Debug)]
pub(super) struct Held {
    body: Body,
    /// Data that the body returned and that was not passed on yet.
    rest: Bytes,
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
        Self {
            body,
            rest: Bytes::new(),
            open,
            number,
        }
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        self.open.0.0.lock().unread.remove(&self.number);
    }
}

impl HttpBody for Held {
    type Data = Bytes;
    type Error = BoxError;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, BoxError>>> {
        let polled = self.poll_piece(cx);
        let number = self.number;
        let mut state = self.open.0.0.lock();
        // The protocol asks for more only once it has room for it.
        if polled.is_ready() {
            state.unread.insert(number, Instant::now());
        } else {
            state.unread.remove(&number);
        }
        drop(state);
        polled
    }

    fn is_end_stream(&self) -> bool {
        self.rest.is_empty() && self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        let (inner, rest) = (self.body.size_hint(), self.rest.len() as u64);
        let mut hint = SizeHint::new();
        hint.set_lower(inner.lower() + rest);
        if let Some(upper) = inner.upper() {
            hint.set_upper(upper + rest);
        }
        hint
    }
}

impl Held {
    fn poll_piece(&mut self, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, BoxError>>> {
        if self.rest.is_empty() {
            let frame = match ready!(Pin::new(&mut self.body).poll_frame(cx)) {
                Some(Ok(frame)) => frame,
                end => return Poll::Ready(end),
            };
            match frame.into_data() {
                Ok(data) if data.len() > PIECE => self.rest = data,
                Ok(data) => return Poll::Ready(Some(Ok(Frame::data(data)))),
                Err(other) => return Poll::Ready(Some(Ok(other))),
            }
        }
        let n_bytes = self.rest.len().min(PIECE);
        Poll::Ready(Some(Ok(Frame::data(self.rest.split_to(n_bytes)))))
    }
}

#[cfg(test)]
mod tests {
    use http_body_util::BodyExt as _;

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn connection_is_idle_after_the_timeout_without_requests() {
        let timeout = Duration::from_secs(10);
        let activity = Arc::new(Activity::default());
        let begun = Instant::now();
        Arc::clone(&activity).rests(timeout).await;
        assert_eq!(begun.elapsed(), timeout);

        let open = activity.begin();
        let rests = tokio::spawn(Arc::clone(&activity).rests(timeout));
        tokio::time::advance(Duration::from_secs(100)).await;
        tokio::task::yield_now().await;
        assert!(!rests.is_finished());
        drop(open);
        let ended = Instant::now();
        rests.await.unwrap();
        assert!(ended.elapsed() >= timeout && ended.elapsed() <= timeout * 2);
    }

    #[tokio::test]
    async fn large_body_is_split_and_in_flight_until_its_last_frame() {
        let activity = Arc::new(Activity::default());
        let sent: Vec<u8> = (0..PIECE * 2 + 10).map(|n| n.to_le_bytes()[0]).collect();
        let mut held = Held::new(Body::from(sent.clone()), activity.begin());
        let mut read = Vec::new();
        let mut sizes = Vec::new();
        while let Some(frame) = held.frame().await {
            assert!(activity.is_unread_since(Instant::now()));
            let data = frame.unwrap().into_data().unwrap();
            sizes.push(data.len());
            read.extend_from_slice(&data);
            assert_eq!(held.size_hint().exact(), Some((sent.len() - read.len()) as u64));
            assert_eq!(held.is_end_stream(), read.len() == sent.len());
        }
        assert_eq!(sizes, [PIECE, PIECE, 10]);
        assert_eq!(read, sent);
        drop(held);
        assert!(!activity.is_unread_since(Instant::now()));
    }
}
