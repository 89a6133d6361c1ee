//! The egress policy: pure checks of URLs and of their addresses.
//!
//! A target is *exempt* if all its addresses are in the operator's allow-list. An exempt target may use plain
//! http and private addresses. Any other target requires https, a name that is not reserved for this machine
//! or its cloud, and public addresses only: a single refused address refuses the target, because the peer
//! controls which one is used.
//!
//! The `url` crate parses hosts, so decimal, octal, hexadecimal and full-width spellings of an address are
//! already normalized here. It also repairs control characters, spaces and backslashes silently; `read_url`
//! rejects them, because another parser might see a different host in the same text.

use std::{
    net::{IpAddr, Ipv4Addr, Ipv6Addr},
    str::FromStr,
};

use url::{Host, Url};

use super::{
    address::{Class, Reason, classify},
    cidr::{Cidr, CidrError},
};

/// The targets that the operator allows besides public https. The default allows none.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Policy {
    /// Addresses exempt from the checks of URLs and addresses.
    pub allow: Vec<Cidr>,
}

/// The rule that a target violates. Contains neither an address nor a name.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, thiserror::Error)]
pub enum Refusal {
    #[error("use a malformed url")]
    Malformed,
    /// Longer than 2048 bytes.
    #[error("use a url over {MAX_URL} bytes")]
    Length,
    /// Neither https nor http.
    #[error("use a scheme other than https")]
    Scheme,
    /// Plain http, and not all addresses are in the allow-list.
    #[error("use plain http outside the allow-list")]
    PlainHttp,
    /// `user:password@` before the host.
    #[error("use a url that carries credentials")]
    UserInfo,
    /// The host is missing or malformed: an empty or long label, a long name, or characters other than
    /// letters, digits, `-` and `_`.
    #[error("use a url without a well-formed host")]
    Host,
    #[error("use port 0")]
    Port,
    /// `localhost`, a metadata service, or a subdomain of them.
    #[error("reach a host name reserved for this machine or its cloud")]
    LocalName,
    /// An address of the target is not public.
    #[error("reach {0} address")]
    Address(Reason),
    #[error("reach a host name without an address")]
    NoAddress,
}

impl Refusal {
    /// Returns `true` if the allow-list can allow the target.
    #[must_use]
    pub const fn can_be_allowed(self) -> bool {
        match self {
            Self::PlainHttp | Self::LocalName | Self::Address(_) => true,
            Self::Malformed
            | Self::Length
            | Self::Scheme
            | Self::UserInfo
            | Self::Host
            | Self::Port
            | Self::NoAddress => false,
        }
    }
}

/// The transport of a URL. It is known before any name is resolved.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Transport {
    Plain,
    Tls,
}

/// A URL whose syntax passed the check; its addresses may still be unknown.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Target<'a> {
    pub(super) transport: Transport,
    pub(super) host: TargetHost<'a>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum TargetHost<'a> {
    Address(IpAddr),
    Name(&'a str),
}

/// Names of this machine or of the metadata service of its cloud, whatever they resolve to.
const LOCAL_NAMES: [&str; 11] = [
    "localhost",
    "localdomain",
    "localhost6",
    "ip6-localhost",
    "ip6-loopback",
    "metadata",
    "metadata.google.internal",
    "metadata.goog",
    "metadata.azure.internal",
    "instance-data",
    "instance-data.ec2.internal",
];

/// A DNS name has at most 253 characters without the trailing dot.
const MAX_NAME: usize = 253;

const MAX_LABEL: usize = 63;

/// The maximum length of a URL that a client or a workflow gives; peers and proxies reject longer ones.
const MAX_URL: usize = 2_048;

/// Parses a URL from a client or a workflow, without the repairs that browsers make.
pub(crate) fn read_url(text: &str) -> Result<Url, Refusal> {
    if text.len() > MAX_URL {
        return Err(Refusal::Length);
    }
    let is_repaired = |c: char| c.is_control() || c.is_whitespace() || c == '\\';
    if text.contains(is_repaired) {
        return Err(Refusal::Malformed);
    }
    let url = Url::parse(text).map_err(|_| Refusal::Malformed)?;
    // Escaping makes the URL longer, and the escaped form is stored and sent.
    if url.as_str().len() > MAX_URL {
        return Err(Refusal::Length);
    }
    // The URL standard adds missing slashes and drops extra ones.
    let rest = text.get(url.scheme().len()..).unwrap_or_default();
    let is_written_out = rest
        .strip_prefix("://")
        .is_some_and(|rest| !rest.starts_with('/'));
    if matches!(url.scheme(), "https" | "http") && !is_written_out {
        return Err(Refusal::Malformed);
    }
    Ok(url)
}

impl Policy {
    /// Checks a URL at registration, without name resolution.
    ///
    /// A public https URL passes; its addresses are checked when it is used. Without resolution, a name is
    /// never known to be in the allow-list, so plain http to a name is refused. `localhost` stands for both
    /// loopback addresses.
    ///
    /// # Errors
    /// Returns the first rule that the URL violates.
    pub fn check_registration(&self, url: &Url) -> Result<(), Refusal> {
        let target = target(url)?;
        match target.host {
            TargetHost::Address(address) => self.check_address(target.transport, address),
            TargetHost::Name(name) if is_localhost(name) => {
                let both = [IpAddr::V4(Ipv4Addr::LOCALHOST), IpAddr::V6(Ipv6Addr::LOCALHOST)];
                self.check_resolved(target.transport, name, &both)
            }
            TargetHost::Name(name) => name_without_exemption(target.transport, name),
        }
    }

    /// Checks a URL before use: literal addresses completely, names only where the result does not depend on
    /// their addresses.
    pub(super) fn check_use<'a>(&self, url: &'a Url) -> Result<Target<'a>, Refusal> {
        let target = target(url)?;
        match target.host {
            TargetHost::Address(address) => self.check_address(target.transport, address)?,
            TargetHost::Name(name) if self.allow.is_empty() => {
                name_without_exemption(target.transport, name)?;
            }
            TargetHost::Name(_) => {}
        }
        Ok(target)
    }

    /// Checks all addresses of a resolved name together.
    pub(super) fn check_resolved(
        &self,
        transport: Transport,
        name: &str,
        addresses: &[IpAddr],
    ) -> Result<(), Refusal> {
        if addresses.is_empty() {
            return Err(Refusal::NoAddress);
        }
        if addresses.iter().all(|address| self.is_exempt(*address)) {
            return Ok(());
        }
        name_without_exemption(transport, name)?;
        for address in addresses {
            require_public(*address)?;
        }
        Ok(())
    }

    pub(super) fn check_address(&self, transport: Transport, address: IpAddr) -> Result<(), Refusal> {
        if self.is_exempt(address) {
            return Ok(());
        }
        // Check the address first: if both rules are violated, its reason is more informative.
        require_public(address)?;
        match transport {
            Transport::Plain => Err(Refusal::PlainHttp),
            Transport::Tls => Ok(()),
        }
    }

    fn is_exempt(&self, address: IpAddr) -> bool {
        self.allow.iter().any(|block| block.contains(address))
    }
}

