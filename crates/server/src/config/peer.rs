//! The agents that workflows may call. A workflow names one; where it is and how it is called is said here.

use std::path::PathBuf;

use serde::{Deserialize, Serialize};
use url::Url;

/// The peer that a workflow calls if it names none.
pub const DEFAULT_PEER: &str = "default";
/// The environment variable with the token of that peer, if the peer has no other credential.
pub const DEFAULT_TOKEN: &str = "WOPR_A2A_PEER_TOKEN";

/// An agent that workflows may call.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct AgentPeer {
    pub name: String,
    /// The card is looked for below it, at `/.well-known/agent-card.json`; the address of a card works too.
    pub url: Url,
    /// The environment variable with the bearer token.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub token_env: Option<String>,
    /// The file with the bearer token.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub token_file: Option<PathBuf>,
    /// A credential in another header.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub header: Option<HeaderCredential>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub oauth2: Option<ClientCredentials>,
    #[serde(default)]
    pub transport: Transport,
    /// What a question of the agent does.
    #[serde(default)]
    pub on_input_required: OnInputRequired,
    /// Refuse a card without a valid signature.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub require_signed_card: bool,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub card_keys: Option<CardKeySource>,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct HeaderCredential {
    pub name: String,
    /// The environment variable with the value.
    pub value_env: String,
}

/// OAuth 2.0 client credentials.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ClientCredentials {
    pub token_url: Url,
    pub client_id: String,
    /// The environment variable with the client's secret.
    pub client_secret_env: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub scope: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub audience: Option<String>,
}

/// The binding to call an agent by.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Transport {
    /// The first that its card lists and that answers.
    #[default]
    Auto,
    JsonRpc,
    /// HTTP with JSON bodies.
    Rest,
    Grpc,
}

/// What a question of an agent does.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum OnInputRequired {
    /// The calling run asks it.
    #[default]
    #[serde(alias = "park")]
    Ask,
    /// It fails the call and cancels the task.
    Fail,
}

/// The keys that verify the signatures of a card.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
pub enum CardKeySource {
    JwksUrl(Url),
    JwksFile(PathBuf),
}

impl AgentPeer {
    /// A peer without a credential.
    #[must_use]
    pub fn new(name: &str, url: Url) -> Self {
        Self {
            name: name.to_owned(),
            url,
            token_env: None,
            token_file: None,
            header: None,
            oauth2: None,
            transport: Transport::Auto,
            on_input_required: OnInputRequired::Ask,
            require_signed_card: false,
            card_keys: None,
        }
    }

    /// Returns the first invalid field with its rule.
    pub(super) fn problem(&self) -> Option<(&'static str, &'static str)> {
        if self.name.is_empty() || self.name.len() > 256 || self.name.chars().any(char::is_control) {
            return Some(("name", "must be 1 to 256 bytes without control characters"));
        }
        if !["http", "https"].contains(&self.url.scheme()) {
            return Some(("url", "must be an http or https address"));
        }
        if !self.url.username().is_empty() || self.url.password().is_some() {
            return Some(("url", "must not contain a credential"));
        }
        let credentials = [
            self.token_env.is_some(),
            self.token_file.is_some(),
            self.header.is_some(),
            self.oauth2.is_some(),
        ];
        if credentials.into_iter().filter(|is_set| *is_set).count() > 1 {
            return Some(("token_env", "must be the only credential of the peer"));
        }
        None
    }
}
