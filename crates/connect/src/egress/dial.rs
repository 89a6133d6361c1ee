//! Opens connections to checked addresses.
//!
//! This is the only place that opens sockets. It is behind a trait, so that a test can observe the addresses
//! of a delivery without connecting to them. It handles addresses only, no names, and does not check them.

use std::{fmt, io, net::SocketAddr};

use async_trait::async_trait;
use tokio::{
    io::{AsyncRead, AsyncWrite},
    net::TcpStream,
};

/// A bidirectional byte stream.
pub trait Channel: AsyncRead + AsyncWrite + Send + Unpin + 'static {}

impl<T: AsyncRead + AsyncWrite + Send + Unpin + 'static> Channel for T {}

/// Opens connections to addresses that have been checked.
#[async_trait]
pub trait Dial: Send + Sync + fmt::Debug + 'static {
    /// Connects to exactly this address.
    ///
    /// # Errors
    /// Returns an error if the connection fails; another address or a retry may succeed.
    ///
    /// # Cancel safety
    /// Dropping the future leaves no connection behind.
    async fn dial(&self, address: SocketAddr) -> io::Result<Box<dyn Channel>>;
}

/// TCP connections of the operating system.
#[derive(Debug, Clone, Copy, Default)]
pub struct SystemDial;

#[async_trait]
impl Dial for SystemDial {
    async fn dial(&self, address: SocketAddr) -> io::Result<Box<dyn Channel>> {
        let stream = TcpStream::connect(address).await?;
        // Requests are written as a whole, so Nagle's algorithm would only delay them.
        stream.set_nodelay(true)?;
        Ok(Box::new(stream))
    }
}
