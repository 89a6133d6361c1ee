//! Addresses that strangers register: which of them this host would call.

use std::{net::IpAddr, sync::OnceLock};

use url::{Host, Url};
use wopr_connect::egress::{Class, Gate, Limits, Policy, classify};

use crate::host;

/// A text is registered or refused, and what is registered is an address that anybody may call: https, no credentials in
/// it, no literal address that is not public, however it is written.
///
/// # Panics
/// If a promise does not hold.
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
            // A name that reads as an address to the system's resolver.
            name.parse().ok()
        }
    };
    if let Some(address) = address {
        assert!(matches!(classify(address), Class::Public), "registered {address}");
    }
    // Read again it is the same, and still fine.
    assert_eq!(host::block_on(gate.register(url.as_str())).unwrap(), url);
}
