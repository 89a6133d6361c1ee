//! The agents that workflows may call. A workflow names one; where it is and how it is called is said here.
//!
//! A peer with the task API of the Agent Workflow Protocol may also be written with that protocol's own names
//! (`baseUrl`, `apiKeyEnv`, ...), in the file or as the JSON of `WORKFLOW_ENGINE_A2A_CONFIG`.

use std::{fs, path::PathBuf};

use http::HeaderName;
use serde::{Deserialize, Serialize};
use url::Url;
use wopr_connect::egress::is_reserved_header;

/// The peer that a workflow calls if it names none.
pub const DEFAULT_PEER: &str = "default";
/// The environment variable with the token of that peer, if the peer has no other credential.
pub const DEFAULT_TOKEN: &str = "WOPR_A2A_PEER_TOKEN";
/// Bounds of `poll_interval_ms` and `poll_timeout_ms`.
const POLL_INTERVAL_MS: std::ops::RangeInclusive<u64> = 10..=3_600_000;
const POLL_TIMEOUT_MS: std::ops::RangeInclusive<u64> = 10..=30 * 24 * 3_600_000;
/// Most origins of a peer.
const MAX_ORIGINS: usize = 16;
/// Largest file that `WORKFLOW_ENGINE_A2A_CONFIG` may name, in bytes.
const MAX_DELEGATE_FILE: u64 = 64 << 10;

/// An agent that workflows may call.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct AgentPeer {
    pub name: String,
    /// The card is looked for below it, at `/.well-known/agent-card.json`; the address of a card works too. Over
    /// `tasks-http`, the tasks are below it.
    #[serde(alias = "baseUrl")]
    pub url: Url,
    /// Further origins that get the credential and the client certificate.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub origins: Vec<Url>,
    /// The environment variable with the bearer token.
    #[serde(default, alias = "apiKeyEnv", skip_serializing_if = "Option::is_none")]
    pub token_env: Option<String>,
    /// A token in a vault, for which there is no resolver yet: calls fail until there is.
    #[serde(default, alias = "apiKeySecretRef", skip_serializing_if = "Option::is_none")]
    pub token_secret_ref: Option<String>,
    /// The file with the bearer token.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub token_file: Option<PathBuf>,
    /// A credential in another header.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub header: Option<HeaderCredential>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub oauth2: Option<ClientCredentials>,
    /// Authorities and a client certificate of its own.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tls: Option<PeerTlsFiles>,
    #[serde(default)]
    pub transport: Transport,
    /// Over `tasks-http`, the time between two looks at a task; 500 if absent.
    #[serde(default, alias = "pollIntervalMs", skip_serializing_if = "Option::is_none")]
    pub poll_interval_ms: Option<u64>,
    /// Over `tasks-http`, the time until a task must have ended; 120,000 if absent.
    #[serde(default, alias = "pollTimeoutMs", skip_serializing_if = "Option::is_none")]
    pub poll_timeout_ms: Option<u64>,
    /// What a question of the agent does.
    #[serde(
        default,
        alias = "onInputRequired",
        skip_serializing_if = "OnInputRequired::is_by_transport"
    )]
    pub on_input_required: OnInputRequired,
    /// Refuse a card without a valid signature.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub require_signed_card: bool,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub card_keys: Option<CardKeySource>,
}

/// The files of TLS with one peer. They are read again when they change.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct PeerTlsFiles {
    /// The authorities that sign the peer's certificate, in PEM; if absent, those of the platform count.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ca: Option<PathBuf>,
    /// The client certificate chain in PEM, leaf first.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cert: Option<PathBuf>,
    /// Its private key in PEM.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub key: Option<PathBuf>,
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
    /// The task API of the Agent Workflow Protocol.
    #[serde(rename = "tasks-http")]
    TasksHttp,
}

/// What a question of an agent does.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum OnInputRequired {
    /// As if `ask`, or over `tasks-http` as if `fail` were given.
    #[default]
    #[serde(skip)]
    ByTransport,
    /// The calling run asks it, and waits. Over `tasks-http`, the agent is not told the answer: it is the result.
    #[serde(alias = "park")]
    Ask,
    /// It fails the call and cancels the task.
    Fail,
}

