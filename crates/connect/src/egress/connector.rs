//! Connects to the authority of a URL, after the policy check of its addresses.
//!
//! A name is resolved once, all its addresses are checked, and only checked addresses are dialed, so DNS
//! rebinding cannot change the address afterwards. Literal addresses are checked here again, although the
//! gate already did, so that no path to a socket bypasses the policy. TLS verifies the certificate against
//! the host name of the URL, never against the address.

use std::{
    error::Error,
    io,
    net::{IpAddr, SocketAddr},
    pin::Pin,
    sync::Arc,
    task::{Context, Poll},
    time::Duration,
};

use http::{Uri, uri::Scheme};
use hyper::rt::{Read, ReadBufCursor, Write};
use hyper_util::{
    client::legacy::connect::{Connected, Connection},
    rt::TokioIo,
};
use rustls::{ClientConfig, pki_types::ServerName};
use tokio::time::{Instant, timeout};
use tokio_rustls::TlsConnector;
use tower::Service;

use super::{
    dial::{Channel, Dial},
    policy::{Policy, Refusal, Transport, without_final_dot},
    resolve::{LookupError, Resolver, lookup},
    tls::TlsError,
};

/// A failed connection. The HTTP client wraps this error, and the gate extracts it again.
#[derive(Debug, thiserror::Error)]
pub(super) enum ConnectError {
    #[error("{0}")]
    Refused(Refusal),
    #[error("resolve a host name")]
    Unresolved(#[source] io::Error),
    #[error("open a connection")]
    Unreachable(#[source] io::Error),
    #[error("use a host name without a certificate's form")]
    Name,
    #[error("set up tls")]
    Tls(#[source] TlsError),
    #[error("agree on tls")]
    Handshake(#[source] io::Error),
    #[error("connect in time")]
    Timeout,
}

impl ConnectError {
    /// Finds a `ConnectError` in the source chain of an error.
    pub(super) fn within<'a>(error: &'a (dyn Error + 'static)) -> Option<&'a Self> {
        let mut next = Some(error);
        while let Some(error) = next {
            if let Some(found) = error.downcast_ref() {
                return Some(found);
            }
            next = error.source();
        }
        None
    }
}

impl From<LookupError> for ConnectError {
    fn from(error: LookupError) -> Self {
        match error {
            LookupError::Refused(refusal) => Self::Refused(refusal),
            LookupError::Failed(error) => Self::Unresolved(error),
        }
    }
}

/// The protocols to offer in a TLS handshake.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Alpn {
    Http1,
    Either,
    Http2,
}

/// The identifier of HTTP/2 over TLS.
const H2: &[u8] = b"h2";
const HTTP_1_1: &[u8] = b"http/1.1";

/// One TLS configuration for each choice of protocols.
#[derive(Clone)]
pub(super) struct Tls {
    http1: TlsConnector,
    either: TlsConnector,
    http2: TlsConnector,
}

impl Tls {
    pub(super) fn new(config: &ClientConfig) -> Self {
        let offering = |protocols: &[&[u8]]| {
            let mut config = config.clone();
            config.alpn_protocols = protocols.iter().map(|protocol| protocol.to_vec()).collect();
            TlsConnector::from(Arc::new(config))
        };
        Self {
            http1: offering(&[HTTP_1_1]),
            either: offering(&[H2, HTTP_1_1]),
            http2: offering(&[H2]),
        }
    }

    fn offering(&self, alpn: Alpn) -> &TlsConnector {
        match alpn {
            Alpn::Http1 => &self.http1,
            Alpn::Either => &self.either,
            Alpn::Http2 => &self.http2,
        }
    }
}

/// The connector of one HTTP client. Clones share their state.
#[derive(Clone)]
pub(super) struct Connector {
    pub(super) inner: Arc<Inner>,
    pub(super) alpn: Alpn,
}

pub(super) struct Inner {
    pub(super) policy: Arc<Policy>,
    pub(super) resolver: Arc<dyn Resolver>,
    pub(super) dial: Arc<dyn Dial>,
    /// A `Result`, because a host that makes no outbound calls must start without root certificates.
    pub(super) tls: Result<Tls, TlsError>,
    /// From the start of name resolution to an established connection.
    pub(super) timeout: Duration,
}

impl Inner {
    async fn connect(&self, uri: &Uri, alpn: Alpn) -> Result<Open, ConnectError> {
        let transport = if uri.scheme() == Some(&Scheme::HTTPS) {
            Transport::Tls
        } else {
            Transport::Plain
        };
        let host = uri.host().ok_or(ConnectError::Refused(Refusal::Host))?;
        let host = host.trim_start_matches('[').trim_end_matches(']');
        let port = uri.port_u16().unwrap_or(match transport {
            Transport::Plain => 80,
            Transport::Tls => 443,
        });
        let addresses = match host.parse::<IpAddr>() {
            Ok(address) => {
                let judged = self.policy.check_address(transport, address);
                judged.map_err(ConnectError::Refused)?;
                vec![address]
            }
            Err(_) => lookup(&self.policy, &*self.resolver, transport, host).await?,
        };
        match transport {
            Transport::Plain => {
                let channel = self.dial_any(&addresses, port).await?;
                Ok(Open {
                    channel: TokioIo::new(channel),
                    is_http2: false,
                })
            }
            Transport::Tls => {
                let name = ServerName::try_from(without_final_dot(host).to_owned());
                let name = name.map_err(|_| ConnectError::Name)?;
                let tls = self
                    .tls
                    .as_ref()
                    .map_err(|error| ConnectError::Tls(error.clone()))?;
                let channel = self.dial_any(&addresses, port).await?;
                let stream = tls.offering(alpn).connect(name, channel).await;
                let stream = stream.map_err(ConnectError::Handshake)?;
                let is_http2 = stream.get_ref().1.alpn_protocol() == Some(H2);
                if alpn == Alpn::Http2 && !is_http2 {
                    let error = io::Error::other("the peer does not speak HTTP/2");
                    return Err(ConnectError::Handshake(error));
                }
                Ok(Open {
                    channel: TokioIo::new(Box::new(stream)),
                    is_http2,
                })
            }
        }
    }

    /// Tries the addresses in order. Each attempt gets an equal share of the remaining time, so that an
    /// address that drops packets does not use up the time of the next ones.
    async fn dial_any(&self, addresses: &[IpAddr], port: u16) -> Result<Box<dyn Channel>, ConnectError> {
        let end = Instant::now() + self.timeout;
        let mut failure = ConnectError::Refused(Refusal::NoAddress);
        for (tried, address) in addresses.iter().enumerate() {
            let left = end.saturating_duration_since(Instant::now());
            let shares = u32::try_from(addresses.len() - tried).unwrap_or(u32::MAX);
            let dialed = self.dial.dial(SocketAddr::new(*address, port));
            failure = match timeout(left / shares, dialed).await {
                Ok(Ok(channel)) => return Ok(channel),
                Ok(Err(error)) => ConnectError::Unreachable(error),
                Err(_) => ConnectError::Timeout,
            };
        }
        Err(failure)
    }
}

impl Service<Uri> for Connector {
    type Response = Open;
    type Error = ConnectError;
    type Future = Pin<Box<dyn Future<Output = Result<Open, ConnectError>> + Send>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), ConnectError>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, uri: Uri) -> Self::Future {
        let Self { inner, alpn } = self.clone();
        Box::pin(async move {
            match timeout(inner.timeout, inner.connect(&uri, alpn)).await {
                Ok(connected) => connected,
                Err(_) => Err(ConnectError::Timeout),
            }
        })
    }
}

/// A connection in the type that the HTTP client expects.
pub(super) struct Open {
    channel: TokioIo<Box<dyn Channel>>,
    is_http2: bool,
}

impl Connection for Open {
    fn connected(&self) -> Connected {
        if self.is_http2 {
            Connected::new().negotiated_h2()
        } else {
            Connected::new()
        }
    }
}

impl Read for Open {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: ReadBufCursor<'_>,
    ) -> Poll<io::Result<()>> {
        Pin::new(&mut self.channel).poll_read(cx, buf)
    }
}

impl Write for Open {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &[u8]) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.channel).poll_write(cx, buf)
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.channel).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.channel).poll_shutdown(cx)
    }

    fn is_write_vectored(&self) -> bool {
        self.channel.is_write_vectored()
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bufs: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.channel).poll_write_vectored(cx, bufs)
    }
}
