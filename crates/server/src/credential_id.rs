//! The unit by which memory is shared: the tenant of a request, whichever key or token it uses, or the client's
//! network if it has no credential.

use std::{
    hash::{BuildHasher as _, Hash},
    net::IpAddr,
    sync::LazyLock,
};

use foldhash::quality::RandomState;

use crate::auth::Caller;

/// A hashed tenant or network. Two that collide share a budget.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) enum CredentialId {
    /// All callers of a tenant.
    Tenant(u64),
    /// All clients of a network that are not authenticated, or not yet.
    Stranger(u64),
    /// Like `Stranger`, on a network from which a caller authenticated recently.
    Neighbor(u64),
}

/// A network attributed to one party: an IPv4 address, or the first 64 bits of an IPv6 address, which is the
/// smallest usual assignment.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) struct Network([u8; 8]);

impl Network {
    pub(crate) fn of(address: IpAddr) -> Self {
        let mut bytes = [0; 8];
        match address.to_canonical() {
            // No IPv6 address in use starts with four zero bytes.
            IpAddr::V4(address) => bytes[4..].copy_from_slice(&address.octets()),
            IpAddr::V6(address) => bytes.copy_from_slice(&address.octets()[..8]),
        }
        Self(bytes)
    }
}

impl CredentialId {
    pub(crate) fn caller(caller: &Caller) -> Self {
        Self::Tenant(hash(&caller.tenant))
    }

    pub(crate) fn stranger(network: Network) -> Self {
        Self::Stranger(hash(&network))
    }

    pub(crate) fn neighbor(network: Network) -> Self {
        Self::Neighbor(hash(&network))
    }

    /// For requests that did not arrive over a connection of this host.
    pub(crate) const fn nobody() -> Self {
        Self::Stranger(0)
    }

    #[cfg(test)]
    pub(crate) const fn number(number: u64) -> Self {
        Self::Tenant(number)
    }
}

fn hash(value: &impl Hash) -> u64 {
    static STATE: LazyLock<RandomState> = LazyLock::new(RandomState::default);
    STATE.hash_one(value)
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use wopr_core::{PrincipalId, TenantId};

    use super::*;
    use crate::auth::Scopes;

    #[test]
    fn keys_of_one_tenant_share_a_credential_id() {
        let caller = |key: &str, tenant: &str| Caller {
            key_id: Arc::from(key),
            tenant: TenantId::parse(tenant).unwrap(),
            principal: PrincipalId::parse(key).unwrap(),
            scopes: Scopes::ALL,
            membership: Arc::default(),
        };
        let credential = |key, tenant| CredentialId::caller(&caller(key, tenant));
        assert_eq!(credential("k1", "acme"), credential("k2", "acme"));
        assert_ne!(credential("k1", "acme"), credential("k1", "other"));
    }

    #[test]
    fn ipv6_networks_are_64_bits() {
        let network = |text: &str| Network::of(text.parse().unwrap());
        assert_eq!(network("2001:db8:1:2::1"), network("2001:db8:1:2:ffff::9"));
        assert_ne!(network("2001:db8:1:2::1"), network("2001:db8:1:3::1"));
        assert_eq!(network("::ffff:192.0.2.1"), network("192.0.2.1"));
        assert_ne!(network("192.0.2.1"), network("192.0.2.2"));
    }
}
