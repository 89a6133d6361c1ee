//! Names to addresses, judged before anyone may connect to them.
//!
//! The check sits inside the client's resolver: the addresses it hands on are the ones that get
//! connected to, so there is no second look-up for a rebinding name to answer differently.
//! Literal addresses never come through here; the gate judges those before.

use std::{error::Error, fmt, io, net::IpAddr, net::SocketAddr, sync::Arc};

use async_trait::async_trait;
use reqwest::dns::{Addrs, Name, Resolve, Resolving};

use super::policy::{Policy, Refusal, Transport};

/// Looks names up.
#[async_trait]
pub trait Resolver: Send + Sync + fmt::Debug + 'static {
    /// All addresses of a name, in the order to try them.
    ///
    /// # Errors
    /// The look-up failed; trying again may help.
    async fn resolve(&self, name: &str) -> io::Result<Vec<IpAddr>>;
}

/// The operating system's resolver.
#[derive(Debug, Clone, Copy, Default)]
pub struct SystemResolver;

#[async_trait]
impl Resolver for SystemResolver {
    async fn resolve(&self, name: &str) -> io::Result<Vec<IpAddr>> {
        Ok(tokio::net::lookup_host((name, 0))
            .await?
            .map(|socket| socket.ip())
            .collect())
    }
}

/// Why a name led nowhere. Travels through the client's error and is found again by the gate.
#[derive(Debug, thiserror::Error)]
pub(super) enum LookupError {
    #[error("{0}")]
    Refused(Refusal),
    #[error("resolve a host name")]
    Failed(#[source] io::Error),
}

impl LookupError {
    /// Finds one in an error's chain of causes.
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

/// A resolver whose every answer has passed the policy.
#[derive(Debug, Clone)]
pub(super) struct Guard {
    pub(super) policy: Arc<Policy>,
    pub(super) resolver: Arc<dyn Resolver>,
    pub(super) transport: Transport,
}

impl Guard {
    /// Resolves once and judges all answers together.
    pub(super) async fn lookup(&self, name: &str) -> Result<Vec<IpAddr>, LookupError> {
        let addresses = self.resolver.resolve(name).await.map_err(LookupError::Failed)?;
        self.policy
            .check_resolved(self.transport, name, &addresses)
            .map_err(LookupError::Refused)?;
        Ok(addresses)
    }
}

impl Resolve for Guard {
    fn resolve(&self, name: Name) -> Resolving {
        let guard = self.clone();
        Box::pin(async move {
            let addresses = guard.lookup(name.as_str()).await?;
            // Port 0 stands for the port of the url.
            Ok(Box::new(addresses.into_iter().map(|address| SocketAddr::new(address, 0))) as Addrs)
        })
    }
}
