//! Seams: the named places from which this host opens outbound connections.
//!
//! The same table guards the seams and lists them, so every seam is visible to the operator. A closed seam
//! refuses a request before anything is resolved. A replay fork uses a gate with all seams closed.

use std::fmt;

/// A place in the host that opens outbound connections.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Seam {
    /// `core.http.request`.
    HttpNode,
    /// Push notifications to a client's endpoint.
    Push,
    /// Webhook deliveries and run callbacks.
    Webhook,
    /// Calls to remote agents.
    A2a,
    /// Calls to tool servers.
    Mcp,
    /// Calls to model providers.
    Model,
    /// Key sets of token issuers.
    Jwks,
    /// Agent cards of remote agents.
    Card,
}

impl Seam {
    pub const ALL: [Self; 8] = [
        Self::HttpNode,
        Self::Push,
        Self::Webhook,
        Self::A2a,
        Self::Mcp,
        Self::Model,
        Self::Jwks,
        Self::Card,
    ];

    /// The stable name in logs, configuration and listings.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::HttpNode => "http-node",
            Self::Push => "push",
            Self::Webhook => "webhook",
            Self::A2a => "a2a",
            Self::Mcp => "mcp",
            Self::Model => "model",
            Self::Jwks => "jwks",
            Self::Card => "card",
        }
    }

    /// Returns `true` if each request needs a new connection to an address resolved and checked for it. This
    /// applies to the seams whose URLs clients register (RFC 0093).
    pub(super) const fn is_delivery(self) -> bool {
        match self {
            Self::Push | Self::Webhook => true,
            Self::HttpNode | Self::A2a | Self::Mcp | Self::Model | Self::Jwks | Self::Card => false,
        }
    }

    const fn bit(self) -> u8 {
        1 << self as u8
    }
}

impl fmt::Display for Seam {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

#[derive(Clone, Copy, PartialEq, Eq)]
pub struct Seams(u8);

impl Seams {
    /// All seams open: a host in normal operation.
    #[must_use]
    pub const fn open() -> Self {
        Self(u8::MAX)
    }

    /// All seams closed: a replay fork.
    #[must_use]
    pub const fn closed() -> Self {
        Self(0)
    }

    /// A copy with one more seam closed.
    #[must_use]
    pub const fn without(self, seam: Seam) -> Self {
        Self(self.0 & !seam.bit())
    }

    /// A copy with one more seam open.
    #[must_use]
    pub const fn with(self, seam: Seam) -> Self {
        Self(self.0 | seam.bit())
    }

    #[must_use]
    pub const fn is_open(self, seam: Seam) -> bool {
        self.0 & seam.bit() != 0
    }

    /// All seams with their state, in a stable order.
    pub fn iter(self) -> impl Iterator<Item = (Seam, bool)> {
        Seam::ALL.into_iter().map(move |seam| (seam, self.is_open(seam)))
    }
}

impl fmt::Debug for Seams {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_map()
            .entries(self.iter().map(|(seam, open)| (seam.name(), open)))
            .finish()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn closing_a_seam_leaves_the_others_open() {
        let seams = Seams::open().without(Seam::Push);
        assert_eq!(
            seams
                .iter()
                .filter(|(_, open)| !open)
                .map(|(seam, _)| seam)
                .collect::<Vec<_>>(),
            [Seam::Push]
        );
        assert_eq!(seams.with(Seam::Push), Seams::open());
        assert_eq!(seams.iter().count(), Seam::ALL.len());
    }

    #[test]
    fn opening_a_seam_leaves_the_others_closed() {
        for seam in Seam::ALL {
            let seams = Seams::closed().with(seam);
            assert_eq!(
                seams
                    .iter()
                    .filter(|(_, open)| *open)
                    .map(|(s, _)| s)
                    .collect::<Vec<_>>(),
                [seam]
            );
        }
    }
}
