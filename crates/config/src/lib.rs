//! The configuration of a host: every setting and its default.
//!
//! Precedence: flag, then environment, then file, then default. One table ([`SETTINGS`]) lists every setting
//! with its variable and its parser, so flags and environment cannot disagree on a spelling. An error names the
//! setting and its source. Reading other files (keys, workflows) is not done here, except that one setting may be
//! the path of its value.
//!
//! The file is long because it holds that table, and every section with its defaults.

mod awp;
mod budget;
mod manifest;
mod mcp;
mod model;
mod oidc;
mod peer;
mod secret;
mod settings;
mod tls;
mod token_scope;
mod types;
mod workers;

use std::{
    fs, io,
    path::{Path, PathBuf},
};

use serde::{Deserialize, Serialize};
use sha2::{Digest as _, Sha256};
use tracing::level_filters::LevelFilter;
use wopr_core::{Membership, PrincipalId, TenantId, WorkflowId, hex};

use wopr_app::Scopes;

pub use awp::{Awp, SigningKey, SigningMode};
pub use budget::{Budget, BudgetBreach};
pub use manifest::{
    MCP_ALLOW_COMMANDS, MCP_CONFIG, MCP_MANIFEST, ToolManifest, allowed_commands, keep_tools,
};
pub use mcp::{DEFAULT_TOOL_SERVER, Mcp, SecretSetting, ToolAgent, ToolServer, ToolSetting};
pub use model::{DEFAULT_MODEL, DEFAULT_MODEL_KEY, ModelKind, ModelPrice, ModelProvider};
pub use oidc::{Oidc, TokenAlgorithm};
pub use peer::{
    AgentPeer, CardKeySource, ClientCredentials, DEFAULT_PEER, DEFAULT_TOKEN, HeaderCredential,
    OnInputRequired, PeerTlsFiles, Transport,
};
pub use secret::NamedSecret;
pub use settings::{ENV_KEY_ID, SETTINGS, Setting, default_tenant};
pub use tls::{Certificate, Tls};
pub use token_scope::TokenScope;
pub use types::{
    CardAlgorithm, CardVersion, CidrText, ErrorProfile, Keep, Listen, LogFormat, Period, PublicUrl, Secret,
    StoreUrl, WebOrigin,
};
pub use workers::{WorkerQueue, Workers};

/// Maximum length of lists whose items each enlarge every agent card.
const MAX_LISTED: usize = 4;
/// Maximum of `server.max_connections`: no system gives a process more files.
const MAX_CONNECTIONS: usize = 1_000_000;
/// Minimum of `limits.max_workflow_bytes`.
const LEAST_WORKFLOW_BYTES: usize = 1 << 20;
/// Minimum of `limits.max_log_bytes`.
const LEAST_LOG_BYTES: u64 = 1 << 20;

