//! The control plane of the Agent Workflow Protocol.

use std::{collections::BTreeMap, fs, str::FromStr};

use serde::{Deserialize, Serialize, de::DeserializeOwned};
use url::Url;
use wopr_core::{
    InProcess, Object, PrincipalId, TenantId,
    awp::{SignatureMode, TrustPolicy},
};

use super::{
    Config, ConfigError, Key, Listen, ModelKind, ModelProvider, NamedSecret, Period, Secret, default_tenant,
};
use crate::TokenScope;
use wopr_app::Scopes;

/// The longest time that a call waits, in milliseconds: clients give up sooner.
const MAX_WAIT: u64 = 5 * 60 * 1_000;
/// The most bytes of a file that is the value of a setting.
const MAX_FILE: u64 = 1 << 20;
/// The most keys that documents may be signed with.
const MAX_KEYS: usize = 100;

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
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
    /// What the host does activities with that callers want done in process. Mocks do them where nothing is set.
    #[serde(skip_serializing_if = "is_nothing")]
    pub in_process: InProcess,
}

fn is_nothing(in_process: &InProcess) -> bool {
    *in_process == InProcess::default()
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
    pub(crate) fn of_map(text: &str) -> Result<Vec<Self>, String> {
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
pub(crate) fn keys_of_tokens(text: &str) -> Result<Vec<Key>, String> {
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

/// The provider of models, and its secret, that `WORKFLOW_ENGINE_LLM_CONFIG` makes.
const LLM: &str = "workflow-engine";

/// What the reference engine asks models with.
#[derive(Deserialize)]
#[serde(deny_unknown_fields, rename_all = "camelCase")]
struct LlmConfig {
    base_url: Option<Url>,
    api_key_env: Option<String>,
    api_key_secret_ref: Option<String>,
}

/// Adds the provider of `WORKFLOW_ENGINE_LLM_CONFIG`, which `llm_call` nodes then ask in process.
pub(crate) fn add_llm(config: &mut Config, text: &str) -> Result<(), String> {
    let LlmConfig {
        base_url,
        api_key_env,
        api_key_secret_ref,
    } = json_or_file(text)?;
    let (env, file) = match (api_key_env, api_key_secret_ref) {
        (Some(_), Some(_)) => return Err("must have apiKeyEnv or apiKeySecretRef, not both".to_owned()),
        (Some(name), None) => (Some(name), None),
        (None, Some(reference)) => match reference.split_once(':') {
            Some(("env", name)) => (Some(name.to_owned()), None),
            Some(("file", path)) => (None, Some(path.into())),
            Some(_) | None => return Err("apiKeySecretRef must be env:NAME or file:PATH".to_owned()),
        },
        (None, None) => (None, None),
    };
    let has_key = env.is_some() || file.is_some();
    config.secrets.named.retain(|secret| secret.name != LLM);
    if has_key {
        config.secrets.named.push(NamedSecret {
            name: LLM.to_owned(),
            env,
            file,
            stored: false,
            hosts: Vec::new(),
            tenants: Vec::<TenantId>::new(),
        });
    }
    config.models.retain(|model| model.name != LLM);
    config.models.push(ModelProvider {
        name: LLM.to_owned(),
        kind: ModelKind::OpenAi,
        base_url,
        secret: has_key.then(|| LLM.to_owned()),
        model: None,
        tenants: Vec::new(),
        price: None,
    });
    config.awp.in_process.model = Some(LLM.to_owned());
    Ok(())
}

/// The outputs of steps by their handlers, as `WORKFLOW_ENGINE_STEP_HANDLERS` has them.
pub(crate) fn steps_of(text: &str) -> Result<Object, String> {
    json_or_file(text)
}

/// The profile that `WORKFLOW_ENGINE_PROFILE` asks for: mocks do what nothing else is configured for.
pub(crate) fn profile(config: &mut Config, text: &str) -> Result<(), String> {
    match text {
        "demo" => config.awp.in_process.mocks = true,
        _ => return Err("must be demo, or not be set".to_owned()),
    }
    Ok(())
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
            in_process: InProcess::default(),
        }
    }
}

impl Awp {
    /// Whom the host trusts to sign documents.
    #[must_use]
    pub fn trust(&self) -> TrustPolicy {
        self.policy().unwrap_or_default()
    }

    /// What the host does activities with; `None` if mocks do all of them.
    #[must_use]
    pub fn in_process(&self) -> Option<InProcess> {
        self.in_process.has_any().then(|| self.in_process.clone())
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
    pub(crate) fn check_awp(&self) -> Result<(), ConfigError> {
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
        let in_process = &self.awp.in_process;
        if let Some(model) = &in_process.model
            && !self.models.iter().any(|known| known.name == *model)
        {
            return invalid("in_process.model", "must be the name of one of models".to_owned());
        }
        if in_process.tools && self.mcp.servers.is_empty() {
            return invalid("in_process.tools", "needs one of mcp.servers".to_owned());
        }
        if let Err(error) = in_process.check() {
            return invalid("in_process.steps", error.to_string());
        }
        match self.awp.policy() {
            Ok(_) => Ok(()),
            Err(error) => invalid("signing_keys", error.to_string()),
        }
    }
}
