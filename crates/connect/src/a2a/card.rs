//! Reads a card and orders the interfaces to use.

use std::{
    net::{Ipv4Addr, Ipv6Addr},
    sync::Arc,
};

use serde_json::Value;
use url::Url;
use wopr_wire::{
    a2a::{
        method::{Operation, Version},
        model::AgentCard,
        protobuf, v03,
    },
    json::{self, Decode},
};

use super::{
    error::Error,
    peer::{Binding, Wanted},
};

/// An interface of a card that can be used.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Found {
    /// Index of the interface in the card.
    pub(super) index: usize,
    pub(super) binding: Binding,
    pub(super) version: Version,
    pub(super) address: Url,
    /// The tenant that the interface requires in every request.
    pub(super) tenant: Option<String>,
}

/// Orders the usable interfaces: those that `is_preferred` returns `true` for first, then the newest version, then
/// the order of the card.
pub(super) fn usable(card: &AgentCard, place: &Url, is_preferred: impl Fn(&Url) -> bool) -> Vec<Arc<Found>> {
    let mut found = Vec::new();
    for version in [Version::V1_0, Version::V0_3] {
        for (index, interface) in card.supported_interfaces.iter().enumerate() {
            let Some(binding) = Binding::from_card(&interface.protocol_binding) else {
                continue;
            };
            if version_of(&interface.protocol_version) != Some(version) {
                continue;
            }
            let Some(address) = address(&interface.url, binding, place) else {
                continue;
            };
            found.push(Arc::new(Found {
                index,
                binding,
                version,
                address,
                tenant: interface.tenant.clone().filter(|_| version == Version::V1_0),
            }));
        }
    }
    // A stable sort keeps the order of each half.
    found.sort_by_key(|found| !is_preferred(&found.address));
    found
}

/// Selects the interfaces that a caller wants, in their order.
pub(super) fn choose(usable: &[Arc<Found>], wanted: Wanted) -> Vec<Arc<Found>> {
    let is_wanted = |found: &&Arc<Found>| {
        wanted.version.is_none_or(|version| version == found.version)
            && wanted.binding.is_none_or(|binding| binding == found.binding)
    };
    usable.iter().filter(is_wanted).cloned().collect()
}

/// The card offers no usable interface.
pub(super) fn nothing_usable(card: &AgentCard, wanted: Wanted) -> Error {
    let interfaces = &card.supported_interfaces;
    let offered = interfaces
        .iter()
        .map(|interface| format!("{} {}", interface.protocol_binding, interface.protocol_version))
        .collect();
    let is_spoken = |version: Option<Version>| match wanted.version {
        Some(wanted) => version == Some(wanted),
        None => version.is_some(),
    };
    if interfaces
        .iter()
        .any(|interface| is_spoken(version_of(&interface.protocol_version)))
    {
        Error::NoInterface { offered }
    } else {
        Error::VersionNotSupported { offered }
    }
}

/// Parses a version; `None` if it is not supported. Some cards name only the major version, `1`.
fn version_of(text: &str) -> Option<Version> {
    match text.trim() {
        "" => None,
        "1" => Some(Version::V1_0),
        other => Version::from_header(Some(other)).ok(),
    }
}

/// Parses an interface's URL. gRPC interfaces may be given as `host:port`; TLS is then used if the card was
/// fetched over TLS.
fn address(text: &str, binding: Binding, place: &Url) -> Option<Url> {
    let url = if binding == Binding::Grpc && !text.contains("://") {
        Url::parse(&format!("{}://{text}", place.scheme())).ok()?
    } else {
        place.join(text).ok()?
    };
    let is_http = matches!(url.scheme(), "http" | "https") && url.has_host();
    let is_anonymous = url.username().is_empty() && url.password().is_none();
    (is_http && is_anonymous).then_some(url)
}

/// Parses a card of either version. A card of both has its interfaces of 0.3 last.
pub(super) fn read(mut document: Value) -> Result<AgentCard, json::DecodeError> {
    // Readers of ProtoJSON take the names of the `.proto` file too, and the document that defines how workflows are exposed
    // as agents shows a card with them.
    if document.get("supported_interfaces").is_some()
        && let Some(method) = protobuf::method(Version::V1_0, Operation::GetExtendedAgentCard)
        && let Value::Object(members) = &mut document
    {
        protobuf::canonical(method.response, members);
    }
    if document.get("supportedInterfaces").is_none() {
        return v03::AgentCard::decode(document).map(Into::into);
    }
    let old = document.get("url").is_some().then(|| document.clone());
    let mut card = AgentCard::decode(document)?;
    let old = old.and_then(|old| v03::AgentCard::decode(old).ok());
    let old = old.map_or_else(Vec::new, |old| AgentCard::from(old).supported_interfaces);
    for interface in old {
        let version = version_of(&interface.protocol_version);
        let is_known = card.supported_interfaces.iter().any(|known| {
            known.url == interface.url
                && version_of(&known.protocol_version) == version
                && Binding::from_card(&known.protocol_binding)
                    == Binding::from_card(&interface.protocol_binding)
        });
        if version == Some(Version::V0_3) && !is_known {
            card.supported_interfaces.push(interface);
        }
    }
    Ok(card)
}

