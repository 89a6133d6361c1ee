//! What may be reached: the url arm and the address arm, both pure.
//!
//! The rule, in one place. A target is *exempt* if every address it stands for lies in the
//! operator's allow-list; an exempt target may use plain http and private addresses. Anything
//! else needs https, a name that is not reserved for this machine or its cloud, and public
//! addresses only: one bad answer among good ones refuses them all, because which of them gets
//! the connection is the peer's choice. Hosts are read by the `url` crate, so decimal, octal, hex
//! and full-width spellings of an address are already that address when they arrive here; what that
//! crate would silently repair (control characters, spaces, backslashes) is refused where a client's
//! text is read, so that nobody who reads the same text by other rules sees another host.

use std::{
    net::{IpAddr, Ipv4Addr, Ipv6Addr},
    str::FromStr,
};

use url::{Host, Url};

use super::{
    address::{Class, Reason, classify},
    cidr::{Cidr, CidrError},
};

/// What the operator lets out beyond the public internet over https. The default is nothing.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Policy {
    /// Addresses exempt from both arms.
    pub allow: Vec<Cidr>,
}

/// Why a target is refused. Names a rule, never an address or a name.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, thiserror::Error)]
pub enum Refusal {
    /// Not an absolute URL.
    #[error("use a malformed url")]
    Malformed,
    /// Longer than any url needs to be.
    #[error("use a url over {MAX_URL} bytes")]
    Length,
    /// Neither https nor http.
    #[error("use a scheme other than https")]
    Scheme,
    /// http, and not every address is in the allow-list.
    #[error("use plain http outside the allow-list")]
    PlainHttp,
    /// `user:password@` before the host.
    #[error("use a url that carries credentials")]
    UserInfo,
    /// The host is missing, or no name: an empty or long label, a long name, or other characters than letters,
    /// digits, `-` and `_`.
    #[error("use a url without a well-formed host")]
    Host,
    /// Port 0.
    #[error("use port 0")]
    Port,
    /// `localhost`, a metadata service or a name below one.
    #[error("reach a host name reserved for this machine or its cloud")]
    LocalName,
    /// An address of the target is not public.
    #[error("reach {0} address")]
    Address(Reason),
    /// The name has no address.
    #[error("reach a host name without an address")]
    NoAddress,
}

impl Refusal {
    /// Whether the target would be let through if its addresses were in the allow-list.
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

/// How bytes leave: decides which arm applies before anything is resolved.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Transport {
    Plain,
    Tls,
}

/// A url whose own form is fine; its addresses may still be unknown.
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

/// Names that mean this machine or the metadata service of its cloud, whatever a resolver says.
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

/// A DNS name has at most 253 characters without its final dot.
const MAX_NAME: usize = 253;

/// A label of a DNS name has at most 63 characters.
const MAX_LABEL: usize = 63;

/// The longest url that is registered; peers and proxies refuse longer ones.
const MAX_URL: usize = 2_048;

/// Reads a client's text as a url, without the repairs browsers make.
pub(super) fn read_url(text: &str) -> Result<Url, Refusal> {
    if text.len() > MAX_URL {
        return Err(Refusal::Length);
    }
    let is_repaired = |c: char| c.is_control() || c.is_whitespace() || c == '\\';
    if text.contains(is_repaired) {
        return Err(Refusal::Malformed);
    }
    let url = Url::parse(text).map_err(|_| Refusal::Malformed)?;
    // Escaping makes a text longer, and what is kept and sent is the escaped one.
    if url.as_str().len() > MAX_URL {
        return Err(Refusal::Length);
    }
    // Browsers add slashes that are missing and drop those that are too many.
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
    /// Judges a url without asking any resolver, when a client registers it.
    ///
    /// A public https url passes offline; whether its name leads somewhere allowed is settled at
    /// use. Without a resolver a name is not known to be inside the allow-list, so plain http to a
    /// name is refused here, and `localhost` stands for both loopback addresses.
    ///
    /// # Errors
    /// Names the first rule the url breaks.
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

    /// Judges a url before it is used: literal addresses in full, names as far as they go alone.
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

    /// Judges all addresses a name resolved to, together.
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

    /// Judges a literal address.
    pub(super) fn check_address(&self, transport: Transport, address: IpAddr) -> Result<(), Refusal> {
        if self.is_exempt(address) {
            return Ok(());
        }
        // The address goes first: it is the more telling of two true reasons.
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

    /// Reads comma-separated blocks; spaces and empty items do not matter.
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

/// Resolvers differ in what they make of anything else. The underscore is in names that exist.
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

/// The `url` crate has lowered the case already.
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
