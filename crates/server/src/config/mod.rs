//! The configuration of a host: every setting, its default, and where its value came from.
//!
//! Precedence: flag, then environment, then file, then default. One table ([`SETTINGS`]) names every setting
//! with its variable and how a text becomes its value, so flags and environment cannot disagree on a
//! spelling. An error names the setting and its source. Reading files beyond the configuration itself
//! (keys, workflows) is not done here.

mod oidc;
mod settings;
mod tls;
mod types;

use std::{
    fs, io,
    path::{Path, PathBuf},
};

use serde::{Deserialize, Serialize};
use wopr_core::{Membership, PrincipalId, TenantId, WorkflowId};

use crate::auth::Scopes;

pub use oidc::{Oidc, TokenAlgorithm};
pub(crate) use settings::default_tenant;
pub use settings::{SETTINGS, Setting};
pub use tls::{Certificate, Tls};
pub use types::{
    CardAlgorithm, CardVersion, CidrText, ErrorProfile, Keep, Listen, LogFormat, Period, PublicUrl, Secret,
    StoreUrl, WebOrigin,
};

/// Members of a list whose every member costs something on each card.
const MAX_LISTED: usize = 4;
/// The least that `limits.max_workflow_bytes` may be.
const LEAST_WORKFLOW_BYTES: usize = 1 << 20;

/// The annotated example: every setting with its default.
pub const EXAMPLE: &str = include_str!("../../../../wopr.toml");

/// Everything that can be set.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Config {
    /// Where runs are kept.
    pub store: StoreUrl,
    /// Folders of workflow definitions, shared by every tenant.
    pub workflows: Vec<PathBuf>,
    /// The workflow of an A2A message that names none.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub default_workflow: Option<WorkflowId>,
    /// Whether conformance nodes and seams exist.
    pub conformance: bool,
    /// Whether A2A requests without a credential are let in, with every scope in the default tenant. For kits that
    /// cannot send one; only in conformance mode.
    pub conformance_open: bool,
    /// Where conformance side effects are recorded.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub conformance_ledger: Option<PathBuf>,
    /// The HTTP server.
    pub server: Server,
    /// Bounds of every run.
    pub limits: Limits,
    /// Calls out.
    pub effects: Effects,
    /// Who may call.
    pub auth: Auth,
    /// The host's own secrets.
    pub secrets: Secrets,
    /// Where outbound calls may go.
    pub egress: Egress,
    /// The A2A face.
    pub a2a: A2a,
    /// Idempotency keys.
    pub idempotency: Idempotency,
    /// What is removed in time.
    pub retention: Retention,
    /// Interrupt tokens.
    pub interrupts: Interrupts,
    /// Logs.
    pub log: Log,
}

/// The HTTP server.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Server {
    /// The address to listen on; port 0 lets the system choose.
    pub listen: Listen,
    /// The origin in every link; from `listen` where absent.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub public_url: Option<PublicUrl>,
    /// The largest request body.
    pub max_body_bytes: usize,
    /// How long the head and the body of a request may take to arrive.
    pub request_timeout: Period,
    /// Between two comments on a silent stream; at most 30 s by the specification.
    pub sse_keepalive: Period,
    /// How long a stop waits for requests in flight.
    pub shutdown_grace: Period,
    /// Connections served at once; further ones wait.
    pub max_connections: usize,
    /// Connections from one address (of IPv6: 64 bits) over which no caller was authenticated yet; 0 is no bound.
    pub max_unauthenticated_per_address: usize,
    /// Web pages that may call from a browser, by their origins.
    pub cors_origins: Vec<WebOrigin>,
    /// TLS; without it the server speaks plain HTTP.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub tls: Option<Tls>,
}

/// Bounds of every run.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Limits {
    /// Node executions before a run is stopped.
    pub max_node_executions: u32,
    /// Runs below one root, of all levels together.
    pub max_descendants: u64,
    /// Current workflows of one tenant; the shared ones count as those of another.
    pub max_workflows: usize,
    /// What the definitions of a tenant's current workflows may take once they are parsed.
    pub max_workflow_bytes: usize,
    /// Time outside `waiting-*` and `paused` before a run is stopped; no bound where absent.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub max_run_duration: Option<Period>,
}