/// Returns `true` if both addresses have the same origin, or are the same loopback port under different
/// names. A credential for the one may be sent to the other. Further loopback addresses are other origins: another
/// process may listen at the same port there.
#[must_use]
pub fn is_same_place(a: &Url, b: &Url) -> bool {
    let is_loopback = is_here(a) && is_here(b) && a.scheme() == b.scheme();
    a.origin() == b.origin() || (is_loopback && a.port_or_known_default() == b.port_or_known_default())
}

/// Returns `true` for the names of this machine that stand for each other.
fn is_here(url: &Url) -> bool {
    match url.host() {
        Some(url::Host::Domain(name)) => name == "localhost",
        Some(url::Host::Ipv4(address)) => address == Ipv4Addr::LOCALHOST,
        Some(url::Host::Ipv6(address)) => address == Ipv6Addr::LOCALHOST,
        None => false,
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    const ANY: Wanted = Wanted {
        version: None,
        binding: None,
    };

    fn card(more: &Value) -> AgentCard {
        let mut card = json!({
            "name": "n", "description": "d", "version": "1", "capabilities": {}, "skills": [],
            "defaultInputModes": ["text/plain"], "defaultOutputModes": ["text/plain"],
        });
        for (name, value) in more.as_object().unwrap() {
            card[name] = value.clone();
        }
        read(card).unwrap()
    }

    fn interfaces(list: &[(&str, &str, &str)]) -> AgentCard {
        let list: Vec<_> = list
            .iter()
            .map(|(url, binding, version)| json!({"url": url, "protocolBinding": binding, "protocolVersion": version}))
            .collect();
        card(&json!({ "supportedInterfaces": list }))
    }

    fn chosen(card: &AgentCard, place: &str, wanted: Wanted) -> Option<(usize, String)> {
        let usable = usable(card, &Url::parse(place).unwrap(), |_| true);
        let found = choose(&usable, wanted);
        let first = found.first()?;
        Some((first.index, first.address.to_string()))
    }

    fn at(index: usize, address: &str) -> Option<(usize, String)> {
        Some((index, address.to_owned()))
    }

    #[test]
    fn newest_version_comes_first_then_card_order() {
        let both = interfaces(&[
            ("http://a/old", "JSONRPC", "0.3"),
            ("http://a/odd", "SOAP", "1.0"),
            ("http://a/next", "JSONRPC", "1.1"),
            ("a:1", "GRPC", "1.0"),
            ("/new", "jsonrpc", "1.0.1"),
            ("http://a/rest", "HTTP+JSON", "0.3.0"),
        ]);
        let wanted = |version, binding| chosen(&both, "http://a", Wanted { version, binding });
        assert_eq!(wanted(None, None), at(3, "http://a:1/"));
        assert_eq!(wanted(None, Some(Binding::JsonRpc)), at(4, "http://a/new"));
        assert_eq!(wanted(Some(Version::V0_3), None), at(0, "http://a/old"));
        assert_eq!(wanted(None, Some(Binding::HttpJson)), at(5, "http://a/rest"));
        assert_eq!(wanted(Some(Version::V1_0), Some(Binding::HttpJson)), None);
        let old = card(
            &json!({"protocolVersion": "0.3.0", "url": "http://a/old", "preferredTransport": "GRPC",
            "additionalInterfaces": [{"url": "http://a/json", "transport": "JSONRPC"}]}),
        );
        assert_eq!(chosen(&old, "http://a", ANY), at(0, "http://a/old"));
        let restricted = Wanted {
            binding: Some(Binding::JsonRpc),
            ..ANY
        };
        assert_eq!(chosen(&old, "http://a", restricted), at(1, "http://a/json"));
    }

    #[test]
    fn grpc_authority_inherits_tls_from_the_card() {
        for (text, place, wanted) in [
            ("a:50051", "http://a", Some("http://a:50051/")),
            ("a:443", "https://a", Some("https://a/")),
            ("[::1]:7", "http://[::1]:7", Some("http://[::1]:7/")),
            ("https://b", "http://a", Some("https://b/")),
            ("dns:///a:1", "http://a", None),
            ("unix:///x", "http://a", None),
            ("a:99999", "http://a", None),
            ("user:secret@a:1", "http://a", None),
            ("", "http://a", None),
        ] {
            let url = address(text, Binding::Grpc, &Url::parse(place).unwrap());
            assert_eq!(url.as_ref().map(Url::as_str), wanted, "{text}");
        }
        for text in ["ftp://a/", "file:///etc/passwd", "javascript:0", "http://u@a/"] {
            assert_eq!(
                address(text, Binding::JsonRpc, &Url::parse("http://a").unwrap()),
                None,
                "{text}"
            );
        }
    }

    #[test]
    fn interface_with_unusable_address_or_version_is_skipped() {
        let odd = interfaces(&[
            ("dns:///a", "GRPC", "1.0"),
            ("http://a/1", "JSONRPC", ""),
            ("http://a/2", "JSONRPC", "one"),
            ("http://a/3", "JSONRPC", "1.0"),
        ]);
        assert_eq!(chosen(&odd, "http://a", ANY), at(3, "http://a/3"));
        assert_eq!(chosen(&interfaces(&[]), "http://a", ANY), None);
    }

    #[test]
    fn remaining_interfaces_follow_in_order() {
        let card = interfaces(&[
            ("http://a/old", "JSONRPC", "0.3"),
            ("http://a/one", "GRPC", "1.0"),
            ("http://a/two", "HTTP+JSON", "1.0"),
        ]);
        let found = usable(&card, &Url::parse("http://a").unwrap(), |_| true);
        let order: Vec<_> = found.iter().map(|found| found.index).collect();
        assert_eq!(order, [1, 2, 0]);
    }

    #[test]
    fn missing_version_is_told_from_missing_binding() {
        let card = interfaces(&[("http://a", "JSONRPC", "0.3"), ("http://a", "SOAP", "7.0")]);
        let kind = |wanted| nothing_usable(&card, wanted);
        let wanted = Wanted {
            version: Some(Version::V1_0),
            ..ANY
        };
        assert!(matches!(kind(wanted), Error::VersionNotSupported { offered } if offered.len() == 2));
        let wanted = Wanted {
            binding: Some(Binding::Grpc),
            ..ANY
        };
        assert!(matches!(kind(wanted), Error::NoInterface { .. }));
    }

    #[test]
    fn same_place_is_an_origin_or_a_loopback_port() {
        let same = |a: &str, b: &str| is_same_place(&Url::parse(a).unwrap(), &Url::parse(b).unwrap());
        assert!(same("http://localhost:1/x", "http://127.0.0.1:1/a2a"));
        assert!(same("https://a.example", "https://a.example/x"));
        assert!(same("http://[::1]:1", "http://127.0.0.1:1"));
        assert!(!same("http://localhost:1", "http://127.0.0.1:2"));
        assert!(same("http://127.0.0.2:1/x", "http://127.0.0.2:1/a2a"));
        for other in [
            "http://127.0.0.2:1",
            "http://a.localhost:1",
            "http://[::ffff:127.0.0.1]:1",
        ] {
            assert!(!same("http://127.0.0.1:1", other), "{other}");
            assert!(!same("http://localhost:1", other), "{other}");
        }
        assert!(!same("https://a.example", "https://b.example"));
        assert!(!same("http://localhost.example.com:1", "http://127.0.0.1:1"));
    }

    #[test]
    fn card_with_the_names_of_the_proto_file_is_read() {
        let card = card(&json!({
            "supported_interfaces": [
                { "url": "/rpc", "protocol_binding": "JSONRPC", "protocol_version": "1" },
            ],
            "default_input_modes": ["text/plain"],
        }));
        let first = chosen(&card, "https://agents.test/card.json", ANY);
        assert_eq!(first, Some((0, "https://agents.test/rpc".to_owned())));
        assert_eq!(card.default_input_modes, ["text/plain"]);
    }

    #[test]
    fn card_of_both_versions_has_the_interfaces_of_both() {
        let card = card(&json!({
            "supportedInterfaces": [{ "url": "/new", "protocolBinding": "JSONRPC", "protocolVersion": "1.0" }],
            "url": "https://agents.test/old", "preferredTransport": "JSONRPC", "protocolVersion": "0.3.0",
            "additionalInterfaces": [{ "url": "https://agents.test/old", "transport": "JSONRPC" }],
        }));
        let place = "https://agents.test/card.json";
        let chosen = |version| chosen(&card, place, Wanted { version, ..ANY });
        let old = Some((1, "https://agents.test/old".to_owned()));
        assert_eq!(chosen(None), Some((0, "https://agents.test/new".to_owned())));
        assert_eq!(chosen(Some(Version::V0_3)), old);
        assert_eq!(card.supported_interfaces.len(), 2);
    }
}
