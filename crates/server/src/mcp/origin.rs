//! Which web pages may reach this server, and under which names it may be reached.
//!
//! A page of an attacker may point a name of its own at this machine (DNS rebinding). Its requests then carry that name as
//! `Host` and its own origin as `Origin`, so both are checked, as MCP requires. A host that listens on all interfaces is
//! reached by names that it cannot know, so `Host` is checked only where the host listens on the loopback interface.

use http::{HeaderMap, Uri, header};
use url::Url;

use crate::config::{Config, WebOrigin};

/// Why a request is refused.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Foreign {
    Origin,
    Host,
}

impl Foreign {
    pub(super) const fn message(self) -> &'static str {
        match self {
            Self::Origin => {
                "the Origin of the request is not allowed: add it to server.cors_origins of the host's configuration"
            }
            Self::Host => {
                "the Host of the request is not a name of this host: reach it as localhost, or set server.public_url"
            }
        }
    }
}

/// Checks both headers.
pub(super) fn check(
    headers: &HeaderMap,
    uri: &Uri,
    config: &Config,
    public_url: &str,
) -> Result<(), Foreign> {
    let public = Url::parse(public_url).ok();
    for origin in headers.get_all(header::ORIGIN) {
        // The operator may allow every page.
        let allows = |listed: &WebOrigin| listed.value().is_none_or(|listed| listed == origin);
        let is_listed = config.server.cors_origins.iter().any(allows);
        // The public URL may have a path, and an origin never has.
        let origin = origin.to_str().ok().and_then(|origin| Url::parse(origin).ok());
        let is_own = origin
            .zip(public.as_ref())
            .is_some_and(|(origin, public)| origin.origin() == public.origin());
        if !is_listed && !is_own {
            return Err(Foreign::Origin);
        }
    }
    if !config.server.listen.0.ip().is_loopback() {
        return Ok(());
    }
    let host = headers.get(header::HOST).map(|host| host.to_str().ok());
    // HTTP/2 has the name in the address instead.
    let host = host.unwrap_or_else(|| uri.authority().map(http::uri::Authority::as_str));
    let host = host.ok_or(Foreign::Host)?;
    let is_own = Url::parse(&format!("http://{host}")).is_ok_and(|url| is_own(&url, public_url));
    if is_own { Ok(()) } else { Err(Foreign::Host) }
}

fn is_own(url: &Url, public_url: &str) -> bool {
    match url.host() {
        Some(url::Host::Ipv4(address)) if address.is_loopback() => true,
        Some(url::Host::Ipv6(address)) if address.is_loopback() => true,
        Some(url::Host::Domain("localhost")) => true,
        host => Url::parse(public_url).is_ok_and(|public| public.host() == host),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn checked(fields: &[(&'static str, &str)], listen: &str) -> Result<(), Foreign> {
        let mut config = Config::default();
        config.server.listen = listen.parse().unwrap();
        config.server.cors_origins = vec!["https://app.test".parse().unwrap()];
        let mut headers = HeaderMap::new();
        for (name, value) in fields {
            headers.append(*name, value.parse().unwrap());
        }
        check(
            &headers,
            &Uri::from_static("/mcp"),
            &config,
            "https://wopr.test/hosts/one",
        )
    }

    #[test]
    fn names_and_origins_of_others_are_refused() {
        let local = "127.0.0.1:8080";
        for host in [
            "127.0.0.1:8080",
            "localhost:8080",
            "[::1]:8080",
            "wopr.test",
            "LOCALHOST",
        ] {
            assert_eq!(checked(&[("host", host)], local), Ok(()), "{host}");
        }
        for host in [
            "evil.test",
            "evil.test:8080",
            "localhost.evil.test",
            "10.0.0.1",
            "a b",
        ] {
            assert_eq!(checked(&[("host", host)], local), Err(Foreign::Host), "{host}");
            assert_eq!(checked(&[("host", host)], "0.0.0.0:8080"), Ok(()), "{host}");
        }
        assert_eq!(checked(&[], local), Err(Foreign::Host));
        let from = |origin| checked(&[("host", "localhost"), ("origin", origin)], local);
        assert_eq!(from("https://wopr.test"), Ok(()));
        assert_eq!(from("https://app.test"), Ok(()));
        for origin in [
            "https://evil.test",
            "null",
            "http://wopr.test",
            "https://wopr.test:8443",
            "",
        ] {
            assert_eq!(from(origin), Err(Foreign::Origin), "{origin}");
        }
    }
}
