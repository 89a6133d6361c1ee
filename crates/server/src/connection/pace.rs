//! The pace of strangers: where many are connected, one over which no caller was recognized is read in small pieces, and
//! rests after what it sent. So strangers together send so many requests and so many bytes a second, however many
//! connections they have, and leave the processor to callers. The first pieces of connections are taken one after
//! another, a little apart, so that a crowd that comes at once is not looked at all at once; a caller's first request
//! waits half a second at most. Nothing is held up once a caller was recognized.

use std::{
    io,
    pin::Pin,
    task::{Context, Poll, ready},
    time::Duration,
};

use parking_lot::Mutex;
use tokio::{
    io::{AsyncRead, AsyncWrite, ReadBuf},
    time::{Instant, Sleep, sleep},
};

use super::{Line, crowd::FREE};

/// Bytes read at once of a connection in a crowd: they may be requests, so that only a few small ones fit.
const PIECE: usize = 256;
/// Bytes read at once after a full piece without a request: the client is likely sending the body of one.
const PIECE_OF_BODY: usize = 4 << 10;
/// The time between two requests of strangers, all of them together.
const APART: Duration = Duration::from_micros(100);
/// And between two kilobytes.
const KILOBYTES_APART: Duration = Duration::from_micros(20);
/// And between the first pieces of two connections.
const FIRST_APART: Duration = Duration::from_micros(250);
/// The longest wait of a first piece: a client that opens connections faster than they are read delays no other further.
const LONGEST_FIRST: Duration = Duration::from_millis(500);
/// Shorter waits are skipped: timers are not finer.
const SHORTEST: Duration = Duration::from_millis(1);
/// The longest rest.
const LONGEST: Duration = Duration::from_secs(10);

/// When the next first piece of a connection may be read.
static NEXT_FIRST: Mutex<Option<Instant>> = Mutex::new(None);

/// A stream that is read at its connection's pace.
#[derive(Debug)]
pub(super) struct Paced<S> {
    stream: S,
    line: Line,
    /// True once the first piece has its turn.
    has_begun: bool,
    rest: Option<Pin<Box<Sleep>>>,
    /// Bytes of the last piece.
    n_read: usize,
    /// True if the last piece was full and began no request.
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

/// How long the first piece of a connection waits for those of others, and when the next one may be read.
fn turn(next: Option<Instant>, now: Instant) -> (Duration, Instant) {
    let turn = next.map_or(now, |next| next.clamp(now, now + LONGEST_FIRST));
    (turn - now, turn + FIRST_APART)
}

/// How long a connection rests after so many requests and bytes, where so many are strange.
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
            let mut next = NEXT_FIRST.lock();
            let (wait, then) = turn(*next, Instant::now());
            *next = Some(then);
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
    fn first_pieces_follow_each_other_at_a_distance() {
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
    fn requests_of_a_crowd_of_strangers_are_spread() {
        assert_eq!(rest_after(1_000, 1_000, FREE), None);
        assert_eq!(rest_after(0, 0, 4_000), None);
        assert_eq!(rest_after(1, 0, 4_000), Some(Duration::from_millis(400)));
        assert_eq!(rest_after(0, 2 << 10, 4_000), Some(Duration::from_millis(160)));
        assert_eq!(rest_after(usize::MAX, 0, 4_000), Some(LONGEST));
        assert_eq!(rest_after(0, usize::MAX, 4_000), Some(LONGEST));
    }
}
