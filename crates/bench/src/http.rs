//! A minimal HTTP/1.1 client for load: one persistent connection, one request at a time, no TLS.
//!
//! The load generator shares its cores with the server, so all CPU time spent here is taken from the server.
//! The client writes prepared bytes, reads into a reused buffer, and parses only what our server sends: a
//! status, and `content-length` or chunks. It does not retry, follow redirects or decompress.

use std::{io, net::SocketAddr};

use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::TcpStream,
};

/// Maximum response head in bytes; ours have a few hundred.
const HEAD_LIMIT: usize = 64 << 10;
/// Maximum body in bytes, so that a broken server cannot exhaust our memory.
const BODY_LIMIT: usize = 256 << 20;
/// Size of one read in bytes.
const READ_SIZE: usize = 16 << 10;

#[derive(Debug)]
pub(crate) struct Connection {
    stream: TcpStream,
    /// Received bytes; those from `start` on are not consumed yet.
    input: Vec<u8>,
    start: usize,
    /// The unread rest of the current body.
    rest: Rest,
    /// The server closes the connection after this exchange.
    is_last: bool,
}

/// How the end of a body is determined.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Rest {
    /// The body has ended.
    Nothing,
    /// By length; holds the number of bytes left.
    Bytes(usize),
    /// By an empty chunk; holds the number of bytes left of the current chunk.
    Chunks(usize),
    /// By the end of the connection.
    Close,
}

impl Connection {
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

    /// Returns `true` if another request may follow: the body was read and the server keeps the connection
    /// open.
    pub(crate) fn is_reusable(&self) -> bool {
        self.rest == Rest::Nothing && !self.is_last
    }

    /// Sends a request and returns the status of the response. The body is still unread.
    pub(crate) async fn send(&mut self, request: &[u8]) -> io::Result<u16> {
        self.stream.write_all(request).await?;
        loop {
            let status = self.head().await?;
            // Skips interim responses.
            if status >= 200 {
                return Ok(status);
            }
        }
    }

    /// Appends the rest of the body.
    pub(crate) async fn body(&mut self, body: &mut Vec<u8>) -> io::Result<()> {
        while self.chunk(body).await? {
            if body.len() > BODY_LIMIT {
                return Err(broken("the body is too large"));
            }
        }
        Ok(())
    }

    /// Waits for body data and appends it. Returns `false` at the end of the body.
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
                    // Trailers; our server sends none, so this reads an empty line.
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

    /// Moves at least one and at most `limit` bytes into `body`.
    async fn take(&mut self, limit: usize, body: &mut Vec<u8>) -> io::Result<usize> {
        if self.start == self.input.len() && !self.fill().await? {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        let n = limit.min(self.input.len() - self.start);
        body.extend_from_slice(&self.input[self.start..self.start + n]);
        self.start += n;
        Ok(n)
    }

    /// Reads a line, without its line break.
    async fn line(&mut self) -> io::Result<&[u8]> {
        let mut searched = self.start;
        let end = loop {
            if let Some(at) = self.input[searched..].iter().position(|byte| *byte == b'\n') {
                break searched + at;
            }
            if self.input.len() - self.start > HEAD_LIMIT {
                return Err(broken("a line is too long"));
            }
            // `fill` moves the unconsumed bytes to the front.
            searched = self.input.len() - self.start;
            if !self.fill().await? {
                return Err(io::ErrorKind::UnexpectedEof.into());
            }
        };
        let line = &self.input[self.start..end];
        self.start = end + 1;
        Ok(line.strip_suffix(b"\r").unwrap_or(line))
    }

    /// Reads more data. Returns `false` at the end of the connection.
    async fn fill(&mut self) -> io::Result<bool> {
        self.input.drain(..self.start);
        self.start = 0;
        self.input.reserve(READ_SIZE);
        Ok(self.stream.read_buf(&mut self.input).await? > 0)
    }
}

/// Returns the value of a header line with this name.
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

/// Writes a request. `fields` are complete header lines, each with its line break.
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

    /// Serves one connection with these bytes, in pieces of the given size.
    async fn check(answer: &'static str, piece: usize) -> io::Result<(u16, String, bool)> {
        let listener = TcpListener::bind("127.0.0.1:0")?;
        let address = listener.local_addr()?;
        let server = thread::spawn(move || {
            let (mut stream, _) = listener.accept().unwrap();
            stream.set_nodelay(true).unwrap();
            // Closing a socket with unread bytes would reset the connection.
            let _ = stream.read(&mut [0; 100]);
            for piece in answer.as_bytes().chunks(piece) {
                // Fails if the client has stopped reading.
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
    async fn body_ends_as_its_head_says() {
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
    async fn truncated_body_is_an_error() {
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
