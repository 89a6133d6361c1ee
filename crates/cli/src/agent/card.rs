//! Fetches an agent's card and chooses the interface to use.

use anyhow::{Context as _, Result};
use clap::ValueEnum;
use reqwest::header::{ACCEPT, AUTHORIZATION};
use serde_json::Value;
use url::Url;
use wopr_wire::{
    a2a::{
        method::Version,
        model::{AgentCard, binding},
        v03,
    },
    json::{self, Decode},
};

use crate::{
    client::{self, Trust, exit_of, parse_url, unreachable_failure},
    exit::{Exit, Failure},
    output::plain,
};

const CARD_PATH: &str = "/.well-known/agent-card.json";

/// A supported A2A binding.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum Binding {
    /// JSON-RPC over HTTP.
    #[value(name = "jsonrpc")]
    JsonRpc,
    /// HTTP with JSON bodies.
    #[value(name = "http-json")]
    HttpJson,
    /// gRPC.
    #[value(name = "grpc")]
    Grpc,
}

impl Binding {
    /// Finds a binding by its name in a card.
    fn from_card(name: &str) -> Option<Self> {
        [
            (binding::JSONRPC, Self::JsonRpc),
            (binding::HTTP_JSON, Self::HttpJson),
            (binding::GRPC, Self::Grpc),
        ]
        .into_iter()
        .find_map(|(known, binding)| known.eq_ignore_ascii_case(name).then_some(binding))
    }
}

/// Constraints on the interface; `None` means any.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Wanted {
    pub(crate) version: Option<Version>,
    pub(crate) binding: Option<Binding>,
}

#[derive(Debug, PartialEq)]
pub(super) struct Found {
    /// Index of the interface in the card.
    pub(super) index: usize,
    pub(super) binding: Binding,
    pub(super) version: Version,
    pub(super) address: Url,
}

/// Chooses the interface: the newest version first, then the order of the card.
pub(super) fn choose(card: &AgentCard, place: &Url, wanted: Wanted) -> Option<Found> {
    let versions = [Version::V1_0, Version::V0_3];
    let mut versions = versions
        .into_iter()
        .filter(|version| wanted.version.is_none_or(|wanted| wanted == *version));
    versions.find_map(|version| {
        let mut interfaces = card.supported_interfaces.iter().enumerate();
        interfaces.find_map(|(index, interface)| {
            let binding = Binding::from_card(&interface.protocol_binding)?;
            if wanted.binding.is_some_and(|wanted| wanted != binding)
                || version_of(&interface.protocol_version) != Some(version)
            {
                return None;
            }
            Some(Found {
                index,
                binding,
                version,
                address: address(&interface.url, binding, place)?,
            })
        })
    })
}

/// Parses a version; `None` if it is not supported.
fn version_of(text: &str) -> Option<Version> {
    if text.trim().is_empty() {
        return None;
    }
    Version::from_header(Some(text)).ok()
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

/// The card offers no supported interface.
pub(super) fn nothing_spoken(card: &AgentCard, address: &str, wanted: Wanted) -> Failure {
    let offered: Vec<_> = card
        .supported_interfaces
        .iter()
        .map(|interface| format!("{} {}", interface.protocol_binding, interface.protocol_version))
        .collect();
    let what = match (wanted.binding, wanted.version) {
        (None, None) => "",
        (Some(_), None) => " of this binding",
        (None, Some(_)) => " of this version",
        (Some(_), Some(_)) => " of this binding and version",
    };
    Failure::new(
        Exit::Failed,
        format!("the agent at {address} offers no interface{what} that is spoken here"),
    )
    .hint(format!("its card offers {}", plain(&offered.join(", "))))
}

/// Parses a card of either version; a card valid in both is read as the newer one.
pub(super) fn read(document: Value) -> Result<AgentCard, json::DecodeError> {
    if document.get("supportedInterfaces").is_some() {
        AgentCard::decode(document)
    } else {
        v03::AgentCard::decode(document).map(Into::into)
    }
}

/// Fetches the card of an agent and returns it unparsed, with the URL it was found at.
pub(crate) async fn fetch(address: &str, key: Option<&str>, trust: &Trust) -> Result<(Url, Value)> {
    let url = parse_url(address)?;
    let http = client::http(&url, trust)?;
    let document = fetch_from(&http, &url, key).await?;
    Ok((url, document))
}

/// Fetches the card from the address itself, or else from the well-known path below it or below its origin.
async fn fetch_from(http: &reqwest::Client, url: &Url, key: Option<&str>) -> Result<Value> {
    let base = url.as_str().trim_end_matches('/');
    let mut places = if url.path().ends_with(".json") {
        vec![base.to_owned()]
    } else {
        vec![format!("{base}{CARD_PATH}")]
    };
    if let Ok(origin) = url.join(CARD_PATH) {
        let origin = String::from(origin);
        if !places.contains(&origin) {
            places.push(origin);
        }
    }
    let mut last = None;
    for place in places {
        let mut request = http.get(&place).header(ACCEPT, "application/json");
        if let Some(key) = key.filter(|key| !key.is_empty()) {
            request = request.header(AUTHORIZATION, format!("Bearer {key}"));
        }
        let response = request
            .send()
            .await
            .map_err(|error| unreachable_failure(base, &error))?;
        let status = response.status();
        let body = client::read(response)
            .await
            .map_err(|error| unreachable_failure(base, &*error))?;
        if status.is_success() {
            return serde_json::from_slice(&body).with_context(|| format!("read the card at {place}"));
        }
        last = Some(Failure::new(
            exit_of(status),
            format!("no agent card at {place}: {status}"),
        ));
    }
    Err(match last {
        Some(failure) => failure.into(),
        None => anyhow::anyhow!("find a card at {base}"),
    })
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
        let found = choose(card, &Url::parse(place).unwrap(), wanted)?;
        Some((found.index, found.address.into()))
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
}
