//! The features of the A2A API: bindings and versions, options, media types and paths.
//!
//! The capability registry, the cards and the routes all read them here.

use wopr_wire::a2a::{method::Version, model::binding};

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Binding {
    JsonRpc,
    HttpJson,
    Grpc,
}

impl Binding {
    /// The name on the card.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::JsonRpc => binding::JSONRPC,
            Self::HttpJson => binding::HTTP_JSON,
            Self::Grpc => binding::GRPC,
        }
    }
}

/// The bindings and versions served, in order of preference; requests over any other are rejected. Versions
/// 1.0 precede 0.3 for clients that pick the first entry of a binding whatever its version.
pub const INTERFACES: &[(Binding, Version)] = &[
    (Binding::JsonRpc, Version::V1_0),
    (Binding::HttpJson, Version::V1_0),
    (Binding::Grpc, Version::V1_0),
    (Binding::JsonRpc, Version::V0_3),
    (Binding::HttpJson, Version::V0_3),
    (Binding::Grpc, Version::V0_3),
];
pub const STREAMING: bool = true;
pub const PUSH_NOTIFICATIONS: bool = true;
pub const EXTENDED_CARD: bool = true;
/// The supported extensions, none of which is required.
pub(super) const EXTENSIONS: [Extension; 1] = [Extension {
    uri: "urn:wopr:a2a:resume:1",
    about: "Updates in a stream over HTTP carry their place in the task's log as the id of the event. Last-Event-ID \
            replays what came after it, also when the task has ended.",
}];
/// Default input modes.
pub(super) const INPUT_MODES: [&str; 2] = ["text/plain", "application/json"];
/// Default output modes.
pub(super) const OUTPUT_MODES: [&str; 2] = ["text/plain", "application/json"];
/// The path of the card in both versions.
pub const CARD_PATH: &str = "/.well-known/agent-card.json";
/// The path of the keys that verify signed cards.
pub const KEYS_PATH: &str = "/.well-known/jwks.json";

#[derive(Debug, Clone, Copy)]
pub(super) struct Extension {
    pub(super) uri: &'static str,
    pub(super) about: &'static str,
}

pub(super) fn is_served(binding: Binding, version: Version) -> bool {
    INTERFACES.contains(&(binding, version))
}
