//! Rate limit of unauthenticated connections.
//!
//! Such a connection pauses after what it sends, so that all of them together send a fixed rate of requests, frames
//! and bytes, however many there are, and leave the processor to callers. While there are few, one that sends little
//! does not pause, and those that do share the rate. While there are many, each has the same share, is read in small
//! pieces and pauses after each. First pieces are then read one after another with a small gap, so that a burst of new
//! connections is spread out; the first request of a caller is delayed by at most half a second. Authenticated
//! connections are not limited.

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

use super::{
    Line,
    crowd::{FREE, Resting},
    frames::Frames,
};

/// Bytes read at once while limited. They may be requests, and only a few small ones fit.
const PIECE: usize = 256;
/// Bytes read at once after a full piece that began no request: the client is probably sending a body.
const PIECE_OF_BODY: usize = 4 << 10;
/// Interval between unauthenticated requests on all connections.
const APART: Duration = Duration::from_micros(100);
/// Interval between frames of HTTP/2 on all connections, whatever is in them.
const FRAMES_APART: Duration = Duration::from_micros(10);
/// Interval between kilobytes from unauthenticated clients.
const KILOBYTES_APART: Duration = Duration::from_micros(20);
/// Interval between the first pieces of two connections.
const FIRST_APART: Duration = Duration::from_micros(250);
/// Maximum delay of a first piece. Clients that connect faster than that delay others no further.
const LONGEST_FIRST: Duration = Duration::from_millis(500);
/// How far a connection may be ahead of its rate, while there are few.
const AHEAD: Duration = Duration::from_millis(50);
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
    rest: Option<Rest>,
    /// When everything sent would have been sent at the connection's rate.
    due: Option<Instant>,
    /// `None` if the connection does not speak HTTP/2.
    frames: Option<Frames>,
    /// The size of the last piece.
    read: Piece,
    /// Set if the last piece was full and began no request.
    is_body: bool,
}

/// A pause of a connection.
#[derive(Debug)]
struct Rest {
    sleep: Pin<Box<Sleep>>,
    /// It counts as one that pauses.
    _resting: Resting,
}

/// The size of a piece that one read returned.
#[derive(Debug, Clone, Copy, Default)]
struct Piece {
    n_bytes: usize,
    n_frames: usize,
}

impl<S> Paced<S> {
    /// `frames`: counts those of a connection that speaks HTTP/2.
    pub(super) const fn new(stream: S, line: Line, frames: Option<Frames>) -> Self {
        Self {
            stream,
            line,
            has_begun: false,
            rest: None,
            due: None,
            frames,
            read: Piece {
                n_bytes: 0,
                n_frames: 0,
            },
            is_body: false,
        }
    }

    /// Decides whether the connection pauses before the next piece is read.
    fn plan(&mut self, n_strange: usize) {
        let is_crowded = n_strange > FREE;
        if !std::mem::replace(&mut self.has_begun, true) && is_crowded {
            let wait = self.line.wait_for_first(Instant::now());
            self.pause(wait);
        }
        let (n_begun, read) = (self.line.take_begun(), std::mem::take(&mut self.read));
        let n_sharing = if is_crowded {
            n_strange
        } else {
            self.line.n_resting() + 1
        };
        let cost = cost_of(n_begun, read, n_sharing);
        if cost.is_zero() {
            return;
        }
        if is_crowded {
            self.is_body = n_begun == 0 && read.n_bytes >= PIECE;
            self.pause(cost);
            return;
        }
        let now = Instant::now();
        let due = self.due.map_or(now, |due| due.max(now)) + cost;
        self.due = Some(due);
        self.pause(due.saturating_duration_since(now + AHEAD));
    }

    fn pause(&mut self, wait: Duration) {
        if wait > SHORTEST {
            self.rest = Some(Rest {
                sleep: Box::pin(sleep(wait)),
                _resting: self.line.rests(),
            });
        }
    }
}

/// Returns the delay of a connection's first piece, and the earliest time for the next connection's.
pub(super) fn turn(next: Option<Instant>, now: Instant) -> (Duration, Instant) {
    let turn = next.map_or(now, |next| next.clamp(now, now + LONGEST_FIRST));
    (turn - now, turn + FIRST_APART)
}

/// Returns the time that these requests and this piece take of the rate, by a connection that shares it with others.
fn cost_of(n_requests: usize, read: Piece, n_sharing: usize) -> Duration {
    let times = |n: usize| u32::try_from(n.saturating_mul(n_sharing)).unwrap_or(u32::MAX);
    let for_bytes = KILOBYTES_APART.saturating_mul(times(read.n_bytes)) / (1 << 10);
    let for_frames = FRAMES_APART.saturating_mul(times(read.n_frames));
    let for_requests = APART.saturating_mul(times(n_requests));
    for_requests
        .saturating_add(for_frames)
        .saturating_add(for_bytes)
        .min(LONGEST)
}

