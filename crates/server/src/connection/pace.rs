//! The pace of strangers: where many are connected, one over which no caller was recognized is read in small pieces, and
//! rests after the requests it sent. So strangers together send so many requests a second, however many connections they
//! have, and leave the processor to callers. A connection without such requests is never held up, so a caller's first
//! request is not; and nothing is once a caller was recognized.

use std::{
    io,
    pin::Pin,
    task::{Context, Poll, ready},
    time::Duration,
};

use tokio::{
    io::{AsyncRead, AsyncWrite, ReadBuf},
    time::{Sleep, sleep},
};

use super::Line;

/// Strange connections that need no pace.
const FREE: usize = 256;
/// What is read at once of a connection that has one: fewer small requests than a stranger may have at once.
const PIECE: usize = 1 << 10;
/// The time between two requests of strangers, all of them together.
const APART: Duration = Duration::from_micros(100);
/// The longest rest.
const LONGEST: Duration = Duration::from_secs(10);

/// A stream that is read at its connection's pace.
#[derive(Debug)]
pub(super) struct Paced<S> {
    stream: S,
    line: Line,
    rest: Option<Pin<Box<Sleep>>>,
}

impl<S> Paced<S> {
    pub(super) const fn new(stream: S, line: Line) -> Self {
        Self {
            stream,
            line,
            rest: None,
        }
    }
}

/// How long a connection rests after so many requests, where so many are strange.
fn rest_after(n_requests: usize, n_strange: usize) -> Option<Duration> {
    if n_requests == 0 || n_strange <= FREE {
        return None;
    }
    let times = u32::try_from(n_requests.saturating_mul(n_strange)).unwrap_or(u32::MAX);
    Some(APART.saturating_mul(times).min(LONGEST))
}

impl<S: AsyncRead + Unpin> AsyncRead for Paced<S> {
    fn poll_read(self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        let this = self.get_mut();
        if this.line.is_known() {
            return Pin::new(&mut this.stream).poll_read(cx, buf);
        }
        let n_strange = this.line.n_strange_connections();
        if let Some(rest) = rest_after(this.line.take_begun(), n_strange) {
            this.rest = Some(Box::pin(sleep(rest)));
        }
        if let Some(rest) = &mut this.rest {
            ready!(rest.as_mut().poll(cx));
            this.rest = None;
        }
        if n_strange <= FREE {
            return Pin::new(&mut this.stream).poll_read(cx, buf);
        }
        let most = buf.remaining().min(PIECE);
        let mut piece = ReadBuf::new(buf.initialize_unfilled_to(most));
        ready!(Pin::new(&mut this.stream).poll_read(cx, &mut piece))?;
        let n_read = piece.filled().len();
        buf.advance(n_read);
        Poll::Ready(Ok(()))
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for Paced<S> {
    hand_on_writes!();
    hand_on_shutdown!();
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn requests_of_a_crowd_of_strangers_are_spread() {
        assert_eq!(rest_after(1_000, FREE), None);
        assert_eq!(rest_after(0, 4_000), None);
        assert_eq!(rest_after(1, 4_000), Some(Duration::from_millis(400)));
        assert_eq!(rest_after(usize::MAX, 4_000), Some(LONGEST));
    }
}
