//! From a checked address to a connection.
//!
//! The one place that opens sockets, behind a trait so that a test can see which addresses a delivery would reach
//! without reaching any of them. Names never come here, and nothing here judges an address.

use std::{fmt, io, net::SocketAddr};

use async_trait::async_trait;
use tokio::{
    io::{AsyncRead, AsyncWrite},
    net::TcpStream,
};

/// Bytes both ways.
pub trait Channel: AsyncRead + AsyncWrite + Send + Unpin + 'static {}

impl<T: AsyncRead + AsyncWrite + Send + Unpin + 'static> Channel for T {}

/// Opens connections to addresses that were checked.
#[async_trait]
pub trait Dial: Send + Sync + fmt::Debug + 'static {
    /// Connects to exactly this address.
    ///
    /// # Errors
    /// There is no connection; another address or another time may do.
    ///
    /// # Cancel safety
    /// Dropping the future leaves no connection behind.
    async fn dial(&self, address: SocketAddr) -> io::Result<Box<dyn Channel>>;
}

/// TCP by the operating system.
#[derive(Debug, Clone, Copy, Default)]
pub struct SystemDial;

#[async_trait]
impl Dial for SystemDial {
    async fn dial(&self, address: SocketAddr) -> io::Result<Box<dyn Channel>> {
        let stream = TcpStream::connect(address).await?;
        // Requests are written whole; waiting for more would only delay them.
        stream.set_nodelay(true)?;
        Ok(Box::new(stream))
    }
}