/// Calls out.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Effects {
    /// How long another process waits for one that is silent before it takes over its calls.
    pub lease: Period,
}

/// Who may call.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Auth {
    /// Keys.
    pub keys: Vec<Key>,
    /// Client certificates.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub certificates: Vec<Certificate>,
    /// An issuer of tokens.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub oidc: Option<Oidc>,
}

/// An API key.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Key {
    /// Names the key in logs.
    pub id: String,
    /// What a caller presents; this or its hash.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub secret: Option<Secret>,
    /// Lowercase hex SHA-256 of the secret.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub secret_sha256: Option<String>,
    /// The tenant it opens.
    pub tenant: TenantId,
    /// Who uses it; the key's id where absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub principal: Option<PrincipalId>,
    /// What it may do.
    pub scopes: Scopes,
    /// Roles of who uses it, for gates that ask for one.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub roles: Vec<String>,
    /// Groups of who uses it.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub groups: Vec<String>,
}

impl Key {
    /// Roles and groups of who uses it.
    #[must_use]
    pub fn membership(&self) -> Membership {
        Membership {
            roles: self.roles.clone(),
            groups: self.groups.clone(),
        }
    }
}

/// The host's own secrets.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Secrets {
    /// A file with the master key: 32 bytes, base64.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub key_file: Option<PathBuf>,
    /// The master key itself; only by `WOPR_MASTER_KEY`, so that it is never in a file of settings.
    #[serde(skip_deserializing, skip_serializing_if = "Option::is_none")]
    pub master_key: Option<Secret>,
}

/// Where outbound calls may go.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Egress {
    /// Address blocks that calls may reach although private, also without TLS.
    pub allow: Vec<CidrText>,
}

/// The A2A face.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct A2a {
    /// How long a blocking send waits before it answers the current task.
    pub blocking_timeout: Period,
    /// Whether only its creator sees a run, as a task and over REST.
    pub private_tasks: bool,
    /// Which revision's HTTP statuses errors have.
    pub error_profile: ErrorProfile,
    /// Which card a client gets that names no version.
    pub card_version: CardVersion,
    /// How cards are signed; not at all where empty.
    pub card_signing: Vec<CardAlgorithm>,
    /// The generations of signing keys in use, each derived from the master key.
    pub card_keys: Vec<u32>,
    /// Push configurations a task may have.
    pub push_configs: usize,
    /// How long a receiver may take to answer a push.
    pub push_timeout: Period,
    /// How long a push is tried before it is given up.
    pub push_give_up: Period,
}

/// Idempotency keys.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Idempotency {
    /// How long a request is remembered.
    pub retention: Period,
}

/// What is removed in time.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Retention {
    /// How long runs are kept after they and all that descend from them have ended.
    pub terminal_runs: Keep,
}

/// Interrupt tokens.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Interrupts {
    /// How long a token lasts, or up to a sixteenth less; never longer than its interrupt.
    pub token_ttl: Period,
}

/// Logs.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Log {
    /// Their form.
    pub format: LogFormat,
    /// What is logged: a level, or directives such as `info,wopr::access=debug`.
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
            server: Server::default(),
            limits: Limits::default(),
            effects: Effects::default(),
            auth: Auth::default(),
            secrets: Secrets::default(),
            egress: Egress::default(),
            a2a: A2a::default(),
            idempotency: Idempotency::default(),
            retention: Retention::default(),
            interrupts: Interrupts::default(),
            log: Log::default(),
        }
    }
}

impl Auth {
    /// Whether callers may be known by anything but a key.
    #[must_use]
    pub fn has_others(&self) -> bool {
        self.oidc.is_some() || !self.certificates.is_empty()
    }
}

