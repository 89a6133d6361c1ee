//! Detects a connection's protocol from its first bytes, which are replayed to the protocol's implementation.

use std::{
    io,
    pin::Pin,
    task::{Context, Poll},
};

use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWrite, ReadBuf};

/// The client preface of HTTP/2 with prior knowledge (RFC 9113 section 3.4).
const PREFACE: &[u8; 24] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Protocol {
    Http1,
    Http2,
}

/// Reads until the protocol is known, and returns the bytes read.
///
/// # Errors
/// If the connection fails, or ends without a byte.
pub(super) async fn recognize<S: AsyncRead + Unpin>(stream: &mut S) -> io::Result<(Protocol, Vec<u8>)> {
    let mut read = Vec::with_capacity(PREFACE.len());
    while read.len() < PREFACE.len() {
        let left = (PREFACE.len() - read.len()) as u64;
        let n = (&mut *stream).take(left).read_buf(&mut read).await?;
        if n == 0 && read.is_empty() {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        if n == 0 || !PREFACE.starts_with(&read) {
            return Ok((Protocol::Http1, read));
        }
    }
    Ok((Protocol::Http2, read))
}

/// A stream that first returns bytes that were read from it before.
#[derive(Debug)]
pub(super) struct Replayed<S> {
    prefix: Vec<u8>,
    /// How much of the prefix was replayed.
    at: usize,
    stream: S,
}

impl<S> Replayed<S> {
    pub(super) const fn new(prefix: Vec<u8>, stream: S) -> Self {
        Self {
            prefix,
            at: 0,
            stream,
        }
    }
}

impl<S: AsyncRead + Unpin> AsyncRead for Replayed<S> {
    fn poll_read(self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        let this = self.get_mut();
        let rest = &this.prefix[this.at..];
        if rest.is_empty() {
            return Pin::new(&mut this.stream).poll_read(cx, buf);
        }
        let n = rest.len().min(buf.remaining());
        buf.put_slice(&rest[..n]);
        this.at += n;
        Poll::Ready(Ok(()))
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for Replayed<S> {
    hand_on_writes!();
    hand_on_shutdown!();
}

#[cfg(test)]
mod tests {
    use tokio::io::AsyncWriteExt as _;

    use super::*;

    /// Sends the pieces one by one; returns the detected protocol and all bytes read afterwards.
    async fn recognized(pieces: &[&[u8]]) -> (Protocol, Vec<u8>) {
        let (mut client, mut server) = tokio::io::duplex(1);
        let pieces: Vec<Vec<u8>> = pieces.iter().map(|piece| piece.to_vec()).collect();
        let sends = tokio::spawn(async move {
            for piece in pieces {
                client.write_all(&piece).await.unwrap();
            }
        });
        let (protocol, prefix) = recognize(&mut server).await.unwrap();
        let mut all = Vec::new();
        Replayed::new(prefix, server).read_to_end(&mut all).await.unwrap();
        sends.await.unwrap();
        (protocol, all)
    }

    #[tokio::test]
    async fn first_bytes_are_replayed() {
        for (bytes, wanted) in [
            (&b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\nmore"[..], Protocol::Http2),
            (b"PRI * HTTP/2.0\r\n\r\nSX\r\n\r\nmore", Protocol::Http1),
            (b"POST /a2a HTTP/1.1\r\n\r\n", Protocol::Http1),
            (b"PRI", Protocol::Http1),
            (b"G", Protocol::Http1),
            (b"\x16\x03\x01", Protocol::Http1),
        ] {
            assert_eq!(recognized(&[bytes]).await, (wanted, bytes.to_vec()));
            let (head, tail) = bytes.split_at(bytes.len() / 2);
            assert_eq!(recognized(&[head, tail]).await, (wanted, bytes.to_vec()));
        }
    }

    #[tokio::test]
    async fn connection_without_a_byte_is_an_error() {
        let (client, mut server) = tokio::io::duplex(1);
        drop(client);
        assert!(recognize(&mut server).await.is_err());
    }
}
