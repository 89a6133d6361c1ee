//! Names to addresses, judged before anyone may connect to them.
//!
//! The addresses a look-up hands on are the ones that get connected to, so there is no second look-up for a rebinding
//! name to answer differently. Literal addresses never come through here.

use std::{fmt, io, net::IpAddr};

use async_trait::async_trait;

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

/// Why a name led nowhere.
#[derive(Debug)]
pub(super) enum LookupError {
    /// An answer breaks a rule.
    Refused(Refusal),
    /// There was no answer.
    Failed(io::Error),
}

/// Resolves once and judges all answers together.
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
