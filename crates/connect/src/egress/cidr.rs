//! Address blocks, in the notation an operator uses in the allow-list.

use std::{
    fmt,
    net::{AddrParseError, IpAddr},
    str::FromStr,
};

use super::address::judged;

/// A block of addresses of one family. A single address is a block of size one.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct Cidr {
    /// The bits after `prefix` are zero.
    network: IpAddr,
    /// At most 32 for IPv4 and 128 for IPv6.
    prefix: u8,
}

#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum CidrError {
    #[error("read {text:?} as an address block")]
    Address { text: String, source: AddrParseError },
    /// The part after the slash is not a number from 0 to the width of the address.
    #[error("read the prefix length of {text:?}, which ends at {width}")]
    Prefix {
        text: String,
        /// 32 or 128.
        width: u8,
    },
    /// The block lies in a range whose addresses are classified by the IPv4 address they embed.
    #[error("take {text:?} as a block of its own: write its ipv4 addresses instead")]
    Embedded { text: String },
}

impl Cidr {
    /// The block of one address. One that embeds an IPv4 address stands for that.
    #[must_use]
    pub fn of(address: IpAddr) -> Self {
        let network = judged(address);
        let prefix = match network {
            IpAddr::V4(_) => 32,
            IpAddr::V6(_) => 128,
        };
        Self { network, prefix }
    }

    /// Returns `true` if the address is in the block. IPv4-mapped and NAT64 addresses count as the IPv4
    /// address they embed, so an IPv6 block never allows one.
    #[must_use]
    pub fn contains(&self, address: IpAddr) -> bool {
        match (self.network, judged(address)) {
            (IpAddr::V4(net), IpAddr::V4(v4)) => mask32(v4.to_bits(), self.prefix) == net.to_bits(),
            (IpAddr::V6(net), IpAddr::V6(v6)) => mask128(v6.to_bits(), self.prefix) == net.to_bits(),
            (IpAddr::V4(_), IpAddr::V6(_)) | (IpAddr::V6(_), IpAddr::V4(_)) => false,
        }
    }
}

fn mask32(bits: u32, prefix: u8) -> u32 {
    bits & u32::MAX.checked_shl(32 - u32::from(prefix)).unwrap_or(0)
}

fn mask128(bits: u128, prefix: u8) -> u128 {
    bits & u128::MAX.checked_shl(128 - u32::from(prefix)).unwrap_or(0)
}

impl FromStr for Cidr {
    type Err = CidrError;

    /// Host bits are cleared: `127.0.0.1/8` means 127.0.0.0/8.
    fn from_str(text: &str) -> Result<Self, CidrError> {
        let (address, length) = match text.split_once('/') {
            Some((address, length)) => (address, Some(length)),
            None => (text, None),
        };
        let address: IpAddr = address.parse().map_err(|source| CidrError::Address {
            text: text.to_owned(),
            source,
        })?;
        let width: u8 = if address.is_ipv4() { 32 } else { 128 };
        let prefix = match length {
            None => width,
            Some(digits) => digits
                .bytes()
                .all(|b| b.is_ascii_digit())
                .then(|| digits.parse().ok())
                .flatten()
                .filter(|n| *n <= width)
                .ok_or_else(|| CidrError::Prefix {
                    text: text.to_owned(),
                    width,
                })?,
        };
        let network = match address {
            IpAddr::V4(v4) => IpAddr::V4(mask32(v4.to_bits(), prefix).into()),
            IpAddr::V6(v6) => IpAddr::V6(mask128(v6.to_bits(), prefix).into()),
        };
        if prefix >= 96 && judged(network) != network {
            return Err(CidrError::Embedded {
                text: text.to_owned(),
            });
        }
        Ok(Self { network, prefix })
    }
}

impl fmt::Display for Cidr {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.network, self.prefix)
    }
}

impl fmt::Debug for Cidr {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn blocks_are_displayed_in_canonical_form() {
        for (text, shown) in [
            ("127.0.0.0/8", "127.0.0.0/8"),
            ("127.0.0.1/8", "127.0.0.0/8"),
            ("10.1.2.3", "10.1.2.3/32"),
            ("0.0.0.0/0", "0.0.0.0/0"),
            ("::1", "::1/128"),
            ("fd00:1234::9/32", "fd00:1234::/32"),
            ("::/0", "::/0"),
        ] {
            assert_eq!(text.parse::<Cidr>().unwrap().to_string(), shown);
        }
    }

    #[test]
    fn malformed_blocks_are_rejected() {
        for text in [
            "",
            "/8",
            "localhost",
            "127.1/8",
            "256.0.0.0/8",
            "[::1]",
            "fe80::1%eth0",
            "0x7f.0.0.1",
            "010.0.0.1",
        ] {
            assert!(
                matches!(text.parse::<Cidr>(), Err(CidrError::Address { .. })),
                "{text:?}"
            );
        }
        for text in [
            "10.0.0.0/",
            "10.0.0.0/33",
            "10.0.0.0/-1",
            "10.0.0.0/+8",
            "10.0.0.0/8/8",
            "::/129",
            "::/999",
            "1.2.3.4/a",
        ] {
            assert!(
                matches!(text.parse::<Cidr>(), Err(CidrError::Prefix { .. })),
                "{text:?}"
            );
        }
        for text in [
            "::ffff:127.0.0.1",
            "::ffff:127.0.0.0/104",
            "64:ff9b::/96",
            "64:ff9b::a00:1",
        ] {
            assert!(
                matches!(text.parse::<Cidr>(), Err(CidrError::Embedded { .. })),
                "{text:?}"
            );
        }
    }

    #[test]
    fn membership_depends_on_prefix_and_family() {
        for (block, address, inside) in [
            ("127.0.0.0/8", "127.255.0.1", true),
            ("127.0.0.0/8", "128.0.0.1", false),
            ("127.0.0.0/8", "::1", false),
            ("127.0.0.0/8", "::ffff:127.0.0.1", true),
            ("10.0.0.0/8", "64:ff9b::10.0.0.1", true),
            ("10.0.0.0/31", "10.0.0.1", true),
            ("10.0.0.0/31", "10.0.0.2", false),
            ("10.0.0.7", "10.0.0.7", true),
            ("10.0.0.7", "10.0.0.6", false),
            ("0.0.0.0/0", "169.254.169.254", true),
            ("0.0.0.0/0", "fe80::1", false),
            ("::1", "::1", true),
            ("::1", "::2", false),
            ("fd00::/8", "fdff::1", true),
            ("fd00::/8", "fc00::1", false),
            ("::/0", "fe80::1", true),
            ("::/0", "10.0.0.1", false),
            ("::/0", "::ffff:10.0.0.1", false),
        ] {
            let block: Cidr = block.parse().unwrap();
            assert_eq!(
                block.contains(address.parse().unwrap()),
                inside,
                "{address} in {block}"
            );
        }
    }
}