impl<S: AsyncRead + Unpin> AsyncRead for Paced<S> {
    fn poll_read(self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        let this = self.get_mut();
        if this.line.is_known() {
            this.rest = None;
            return Pin::new(&mut this.stream).poll_read(cx, buf);
        }
        let n_strange = this.line.n_strange_connections();
        this.plan(n_strange);
        if let Some(rest) = &mut this.rest {
            ready!(rest.sleep.as_mut().poll(cx));
            this.rest = None;
        }
        let piece = match (n_strange > FREE, this.is_body) {
            (false, _) => usize::MAX,
            (true, false) => PIECE,
            (true, true) => PIECE_OF_BODY,
        };
        let most = buf.remaining().min(piece);
        let mut piece = ReadBuf::new(buf.initialize_unfilled_to(most));
        ready!(Pin::new(&mut this.stream).poll_read(cx, &mut piece))?;
        let filled = piece.filled();
        let n_bytes = filled.len();
        this.read = Piece {
            n_bytes,
            n_frames: this.frames.as_mut().map_or(0, |frames| frames.count(filled)),
        };
        buf.advance(n_bytes);
        Poll::Ready(Ok(()))
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for Paced<S> {
    hand_on_writes!();
    hand_on_shutdown!();
}

#[cfg(test)]
mod tests {
    use std::{net::IpAddr, sync::Arc};

    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _, DuplexStream};

    use super::*;
    use crate::connection::{Bounds, Crowd, crowd::Seat};

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
    fn cost_grows_with_those_who_share_the_rate() {
        let bytes = |n_bytes| Piece { n_bytes, n_frames: 0 };
        let frames = |n_frames| Piece { n_bytes: 0, n_frames };
        assert_eq!(cost_of(0, bytes(0), 4_000), Duration::ZERO);
        assert_eq!(cost_of(1, bytes(0), 4_000), Duration::from_millis(400));
        assert_eq!(cost_of(0, frames(10), 100), Duration::from_millis(10));
        assert_eq!(cost_of(0, bytes(2 << 10), 4_000), Duration::from_millis(160));
        assert_eq!(cost_of(usize::MAX, bytes(0), 4_000), LONGEST);
        assert_eq!(cost_of(0, bytes(usize::MAX), 4_000), LONGEST);
    }

    /// A client that is unauthenticated, and its connection.
    fn stranger(crowd: &Arc<Crowd>) -> (DuplexStream, Paced<DuplexStream>, Seat) {
        let seat = crowd.arrive(IpAddr::from([127, 0, 0, 1])).unwrap();
        let (client, server) = tokio::io::duplex(64 << 10);
        let paced = Paced::new(server, seat.line().clone(), Some(Frames::new()));
        (client, paced, seat)
    }

    /// What two seconds of reading frames without a payload bring.
    async fn frames_read(paced: &mut Paced<DuplexStream>) -> usize {
        let mut buffer = vec![0; 9 * 100];
        let mut n_bytes = 0;
        let reads = async {
            loop {
                n_bytes += paced.read(&mut buffer).await.unwrap();
            }
        };
        let _elapsed = tokio::time::timeout(Duration::from_secs(2), reads).await;
        n_bytes / 9
    }

    #[tokio::test(start_paused = true)]
    async fn few_connections_share_the_rate_of_frames() {
        let crowd = Arc::new(Crowd::new(Bounds { each: 0, all: 100 }));
        let floods: Vec<_> = (0..4)
            .map(|_| {
                let (mut client, mut paced, seat) = stranger(&crowd);
                tokio::spawn(async move { while client.write_all(&[0; 9 * 64]).await.is_ok() {} });
                tokio::spawn(async move {
                    let n_frames = frames_read(&mut paced).await;
                    drop(seat);
                    n_frames
                })
            })
            .collect();
        let mut n_frames = 0;
        for flood in floods {
            n_frames += flood.await.unwrap();
        }
        // Two seconds at the rate, and what each may be ahead.
        let bound = 200_000 + 4 * 5_000;
        assert!(
            (bound / 2..=bound * 5 / 4).contains(&n_frames),
            "{n_frames} frames"
        );
    }

    #[tokio::test(start_paused = true)]
    async fn a_connection_that_sends_little_does_not_pause() {
        let crowd = Arc::new(Crowd::new(Bounds { each: 0, all: 100 }));
        let (mut client, mut paced, _seat) = stranger(&crowd);
        let begun = Instant::now();
        for _ in 0..100 {
            client.write_all(&[0; 100]).await.unwrap();
            paced.read_exact(&mut [0; 100]).await.unwrap();
        }
        assert_eq!(begun.elapsed(), Duration::ZERO);
    }
}
