//! What this face offers: bindings and versions, options of the protocol, media types, and where documents are.
//!
//! The registry of capabilities, the cards and the routes all read it here.

use wopr_wire::a2a::{method::Version, model::binding};

/// How requests and answers travel.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Binding {
    /// JSON-RPC 2.0 over HTTP.
    JsonRpc,
    /// HTTP with JSON bodies.
    HttpJson,
    /// gRPC over HTTP/2.
    Grpc,
}

impl Binding {
    /// Its name on the card.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::JsonRpc => binding::JSONRPC,
            Self::HttpJson => binding::HTTP_JSON,
            Self::Grpc => binding::GRPC,
        }
    }
}

/// Every pair of a binding and a version that is served, the preferred one first. The registry of capabilities tells
/// them, to discovery and to the cards; requests that come by another are not taken. Those of 1.0 come before those
/// of 0.3, for clients that take the first of a binding whatever its version.
pub const INTERFACES: &[(Binding, Version)] = &[
    (Binding::JsonRpc, Version::V1_0),
    (Binding::HttpJson, Version::V1_0),
    (Binding::Grpc, Version::V1_0),
    (Binding::JsonRpc, Version::V0_3),
    (Binding::HttpJson, Version::V0_3),
    (Binding::Grpc, Version::V0_3),
];
/// Whether tasks can be streamed.
pub const STREAMING: bool = true;
/// Whether updates are pushed.
pub const PUSH_NOTIFICATIONS: bool = true;
/// Whether authenticated callers get a card of their own.
pub const EXTENDED_CARD: bool = true;
/// The extensions of the protocol in use; a client need not ask for them.
pub(super) const EXTENSIONS: [Extension; 1] = [Extension {
    uri: "urn:wopr:a2a:resume:1",
    about: "Updates in a stream over HTTP carry their place in the task's log as the id of the event. Last-Event-ID \
            replays what came after it, also when the task has ended.",
}];
/// What tasks take.
pub(super) const INPUT_MODES: [&str; 2] = ["text/plain", "application/json"];
/// What tasks give.
pub(super) const OUTPUT_MODES: [&str; 2] = ["text/plain", "application/json"];
/// Where the card is, in both versions.
pub const CARD_PATH: &str = "/.well-known/agent-card.json";
/// Where the keys are that verify signed cards.
pub const KEYS_PATH: &str = "/.well-known/jwks.json";

/// An extension of the protocol, as the card tells it.
#[derive(Debug, Clone, Copy)]
pub(super) struct Extension {
    pub(super) uri: &'static str,
    pub(super) about: &'static str,
}

/// Claims that a version is served by a binding.
pub(super) fn is_served(binding: Binding, version: Version) -> bool {
    INTERFACES.contains(&(binding, version))
}
