//! Classifies addresses as public, or as refused with a reason.
//!
//! For IPv6 the default is to refuse: only 2000::/3 is public, except for the special ranges inside it, so a
//! range assigned in the future is refused until we review its RFC. An address that embeds an IPv4 address is
//! classified by the embedded address where such addresses are in use (IPv4-mapped, NAT64 with the well-known
//! prefix), and refused where they are deprecated or ambiguous (IPv4-compatible, 6to4, Teredo, local-use NAT64).

use std::{
    fmt,
    net::{IpAddr, Ipv4Addr, Ipv6Addr},
};

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Class {
    /// Globally reachable: the gate connects to it.
    Public,
    /// Not for outbound traffic, unless it is in the operator's allow-list.
    Refused(Reason),
}

/// The reason an address is not public: its range, but never the address itself.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Reason {
    /// 0.0.0.0/8, `::`.
    Unspecified,
    /// 127.0.0.0/8, `::1`.
    Loopback,
    /// RFC 1918.
    Private,
    /// 100.64.0.0/10, between a provider and its customers.
    CarrierGrade,
    /// 169.254.0.0/16, fe80::/10. Includes the metadata services of cloud providers.
    LinkLocal,
    /// 192.0.0.0/24, 192.88.99.0/24, 2001::/23: IETF protocol assignments.
    Protocol,
    /// 192.0.2.0/24, 198.51.100.0/24, 203.0.113.0/24, 2001:db8::/32, 3fff::/20.
    Documentation,
    /// 198.18.0.0/15, 2001:2::/48.
    Benchmarking,
    /// 224.0.0.0/4, ff00::/8.
    Multicast,
    /// 255.255.255.255.
    Broadcast,
    /// 240.0.0.0/4, and IPv6 outside 2000::/3 without a variant of its own.
    Reserved,
    /// fc00::/7.
    UniqueLocal,
    /// fec0::/10. Deprecated, but still routed within some sites.
    SiteLocal,
    /// ::/96.
    Ipv4Compatible,
    /// 64:ff9b:1::/48.
    LocalNat64,
    /// 2002::/16.
    SixToFour,
    /// 2001::/32.
    Teredo,
}

impl fmt::Display for Reason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Unspecified => "an unspecified",
            Self::Loopback => "a loopback",
            Self::Private => "a private",
            Self::CarrierGrade => "a carrier-grade nat",
            Self::LinkLocal => "a link-local",
            Self::Protocol => "a protocol-assigned",
            Self::Documentation => "a documentation",
            Self::Benchmarking => "a benchmarking",
            Self::Multicast => "a multicast",
            Self::Broadcast => "a broadcast",
            Self::Reserved => "a reserved",
            Self::UniqueLocal => "a unique-local",
            Self::SiteLocal => "a site-local",
            Self::Ipv4Compatible => "an ipv4-compatible",
            Self::LocalNat64 => "a local nat64",
            Self::SixToFour => "a 6to4",
            Self::Teredo => "a teredo",
        })
    }
}

#[must_use]
pub fn classify(address: IpAddr) -> Class {
    let reason = match judged(address) {
        IpAddr::V4(v4) => refuse_v4(v4),
        IpAddr::V6(v6) => refuse_v6(v6),
    };
    reason.map_or(Class::Public, Class::Refused)
}

/// The address to classify: the embedded IPv4 address if packets are delivered to it.
pub(super) fn judged(address: IpAddr) -> IpAddr {
    let IpAddr::V6(v6) = address else { return address };
    if let Some(v4) = v6.to_ipv4_mapped() {
        return IpAddr::V4(v4);
    }
    match v6.segments() {
        [0x64, 0xff9b, 0, 0, 0, 0, ..] => IpAddr::V4(low_v4(v6)),
        _ => address,
    }
}

fn low_v4(v6: Ipv6Addr) -> Ipv4Addr {
    let [.., a, b, c, d] = v6.octets();
    Ipv4Addr::new(a, b, c, d)
}

