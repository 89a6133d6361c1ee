//! The control plane of the Agent Workflow Protocol.

use std::{collections::BTreeMap, fs, str::FromStr};

use serde::{Deserialize, Serialize, de::DeserializeOwned};
use wopr_core::{
    PrincipalId,
    awp::{SignatureMode, TrustPolicy},
};

use super::{Config, ConfigError, Key, Listen, Period, Secret, default_tenant};
use crate::{auth::Scopes, awp::TokenScope};

/// The longest time that a call waits, in milliseconds: clients give up sooner.
const MAX_WAIT: u64 = 5 * 60 * 1_000;
/// The most bytes of a file that is the value of a setting.
const MAX_FILE: u64 = 1 << 20;
/// The most keys that documents may be signed with.
const MAX_KEYS: usize = 100;

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Awp {
    /// An additional address whose paths are those of the protocol, `/v1/executions` for example.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub listen: Option<Listen>,
    /// How long a call waits until its execution has ended or waits for its host.
    pub wait_budget: Period,
    /// Whether documents must be signed.
    pub signing: SigningMode,
    /// Whose signatures of documents are trusted.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub signing_keys: Vec<SigningKey>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum SigningMode {
    /// A signature that is there must be good.
    #[default]
    Optional,
    Require,
}

impl FromStr for SigningMode {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text {
            "optional" => Ok(Self::Optional),
            "require" => Ok(Self::Require),
            _ => Err("must be optional or require".to_owned()),
        }
    }
}

/// A public key of Ed25519.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SigningKey {
    /// The `kid` of the signatures.
    pub id: String,
    /// The key in SPKI form or its 32 bytes, in base64url.
    pub key: String,
}

impl SigningKey {
    /// Reads the keys of a JSON object by their ids: the object itself, or the path of a file with it.
    pub(super) fn of_map(text: &str) -> Result<Vec<Self>, String> {
        let keys: BTreeMap<String, String> = json_or_file(text)?;
        let keys = keys.into_iter();
        Ok(keys.map(|(id, key)| Self { id, key }).collect())
    }
}

/// The principal of all tokens of the protocol: each sees what the others have started.
const TOKENS: &str = "workflow-engine";
/// The most tokens.
const MAX_TOKENS: usize = 1_000;

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Token {
    token: String,
    scopes: Vec<TokenScope>,
}

/// The keys of a JSON array of tokens with their scopes, or of a file with it. The scopes of a token that is there twice
/// add up.
pub(super) fn keys_of_tokens(text: &str) -> Result<Vec<Key>, String> {
    let tokens: Vec<Token> = json_or_file(text)?;
    if tokens.len() > MAX_TOKENS {
        return Err(format!("must have at most {MAX_TOKENS} tokens"));
    }
    let mut scopes: BTreeMap<String, Scopes> = BTreeMap::new();
    for Token { token, scopes: given } in tokens {
        if token.is_empty() || given.is_empty() {
            return Err("must have tokens that are not empty, each with a scope".to_owned());
        }
        let all = scopes.entry(token).or_default();
        *all = given
            .into_iter()
            .fold(*all, |all, scope| all.with(scope.scopes()));
    }
    let principal = PrincipalId::parse(TOKENS).map_err(|error| error.to_string())?;
    let key = |(n, (token, scopes)): (usize, (String, Scopes))| Key {
        id: format!("{TOKENS}-{}", n + 1),
        secret: Some(Secret::new(token)),
        secret_sha256: None,
        tenant: default_tenant(),
        principal: Some(principal.clone()),
        scopes,
        roles: Vec::new(),
        groups: Vec::new(),
    };
    Ok(scopes.into_iter().enumerate().map(key).collect())
}