impl OnInputRequired {
    /// Returns `true` if nothing was configured.
    #[expect(clippy::trivially_copy_pass_by_ref, reason = "serde passes a reference")]
    fn is_by_transport(&self) -> bool {
        *self == Self::ByTransport
    }
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
            origins: Vec::new(),
            token_env: None,
            token_secret_ref: None,
            token_file: None,
            header: None,
            oauth2: None,
            tls: None,
            transport: Transport::default(),
            poll_interval_ms: None,
            poll_timeout_ms: None,
            on_input_required: OnInputRequired::default(),
            require_signed_card: false,
            card_keys: None,
        }
    }

    /// Returns the first invalid field with its rule.
    pub(crate) fn problem(&self) -> Option<(&'static str, &'static str)> {
        if self.name.is_empty() || self.name.len() > 256 || self.name.chars().any(char::is_control) {
            return Some(("name", "must be 1 to 256 bytes without control characters"));
        }
        if !["http", "https"].contains(&self.url.scheme()) {
            return Some(("url", "must be an http or https address"));
        }
        if !self.url.username().is_empty() || self.url.password().is_some() {
            return Some(("url", "must not contain a credential"));
        }
        if self.origins.len() > MAX_ORIGINS || !self.origins.iter().all(is_origin) {
            return Some((
                "origins",
                "must be at most 16 http or https addresses without a path",
            ));
        }
        let credentials = [
            self.token_env.is_some(),
            self.token_secret_ref.is_some(),
            self.token_file.is_some(),
            self.header.is_some(),
            self.oauth2.is_some(),
        ];
        let n_credentials = credentials.into_iter().filter(|is_set| *is_set).count();
        if n_credentials > 1 {
            return Some(("token_env", "must be the only credential of the peer"));
        }
        if let Some(header) = &self.header {
            let name = HeaderName::from_bytes(header.name.as_bytes());
            if name.map_or(true, |name| is_reserved_header(&name)) {
                return Some((
                    "header",
                    "must be a header that does not say how the request is sent",
                ));
            }
        }
        if let Some(tls) = &self.tls {
            if tls.ca.is_none() && tls.cert.is_none() {
                return Some(("tls", "must have ca, or cert with key"));
            }
            if tls.cert.is_some() != tls.key.is_some() {
                return Some(("tls", "must have cert and key, or neither"));
            }
            if self.url.scheme() != "https" {
                return Some(("tls", "needs an https address"));
            }
        }
        match self.transport {
            Transport::Auto | Transport::JsonRpc | Transport::Rest | Transport::Grpc => self.problem_of_a2a(),
            Transport::TasksHttp => self.problem_of_tasks_http(n_credentials),
        }
    }

    /// Returns the first field that only `tasks-http` has.
    fn problem_of_a2a(&self) -> Option<(&'static str, &'static str)> {
        let rule = "needs transport = \"tasks-http\"";
        if self.token_secret_ref.is_some() {
            return Some(("token_secret_ref", rule));
        }
        if self.poll_interval_ms.is_some() {
            return Some(("poll_interval_ms", rule));
        }
        self.poll_timeout_ms.map(|_| ("poll_timeout_ms", rule))
    }

    fn problem_of_tasks_http(&self, n_credentials: usize) -> Option<(&'static str, &'static str)> {
        if n_credentials == 0 || self.header.is_some() {
            return Some(("token_env", "must be given: tasks-http needs a bearer token"));
        }
        if self.url.query().is_some() || self.url.fragment().is_some() {
            return Some(("url", "must not have a query or a fragment"));
        }
        let interval = self.poll_interval_ms;
        if interval.is_some_and(|ms| !POLL_INTERVAL_MS.contains(&ms)) {
            return Some(("poll_interval_ms", "must be 10 to 3600000"));
        }
        let timeout = self.poll_timeout_ms;
        if timeout.is_some_and(|ms| !POLL_TIMEOUT_MS.contains(&ms)) {
            return Some(("poll_timeout_ms", "must be 10 to 2592000000"));
        }
        let rule = "is for agents with a card, which tasks-http has not";
        if !self.origins.is_empty() {
            return Some(("origins", rule));
        }
        if self.require_signed_card {
            return Some(("require_signed_card", rule));
        }
        self.card_keys.as_ref().map(|_| ("card_keys", rule))
    }

    /// Reads the operator configuration of the Agent Workflow Protocol: JSON, or the path of a file with it. It makes
    /// the peer `default`, which a delegate uses whose agent is no peer itself.
    ///
    /// # Errors
    /// Returns the rule that the text breaks.
    pub(crate) fn of_delegate(text: &str) -> Result<Self, String> {
        let rule =
            |error: &dyn std::fmt::Display| format!("must be JSON, or the path of a file with it: {error}");
        let json = if text.trim_start().starts_with('{') {
            text.to_owned()
        } else {
            let n_bytes = fs::metadata(text).map_err(|error| rule(&error))?.len();
            if n_bytes > MAX_DELEGATE_FILE {
                return Err(format!("must name a file of at most {MAX_DELEGATE_FILE} bytes"));
            }
            fs::read_to_string(text).map_err(|error| rule(&error))?
        };
        let Delegate {
            base_url,
            api_key_env,
            api_key_secret_ref,
            poll_interval_ms,
            poll_timeout_ms,
            on_input_required,
        } = serde_json::from_str(&json).map_err(|error| rule(&error))?;
        // A reference of the reference engine, or the name of a secret of this host.
        let (by_ref, token_file, token_secret_ref) = match api_key_secret_ref {
            Some(reference) => match reference.split_once(':') {
                Some(("env", name)) => (Some(name.to_owned()), None, None),
                Some(("file", path)) => (None, Some(PathBuf::from(path)), None),
                Some(_) | None => (None, None, Some(reference)),
            },
            None => (None, None, None),
        };
        if api_key_env.is_some() && by_ref.is_some() {
            return Err("must have apiKeyEnv or apiKeySecretRef, not both".to_owned());
        }
        Ok(Self {
            token_env: api_key_env.or(by_ref),
            token_file,
            token_secret_ref,
            transport: Transport::TasksHttp,
            poll_interval_ms,
            poll_timeout_ms,
            on_input_required,
            ..Self::new(DEFAULT_PEER, base_url)
        })
    }
}

/// The operator configuration of the Agent Workflow Protocol.
#[derive(Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct Delegate {
    base_url: Url,
    #[serde(default)]
    api_key_env: Option<String>,
    #[serde(default)]
    api_key_secret_ref: Option<String>,
    #[serde(default)]
    poll_interval_ms: Option<u64>,
    #[serde(default)]
    poll_timeout_ms: Option<u64>,
    #[serde(default)]
    on_input_required: OnInputRequired,
}

/// Returns `true` if an address is one of an origin only.
fn is_origin(url: &Url) -> bool {
    let is_bare = url.path() == "/" && url.query().is_none() && url.fragment().is_none();
    let is_anonymous = url.username().is_empty() && url.password().is_none();
    ["http", "https"].contains(&url.scheme()) && url.has_host() && is_bare && is_anonymous
}
