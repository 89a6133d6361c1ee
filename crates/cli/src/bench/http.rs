//! A lean HTTP/1.1 client for load: one kept-alive connection, one request at a time, no TLS.
//!
//! The generator shares its cores with the server it measures, so every microsecond spent here is one the server
//! does not get. The client writes prepared bytes, reads into a buffer it keeps, and understands just what a
//! server of ours sends: a status, `content-length` or chunks. It does not retry, follow or decompress.

use std::{io, net::SocketAddr};

use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::TcpStream,
};

/// The most bytes a head may have; ours have a few hundred.
const HEAD_LIMIT: usize = 64 << 10;
/// The most bytes a body may have, so that a broken server cannot fill our memory.
const BODY_LIMIT: usize = 256 << 20;
/// How much is read at once.
const READ_SIZE: usize = 16 << 10;

/// A connection to a server.
#[derive(Debug)]
pub(crate) struct Connection {
    stream: TcpStream,
    /// Bytes received and not yet consumed are those from `start` on.
    input: Vec<u8>,
    start: usize,
    /// What is still to come of the current body.
    rest: Rest,
    /// Whether the server wants this to have been the last exchange.
    is_last: bool,
}

/// How a body ends.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Rest {
    /// It has ended.
    Nothing,
    /// After so many bytes.
    Bytes(usize),
    /// With an empty chunk; so many bytes of the current one are still to come.
    Chunks(usize),
    /// With the connection.
    Close,
}

impl Connection {
    /// Connects.
    pub(crate) async fn open(address: SocketAddr) -> io::Result<Self> {
        let stream = TcpStream::connect(address).await?;
        stream.set_nodelay(true)?;
        Ok(Self {
            stream,
            input: Vec::with_capacity(READ_SIZE),
            start: 0,
            rest: Rest::Nothing,
            is_last: false,
        })
    }

    /// Whether another request may follow: the last body was read and the server keeps the connection.
    pub(crate) fn is_reusable(&self) -> bool {
        self.rest == Rest::Nothing && !self.is_last
    }

    /// Sends a whole request and returns the status of its answer; the body is still to be read.
    pub(crate) async fn send(&mut self, request: &[u8]) -> io::Result<u16> {
        self.stream.write_all(request).await?;
        loop {
            let status = self.head().await?;
            // An interim answer is followed by the real one.
            if status >= 200 {
                return Ok(status);
            }
        }
    }

    /// Appends the whole body.
    pub(crate) async fn body(&mut self, body: &mut Vec<u8>) -> io::Result<()> {
        while self.chunk(body).await? {
            if body.len() > BODY_LIMIT {
                return Err(broken("the body is too large"));
            }
        }
        Ok(())
    }

    /// Appends what has arrived of the body, waiting until something has; `false` at its end.
    pub(crate) async fn chunk(&mut self, body: &mut Vec<u8>) -> io::Result<bool> {
        match self.rest {
            Rest::Nothing => Ok(false),
            Rest::Bytes(left) => {
                let taken = self.take(left, body).await?;
                self.rest = match left - taken {
                    0 => Rest::Nothing,
                    left => Rest::Bytes(left),
                };
                Ok(true)
            }
            Rest::Chunks(0) => {
                let size = self.chunk_size().await?;
                if size == 0 {
                    // Trailers, of which there are none: an empty line.
                    while !self.line().await?.is_empty() {}
                    self.rest = Rest::Nothing;
                    return Ok(false);
                }
                self.rest = Rest::Chunks(size);
                Ok(true)
            }
            Rest::Chunks(left) => {
                let taken = self.take(left, body).await?;
                if taken == left && !self.line().await?.is_empty() {
                    return Err(broken("a chunk is longer than announced"));
                }
                self.rest = Rest::Chunks(left - taken);
                Ok(true)
            }
            Rest::Close => {
                if self.start == self.input.len() && !self.fill().await? {
                    self.rest = Rest::Nothing;
                    return Ok(false);
                }
                body.extend_from_slice(&self.input[self.start..]);
                self.start = self.input.len();
                Ok(true)
            }
        }
    }

    async fn head(&mut self) -> io::Result<u16> {
        let line = self.line().await?;
        let status = line
            .strip_prefix(b"HTTP/1.1 ")
            .and_then(|rest| std::str::from_utf8(rest.get(..3)?).ok()?.parse().ok())
            .ok_or_else(|| broken("the answer is not HTTP/1.1"))?;
        let mut rest = Rest::Close;
        let mut read = line.len();
        self.is_last = false;
        loop {
            let line = self.line().await?;
            if line.is_empty() {
                break;
            }
            read += line.len();
            if read > HEAD_LIMIT {
                return Err(broken("the head is too large"));
            }
            if let Some(value) = field(line, b"content-length") {
                let length = std::str::from_utf8(value).ok().and_then(|text| text.parse().ok());
                rest = Rest::Bytes(length.ok_or_else(|| broken("the content length is not a number"))?);
            } else if let Some(value) = field(line, b"transfer-encoding") {
                if !value.eq_ignore_ascii_case(b"chunked") {
                    return Err(broken("the transfer encoding is not known"));
                }
                rest = Rest::Chunks(0);
            } else if let Some(value) = field(line, b"connection") {
                self.is_last = value.eq_ignore_ascii_case(b"close");
            }
        }
        self.rest = match rest {
            Rest::Bytes(0) => Rest::Nothing,
            _ if status < 200 || matches!(status, 204 | 304) => Rest::Nothing,
            rest => rest,
        };
        self.is_last |= self.rest == Rest::Close;
        Ok(status)
    }

