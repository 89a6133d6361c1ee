//! URLs registered by untrusted clients: which ones this host would call.

use std::{net::IpAddr, sync::OnceLock};

use url::{Host, Url};
use wopr_connect::egress::{Class, Gate, Limits, Policy, classify};

use crate::host;

/// A text is registered or rejected. A registered URL is https, has no credentials, and has no literal
/// non-public address in any notation.
///
/// # Panics
/// If a property does not hold.
pub fn egress(data: &[u8]) {
    let Ok(text) = std::str::from_utf8(data) else {
        return;
    };
    static GATE: OnceLock<Gate> = OnceLock::new();
    let gate = GATE.get_or_init(|| Gate::over(Policy::default(), Limits::default(), host::nowhere()));
    let registered = host::block_on(gate.register(text));
    if let Ok(url) = Url::parse(text) {
        let offline = gate.check_registration(&url);
        assert!(
            offline.is_ok() || registered.is_err(),
            "registered, and refused offline"
        );
    }
    let Ok(url) = registered else { return };
    assert_eq!(url.scheme(), "https");
    assert!(url.username().is_empty() && url.password().is_none());
    assert!(url.port() != Some(0));
    let address = match url.host().unwrap() {
        Host::Ipv4(address) => Some(IpAddr::V4(address)),
        Host::Ipv6(address) => Some(IpAddr::V6(address)),
        Host::Domain(name) => {
            let name = name.trim_end_matches('.');
            assert!(!name.is_empty() && !name.eq_ignore_ascii_case("localhost"));
            assert!(!name.to_ascii_lowercase().ends_with(".localhost"));
            // A name that the system's resolver would parse as an address.
            name.parse().ok()
        }
    };
    if let Some(address) = address {
        assert!(matches!(classify(address), Class::Public), "registered {address}");
    }
    // Parsed again, it is the same and still accepted.
    assert_eq!(host::block_on(gate.register(url.as_str())).unwrap(), url);
}
