//! Handles the part of an HTTP/1.1 request body that the face did not read.
//!
//! A refusal is often ready before the body has arrived. Bytes that arrive after the response would be taken
//! for the next request, and closing the connection while they arrive resets it, which loses the response too.
//! So the rest of a small body is read and dropped before the response is sent, and the connection stays open.
//! If that takes too many bytes or too long, the connection closes with this response, which says so (RFC 9112
//! section 9.6); see [`super::drain`].

use std::{
    pin::Pin,
    task::{Context, Poll},
    time::Duration,
};

use bytes::Bytes;
use http_body::{Body as HttpBody, Frame, SizeHint};
use http_body_util::BodyExt as _;
use tokio::sync::oneshot;

use crate::message::{Body, BoxError};

/// Maximum number of bytes to read and drop.
const MAX_READ_ON: u64 = 256 << 10;
/// Maximum time to read and drop: enough for a client that sends head and body one after the other.
const READ_ON_TIME: Duration = Duration::from_secs(2);

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Progress {
    Untouched,
    Begun,
    Broken,
}

/// A body that returns to its lender if the reader drops it before its end.
#[derive(Debug)]
struct Lent<B> {
    /// `None` once the body has ended.
    body: Option<B>,
    progress: Progress,
    back: Option<oneshot::Sender<(B, Progress)>>,
}

/// Receives the body back.
#[derive(Debug)]
pub(super) struct Rest<B>(Option<oneshot::Receiver<(B, Progress)>>);

pub(super) fn lend<B>(body: B) -> (Body, Rest<B>)
where
    B: HttpBody<Data = Bytes, Error: Into<BoxError>> + Unpin + Send + 'static,
{
    if body.is_end_stream() {
        return (Body::empty(), Rest(None));
    }
    let (back, rest) = oneshot::channel();
    let lent = Lent {
        body: Some(body),
        progress: Progress::Untouched,
        back: Some(back),
    };
    (Body::new(lent), Rest(Some(rest)))
}

impl<B: HttpBody<Data = Bytes> + Unpin> Rest<B> {
    /// Reads the body to its end, within limits; returns `true` if the end was reached. If the client waits for
    /// `100 Continue` (`awaits_go`), it is not sent.
    pub(super) async fn finish(self, awaits_go: bool) -> bool {
        let Some(mut back) = self.0 else { return true };
        let (body, progress) = match back.try_recv() {
            Ok(left) => left,
            // The body was read to its end, or a reader still holds it, possibly for long.
            Err(oneshot::error::TryRecvError::Closed) => return true,
            Err(oneshot::error::TryRecvError::Empty) => return false,
        };
        match progress {
            Progress::Untouched if awaits_go => false,
            Progress::Untouched | Progress::Begun => read_on(body).await,
            Progress::Broken => false,
        }
    }
}

async fn read_on<B: HttpBody<Data = Bytes> + Unpin>(mut body: B) -> bool {
    if body.size_hint().lower() > MAX_READ_ON {
        return false;
    }
    let reads = async {
        let mut total = 0;
        while let Some(frame) = body.frame().await {
            let Ok(frame) = frame else { return false };
            total += frame.data_ref().map_or(0, Bytes::len) as u64;
            if total > MAX_READ_ON {
                return false;
            }
        }
        true
    };
    tokio::time::timeout(READ_ON_TIME, reads).await.unwrap_or(false)
}

impl<B: HttpBody<Data = Bytes> + Unpin> HttpBody for Lent<B> {
    type Data = Bytes;
    type Error = B::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, B::Error>>> {
        let Some(body) = &mut self.body else {
            return Poll::Ready(None);
        };
        let polled = Pin::new(&mut *body).poll_frame(cx);
        self.progress = Progress::Begun;
        match &polled {
            Poll::Pending | Poll::Ready(Some(Ok(_))) => {}
            Poll::Ready(Some(Err(_))) => self.progress = Progress::Broken,
            Poll::Ready(None) => self.body = None,
        }
        polled
    }

    fn is_end_stream(&self) -> bool {
        self.body.as_ref().is_none_or(HttpBody::is_end_stream)
    }

    fn size_hint(&self) -> SizeHint {
        let body = self.body.as_ref();
        body.map_or_else(|| SizeHint::with_exact(0), HttpBody::size_hint)
    }
}

impl<B> Drop for Lent<B> {
    fn drop(&mut self) {
        if let (Some(body), Some(back)) = (self.body.take(), self.back.take()) {
            // The connection may have ended meanwhile.
            let _ = back.send((body, self.progress));
        }
    }
}

#[cfg(test)]
mod tests {
    use std::convert::Infallible;

    use futures_util::{StreamExt as _, stream};
    use tokio::time::Instant;

    use super::*;

    /// A body whose pieces arrive at a fixed pace.
    fn dripping(n_pieces: usize, size: usize, pace: Duration) -> Body {
        let pieces = stream::iter(0..n_pieces).then(move |_| async move {
            // sleep: the pace, in virtual time
            tokio::time::sleep(pace).await;
            Ok::<_, Infallible>(Bytes::from(vec![b'x'; size]))
        });
        Body::from_stream(pieces.boxed())
    }

    #[tokio::test(start_paused = true)]
    async fn unread_rest_is_drained_within_limits() {
        let (pace, slow) = (Duration::from_millis(10), Duration::from_secs(1));
        for (n_pieces, size, pace, wanted) in [
            (100, 1_000, pace, true),
            (300, 1_000, pace, false),
            (3, 1, slow, false),
            (1, 1, slow, true),
        ] {
            for n_read in [0, 1] {
                let (mut lent, rest) = lend(dripping(n_pieces + n_read, size, pace));
                for _ in 0..n_read {
                    lent.frame().await.unwrap().unwrap();
                }
                drop(lent);
                let begun = Instant::now();
                assert_eq!(
                    rest.finish(false).await,
                    wanted,
                    "{n_pieces} of {size}, {n_read} read"
                );
                assert!(begun.elapsed() <= READ_ON_TIME);
            }
        }
    }

    #[tokio::test(start_paused = true)]
    async fn declared_oversized_rest_is_not_read() {
        let size = usize::try_from(MAX_READ_ON).unwrap() + 1;
        let (lent, rest) = lend(Body::from(vec![b'x'; size]));
        drop(lent);
        let begun = Instant::now();
        assert!(!rest.finish(false).await);
        assert_eq!(begun.elapsed(), Duration::ZERO);
    }

    #[tokio::test]
    async fn no_100_continue_for_an_unread_body() {
        let (lent, rest) = lend(Body::from("body"));
        drop(lent);
        assert!(!rest.finish(true).await);
    }

    #[tokio::test]
    async fn finished_body_needs_no_drain() {
        let (lent, rest) = lend(Body::from("body"));
        assert_eq!(lent.collect().await.unwrap().to_bytes(), "body");
        assert!(rest.finish(true).await);
        let (lent, rest) = lend(Body::empty());
        drop(lent);
        assert!(rest.finish(true).await);
    }

    #[tokio::test]
    async fn broken_body_closes_the_connection() {
        let pieces = [Ok(Bytes::from("a")), Err(std::io::Error::other("broken"))];
        let (lent, rest) = lend(Body::from_stream(stream::iter(pieces)));
        assert!(lent.collect().await.is_err());
        assert!(!rest.finish(false).await);
    }
}