fn refuse_v4(v4: Ipv4Addr) -> Option<Reason> {
    match v4.octets() {
        [0, ..] => Some(Reason::Unspecified),
        [127, ..] => Some(Reason::Loopback),
        [10, ..] | [172, 16..=31, ..] | [192, 168, ..] => Some(Reason::Private),
        [100, 64..=127, ..] => Some(Reason::CarrierGrade),
        [169, 254, ..] => Some(Reason::LinkLocal),
        [192, 0, 0, _] | [192, 88, 99, _] => Some(Reason::Protocol),
        [192, 0, 2, _] | [198, 51, 100, _] | [203, 0, 113, _] => Some(Reason::Documentation),
        [198, 18..=19, ..] => Some(Reason::Benchmarking),
        [224..=239, ..] => Some(Reason::Multicast),
        [255, 255, 255, 255] => Some(Reason::Broadcast),
        [240..=255, ..] => Some(Reason::Reserved),
        _ => None,
    }
}

fn refuse_v6(v6: Ipv6Addr) -> Option<Reason> {
    match v6.segments() {
        [0, 0, 0, 0, 0, 0, 0, 0] => Some(Reason::Unspecified),
        [0, 0, 0, 0, 0, 0, 0, 1] => Some(Reason::Loopback),
        [0, 0, 0, 0, 0, 0, _, _] => Some(Reason::Ipv4Compatible),
        [0x64, 0xff9b, 1, ..] => Some(Reason::LocalNat64),
        [0xfc00..=0xfdff, ..] => Some(Reason::UniqueLocal),
        [0xfe80..=0xfebf, ..] => Some(Reason::LinkLocal),
        [0xfec0..=0xfeff, ..] => Some(Reason::SiteLocal),
        [0xff00..=0xffff, ..] => Some(Reason::Multicast),
        [0x2001, 0, ..] => Some(Reason::Teredo),
        [0x2001, 2, 0, ..] => Some(Reason::Benchmarking),
        [0x2001, 0x0001..=0x01ff, ..] => Some(Reason::Protocol),
        [0x2001, 0x0db8, ..] | [0x3fff, 0x0000..=0x0fff, ..] => Some(Reason::Documentation),
        [0x2002, ..] => Some(Reason::SixToFour),
        [0x2000..=0x3fff, ..] => None,
        _ => Some(Reason::Reserved),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(text: &str, expected: Class) {
        let address: IpAddr = text.parse().unwrap();
        assert_eq!(classify(address), expected, "{text}");
    }

    #[test]
    fn special_ranges_are_refused_from_first_to_last_address() {
        use Reason::*;
        let rows: &[(&str, Reason)] = &[
            ("0.0.0.0", Unspecified),
            ("0.0.0.1", Unspecified),
            ("0.255.255.255", Unspecified),
            ("10.0.0.0", Private),
            ("10.255.255.255", Private),
            ("100.64.0.0", CarrierGrade),
            ("100.100.100.200", CarrierGrade),
            ("100.127.255.255", CarrierGrade),
            ("127.0.0.0", Loopback),
            ("127.0.0.1", Loopback),
            ("127.255.255.255", Loopback),
            ("169.254.0.0", LinkLocal),
            ("169.254.169.254", LinkLocal),
            ("169.254.170.2", LinkLocal),
            ("169.254.255.255", LinkLocal),
            ("172.16.0.0", Private),
            ("172.31.255.255", Private),
            ("192.0.0.0", Protocol),
            ("192.0.0.192", Protocol),
            ("192.0.0.255", Protocol),
            ("192.0.2.0", Documentation),
            ("192.0.2.255", Documentation),
            ("192.88.99.1", Protocol),
            ("192.168.0.0", Private),
            ("192.168.255.255", Private),
            ("198.18.0.0", Benchmarking),
            ("198.19.255.255", Benchmarking),
            ("198.51.100.7", Documentation),
            ("203.0.113.7", Documentation),
            ("224.0.0.0", Multicast),
            ("239.255.255.255", Multicast),
            ("240.0.0.0", Reserved),
            ("255.255.255.254", Reserved),
            ("255.255.255.255", Broadcast),
            ("::", Unspecified),
            ("::1", Loopback),
            ("::2", Ipv4Compatible),
            ("::127.0.0.1", Ipv4Compatible),
            ("::8.8.8.8", Ipv4Compatible),
            ("::ffff:0.0.0.0", Unspecified),
            ("::ffff:127.0.0.1", Loopback),
            ("::ffff:7f00:1", Loopback),
            ("::ffff:a00:5", Private),
            ("::ffff:a9fe:a9fe", LinkLocal),
            ("::ffff:192.168.1.1", Private),
            ("::ffff:0:127.0.0.1", Reserved),
            ("64:ff9b::127.0.0.1", Loopback),
            ("64:ff9b::a9fe:a9fe", LinkLocal),
            ("64:ff9b::10.0.0.1", Private),
            ("64:ff9b::1:0:7f00:1", Reserved),
            ("64:ff9b:1::", LocalNat64),
            ("64:ff9b:1::8.8.8.8", LocalNat64),
            ("64:ff9b:1:ffff:ffff:ffff:ffff:ffff", LocalNat64),
            ("64:ff9b:2::1", Reserved),
            ("100::1", Reserved),
            ("1fff:ffff::1", Reserved),
            ("2001::", Teredo),
            ("2001:0:4136:e378:8000:63bf:3fff:fdd2", Teredo),
            ("2001:2::1", Benchmarking),
            ("2001:2:1::1", Protocol),
            ("2001:10::1", Protocol),
            ("2001:20::1", Protocol),
            ("2001:1ff:ffff::1", Protocol),
            ("2001:db8::1", Documentation),
            ("2001:db8:ffff:ffff:ffff:ffff:ffff:ffff", Documentation),
            ("2002::1", SixToFour),
            ("2002:7f00:1::", SixToFour),
            ("2002:a9fe:a9fe::1", SixToFour),
            ("2002:808:808::1", SixToFour),
            ("3fff::1", Documentation),
            ("3fff:fff:ffff::1", Documentation),
            ("4000::1", Reserved),
            ("5f00::1", Reserved),
            ("fbff::1", Reserved),
            ("fc00::", UniqueLocal),
            ("fd00:ec2::254", UniqueLocal),
            ("fdff:ffff:ffff:ffff:ffff:ffff:ffff:ffff", UniqueLocal),
            ("fe00::1", Reserved),
            ("fe80::1", LinkLocal),
            ("fe80::a9fe:a9fe", LinkLocal),
            ("febf::1", LinkLocal),
            ("fec0::1", SiteLocal),
            ("feff:ffff::1", SiteLocal),
            ("ff00::1", Multicast),
            ("ff02::1", Multicast),
            ("ffff:ffff:ffff:ffff:ffff:ffff:ffff:ffff", Multicast),
        ];
        for (text, reason) in rows {
            check(text, Class::Refused(*reason));
        }
    }

    #[test]
    fn neighbors_of_special_ranges_are_public() {
        for text in [
            "1.0.0.0",
            "1.1.1.1",
            "8.8.8.8",
            "9.255.255.255",
            "11.0.0.0",
            "100.63.255.255",
            "100.128.0.0",
            "126.255.255.255",
            "128.0.0.0",
            "169.253.255.255",
            "169.255.0.0",
            "172.15.255.255",
            "172.32.0.0",
            "191.255.255.255",
            "192.0.1.0",
            "192.0.3.0",
            "192.88.98.255",
            "192.88.100.0",
            "192.167.255.255",
            "192.169.0.0",
            "198.17.255.255",
            "198.20.0.0",
            "198.51.99.255",
            "198.51.101.0",
            "203.0.112.255",
            "203.0.114.0",
            "223.255.255.255",
            "2000::1",
            "2001:200::1",
            "2001:db7::1",
            "2001:db9::1",
            "2001:4860:4860::8888",
            "2003::1",
            "2606:4700:4700::1111",
            "2a00:1450:4001::1",
            "3fff:1000::1",
            "3ffe::1",
            "::ffff:8.8.8.8",
            "64:ff9b::8.8.8.8",
        ] {
            check(text, Class::Public);
        }
    }
}
