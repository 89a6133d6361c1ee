//! A remote agent as the operator configured it. `Debug` hides every credential.

use std::{sync::Arc, time::Duration};

use http::{HeaderName, HeaderValue, header};
use rustls::ClientConfig;
use url::{Url, form_urlencoded::byte_serialize};
use wopr_wire::{
    a2a::{
        method::Version,
        model::{Secret, binding},
    },
    jws::JwkSet,
};

use super::card::is_same_place;
use crate::{
    egress::{ClientTls, ClientTlsError, OtherAuthorities},
    redact::Secrets,
    secret_header,
};

/// A remote agent, and the credential to call it with.
#[derive(Debug, Clone)]
pub struct Peer {
    /// The name by which callers find it.
    pub name: String,
    /// The address below which the card is, or the address of the card itself (it then ends in `.json`).
    pub url: Url,
    /// Further origins that get the credential and the client certificate, such as that of a gRPC port.
    pub origins: Vec<Url>,
    pub transport: Transport,
    /// Constraints on the interface; a caller's own take precedence.
    pub wanted: Wanted,
    pub credential: Credential,
    /// If absent, the host's own TLS configuration applies.
    pub tls: Option<PeerTls>,
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
            origins: Vec::new(),
            transport: Transport::default(),
            wanted: Wanted::default(),
            credential: Credential::None,
            tls: None,
            require_signed_card: false,
            card_keys: CardKeys::default(),
        }
    }

    /// Returns `true` if the operator gave the credential for this place: the origin of the peer's address, or
    /// one of the further origins.
    pub(super) fn is_own_place(&self, place: &Url) -> bool {
        let mut own = std::iter::once(&self.url).chain(&self.origins);
        own.any(|own| is_same_place(own, place))
    }

    /// Returns `true` if some places get what others do not.
    pub(super) fn has_credential(&self) -> bool {
        !matches!(self.credential, Credential::None) || self.tls.is_some()
    }
}

/// The protocol of a peer.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Transport {
    /// A2A, by the interfaces of the peer's card.
    #[default]
    A2a,
    /// The task API of the Agent Workflow Protocol below the peer's address; there is no card.
    TasksHttp(Polling),
}

/// How a task without updates is followed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Polling {
    /// The time between two looks.
    pub interval: Duration,
    /// The time until the task must have ended. The time in which it waits for an answer does not count.
    pub timeout: Duration,
    pub on_question: OnQuestion,
}

/// What a question of such a task does.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum OnQuestion {
    /// It fails the call.
    #[default]
    Fail,
    /// The calling run asks it.
    Park,
}

impl Default for Polling {
    fn default() -> Self {
        Self {
            interval: Duration::from_millis(500),
            timeout: Duration::from_secs(120),
            on_question: OnQuestion::Fail,
        }
    }
}

/// TLS with one peer. Requests to other places, which a card may name, use the host's own configuration.
#[derive(Clone)]
pub struct PeerTls {
    /// For the places that get the credential.
    pub(super) own: Arc<ClientConfig>,
    /// For an authorization server or a key set elsewhere: the platform's authorities count as well.
    pub(super) named: Arc<ClientConfig>,
}

impl PeerTls {
    /// # Errors
    /// Returns the first part of the configuration that is unusable.
    pub fn new(tls: &ClientTls) -> Result<Self, ClientTlsError> {
        Ok(Self {
            own: Arc::new(tls.config(OtherAuthorities::Refused)?),
            named: Arc::new(tls.config(OtherAuthorities::OfPlatform)?),
        })
    }
}

impl std::fmt::Debug for PeerTls {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("PeerTls").finish_non_exhaustive()
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
    /// The key set that the signature names, if it is on the origin of the peer. Only a required signature is
    /// verified with it.
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
            Self::OAuth2(oauth2) => oauth2.secrets(),
            Self::None | Self::Missing { .. } => Secrets::default(),
        }
    }
}

impl OAuth2 {
    /// What the client's secret looks like where it is known, and where it is sent.
    pub(super) fn secrets(&self) -> Secrets {
        let secret = self.client_secret.expose();
        Secrets::of([secret, &form_encoded(secret)])
    }
}

/// RFC 6749 section 2.3.1: the client's name and secret are form-encoded before they become Basic credentials.
pub(super) fn form_encoded(text: &str) -> String {
    byte_serialize(text.as_bytes()).collect()
}

pub(super) fn bearer(token: &Secret) -> Option<HeaderValue> {
    secret_header(&format!("Bearer {}", token.expose())).ok()
}
