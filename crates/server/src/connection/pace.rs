//! Rate limit of unauthenticated connections.
//!
//! While there are many, such a connection is read in small pieces and pauses after each, so that all of them
//! together send a fixed rate of requests and bytes, however many there are, and leave the processor to
//! callers. First pieces are read one after another with a small gap, so that a burst of new connections is
//! spread out; the first request of a caller is delayed by at most half a second. Authenticated connections are
//! not limited.

use std::{
    io,
    pin::Pin,
    task::{Context, Poll, ready},
    time::Duration,
};

use tokio::{
    io::{AsyncRead, AsyncWrite, ReadBuf},
    time::{Instant, Sleep, sleep},
};

use super::{Line, crowd::FREE};

/// Bytes read at once while limited. They may be requests, and only a few small ones fit.
const PIECE: usize = 256;
/// Bytes read at once after a full piece that began no request: the client is probably sending a body.
const PIECE_OF_BODY: usize = 4 << 10;
/// Interval between unauthenticated requests on all connections.
const APART: Duration = Duration::from_micros(100);
/// Interval between kilobytes from unauthenticated clients.
const KILOBYTES_APART: Duration = Duration::from_micros(20);
/// Interval between the first pieces of two connections.
const FIRST_APART: Duration = Duration::from_micros(250);
/// Maximum delay of a first piece. Clients that connect faster than that delay others no further.
const LONGEST_FIRST: Duration = Duration::from_millis(500);
/// Shorter delays are skipped, as timers are not finer.
const SHORTEST: Duration = Duration::from_millis(1);
/// Maximum pause.
const LONGEST: Duration = Duration::from_secs(10);

/// A stream that is read at its connection's rate.
#[derive(Debug)]
pub(super) struct Paced<S> {
    stream: S,
    line: Line,
    /// Set once the first piece was scheduled.
    has_begun: bool,
    rest: Option<Pin<Box<Sleep>>>,
    /// Size of the last piece in bytes.
    n_read: usize,
    /// Set if the last piece was full and began no request.
    is_body: bool,
}

impl<S> Paced<S> {
    pub(super) const fn new(stream: S, line: Line) -> Self {
        Self {
            stream,
            line,
            has_begun: false,
            rest: None,
            n_read: 0,
            is_body: false,
        }
    }
}

/// Returns the delay of a connection's first piece, and the earliest time for the next connection's.
pub(super) fn turn(next: Option<Instant>, now: Instant) -> (Duration, Instant) {
    let turn = next.map_or(now, |next| next.clamp(now, now + LONGEST_FIRST));
    (turn - now, turn + FIRST_APART)
}

/// Returns the pause after these requests and bytes, given the number of unauthenticated connections.
fn rest_after(n_requests: usize, n_bytes: usize, n_strange: usize) -> Option<Duration> {
    if n_strange <= FREE {
        return None;
    }
    let times = |n: usize| u32::try_from(n.saturating_mul(n_strange)).unwrap_or(u32::MAX);
    let for_bytes = KILOBYTES_APART.saturating_mul(times(n_bytes)) / (1 << 10);
    let rest = APART.saturating_mul(times(n_requests)).saturating_add(for_bytes);
    (!rest.is_zero()).then(|| rest.min(LONGEST))
}

impl<S: AsyncRead + Unpin> AsyncRead for Paced<S> {
    fn poll_read(self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        let this = self.get_mut();
        if this.line.is_known() {
            return Pin::new(&mut this.stream).poll_read(cx, buf);
        }
        let n_strange = this.line.n_strange_connections();
        if !std::mem::replace(&mut this.has_begun, true) && n_strange > FREE {
            let wait = this.line.wait_for_first(Instant::now());
            this.rest = (wait > SHORTEST).then(|| Box::pin(sleep(wait)));
        }
        let (n_begun, n_read) = (this.line.take_begun(), std::mem::take(&mut this.n_read));
        if let Some(rest) = rest_after(n_begun, n_read, n_strange) {
            this.is_body = n_begun == 0 && n_read >= PIECE;
            this.rest = Some(Box::pin(sleep(rest)));
        }
        if let Some(rest) = &mut this.rest {
            ready!(rest.as_mut().poll(cx));
            this.rest = None;
        }
        if n_strange <= FREE {
            return Pin::new(&mut this.stream).poll_read(cx, buf);
        }
        let piece = if this.is_body { PIECE_OF_BODY } else { PIECE };
        let most = buf.remaining().min(piece);
        let mut piece = ReadBuf::new(buf.initialize_unfilled_to(most));
        ready!(Pin::new(&mut this.stream).poll_read(cx, &mut piece))?;
        let n_read = piece.filled().len();
        buf.advance(n_read);
        this.n_read = n_read;
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
    fn first_pieces_are_spaced_out() {
        let now = Instant::now();
        let (wait, next) = turn(None, now);
        assert_eq!((wait, next), (Duration::ZERO, now + FIRST_APART));
        let (wait, next) = turn(Some(next), now);
        assert_eq!((wait, next), (FIRST_APART, now + FIRST_APART * 2));
        let later = next + FIRST_APART * 100;
        assert_eq!(turn(Some(next), later), (Duration::ZERO, later + FIRST_APART));
        let (wait, next) = turn(Some(now + LONGEST_FIRST * 100), now);
        assert_eq!((wait, next), (LONGEST_FIRST, now + LONGEST_FIRST + FIRST_APART));
    }

    #[test]
    fn pause_grows_with_unauthenticated_connections() {
        assert_eq!(rest_after(1_000, 1_000, FREE), None);
        assert_eq!(rest_after(0, 0, 4_000), None);
        assert_eq!(rest_after(1, 0, 4_000), Some(Duration::from_millis(400)));
        assert_eq!(rest_after(0, 2 << 10, 4_000), Some(Duration::from_millis(160)));
        assert_eq!(rest_after(usize::MAX, 0, 4_000), Some(LONGEST));
        assert_eq!(rest_after(0, usize::MAX, 4_000), Some(LONGEST));
    }
}
