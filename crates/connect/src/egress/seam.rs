//! The named places where this host reaches out.
//!
//! The table that guards them is the table that lists them, so nothing can be sent from a seam
//! that an operator cannot see. A closed seam refuses before anything is resolved; a replay fork
//! holds a gate with all of them closed.

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
    /// Every seam there is.
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

    /// Whether each request goes over a connection of its own, to an address that was looked up and judged for it: so
    /// go those whose urls anybody may register (RFC 0093).
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

/// Which seams are open.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct Seams(u8);

impl Seams {
    /// All open: a host at work.
    #[must_use]
    pub const fn open() -> Self {
        Self(u8::MAX)
    }

    /// All closed: a replay fork.
    #[must_use]
    pub const fn closed() -> Self {
        Self(0)
    }

    /// The same table with one seam closed.
    #[must_use]
    pub const fn without(self, seam: Seam) -> Self {
        Self(self.0 & !seam.bit())
    }

    /// The same table with one seam open.
    #[must_use]
    pub const fn with(self, seam: Seam) -> Self {
        Self(self.0 | seam.bit())
    }

    /// Whether requests from the seam may leave.
    #[must_use]
    pub const fn is_open(self, seam: Seam) -> bool {
        self.0 & seam.bit() != 0
    }

    /// Every seam with its state, in a stable order.
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
    fn one_seam_is_closed_without_touching_the_others() {
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
    fn a_closed_table_opens_one_at_a_time() {
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
