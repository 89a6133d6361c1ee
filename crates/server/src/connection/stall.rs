//! Write-stall timeout for slow readers.
//!
//! Unread output keeps a response, its request's state and a connection in memory, so a connection whose writes
//! make no progress for a while is closed. Progress is what the kernel's send buffer accepts. The kernel
//! reports free space only when about a third of the buffer is free, which may be megabytes. The timeout is
//! therefore long, so that a client that reads a few kilobytes per second is not cut off.

use std::{
    io,
    pin::Pin,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    task::{Context, Poll, ready},
    time::Duration,
};

use parking_lot::Mutex;
use tokio::{
    io::{AsyncRead, AsyncWrite, ReadBuf},
    time::Sleep,
};

use crate::admission::Slot;

/// Maximum time without write progress.
pub(super) const STALL: Duration = Duration::from_secs(300);

/// Write progress of a connection.
#[derive(Debug, Clone, Default)]
pub(super) struct Written(Arc<Progress>);

#[derive(Debug, Default)]
struct Progress {
    bytes: AtomicU64,
    /// Set while the client blocks a write.
    is_blocked: AtomicBool,
    /// Slots of requests whose responses may not be fully written yet.
    kept: Mutex<Vec<Slot>>,
}

impl Written {
    pub(super) fn bytes(&self) -> u64 {
        self.0.bytes.load(Ordering::Relaxed)
    }

    pub(super) fn add(&self, n_bytes: u64) {
        self.0.bytes.fetch_add(n_bytes, Ordering::Relaxed);
    }

    /// Keeps a slot until all output is written, if a write is blocked.
    pub(super) fn keep(&self, slot: Slot) {
        if self.0.is_blocked.load(Ordering::Relaxed) {
            self.0.kept.lock().push(slot);
        }
    }

    fn blocked(&self) {
        self.0.is_blocked.store(true, Ordering::Relaxed);
    }

    /// Releases the slots, as all output is written.
    fn flushed(&self) {
        if self.0.is_blocked.swap(false, Ordering::Relaxed) {
            let kept = std::mem::take(&mut *self.0.kept.lock());
            drop(kept);
        }
    }
}

/// A stream whose writes fail with `TimedOut` if its reader makes no progress for [`STALL`].
#[derive(Debug)]
pub(super) struct Stalling<S> {
    stream: S,
    written: Written,
    /// The deadline of a pending write.
    waits: Option<Pin<Box<Sleep>>>,
}

impl<S> Stalling<S> {
    pub(super) fn new(stream: S) -> Self {
        Self {
            stream,
            written: Written::default(),
            waits: None,
        }
    }

    pub(super) fn written(&self) -> Written {
        self.written.clone()
    }

    /// Returns the result of a write, or `TimedOut` once it has been pending for too long.
    fn judged<T>(&mut self, cx: &mut Context<'_>, done: Poll<io::Result<T>>) -> Poll<io::Result<T>> {
        if done.is_ready() {
            self.waits = None;
            return done;
        }
        self.written.blocked();
        let waits = (self.waits).get_or_insert_with(|| Box::pin(tokio::time::sleep(STALL)));
        ready!(waits.as_mut().poll(cx));
        Poll::Ready(Err(io::ErrorKind::TimedOut.into()))
    }

    fn counted(&self, done: &Poll<io::Result<usize>>) {
        if let Poll::Ready(Ok(n)) = done {
            self.written.add(*n as u64);
        }
    }
}

impl<S: AsyncRead + Unpin> AsyncRead for Stalling<S> {
    fn poll_read(self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.get_mut().stream).poll_read(cx, buf)
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for Stalling<S> {
    fn poll_write(self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &[u8]) -> Poll<io::Result<usize>> {
        let this = self.get_mut();
        let done = Pin::new(&mut this.stream).poll_write(cx, buf);
        this.counted(&done);
        this.judged(cx, done)
    }

    fn poll_flush(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let this = self.get_mut();
        let done = Pin::new(&mut this.stream).poll_flush(cx);
        if let Poll::Ready(Ok(())) = done {
            this.written.flushed();
        }
        this.judged(cx, done)
    }

    fn poll_shutdown(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let this = self.get_mut();
        let done = Pin::new(&mut this.stream).poll_shutdown(cx);
        this.judged(cx, done)
    }

    fn poll_write_vectored(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bufs: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let this = self.get_mut();
        let done = Pin::new(&mut this.stream).poll_write_vectored(cx, bufs);
        this.counted(&done);
        this.judged(cx, done)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }
}

#[cfg(test)]
mod tests {
    use tokio::{
        io::{AsyncReadExt as _, AsyncWriteExt as _},
        time::Instant,
    };

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn stalled_write_times_out() {
        let (_client, server) = tokio::io::duplex(8);
        let mut server = Stalling::new(server);
        let written = server.written();
        let begun = Instant::now();
        let error = server.write_all(&[0; 9]).await.unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::TimedOut);
        assert!(begun.elapsed() >= STALL && begun.elapsed() < STALL * 2);
        assert_eq!(written.bytes(), 8);
    }

    #[tokio::test(start_paused = true)]
    async fn slow_reader_does_not_time_out() {
        let (mut client, server) = tokio::io::duplex(1);
        let mut server = Stalling::new(server);
        let writes = tokio::spawn(async move { server.write_all(&[7; 10]).await });
        let mut taken = Vec::new();
        while taken.len() < 10 {
            // sleep: the reader is slow, in virtual time
            tokio::time::sleep(STALL - Duration::from_secs(1)).await;
            taken.push(client.read_u8().await.unwrap());
        }
        writes.await.unwrap().unwrap();
        assert_eq!(taken, [7; 10]);
    }
}