/// Variables of the reference engine that mean nothing here, and what to do instead.
const REFUSED: [(&str, &str); 4] = [
    (
        "WORKFLOW_ENGINE_STEP_HANDLERS",
        "is not supported: give the outputs of steps with configurable.mockOutputs, or have a worker do them",
    ),
    (
        "WORKFLOW_ENGINE_LLM_CONFIG",
        "is not supported: have a worker do the activities of the queue awp.llm_call",
    ),
    (
        "WORKFLOW_ENGINE_MCP_CONFIG",
        "is not supported: have a worker do the activities of the queue awp.tool_call",
    ),
    (
        "WORKFLOW_ENGINE_MCP_ALLOW_COMMANDS",
        "is not supported: this host starts no tool servers for activities",
    ),
];

/// Refuses variables of the reference engine whose effect this host does not have.
pub(super) fn check_variables(variable: impl Fn(&str) -> Option<String>) -> Result<(), ConfigError> {
    let refuse = |name: &str, rule: &str| {
        Err(ConfigError::Setting {
            key: "awp".to_owned(),
            source_name: format!("the environment variable {name}"),
            rule: rule.to_owned(),
        })
    };
    for (name, rule) in REFUSED {
        if variable(name).is_some_and(|value| !value.is_empty()) {
            return refuse(name, rule);
        }
    }
    // In process, mocks do what nothing else is configured for: what the profile asks for.
    match variable("WORKFLOW_ENGINE_PROFILE").as_deref() {
        None | Some("" | "demo") => Ok(()),
        Some(_) => refuse("WORKFLOW_ENGINE_PROFILE", "must be demo, or not be set"),
    }
}

/// Reads JSON, or the path of a file with it, with or without `file:` before it.
fn json_or_file<T: DeserializeOwned>(text: &str) -> Result<T, String> {
    let rule =
        |error: &dyn std::fmt::Display| format!("must be JSON, or the path of a file with it: {error}");
    let text = text.trim();
    if text.starts_with(['{', '[']) {
        return serde_json::from_str(text).map_err(|error| rule(&error));
    }
    let path = text.strip_prefix("file:").unwrap_or(text);
    let n_bytes = fs::metadata(path).map_err(|error| rule(&error))?.len();
    if n_bytes > MAX_FILE {
        return Err(format!("must name a file of at most {MAX_FILE} bytes"));
    }
    let json = fs::read_to_string(path).map_err(|error| rule(&error))?;
    serde_json::from_str(&json).map_err(|error| rule(&error))
}

impl Default for Awp {
    fn default() -> Self {
        Self {
            listen: None,
            wait_budget: Period::from_secs(25),
            signing: SigningMode::default(),
            signing_keys: Vec::new(),
        }
    }
}

impl Awp {
    /// Whom the host trusts to sign documents.
    #[must_use]
    pub fn trust(&self) -> TrustPolicy {
        self.policy().unwrap_or_default()
    }

    fn policy(&self) -> Result<TrustPolicy, wopr_core::awp::SignatureError> {
        let mode = match self.signing {
            SigningMode::Optional => SignatureMode::Optional,
            SigningMode::Require => SignatureMode::Require,
        };
        let keys = self.signing_keys.iter();
        TrustPolicy::new(mode, keys.map(|key| (key.id.as_str(), key.key.as_str())))
    }
}

impl Config {
    /// Checks the settings of the Agent Workflow Protocol.
    pub(super) fn check_awp(&self) -> Result<(), ConfigError> {
        let invalid = |key: &str, rule: String| {
            Err(ConfigError::Invalid {
                key: format!("awp.{key}"),
                rule,
            })
        };
        if self.awp.wait_budget.as_millis() > MAX_WAIT {
            return invalid("wait_budget", "must be at most 5m".to_owned());
        }
        if self.awp.signing_keys.len() > MAX_KEYS {
            return invalid("signing_keys", format!("must be at most {MAX_KEYS}"));
        }
        match self.awp.policy() {
            Ok(_) => Ok(()),
            Err(error) => invalid("signing_keys", error.to_string()),
        }
    }
}