impl Server {
    /// The origin a client on this machine reaches it by.
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
            max_descendants: 20_000,
            max_workflows: 2_000,
            max_workflow_bytes: 64 << 20,
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

/// What the command line says; it wins over everything else.
#[derive(Debug, Clone, Default)]
pub struct Overrides {
    /// Settings by name, as text: `("server.listen", "127.0.0.1:0")`.
    pub settings: Vec<(&'static str, String)>,
    /// Workflow folders; if there are any, instead of those named elsewhere.
    pub workflows: Vec<PathBuf>,
    /// Further keys, such as the one `dev` makes.
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

/// Why there is no configuration.
#[derive(Debug, thiserror::Error)]
pub enum ConfigError {
    /// The file cannot be read.
    #[error("read the configuration file {}", path.display())]
    Read {
        /// The file.
        path: PathBuf,
        /// Why.
        source: io::Error,
    },
    /// The file does not hold a configuration; the text names the line and the key.
    #[error("read the configuration file {}: {reason}", path.display())]
    File {
        /// The file.
        path: PathBuf,
        /// What the parser says.
        reason: String,
    },
    /// A setting has a value it cannot have.
    #[error("read the setting {key} from {source_name}: {rule}")]
    Setting {
        /// The setting.
        key: String,
        /// The variable, or the flag.
        source_name: String,
        /// What it must be.
        rule: String,
    },
    /// Settings that do not fit together.
    #[error("accept the setting {key}: {rule}")]
    Invalid {
        /// The setting.
        key: String,
        /// What it must be.
        rule: String,
    },
}

/// The longest a run takes in conformance mode where nothing else is said: the suite looks at the bound only where one is
/// advertised.
const CONFORMANCE_RUN_DURATION: Period = Period::from_secs(24 * 60 * 60);

impl Config {
    /// The longest a run takes, if that is bounded.
    #[must_use]
    pub fn max_run_duration(&self) -> Option<Period> {
        let by_mode = self.conformance.then_some(CONFORMANCE_RUN_DURATION);
        self.limits.max_run_duration.or(by_mode)
    }

    /// Reads the file if one is named, then the environment, then the flags.
    ///
    /// # Errors
    /// See [`ConfigError`]. A named file that does not exist is an error.
    pub fn load(
        path: Option<&Path>,
        env: &dyn Fn(&str) -> Option<String>,
        overrides: Overrides,
    ) -> Result<Self, ConfigError> {
        let mut config = match path {
            None => Self::default(),
            Some(path) => Self::read(path)?,
        };
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
        if self.server.max_connections == 0 {
            return invalid("server.max_connections", "must be at least 1");
        }
        let keepalive = self.server.sse_keepalive.as_duration().as_millis();
        if !(1..=30_000).contains(&keepalive) {
            return invalid("server.sse_keepalive", "must be over 0 and at most 30s");
        }
        if self.server.request_timeout.as_duration().is_zero() {
            return invalid("server.request_timeout", "must be over 0");
        }
        if self.limits.max_node_executions == 0 {
            return invalid("limits.max_node_executions", "must be at least 1");
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
        if !is_set_of(&self.a2a.card_keys, 1) {
            return invalid("a2a.card_keys", "must be one to four different numbers");
        }
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
        }
        Ok(())
    }

    /// The origin in every link, without a final slash: the configured one, else the listen address with
    /// `localhost` for an unspecified one. Never the `Host` header.
    #[must_use]
    pub fn public_url(&self) -> String {
        match &self.server.public_url {
            Some(url) => url.as_str().to_owned(),
            None => self.server.origin(),
        }
    }

    /// The effective configuration as TOML; secrets are not in it.
    ///
    /// # Errors
    /// None in practice; a value that TOML cannot hold.
    pub fn to_toml_redacted(&self) -> Result<String, toml::ser::Error> {
        toml::to_string_pretty(self)
    }
}

/// Whether a list has so many members at least, not many more, and none twice.
fn is_set_of<T: PartialEq>(list: &[T], least: usize) -> bool {
    let is_new = |(index, item)| !list[..index].contains(item);
    (least..=MAX_LISTED).contains(&list.len()) && list.iter().enumerate().all(is_new)
}

#[cfg(test)]
mod tests;