impl FromStr for Policy {
    type Err = CidrError;

    /// Parses comma-separated blocks; spaces and empty items are ignored.
    fn from_str(text: &str) -> Result<Self, CidrError> {
        let items = text.split(',').map(str::trim).filter(|item| !item.is_empty());
        Ok(Self {
            allow: items.map(str::parse).collect::<Result<_, _>>()?,
        })
    }
}

fn target(url: &Url) -> Result<Target<'_>, Refusal> {
    let transport = match url.scheme() {
        "https" => Transport::Tls,
        "http" => Transport::Plain,
        _ => return Err(Refusal::Scheme),
    };
    if !url.username().is_empty() || url.password().is_some() {
        return Err(Refusal::UserInfo);
    }
    if url.port() == Some(0) {
        return Err(Refusal::Port);
    }
    let host = match url.host().ok_or(Refusal::Host)? {
        Host::Ipv4(v4) => TargetHost::Address(IpAddr::V4(v4)),
        Host::Ipv6(v6) => TargetHost::Address(IpAddr::V6(v6)),
        Host::Domain(name) => {
            let bare = without_final_dot(name);
            if bare.len() > MAX_NAME || !bare.split('.').all(is_label) {
                return Err(Refusal::Host);
            }
            TargetHost::Name(name)
        }
    };
    Ok(Target { transport, host })
}

/// Resolvers treat other characters differently. Underscores occur in real names.
fn is_label(label: &str) -> bool {
    let is_plain = |b: u8| b.is_ascii_alphanumeric() || b == b'-' || b == b'_';
    (1..=MAX_LABEL).contains(&label.len()) && label.bytes().all(is_plain)
}

fn name_without_exemption(transport: Transport, name: &str) -> Result<(), Refusal> {
    if is_local(name) {
        return Err(Refusal::LocalName);
    }
    match transport {
        Transport::Plain => Err(Refusal::PlainHttp),
        Transport::Tls => Ok(()),
    }
}

fn require_public(address: IpAddr) -> Result<(), Refusal> {
    match classify(address) {
        Class::Public => Ok(()),
        Class::Refused(reason) => Err(Refusal::Address(reason)),
    }
}

/// The `url` crate has already lowercased the name.
fn is_localhost(name: &str) -> bool {
    let name = without_final_dot(name);
    name == "localhost" || name.ends_with(".localhost")
}

fn is_local(name: &str) -> bool {
    let name = without_final_dot(name);
    LOCAL_NAMES.contains(&name) || name.ends_with(".localhost") || name.ends_with(".localdomain")
}

pub(super) fn without_final_dot(name: &str) -> &str {
    name.strip_suffix('.').unwrap_or(name)
}

#[cfg(test)]
#[path = "policy_tests.rs"]
mod tests;
