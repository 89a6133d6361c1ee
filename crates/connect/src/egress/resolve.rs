//! Name resolution, with a policy check of the addresses before anything connects to them.
//!
//! The gate connects to the addresses that a lookup returned, without a second lookup that a DNS rebinding
//! attack could answer differently. Literal addresses are not handled here.

use std::{fmt, io, net::IpAddr};

use async_trait::async_trait;

use super::policy::{Policy, Refusal, Transport};

#[async_trait]
pub trait Resolver: Send + Sync + fmt::Debug + 'static {
    /// Returns all addresses of a name, in the order to try them.
    ///
    /// # Errors
    /// Returns an error if the lookup failed; a retry may succeed.
    async fn resolve(&self, name: &str) -> io::Result<Vec<IpAddr>>;
}

/// The resolver of the operating system.
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

#[derive(Debug)]
pub(super) enum LookupError {
    /// An address violates the policy.
    Refused(Refusal),
    Failed(io::Error),
}

/// Resolves a name once and checks all its addresses together.
pub(super) async fn lookup(
    policy: &Policy,
    resolver: &dyn Resolver,
    transport: Transport,
    name: &str,
) -> Result<Vec<IpAddr>, LookupError> {
    let addresses = resolver.resolve(name).await.map_err(LookupError::Failed)?;
    let judged = policy.check_resolved(transport, name, &addresses);
    judged.map_err(LookupError::Refused)?;
    Ok(addresses)
}
