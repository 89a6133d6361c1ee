//! A remote agent as the operator configured it. `Debug` hides every credential.

use http::{HeaderName, HeaderValue, header};
use url::Url;
use wopr_wire::{
    a2a::{
        method::Version,
        model::{Secret, binding},
    },
    jws::JwkSet,
};

use super::redact::Secrets;
use crate::secret_header;

/// A remote agent, and the credential to call it with.
#[derive(Debug, Clone)]
pub struct Peer {
    /// The name by which callers find it.
    pub name: String,
    /// The address below which the card is, or the address of the card itself (it then ends in `.json`).
    pub url: Url,
    /// Constraints on the interface; a caller's own take precedence.
    pub wanted: Wanted,
    pub credential: Credential,
    /// Refuse a card without a valid signature.
    pub require_signed_card: bool,
    pub card_keys: CardKeys,
}

impl Peer {
    /// A peer without a credential, called by any interface that its card offers.
    #[must_use]
    pub fn new(name: impl Into<String>, url: Url) -> Self {
        Self {
            name: name.into(),
            url,
            wanted: Wanted::default(),
            credential: Credential::None,
            require_signed_card: false,
            card_keys: CardKeys::default(),
        }
    }
}

/// Constraints on the interface; `None` means any.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Wanted {
    pub version: Option<Version>,
    pub binding: Option<Binding>,
}

impl Wanted {
    /// Fills in what this leaves open.
    #[must_use]
    pub(super) fn or(self, other: Self) -> Self {
        Self {
            version: self.version.or(other.version),
            binding: self.binding.or(other.binding),
        }
    }
}

/// A supported A2A binding.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Binding {
    JsonRpc,
    /// HTTP with JSON bodies.
    HttpJson,
    Grpc,
}

impl Binding {
    const CARD_NAMES: [(&'static str, Self); 3] = [
        (binding::JSONRPC, Self::JsonRpc),
        (binding::HTTP_JSON, Self::HttpJson),
        (binding::GRPC, Self::Grpc),
    ];

    /// Finds a binding by its name in a card.
    #[must_use]
    pub fn from_card(name: &str) -> Option<Self> {
        let mut names = Self::CARD_NAMES.into_iter();
        names.find_map(|(known, binding)| known.eq_ignore_ascii_case(name).then_some(binding))
    }

    /// Finds a binding by its name in configuration: `jsonrpc`, `rest` or `grpc`, or the name in a card.
    #[must_use]
    pub fn from_name(name: &str) -> Option<Self> {
        if name == "rest" {
            return Some(Self::HttpJson);
        }
        Self::from_card(name)
    }
}

/// How a peer recognizes this host.
#[derive(Debug, Clone, Default)]
pub enum Credential {
    #[default]
    None,
    /// Sent as `Authorization: Bearer`.
    Bearer(Secret),
    /// Sent as this header.
    Header {
        name: HeaderName,
        value: Secret,
    },
    OAuth2(OAuth2),
    /// The operator names a credential that does not exist; calls fail and say where it is missing.
    Missing {
        source: String,
    },
}

/// OAuth 2.0 client credentials (RFC 6749 section 4.4).
#[derive(Debug, Clone)]
pub struct OAuth2 {
    pub token_url: Url,
    pub client_id: String,
    pub client_secret: Secret,
    pub scope: Option<String>,
    pub audience: Option<String>,
}

/// The keys that card signatures are verified with.
#[derive(Debug, Clone, Default)]
pub enum CardKeys {
    /// The key set that the signature names, if it is on the origin of the peer.
    #[default]
    FromCard,
    Url(Url),
    These(JwkSet),
}

impl Credential {
    /// The header to send, for a credential that needs no token.
    pub(super) fn header(&self) -> Option<(HeaderName, HeaderValue)> {
        match self {
            Self::Bearer(token) => Some((header::AUTHORIZATION, bearer(token)?)),
            Self::Header { name, value } => Some((name.clone(), secret_header(value.expose()).ok()?)),
            Self::None | Self::OAuth2(_) | Self::Missing { .. } => None,
        }
    }

    /// The texts that must not come back in an answer.
    pub(super) fn secrets(&self) -> Secrets {
        match self {
            Self::Bearer(token) => Secrets::of([token.expose()]),
            // `Basic <secret>`: the scheme is no part of the secret.
            Self::Header { value, .. } => {
                let whole = value.expose();
                let last = whole.rsplit(' ').next().unwrap_or(whole);
                Secrets::of([whole, last])
            }
            Self::OAuth2(oauth2) => Secrets::of([oauth2.client_secret.expose()]),
            Self::None | Self::Missing { .. } => Secrets::default(),
        }
    }
}

pub(super) fn bearer(token: &Secret) -> Option<HeaderValue> {
    secret_header(&format!("Bearer {}", token.expose())).ok()
}
