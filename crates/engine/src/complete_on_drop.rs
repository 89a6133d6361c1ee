//! Futures that run to completion even if their caller is dropped.
//!
//! When a client disconnects, its handler's future is dropped at an arbitrary point. Work that must not be
//! left half done is awaited through [`CompleteOnDrop`]: it is polled in place, at the cost of neither a task
//! nor a wake-up, and becomes a task only if it is dropped before it ends. As in a task, a panic is caught.

use std::{
    panic::{AssertUnwindSafe, catch_unwind},
    pin::Pin,
    task::{Context, Poll},
};

use tokio::runtime::Handle;
use tokio_util::task::{TaskTracker, task_tracker::TaskTrackerToken};

use crate::panics::Panicked;

/// A future that runs to completion even if it is dropped.
pub(crate) struct CompleteOnDrop<T: Send + 'static> {
    /// `None` once the work has ended.
    work: Option<Pin<Box<dyn Future<Output = T> + Send>>>,
    runtime: Handle,
    /// Makes the tracker's owner wait for the work, in place or as a task.
    token: TaskTrackerToken,
}

impl<T: Send + 'static> CompleteOnDrop<T> {
    /// Creates the future. The work does not begin before the first poll.
    pub(crate) fn new(
        work: impl Future<Output = T> + Send + 'static,
        runtime: Handle,
        tracker: &TaskTracker,
    ) -> Self {
        Self {
            work: Some(Box::pin(work)),
            runtime,
            token: tracker.token(),
        }
    }
}

impl<T: Send + 'static> Future for CompleteOnDrop<T> {
    type Output = Result<T, Panicked>;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        let work = self.work.as_mut().expect("a future is not polled after its end");
        // Unwind safe: the work is not polled again after a panic.
        let ended = match catch_unwind(AssertUnwindSafe(|| work.as_mut().poll(context))) {
            Ok(Poll::Pending) => return Poll::Pending,
            Ok(Poll::Ready(value)) => Ok(value),
            Err(payload) => Err(Panicked::of(&*payload)),
        };
        self.work = None;
        Poll::Ready(ended)
    }
}

impl<T: Send + 'static> Drop for CompleteOnDrop<T> {
    fn drop(&mut self) {
        if let Some(work) = self.work.take() {
            let token = self.token.clone();
            self.runtime.spawn(async move {
                drop(work.await);
                drop(token);
            });
        }
    }
}

#[cfg(test)]
mod tests {
    use tokio::sync::oneshot;

    use super::*;

    fn complete_on_drop<T: Send + 'static>(
        tracker: &TaskTracker,
        work: impl Future<Output = T> + Send + 'static,
    ) -> CompleteOnDrop<T> {
        CompleteOnDrop::new(work, Handle::current(), tracker)
    }

    #[tokio::test]
    async fn work_is_polled_in_place() {
        let tracker = TaskTracker::new();
        let (here, there) = tokio::spawn(async move {
            let work = complete_on_drop(&tracker, async { tokio::task::id() });
            assert_eq!(tracker.len(), 1, "whoever stops waits for it");
            (tokio::task::id(), work.await)
        })
        .await
        .expect("nothing panics");
        assert_eq!(there, Ok(here));
    }

    #[tokio::test]
    async fn work_continues_after_the_future_is_dropped() {
        let tracker = TaskTracker::new();
        let (go, may_go) = oneshot::channel::<()>();
        let (done, is_done) = oneshot::channel();
        let mut work = complete_on_drop(&tracker, async move {
            may_go.await.expect("the test says so");
            done.send(7).expect("the test listens");
        });
        let polled = std::future::poll_fn(|context| Poll::Ready(Pin::new(&mut work).poll(context)));
        assert!(polled.await.is_pending());
        drop(work);
        assert_eq!(tracker.len(), 1, "whoever stops waits for it");
        go.send(()).expect("it listens");
        assert_eq!(is_done.await, Ok(7));
        tracker.close();
        tracker.wait().await;
    }

    #[tokio::test]
    async fn a_panic_is_returned_as_an_error() {
        let tracker = TaskTracker::new();
        let work = complete_on_drop(&tracker, async { panic!("on purpose") });
        assert_eq!(
            work.await.map(|(): ()| ()),
            Err(Panicked("on purpose".to_owned()))
        );
        assert!(tracker.is_empty());
    }
}