    async fn chunk_size(&mut self) -> io::Result<usize> {
        let line = self.line().await?;
        let digits = line.split(|byte| *byte == b';').next().unwrap_or_default();
        std::str::from_utf8(digits)
            .ok()
            .and_then(|text| usize::from_str_radix(text.trim(), 16).ok())
            .ok_or_else(|| broken("the size of a chunk is not a number"))
    }

    /// Moves up to `limit` bytes into `body`, at least one.
    async fn take(&mut self, limit: usize, body: &mut Vec<u8>) -> io::Result<usize> {
        if self.start == self.input.len() && !self.fill().await? {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        let n = limit.min(self.input.len() - self.start);
        body.extend_from_slice(&self.input[self.start..self.start + n]);
        self.start += n;
        Ok(n)
    }

    /// The next line, without its end.
    async fn line(&mut self) -> io::Result<&[u8]> {
        let mut searched = self.start;
        let end = loop {
            if let Some(at) = self.input[searched..].iter().position(|byte| *byte == b'\n') {
                break searched + at;
            }
            if self.input.len() - self.start > HEAD_LIMIT {
                return Err(broken("a line is too long"));
            }
            // Filling moves what is left to the front.
            searched = self.input.len() - self.start;
            if !self.fill().await? {
                return Err(io::ErrorKind::UnexpectedEof.into());
            }
        };
        let line = &self.input[self.start..end];
        self.start = end + 1;
        Ok(line.strip_suffix(b"\r").unwrap_or(line))
    }

    /// Reads more; `false` at the end of the connection.
    async fn fill(&mut self) -> io::Result<bool> {
        self.input.drain(..self.start);
        self.start = 0;
        self.input.reserve(READ_SIZE);
        Ok(self.stream.read_buf(&mut self.input).await? > 0)
    }
}

/// The value of a line that has this field.
fn field<'a>(line: &'a [u8], name: &[u8]) -> Option<&'a [u8]> {
    let (head, value) = line.split_at_checked(name.len())?;
    if !head.eq_ignore_ascii_case(name) {
        return None;
    }
    Some(value.strip_prefix(b":")?.trim_ascii())
}

fn broken(what: &'static str) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, what)
}

/// Writes the head of a request and its body into a buffer. `fields` are whole lines, each with its end.
pub(crate) fn write_request(out: &mut Vec<u8>, method: &str, path: &str, fields: &str, body: Option<&[u8]>) {
    for part in [method, " ", path, " HTTP/1.1\r\nhost: localhost\r\n", fields] {
        out.extend_from_slice(part.as_bytes());
    }
    if let Some(body) = body {
        let length = format!(
            "content-type: application/json\r\ncontent-length: {}\r\n",
            body.len()
        );
        out.extend_from_slice(length.as_bytes());
    }
    out.extend_from_slice(b"\r\n");
    out.extend_from_slice(body.unwrap_or_default());
}

#[cfg(test)]
mod tests {
    use std::{
        io::{Read as _, Write as _},
        net::TcpListener,
        thread,
    };

    use super::*;

    /// Answers one connection with these bytes, in pieces of every size from one byte up.
    async fn check(answer: &'static str, piece: usize) -> io::Result<(u16, String, bool)> {
        let listener = TcpListener::bind("127.0.0.1:0")?;
        let address = listener.local_addr()?;
        let server = thread::spawn(move || {
            let (mut stream, _) = listener.accept().unwrap();
            stream.set_nodelay(true).unwrap();
            // Unread bytes would make the end a reset.
            let _ = stream.read(&mut [0; 100]);
            for piece in answer.as_bytes().chunks(piece) {
                // The client may have seen enough.
                let _ = stream.write_all(piece);
            }
        });
        let mut connection = Connection::open(address).await?;
        let mut body = Vec::new();
        let result = async {
            let status = connection.send(b"GET / HTTP/1.1\r\n\r\n").await?;
            connection.body(&mut body).await?;
            Ok(status)
        };
        let status = result.await;
        server.join().unwrap();
        status.map(|status| (status, String::from_utf8(body).unwrap(), connection.is_reusable()))
    }

    #[tokio::test]
    async fn a_body_ends_as_its_head_says() {
        for piece in [1, 3, 7, 1_000] {
            for (answer, expected) in [
                (
                    "HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nhello",
                    (200, "hello", true),
                ),
                (
                    "HTTP/1.1 200 OK\r\ncontent-length: 2\r\nconnection: close\r\n\r\nok",
                    (200, "ok", false),
                ),
                (
                    "HTTP/1.1 201 Created\r\ntransfer-encoding: chunked\r\n\r\n3\r\nabc\r\nA;x=y\r\n0123456789\r\n0\r\n\r\n",
                    (201, "abc0123456789", true),
                ),
                (
                    "HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 204 No Content\r\n\r\n",
                    (204, "", true),
                ),
                (
                    "HTTP/1.1 200 OK\r\n\r\nuntil the end",
                    (200, "until the end", false),
                ),
            ] {
                let (status, body, is_reusable) = check(answer, piece).await.unwrap();
                assert_eq!(
                    (status, body.as_str(), is_reusable),
                    expected,
                    "{answer:?} by {piece}"
                );
            }
        }
    }

    #[tokio::test]
    async fn a_body_cut_short_is_an_error() {
        for answer in [
            "",
            "HTTP/1.1 200 OK\r\ncontent-le",
            "HTTP/1.1 200 OK\r\ncontent-length: 5\r\n\r\nhel",
            "HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n3\r\nabc\r\n",
            "HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\nzz\r\n",
            "HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n1\r\nabc\r\n0\r\n\r\n",
            "SSH-2.0-OpenSSH\r\n\r\n",
        ] {
            assert!(check(answer, 2).await.is_err(), "{answer:?}");
        }
    }
}
