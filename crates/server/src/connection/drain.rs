//! Closes a connection whose client may still be sending.
//!
//! Closing a connection with unread bytes resets it, and a reset discards what the client has not read yet: the
//! response. So the write side is shut down first. Incoming bytes are then read and dropped until the client
//! closes its side or has had enough time to read the response (RFC 9112 section 9.6).

use std::{
    io,
    pin::Pin,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    task::{Context, Poll, ready},
    time::Duration,
};

use tokio::{
    io::{AsyncRead, AsyncWrite, ReadBuf},
    time::Sleep,
};

/// Maximum duration of the drain.
const DRAIN: Duration = Duration::from_secs(5);
/// Maximum number of bytes to drop.
const MAX_DROPPED: usize = 256 << 20;

/// Set if bytes arrived that belong to no request that was read to its end.
#[derive(Debug, Clone, Default)]
pub(super) struct Unread(Arc<AtomicBool>);

impl Unread {
    /// Clears the flag after a request was read to its end.
    pub(super) fn clear(&self) {
        self.0.store(false, Ordering::Relaxed);
    }

    fn note(&self) {
        self.0.store(true, Ordering::Relaxed);
    }

    fn is_some(&self) -> bool {
        self.0.load(Ordering::Relaxed)
    }
}

/// A stream whose shutdown drains the client's input if it may still be sending.
#[derive(Debug)]
pub(super) struct Draining<S> {
    stream: S,
    unread: Unread,
    /// Once draining: the deadline, and the number of bytes dropped so far.
    end: Option<(Pin<Box<Sleep>>, usize)>,
}

impl<S> Draining<S> {
    pub(super) fn new(stream: S) -> Self {
        Self {
            stream,
            unread: Unread::default(),
            end: None,
        }
    }

    pub(super) fn unread(&self) -> Unread {
        self.unread.clone()
    }
}

impl<S: AsyncRead + Unpin> Draining<S> {
    /// Reads and drops input until it ends or a limit is reached.
    fn poll_drop(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        let (until, n_dropped) = (self.end).get_or_insert_with(|| (Box::pin(tokio::time::sleep(DRAIN)), 0));
        let mut room = [0; 8 << 10];
        while until.as_mut().poll(cx).is_pending() && *n_dropped <= MAX_DROPPED {
            let mut read = ReadBuf::new(&mut room);
            // An error also ends the input: the client is gone.
            let ended = ready!(Pin::new(&mut self.stream).poll_read(cx, &mut read)).is_err();
            if ended || read.filled().is_empty() {
                break;
            }
            *n_dropped += read.filled().len();
        }
        Poll::Ready(())
    }
}

impl<S: AsyncRead + Unpin> AsyncRead for Draining<S> {
    fn poll_read(self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        let this = self.get_mut();
        let before = buf.filled().len();
        let done = Pin::new(&mut this.stream).poll_read(cx, buf);
        if buf.filled().len() > before {
            this.unread.note();
        }
        done
    }
}

impl<S: AsyncRead + AsyncWrite + Unpin> AsyncWrite for Draining<S> {
    hand_on_writes!();

    fn poll_shutdown(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let this = self.get_mut();
        if this.end.is_none() {
            ready!(Pin::new(&mut this.stream).poll_shutdown(cx))?;
        }
        if this.unread.is_some() {
            ready!(this.poll_drop(cx));
        }
        Poll::Ready(Ok(()))
    }
}

#[cfg(test)]
mod tests {
    use tokio::{
        io::{AsyncReadExt as _, AsyncWriteExt as _, DuplexStream},
        time::Instant,
    };

    use super::*;

    async fn heard() -> (DuplexStream, Draining<DuplexStream>) {
        let (mut client, server) = tokio::io::duplex(16);
        let mut server = Draining::new(server);
        client.write_all(b"head").await.unwrap();
        server.read_exact(&mut [0; 4]).await.unwrap();
        (client, server)
    }

    #[tokio::test(start_paused = true)]
    async fn drain_ends_after_its_timeout() {
        let (mut client, mut server) = heard().await;
        let begun = Instant::now();
        let drips = async {
            server.shutdown().await.unwrap();
            drop(server);
        };
        let sends = async {
            while client.write_all(b"x").await.is_ok() {
                // sleep: the client sends slowly, in virtual time
                tokio::time::sleep(Duration::from_millis(100)).await;
            }
        };
        tokio::join!(drips, sends);
        assert!(begun.elapsed() >= DRAIN && begun.elapsed() < DRAIN * 2);
    }

    #[tokio::test(start_paused = true)]
    async fn drain_ends_when_the_client_closes() {
        let (mut client, mut server) = heard().await;
        let begun = Instant::now();
        let sends = async {
            client.write_all(&[b'x'; 1_000]).await.unwrap();
            let mut answer = Vec::new();
            client.read_to_end(&mut answer).await.unwrap();
            drop(client);
        };
        tokio::join!(async { server.shutdown().await.unwrap() }, sends);
        assert_eq!(begun.elapsed(), Duration::ZERO);
    }

    #[tokio::test(start_paused = true)]
    async fn no_drain_after_requests_were_read_to_their_end() {
        let (_client, mut server) = heard().await;
        server.unread().clear();
        let begun = Instant::now();
        server.shutdown().await.unwrap();
        assert_eq!(begun.elapsed(), Duration::ZERO);
    }
}