/// The annotated example file: every setting with its default.
pub const EXAMPLE: &str = include_str!("../../../wopr.toml");

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Config {
    pub store: StoreUrl,
    /// Folders of workflow definitions, shared by all tenants.
    pub workflows: Vec<PathBuf>,
    /// The workflow started by an A2A message that names none.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub default_workflow: Option<WorkflowId>,
    /// Enables conformance nodes and test seams.
    pub conformance: bool,
    /// Grants A2A requests without a credential every scope in the default tenant. For test kits that cannot
    /// send one; only in conformance mode.
    pub conformance_open: bool,
    /// The file that records conformance side effects.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub conformance_ledger: Option<PathBuf>,
    /// The models that workflows may ask.
    pub models: Vec<ModelProvider>,
    /// What the models may take that the runs of a tenant or a workflow ask.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub budgets: Vec<Budget>,
    pub server: Server,
    pub limits: Limits,
    pub effects: Effects,
    pub workers: Workers,
    pub auth: Auth,
    pub secrets: Secrets,
    pub egress: Egress,
    /// The MCP servers whose tools workflows may call.
    pub mcp: Mcp,
    pub a2a: A2a,
    pub awp: Awp,
    pub idempotency: Idempotency,
    pub retention: Retention,
    pub interrupts: Interrupts,
    pub log: Log,
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Server {
    /// The address to listen on. With port 0 the system chooses a port.
    pub listen: Listen,
    /// The origin used in every link; derived from `listen` if absent.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub public_url: Option<PublicUrl>,
    pub max_body_bytes: usize,
    /// Timeout for the head and the body of a request to arrive.
    pub request_timeout: Period,
    /// Interval between comments on an idle stream; at most 30 s by the specification.
    pub sse_keepalive: Period,
    /// How long shutdown waits for requests in flight.
    pub shutdown_grace: Period,
    /// How long a host that is told to stop goes on serving while `/readyz` says 503, so that load balancers see it.
    pub shutdown_delay: Period,
    /// Maximum number of concurrent connections; further ones wait.
    pub max_connections: usize,
    /// Maximum number of unauthenticated connections per IPv4 address or IPv6 /64; 0 means no limit.
    pub max_unauthenticated_per_address: usize,
    /// Origins of web pages that may call from a browser.
    pub cors_origins: Vec<WebOrigin>,
    /// If absent, the server speaks plain HTTP.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub tls: Option<Tls>,
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Limits {
    /// Maximum number of node executions per run.
    pub max_node_executions: u32,
    /// Size of a run's log in bytes, approximately, after which no node of it starts.
    pub max_log_bytes: u64,
    /// Maximum number of runs below one root, on all levels.
    pub max_descendants: u64,
    /// Maximum number of current workflows per tenant. Shared workflows count separately.
    pub max_workflows: usize,
    /// Maximum size of a tenant's current workflow definitions once parsed.
    pub max_workflow_bytes: usize,
    /// Maximum time a run may spend outside `waiting-*` and `paused`; unlimited if absent.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub max_run_duration: Option<Period>,
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Effects {
    /// How long a process must be silent before another one takes over its calls.
    pub lease: Period,
}

#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Auth {
    pub keys: Vec<Key>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub certificates: Vec<Certificate>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub oidc: Option<Oidc>,
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Key {
    /// Identifies the key in logs.
    pub id: String,
    /// The bearer secret; exclusive with `secret_sha256`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub secret: Option<Secret>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub secret_sha256: Option<String>,
    pub tenant: TenantId,
    /// Defaults to the key's id.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub principal: Option<PrincipalId>,
    pub scopes: Scopes,
    /// The principal's roles, for gates that require one.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub roles: Vec<String>,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub groups: Vec<String>,
}

impl Key {
    /// Returns `true` if a caller with the secret of this key has that of the other one.
    fn has_secret_of(&self, other: &Self) -> bool {
        let hash = |key: &Self| match (&key.secret, &key.secret_sha256) {
            (Some(secret), _) => Some(hex(&Sha256::digest(secret.expose().as_bytes()))),
            (None, hash) => hash.clone(),
        };
        hash(self) == hash(other)
    }

    #[must_use]
    pub fn membership(&self) -> Membership {
        Membership {
            roles: self.roles.clone(),
            groups: self.groups.clone(),
        }
    }
}

#[derive(Debug, Clone, Default, PartialEq, Serialize)]
pub struct Secrets {
    /// A file with the master key: 32 bytes in base64.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub key_file: Option<PathBuf>,
    /// The master key itself. Only read from `WOPR_MASTER_KEY`, so that it is never in a configuration file.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub master_key: Option<Secret>,
    /// Go on with this master key although the store was used with another one.
    pub replace_key: bool,
    /// The secrets that models, peers, MCP servers and workflows name.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub named: Vec<NamedSecret>,
}

#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Egress {
    /// Private address blocks that calls may reach, also without TLS.
    pub allow: Vec<CidrText>,
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct A2a {
    /// How long a blocking send waits before it returns the current task.
    pub blocking_timeout: Period,
    /// Lets only a run's creator see it, as a task and over REST.
    pub private_tasks: bool,
    /// The A2A revision that decides the HTTP status of errors.
    pub error_profile: ErrorProfile,
    /// The card served to clients that name no version.
    pub card_version: CardVersion,
    /// Signature algorithms for cards; if empty, cards are not signed.
    pub card_signing: Vec<CardAlgorithm>,
    /// Generations of signing keys in use, each derived from the master key.
    pub card_keys: Vec<u32>,
    /// Maximum number of push configurations per task.
    pub push_configs: usize,
    /// Timeout for a receiver to answer a push.
    pub push_timeout: Period,
    /// How long a push is retried.
    pub push_give_up: Period,
    /// The agents that workflows may call.
    pub peers: Vec<AgentPeer>,
    /// Time between two looks at a task of theirs; by the age of the task if absent.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub poll_interval: Option<Period>,
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Idempotency {
    /// How long an idempotency record is kept.
    pub retention: Period,
}

#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Retention {
    /// How long runs are kept after they and all their descendants have ended.
    pub terminal_runs: Keep,
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Interrupts {
    /// Lifetime of a token, or up to a sixteenth less; never longer than its interrupt.
    pub token_ttl: Period,
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Log {
    pub format: LogFormat,
    /// A level, or directives such as `info,wopr::access=debug`.
    pub level: String,
}

impl Default for Config {
    fn default() -> Self {
        Self {
            store: StoreUrl::Sqlite(PathBuf::from("./wopr.db")),
            workflows: Vec::new(),
            default_workflow: None,
            conformance: false,
            conformance_open: false,
            conformance_ledger: None,
            models: Vec::new(),
            budgets: Vec::new(),
            server: Server::default(),
            limits: Limits::default(),
            effects: Effects::default(),
            workers: Workers::default(),
            auth: Auth::default(),
            secrets: Secrets::default(),
            egress: Egress::default(),
            mcp: Mcp::default(),
            a2a: A2a::default(),
            awp: Awp::default(),
            idempotency: Idempotency::default(),
            retention: Retention::default(),
            interrupts: Interrupts::default(),
            log: Log::default(),
        }
    }
}

impl Auth {
    /// Returns `true` if callers can authenticate without an API key.
    #[must_use]
    pub fn has_others(&self) -> bool {
        self.oidc.is_some() || !self.certificates.is_empty()
    }
}

impl Server {
    /// The origin under which a client on this machine reaches the server.
    #[must_use]
    pub fn origin(&self) -> String {
        let scheme = if self.tls.is_some() { "https" } else { "http" };
        self.listen.origin(scheme)
    }
}

impl Default for Server {
    fn default() -> Self {
        Self {
            listen: Listen::default(),
            public_url: None,
            max_body_bytes: 10 << 20,
            request_timeout: Period::from_secs(30),
            sse_keepalive: Period::from_secs(15),
            shutdown_grace: Period::from_secs(10),
            shutdown_delay: Period::from_secs(0),
            max_connections: 10_000,
            max_unauthenticated_per_address: 1_024,
            cors_origins: Vec::new(),
            tls: None,
        }
    }
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            max_node_executions: 1_000,
            max_log_bytes: 64 << 20,
            max_descendants: 20_000,
            max_workflows: 2_000,
            max_workflow_bytes: 128 << 20,
            max_run_duration: None,
        }
    }
}

impl Default for Effects {
    fn default() -> Self {
        Self {
            lease: Period::from_secs(30),
        }
    }
}

impl Default for A2a {
    fn default() -> Self {
        Self {
            blocking_timeout: Period::from_secs(60),
            private_tasks: false,
            error_profile: ErrorProfile::default(),
            card_version: CardVersion::default(),
            card_signing: Vec::new(),
            card_keys: vec![1],
            push_configs: 10,
            push_timeout: Period::from_secs(15),
            push_give_up: Period::from_secs(24 * 3_600),
            peers: Vec::new(),
            poll_interval: None,
        }
    }
}

impl Default for Idempotency {
    fn default() -> Self {
        Self {
            retention: Period::from_secs(24 * 3_600),
        }
    }
}

impl Default for Interrupts {
    fn default() -> Self {
        Self {
            token_ttl: Period::from_secs(30 * 60),
        }
    }
}

impl Default for Log {
    fn default() -> Self {
        Self {
            format: LogFormat::Text,
            level: "info".to_owned(),
        }
    }
}

/// Settings from the command line; they override everything else.
#[derive(Debug, Clone, Default)]
pub struct Overrides {
    /// Settings by name, as text: `("server.listen", "127.0.0.1:0")`.
    pub settings: Vec<(&'static str, String)>,
    /// If not empty, replaces the folders named elsewhere.
    pub workflows: Vec<PathBuf>,
    /// Additional keys, such as the one that `dev` creates.
    pub keys: Vec<Key>,
}

impl Overrides {
    /// Adds a setting if the flag was given.
    #[must_use]
    pub fn with(mut self, setting: &'static str, text: Option<impl Into<String>>) -> Self {
        if let Some(text) = text {
            self.settings.push((setting, text.into()));
        }
        self
    }
}

#[derive(Debug, thiserror::Error)]
pub enum ConfigError {
    #[error("read the configuration file {}", path.display())]
    Read { path: PathBuf, source: io::Error },
    /// The file is no valid configuration. The reason names the line and the key.
    #[error("read the configuration file {}: {reason}", path.display())]
    File { path: PathBuf, reason: String },
    #[error("read the setting {key} from {source_name}: {rule}")]
    Setting {
        key: String,
        /// The environment variable, or the command line.
        source_name: String,
        rule: String,
    },
    /// The settings contradict each other.
    #[error("accept the setting {key}: {rule}")]
    Invalid { key: String, rule: String },
}

/// The default run duration limit in conformance mode. The suite tests the limit only if it is advertised.
const CONFORMANCE_RUN_DURATION: Period = Period::from_secs(24 * 60 * 60);

impl Config {
    /// The maximum run duration, if there is one.
    #[must_use]
    pub fn max_run_duration(&self) -> Option<Period> {
        let by_mode = self.conformance.then_some(CONFORMANCE_RUN_DURATION);
        self.limits.max_run_duration.or(by_mode)
    }

    /// Reads the file if one is named, then the environment, then the flags.
    ///
    /// # Errors
    /// Also if the named file does not exist.
    pub fn load(
        path: Option<&Path>,
        env: &dyn Fn(&str) -> Option<String>,
        overrides: Overrides,
    ) -> Result<Self, ConfigError> {
        let mut config = match path {
            None => Self::default(),
            Some(path) => Self::read(path)?,
        };
        let is_set = |variable: &str| env(variable).is_some_and(|text| !text.is_empty());
        if is_set(settings::DEFAULT_PEER_URL) && is_set(settings::DELEGATE_CONFIG) {
            return Err(ConfigError::Invalid {
                key: "a2a.peers".to_owned(),
                rule: format!(
                    "{} and {} both make the peer {DEFAULT_PEER}: configure one of them under [[a2a.peers]]",
                    settings::DEFAULT_PEER_URL,
                    settings::DELEGATE_CONFIG
                ),
            });
        }
        for other in [settings::ENGINE_STORE, settings::ENGINE_STORE_PATH] {
            if is_set(settings::STORE) && is_set(other) {
                return Err(ConfigError::Invalid {
                    key: "store".to_owned(),
                    rule: format!(
                        "{} and {other} both name a store: set one of them",
                        settings::STORE
                    ),
                });
            }
        }
        for setting in SETTINGS {
            let Some(text) = env(setting.variable).filter(|text| !text.is_empty()) else {
                continue;
            };
            (setting.set)(&mut config, &text).map_err(|rule| ConfigError::Setting {
                key: setting.key.to_owned(),
                source_name: format!("the environment variable {}", setting.variable),
                rule,
            })?;
        }
        manifest::add_from(&mut config, env)?;
        for (key, text) in overrides.settings {
            let setting = SETTINGS.iter().find(|setting| setting.key == key);
            let set = setting.map_or(Err("is not a setting".to_owned()), |setting| {
                (setting.set)(&mut config, &text)
            });
            set.map_err(|rule| ConfigError::Setting {
                key: key.to_owned(),
                source_name: "the command line".to_owned(),
                rule,
            })?;
        }
        if !overrides.workflows.is_empty() {
            config.workflows = overrides.workflows;
        }
        config.auth.keys.extend(overrides.keys);
        config.check()?;
        let has_default = config.a2a.peers.iter().any(|peer| peer.name == DEFAULT_PEER);
        if is_set(DEFAULT_TOKEN) && !has_default {
            return Err(ConfigError::Invalid {
                key: "a2a.peers".to_owned(),
                rule: format!(
                    "{DEFAULT_TOKEN} is the token of the peer {DEFAULT_PEER}, and there is none: set {} too",
                    settings::DEFAULT_PEER_URL
                ),
            });
        }
        Ok(config)
    }

    fn read(path: &Path) -> Result<Self, ConfigError> {
        let text = fs::read_to_string(path).map_err(|source| ConfigError::Read {
            path: path.to_owned(),
            source,
        })?;
        toml::from_str(&text).map_err(|error| ConfigError::File {
            path: path.to_owned(),
            reason: error.to_string().trim_end().to_owned(),
        })
    }

    fn check(&self) -> Result<(), ConfigError> {
        let invalid = |key: &str, rule: &str| {
            Err(ConfigError::Invalid {
                key: key.to_owned(),
                rule: rule.to_owned(),
            })
        };
        if self.conformance_open && !self.conformance {
            return invalid("conformance_open", "needs conformance");
        }
        if self.conformance_open && !self.server.listen.is_loopback() {
            return invalid(
                "conformance_open",
                "needs server.listen on a loopback address: whoever reaches the port acts without a credential",
            );
        }
        if self.server.max_body_bytes < 1_024 {
            return invalid("server.max_body_bytes", "must be at least 1024");
        }
        if !(1..=MAX_CONNECTIONS).contains(&self.server.max_connections) {
            return invalid("server.max_connections", "must be 1 to 1000000");
        }
        let keepalive = self.server.sse_keepalive.as_duration().as_millis();
        if !(1..=30_000).contains(&keepalive) {
            return invalid("server.sse_keepalive", "must be over 0 and at most 30s");
        }
        if self.server.request_timeout.as_duration().is_zero() {
            return invalid("server.request_timeout", "must be over 0");
        }
        let periods = [
            ("interrupts.token_ttl", self.interrupts.token_ttl),
            ("idempotency.retention", self.idempotency.retention),
        ];
        for (name, period) in periods {
            if period.as_duration().is_zero() {
                return invalid(name, "must be over 0");
            }
        }
        if !is_filter(&self.log.level) {
            return invalid(
                "log.level",
                "must be error, warn, info, debug, trace, off or TARGET=LEVEL, separated by commas",
            );
        }
        if self.limits.max_node_executions == 0 {
            return invalid("limits.max_node_executions", "must be at least 1");
        }
        if self.limits.max_log_bytes < LEAST_LOG_BYTES {
            return invalid("limits.max_log_bytes", "must be at least 1048576");
        }
        if self.limits.max_workflows == 0 {
            return invalid("limits.max_workflows", "must be at least 1");
        }
        if self.limits.max_workflow_bytes < LEAST_WORKFLOW_BYTES {
            return invalid("limits.max_workflow_bytes", "must be at least 1048576");
        }
        if self
            .limits
            .max_run_duration
            .is_some_and(|period| period.as_duration().as_millis() < 1_000)
        {
            return invalid("limits.max_run_duration", "must be at least 1s");
        }
        if self.effects.lease.as_millis() < 1_000 {
            return invalid("effects.lease", "must be at least 1s");
        }
        if let Keep::For(period) = self.retention.terminal_runs
            && period.as_millis() < 1_000
        {
            return invalid("retention.terminal_runs", "must be keep, or at least 1s");
        }
        for (index, certificate) in self.auth.certificates.iter().enumerate() {
            if let Some(rule) = certificate.membership().problem() {
                return invalid(&format!("auth.certificates[{index}]"), &rule);
            }
            if let Some((member, rule)) = certificate.problem() {
                return invalid(&format!("auth.certificates[{index}].{member}"), rule);
            }
        }
        let asks = self
            .server
            .tls
            .as_ref()
            .is_some_and(|tls| tls.client_ca.is_some());
        if !self.auth.certificates.is_empty() && !asks {
            return invalid(
                "auth.certificates",
                "needs server.tls.client_ca, which says whose are accepted",
            );
        }
        if let Some((key, rule)) = self.auth.oidc.as_ref().and_then(Oidc::problem) {
            return invalid(key, rule);
        }
        if !is_set_of(&self.a2a.card_signing, 0) {
            return invalid("a2a.card_signing", "must not name an algorithm twice");
        }
        if !(1..=100).contains(&self.a2a.push_configs) {
            return invalid("a2a.push_configs", "must be 1 to 100");
        }
        if self.a2a.push_timeout.as_millis() < 100 {
            return invalid("a2a.push_timeout", "must be at least 100ms");
        }
        if self
            .a2a
            .poll_interval
            .is_some_and(|interval| !(100..=3_600_000).contains(&interval.as_millis()))
        {
            return invalid("a2a.poll_interval", "must be 100ms to 1h");
        }
        if !is_set_of(&self.a2a.card_keys, 1) {
            return invalid("a2a.card_keys", "must be one to four different numbers");
        }
        for (index, peer) in self.a2a.peers.iter().enumerate() {
            if let Some((member, rule)) = peer.problem() {
                return invalid(&format!("a2a.peers[{index}].{member}"), rule);
            }
            if self.a2a.peers[..index]
                .iter()
                .any(|other| other.name == peer.name)
            {
                return invalid(&format!("a2a.peers[{index}].name"), "must be unique");
            }
            let of_tenants = |name: &String| {
                let mut named = self.secrets.named.iter();
                named.any(|secret| secret.stored && secret.name == *name)
            };
            if peer.token_secret_ref.as_ref().is_some_and(of_tenants) {
                return invalid(
                    &format!("a2a.peers[{index}].token_secret_ref"),
                    "must be a secret with env or file: a peer gets the same token for all tenants",
                );
            }
        }
        for (index, secret) in self.secrets.named.iter().enumerate() {
            if let Some((member, rule)) = secret.problem() {
                return invalid(&format!("secrets.named[{index}].{member}"), rule);
            }
            if self.secrets.named[..index]
                .iter()
                .any(|other| other.name == secret.name)
            {
                return invalid(&format!("secrets.named[{index}].name"), "must be unique");
            }
        }
        for (index, model) in self.models.iter().enumerate() {
            if let Some((member, rule)) = model.problem() {
                return invalid(&format!("models[{index}].{member}"), rule);
            }
            if self.models[..index].iter().any(|other| other.name == model.name) {
                return invalid(&format!("models[{index}].name"), "must be unique");
            }
            let is_named = |name: &String| self.secrets.named.iter().any(|secret| secret.name == *name);
            if model.secret.as_ref().is_some_and(|name| !is_named(name)) {
                return invalid(
                    &format!("models[{index}].secret"),
                    "must be the name of one of secrets.named",
                );
            }
        }
        self.check_budgets()?;
        self.check_workers()?;
        self.check_awp()?;
        self.check_tool_servers()?;
        for (index, key) in self.auth.keys.iter().enumerate() {
            let name = format!("auth.keys[{index}]");
            if key.id.is_empty() || key.id.chars().any(|c| c.is_control() || c.is_whitespace()) {
                return invalid(
                    &format!("{name}.id"),
                    "must not be empty or hold spaces or control characters",
                );
            }
            match (&key.secret, &key.secret_sha256) {
                (Some(secret), None) if !secret.expose().is_empty() => {}
                (None, Some(hash))
                    if hash.len() == 64
                        && hash
                            .bytes()
                            .all(|b| b.is_ascii_digit() || (b'a'..=b'f').contains(&b)) => {}
                (None, Some(_)) => {
                    return invalid(
                        &format!("{name}.secret_sha256"),
                        "must be 64 lowercase hexadecimal digits",
                    );
                }
                (Some(_), None) => return invalid(&format!("{name}.secret"), "must not be empty"),
                (None, None) | (Some(_), Some(_)) => {
                    return invalid(&name, "must have either secret or secret_sha256");
                }
            }
            if let Some(rule) = key.membership().problem() {
                return invalid(&name, &rule);
            }
            if self.auth.keys[..index].iter().any(|other| other.id == key.id) {
                return invalid(&format!("{name}.id"), "must be unique");
            }
            if self.auth.keys[..index]
                .iter()
                .any(|other| other.has_secret_of(key))
            {
                return invalid(&name, "must have a secret of its own: another key has the same");
            }
        }
        Ok(())
    }

    /// The origin used in every link, without a trailing slash: the configured one, or the listen address, with
    /// `localhost` for an unspecified one. Never the `Host` header.
    #[must_use]
    pub fn public_url(&self) -> String {
        match &self.server.public_url {
            Some(url) => url.as_str().to_owned(),
            None => self.server.origin(),
        }
    }

    /// The effective configuration as TOML, without secrets.
    ///
    /// # Errors
    /// If TOML cannot represent a value; does not happen in practice.
    pub fn to_toml_redacted(&self) -> Result<String, toml::ser::Error> {
        toml::to_string_pretty(self)
    }
}

/// Returns `true` if a list has `least` to [`MAX_LISTED`] items and no duplicates.
fn is_set_of<T: PartialEq>(list: &[T], least: usize) -> bool {
    let is_new = |(index, item)| !list[..index].contains(item);
    (least..=MAX_LISTED).contains(&list.len()) && list.iter().enumerate().all(is_new)
}

/// The rule that the name of a model provider or of a tool server breaks.
fn name_problem(name: &str) -> Option<&'static str> {
    let is_name = |c: char| c.is_ascii_alphanumeric() || "-_.".contains(c);
    let is_fine = (1..=128).contains(&name.len()) && name.chars().all(is_name);
    (!is_fine).then_some("must be 1 to 128 letters, digits, hyphens, underscores or dots")
}

/// Returns `true` if a text is a valid log filter. The library takes a bare word that is no level for the name of a target.
/// So a misspelt level would turn the log off, and is refused here.
fn is_filter(text: &str) -> bool {
    let is_level = |text: &str| !text.is_empty() && text.parse::<LevelFilter>().is_ok();
    // Filters by span hold commas of their own.
    text.contains('[')
        || text
            .split(',')
            .map(str::trim)
            .all(|part| match part.split_once('=') {
                Some((target, level)) => !target.is_empty() && is_level(level),
                None => part.is_empty() || is_level(part),
            })
}

#[cfg(test)]
mod tests;
